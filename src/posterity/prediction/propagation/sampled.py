"""An operation without a rule, by draws of its inputs: independent normals of their means and variances.

    mean, var  <-  those of f(x_s),   x_s = mean + sqrt(var) z_s,   s = 1 .. 64

The same z in every pass and along the first axis, so that a row does not depend on its batch. What is not a floating-point
tensor (an index, a shape) is that of the means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor

from posterity.prediction.propagation.value import MeanVar
from posterity.problem.formed import replaced
from posterity.random import Random

__all__ = ["DRAWS", "sampled"]

DRAWS = 64


def sampled(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The values of `function`, whose arguments may be values."""

    def at(draw: int | None) -> Any:
        places = count()

        def one(value: MeanVar) -> Tensor:
            if draw is None:
                return value.mean
            shape = value.mean.shape[1:] if value.mean.ndim > 1 else value.mean.shape
            z = Random(0).fold("operation").fold(next(places)).fold(draw).normal(tuple(shape), value.mean)
            return value.mean + z * (value.var + _TINY).sqrt()

        return function(*replaced(args, MeanVar, one), **replaced(dict(kwargs), MeanVar, one))

    plain = at(None)
    return _moments(plain, [at(draw) for draw in range(DRAWS)])


_TINY = 1e-24  # keeps the root's gradient finite


def _moments(plain: Any, drawn: list[Any]) -> Any:
    if isinstance(plain, tuple | list):
        return type(plain)(_moments(part, [one[i] for one in drawn]) for i, part in enumerate(plain))
    if not isinstance(plain, Tensor) or not plain.is_floating_point():
        return plain
    stacked = torch.stack(drawn)
    return MeanVar(stacked.mean(0), stacked.var(0))
