"""What is said about each row: a distribution over targets, mixed from the draws, with where its spread comes from.

Two kinds follow: classes (`classes.py`) and mixtures of densities (`mixture.py`). Results are float32 on the CPU; sums
over draws run in float64. Targets are raw targets, read as in training.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, DataError
from posterity.problem.likelihoods import Likelihood

__all__ = ["Predictive", "concat"]


@dataclass(frozen=True, eq=False, repr=False)
class Predictive(ABC):
    """The posterior predictive of a block of rows.

    likelihood: what the outputs of the network mean.
    draws: how many draws were mixed (1 for a point, 0 where none were needed).
    via: "draws", "propagation" or "mean".
    """

    likelihood: Likelihood
    draws: int
    via: str

    row_axis: ClassVar[Mapping[str, int]] = {}  # the tensors with a row axis, and where it is

    @abstractmethod
    def log_prob(self, targets: Any) -> Tensor:
        """[rows] log predictive probability (or density, original units) of raw targets, summed over what counts."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def _sizes(self) -> dict[str, Any]:
        """What `repr` tells beside the rows."""

    def counted(self, targets: Any) -> Tensor | None:
        """[rows, ...] bool: which targets count, at each position or output; None where all do."""
        return None

    def per_row(self, values: str | Tensor, targets: Any = None) -> Tensor:
        """[rows]: a quantity (by name, or `[rows, ...]`) averaged over the positions or outputs of a row.

        With raw `targets`, only over those whose target counts; NaN in a row where none does.

            pred.per_row("entropy", targets=labels)
        """
        found = (getattr(self, values) if isinstance(values, str) else values).double()
        if found.ndim == 1:
            return found.float()
        counts = None if targets is None else self.counted(targets)
        if counts is None:
            return found.flatten(1).mean(1).float()
        return (torch.where(counts, found, 0).flatten(1).sum(1) / counts.flatten(1).sum(1)).float()

    @staticmethod
    def concat(parts: Sequence[Predictive]) -> Predictive:
        """Blocks of rows, in order, as one: `concat`."""
        return concat(parts)

    def __getitem__(self, rows: int | slice | Sequence[int] | Tensor) -> Self:
        """Some rows, by index, slice, list, or [rows] mask."""
        index: Any = slice(rows, rows + 1 or None) if isinstance(rows, int) else rows
        if not isinstance(index, slice):
            index = torch.as_tensor(index)
        if isinstance(rows, int) and not -len(self) <= rows < len(self):
            raise IndexError(f"row {rows} of {len(self)}")
        kept: dict[str, Any] = {}
        for name, axis in self.row_axis.items():
            tensor = getattr(self, name)
            kept[name] = None if tensor is None else tensor[(slice(None),) * axis + (index,)]
        return dataclasses.replace(self, **kept)

    def __repr__(self) -> str:
        sizes = {"rows": len(self), **self._sizes(), "draws": self.draws, "via": repr(self.via)}
        return f"{type(self).__name__}({', '.join(f'{key}={value}' for key, value in sizes.items())})"


def concat(parts: Sequence[Predictive]) -> Predictive:
    """Blocks of rows, in order, as one.

    Raises:
        DataError: no parts.
        CompatibilityError: parts of different kinds, likelihoods, draws or `via`.
    """
    if not parts:
        raise DataError("no predictions to join: 0 blocks of rows")
    first = parts[0]
    for part in parts[1:]:
        for what in ("__class__", "likelihood", "draws", "via"):
            if (found := getattr(part, what)) != (wanted := getattr(first, what)):
                raise CompatibilityError(f"blocks of rows cannot be joined: {what} is {wanted!r} and {found!r}")
    joined: dict[str, Any] = {}
    for name, axis in first.row_axis.items():
        tensors = [getattr(part, name) for part in parts]
        if any((tensor is None) != (tensors[0] is None) for tensor in tensors):
            raise CompatibilityError(f"some blocks of rows hold {name}, others do not")
        joined[name] = None if tensors[0] is None else torch.cat(tensors, axis)
    return dataclasses.replace(first, **joined)
