"""Two processes that `torchrun` starts find what one finds, count every row once, and go on where others stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.test_contract import CASES
from tests.distributed import ranks
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import posterity as po

ROOT = Path(__file__).parents[2]
CLOSE = 1e-6  # of float64; what is found is 1e-11, BaM's solution, and 1e-15 of the others
MASKED = "mc-dropout"  # every rank masks its own rows


def launch(*command: str) -> subprocess.CompletedProcess[str]:
    """A command on two ranks."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "POSTERITY_CHECK_RANKS": "1"}
    return subprocess.run([*torchrun, *command], capture_output=True, text=True, timeout=300, env=environment)


def on_two_ranks(check: str, work: Path) -> Any:
    """What a check of `ranks.py` found on rank 0."""
    done = launch(str(Path(ranks.__file__)), str(work), str(work / "found.json"), check)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((work / "found.json").read_text())[check]


def test_rows_shared_by_two_ranks_give_the_posterior_of_one(tmp_path: Path) -> None:
    found = on_two_ranks("rows", tmp_path)
    assert found.keys() == CASES.keys()
    assert found.pop(MASKED) < 0.05
    assert {name: apart for name, apart in found.items() if apart > CLOSE} == {}


def test_members_shared_by_two_ranks_give_the_posterior_of_one(tmp_path: Path) -> None:
    found = on_two_ranks("members", tmp_path)
    assert found.keys() == CASES.keys()
    assert {name: apart for name, apart in found.items() if apart > 1e-12} == {}


@pytest.mark.parametrize(("check", "cases"), [("many draws", ranks.MANY), ("own draws", ranks.LINEAR)])
def test_ranks_with_draws_of_their_own(check: str, cases: dict[str, Any], tmp_path: Path) -> None:
    found = on_two_ranks(check, tmp_path)
    assert found.keys() == cases.keys()
    assert {name: apart for name, apart in found.items() if apart > CLOSE} == {}


def test_an_evaluation_counts_every_row_once_and_says_what_one_process_says(tmp_path: Path) -> None:
    assert on_two_ranks("evaluation", tmp_path) == {"apart": [], "n": ranks.ROWS, "of one batch": ranks.ROWS}


def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    found = on_two_ranks("restarts", tmp_path)
    assert len(found) == 4 * len(ranks.RESTARTS)
    assert max(found.values()) < CLOSE
    for name, distribute in ranks.RESTARTS:  # what two ranks left, on one
        out = tmp_path / "restarts" / f"{name}-{distribute}-left"
        again = ranks.fitted(name, None, three=True, out=out, resume=True)
        assert ranks.furthest(again, ranks.fitted(name, None, three=True)) < CLOSE


def test_ranks_normalise_their_own_rows_and_keep_one_statistic(tmp_path: Path) -> None:
    found = on_two_ranks("statistics", tmp_path)
    assert any("every rank normalises its own rows" in line for line in found["warned"])
    assert found["left out"] == 1
    assert found["moved"] > 0


def test_what_cannot_be_shared_is_named(tmp_path: Path) -> None:
    said = on_two_ranks("words", tmp_path)
    assert "distribute must be one of" in said["a word"]
    assert "distribute='draws' is for variational methods" in said["draws"]
    assert "needs as many members" in said["members"]
    assert "distribute are a model's" in said["given"]
    assert "cannot be shared among ranks row by row: Tensor [2]" in said["inputs"]
    assert said["states"].startswith("PosterityError: a state is not the same on all 2 ranks: b.")


def test_ranks_without_torch_distributed_are_named() -> None:
    with pytest.raises(po.CompatibilityError, match="start the script with torchrun"):
        po.fit(torch.nn.Linear(3, 5), (ranks.X.float(), ranks.Y), distribute="rows")


def test_a_loader_that_gives_a_rank_half_of_the_rows_is_named() -> None:
    data = TensorDataset(ranks.X.float(), ranks.Y)
    loader = DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    with pytest.raises(po.CompatibilityError, match="would give 1 of 2 parts of the rows"):
        po.fit(torch.nn.Linear(3, 5), loader)


def test_the_command_line_under_torchrun(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    lines = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in torch.randn(80, 2).tolist()]
    table.write_text("\n".join(["a,b,larger", *lines]) + "\n")
    out = tmp_path / "run"
    command = ["-m", "posterity", "fit", str(table), "--target", "larger", "--method", "ivon", "--epochs", "2"]
    done = launch(*command, "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)  # of one rank
    assert told["rows"][0]["metrics"]["nll"]["n"] == 16
    again = launch("-m", "posterity", "evaluate", str(out), str(table), "--json")
    assert json.loads(again.stdout)["rows"][0]["metrics"]["nll"]["n"] == 80
