"""Normalisations by the expected square, over a group of D features with x ~ (m, v):

    c = m - mean(m),   E s^2 = mean(c^2) + (1 - 1/D) mean(v)            mean(v) throughout for RMSNorm, which has no centre
    mean  c / sqrt(E s^2 + eps)
    var   ((1 - 2/D) v + mean(v) / D) / (E s^2 + eps)

then scale and shift. To second order, which rows that one feature dominates need, S = E s^2 + eps varies with the features:

    P = (4 mean(c^2 v) + 2 mean(v^2)) / D   Var s^2,           q = 2 (c v - mean(c v)) / D     Cov(x, s^2)
    mean  (c (1 + 3 P / 8 S^2) - q / 2 S) / sqrt(S)
    var   ((1 - 2/D) v + mean(v) / D - c q / S + c^2 P / 4 S^2) / S

A batch normalisation in evaluation mode is affine, and exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.prediction.propagation.rules.arithmetic import add, mul
from posterity.prediction.propagation.rules.linear import channels
from posterity.prediction.propagation.run import at_site, current
from posterity.prediction.propagation.table import RULES, rule
from posterity.prediction.propagation.value import Value, join, split


def _normalised(x: Value, dims: tuple[int, ...], eps: float, centred: bool = True) -> Value:
    x = at_site(x)
    mean, var = split(x)
    size = 1
    for dim in dims:
        size *= mean.shape[dim]
    c = mean - mean.mean(dims, keepdim=True) if centred else mean
    power = c.square().mean(dims, keepdim=True)
    if var is None:
        return c * torch.rsqrt(power + eps)
    average = var.mean(dims, keepdim=True)
    lost = 1 / size if centred else 0.0
    rule = current().rules.norms
    if rule != "mean":
        power = power + (1 - lost) * average
    power = power + eps
    own = (1 - 2 * lost) * var + lost * average
    if rule == "second-order":
        c, own = _second_order(c, own, var, power, dims, size, centred)
    return join(c * torch.rsqrt(power), own / power)


def _second_order(
    c: Tensor, own: Tensor, var: Tensor, power: Tensor, dims: tuple[int, ...], size: int, centred: bool
) -> tuple[Tensor, Tensor]:
    """The numerators of mean and variance."""
    of_power = (4 * (c.square() * var).mean(dims, keepdim=True) + 2 * var.square().mean(dims, keepdim=True)) / size
    shared = c * var - (c * var).mean(dims, keepdim=True) if centred else c * var
    ratio, pull = of_power / power.square(), 2 * shared / (size * power)
    return c * (1 + 3 * ratio / 8) - pull / 2, (own - c * pull + c.square() * ratio / 4).clamp_min(0.0)


def _affine(x: Value, weight: Value | None, bias: Value | None) -> Value:
    x = x if weight is None else mul(x, weight)
    return x if bias is None else add(x, bias)


def _per_channel(leaf: Value | None, ndim: int) -> Value | None:
    return None if leaf is None else channels(leaf, ndim - 2)


@rule("layer_norm")
def layer_norm(
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:
    dims = tuple(range(-len(tuple(normalized_shape)), 0))
    return _affine(_normalised(input, dims, eps), weight, bias)


@rule("rms_norm")
def rms_norm(
    input: Value, normalized_shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Value:
    dims = tuple(range(-len(tuple(normalized_shape)), 0))
    eps = torch.finfo(split(input)[0].dtype).eps if eps is None else eps
    return _affine(_normalised(input, dims, eps, centred=False), weight, None)


@rule("group_norm")
def group_norm(
    input: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:
    mean, var = split(input)
    shape = mean.shape
    grouped = join(*(None if p is None else p.reshape(shape[0], num_groups, -1) for p in (mean, var)))  # type: ignore[arg-type]
    mean, var = split(_normalised(grouped, (-1,), eps))
    found = join(mean.reshape(shape), None if var is None else var.reshape(shape))
    return _affine(found, _per_channel(weight, len(shape)), _per_channel(bias, len(shape)))


@rule("instance_norm")
def instance_norm(
    input: Value,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Value | None = None,
    bias: Value | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Value:
    ndim = split(input)[0].ndim
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    found = _normalised(input, tuple(range(2, ndim)), eps)
    return _affine(found, _per_channel(weight, ndim), _per_channel(bias, ndim))


RULES[torch.ops.aten.instance_norm.default] = lambda x, w, b, m, v, use, momentum, eps, cudnn: instance_norm(
    x, m, v, w, b, use, momentum, eps
)


@rule("batch_norm")
def batch_norm(
    input: Value,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Value | None = None,
    bias: Value | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Value:
    if training or running_mean is None or running_var is None:
        return NotImplemented
    ndim = split(input)[0].ndim
    inverse = torch.rsqrt(running_var + eps)
    centred = add(input, _per_channel(-running_mean, ndim))
    return _affine(mul(centred, _per_channel(inverse, ndim)), _per_channel(weight, ndim), _per_channel(bias, ndim))


def _aten_batch_norm(
    x: Value, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float, *_: Any
) -> Value:
    return batch_norm(x, mean, var, weight, bias, training, momentum, eps)


for _overload in (torch.ops.aten.batch_norm.default, torch.ops.aten._native_batch_norm_legit_no_training.default):
    RULES[_overload] = _aten_batch_norm
