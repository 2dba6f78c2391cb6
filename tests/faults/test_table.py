"""The table of faults names tests that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LINES = re.findall(r"^\| ([A-Z]\d+): .*$", (HERE / "README.md").read_text(), flags=re.MULTILINE)
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", (HERE / "README.md").read_text())))


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((HERE.parent / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "name"), NAMED, ids="::".join)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert name in names_in(path)


def test_every_fault_has_one_line_and_every_test_here_a_fault() -> None:
    assert sorted(set(LINES), key=lambda fault: (fault[0], int(fault[1:]))) == LINES
    assert len(LINES) == 128
    files = [f"faults/{path.name}" for path in HERE.glob("test_*.py") if path.name != Path(__file__).name]
    here = {(path, name) for path in files for name in names_in(path) if name.startswith("test_")}
    assert here <= set(NAMED)
