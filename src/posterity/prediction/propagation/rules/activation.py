"""Activations: the moments of `activations`, at a site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from posterity.prediction.propagation import activations
from posterity.prediction.propagation.run import at_site, current
from posterity.prediction.propagation.table import mirrored, rule
from posterity.prediction.propagation.value import MeanVar, Value


def _at(input: Value, moments: Callable[..., Any], *args: Any) -> Value:
    x = at_site(input)
    assert isinstance(x, MeanVar)
    return MeanVar(*moments(x.mean, x.var, *args))


def _accurately(input: Value, moments: Callable[..., Any]) -> Value:
    return _at(input, lambda mean, var: moments(mean, var, accuracy=current().rules.accuracy))


@rule("gelu")
def gelu(input: Value, approximate: str = "none") -> Value:
    return _accurately(input, activations.gelu)


@rule("relu")
def relu(input: Value, inplace: bool = False) -> Value:
    return _at(input, activations.relu)


@rule("relu6")
def relu6(input: Value, inplace: bool = False) -> Value:
    return _at(input, activations.clamp, 0.0, 6.0)


@rule("leaky_relu")
def leaky_relu(input: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    return _at(input, activations.leaky_relu, negative_slope)


@rule("hardtanh")
def hardtanh(input: Value, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    return _at(input, activations.clamp, min_val, max_val)


@rule("clamp", "clip")
def clamp(input: Value, min: Any = None, max: Any = None) -> Value:
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        return NotImplemented
    return _at(input, activations.clamp, min, max)


@rule("clamp_min")
def clamp_min(input: Value, min: Any) -> Value:
    return clamp(input, min)


@rule("clamp_max")
def clamp_max(input: Value, max: Any) -> Value:
    return clamp(input, None, max)


@rule("hardsigmoid")
def hardsigmoid(input: Value, inplace: bool = False) -> Value:
    return _at(input, activations.hardsigmoid)


@rule("hardswish")
def hardswish(input: Value, inplace: bool = False) -> Value:
    return _at(input, activations.hardswish)


@rule("sigmoid")
def sigmoid(input: Value) -> Value:
    return _accurately(input, activations.sigmoid)


@rule("tanh")
def tanh(input: Value) -> Value:
    return _accurately(input, activations.tanh)


@rule("silu")
def silu(input: Value, inplace: bool = False) -> Value:
    return _accurately(input, activations.silu)


@rule("softplus")
def softplus(input: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    accuracy = current().rules.accuracy
    return _at(input, lambda mean, var: activations.softplus(mean, var, beta, threshold, accuracy=accuracy))


@rule("elu")
def elu(input: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: Any = 1.0, inplace: bool = False) -> Value:
    rate = 1.0 if isinstance(input_scale, bool) else input_scale  # Python's form has `inplace` in this place
    scale = 1.0 if isinstance(scale, bool) else scale
    return _at(input, activations.elu, alpha, scale, rate)


@rule("celu")
def celu(input: Value, alpha: float = 1.0, inplace: bool = False) -> Value:
    return _at(input, activations.elu, alpha, 1.0, 1 / alpha)


@rule("selu")
def selu(input: Value, inplace: bool = False) -> Value:
    return _at(input, activations.elu, 1.6732632423543772, 1.0507009873554805)


@rule("exp")
def exp(input: MeanVar) -> Value:
    return MeanVar(*activations.exp(input.mean, input.var))


@rule("abs", "absolute", "__abs__")
def absolute(input: MeanVar) -> Value:
    return MeanVar(*activations.abs(input.mean, input.var))


@mirrored("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "expm1", "erf", "erfc", "sin", "cos", "tan", "atan", "exp2")
def smooth(function: Callable[[Tensor], Tensor]) -> Callable[..., Value]:
    """Other functions of one argument, by quadrature."""
    return lambda input: MeanVar(*activations.elementwise(function, input.mean, input.var))


@mirrored("mish", "softsign", "logsigmoid", "tanhshrink")
def activated(function: Callable[[Tensor], Tensor]) -> Callable[..., Value]:
    """Other activations, by quadrature, at a site."""

    def apply(input: Value, inplace: bool = False) -> Value:
        x = at_site(input)
        assert isinstance(x, MeanVar)
        return MeanVar(*activations.elementwise(lambda leaf: function(leaf), x.mean, x.var))

    return apply
