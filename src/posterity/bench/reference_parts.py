"""What the reference posteriors are written with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from posterity.bench.transforms import Transform
from posterity.tree import Tree

__all__ = ["Data", "Model", "cauchy", "cholesky", "normal", "tensor"]

Data: TypeAlias = Mapping[str, Any]  # lists of numbers and numbers, as data.json has them


class Model(NamedTuple):
    """One posterior.

    Args:
        layout: the parameters in order, each with its constraint.
        log_prob: parameters -> [...] log density on the constrained scale.
        columns: parameters -> [..., columns] what the reference draws hold; None: the parameters themselves.
        parameters: the inverse of `columns`.
    """

    layout: Mapping[str, Transform]
    log_prob: Callable[[Tree], Tensor]
    columns: Callable[[Tree], Tensor] | None = None
    parameters: Callable[[Tensor], Tree] | None = None


def tensor(values: Any) -> Tensor:
    """Data as float64: the posteriors are too stiff for less."""
    return torch.tensor(values, dtype=torch.float64)


def normal(x: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """The sum over the last axis of log N(x; mean, std), without terms in a std that is a constant."""
    squares = -0.5 * ((x - mean) / std).square()
    return (squares - std.log() if isinstance(std, Tensor) else squares).sum(-1)


def cauchy(x: Tensor, scale: float) -> Tensor:
    """The sum over the last axis of log Cauchy(x; 0, scale), without constants."""
    return -(x / scale).square().log1p().sum(-1)


def cholesky(matrix: Tensor) -> Tensor:
    """[..., n, n] the lower factor; NaN where a matrix is not positive definite to rounding, which a method may try."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return factor.where((failed == 0)[..., None, None], torch.nan)
