"""Matrices with random scales: draws have the moments that are said, and come back from a file."""

from __future__ import annotations

from pathlib import Path

import torch

from posterity.posterior.moments import Deterministic, Normal
from posterity.posterior.posterior import posterior_from
from posterity.posterior.rank_one import RankOne, scaled
from posterity.posterior.tensorfile import read_tensors, write_tensors
from posterity.random import Random
from posterity.tree import Tree

SHAPE = (2, 3, 5)  # a kernel: 2 rows, 15 columns


def posterior() -> RankOne:
    random = Random(0)
    point: Tree = {
        "kernel": random.fold("kernel").normal(SHAPE),
        "bias": torch.tensor([0.7, -0.1]),
        "idle": torch.tensor([1.0, 2.0, 3.0]),
        "buffer.count": torch.tensor(3.0),
    }
    means = {
        "row/kernel": 1.0 + 0.5 * random.fold("r").normal((2,)),
        "column/kernel": 1.0 + 0.5 * random.fold("c").normal((15,)),
    }
    stds = {"row/kernel": torch.tensor([0.3, 0.6]), "column/kernel": torch.linspace(0.1, 0.8, 15)}
    return RankOne(point, means, stds, {"idle": torch.full((3,), 0.4)})


def test_scaled_is_the_outer_product() -> None:
    one = posterior()
    rows, columns = one.scale_means["row/kernel"], one.scale_means["column/kernel"]
    wanted = one.point["kernel"] * torch.outer(rows, columns).view(SHAPE)
    torch.testing.assert_close(scaled(one.point["kernel"], rows, columns), wanted)
    both = scaled(one.point["kernel"].expand(7, *SHAPE), rows.expand(7, 2), columns.expand(7, 15))
    torch.testing.assert_close(both[3], wanted)


def test_draws_have_the_moments() -> None:
    one = posterior()
    draws = list(one.draws(5000, Random(1)))
    moments = one.moments()
    for name in ("kernel", "idle"):
        found = torch.stack([draw[name] for draw in draws]).double()
        moment = moments[name]
        assert isinstance(moment, Normal)
        # of 33 entries: a mean is off by 1 / sqrt(5000) = 1.4 % of a std, and within 4.5 of that; the std of a product of
        # two normals by sqrt((kurtosis - 1) / 4 / 5000), at most 2.2 % for a kurtosis of 9
        assert ((found.mean(0) - moment.mean) / moment.std).abs().max() < 4.5 / 5000**0.5
        assert (found.std(0) / moment.std - 1.0).abs().max() < 0.09
    torch.testing.assert_close(one.mean()["kernel"], moments["kernel"].mean)
    assert isinstance(moments["bias"], Deterministic)
    assert all(draw["bias"] is one.point["bias"] for draw in draws[:3])


def test_a_matrix_has_one_rank_of_change() -> None:
    """Each draw is Wbar times an outer product."""
    one = posterior()
    for draw in one.draws(3, Random(2)):
        ratio = (draw["kernel"] / one.point["kernel"]).reshape(2, 15).double()
        assert torch.linalg.svdvals(ratio)[1] < 1e-5 * torch.linalg.svdvals(ratio)[0]


def test_a_draw_is_its_address() -> None:
    one = posterior()
    few, many = list(one.draws(2, Random(5))), list(one.draws(7, Random(5)))
    assert all(torch.equal(few[1][name], many[1][name]) for name in few[1])
    assert len({float(draw["kernel"][0, 0, 0]) for draw in many}) == 7
    assert (one.finite, len(list(one.draws(None, Random(5))))) == (None, 32)


def test_it_comes_back_from_a_file(tmp_path: Path) -> None:
    one = posterior()
    write_tensors(tmp_path / "posterior", one.tensors())
    other = posterior_from(one.kind, read_tensors(tmp_path / "posterior")[0], one.meta())
    for wanted, found in zip(one.draws(3, Random(2)), other.draws(3, Random(2)), strict=True):
        assert wanted.keys() == found.keys()
        assert all(torch.equal(leaf, found[name]) for name, leaf in wanted.items())
