"""Attention: weights A = softmax(L), outputs o = A v, var o = A^2 v_v.

"mean"        the weights of the mean logits
"expected"    A (1 + w / 2), normalised: E softmax to second order, w the noise that the keys do not share (`logits.py`)
"logits"      and var o += A^2 w (v - o)^2, the delta rule of independent logits
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from posterity.prediction.propagation.rules.logits import Logits
from posterity.prediction.propagation.run import current
from posterity.prediction.propagation.table import rule
from posterity.prediction.propagation.value import Later, MeanVar, Value, each, join, mean_of, split, total

__all__ = ["Attention", "each", "mixed"]


class Attention(MeanVar):
    """Weights that sum to 1, and the variance of their logits; as plain values they have that of the delta rule."""

    __slots__ = ("logit_var",)

    def __init__(self, mean: Tensor, logit_var: Later, dim: int = -1) -> None:
        self.logit_var = logit_var
        super().__init__(mean, Later(lambda: _of_weights(mean, logit_var(), dim)))


def _of_weights(mean: Tensor, logit_var: Tensor, dim: int) -> Tensor:
    shared = (mean.square() * logit_var).sum(dim, keepdim=True)
    return mean.square() * ((1 - 2 * mean) * logit_var + shared)


@rule("softmax", "_softmax")
def softmax(input: MeanVar, dim: int = -1, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Value:
    dtype = next((one for one in args if isinstance(one, torch.dtype)), dtype)
    if isinstance(input.about, Logits) and dim in (-1, input.mean.ndim - 1):
        mean, apart = expected(input.mean, input.about, dtype)
        if apart is not None:
            return Attention(mean, Later(lambda: apart))
    mean, var = torch.softmax(input.mean, dim, dtype=dtype), input.later
    return Attention(mean, Later(lambda: var().to(mean.dtype)), dim)


def expected(
    mean: Tensor, logits: Logits, dtype: torch.dtype | None = None, seen: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Attention weights of logits of this mean, and w where the rules take it in.

    Args:
        seen: which keys a query may attend to; one without any attends to nothing.
    """

    def weights_of(one: Tensor) -> Tensor:
        weights = torch.softmax(one, -1, dtype=dtype)
        return weights if seen is None else weights.masked_fill(~seen.any(-1, keepdim=True), 0.0)

    weights = weights_of(mean)
    apart = None if current().rules.attention == "mean" else logits.apart(weights)
    return (weights, None) if apart is None else (weights_of(mean + torch.log1p(apart / 2)), apart)


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
    return _outputs(weights.mean, weights.logit_var, values)


def _outputs(weights: Tensor, logit_var: Later, values: Value) -> Value:
    v, var = split(values)
    out = weights @ v
    squares = weights.square()
    own = None if var is None else squares @ var
    if current().rules.attention != "logits":
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
    mask = None if attn_mask is None else mean_of(attn_mask)
    if enable_gqa:
        groups = mean_of(query).shape[-3] // mean_of(key).shape[-3]
        key, value = (each(one, lambda leaf: leaf.repeat_interleave(groups, -3)) for one in (key, value))
    q, k = mean_of(query), mean_of(key)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    mean = q @ k.mT * scale
    if is_causal:
        mask = torch.ones(mean.shape[-2:], dtype=torch.bool, device=mean.device).tril()
    seen = mask if mask is not None and mask.dtype == torch.bool else None
    if seen is not None:
        mean = mean.masked_fill(~seen, -math.inf)
    elif mask is not None:
        mean = mean + mask
    weights, apart = expected(mean, Logits(query, key, scale), seen=seen)
    return _outputs(weights, Later(lambda: torch.zeros_like(weights) if apart is None else apart), value)
