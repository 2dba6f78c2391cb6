"""Logits of attention, L = scale q k^T, which remember their queries and keys: softmax asks what noise its weights see.

Noise that all keys of a query share moves no weight. With k_A = A k the mean key under weights A, a query's noise leaves

    w_j = scale^2 v_q (k_j - k_A)^2     of key j,

and that of keys that have noise, of which most is shared and the rest is not known, is taken to leave as much again.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from posterity.prediction.propagation.value import Later, MeanVar, Value, each, mean_of, spread

__all__ = ["Logits", "carried", "logits_of"]


class Logits(MeanVar):
    """A value that is `factor` times queries by keys, plus whatever.

    Args:
        query, key: [..., queries, features], [..., keys, features].
    """

    __slots__ = ("factor", "key", "query")

    def __init__(self, mean: Tensor, var: Tensor | Later, query: Value, key: Value, factor: Any = 1.0) -> None:
        super().__init__(mean, var)
        self.query, self.key, self.factor = query, key, factor

    def apart(self, weights: Tensor) -> Tensor | None:
        """w, [..., queries, keys], under such attention weights; None where queries are known exactly."""
        if not isinstance(self.query, MeanVar):
            return None
        key, var = mean_of(self.key), self.query.var
        key = key - key.mean(-2, keepdim=True)
        centre = weights @ key
        squares = var @ key.square().mT - 2 * (var * centre) @ key.mT + (var * centre.square()).sum(-1, keepdim=True)
        return (2 if spread(self.key) else 1) * self.factor * self.factor * squares.clamp_min(0.0)


def logits_of(query: Value, key: Value, product: Value) -> Value:
    """The product of queries and keys^T, [..., queries, features] and [..., features, keys], as logits."""
    if not isinstance(product, MeanVar) or mean_of(query).ndim < 3 or mean_of(key).ndim < 3:
        return product
    return Logits(product.mean, product.later, query, each(key, lambda leaf: leaf.mT))


def carried(found: Value, x: Any, factor: Any = 1.0) -> Value:
    """`found` as logits where x is, being x times a factor plus something."""
    if not isinstance(x, Logits) or not isinstance(found, MeanVar) or isinstance(factor, MeanVar):
        return found
    return Logits(found.mean, found.later, x.query, x.key, x.factor * factor)
