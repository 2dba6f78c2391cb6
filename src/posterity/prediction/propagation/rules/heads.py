"""`F.multi_head_attention_forward`, which torch's attention and transformer layers call: projections, heads, attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.prediction.propagation.rules.arithmetic import add
from posterity.prediction.propagation.rules.attention import each, scaled_dot_product_attention, softmax
from posterity.prediction.propagation.rules.linear import linear, matmul, times
from posterity.prediction.propagation.rules.shape import joined
from posterity.prediction.propagation.table import rule
from posterity.prediction.propagation.value import MeanVar, Value, split

_cat = joined(torch.cat)


@rule("multi_head_attention_forward")
def multi_head_attention_forward(
    query: Value,
    key: Value,
    value: Value,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Value | None,
    in_proj_bias: Value | None,
    bias_k: Value | None,
    bias_v: Value | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Value,
    out_proj_bias: Value | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Value | None = None,
    k_proj_weight: Value | None = None,
    v_proj_weight: Value | None = None,
    static_k: Value | None = None,
    static_v: Value | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    if (training and dropout_p) or static_k is not None or static_v is not None or add_zero_attn:
        return NotImplemented
    batched = split(query)[0].ndim == 3  # [tokens, rows, features]
    inputs = [one if batched else each(one, lambda leaf: leaf.unsqueeze(1)) for one in (query, key, value)]
    if use_separate_proj_weight:
        weights = [q_proj_weight, k_proj_weight, v_proj_weight]
    else:
        assert in_proj_weight is not None
        weights = [_third(in_proj_weight, i) for i in range(3)]
    biases = [None if in_proj_bias is None else _third(in_proj_bias, i) for i in range(3)]
    q, k, v = (linear(x, w, b) for x, w, b in zip(inputs, weights, biases))
    rows = split(q)[0].shape[1]
    if bias_k is not None and bias_v is not None:
        k, v = (_cat([x, each(b, lambda leaf: leaf.repeat(1, rows, 1))]) for x, b in ((k, bias_k), (v, bias_v)))
    q, k, v = (each(x, lambda leaf: _heads(leaf, num_heads)) for x in (q, k, v))
    mask = _mask(attn_mask, key_padding_mask, split(q)[0], split(k)[0])
    if need_weights:
        logits = matmul(times(q, 1 / math.sqrt(split(q)[0].shape[-1])), each(k, lambda leaf: leaf.mT))
        logits = logits if mask is None else add(logits, mask)
        attention = softmax(logits) if isinstance(logits, MeanVar) else torch.softmax(logits, -1)
        out = matmul(attention, v)
        said = split(attention)[0]
        said = said.mean(1) if average_attn_weights else said
        said = said if batched else said.squeeze(0)
    else:
        out, said = scaled_dot_product_attention(q, k, v, mask), None
    out = each(out, lambda leaf: leaf.permute(2, 0, 1, 3).flatten(2))
    out = linear(out, out_proj_weight, out_proj_bias)
    return (out if batched else each(out, lambda leaf: leaf.squeeze(1))), said


def _third(leaf: Value, i: int) -> Value:
    """Rows of the query, the key or the value of a projection of all three."""
    if isinstance(leaf, MeanVar):
        return leaf.rows(3, i)
    return leaf.chunk(3)[i]


def _heads(leaf: Tensor, heads: int) -> Tensor:
    """[tokens, rows, features] to [rows, heads, tokens, features / heads]."""
    return leaf.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


def _mask(attention: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """What is added to the logits, [rows or 1, heads or 1, queries, keys]."""
    found = None
    if attention is not None:
        found = _added(attention, q)
        found = found.reshape(-1, q.shape[1], *found.shape[-2:]) if found.ndim == 3 else found
        found = F.pad(found, (0, k.shape[2] - found.shape[-1]))
    if padding is not None:
        own = _added(padding if padding.ndim == 2 else padding.unsqueeze(0), q)[:, None, None]
        own = F.pad(own, (0, k.shape[2] - own.shape[-1]))
        found = own if found is None else found + own
    return found


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)
    return mask.to(like.dtype)
