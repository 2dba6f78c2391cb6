"""Moments of activations: against sums over a fine grid in float64, at the edges, and through torch's transformations."""

from __future__ import annotations

import io
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from posterity.prediction.propagation import activations
from posterity.prediction.propagation.activations import Moments, elementwise, fast_within
from posterity.prediction.propagation.activations.moments import cdf, tail, upper

SELU = (1.6732632423543772, 1.0507009873554805)
EXACT = {"accuracy": "exact"}

# name: the function, its moments, the largest errors of variance (over true var + 1e-3 v) and mean (over the input's std)
CASES = {
    "gelu": (F.gelu, partial(activations.gelu, **EXACT), 1e-4, 2e-5),
    "relu": (F.relu, activations.relu, 1e-4, 2e-5),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), lambda m, v: activations.leaky_relu(m, v, 0.2), 1e-4, 2e-5),
    "abs": (torch.abs, activations.abs, 1e-4, 2e-5),
    "relu6": (F.relu6, lambda m, v: activations.clamp(m, v, 0.0, 6.0), 1e-4, 2e-5),
    "hardtanh": (F.hardtanh, lambda m, v: activations.clamp(m, v, -1.0, 1.0), 1e-4, 2e-5),
    "low": (lambda x: x.clamp(min=0.7), lambda m, v: activations.clamp(m, v, 0.7), 1e-4, 2e-5),
    "high": (lambda x: x.clamp(max=0.7), lambda m, v: activations.clamp(m, v, None, 0.7), 1e-4, 2e-5),
    "hardsigmoid": (F.hardsigmoid, activations.hardsigmoid, 1e-4, 2e-5),
    "hardswish": (F.hardswish, activations.hardswish, 1e-2, 2e-5),
    "sigmoid": (torch.sigmoid, partial(activations.sigmoid, **EXACT), 1e-3, 1e-5),
    "tanh": (torch.tanh, partial(activations.tanh, **EXACT), 1e-3, 1e-5),
    "silu": (F.silu, partial(activations.silu, **EXACT), 1e-3, 2e-5),
    "softplus": (F.softplus, partial(activations.softplus, **EXACT), 1e-3, 2e-5),
    "softplus2": (
        lambda x: F.softplus(x, 2.0), lambda m, v: activations.softplus(m, v, 2.0, accuracy="exact"), 1e-2, 1e-4
    ),
    "elu": (F.elu, activations.elu, 1e-2, 2e-5),
    "selu": (F.selu, lambda m, v: activations.elu(m, v, *SELU), 1e-2, 2e-5),
    "celu": (lambda x: F.celu(x, 0.5), lambda m, v: activations.elu(m, v, 0.5, rate=2.0), 1e-2, 2e-5),
    "mish": (F.mish, lambda m, v: elementwise(F.mish, m, v, accuracy="exact"), 1e-2, 1e-3),
    # exact: rounding of values to 36 + 16, over the std
    "square": (torch.square, activations.square, 1e-5, 1e-4),
}  # fmt: skip
FAST = {name: (CASES[name][0], getattr(activations, name)) for name in ("gelu", "sigmoid", "tanh", "silu", "softplus")}
ALL = {name: case[:2] for name, case in CASES.items()} | {f"{name}-fast": case for name, case in FAST.items()}
ALL["erf"] = (torch.erf, partial(elementwise, torch.erf))


def means(dtype: torch.dtype = torch.float32) -> Tensor:
    # the grid, and places next to the kinks
    return torch.cat([torch.linspace(-6, 6, 49), torch.tensor([-3.01, -0.98, -0.02, 0.003, 0.71, 2.99])]).to(dtype)


def reference(function, mean: Tensor, std: float) -> tuple[Tensor, Tensor]:
    """A sum over 8001 points of +-10 std: of functions with kinks it errs by (step slope)^2 / 12 < 1e-6 v."""
    z = torch.linspace(-10, 10, 8001, dtype=torch.float64)
    weights = torch.exp(-z * z / 2)
    weights = weights / weights.sum()
    values = function(mean.double()[:, None] + std * z)
    expected = values @ weights
    return expected, (values - expected[:, None]).square() @ weights


