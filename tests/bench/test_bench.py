"""The runner and the checks on a bench that costs nothing; the worker processes on networks of a few weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from posterity import bench as benches
from posterity.bench import race, runner, training_cost
from posterity.bench.bench import Bench, Limit
from posterity.bench.registry import BENCHES
from posterity.errors import DataError, PosterityError, PosterityWarning


class Toy:
    """A bench of two cells that counts their runs; the second fails while `broken`."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.broken = False
        self.claim = 1.25

    def cells(self, quick: bool, peers: bool) -> dict[str, Any]:
        return {"first": lambda: self.work("first"), "second": lambda: self.work("second")}

    def work(self, key: str) -> list[dict[str, Any]]:
        self.ran.append(key)
        if key == "second" and self.broken:
            raise RuntimeError("the machine went away")
        return [{"contestant": "ours", "ratio": self.claim}]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    toy = Toy()
    claims = lambda rows: {"toy_time": rows[0]["ratio"], "toy_size": 3.0}  # noqa: E731
    monkeypatch.setitem(BENCHES, "toy", Bench("nothing at all", toy.cells, claims, {"toy_time": Limit(high=1.5)}))
    return toy


def test_names() -> None:
    assert set(benches.names()) >= {"training-cost", "carrier-cost", "score-gaussian", "score-mixture"}
    assert all(BENCHES[name].about for name in benches.names())


def test_a_record_says_what_was_measured_where(toy: Toy, tmp_path: Path) -> None:
    out = tmp_path / "results" / "toy.json"
    told: list[str] = []
    record = benches.run("toy", out=out, tell=told.append)
    assert json.loads(out.read_text()) == record
    assert list(record) == ["bench", "command", "environment", "quick", "seconds", "rows", "claims", "limits"]
    assert (record["bench"], record["command"], record["quick"]) == ("toy", "posterity bench toy", False)
    assert record["claims"] == {"toy_time": 1.25, "toy_size": 3.0}
    assert [row["cell"] for row in record["rows"]] == ["first", "second"]
    assert {"python", "torch", "posterity", "cpu", "cores", "threads"} <= record["environment"].keys()
    assert not [text for text in map(str, record["environment"].values()) if "/" in text]
    assert told == ["toy: first (1 of 2)", "toy: second (2 of 2)"]
    assert [path.name for path in out.parent.iterdir()] == ["toy.json"]


