"""A tensor that is known by its mean and its variance, element by element; one that is known exactly stays a tensor."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["Later", "MeanVar", "Value", "dense", "each", "held", "join", "mean_of", "split", "spread", "total"]

held: ContextVar[bool] = ContextVar("held", default=False)  # variances are constants to autograd: slopes are of means


class Later:
    """A variance that is worked out when someone asks for it: many of queries and keys are not."""

    __slots__ = ("_found", "_make")

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self._make: Callable[[], Tensor] | None = make
        self._found: Tensor | None = None

    def __call__(self) -> Tensor:
        if self._make is not None:
            self._found, self._make = self._make(), None
        assert self._found is not None
        return self._found


class MeanVar:
    """Elements with these means and variances, independent of each other.

    Args:
        mean: of any shape.
        var: >= 0, of the same shape; or what gives it.
        second: E x^2, where it is known.

    Attributes:
        about: what a rule remembers of how the value was made, for the rule that reads it.
    """

    __slots__ = ("_second", "_var", "about", "mean")

    def __init__(self, mean: Tensor, var: Tensor | Later, second: Tensor | None = None) -> None:
        self.mean, self.var, self._second = mean, var, second
        self.about: object = None

    @property
    def var(self) -> Tensor:
        if not isinstance(self._var, Later):
            return self._var
        return self._var().detach() if held.get() else self._var()

    @var.setter
    def var(self, var: Tensor | Later) -> None:
        self._var = var.detach() if isinstance(var, Tensor) and held.get() else var

    @property
    def later(self) -> Later:
        """The variance, not yet worked out if it is not; it stays that of now if this value is written to."""
        found = self._var
        return found if isinstance(found, Later) else Later(lambda: found)

    @property
    def second(self) -> Tensor:
        """E x^2; kept, since a weight is asked for it in every pass."""
        if self._second is None:
            self._second = self.mean.square() + self.var
        return self._second

    @property
    def second_later(self) -> Later:
        """As `later`, of E x^2."""
        if not isinstance(self._var, Later):
            found = self.second
            return Later(lambda: found)
        mean, var = self.mean, self._var
        return Later(lambda: mean.square() + var())

    def times(self, scale: Tensor | float) -> MeanVar:
        """With so many times the variance."""
        return MeanVar(self.mean, self.var * scale)

    def write(self, value: MeanVar) -> None:
        """Become another value, as an in-place operation's target does."""
        self.mean, self.var, self._second, self.about = value.mean, value.var, None, value.about

    def rows(self, parts: int, i: int) -> MeanVar:
        """Part i of so many equal ones along the first axis; its squares are part of these."""
        return MeanVar(*(leaf.chunk(parts)[i] for leaf in (self.mean, self.var, self.second)))

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


def mean_of(x: Value) -> Tensor:
    """The mean, without working out a variance."""
    return x.mean if isinstance(x, MeanVar) else x


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


def each(x: Value, function: Callable[[Tensor], Tensor]) -> Value:
    """The same done to mean and variance; to the variance when it is asked for."""
    if not isinstance(x, MeanVar):
        return function(x)
    var = x.later
    return MeanVar(function(x.mean), Later(lambda: function(var())))
