"""Point weights under dropout: what a draw is, and what comes back from a file."""

from __future__ import annotations

from pathlib import Path

import torch

from posterity.posterior.mc_dropout import Masked
from posterity.posterior.mixture import Mixture
from posterity.posterior.moments import Deterministic
from posterity.posterior.posterior import posterior_from
from posterity.posterior.tensorfile import read_tensors, write_tensors
from posterity.random import Random
from posterity.tree import MASKS, Tree, weights

THETA: Tree = {"w": Random(0).normal((2, 3)), "buffer.count": torch.tensor(3.0)}


def seeds(draws: list[Tree]) -> list[int]:
    return [int(draw[MASKS]) for draw in draws]


def test_a_draw_is_the_weights_and_a_seed() -> None:
    one = Masked(THETA)
    few, many = list(one.draws(2, Random(5))), list(one.draws(301, Random(5)))
    assert seeds(few) == seeds(many[:2])
    assert len(set(seeds(many))) == 301
    assert seeds(few) != seeds(list(one.draws(2, Random(6))))
    assert few[1]["w"] is THETA["w"]
    assert (few[0][MASKS].dtype, few[0][MASKS].shape) == (torch.int64, ())
    assert set(weights(few[0])) == {"w"}
    assert (one.finite, len(list(one.draws(None, Random(0))))) == (None, 32)


def test_the_mean_has_no_masks() -> None:
    one = Masked(THETA)
    assert one.mean() == THETA
    assert all(isinstance(moment, Deterministic) for moment in one.moments().values())


def test_components_of_a_mixture_have_other_masks() -> None:
    both = Mixture([Masked(THETA), Masked(THETA)])
    assert len(set(seeds(list(both.draws(10, Random(0)))))) == 10


def test_it_comes_back_from_a_file(tmp_path: Path) -> None:
    one = Masked(THETA)
    write_tensors(tmp_path / "posterior", one.tensors())
    other = posterior_from(one.kind, read_tensors(tmp_path / "posterior")[0], one.meta())
    for wanted, found in zip(one.draws(3, Random(2)), other.draws(3, Random(2)), strict=True):
        assert wanted.keys() == found.keys()
        assert all(torch.equal(leaf, found[name]) for name, leaf in wanted.items())
