"""The command line: what it prints where, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import posterity as po
from posterity.interfaces import demo

pytest.importorskip("sklearn", reason="the demo's data come with scikit-learn")


def posterity(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "posterity", *arguments], capture_output=True, text=True, timeout=600)


def test_version_and_help() -> None:
    assert posterity("--version").stdout.strip() == po.__version__
    shown = posterity("--help")
    assert shown.returncode == 0
    assert "demo" in shown.stdout


@pytest.mark.parametrize("arguments", [("demo", "--no-such-option"), ("nonsense",), ("bench", "no-such-bench")])
def test_wrong_usage_ends_with_2_and_no_traceback(arguments: tuple[str, ...]) -> None:
    run = posterity(*arguments)
    assert run.returncode == 2
    assert run.stdout == ""
    assert "Traceback" not in run.stderr
    assert run.stderr.strip()


def test_demo_rows_with_a_tiny_budget() -> None:
    methods = {
        "map": demo.Demo(po.MAP(), 1, ("mean",)),
        "ensemble": demo.Demo(po.DeepEnsemble(2), 1, ("draws",), pick="map"),
    }
    told: list[str] = []
    record = demo.run(0, methods, told.append).to_json()
    assert [(row["method"], row["via"]) for row in record["rows"]] == [("map", "mean"), ("ensemble", "draws")]
    for row in record["rows"]:
        assert {"nll", "accuracy", "ece", "aurc", "ood_auroc", "ood_auroc_noise"} <= row["metrics"].keys()
        assert row["metrics"]["nll"].keys() == {"value", "low", "high", "n"}
        assert row["metrics"]["nll"]["n"] == record["settings"]["rows"]["test"]
    assert record["settings"]["data_weight"].keys() == {"map", "ensemble"}
    assert record["settings"]["data_weight"]["map"] == record["settings"]["data_weight"]["ensemble"]
    assert len(told) == 2


def test_digits_are_split_without_overlap() -> None:
    data = demo.digits(3)
    sizes = [len(part[1]) for part in data[:3]]
    assert sum(sizes) + len(data.strange) == 1797
    assert all(int(part[1].max()) <= 7 for part in data[:3])
    rows = {tuple(row.tolist()) for part in data[:3] for row in part[0]}
    assert len(rows) >= sum(sizes) - 5  # no row is in two parts, up to digits that are the same picture


@pytest.mark.slow
def test_demo_from_the_shell(tmp_path: Path) -> None:
    run = posterity("demo", "--json", "--out", str(tmp_path / "demo"))
    assert run.returncode == 0
    record = json.loads(run.stdout)
    assert record == json.loads((tmp_path / "demo" / "evaluation.json").read_text())
    best: dict[str, float] = {}
    for row in record["rows"]:
        nll = row["metrics"]["nll"]["value"]
        best[row["method"]] = min(nll, best.get(row["method"], nll))
    assert best.keys() >= {"map", "deep-ensemble", "mean-field", "ivon", "laplace"}
    assert max(best.values()) <= 0.12