def test_without_a_file_nothing_is_written(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert benches.run("toy", quick=True)["command"] == "posterity bench toy --quick"
    assert not list(tmp_path.iterdir())


def test_an_interrupted_run_goes_on(toy: Toy, tmp_path: Path) -> None:
    out, toy.broken = tmp_path / "toy.json", True
    with pytest.raises(RuntimeError, match="went away"):
        benches.run("toy", out=out)
    assert not out.exists()
    toy.broken = False
    record = benches.run("toy", out=out)
    assert toy.ran == ["first", "second", "second"]
    assert len(record["rows"]) == 2


@pytest.mark.parametrize("change", [{"quick": True}, {"peers": True}, {"resume": False}])
def test_another_run_starts_afresh(toy: Toy, tmp_path: Path, change: dict[str, bool]) -> None:
    out, toy.broken = tmp_path / "toy.json", True
    with pytest.raises(RuntimeError, match="went away"):
        benches.run("toy", out=out)
    toy.broken = False
    benches.run("toy", out=out, **change)
    assert toy.ran == ["first", "second", "first", "second"]


def test_good_figures_pass(toy: Toy, tmp_path: Path) -> None:
    benches.run("toy", out=tmp_path / "toy.json")
    assert benches.check("toy", tmp_path) == []


def test_missing_figures_are_named_with_the_way_out(toy: Toy, tmp_path: Path) -> None:
    (failure,) = benches.check("toy", tmp_path)
    assert "toy.json" in failure
    assert f"posterity bench toy --out {tmp_path / 'toy.json'}" in failure


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quick": True}, "not from a full run"),
        ({"claims": {"toy_time": 1.625, "toy_size": 3.0}}, "toy_time is 1.62 and must be at most 1.5"),
        ({"claims": {"toy_time": float("nan"), "toy_size": 3.0}}, "not JSON"),
        ({"claims": {"toy_size": 3.0}}, "lacks the claim 'toy_time'"),
        ({"claims": {"toy_time": 1.25}}, "other claims than a run of today: ['toy_size']"),
        ({"rows": [{"cell": "first", "old": 1.0}]}, "no rows with the fields"),
        ({"remark": "by hand"}, "other keys than a run of today: ['remark']"),
    ],
)
def test_bad_figures_fail(toy: Toy, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    record = benches.run("toy") | change
    (tmp_path / "toy.json").write_text(json.dumps(record))
    failures = benches.check("toy", tmp_path)
    assert any(words in failure for failure in failures), failures


@pytest.mark.parametrize("name", benches.names())
def test_the_committed_figures_are_within_their_limits(name: str) -> None:
    """The files only: `make bench-check` also compares them with a run of today."""
    record = json.loads((Path(__file__).parents[2] / runner.RESULTS / f"{name}.json").read_text())
    assert record["quick"] is False
    assert {claim: Limit(**ends) for claim, ends in record["limits"].items()} == BENCHES[name].limits
    for claim, limit in BENCHES[name].limits.items():
        assert limit.holds(record["claims"][claim]), claim


def test_a_bench_whose_data_are_missing_is_checked_by_its_file(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benches.run("toy", out=tmp_path / "toy.json")
    absent = DataError("set POSTERITY_DATA")
    monkeypatch.setattr(toy, "work", lambda key: (_ for _ in ()).throw(absent))
    with pytest.warns(PosterityWarning, match="toy is not run again: set POSTERITY_DATA"):
        assert benches.check("toy", tmp_path) == []


def test_a_table_shows_rows_claims_and_limits(toy: Toy) -> None:
    console = Console(width=120, record=True)
    with console.capture() as capture:
        console.print(benches.table(benches.run("toy", quick=True)))
    text = " ".join(capture.get().split())
    assert "first ours 1.25" in text
    assert "toy_time 1.25 (at most 1.5)" in text
    assert "toy_size 3" in text


TINY = race.Race(training_cost.__name__, "7-11-5", rows=3, steps=2, repeats=2)


def test_a_race_of_processes() -> None:
    rows = {row["contestant"]: row for row in race.times(["adamw", "mean_field"], TINY)}
    assert rows["adamw"]["times_adamw"] == rows["adamw"]["median_times_adamw"] == 1.0
    assert rows["mean_field"]["weights"] == 7 * 11 + 11 + 11 * 5 + 5
    assert rows["mean_field"]["times_adamw"] == rows["mean_field"]["milliseconds"] / rows["adamw"]["milliseconds"]
    assert 0 < rows["mean_field"]["milliseconds"] < 1000


HOG = """
import torch
def hog(net, inputs, targets, data_size):
    def step():
        torch.ones(16 * 2**20)
    return step
CONTESTANTS = {"hog": hog}
"""


def test_memory_is_the_peak_of_a_step_however_large_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fills and frees 64 MiB. The kernel's counters lag by up to 64 pages a core, the allocator adds a few."""
    (tmp_path / "hogs.py").write_text(HOG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (row,) = race.memory(["hog"], TINY._replace(module="hogs"))
    assert 63 <= row["mebibytes"] < 72
    assert row["copies"] == row["mebibytes"] * 2**20 / 4 / (7 * 11 + 11 + 11 * 5 + 5)


def test_a_process_that_dies_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PosterityError, match="nonsense"):
        race.memory(["nonsense"], TINY)
    assert "KeyError: 'nonsense'" in capfd.readouterr().err


def test_absent_peers_are_left_out_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.warns(PosterityWarning, match="make peers"):
        assert race.available_peers() == []


def test_claims_are_of_the_largest_batch() -> None:
    ours = training_cost.CONTESTANTS
    rows: list[dict[str, Any]] = [
        {"contestant": name, "batch_size": size, "times_adamw": ratio}
        for name in ours
        for size, ratio in ((32, 2.0), (256, 1.25))
    ]
    rows += [{"contestant": name, "batch_size": 32, "copies": 8.5} for name in ours]
    claims = training_cost.claims(rows)
    assert set(claims.values()) == {1.25, 8.5}
    assert claims.keys() >= training_cost.LIMITS.keys()
