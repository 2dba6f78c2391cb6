"""Randomness as a value: addresses do not collide, and nothing global moves."""

from __future__ import annotations

import itertools
import random as python_random

import numpy as np
import pytest
import torch

from posterity.random import Random


def _globals() -> tuple:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), python_random.getstate(), keys.tobytes(), *rest


def test_equal_addresses_give_equal_draws() -> None:
    one = Random(5).fold("noise").fold(2).fold(7)
    assert one == Random(5).fold("noise").fold(2).fold(7)
    assert torch.equal(one.normal((11,)), one.normal((11,)))


@pytest.mark.parametrize(
    "other",
    [
        Random(6).fold("noise").fold(2).fold(7),
        Random(5).fold("other").fold(2).fold(7),
        Random(5).fold("noise").fold(7).fold(2),
        Random(5).fold("noise").fold(2).fold(8),
        Random(5).fold("noise").fold(2),
        Random(5).fold("noise").fold(2).fold(7).fold(0),
        Random(5).fold("noise"),
        Random(5).fold("noise").fold("noise").fold(2).fold(7),
        Random(5),
    ],
)
def test_other_addresses_give_other_draws(other: Random) -> None:
    one = Random(5).fold("noise").fold(2).fold(7)
    assert one.seed != other.seed
    assert not torch.equal(one.normal((11,)), other.normal((11,)))


def test_no_member_and_step_share_a_seed() -> None:
    """The packing is a bijection of the 32 bits that torch's CPU generator keeps."""
    stream = Random(3).fold("noise")
    members, steps = [0, 1, 2, 511, 1023], [*range(300), 2**21, 2**22 - 1]
    seeds = {stream.fold(m).fold(s).seed for m, s in itertools.product(members, steps)}
    assert len(seeds) == len(members) * len(steps)
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_large_indices_go_on() -> None:
    """Beyond the packed range addresses are mixed: 402 seeds of 32 bits meet once in 2^32 / (402^2 / 2) = 5 10^4."""
    seeds = {Random(3).fold(2**22 + i).seed for i in range(201)} | {
        Random(3).fold(1024).fold(i).seed for i in range(201)
    }
    assert len(seeds) == 402


def test_a_negative_index_is_an_error() -> None:
    with pytest.raises(ValueError, match="must be >= 0, got -1"):
        Random(0).fold(-1)


def test_a_layer_more_does_not_move_the_others() -> None:
    tree = {"a": torch.zeros(3), "b": torch.zeros(2, 5, dtype=torch.float64)}
    few, more = Random(1).normals({"b": tree["b"]}), Random(1).normals(tree)
    assert torch.equal(few["b"], more["b"])
    assert more["b"].dtype == torch.float64
    assert more["a"].shape == (3,)


def test_draws_are_standard_normal() -> None:
    draws = Random(2).fold("x").normal((100003,))
    # standard errors of mean, variance and fourth moment: 1, sqrt(2) and sqrt(96) over sqrt(n) = 316; 4 of them
    assert float(draws.mean()) == pytest.approx(0.0, abs=4 / 316)
    assert float(draws.var()) == pytest.approx(1.0, abs=4 * 1.414 / 316)
    assert float(draws.pow(4).mean()) == pytest.approx(3.0, abs=4 * 9.8 / 316)


def test_neighbouring_streams_are_independent() -> None:
    stream = Random(2).fold("x")
    draws = torch.stack([stream.fold(i).normal((1009,)) for i in range(31)])
    correlation = torch.corrcoef(draws) - torch.eye(31)
    # 465 pairs of standard error 1 / sqrt(1009) = 0.031: the largest of them stays below 5
    assert float(correlation.abs().max()) < 5 / 1009**0.5


@pytest.mark.parametrize("data", [False, True])
def test_forked_code_is_repeatable_and_leaves_the_globals(data: bool) -> None:
    torch.manual_seed(0)
    before = _globals()

    def draw() -> list[float]:
        with Random(4).fold("user").forked(data=data):
            own = [float(torch.rand(()))]
            if data:
                own += [python_random.random(), float(np.random.rand())]  # noqa: NPY002
        return own

    first = draw()
    assert _globals() == before
    torch.rand(3)
    assert draw() == first
    assert first[0] == float(torch.rand((), generator=Random(4).fold("user").generator()))


def test_forked_puts_back_after_an_error() -> None:
    def fail() -> None:
        with Random(0).forked(data=True):
            torch.rand(1)
            python_random.random()
            np.random.rand()  # noqa: NPY002
            raise ZeroDivisionError

    before = _globals()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert _globals() == before
