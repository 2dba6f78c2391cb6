"""Sums, products and powers of independent values.

x + a y    m_x + a m_y,    v_x + a^2 v_y                        x - x and x + f(x) count as independent
x y        m_x m_y,        m_x^2 v_y + v_x m_y^2 + v_x v_y      x x is x^2
x^2        m^2 + v,        4 m^2 v + 2 v^2                      exact of a normal
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from posterity.prediction.propagation.activations import elementwise, square
from posterity.prediction.propagation.activations import power as raised
from posterity.prediction.propagation.rules.activation import by_moments
from posterity.prediction.propagation.rules.logits import carried
from posterity.prediction.propagation.rules.normalised import by_hand, squares_of, step_on
from posterity.prediction.propagation.run import current
from posterity.prediction.propagation.table import RULES, rule
from posterity.prediction.propagation.value import MeanVar, Value, join, split, spread, total


def _split(x: Any) -> tuple[Any, Tensor | None]:
    return split(x) if isinstance(x, MeanVar | Tensor) else (x, None)


def _sum(x: Any, y: Any, scale: float) -> Value:
    """x + scale y"""
    if x is y and isinstance(x, MeanVar):
        return MeanVar((1 + scale) * x.mean, (1 + scale) ** 2 * x.var)
    (mean, var), (other, other_var) = _split(x), _split(y)
    found = mean + (other if scale == 1 else scale * other)
    if other_var is not None and abs(scale) != 1:
        other_var = scale**2 * other_var
    return join(found, total(*(None if one is None else one.expand(found.shape) for one in (var, other_var))))


@rule("add", "__add__", "__radd__", "__iadd__")
def add(input: Any, other: Any, *, alpha: float = 1.0) -> Value:
    found = carried(carried(_sum(input, other, alpha), input), other, alpha)
    return found if alpha != 1.0 else step_on(input, "mean square", found, eps=other)


@rule("sub", "subtract", "__sub__", "__isub__")
def sub(input: Any, other: Any, *, alpha: float = 1.0) -> Value:
    return carried(_sum(input, other, -alpha), input)


@rule("rsub", "__rsub__")
def rsub(input: Any, other: Any, *, alpha: float = 1.0) -> Value:
    return _sum(other, input, -alpha)


@rule("neg", "negative", "__neg__")
def neg(input: Value) -> Value:
    mean, var = split(input)
    return join(-mean, var)


@rule("mul", "multiply", "__mul__", "__rmul__", "__imul__")
def mul(input: Any, other: Any) -> Value:
    if input is other and isinstance(input, MeanVar):
        return squared(input)
    own = by_hand(input, other, "inverse norm")
    own = by_hand(other, input, "inverse norm") if own is None else own
    if own is not None:
        return own
    (mean, var), (factor, factor_var) = _split(input), _split(other)
    found = mean * factor
    first = None if var is None else var * (other.second if isinstance(other, MeanVar) else factor * factor)
    second = None if factor_var is None else factor_var * (mean * mean)
    noise = current().noise
    if noise is not None and var is not None and factor_var is not None:
        found = noise.added(found, var * factor_var)
    return carried(carried(join(found, total(first, second)), input, other), other, input)


@rule("div", "divide", "true_divide", "__truediv__", "__itruediv__")
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        return NotImplemented
    own = by_hand(input, other, "norm")
    if own is not None:
        return own
    if not spread(other):
        mean, var = split(input)
        return carried(join(mean / other, None if var is None else var / (other * other)), input, 1 / other)
    return mul(reciprocal(other), input)


@rule("reciprocal")
def reciprocal(input: MeanVar) -> Value:
    return by_moments(partial(raised, exponent=-1.0), input)


def _rdiv(input: MeanVar, other: Any) -> Value:
    return mul(reciprocal(input), other)


RULES[Tensor.__rdiv__] = RULES[Tensor.__rtruediv__] = _rdiv


@rule("square")
def squared(input: MeanVar) -> Value:
    return squares_of(input, by_moments(square, input))


@rule("pow", "__pow__", "__ipow__")
def power(input: Value, exponent: Any) -> Value:
    if not isinstance(input, MeanVar) or not isinstance(exponent, int | float):
        return NotImplemented
    if exponent == 1:
        return input
    if exponent == 2:
        return squared(input)
    if exponent < 0 or exponent != round(exponent):
        stage: Any = {-0.5: "inverse norm", 0.5: "norm"}.get(exponent, "")
        return step_on(input, stage, by_moments(partial(raised, exponent=exponent), input))
    return by_moments(partial(elementwise, lambda x: torch.pow(x, exponent)), input)


@rule("addcmul")
def addcmul(input: Value, tensor1: Value, tensor2: Value, *, value: float = 1.0) -> Value:
    return add(input, mul(tensor1, tensor2), alpha=value)


@rule("lerp")
def lerp(input: Value, end: Value, weight: Any) -> Value:
    return add(mul(input, 1 - weight), mul(end, weight))
