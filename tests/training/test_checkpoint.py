"""A State as one flat tree, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.problem.snapshot import Snapshot
from posterity.testing.expect import same
from posterity.training.checkpoint import carried, flatten, left_behind, restore
from posterity.tree import Tree


class Inner(NamedTuple):
    a: Tree
    step: Tensor


class Outer(NamedTuple):
    trees: dict[str, Tree]
    inner: Inner
    best: Tree
    best_nll: Tensor


def state(best: Tree | None = None) -> Outer:
    inner = Inner({"w.x": torch.ones(2, 3), "buffer.n": torch.tensor([4, 5])}, torch.tensor(7))
    return Outer({"one": {"w": torch.zeros(2)}}, inner, best or {}, torch.tensor([torch.inf]))


def test_flat_names_are_paths() -> None:
    assert list(flatten(state())) == [
        "state/trees/one/w",
        "state/inner/a/w.x",
        "state/inner/a/buffer.n",
        "state/inner/step",
        "state/best_nll",
    ]


@pytest.mark.parametrize("best", [{}, {"theta/w": torch.ones(3), "step": torch.tensor(2)}], ids=["empty", "filled"])
def test_a_state_comes_back_in_the_structure_of_a_fresh_one(best: Tree) -> None:
    saved = state(best)
    fresh = state()
    fresh.inner.a["w.x"].fill_(9.0)
    found = restore(fresh, flatten(saved))
    assert isinstance(found, Outer)
    assert isinstance(found.inner, Inner)
    same(flatten(found), flatten(saved), "the state")


def test_what_is_missing_is_named() -> None:
    flat = flatten(state())
    del flat["state/inner/step"]
    with pytest.raises(po.StorageError, match="lacks 'state/inner/step'"):
        restore(state(), flat)


def test_a_state_holds_tensors_only() -> None:
    class Wrong(NamedTuple):
        step: Any

    with pytest.raises(TypeError, match="state/step is a int"):
        flatten(Wrong(3))


def test_what_a_stage_leaves_is_carried() -> None:
    tree = {"w": torch.ones(3), "buffer.n": torch.tensor(2)}
    snapshot = Snapshot(tree, {"w": torch.zeros(3)}, {"w": torch.ones(3)}, {}, torch.tensor(7), torch.tensor(5))
    for starts in ([], [tree, tree], [snapshot, snapshot._replace(step=torch.tensor(6))]):
        found = left_behind({**flatten(state()), **carried(starts)})  # type: ignore[arg-type]
        assert [type(one) for one in found] == [type(one) for one in starts]
        flats = [[s.flat() if isinstance(s, Snapshot) else s for s in one] for one in (found, starts)]
        same(flats[0], flats[1], "what was left")
