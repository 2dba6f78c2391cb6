"""Propagation beside draws: rows that agree where the rules are exact, and the first layer where they are not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.draws import Draws
from posterity.posterior.mixture import Mixture
from posterity.prediction.propagation.compare import ELEMENTS, Compared, compared, parts_at
from posterity.prediction.propagation.settings import Propagation, Rules
from posterity.random import Random
from posterity.tree import stack

DRAWS = 256
FLOOR = DRAWS**-0.5


def problem_of(module: nn.Module, likelihood: str = "categorical") -> po.NetworkProblem:
    return po.NetworkProblem(module, likelihood, data_size=10)


def posterior_of(problem: po.NetworkProblem, std: float = 0.2, center: float | None = None) -> Diagonal:
    means = {name: leaf.detach() for name, leaf in problem.network.trainable.items()}
    if center is not None:
        means = {name: torch.full_like(leaf, center) for name, leaf in means.items()}
    return Diagonal(means, {name: torch.full_like(leaf, std) for name, leaf in means.items()})


def rows_of(module: nn.Module, x: object, settings: Propagation | None = None, **options: float) -> list[Compared]:
    problem = problem_of(module)
    return compared(problem, posterior_of(problem, **options), x, settings or Propagation(), DRAWS, Random(3))


def pooled() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 8, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 3))


X = Random(1).normal((5, 2, 1)).expand(5, 2, 11)  # the same at all 11 positions: they vary as one


def test_the_layer_is_named_where_positions_are_taken_as_independent() -> None:
    rows = rows_of(pooled(), X)
    assert [(row.path, row.kind) for row in rows] == [
        ("0", "Conv1d"), ("1", "AdaptiveAvgPool1d"), ("2", "Flatten"), ("3", "Linear"), ("", "Sequential"),
    ]  # fmt: skip
    assert [row.elements for row in rows] == [5 * 8 * 11, 5 * 8, 5 * 8, 15, 15]
    assert all(row.floor == FLOOR for row in rows)
    # A variance of 256 draws is known to sqrt(2 / 256) = 9 %; the 8 channels of independent weights make 3 % of it.
    assert rows[0].var_ratio == pytest.approx(1.0, abs=0.12)
    assert rows[1].var_ratio == pytest.approx(1 / 11, rel=0.12)
    # z / 16 of 24 independent weights: the root mean square is 1 / 16 to 1 / sqrt(48) = 14 % of it
    assert rows[0].mean_gap == pytest.approx(FLOOR, rel=0.45)
    assert parts_at(rows) is rows[1]


def test_a_covariance_agrees_and_has_the_outputs_alone() -> None:
    rows = rows_of(pooled(), X, Propagation(Rules(covariance=True)))
    assert [row.path for row in rows] == [""]
    assert rows[0].var_ratio == pytest.approx(1.0, abs=0.27)  # 3 outputs, 9 % each, three times
    assert parts_at(rows) is None


def test_means_that_part() -> None:
    net = nn.Sequential(nn.Linear(4, 97, bias=False), nn.ReLU())
    x = torch.ones(1, 4)
    slope = rows_of(net, x, Propagation(Rules(activations="slope")), std=0.5, center=0.0)
    # E relu = 1 / sqrt(2 pi), its std sqrt(1/2 - 1 / (2 pi)); the slope at 0 says 0 of both; the std of 97 gaps is 1 % of it
    wanted = 1 / math.sqrt(math.pi - 1)
    assert slope[1].mean_gap == pytest.approx(wanted, abs=0.05)
    assert slope[1].var_ratio == 0.0
    assert parts_at(slope) is slope[1]
    moments = rows_of(net, x, std=0.5, center=0.0)
    assert parts_at(moments) is None
    assert moments[1].mean_gap == pytest.approx(FLOOR, rel=0.25)  # 1 / sqrt(2 * 97) = 7 % of it


def test_units_that_few_draws_switch_on_do_not_count_for_more() -> None:
    net = nn.Sequential(nn.Linear(4, 97, bias=False), nn.ReLU())
    for center in (-0.5, -1.0, -1.5):  # 2, 4 and 6 stds of a unit below 0: in most draws and most units nothing
        rows = rows_of(net, torch.ones(1, 4), std=0.25, center=center / 2)
        assert rows[1].mean_gap < 2 * FLOOR


def test_the_members_of_an_ensemble_agree_exactly() -> None:
    problem = problem_of(nn.Sequential(nn.Sequential(nn.Linear(3, 7), nn.GELU()), nn.LayerNorm(7), nn.Linear(7, 2)))
    members = list(posterior_of(problem).draws(5, Random(0)))
    rows = compared(problem, Draws(stack(members)), Random(1).normal((11, 3)), Propagation())
    assert [row.path for row in rows] == ["0.0", "0.1", "1", "2", ""]
    for row in rows:
        assert row.floor == 0.0
        assert row.mean_gap < 1e-4  # float32 within a std of 0.1 and more
        assert row.var_ratio == pytest.approx(1.0, abs=1e-4)


def test_a_mixture_has_the_spread_between_its_parts() -> None:
    problem = problem_of(nn.Linear(3, 2))
    one = posterior_of(problem, std=0.1)
    other = Diagonal({name: leaf + 1.0 for name, leaf in one.means.items()}, one.stds)
    (row,) = compared(problem, Mixture([one, other]), torch.ones(7, 3), Propagation(), DRAWS, Random(3))
    # The parts lie 4 apart, their stds are 0.2: the variance is 2^2 of the part drawn, and nearly nothing else.
    assert row.var_ratio == pytest.approx(1.0, abs=0.05)
    assert row.mean_gap < 3 * FLOOR


class Shared(nn.Module):
    """One layer twice, an attention, a recurrent layer, and one that varies in no draw."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.attention = nn.Linear(4, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.recurrent, self.still = nn.GRU(4, 3, batch_first=True), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(self.still(x)))
        x, _ = self.attention(x, x, x)
        return self.recurrent(x)[0][:, -1]


