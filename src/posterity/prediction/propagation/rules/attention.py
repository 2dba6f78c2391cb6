"""Attention: weights A = softmax(L), outputs o = A v.

weights at their mean     var o = A^2 v_v
variance of the logits    vL = scale^2 (q^2 v_k + v_q (k^2 + v_k)),  B = A^2 vL,
                          var o += B v^2 - 2 o (B v) + o^2 sum B          the delta rule of independent logits, centred by o
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from posterity.prediction.propagation.run import current
from posterity.prediction.propagation.table import rule
from posterity.prediction.propagation.value import Later, MeanVar, Value, each, join, mean_of, split, total

__all__ = ["Attention", "each", "mixed"]


class Attention(MeanVar):
    """Weights that sum to 1, and the variance of their logits; as plain values they have that of the delta rule."""

    __slots__ = ("logit_later",)

    def __init__(self, mean: Tensor, logit_var: Tensor | Later, dim: int = -1) -> None:
        self.logit_later = logit_var if isinstance(logit_var, Later) else Later(lambda: logit_var)
        super().__init__(mean, Later(lambda: _of_weights(mean, self.logit_later(), dim)))

    @property
    def logit_var(self) -> Tensor:
        return self.logit_later()


def _of_weights(mean: Tensor, logit_var: Tensor, dim: int) -> Tensor:
    shared = (mean.square() * logit_var).sum(dim, keepdim=True)
    return mean.square() * ((1 - 2 * mean) * logit_var + shared)


@rule("softmax", "_softmax")
def softmax(input: MeanVar, dim: int = -1, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Value:
    dtype = next((one for one in args if isinstance(one, torch.dtype)), dtype)
    mean, var = torch.softmax(input.mean, dim, dtype=dtype), input.later
    return Attention(mean, Later(lambda: var().to(mean.dtype)), dim)


@rule("log_softmax", "_log_softmax")
def log_softmax(input: MeanVar, dim: int = -1, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Value:
    """var = v_i + sum_j p_j^2 v_j - 2 p_i v_i"""
    dtype = next((one for one in args if isinstance(one, torch.dtype)), dtype)
    mean = torch.log_softmax(input.mean, dim, dtype=dtype)
    p, var = mean.exp(), input.var.to(mean.dtype)
    return MeanVar(mean, var * (1 - 2 * p) + (p.square() * var).sum(dim, keepdim=True))


def mixed(weights: Value, values: Value) -> Value | None:
    """A v of attention weights; nothing for other products."""
    if not isinstance(weights, Attention):
        return None
    return _outputs(weights.mean, weights.logit_later, values)


def _outputs(weights: Tensor, logit_var: Later | None, values: Value) -> Value:
    v, var = split(values)
    out = weights @ v
    squares = weights.square()
    own = None if var is None else squares @ var
    if logit_var is None or current().rules.attention == "mean":
        return join(out, own)
    b = squares * logit_var()
    shared = b @ v.square() - 2 * out * (b @ v) + out.square() * b.sum(-1, keepdim=True)
    return join(out, total(own, shared.clamp_min(0.0)))


@rule("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout_p:
        return NotImplemented
    mask, mask_var = (None, None) if attn_mask is None else split(attn_mask)
    if enable_gqa:
        groups = mean_of(query).shape[-3] // mean_of(key).shape[-3]
        key, value = (each(one, lambda leaf: leaf.repeat_interleave(groups, -3)) for one in (key, value))
    q, k = mean_of(query), mean_of(key)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    logits = q @ k.mT * scale
    if is_causal:
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask, -math.inf)
    elif mask is not None:
        logits = logits + mask
    weights = torch.softmax(logits, -1)
    if mask is not None and mask.dtype == torch.bool:  # a query without any key attends to nothing
        weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    logit_var = None
    if current().rules.attention == "logits":
        q_var, k_var = split(query)[1], split(key)[1]
        second = k.square() if k_var is None else k.square() + k_var
        parts = total(None if q_var is None else q_var @ second.mT, None if k_var is None else q.square() @ k_var.mT)
        logit_var = total(None if parts is None else scale**2 * parts, mask_var)
    return _outputs(weights, None if logit_var is None else Later(lambda: logit_var), value)
