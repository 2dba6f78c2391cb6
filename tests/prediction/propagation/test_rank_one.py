"""Variances as products of rows and columns: what they say, where they are used, what they err by."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import posterity as po
from posterity.errors import PosterityWarning
from posterity.posterior.diagonal import Diagonal
from posterity.prediction.propagation import propagate as module
from posterity.prediction.propagation import rules  # noqa: F401  (fills the table)
from posterity.prediction.propagation.graph import graph_of
from posterity.prediction.propagation.propagate import propagate, values_of, weight_values
from posterity.prediction.propagation.rank_one import RankOneWeight, factors, rank_one_errors
from posterity.prediction.propagation.run import Pass, running
from posterity.prediction.propagation.settings import Propagation, Rules
from posterity.prediction.propagation.table import RULES
from posterity.prediction.propagation.value import Later, MeanVar, Value
from posterity.problem.network import Network
from posterity.random import Random

RANK_ONE = Rules(variance="rank-one")


def normal(*shape: int, at: str = "") -> Tensor:
    return Random(0).fold(f"{shape} {at}").normal(shape)


def pair(*shape: int) -> tuple[RankOneWeight, MeanVar]:
    """A weight of rank-one variance, and the same written out."""
    one = RankOneWeight.of(normal(*shape), normal(*shape, at="var").square())
    return one, MeanVar(one.mean, one.row.reshape(-1, *[1] * (len(shape) - 1)) * one.column)


def varied(*shape: int) -> MeanVar:
    return MeanVar(normal(*shape, at="x"), normal(*shape, at="v").square())


def assert_same(found: Value, wanted: Value) -> None:
    assert isinstance(found, MeanVar)
    assert isinstance(wanted, MeanVar)
    torch.testing.assert_close(found.mean, wanted.mean)
    torch.testing.assert_close(found.var, wanted.var)  # float32, sums of up to 90 positive terms


@pytest.mark.parametrize("bias", [None, "plain", "varied"])
@pytest.mark.parametrize("known", [True, False])
def test_linear_is_that_of_the_variances_written_out(known: bool, bias: str | None) -> None:
    one, full = pair(5, 7)
    x = varied(3, 2, 7)
    shift = {None: None, "plain": normal(5), "varied": varied(5)}[bias]
    given = x.mean if known else x
    assert_same(RULES[F.linear](given, one, shift), RULES[F.linear](given, full, shift))


@pytest.mark.parametrize("bias", [None, "varied"])
@pytest.mark.parametrize(
    ("convolve", "kernel", "shape", "options"),
    [
        (F.conv1d, (5, 3, 4), (2, 3, 11), {}),
        (F.conv2d, (5, 3, 4, 2), (2, 3, 9, 7), {"stride": 2, "padding": 1}),
        (F.conv2d, (6, 2, 3, 2), (5, 4, 9, 7), {"groups": 2}),
        (F.conv2d, (5, 3, 4, 2), (3, 9, 7), {"padding": 1}),  # without rows
        (F.conv3d, (5, 3, 2, 2, 3), (2, 3, 4, 5, 6), {}),
        (F.conv_transpose2d, (3, 5, 4, 2), (2, 3, 9, 7), {"stride": 2}),
    ],
)
def test_convolutions_are_those_of_the_variances_written_out(
    convolve: object, kernel: tuple[int, ...], shape: tuple[int, ...], options: dict[str, int], bias: str | None
) -> None:
    one, full = pair(*kernel)
    channels = kernel[1] if "transpose" in str(convolve) else kernel[0]
    shift = varied(channels) if bias else None
    for x in (varied(*shape), normal(*shape)):
        assert_same(RULES[convolve](x, one, shift, **options), RULES[convolve](x, full, shift, **options))


@pytest.mark.parametrize("convolve", [F.conv2d, F.conv_transpose2d])
def test_a_bias_alone_gives_its_variance_to_every_position(convolve: object) -> None:
    bias, kernel = varied(5), normal(5, 5, 3, 3)
    found = RULES[convolve](normal(2, 5, 8, 6), kernel, bias)
    torch.testing.assert_close(found.var, bias.var.reshape(1, -1, 1, 1).expand_as(found.mean))


def test_other_products_and_rules_are_those_of_the_variances_written_out() -> None:
    one, full = pair(7, 5)
    x, ids = varied(3, 7), torch.tensor([[0, 6, 2]])
    assert_same(RULES[torch.matmul](x, one), RULES[torch.matmul](x, full))
    assert_same(RULES[torch.addmm](varied(5), x, one), RULES[torch.addmm](varied(5), x, full))
    assert_same(RULES[torch.einsum]("bi,ij->bj", x, one), RULES[torch.einsum]("bi,ij->bj", x, full))
    assert_same(RULES[F.embedding](ids, one), RULES[F.embedding](ids, full))
    assert_same(RULES[torch.mul](one, 2.0), RULES[torch.mul](full, 2.0))
    assert_same(RULES[Tensor.t](one), RULES[Tensor.t](full))
    stack, whole = pair(2, 7, 5)
    deep = varied(2, 3, 7)
    assert_same(RULES[torch.bmm](deep, stack), RULES[torch.bmm](deep, whole))
    assert_same(one.rows(7, 2), full.rows(7, 2))


def test_factors_keep_sums_of_rows_and_columns_and_are_exact_for_products() -> None:
    var = normal(5, 7, 3).square()
    row, column = factors(var)
    written = row[:, None, None] * column
    torch.testing.assert_close(written.sum(0), var.sum(0))
    torch.testing.assert_close(written.flatten(1).sum(1), var.flatten(1).sum(1))
    again = factors(written)
    torch.testing.assert_close(again[0][:, None, None] * again[1], written)
    assert bool((factors(torch.zeros(3, 2))[1] == 0).all())


def posterior(scale: float = 0.0) -> Diagonal:
    """Normals whose variances are products but for a chequered share."""
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(48, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    means = {
        name: normal(*leaf.shape, at=name) / max(leaf[0].numel(), 1) ** 0.5 for name, leaf in net.named_parameters()
    }
    stds = {}
    for name, leaf in means.items():
        if leaf.ndim < 2:
            stds[name] = 0.1 * torch.ones_like(leaf)
            continue
        row, column = (normal(n, at=name).square() + 0.1 for n in (leaf.shape[0], leaf[0].numel()))
        signs = (torch.arange(len(row))[:, None] + torch.arange(len(column))) % 2 * 2 - 1
        stds[name] = (0.01 * row[:, None] * column * (1 + scale * signs)).sqrt().reshape(leaf.shape)
    return Diagonal(means, stds)


def setting() -> po.NetworkProblem:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(48, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    return po.NetworkProblem(Network(net.eval()), po.Gaussian(std=1.0), po.Normal(1.0), data_size=10)


def test_a_posterior_of_rank_one_says_the_same_eagerly_and_as_a_graph() -> None:
    problem, exact, x = setting(), posterior(), normal(3, 2, 6, 5)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        (values,) = values_of(exact, Propagation(RANK_ONE))
        assert isinstance(values["0.weight"], RankOneWeight)
        assert not isinstance(values["0.bias"], RankOneWeight)
        full, one = (propagate(problem, each, x) for each in (weight_values(exact), values))
        assert_same(one, full)
        for given in (values, weight_values(exact)):
            graph = graph_of(problem.network, given, x)
            for rows in (3, 1):
                mean, var = graph(x[:rows])
                torch.testing.assert_close(mean, full.mean[:rows], rtol=1e-5, atol=1e-5)
                torch.testing.assert_close(var, full.var[:rows], rtol=1e-5, atol=1e-6)


def test_the_graph_holds_factors_and_squares_of_what_it_multiplies() -> None:
    problem, x = setting(), normal(3, 2, 6, 5)
    exact = posterior()
    held = [name for name, _ in graph_of(problem.network, weight_values(exact, "rank-one"), x).named_buffers()]
    parts = {name.rpartition("_")[2] for name in held if "3_weight" in name}
    assert parts == {"mean", "row", "column", "square"}
    held = [name for name, _ in graph_of(problem.network, weight_values(exact), x).named_buffers()]
    assert {name.rpartition("_")[2] for name in held if "3_weight" in name} == {"mean", "var", "second"}
    assert {name.rpartition("_")[2] for name in held if "3_bias" in name} == {"mean", "var"}


def test_squares_are_taken_once_for_all_batches() -> None:
    problem, x = setting(), normal(3, 2, 6, 5)
    for values, slot in ((weight_values(posterior()), "_second"), (weight_values(posterior(), "rank-one"), "_square")):
        kept = []
        for rows in (3, 2):
            with torch.no_grad():
                propagate(problem, values, x[:rows])
            kept.append(getattr(values["3.weight"], slot))
        assert kept[0] is not None
        assert kept[0] is kept[1]


def test_errors_are_those_of_the_frobenius_norm() -> None:
    exact, chequered = rank_one_errors(posterior()), rank_one_errors(posterior(0.5))
    assert exact.keys() == {"0.weight", "3.weight", "5.weight"}
    assert max(exact.values()) < 1e-6  # float32 stds
    var = posterior(0.5).stds["3.weight"].square()
    row, column = var.mean(1), var.mean(0)
    wanted = (var - torch.outer(row, column) / var.mean()).norm() / var.norm()
    assert chequered["3.weight"] == pytest.approx(float(wanted), rel=1e-4)
    assert rank_one_errors(Diagonal({"w": torch.ones(2, 3)}, {"w": torch.zeros(2, 3)})) == {"w": 0.0}
    assert rank_one_errors(Diagonal({"w": torch.ones(2, 3)}, {})) == {}


def test_a_large_error_is_said() -> None:
    worst = max(rank_one_errors(posterior(0.5)).values())
    assert worst > module.MUCH
    with pytest.warns(PosterityWarning, match=f"off by up to {worst:.2g} of their norm"):
        values_of(posterior(0.5), Propagation(RANK_ONE))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values_of(posterior(0.5), Propagation())
        (means,) = values_of(posterior(0.5), Propagation(RANK_ONE, helps=False))
    assert isinstance(means["3.weight"], Tensor)


def test_a_covariance_has_the_variances_written_out() -> None:
    problem, x = setting(), normal(2, 2, 6, 5)
    one = Pass(Rules(covariance=True))
    with torch.no_grad():
        found = [
            propagate(problem, values, x, one.again())
            for values in (weight_values(posterior()), weight_values(posterior(), "rank-one"))
        ]
    torch.testing.assert_close(found[0].cov, found[1].cov)


def test_the_setting_is_saved_and_checked() -> None:
    settings = Propagation(RANK_ONE)
    assert Propagation.from_json(settings.to_json()) == settings
    with pytest.raises(ValueError, match="variance must be one of"):
        Rules(variance="low")  # type: ignore[arg-type]


def test_gradients_pass() -> None:
    one, x = pair(5, 7)[0], varied(3, 7)
    x.mean.requires_grad_()
    found = RULES[F.linear](x, one, None)
    found.var.sum().backward()
    # d/dm sum_i (sum_j W_ij^2 v_j + r_i sum_j c_j (m_j^2 + v_j)) = 2 m_j c_j sum r
    assert x.mean.grad is not None
    torch.testing.assert_close(x.mean.grad, 2 * x.mean.detach() * one.column * one.row.sum())


def test_a_variance_that_nobody_asks_for_is_not_worked_out() -> None:
    asked = []

    def var() -> Tensor:
        asked.append(1)
        return torch.ones(2, 3, 5)

    q = MeanVar(normal(2, 3, 5), Later(var))
    v = varied(2, 3, 5)
    with running(Pass(Rules(attention="mean"))):
        found = RULES[F.scaled_dot_product_attention](q, q, v)
    assert isinstance(found, MeanVar)
    assert not asked
    assert q.var is q.var
    assert asked == [1]


def test_what_a_value_was_stays_where_it_was_used() -> None:
    x, (_, full) = varied(3, 7), pair(5, 7)
    wanted = RULES[F.linear](MeanVar(x.mean, x.var), full, None).var
    found = RULES[F.linear](x, full, None)
    x.mean, x.var = torch.zeros(3, 7), torch.zeros(3, 7)  # as an in-place operation of a graph writes
    torch.testing.assert_close(found.var, wanted)