def test_layers_are_calls_that_call_no_other() -> None:
    rows = rows_of(Shared(), Random(1).normal((3, 5, 4)))
    assert [(row.path, row.kind) for row in rows] == [
        ("twice#0", "Linear"), ("twice#1", "Linear"), ("attention", "MultiheadAttention"), ("recurrent", "GRU"),
        ("", "Shared"),
    ]  # fmt: skip
    assert [row.elements for row in rows] == [60, 60, 60, 45, 9]


def test_of_large_outputs_some_elements() -> None:
    rows = rows_of(nn.Sequential(nn.Linear(3, 701), nn.Linear(701, 2)), Random(1).normal((29, 3)))
    assert rows[0].elements == ELEMENTS < 29 * 701
    assert rows[0].var_ratio == pytest.approx(1.0, abs=0.05)


def test_nothing_is_left_behind() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.rfft(x).abs()

    hooks = nn.modules.module
    before = len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)
    with pytest.raises(po.CompatibilityError, match=r"fft_rfft.* in the module '1'"):
        rows_of(nn.Sequential(nn.Linear(4, 4), Odd()), torch.ones(2, 4))
    assert (len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)) == before


def test_what_counts_as_apart() -> None:
    def row(mean_gap: float, var_ratio: float, floor: float = 0.1) -> Compared:
        return Compared("a", "Linear", mean_gap, var_ratio, 7, floor)

    assert not any(one.parts for one in (row(0.54, 1.0), row(0.26, 1.0), row(0.0, 0.51), row(0.0, 1.99)))
    assert all(one.parts for one in (row(0.56, 1.0), row(0.26, 1.0, 0.0), row(0.0, 0.49), row(0.0, math.inf)))
    assert parts_at([]) is None
