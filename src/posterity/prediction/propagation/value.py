"""A tensor that is known by its mean and its variance, element by element; one that is known exactly stays a tensor."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["MeanVar", "Value", "dense", "held", "join", "split", "spread", "total"]

held: ContextVar[bool] = ContextVar("held", default=False)  # variances are constants to autograd: slopes are of means


class MeanVar:
    """Elements with these means and variances, independent of each other.

    Args:
        mean: of any shape.
        var: >= 0, of the same shape.
    """

    __slots__ = ("_second", "mean", "var")

    def __init__(self, mean: Tensor, var: Tensor) -> None:
        self.mean, self.var = mean, var.detach() if held.get() else var
        self._second: Tensor | None = None

    @property
    def second(self) -> Tensor:
        """E x^2; kept, since a weight is asked for it in every pass."""
        if self._second is None:
            self._second = self.mean.square() + self.var
        return self._second

    def rows(self, parts: int, i: int) -> MeanVar:
        """Part i of so many equal ones along the first axis."""
        return MeanVar(self.mean.chunk(parts)[i], self.var.chunk(parts)[i])

    def __repr__(self) -> str:
        return f"MeanVar({'x'.join(map(str, self.mean.shape))})"


Value: TypeAlias = MeanVar | Tensor


def split(x: Value) -> tuple[Tensor, Tensor | None]:
    """Mean and variance; no variance where x is known exactly."""
    return (x.mean, x.var) if isinstance(x, MeanVar) else (x, None)


def join(mean: Tensor, var: Tensor | None) -> Value:
    """The inverse of `split`; a variance broadcasts to the mean's shape."""
    if var is None:
        return mean
    return MeanVar(mean, var if var.shape == mean.shape else var.expand_as(mean))


def total(*terms: Tensor | None) -> Tensor | None:
    """The sum of the variances that there are."""
    found = [term for term in terms if term is not None]
    return sum(found[1:], found[0]) if found else None


def dense(x: Value) -> tuple[Tensor, Tensor]:
    """Mean and variance, zeros where x is known exactly."""
    mean, var = split(x)
    return mean, torch.zeros_like(mean) if var is None else var


def spread(x: Value) -> bool:
    """Whether x has a variance."""
    return isinstance(x, MeanVar)
