"""Counts from log rates: y ~ Poisson(exp(z)).

    log p(y) = y z - exp(z) - log y! = y (d - expm1(d)) - r(y),    d = z - log y,  r(y) = log y! - y log y + y

The second form is the one computed (y = 0 gives -exp(z)): the terms of the first cancel to nothing in float32 at
y = 1e6, while d and r(y) = log(2 pi y) / 2 + O(1/y) stay small. Fisher information of z: exp(z).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posterity.errors import DataError
from posterity.problem.likelihoods.base import Likelihood, Outputs, exact, numbers, row_sum
from posterity.problem.targets import align, bounded

__all__ = ["Poisson"]


def _counts(targets: Any, first: int = 0) -> Tensor:
    return bounded(
        numbers(targets, first),
        None,
        lambda value: (value >= 0) & (value == value.round()),
        "counts are whole numbers >= 0; for rates or amounts use a regression likelihood",
    )


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts; the outputs `[rows, ...]` are log rates, the targets whole numbers >= 0 (as integers or floats)."""

    name: ClassVar[str] = "poisson"

    def surveyed(self, targets: Iterable[Any]) -> Self:
        """Learns nothing, but looks at every target.

        Raises:
            DataError: no rows, or targets that are no counts.
        """
        rows = 0
        for batch in targets:
            rows += len(_counts(batch, rows))
        if rows == 0:
            raise DataError("no targets: 0 rows")
        return self

    def canonical(self, targets: Any, outputs: Outputs) -> Tensor:
        """Counts in the shape of the log rates, float32 (float64 if the outputs are)."""
        self.check(outputs)
        assert isinstance(outputs, Tensor)
        values = align(_counts(targets), tuple(outputs.shape), "log rates")
        return values.to(exact(outputs[:0]).dtype).to(outputs.device)

    def log_prob(self, outputs: Outputs, targets: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows]: sum over outputs of y z - exp(z) - log y!."""
        return row_sum(self.log_mass(targets, exact(outputs)))  # type: ignore[arg-type]

    def log_mass(self, y: Tensor, z: Tensor) -> Tensor:
        """Element-wise log p(y) of counts at log rates z."""
        some = y > 0
        y = torch.where(some, y, 1)
        remainder = torch.lgamma(y.double() + 1) - y.double() * (y.double().log() - 1)
        d = z - y.log()
        return torch.where(some, y * (d - torch.expm1(d)) - remainder.to(z.dtype), -z.exp())

    def fisher(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows, k, k]: diag(exp(z))."""
        self.check(outputs)
        rates = exact(outputs).exp()  # type: ignore[arg-type]
        return torch.diag_embed(rates[:, None] if rates.ndim == 1 else rates.flatten(1))
