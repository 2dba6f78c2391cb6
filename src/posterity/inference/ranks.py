"""Which matrices are factored, and at which rank.

A rank r pays where its 2 r (m + n) means and stds are no more than the m n numbers of the matrix: r <= m n / (2 (m + n)).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Literal

import torch

from posterity.errors import CompatibilityError, PosterityWarning

__all__ = ["Rank", "Ranks", "largest_paying", "tensor_ranks"]

Rank = int | Literal["normal", "point"]
Ranks = int | Mapping[str, Rank]

_LEAST = 2  # below it a matrix is no richer than an outer product
_PARAMETRISED = "parametrizations."


def largest_paying(shape: Iterable[int]) -> int:
    """floor(m n / (2 (m + n))) of a matrix [m, n] or a kernel [m, *rest].

    >>> largest_paying((128, 128)), largest_paying((10, 64)), largest_paying((8, 3, 3, 3))
    (32, 4, 3)
    """
    m, n = _sides(shape)
    return m * n // (2 * (m + n))


def tensor_ranks(shapes: Mapping[str, tuple[int, ...]], rank: Ranks) -> dict[str, Rank]:
    """Of each tensor with two or more axes its rank, or "normal" (independent entries) or "point".

    A number is capped at what pays, and below 2 the tensor is "normal". What a pattern says is obeyed; a tensor that no
    pattern names is "normal". A tensor under a parametrisation of torch is "normal".

    Raises:
        CompatibilityError: a rank below 1 or above min(m, n), a pattern that matches no such tensor, a parametrised one
            that is to be factored.
    """
    matrices = {name: shape for name, shape in shapes.items() if len(shape) > 1}
    if isinstance(rank, Mapping):
        return _by_pattern(matrices, rank, sorted(shapes.keys() - matrices.keys()))
    found: dict[str, Rank] = {}
    for name, shape in matrices.items():
        r = min(rank, largest_paying(shape))
        found[name] = "normal" if r < min(_LEAST, rank) or _PARAMETRISED in name else r
    if not any(isinstance(r, int) for r in found.values()):
        warnings.warn(
            "no matrix of this network is large enough for a rank of 2 or more to pay: all of them become mean-field "
            "(rank={'<name or pattern>': r} factors one all the same)",
            PosterityWarning,
            stacklevel=3,
        )
    return found


def _by_pattern(
    matrices: Mapping[str, tuple[int, ...]], ranks: Mapping[str, Rank], vectors: list[str]
) -> dict[str, Rank]:
    for pattern in ranks:
        if not any(fnmatchcase(name, pattern) for name in matrices):
            near = [name for name in vectors if fnmatchcase(name, pattern)]
            why = f": {near[0]!r} is a vector" if near else f"; there are {', '.join(matrices) or 'none'}"
            raise CompatibilityError(f"the pattern {pattern!r} of rank= matches no tensor that can be factored{why}")
    found: dict[str, Rank] = {}
    for name, shape in matrices.items():
        r: Rank = next((r for pattern, r in ranks.items() if fnmatchcase(name, pattern)), "normal")
        if isinstance(r, int):
            _check(name, shape, r)
        elif r not in ("normal", "point"):
            raise CompatibilityError(f"rank= says {r!r} of {name!r}; it takes a number, 'normal' or 'point'")
        found[name] = r
    return found


def _check(name: str, shape: tuple[int, ...], r: int) -> None:
    m, n = _sides(shape)
    if not 1 <= r <= min(m, n):
        raise CompatibilityError(
            f"rank {r} of {name!r} is out of range: as a {m} x {n} matrix it takes 1 to {min(m, n)}"
        )
    if _PARAMETRISED in name:
        raise CompatibilityError(
            f"{name!r} is under a parametrisation of torch, which would be applied to the product of its factors: call "
            "torch.nn.utils.parametrize.remove_parametrizations first, or leave it out of rank="
        )
    if r * (m + n) > m * n:
        warnings.warn(
            f"rank {r} of {name!r} does not pay: its factors have {r * (m + n)} entries, the matrix {m * n}",
            PosterityWarning,
            stacklevel=5,
        )


def _sides(shape: Iterable[int]) -> tuple[int, int]:
    m, *rest = shape
    return m, torch.Size(rest).numel()
