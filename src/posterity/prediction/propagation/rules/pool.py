"""Sums and means over positions or features, and what a pooling chooses.

    mean of n    var = (1 - r) sum v / n^2 + r (sum sqrt v / n)^2      r: the correlation of the positions (`Rules.pooling`)
    maximum      the variance of the one with the largest mean

A mean over the last axis alone is one over features, which count as independent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.prediction.propagation.rules.normalised import Step, step_on
from posterity.prediction.propagation.run import at_site, current
from posterity.prediction.propagation.table import rule
from posterity.prediction.propagation.value import MeanVar, Value, join

_TINY = 1e-30  # keeps the root's gradient finite at zero variance


@rule("sum")
def summed(input: MeanVar, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    if isinstance(dim, torch.dtype):
        return NotImplemented
    return join(*(leaf.sum(dim, keepdim=keepdim, dtype=dtype) for leaf in (input.mean, input.var)))


@rule("cumsum")
def cumulated(input: MeanVar, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    return join(input.mean.cumsum(dim, dtype=dtype), input.var.cumsum(dim, dtype=dtype))


@rule("mean")
def averaged(input: MeanVar, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    ndim = input.mean.ndim
    dims = list(range(ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    mean, var = (leaf.mean(dims, keepdim=keepdim, dtype=dtype) for leaf in (input.mean, input.var))
    if keepdim and isinstance(input.about, Step):
        count = input.mean.numel() // max(1, mean.numel())
        return step_on(input, "mean square", join(mean, var / count), tuple(dims))
    if [d % ndim for d in dims] == [ndim - 1]:
        return join(mean, var / input.mean.shape[-1])
    count = input.mean.numel() // max(1, mean.numel())
    return _pooled(mean, var / count, lambda std: std.mean(dims, keepdim=keepdim, dtype=dtype), input.var)


def _pooled(mean: Tensor, apart: Tensor, average: Callable[[Tensor], Tensor], var: Tensor) -> Value:
    """Of a mean, whose variance is `apart` if its positions are independent."""
    r = current().rules.pooling
    if r > 0.0:
        apart = (1 - r) * apart + r * average((var + _TINY).sqrt()).square()
    return at_site(join(mean, apart))


def _average_pool(
    pool: Callable[..., Tensor], input: MeanVar, kernel_size: Any, stride: Any, padding: Any, *options: Any
) -> Value:
    stride = kernel_size if stride is None or stride == [] else stride

    def average(leaf: Tensor) -> Tensor:
        return pool(leaf, kernel_size, stride, padding, *options)

    ones = torch.ones_like(input.mean[:1, :1])
    among = pool(ones, kernel_size, stride, padding, *options[:2], 1) / average(ones)  # what each window divides by
    return _pooled(average(input.mean), average(input.var) / among, average, input.var)


@rule("avg_pool2d")
def average_pool_2d(
    input: MeanVar, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Value:  # fmt: skip
    options = ceil_mode, count_include_pad, divisor_override
    return _average_pool(F.avg_pool2d, input, kernel_size, stride, padding, *options)


@rule("avg_pool3d")
def average_pool_3d(
    input: MeanVar, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Value:  # fmt: skip
    options = ceil_mode, count_include_pad, divisor_override
    return _average_pool(F.avg_pool3d, input, kernel_size, stride, padding, *options)


@rule("avg_pool1d")
def average_pool_1d(
    input: MeanVar, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:  # fmt: skip
    (size,), (pad,) = _one(kernel_size), _one(padding)
    (step,) = _one(stride) if stride not in (None, []) else (size,)
    wide = MeanVar(input.mean.unsqueeze(-2), input.var.unsqueeze(-2))
    found = average_pool_2d(wide, (1, size), (1, step), (0, pad), ceil_mode, count_include_pad)
    return MeanVar(found.mean.squeeze(-2), found.var.squeeze(-2))


def _one(size: Any) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(size)


def _adaptive_average_pool(pool: Callable[..., Tensor], axes: int) -> Callable[..., Value]:
    def apply(input: MeanVar, output_size: Any) -> Value:
        def average(leaf: Tensor) -> Tensor:
            return pool(leaf, output_size)

        mean = average(input.mean)
        among = mean.new_ones(())
        for axis in range(-axes, 0):
            counts = _bins(input.mean.shape[axis], mean.shape[axis])
            among = among * mean.new_tensor(counts).reshape(-1, *[1] * (-axis - 1))
        return _pooled(mean, average(input.var) / among, average, input.var)

    return apply


def _bins(size: int, bins: int) -> list[int]:
    """How many of `size` positions each bin averages."""
    return [-(-(i + 1) * size // bins) - i * size // bins for i in range(bins)]


def _maximum_pool(with_indices: Callable[..., tuple[Tensor, Tensor]], axes: int) -> Callable[..., Any]:
    def apply(input: MeanVar, *args: Any, return_indices: bool = False, **options: Any) -> Any:
        mean, index = with_indices(input.mean, *args, **options)
        places = index.flatten(index.ndim - axes)
        var = input.var.flatten(index.ndim - axes).gather(-1, places).reshape(index.shape)
        return (join(mean, var), index) if return_indices else join(mean, var)

    return apply


for _n in (1, 2, 3):
    rule(f"adaptive_avg_pool{_n}d")(_adaptive_average_pool(getattr(F, f"adaptive_avg_pool{_n}d"), _n))
    for _name in (f"max_pool{_n}d", f"adaptive_max_pool{_n}d"):
        rule(_name)(_maximum_pool(getattr(F, f"{_name}_with_indices"), _n))


@rule("amax")
def largest(input: MeanVar, dim: Any, keepdim: bool = False) -> Value:
    if not isinstance(dim, int):
        return NotImplemented
    return _largest(input, dim, keepdim)[0]


@rule("max")
def maximum(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _largest(input, dim, keepdim) if isinstance(dim, int) and isinstance(input, MeanVar) else NotImplemented


def _largest(input: MeanVar, dim: int, keepdim: bool) -> tuple[Value, Tensor]:
    mean, index = input.mean.max(dim, keepdim=True)
    var = input.var.gather(dim, index)
    parts = (mean, var, index) if keepdim else tuple(leaf.squeeze(dim) for leaf in (mean, var, index))
    return join(parts[0], parts[1]), parts[2]


@rule("argmax", "argmin")
def place(input: MeanVar, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return NotImplemented
