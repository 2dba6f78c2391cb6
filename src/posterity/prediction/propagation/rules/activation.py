"""Activations: the moments of `activations`, at a site."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.prediction.propagation import activations
from posterity.prediction.propagation.activations import Accuracy, Moments
from posterity.prediction.propagation.rules.normalised import step_on
from posterity.prediction.propagation.run import accuracy, at_site, current
from posterity.prediction.propagation.table import mirrored, rule
from posterity.prediction.propagation.value import MeanVar, Value


def _at(
    function: Callable[[Tensor], Tensor], input: Value, moments: Callable[..., Moments], *args: Any, fast: str = ""
) -> Value:
    """The moments at this site, or by the slope of the function at the mean.

    Args:
        fast: the name of moments that have a fast form too.
    """
    x = at_site(input)
    assert isinstance(x, MeanVar)
    if current().rules.activations == "slope":
        mean, slope = _at_mean(function, x.mean)
        return MeanVar(mean, slope.square() * x.var)
    options = {"accuracy": accuracy(fast, x)} if fast else {}
    return by_moments(lambda mean, var: moments(mean, var, *args, **options), x)


def by_moments(moments: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], x: MeanVar) -> MeanVar:
    """The value of these moments."""
    noise = current().noise
    return MeanVar(*(moments(x.mean, x.var) if noise is None else noise.beyond_slope(moments, x.mean, x.var)))


def _at_mean(function: Callable[[Tensor], Tensor], mean: Tensor) -> tuple[Tensor, Tensor]:
    """The value and the slope."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what torch does in there
        value, slope, *_ = torch.func.jvp(function, (mean,), (torch.ones_like(mean),))
    return value, slope


@rule("gelu")
def gelu(input: Value, approximate: str = "none") -> Value:
    return _at(partial(F.gelu, approximate=approximate), input, activations.gelu, fast="gelu")


@rule("relu")
def relu(input: Value, inplace: bool = False) -> Value:
    return _at(F.relu, input, activations.relu)


@rule("relu6")
def relu6(input: Value, inplace: bool = False) -> Value:
    return _at(F.relu6, input, activations.clamp, 0.0, 6.0)


@rule("leaky_relu")
def leaky_relu(input: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    return _at(partial(F.leaky_relu, negative_slope=negative_slope), input, activations.leaky_relu, negative_slope)


@rule("hardtanh")
def hardtanh(input: Value, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    return clamp(input, min_val, max_val)


@rule("clamp", "clip")
def clamp(input: Value, min: Any = None, max: Any = None) -> Value:
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        return NotImplemented
    return _at(partial(torch.clamp, min=min, max=max), input, activations.clamp, min, max)


@rule("clamp_min")
def clamp_min(input: Value, min: Any) -> Value:
    return clamp(input, min)


@rule("clamp_max")
def clamp_max(input: Value, max: Any) -> Value:
    return clamp(input, None, max)


@rule("hardsigmoid")
def hardsigmoid(input: Value, inplace: bool = False) -> Value:
    return _at(F.hardsigmoid, input, activations.hardsigmoid)


@rule("hardswish")
def hardswish(input: Value, inplace: bool = False) -> Value:
    return _at(F.hardswish, input, activations.hardswish)


@rule("sigmoid")
def sigmoid(input: Value) -> Value:
    return _at(torch.sigmoid, input, activations.sigmoid, fast="sigmoid")


@rule("tanh")
def tanh(input: Value) -> Value:
    return _at(torch.tanh, input, activations.tanh, fast="tanh")


@rule("silu")
def silu(input: Value, inplace: bool = False) -> Value:
    return _at(F.silu, input, activations.silu, fast="silu")


@rule("softplus")
def softplus(input: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    def moments(mean: Tensor, var: Tensor, accuracy: Accuracy) -> Moments:
        return activations.softplus(mean, var, beta, threshold, accuracy=accuracy)

    return _at(partial(F.softplus, beta=beta, threshold=threshold), input, moments, fast="softplus")


@rule("elu")
def elu(input: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: Any = 1.0, inplace: bool = False) -> Value:
    rate = 1.0 if isinstance(input_scale, bool) else input_scale  # Python's form has `inplace` in this place
    scale = 1.0 if isinstance(scale, bool) else scale
    return _elu(input, alpha, scale, rate)


def _elu(input: Value, alpha: float, scale: float, rate: float) -> Value:
    def elu(x: Tensor) -> Tensor:
        return scale * torch.where(x > 0, x, alpha * torch.expm1(rate * x.clamp(max=0.0)))

    return _at(elu, input, activations.elu, alpha, scale, rate)


@rule("celu")
def celu(input: Value, alpha: float = 1.0, inplace: bool = False) -> Value:
    return _elu(input, alpha, 1.0, 1 / alpha)


@rule("selu")
def selu(input: Value, inplace: bool = False) -> Value:
    return _elu(input, 1.6732632423543772, 1.0507009873554805, 1.0)


@rule("exp")
def exp(input: MeanVar) -> Value:
    return by_moments(activations.exp, input)


@rule("abs", "absolute", "__abs__")
def absolute(input: MeanVar) -> Value:
    return by_moments(activations.abs, input)


@rule("log")
def log(input: MeanVar) -> Value:
    return by_moments(activations.log, input)


@rule("log1p")
def log1p(input: MeanVar) -> Value:
    return by_moments(lambda mean, var: activations.log(1 + mean, var), input)


@rule("log2")
def log2(input: MeanVar) -> Value:
    return _logarithm(input, 2.0)


@rule("log10")
def log10(input: MeanVar) -> Value:
    return _logarithm(input, 10.0)


def _logarithm(input: MeanVar, base: float) -> Value:
    found, unit = log(input), math.log(base)
    return MeanVar(found.mean / unit, found.var / unit**2) if isinstance(found, MeanVar) else found


@rule("sqrt")
def sqrt(input: MeanVar) -> Value:
    return step_on(input, "norm", by_moments(partial(activations.power, exponent=0.5), input))


@rule("rsqrt")
def rsqrt(input: MeanVar) -> Value:
    return step_on(input, "inverse norm", by_moments(partial(activations.power, exponent=-0.5), input))


@mirrored("expm1", "erf", "erfc", "sin", "cos", "tan", "atan", "exp2")
def smooth(function: Callable[[Tensor], Tensor]) -> Callable[..., Value]:
    """Other functions of one argument, by quadrature."""
    return lambda input: by_moments(partial(activations.elementwise, function), input)


@mirrored("mish", "softsign", "logsigmoid", "tanhshrink")
def activated(function: Callable[[Tensor], Tensor]) -> Callable[..., Value]:
    """Other activations, by quadrature, at a site."""

    def apply(input: Value, inplace: bool = False) -> Value:
        return _at(function, input, partial(activations.elementwise, lambda leaf: function(leaf)))

    return apply