def errors(function, moments, std: float, dtype: torch.dtype = torch.float32) -> tuple[float, float]:
    mean = means(dtype)
    var = torch.full_like(mean, std**2)
    expected, expected_var = reference(function, mean, std)
    found = moments(mean, var)
    assert found.mean.dtype == found.var.dtype == dtype
    error_var = (found.var - expected_var).abs() / (expected_var + 1e-3 * std**2)
    return ((found.mean - expected).abs() / std).max().item(), error_var.max().item()


@pytest.mark.parametrize("std", [0.03, 0.1, 0.3, 0.55, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("name", CASES)
def test_moments_are_those_of_the_grid(name: str, std: float) -> None:
    function, moments, largest_var, largest_mean = CASES[name]
    error, error_var = errors(function, moments, std)
    assert error < largest_mean
    assert error_var < largest_var


@pytest.mark.parametrize("std", [0.1, 1.0])
@pytest.mark.parametrize("name", CASES)
def test_float64_stays_float64(name: str, std: float) -> None:
    function, moments, largest_var, largest_mean = CASES[name]
    error, error_var = errors(function, moments, std, torch.float64)
    assert error < largest_mean
    assert error_var < largest_var


@pytest.mark.parametrize("name", FAST)
def test_fast_is_within_one_percent_where_it_says(name: str) -> None:
    function, moments = FAST[name]
    limit = {"gelu": 0.55, "sigmoid": 1.0, "tanh": 0.5, "silu": 0.7, "softplus": 1.0}[name]
    assert fast_within(name, limit)
    assert not fast_within(name, limit * 1.01)
    for std in (0.03, 0.2, limit):
        assert errors(function, moments, std)[1] < 1e-2
    # the constant is not smaller than it need be
    assert errors(function, moments, 1.5 * limit)[1] > 1e-2


def test_what_has_one_form_is_within_at_any_std() -> None:
    assert fast_within("relu", 1e6)


@pytest.mark.parametrize("name", ALL)
def test_without_variance_it_is_the_function(name: str) -> None:
    function, moments = ALL[name]
    mean = torch.cat([means(), torch.tensor([0.0, -3.0, 3.0, -1.0, 1.0, 6.0, 0.7, -50.0, 50.0])])
    found = moments(mean, torch.zeros_like(mean))
    # three units in the last place
    torch.testing.assert_close(found.mean, function(mean), rtol=4e-7, atol=1e-6)
    assert torch.equal(found.var, torch.zeros_like(mean))


@pytest.mark.parametrize("name", ALL)
def test_nothing_breaks_at_the_ends(name: str) -> None:
    function, moments = ALL[name]
    mean = torch.tensor([-1e3, -100.0, -12.0, -3.0, -1.0, -1e-6, 0.0, 1e-6, 1.0, 3.0, 12.0, 100.0, 1e3])
    for var in (0.0, 1e-12, 1e-4, 1.0, 100.0):
        leaf, leaf_var = mean.clone().requires_grad_(), torch.full_like(mean, var).requires_grad_()
        found = moments(leaf, leaf_var)
        assert torch.isfinite(found.mean).all()
        assert torch.isfinite(found.var).all()
        assert (found.var >= 0).all()
        for part in found:
            slopes = torch.autograd.grad(part.sum(), (leaf, leaf_var), retain_graph=True)
            assert all(torch.isfinite(slope).all() for slope in slopes), (var, slopes)


@pytest.mark.parametrize("name", ALL)
def test_slopes_are_those_of_differences(name: str) -> None:
    """Slopes by mean and var in float64 against central differences (step 1e-4: h^2 = 1e-8, rounding 1e-12)."""
    _, moments = ALL[name]
    mean = torch.tensor([-3.3, -1.2, -0.4, 0.5, 1.7, 2.6], dtype=torch.float64)
    var = torch.tensor([0.5, 0.09, 0.7, 1.3, 0.11, 0.2], dtype=torch.float64)
    leaf, leaf_var = mean.clone().requires_grad_(), var.clone().requires_grad_()
    step = 1e-4
    for part in range(2):
        by_mean, by_var = torch.autograd.grad(moments(leaf, leaf_var)[part].sum(), (leaf, leaf_var))
        up, down = moments(mean + step, var)[part], moments(mean - step, var)[part]
        torch.testing.assert_close(by_mean, (up - down) / (2 * step), rtol=1e-5, atol=1e-6)
        up, down = moments(mean, var + step)[part], moments(mean, var - step)[part]
        torch.testing.assert_close(by_var, (up - down) / (2 * step), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_the_variance_starts_with_the_squared_slope(name: str) -> None:
    function, moments = ALL[name]
    mean = torch.tensor([-2.3, -0.5, 0.4, 2.2, 4.1], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(function(mean).sum(), mean)
    var = torch.zeros_like(mean).requires_grad_()
    (by_var,) = torch.autograd.grad(moments(mean.detach(), var).var.sum(), var)
    # differences are taken over a std of |mean| / 1024 < 5e-3, whose relative error is about its square
    torch.testing.assert_close(by_var, slope.square(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_vmap_and_blocks_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, moments = ALL[name]
    generator = torch.Generator().manual_seed(3)
    mean, var = torch.randn(3, 7, 11, generator=generator) * 3, torch.rand(3, 7, 11, generator=generator) * 4
    whole = moments(mean, var)
    mapped = torch.func.vmap(moments)(mean, var)
    monkeypatch.setattr("posterity.prediction.propagation.activations.blocks._ELEMENTS", 13)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    pieces = moments(mean.transpose(0, 2), var.transpose(0, 2))
    for a, b, c in zip(whole, mapped, pieces):
        # vectorised and scalar loops round differently
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(a, c.transpose(0, 2), rtol=1e-5, atol=1e-6)


def test_moments_far_from_a_kink_are_those_of_a_line() -> None:
    mean, var = torch.tensor([50.0, -50.0]), torch.tensor([1e-4, 1e-4])
    for moments in (activations.relu, activations.gelu, partial(activations.gelu, **EXACT)):
        assert moments(mean, var).var.tolist() == pytest.approx([1e-4, 0.0], rel=1e-6)
    assert activations.abs(mean, var).var.tolist() == pytest.approx([1e-4, 1e-4], rel=1e-6)
    clamped = activations.clamp(mean, var, -1.0, 1.0)
    assert isinstance(clamped, Moments)
    assert clamped.mean.tolist() == [1.0, -1.0]
    assert clamped.var.tolist() == pytest.approx([0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "gelu", "relu", "elu", "softplus"])
def test_the_mean_rises_with_the_input(name: str) -> None:
    moments = ALL[name][1]
    mean = torch.linspace(0.5, 6, 101)
    for std in (0.1, 0.4, 0.6, 3.0):
        # rounding of values to 6
        assert (moments(mean, torch.full_like(mean, std**2)).mean.diff() > -1e-6).all()


def test_exp_is_lognormal() -> None:
    mean, var = torch.tensor([0.0, 1.0, -80.0, 3.0]), torch.tensor([1e-10, 0.5, 100.0, 0.0])
    found = activations.exp(mean, var)
    m, v = mean.double(), var.double()
    torch.testing.assert_close(found.mean.double(), (m + v / 2).exp(), rtol=1e-5, atol=0)
    torch.testing.assert_close(found.var.double(), v.expm1() * (2 * m + v).exp(), rtol=1e-5, atol=0)


def test_elementwise_on_polynomials_is_exact() -> None:
    # x^3: mean m^3 + 3 m v, variance 9 m^4 v + 36 m^2 v^2 + 15 v^3
    mean, var = torch.tensor([0.5, -2.0], dtype=torch.float64), torch.tensor([0.4, 1.5], dtype=torch.float64)
    for nodes in (4, 9):
        found = elementwise(lambda x: x**3, mean, var, nodes=nodes)
        torch.testing.assert_close(found.mean, mean**3 + 3 * mean * var)
        torch.testing.assert_close(found.var, 9 * mean**4 * var + 36 * mean**2 * var**2 + 15 * var**3)


@pytest.mark.parametrize("function", [torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.sin, F.logsigmoid])
def test_elementwise_on_other_functions(function) -> None:
    mean = torch.tensor([0.8, 1.3, 5.0, 20.0])
    std = (mean / 10).clamp(max=0.5)
    found = elementwise(function, mean, std.square())
    for i in range(4):
        expected, expected_var = reference(function, mean[i : i + 1], std[i].item() * 0.9999)  # 10 std: positive
        # 2e-4 from that; asymptotic at 10 std from the pole: the 9th moment's share
        assert found.mean[i].item() == pytest.approx(expected.item(), rel=1e-3, abs=1e-4)
        assert found.var[i].item() == pytest.approx(expected_var.item(), rel=2e-2)
    nothing = elementwise(function, torch.tensor([1e-4, 2.0]), torch.zeros(2))
    assert torch.equal(nothing.mean, function(torch.tensor([1e-4, 2.0])))
    assert torch.equal(nothing.var, torch.zeros(2))


def test_clamp_with_open_and_crossed_ends() -> None:
    mean, var = torch.tensor([0.3, -2.0]), torch.tensor([0.5, 0.1])
    assert activations.clamp(mean, var) == (mean, var)
    crossed = activations.clamp(mean, var, 2.0, 1.0)
    assert torch.equal(crossed.mean, mean.clamp(2.0, 1.0))
    assert torch.equal(crossed.var, torch.zeros(2))


def test_probabilities_of_the_normal() -> None:
    z = torch.linspace(0, 12, 997)
    expected = torch.special.ndtr(-z.double())
    assert (cdf(-z) - expected).abs().max() < 1e-7
    assert torch.equal(cdf(-z), upper(z))
    q, p = tail(z)
    assert ((q - expected) * (1 + z.double() ** 2)).abs().max() < 2e-7  # float32 has 6e-8 of 1/2
    assert tail(torch.zeros(1, dtype=torch.float64))[0].item() == pytest.approx(0.5, abs=1e-12)
    assert p[0].item() == pytest.approx(1 / math.sqrt(2 * math.pi))


@pytest.mark.slow  # torch's exporter takes half a minute to load,
@pytest.mark.filterwarnings("ignore")  # and warns of itself
def test_onnx_gives_the_same() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")

    class All(torch.nn.Module):
        def forward(self, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
            return tuple(part for _, moments in ALL.values() for part in moments(mean, var))

    mean, var = means()[:48].reshape(6, 8), torch.linspace(0, 9, 48).reshape(6, 8)
    file = io.BytesIO()
    torch.onnx.export(All().eval(), (mean, var), dynamo=True).save(file)  # type: ignore[union-attr]
    session = runtime.InferenceSession(file.getvalue())
    names = [entry.name for entry in session.get_inputs()]
    found = session.run(None, {names[0]: mean.numpy(), names[1]: var.numpy()})
    for expected, value in zip(All()(mean, var), found):
        np.testing.assert_allclose(value, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_large_input_is_exported_whole() -> None:
    class Gelu(torch.nn.Module):
        def forward(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
            return tuple(activations.gelu(mean, var))  # type: ignore[return-value]

    exported = torch.export.export(Gelu(), (torch.zeros(2**21), torch.ones(2**21)), strict=False)
    assert not [node for node in exported.graph.nodes if "split" in str(node.target) or "cat" in str(node.target)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_the_exported_program_is_plain(name: str) -> None:
    """No branch on values and nothing without a counterpart in ONNX."""
    _, moments = ALL[name]

    class One(torch.nn.Module):
        def forward(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
            return tuple(moments(mean, var))  # type: ignore[return-value]

    mean, var = torch.linspace(-2, 2, 6).reshape(2, 3), torch.linspace(0, 3, 6).reshape(2, 3)
    traced = make_fx(One(), tracing_mode="fake")(mean, var)
    used = {str(node.target).split(".")[1] for node in traced.graph.nodes if node.op == "call_function"}
    assert not used & {"erfc", "erfcx", "special_erfcx", "expm1", "special_ndtr", "item", "_local_scalar_dense"}
    for found, expected in zip(traced(mean, var), moments(mean, var)):
        torch.testing.assert_close(found, expected)
