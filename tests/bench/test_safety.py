"""The safety bench counts what it should: nothing where all is well, and what a library that is not careful would lose."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from posterity.bench import safety
from posterity.bench.safety import damage, hostile, kills
from posterity.bench.safety.child import in_child
from posterity.bench.safety.disk import LIMIT, full_disks, tried
from posterity.bench.safety.runs import KINDS, fitted, loaded
from posterity.errors import PosterityError
from posterity.posterior import storage
from posterity.posterior.files import FileRecord

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the safety bench needs Linux")


def total(rows: list[dict[str, Any]], count: str) -> int:
    return sum(row[count] for row in rows)


def test_a_killed_process_is_found_where_it_died() -> None:
    (row,) = in_child(kills.killed_saves, 3)
    assert row["tries"] == sum(row[moment] for moment in kills.MOMENTS) == 3
    assert (row["lost"], row["different"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", kills.FITS)
def test_killed_fits_end_in_the_run_that_nobody_killed(name: str) -> None:
    (row,) = in_child(kills.killed_fits, name, 5)
    assert row["tries"] == 5
    assert row["runs"] >= 1
    assert (row["lost"], row["different"]) == (0, 0)


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(PosterityError, match=r"killed_fits ended with 1: [\s\S]*KeyError: 'no such fit'"):
        in_child(kills.killed_fits, "no such fit", 1)


@pytest.mark.slow
def test_a_full_disk_of_either_kind_loses_nothing() -> None:
    for rows in (full_disks(2), in_child(tried, 2, LIMIT)):
        assert [row["what"] for row in rows] == ["save", "checkpoint", "fit"]
        assert total(rows, "tries") == 6
        assert total(rows, "refused") >= 4
        assert not any(total(rows, count) for count in ("unclear", "lost", "different", "temporaries", "left_over"))


def test_damage_is_refused_by_name() -> None:
    rows = damage.damaged("map", False, 2, 3)
    assert {row["what"] for row in rows} == set(safety.DAMAGES)
    assert total(rows, "tries") == total(rows, "refused") > 50
    assert total(rows, "named") == total(rows, "refused") - 1  # another run's manifest is fine, its files are not
    assert total(rows, "wrong") == total(rows, "failed") == 0


def test_damage_that_nobody_looks_for_is_counted_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(folder: Path, record: FileRecord, check: bool = True) -> Path:
        return folder / record.file

    monkeypatch.setattr(storage, "verify", trusting)
    rows = damage.damaged("map", False, 0, 20)
    assert total(rows, "wrong") > 0


def test_harm_that_is_done_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a loader that runs what it finds, writes where it is told to, fails as it likes, or never ends."""
    done: list[str] = []

    def careless(folder: Path, network: object) -> None:
        done.append(what := ("ran", "escaped", "failed", "hung")[len(done) % 4])
        if what == "ran":
            (tmp_path / "ran").touch()
        elif what == "escaped":
            (folder / ".." / "outside" / "kept").write_text("gone")
        elif what == "hung":
            signal.pause()
        raise KeyError(what)

    before = signal.signal(signal.SIGALRM, hostile._hang)
    monkeypatch.setattr(hostile, "load", careless)
    monkeypatch.setattr(hostile, "LONG", 1)
    try:
        fitted("map").save(tmp_path / "made")
        row = hostile._row("map", "links", tmp_path, fitted("map", seed=1), 15)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert row["tries"] == len(done) >= 4
    assert {key: row[key] for key in ("ran", "escaped", "hung")} == {
        key: done.count(key) for key in ("ran", "escaped", "hung")
    }
    assert row["failed"] == row["tries"] - row["hung"]
    assert row["slowest_seconds"] >= 1


def test_runs_are_told_apart_by_a_bit(tmp_path: Path) -> None:
    for seed in (0, 1):
        fitted("map", seed=seed).save(tmp_path / str(seed))
    fitted("map").save(tmp_path / "again")
    found = [loaded(tmp_path / name, "map") for name in ("0", "1", "again")]
    assert found[0] == found[2] != found[1]


def test_claims_are_sums_over_the_rows_of_their_part() -> None:
    kills = {"tries": 50, "before": 1, "writing": 40, "between": 9, "after": 0, "runs": 7, "lost": 0, "different": 1}
    full = dict.fromkeys(safety.PARTS["full"][1].split(), 2)
    damage = dict.fromkeys(safety.PARTS["damaged"][1].split(), 3)
    forged = dict.fromkeys(safety.PARTS["hostile"][1].split(), 5)
    rows = [
        {"what": "map", **kills}, {"what": "saves", **kills}, {"what": "save", "disk": "tmpfs", **full},
        {"run": "map", "what": "cut", **damage}, {"run": "sghmc", "what": "cut", **damage},
        {"run": "map", "what": "code", **forged, "slowest_seconds": 0.5, "most_mebibytes": 3.0},
        {"run": "map", "what": "paths", **forged, "slowest_seconds": 0.25, "most_mebibytes": 7.0},
    ]  # fmt: skip
    claims = safety.claims(rows)
    assert (claims["killed_tries"], claims["killed_map_writing"], claims["killed_ensemble_tries"]) == (100, 40, 0)
    assert (claims["killed_different"], claims["full_save_lost"], claims["full_fit_lost"]) == (2, 2, 0)
    assert (claims["damaged_tries"], claims["damaged_cut_wrong"], claims["damaged_flipped_tries"]) == (6, 6, 0)
    assert (claims["hostile_ran"], claims["hostile_code_ran"]) == (10, 5)
    assert (claims["hostile_slowest_seconds"], claims["hostile_most_mebibytes"]) == (0.5, 7.0)
    assert safety.LIMITS.keys() <= claims.keys()


def test_every_kind_of_posterior_is_damaged_in_a_full_run() -> None:
    assert {f"damage {kind}" for kind in KINDS} <= safety.cells(False, False).keys()
    assert len(safety.cells(True, False)) < len(safety.cells(False, False))
