"""What `posterity bench all --quick` finds against a baseline, on benches that cost nothing; the committed baseline."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from posterity.bench import speed
from posterity.bench.bench import Bench
from posterity.bench.registry import BENCHES
from posterity.errors import StorageError
from posterity.interfaces.cli import app

COMMITTED = Path(__file__).parents[2] / speed.BASELINE


class Toy:
    """A bench of two cells: times over a yardstick's, and speed-ups. Each run takes the next of the given ratios."""

    def __init__(self, times: list[float], speedups: list[float]) -> None:
        self.left = {"times": times, "speedups": speedups}
        self.ran: list[str] = []

    def cells(self, quick: bool, peers: bool) -> dict[str, Any]:
        assert not quick  # at the size that is published
        return {cell: lambda cell=cell: self.rows(cell) for cell in self.left}

    def rows(self, cell: str) -> list[dict[str, Any]]:
        self.ran.append(cell)
        left = self.left[cell]
        ratio = left.pop(0) if len(left) > 1 else left[0]
        return [{"who": "dense", "ratio": 1.0}, {"who": "ours", "ratio": ratio}]


def measured(monkeypatch: pytest.MonkeyPatch, times: list[float], speedups: list[float]) -> Toy:
    toy = Toy(times, speedups)
    monkeypatch.setitem(BENCHES, "toy", Bench("nothing", toy.cells, lambda rows: {}, {}))
    ratios = (speed.Ratio(("times",), ("ratio",), "who"), speed.Ratio(("speedups",), ("ratio",), "who", "more"))
    monkeypatch.setattr(speed, "RATIOS", {"toy": ratios})
    return toy


@pytest.fixture
def baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Times of 2, speed-ups of 8."""
    measured(monkeypatch, [2.0], [8.0])
    path = tmp_path / "baseline.json"
    speed.measure(lambda line: None, out=path)
    return path


def test_a_record_has_the_ratios_of_ours_and_which_is_better(baseline: Path) -> None:
    record = json.loads(baseline.read_text())
    assert record["command"] == "posterity bench all --quick"
    rows = [(row["cell"], row["row"], row["ratio"], row["better"]) for row in record["rows"]]
    assert rows == [("times", "ours", 2.0, "less"), ("speedups", "ours", 8.0, "more")]
    assert {"cpu", "torch", "threads"} <= record["environment"].keys()


@pytest.mark.parametrize(
    ("times", "speedups"),
    [(2.0, 8.0), (2.49, 8.0), (2.0, 6.41), (0.5, 8.0), (2.0, 80.0)],
    ids=["the same", "a little slower", "a little less of a speed-up", "faster", "more of a speed-up"],
)
def test_what_is_no_loss_passes_at_once(
    baseline: Path, monkeypatch: pytest.MonkeyPatch, times: float, speedups: float
) -> None:
    toy = measured(monkeypatch, [times], [speedups])
    assert speed.compare(lambda line: None, baseline) == []
    assert toy.ran == ["times", "speedups"]


@pytest.mark.parametrize(
    ("times", "speedups", "cell", "line"),
    [
        (2.6, 8.0, "times", "toy: times, ours, ratio is 2.6, and 2 in the baseline (less is better): 30% worse"),
        (
            2.0,
            6.25,
            "speedups",
            "toy: speedups, ours, ratio is 6.25, and 8 in the baseline (more is better): 28% worse",
        ),
    ],
)
def test_a_loss_counts_where_it_is_found_twice(
    baseline: Path, monkeypatch: pytest.MonkeyPatch, times: float, speedups: float, cell: str, line: str
) -> None:
    toy, told = measured(monkeypatch, [times], [speedups]), []  # type: Toy, list[str]
    assert speed.compare(told.append, baseline) == [f"{line}, and so before"]
    assert toy.ran == ["times", "speedups", cell]
    assert f"{line}; measured once more" in told


def test_a_loss_that_is_gone_the_second_time_does_not_count(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = measured(monkeypatch, [3.0, 2.1], [8.0])
    assert speed.compare(lambda line: None, baseline) == []
    assert toy.ran == ["times", "speedups", "times"]


def test_a_row_in_one_of_both_only_is_named(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, [2.0], [8.0])
    record = json.loads(baseline.read_text())
    record["rows"][0]["row"] = "renamed"
    baseline.write_text(json.dumps(record))
    lines = speed.compare(lambda line: None, baseline)
    assert [line.partition("; ")[0] for line in lines] == [
        "toy: times, ours, ratio is not in the baseline",
        "toy: times, renamed, ratio is not in what was measured",
    ]
    assert all("--out benchmarks/baseline.json" in line for line in lines)


def test_another_machine_is_named(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, [2.0], [8.0])
    record = json.loads(baseline.read_text())
    record["environment"]["cpu"] = "an abacus"
    baseline.write_text(json.dumps(record))
    told: list[str] = []
    assert speed.compare(told.append, baseline) == []
    assert "of cpu an abacus" in told[0]


def test_without_a_baseline_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = measured(monkeypatch, [2.0], [8.0])
    with pytest.raises(StorageError, match="baseline.json"):
        speed.compare(lambda line: None, tmp_path / "baseline.json")
    assert toy.ran == []


def test_the_command_says_what_is_lost_and_exits_with_one(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(baseline.parent)
    (baseline.parent / "benchmarks").mkdir()
    baseline.rename(speed.BASELINE)
    measured(monkeypatch, [2.0], [8.0])
    assert CliRunner().invoke(app, ["bench", "all", "--quick", "--check"]).exit_code == 0
    measured(monkeypatch, [4.0], [8.0])
    lost = CliRunner().invoke(app, ["bench", "all", "--quick", "--check"])
    assert lost.exit_code == 1
    assert "toy: times, ours, ratio is 4, and 2 in the baseline" in lost.output
    shown = CliRunner().invoke(app, ["bench", "all", "--quick", "--json"])
    assert [row["ratio"] for row in json.loads(shown.stdout)["rows"]] == [4.0, 8.0]


@pytest.mark.parametrize("options", [[], ["--check"], ["--quick", "--peers"]])
def test_all_at_full_size_is_refused_with_the_way_out(options: list[str]) -> None:
    found = CliRunner().invoke(app, ["bench", "all", *options])
    assert found.exit_code == 2
    assert "all --quick" in found.output


def test_every_ratio_is_of_a_cell_that_there_is() -> None:
    for bench, ratios in speed.RATIOS.items():
        cells = BENCHES[bench].cells(False, False)
        assert all(cell in cells for ratio in ratios for cell in ratio.cells), bench


def test_the_committed_baseline_has_every_cell() -> None:
    record = json.loads(COMMITTED.read_text())
    wanted = {(bench, cell) for bench, ratios in speed.RATIOS.items() for ratio in ratios for cell in ratio.cells}
    assert {(row["bench"], row["cell"]) for row in record["rows"]} == wanted
    assert all(row["ratio"] > 0 for row in record["rows"])
    assert record["environment"]["threads"] == 1
