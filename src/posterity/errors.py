"""The named errors. Each message says what is wrong, where, and the way out."""

from __future__ import annotations

__all__ = [
    "CompatibilityError",
    "DataError",
    "NonFiniteError",
    "PosterityError",
    "PosterityWarning",
    "PriorError",
    "ShapeError",
    "StorageError",
]


class PosterityError(Exception):
    """Base of every error that this library raises on purpose."""


class DataError(PosterityError, ValueError):
    """The data cannot be used as given: empty, not finite, one class, no length."""


class ShapeError(DataError):
    """Two shapes do not fit; both are named. Nothing is broadcast in silence."""


class NonFiniteError(PosterityError, ArithmeticError):
    """The loss or its gradient stopped being finite, several steps in a row."""


class PriorError(PosterityError, ValueError):
    """The algorithm cannot use this prior."""


class CompatibilityError(PosterityError, ValueError):
    """A network, likelihood, algorithm or option does not go with another."""


class StorageError(PosterityError, OSError):
    """A run folder is truncated, corrupt, foreign, or newer than this library."""


class PosterityWarning(UserWarning):
    """Something was decided for you that you would want to know."""
