"""Logits of attention, L = scale q k^T, which remember their queries and keys: softmax asks what noise its weights see.

Noise that all keys of a query share moves no weight. With k_A = A k the mean key under weights A, a query's noise leaves

    w_j = scale^2 v_q (k_j - k_A)^2     of key j,

and that of keys that have noise, of which most is shared and the rest is not known, is taken to leave as much again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from posterity.prediction.propagation.value import MeanVar, Value, each, mean_of, spread

__all__ = ["Logits", "carried", "logits_of"]


class Logits(NamedTuple):
    """What a value that is `factor` times queries by keys, plus whatever, remembers.

    Args:
        query, key: [..., queries, features], [..., keys, features].
    """

    query: Value
    key: Value
    factor: Any = 1.0

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
    if isinstance(product, MeanVar) and mean_of(query).ndim > 2 and mean_of(key).ndim > 2:
        product.about = Logits(query, each(key, lambda leaf: leaf.mT))
    return product


def carried(found: Value, x: Any, factor: Any = 1.0) -> Value:
    """`found` as logits where x is, being x times a factor plus something."""
    about = x.about if isinstance(x, MeanVar) else None
    if isinstance(about, Logits) and isinstance(found, MeanVar) and not isinstance(factor, MeanVar):
        found.about = about._replace(factor=about.factor * factor)
    return found
