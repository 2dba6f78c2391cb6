"""Weights that lie in shards on two ranks find what one process finds, where a method has no noise of its own.

Every gradient is that of one process at the same weights; checkpoints and runs are those of one process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed import sharded_ranks
from tests.distributed.test_two_ranks import launch

import posterity as po
from posterity.group import Group
from posterity.problem.cut import Cut


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What all checks of `sharded_ranks.py` found on rank 0."""
    work = tmp_path_factory.mktemp("shards")
    done = launch(str(Path(sharded_ranks.__file__)), str(work), str(work / "found.json"))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((work / "found.json").read_text())


def test_point_estimates_are_those_of_one_process(found: dict[str, Any]) -> None:
    apart = found["equal"]
    assert apart.pop("float32") < 1e-5
    assert apart.keys() == {"float64", "accumulated, clipped", "tied", "tied, from a start", "recurrent"}
    assert max(apart.values()) < 1e-10


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("name", sharded_ranks.NOISY)
def test_gradients_of_noisy_methods_are_those_of_one_process(
    name: str, dtype: torch.dtype, close: float, found: dict[str, Any]
) -> None:
    assert found["noisy"][f"{name}, {dtype}"] < close


@pytest.mark.parametrize("name", sharded_ranks.NOISY)
def test_ranks_do_not_share_noise(name: str, found: dict[str, Any]) -> None:
    # of 5 x 6 independent pairs, five standard errors and more; the same noise would give 1
    assert found["noisy"][f"{name}, {torch.float64}, noise"] < 0.95


def test_a_run_goes_on_with_another_number_of_ranks(found: dict[str, Any]) -> None:
    assert len(found["restarts"]) == 8
    assert max(found["restarts"].values()) < 1e-10
    assert found["restarts"]["mean-field-shards-shards"] == 0.0


def test_the_history_is_of_all_weights(found: dict[str, Any]) -> None:
    assert found["watched"] == {"kl": pytest.approx(1.0, abs=1e-6), "std": pytest.approx(1.0, abs=1e-6)}


def test_the_module_is_left_as_it_was(found: dict[str, Any]) -> None:
    assert found["untouched"] == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("members", "has one member, and deep-ensemble has 2"),
        ("method", "this swag does not: use distribute='rows'"),
        ("family", "this score-vi-dense does not"),
        ("path", "side_by_side='vmap' is for several members"),
        ("scalar", "['level'] are single numbers of shape ()"),
        ("types", "there are ['torch.float32', 'torch.float64']"),
        ("weights", "PosterityError: the network is not the same on all 2 ranks: bias"),
        ("uncalled", "call the module that has them"),
        ("ranks", "no trained one has enough of them for 2 ranks"),
    ],
)
def test_what_cannot_lie_in_shards_is_named(asked: str, said: str, found: dict[str, Any]) -> None:
    assert said in found["words"][asked]


def test_shards_without_torch_distributed_are_named() -> None:
    with pytest.raises(po.CompatibilityError, match="start the script with torchrun"):
        po.fit(torch.nn.Linear(3, 5), (torch.zeros(2, 3), torch.tensor([0, 1])), distribute="shards")


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7])
def test_the_ranks_of_a_cut_have_every_row_once(ranks: int) -> None:
    whole = {"mean/w": torch.arange(10.0).view(1, 5, 2), "mean/b": torch.arange(3.0).view(1, 3), "w": torch.tensor(4)}
    shapes = {"w": (5, 2), "b": (3,)}
    parts = [Cut(shapes, Group(rank, ranks)).own(whole, axis=1) for rank in range(ranks)]
    for path in ("mean/w", "mean/b"):
        assert torch.cat([part[path] for part in parts], 1).equal(whole[path])
    assert all(part["w"].equal(whole["w"]) for part in parts)
