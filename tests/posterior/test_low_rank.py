"""The low-rank plus diagonal posterior: its draws have the covariance that it says, and it comes back from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posterity.posterior.low_rank import LowRankPlusDiagonal
from posterity.posterior.moments import Deterministic, Normal
from posterity.posterior.posterior import posterior_from
from posterity.posterior.tensorfile import read_tensors, write_tensors
from posterity.random import Random
from posterity.tree import Tree


def posterior(dtype: torch.dtype = torch.float32) -> LowRankPlusDiagonal:
    """Two correlated tensors of 2 x 3 and 1 weights with rank 2, an independent one, and a buffer."""
    random = Random(0)
    means = {
        "w": random.fold("w").normal((2, 3)).to(dtype),
        "b": torch.tensor([0.7], dtype=dtype),
        "alone": torch.tensor([1.0, -1.0], dtype=dtype),
        "buffer.count": torch.tensor(3.0, dtype=dtype),
    }
    stds = {
        "w": torch.full((2, 3), 0.5, dtype=dtype),
        "b": torch.tensor([0.2], dtype=dtype),
        "alone": means["alone"].abs(),
    }
    factors = {
        "w": random.fold("factor").normal((2, 3, 2)).to(dtype),
        "b": torch.tensor([[1.1, -0.4]], dtype=dtype),
    }
    return LowRankPlusDiagonal(means, stds, factors)


def rows(trees: list[Tree]) -> torch.Tensor:
    return torch.stack([torch.cat([tree[name].flatten() for name in ("w", "b", "alone")]) for tree in trees])


def covariance(one: LowRankPlusDiagonal) -> torch.Tensor:
    factor = torch.cat([one.factors["w"].reshape(6, 2), one.factors["b"], torch.zeros(2, 2)])
    diagonal = torch.cat([one.stds[name].flatten() for name in ("w", "b", "alone")]).square()
    return torch.diag(diagonal) + factor @ factor.T


def test_draws_have_the_mean_and_the_covariance() -> None:
    one = posterior()
    draws = list(one.draws(4000, Random(1)))
    found, wanted = rows(draws), covariance(one)
    scale = torch.outer(wanted.diagonal().sqrt(), wanted.diagonal().sqrt())
    # 45 entries whose errors have a std of at most sqrt(2 / 4000) = 2.2 %, and 9 means of 1.6 %: within four of them
    assert ((torch.cov(found.T) - wanted) / scale).abs().max() < 0.09
    assert ((found.mean(0) - rows([one.mean()])[0]) / wanted.diagonal().sqrt()).abs().max() < 0.064
    assert all(bool(draw["buffer.count"] == 3.0) for draw in draws[:3])


def test_moments_are_the_marginals() -> None:
    one = posterior()
    moments = one.moments()
    assert isinstance(moments["buffer.count"], Deterministic)
    stds = torch.cat([moments[name].std.flatten() for name in ("w", "b", "alone")])
    torch.testing.assert_close(stds, covariance(one).diagonal().sqrt())
    assert isinstance(moments["alone"], Normal)
    assert one.finite is None
    assert one.rank == 2


def test_a_draw_is_its_address() -> None:
    """Draw i does not depend on how many there are, and draws do not share their noise."""
    one = posterior()
    few, many = list(one.draws(2, Random(5))), list(one.draws(7, Random(5)))
    assert torch.equal(rows(few), rows(many[:2]))
    assert len({float(draw["b"]) for draw in many}) == 7
    assert len(list(one.draws(None, Random(5)))) == 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_comes_back_from_a_file(tmp_path: Path, dtype: torch.dtype) -> None:
    one = posterior(dtype)
    write_tensors(tmp_path / "posterior", one.tensors())
    other = posterior_from(one.kind, read_tensors(tmp_path / "posterior")[0], one.meta())
    for wanted, found in zip(one.draws(3, Random(2)), other.draws(3, Random(2)), strict=True):
        assert wanted.keys() == found.keys()
        for name, leaf in wanted.items():
            assert torch.equal(leaf, found[name])
            assert leaf.dtype == dtype


def test_factors_that_do_not_fit_are_refused() -> None:
    one = posterior()
    for stds, factors in (
        (one.stds, {}),
        ({"w": one.stds["w"]}, one.factors),
        (one.stds, {"w": one.factors["w"], "b": one.factors["b"][:, :1]}),
    ):
        with pytest.raises(ValueError, match="factors need one rank"):
            LowRankPlusDiagonal(one.means, stds, factors)
