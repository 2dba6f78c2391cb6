"""Normalisations by the expected square (`normalised.py`), then scaled and shifted.

A batch normalisation in evaluation mode is affine, and exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.prediction.propagation.rules.arithmetic import add, mul
from posterity.prediction.propagation.rules.linear import channels
from posterity.prediction.propagation.rules.normalised import normalised
from posterity.prediction.propagation.table import RULES, rule
from posterity.prediction.propagation.value import Value, join, split


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
    return _affine(normalised(input, dims, eps), weight, bias)


@rule("rms_norm")
def rms_norm(
    input: Value, normalized_shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Value:
    dims = tuple(range(-len(tuple(normalized_shape)), 0))
    eps = torch.finfo(split(input)[0].dtype).eps if eps is None else eps
    return _affine(normalised(input, dims, eps, centred=False), weight, None)


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
    mean, var = split(normalised(grouped, (-1,), eps))
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
    found = normalised(input, tuple(range(2, ndim)), eps)
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
