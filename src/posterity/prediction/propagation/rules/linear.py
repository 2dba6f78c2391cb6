"""Operations that are linear in each argument, and of independent arguments: x ~ (m, v), W ~ (M, S).

mean  f(m, M)           var  f(v, M^2 + S) + f(m^2, S)           f: a product of matrices, a convolution, an einsum
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.prediction.propagation.correlated import CorrelatedWeight
from posterity.prediction.propagation.factored import FactoredWeight
from posterity.prediction.propagation.rank_one import RankOneWeight
from posterity.prediction.propagation.rules.arithmetic import add
from posterity.prediction.propagation.rules.attention import mixed
from posterity.prediction.propagation.rules.logits import carried, logits_of
from posterity.prediction.propagation.run import current
from posterity.prediction.propagation.table import RULES, mirrored, rule
from posterity.prediction.propagation.value import Later, MeanVar, Value, join, mean_of, split, total


def bilinear(product: Callable[..., Tensor], x: Value, weight: Value, bias: Value | None = None) -> Value:
    """Of a product that is linear in both, and adds a bias where it is given one as its third argument."""
    mean, matrix = mean_of(x), mean_of(weight)
    found, noise = product(mean, matrix, *(() if bias is None else (mean_of(bias),))), current().noise
    if noise is not None and isinstance(weight, MeanVar):
        if id(weight) in noise.alone:
            squares = mean.square() + x.var if isinstance(x, MeanVar) else mean.square()
            found = noise.added(found, product(squares, weight.var))
        elif isinstance(x, MeanVar):
            found = noise.added(found, product(x.var, weight.var))
    if not any(isinstance(one, MeanVar) for one in (x, weight, bias)):
        return found
    var = x.later if isinstance(x, MeanVar) else None
    matrix_var, second = (weight.later, weight.second_later) if isinstance(weight, MeanVar) else (None, None)
    shift = bias.var if isinstance(bias, MeanVar) else None

    def variance() -> Tensor:
        return _variance(product, mean, var, matrix, matrix_var, second, shift).expand(found.shape)

    return MeanVar(found, Later(variance))


def _variance(
    product: Callable[..., Tensor], mean: Tensor, var: Later | None, matrix: Tensor, matrix_var: Later | None,
    second: Later | None, shift: Tensor | None,
) -> Tensor:  # fmt: skip
    own = () if shift is None else (shift,)
    first = last = None
    if var is not None:
        first, own = product(var(), matrix.square() if second is None else second(), *own), ()
    if matrix_var is not None:
        last, own = product(mean.square(), matrix_var(), *own), ()
    found = total(first, last, *own)
    assert found is not None
    return found


def _biased(found: Value, bias: Value | None) -> Value:
    return found if bias is None else add(found, bias)


def _shared(x: Tensor, column: Tensor) -> Tensor:
    return F.linear(x, column.unsqueeze(0))


@rule("linear")
def linear(input: Value, weight: Value, bias: Value | None = None) -> Value:
    noise = current().noise
    if noise is not None:
        noise.positions[id(weight)] += split(input)[0].shape[:-1].numel()
    if isinstance(weight, FactoredWeight):
        return _biased(weight.product(input, F.linear, torch.matmul, F.linear), bias)
    if isinstance(weight, RankOneWeight) and noise is None:
        return weight.product(input, F.linear, _shared, bias)
    if isinstance(weight, CorrelatedWeight) and noise is None and (found := weight.product(input, bias)) is not None:
        return found
    return bilinear(F.linear, input, weight, bias)


@rule("matmul", "__matmul__", "mm", "bmm", "mv", "dot")
def matmul(input: Value, other: Value) -> Value:
    found = mixed(input, other)
    if found is not None:
        return found
    if isinstance(other, RankOneWeight) and other.mean.ndim == 2 and current().noise is None:
        return other.turned().product(input, F.linear, _shared, None)
    return logits_of(input, other, bilinear(torch.matmul, input, other))


RULES[Tensor.__rmatmul__] = lambda input, other: matmul(other, input)


@rule("addmm", "addbmm", "baddbmm", "addmv")
def addmm(input: Value, first: Value, second: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    found = matmul(first, second)
    return add(times(found, alpha), times(input, beta))


def times(x: Value, factor: float) -> Value:
    """x times a number."""
    mean, var = split(x)
    return x if factor == 1 else carried(join(factor * mean, None if var is None else factor**2 * var), x, factor)


@rule("outer", "ger")
def outer(input: Value, other: Value) -> Value:
    return bilinear(torch.outer, input, other)


@rule("bilinear")
def bilinear_form(first: Value, second: Value, weight: Value, bias: Value | None = None) -> Value:
    return NotImplemented


@rule("einsum")
def einsum(equation: str, *operands: Any) -> Value:
    parts: Sequence[Value] = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    if len(parts) == 1:
        mean, var = split(parts[0])
        return join(torch.einsum(equation, mean), None if var is None else torch.einsum(equation, var))
    if len(parts) != 2:
        return NotImplemented
    return bilinear(lambda a, b: torch.einsum(equation, a, b), *parts)


@rule("embedding")
def embedding(input: Tensor, weight: Value, *args: Any, **options: Any) -> Value:
    if isinstance(input, MeanVar) or not isinstance(weight, MeanVar):
        return NotImplemented
    if isinstance(input, Tensor) and input.is_floating_point():  # aten names them the other way round
        return NotImplemented
    if isinstance(weight, RankOneWeight):
        return join(F.embedding(input, weight.mean), F.embedding(input, weight.row.unsqueeze(1)) * weight.column)
    return join(F.embedding(input, weight.mean), F.embedding(input, weight.var))


RULES[torch.ops.aten.embedding.default] = lambda weight, indices, *args: embedding(indices, weight)


@mirrored("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(convolve: Callable[..., Tensor]) -> Callable[..., Value]:
    transposed = "transpose" in str(convolve)

    def apply(input: Value, weight: Value, bias: Value | None = None, *args: Any, **options: Any) -> Value:
        def product(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
            return convolve(a, b, c, *args, **options)

        outputs, inputs, *rest = split(weight)[0].shape
        axis = -1 - len(rest)  # of channels; rows may not be there
        groups = split(input)[0].shape[axis] // inputs

        def shared(x: Tensor, column: Tensor) -> Tensor:
            found = product(x, column.expand(groups, *column.shape))
            return found if groups == 1 else found.repeat_interleave(outputs // groups, axis)

        if isinstance(weight, RankOneWeight) and not transposed and current().noise is None:
            return weight.product(input, product, shared, bias)
        if isinstance(weight, FactoredWeight) and groups == 1 and not transposed:
            found = weight.product(
                input,
                product,
                lambda x, right: product(x, right.mT.reshape(-1, inputs, *rest)),
                lambda z, left: convolve(z, left.reshape(*left.shape, *[1] * len(rest))),
            )
            return found if bias is None else add(found, channels(bias, len(rest)))
        if isinstance(bias, MeanVar) and isinstance(input, Tensor) and isinstance(weight, Tensor):
            return add(product(input, weight), channels(bias, len(rest)))
        return bilinear(product, input, weight, bias)

    return apply


def channels(leaf: Value, axes: int) -> Value:
    """[C] as it broadcasts with [rows, C, ...] of so many axes after C."""
    mean, var = split(leaf)
    shape = (-1, *[1] * axes)
    return join(mean.reshape(shape), None if var is None else var.reshape(shape))
