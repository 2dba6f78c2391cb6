"""Every rule against the same operation on 20000 draws of its inputs.

The inputs of an operation are independent normals. The errors of all elements together are taken: of a mean 20000 draws
leave 1 / sqrt(20000) = 0.007 of a std, of a variance sqrt(2 / 20000) = 0.01 of itself; three times that is allowed, and
`bias` and `loose` more where the outputs have heavy tails or the rule is not exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.errors import CompatibilityError
from posterity.prediction.propagation.eager import Propagated, unwrapped
from posterity.prediction.propagation.run import Pass, running
from posterity.prediction.propagation.settings import Rules
from posterity.prediction.propagation.value import MeanVar
from posterity.random import Random

DRAWS = 20_000
RANDOM = Random(3)


class Case(NamedTuple):
    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]  # of the arguments that vary
    bias: float = 0.0
    loose: float = 0.0
    rules: Rules = Rules()
    std: float = 0.5


MASK = torch.tensor([True, False, True, True, False])
SECOND = Rules(norms="second-order")
OUTLIER = torch.ones(64).index_fill(0, torch.tensor([3]), 20.0)
POSITIVE = 8.0  # added where a function needs its argument above zero

CASES = [
    Case("linear", F.linear, ((3, 5), (2, 5), (2,))),
    Case("linear of one input", lambda w: F.linear(torch.ones(3, 5), w), ((2, 5),)),
    Case("linear of a fixed weight", lambda x: F.linear(x, torch.ones(2, 5), torch.ones(2)), ((3, 5),)),
    Case("matmul", torch.matmul, ((3, 5), (5, 2))),
    Case("operator @", lambda x, y: x @ y, ((3, 5), (5, 2))),
    Case("fixed @ varying", lambda y: torch.ones(3, 5) @ y, ((5, 2),)),
    Case("addmm", torch.addmm, ((3, 2), (3, 5), (5, 2))),
    Case("einsum", lambda x, y: torch.einsum("ij,kj->ik", x, y), ((3, 5), (2, 5))),
    Case("embedding", lambda w: F.embedding(torch.tensor([2, 0, 2]), w), ((4, 3),)),
    Case("conv1d", lambda x, w, b: F.conv1d(x, w, b, padding=1), ((1, 2, 5), (3, 2, 3), (3,))),
    Case("conv2d in groups", lambda x, w: F.conv2d(x, w, groups=2, stride=2), ((1, 2, 5, 4), (4, 1, 2, 2))),
    Case("conv_transpose1d", lambda x, w: F.conv_transpose1d(x, w, stride=2), ((1, 2, 3), (2, 3, 2))),
    Case("sum of two", lambda x, y: x + y, ((3, 5), (5,))),
    Case("difference", lambda x, y: torch.sub(x, y, alpha=2), ((3, 5), (3, 5))),
    Case("number - x", lambda x: 2.0 - x, ((5,),)),
    Case("negative", lambda x: -x, ((5,),)),
    Case("x + x", lambda x: x + x, ((5,),)),
    Case("x - x", lambda x: x - x + torch.ones(5), ((5,),)),
    Case("product", lambda x, y: x * y, ((3, 5), (5,))),
    Case("x x", lambda x: x * x, ((5,),)),
    Case("square", lambda x: x**2, ((5,),)),
    Case("quotient", lambda x, y: x / (y + POSITIVE), ((5,), (5,))),
    Case("number / x", lambda x: 1 / (x + POSITIVE), ((5,),), loose=0.05),
    Case("x / number", lambda x: x / 3, ((5,),)),
    Case("square root", lambda x: (x + POSITIVE).sqrt(), ((5,),)),
    Case("where", lambda x, y: torch.where(MASK, x, y), ((3, 5), (3, 5))),
    Case("where a number", lambda x: torch.where(MASK, x, 0.5), ((3, 5),)),
    Case("masked_fill", lambda x: x.masked_fill(MASK, 2.0), ((3, 5),)),
    Case("cat", lambda x, y: torch.cat([x, torch.ones(1, 5), y]), ((3, 5), (2, 5))),
    Case("stack", lambda x, y: torch.stack([x, y], 1), ((3, 5), (3, 5))),
    Case("pad", lambda x: F.pad(x, (1, 2), value=3.0), ((3, 5),)),
    Case("reshape and permute", lambda x: x.reshape(5, 3).permute(1, 0).unsqueeze(0), ((3, 5),)),
    Case("view and T", lambda x: x.view(5, 3).T, ((3, 5),)),
    Case("index", lambda x: x[:, [0, 2]], ((3, 5),)),
    Case("chunk", lambda x: x.chunk(2, -1)[1], ((3, 4),)),
    Case("sum", lambda x: x.sum(-1), ((3, 5),)),
    Case("mean of features", lambda x: x.mean(-1, keepdim=True), ((3, 5),)),
    Case("mean of positions", lambda x: x.mean(1), ((2, 4, 3),)),
    Case("cumsum", lambda x: x.cumsum(0), ((3, 2),)),
    Case("avg_pool1d", lambda x: F.avg_pool1d(x, 2), ((1, 2, 6),)),
    Case("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), ((1, 2, 5, 4),)),
    Case("avg_pool2d of what is there", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), ((1, 2, 5, 4),)),
    Case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), ((1, 2, 5, 4),)),
    Case("interpolate", lambda x: F.interpolate(x, (4, 7), mode="bilinear"), ((1, 2, 3, 5),)),
    Case("nearest", lambda x: F.interpolate(x, scale_factor=2.0), ((1, 2, 3, 2),)),
    Case("relu", torch.relu, ((3, 5),)),
    Case("gelu", F.gelu, ((3, 5),)),
    Case("silu", F.silu, ((3, 5),)),
    Case("tanh", torch.tanh, ((3, 5),)),
    Case("sigmoid", torch.sigmoid, ((3, 5),)),
    Case("clamp", lambda x: x.clamp(-0.5, 1.0), ((3, 5),)),
    Case("relu6", F.relu6, ((3, 5),)),
    Case("leaky_relu", lambda x: F.leaky_relu(x, 0.2), ((3, 5),)),
    Case("hardswish", F.hardswish, ((3, 5),)),
    Case("softplus", F.softplus, ((3, 5),)),
    Case("elu", F.elu, ((3, 5),)),
    Case("exp", torch.exp, ((3, 5),), loose=0.03),
    Case("abs", torch.abs, ((3, 5),)),
    Case("mish", F.mish, ((3, 5),)),
    Case("layer_norm", lambda x: F.layer_norm(x, (64,)), ((2, 64),)),
    Case("layer_norm, scaled", lambda x, w, b: F.layer_norm(x, (64,), w, b), ((2, 64), (64,), (64,))),
    Case("layer_norm of few", lambda x: F.layer_norm(x, (16,)), ((2, 16),), rules=SECOND),
    Case("layer_norm with an outlier", lambda x: F.layer_norm(x * OUTLIER, (64,)), ((2, 64),), 0.05, 0.35, SECOND),
    Case("rms_norm with an outlier", lambda x: F.rms_norm(x * OUTLIER, (64,)), ((2, 64),), 0.05, 0.35, SECOND),
    Case("rms_norm", lambda x: F.rms_norm(x, (64,)), ((2, 64),), loose=0.02),
    Case(
        "rms_norm by hand",
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
        ((2, 64),),
        loose=0.03,
    ),
    Case("group_norm", lambda x: F.group_norm(x, 2), ((1, 4, 6, 6),), loose=0.02),
    Case(
        "batch_norm",
        lambda x, w: F.batch_norm(x, torch.ones(3), 2 * torch.ones(3), w),
        ((2, 3, 4), (3,)),
    ),
    Case("attention, fixed weights", lambda v: F.scaled_dot_product_attention(QUERY, KEY, v), ((1, 6, 4),)),
    Case(
        "causal attention, fixed weights",
        lambda v: F.scaled_dot_product_attention(QUERY, KEY, v, is_causal=True),
        ((1, 6, 4),),
    ),
    Case(
        "attention, expected weights",
        lambda q: F.scaled_dot_product_attention(q, KEY, KEY),
        ((1, 6, 4),),
        bias=0.02,
        rules=Rules(attention="logits"),
        std=0.3,
        loose=0.5,  # the logits of a query count as independent
    ),
    Case(
        "attention by the variance of logits",
        lambda q, v: F.scaled_dot_product_attention(q, KEY, v),
        ((1, 6, 4), (1, 6, 4)),
        bias=0.15,
        loose=0.35,
        rules=Rules(attention="logits"),
        std=0.2,
    ),
    Case("log_softmax", lambda x: torch.log_softmax(x, -1), ((3, 5),), bias=0.3, loose=0.3, std=0.2),
]
QUERY, KEY = (RANDOM.fold(name).normal((1, 6, 4)) for name in ("query", "key"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rule_says_what_draws_say(case: Case) -> None:
    means = [RANDOM.fold(case.name).fold(f"mean {i}").normal(shape) for i, shape in enumerate(case.shapes)]
    stds = [case.std * (0.5 + torch.arange(mean.numel()).reshape(mean.shape) % 3 / 2) for mean in means]
    with running(Pass(case.rules)):
        value = unwrapped(case.function(*(Propagated(MeanVar(m, s.square())) for m, s in zip(means, stds))))
    assert isinstance(value, MeanVar)
    noise = [RANDOM.fold("noise").fold(i).normal((DRAWS, *mean.shape)) for i, mean in enumerate(means)]
    draws = torch.vmap(case.function)(*(m + s * e for m, s, e in zip(means, stds, noise))).double()
    assert value.mean.shape == value.var.shape == draws.shape[1:]
    mean, var = draws.mean(0), draws.var(0)
    assert (value.mean - mean).norm() <= (0.02 + case.bias) * var.sum().sqrt() + 1e-6 * mean.norm()
    assert (value.var - var).norm() <= (0.03 + case.loose) * var.norm() + 1e-9


@pytest.mark.parametrize("attention", ["expected", "mean", "logits"])
def test_attention_by_hand_says_what_the_fused_one_says(attention: Literal["expected", "mean", "logits"]) -> None:
    q, k, v = (
        MeanVar(RANDOM.fold(name).normal((2, 7, 5)), RANDOM.fold(f"{name} var").normal((2, 7, 5)).square())
        for name in "qkv"
    )
    mask = torch.zeros(7, 7).masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), float("-inf"))

    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = torch.matmul(q, k.transpose(-1, -2)) / 5**0.5
        return torch.softmax(logits + mask, dim=-1, dtype=torch.float32) @ v

    with running(Pass(Rules(attention=attention))):
        fused = unwrapped(F.scaled_dot_product_attention(Propagated(q), Propagated(k), Propagated(v), is_causal=True))
        own = unwrapped(by_hand(Propagated(q), Propagated(k), Propagated(v)))
    torch.testing.assert_close((own.mean, own.var), (fused.mean, fused.var))


BY_HAND: dict[str, Callable[[Tensor], Tensor]] = {
    "times the inverse": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
    "inverse first": lambda x: (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * x.float(),
    "over the root": lambda x: x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-5),
    "a power": lambda x: x * (1e-5 + (x**2).mean(-1, True)) ** -0.5,
}


@pytest.mark.parametrize("norms", ["expected", "second-order", "mean"])
@pytest.mark.parametrize("way", BY_HAND)
def test_a_norm_by_hand_is_that_norm(way: str, norms: Literal["expected", "second-order", "mean"]) -> None:
    x = MeanVar(RANDOM.fold("x").normal((3, 8)), RANDOM.fold("var").normal((3, 8)).square())
    with running(Pass(Rules(norms=norms), {"#0": 2.0})):
        found = unwrapped(BY_HAND[way](Propagated(x)))
    with running(Pass(Rules(norms=norms), {"#0": 2.0})):
        wanted = unwrapped(F.rms_norm(Propagated(x), (8,), eps=1e-5))
    torch.testing.assert_close((found.mean, found.var), (wanted.mean, wanted.var))


def test_the_norm_of_another_is_a_factor() -> None:
    x, y = (Propagated(MeanVar(RANDOM.fold(n).normal((3, 8)), torch.full((3, 8), 0.1))) for n in "xy")
    inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    own, other = unwrapped(x * inverse), unwrapped(y * inverse)
    assert not torch.allclose(other.var, 0.1 * unwrapped(inverse).mean.square().expand(3, 8), rtol=1e-3)
    assert own.var.shape == other.var.shape


def test_expected_attention_weights_are_nearer_to_those_of_draws() -> None:
    """Queries with noise of std 1: half of what the mean's weights miss, or less."""
    q = RANDOM.fold("far").normal((1, 6, 4))
    draws = torch.softmax((q + RANDOM.fold("draws").normal((DRAWS, 6, 4))) @ (2 * KEY[0]).mT / 2, -1).mean(0)
    miss = {}
    for attention in ("mean", "expected"):
        with running(Pass(Rules(attention=attention))):  # type: ignore[arg-type]
            noisy = Propagated(MeanVar(q, torch.ones_like(q)))
            weights = F.scaled_dot_product_attention(noisy, 2 * KEY, torch.eye(6)[None])
            miss[attention] = float((unwrapped(weights) - draws).norm())
    assert miss["expected"] < 0.5 * miss["mean"]


