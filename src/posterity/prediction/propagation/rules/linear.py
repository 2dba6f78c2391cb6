"""Operations that are linear in each argument, and of independent arguments: x ~ (m, v), W ~ (M, S).

mean  f(m, M)           var  f(v, M^2 + S) + f(m^2, S)           f: a product of matrices, a convolution, an einsum
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.prediction.propagation.factored import FactoredWeight
from posterity.prediction.propagation.rules.arithmetic import add
from posterity.prediction.propagation.rules.attention import mixed
from posterity.prediction.propagation.run import current
from posterity.prediction.propagation.table import RULES, mirrored, rule
from posterity.prediction.propagation.value import MeanVar, Value, join, split, total


def bilinear(product: Callable[[Tensor, Tensor], Tensor], x: Value, weight: Value) -> Value:
    """Of a product that is linear in both."""
    (mean, var), (matrix, matrix_var) = split(x), split(weight)
    second = weight.second if isinstance(weight, MeanVar) else matrix.square()
    found, noise = product(mean, matrix), current().noise
    if noise is not None and matrix_var is not None:
        if id(weight) in noise.alone:
            squares = mean.square() if var is None else mean.square() + var
            found = noise.added(found, product(squares, matrix_var))
        elif var is not None:
            found = noise.added(found, product(var, matrix_var))
    return join(
        found,
        total(
            None if var is None else product(var, second),
            None if matrix_var is None else product(mean.square(), matrix_var),
        ),
    )


def _linear(input: Value, weight: Value) -> Value:
    noise = current().noise
    if noise is not None:
        noise.positions[id(weight)] += split(input)[0].shape[:-1].numel()
    if isinstance(weight, FactoredWeight):
        return weight.product(input, F.linear, torch.matmul, F.linear)
    return bilinear(F.linear, input, weight)


def _biased(found: Value, bias: Value | None) -> Value:
    return found if bias is None else add(found, bias)


@rule("linear")
def linear(input: Value, weight: Value, bias: Value | None = None) -> Value:
    if isinstance(weight, MeanVar) or isinstance(bias, MeanVar) or not isinstance(input, MeanVar):
        return _biased(_linear(input, weight), bias)
    return MeanVar(F.linear(input.mean, weight, bias), F.linear(input.var, weight.square()))  # fused with the bias


@rule("matmul", "__matmul__", "mm", "bmm", "mv", "dot")
def matmul(input: Value, other: Value) -> Value:
    found = mixed(input, other)
    return bilinear(torch.matmul, input, other) if found is None else found


RULES[Tensor.__rmatmul__] = lambda input, other: matmul(other, input)


@rule("addmm", "addbmm", "baddbmm", "addmv")
def addmm(input: Value, first: Value, second: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    found = matmul(first, second)
    return add(times(found, alpha), times(input, beta))


def times(x: Value, factor: float) -> Value:
    """x times a number."""
    mean, var = split(x)
    return x if factor == 1 else join(factor * mean, None if var is None else factor**2 * var)


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
    return join(F.embedding(input, weight.mean), F.embedding(input, weight.var))


RULES[torch.ops.aten.embedding.default] = lambda weight, indices, *args: embedding(indices, weight)


@mirrored("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(convolve: Callable[..., Tensor]) -> Callable[..., Value]:
    def apply(input: Value, weight: Value, bias: Value | None = None, *args: Any, **options: Any) -> Value:
        def product(a: Tensor, b: Tensor) -> Tensor:
            return convolve(a, b, None, *args, **options)

        axes = split(weight)[0].ndim - 2
        whole = split(input)[0].shape[1] == split(weight)[0].shape[1]
        if isinstance(weight, FactoredWeight) and whole and "transpose" not in str(convolve):
            rest = weight.mean.shape[1:]
            found = weight.product(
                input,
                product,
                lambda x, right: product(x, right.mT.reshape(-1, *rest)),
                lambda z, left: convolve(z, left.reshape(*left.shape, *[1] * axes)),
            )
        else:
            found = bilinear(product, input, weight)
        return found if bias is None else add(found, channels(bias, axes))

    return apply


def channels(leaf: Value, axes: int) -> Value:
    """[C] as it broadcasts with [rows, C, ...] of so many axes after C."""
    mean, var = split(leaf)
    shape = (-1, *[1] * axes)
    return join(mean.reshape(shape), None if var is None else var.reshape(shape))
