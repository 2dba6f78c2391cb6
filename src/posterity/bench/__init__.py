"""Every published cost figure as a command, `posterity bench NAME`: one module per claim, run and checked by `runner.py`."""

from posterity.bench.runner import check, names, run, table
from posterity.bench.speed import ALL

__all__ = ["ALL", "check", "names", "run", "table"]