def test_the_maximum_takes_the_variance_of_the_largest_mean() -> None:
    mean = torch.tensor([[[1.0, 5.0, 2.0, 0.0]]])
    x = Propagated(MeanVar(mean, torch.tensor([[[0.1, 0.2, 0.3, 0.4]]])))
    pooled = unwrapped(F.max_pool1d(x, 2))
    torch.testing.assert_close((pooled.mean, pooled.var), (mean[..., [1, 2]], torch.tensor([[[0.2, 0.3]]])))
    value, index = torch.max(x, -1)
    assert float(unwrapped(value).var) == pytest.approx(0.2)
    assert int(index) == 1


def test_a_pooling_may_take_its_positions_as_correlated() -> None:
    x = Propagated(MeanVar(torch.zeros(1, 2, 4), torch.full((1, 2, 4), 0.5)))
    found = {}
    for r in (0.0, 0.25, 1.0):
        with running(Pass(Rules(pooling=r))):
            found[r] = float(unwrapped(F.adaptive_avg_pool1d(x, 1)).var[0, 0, 0])
    assert found == pytest.approx({0.0: 0.5 / 4, 0.25: 0.75 * 0.5 / 4 + 0.25 * 0.5, 1.0: 0.5})


def test_in_place_forms_change_the_tensor_that_others_hold() -> None:
    x = Propagated(MeanVar(torch.tensor([-1.0, 2.0]), torch.tensor([0.0, 0.0])))
    held = x
    assert F.relu(x, inplace=True) is x
    held.add_(1.0)
    held += 1.0
    assert unwrapped(x).mean.tolist() == [2.0, 4.0]
    with pytest.raises(CompatibilityError, match="would write a variance into a tensor that has none"):
        torch.zeros(2).add_(held)


@pytest.mark.parametrize("bad", [{"accuracy": "good"}, {"attention": "all"}, {"pooling": 1.5}])
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Rules(**bad)


def test_gradients_are_finite_where_nothing_varies() -> None:
    mean, var = torch.tensor([[-1.0, 0.0, 2.0]], requires_grad=True), torch.zeros(1, 3, requires_grad=True)
    x: Tensor = Propagated(MeanVar(mean, var))
    found = F.layer_norm(F.gelu(x) * torch.sigmoid(x) + torch.relu(x) + x.abs(), (3,))
    value = unwrapped(found.mean(0))
    gradients = torch.autograd.grad(value.mean.sum() + value.var.sum(), [mean, var])
    assert all(gradient.isfinite().all() for gradient in gradients)
