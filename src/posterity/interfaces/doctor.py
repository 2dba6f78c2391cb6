"""`posterity doctor`: one list of findings about a table, or about a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from posterity.evaluation.diagnosis import diagnose
from posterity.evaluation.finding import Finding
from posterity.interfaces.settings import Settings
from posterity.interfaces.tables.audit import audit
from posterity.interfaces.tables.prepared import aim
from posterity.interfaces.tables.run import TableModel

if TYPE_CHECKING:
    import pandas

__all__ = ["examine_run", "examine_table"]


def examine_table(
    frame: pandas.DataFrame, settings: Settings, tell: Callable[[str], None] = lambda line: None
) -> list[Finding]:
    """Findings about the columns, the target and the split. Raises DataError: a target or a split that cannot be read."""
    target, _, parts = aim(frame, settings, tell)
    return audit(frame.drop(columns=list(settings.drop)), target, parts)


def examine_run(folder: str | os.PathLike[str], frame: pandas.DataFrame | None = None) -> list[Finding]:
    """Findings about a fitted run; most need labelled rows that it was not trained on.

    Raises StorageError: no run; DataError: rows that it cannot predict.
    """
    fitted = TableModel.load(folder)
    if frame is None:
        remedy = f"posterity doctor {folder} TEST.csv"
        return [Finding("run", "skipped", "without labelled rows nothing can be checked", remedy)]
    foreign = [name for name in fitted.columns.foreign(frame) if name != fitted.target.name]
    unseen = fitted.columns.unseen(frame)
    labelled = fitted.labelled(frame)
    seen = fitted.trained_among(frame)
    findings = [
        Finding(
            "foreign columns", "warning" if foreign else "ok",
            f"{len(foreign)} columns are not of this run{': ' + ', '.join(foreign) if foreign else ''}",
            "they are ignored" if foreign else "", {"columns": foreign},
        ),
        Finding(
            "unseen values", "warning" if unseen else "ok",
            "; ".join(f"{name}: {count:,} rows" for name, count in unseen.items()) or "every category was seen in training",
            "their effect is unknown to the network" if unseen else "", {"rows": unseen},
        ),
        Finding(
            "rows trained on", "warning" if seen else "ok", f"{seen:,} of {len(frame):,} rows have features trained on",
            "evaluate on other rows" if seen else "", {"rows": seen},
        ),
    ]  # fmt: skip
    return findings + diagnose(fitted.model, labelled, data_size=len(fitted.trained_on) or None)
