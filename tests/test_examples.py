"""The examples: short, and each prints or draws what its reader came for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = {
    "triage": (("risk <= 0.02 guaranteed", "MICU"), ("triage.html", "triage.json")),
    "demand": (("last week", "crps"), ("demand.html", "intervals.csv")),
    "gate": (("propagation", "answered of the digits", "p95"), ("clothes.onnx",)),
    "fair": (("ensemble", "score-vi", "ivon"), ("fair.html",)),
}


def test_every_script_is_known_and_at_most_15_lines() -> None:
    scripts = {path.stem: path for path in EXAMPLES.glob("*.py") if path.stem != "data"}
    assert scripts.keys() == SCRIPTS.keys()
    assert all(len(path.read_text("utf-8").splitlines()) <= 15 for path in scripts.values())


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("POSTERITY_DATA"), reason="POSTERITY_DATA names no folder")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_gives_its_reader(name: str, tmp_path: Path) -> None:
    told, files = SCRIPTS[name]
    command = [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for word in told:
        assert word in done.stdout
    for file in files:
        assert (tmp_path / file).stat().st_size > 0
