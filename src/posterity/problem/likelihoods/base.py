"""What every likelihood does: p(y | outputs of the network), one frozen dataclass each.

A row's log-likelihood is the SUM over its outputs, pixels or tokens that are not ignored. `canonical` turns raw
targets into network units and checks them (it looks at data: call it outside `vmap`); `log_prob` is then pure algebra.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, DataError, ShapeError
from posterity.problem.scaling import Scaling
from posterity.problem.targets import Label, finite, plain
from posterity.tree import Tree

__all__ = ["ClassLikelihood", "Likelihood", "Outputs", "exact", "numbers", "row_sum"]

Outputs: TypeAlias = Tensor | tuple[Tensor, Tensor]  # a pair only where a likelihood says so (heteroscedastic)


def exact(outputs: Tensor) -> Tensor:
    """`outputs` in float32, or float64 if they are: half precision is for networks, not for log-likelihoods."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def row_sum(values: Tensor) -> Tensor:
    """[rows]: `values` `[rows, ...]` summed over everything but the rows."""
    return values if values.ndim == 1 else values.flatten(1).sum(1)


def numbers(targets: Any, first: int = 0) -> Tensor:
    """Raw numeric targets as a finite tensor."""
    values = plain(targets)
    if not isinstance(values, Tensor):
        raise CompatibilityError("the targets are strings: use a classification likelihood, or give numbers")
    return finite(values, first)


class Likelihood(ABC):
    """p(y | outputs). Subclasses are frozen dataclasses; their fields are all that `to_json` keeps."""

    name: ClassVar[str]

    @property
    def needs_survey(self) -> bool:
        """Whether `surveyed` has something to learn (classes, scale) before the first step."""
        return False

    def surveyed(self, targets: Iterable[Any]) -> Self:
        """A copy that knows what one pass over raw target batches can tell; `targets` is read to its end.

        Raises:
            DataError: no rows, or targets that this likelihood cannot explain.
        """
        if not sum(len(plain(batch)) for batch in targets):
            raise DataError("no targets: 0 rows")
        return self

    def parameters(self) -> Tree:
        """The likelihood's own trainable parameters, fresh, without prefix; `{}` for most."""
        return {}

    def check(self, outputs: Outputs) -> None:
        """Refuse outputs of a network that this likelihood cannot read.

        Raises:
            CompatibilityError, ShapeError: with the shape or type found, and the one wanted.
        """
        if not isinstance(outputs, Tensor):
            found = f"a {type(outputs).__name__}" + (f" of {len(outputs)}" if isinstance(outputs, tuple) else "")
            raise CompatibilityError(
                f"the network returned {found}; {self.name} wants one tensor: wrap the network so that it returns it"
            )
        if not outputs.is_floating_point():
            raise CompatibilityError(f"the network returned {outputs.dtype}; {self.name} wants floating point outputs")
        if outputs.ndim == 0:
            raise ShapeError("the network returned a single value: outputs need a row axis, [rows] or [rows, ...]")

    @abstractmethod
    def canonical(self, targets: Any, outputs: Outputs) -> Tensor:
        """Raw targets in network units, shaped for `log_prob`, on the outputs' device.

        Only the shape, dtype and device of `outputs` are read. Checks look at the data: call it outside `vmap`.

        Raises:
            DataError: NaN or infinity, unknown labels; the rows and labels are named.
            ShapeError: targets that would have to be broadcast; both shapes are named.
        """

    @abstractmethod
    def log_prob(self, outputs: Outputs, targets: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows] log p(y | outputs) of canonical targets, summed over what counts in a row; float32 at least, nats."""

    def void(self, targets: Any) -> Tensor:
        """[rows] bool: rows of raw targets in which nothing counts."""
        return torch.zeros(len(plain(targets)), dtype=torch.bool)

    def fisher(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows, k, k] expected Fisher information of a row's k outputs: the Gauss-Newton curvature of -log p.

        Raises:
            CompatibilityError: where k is too large to be written down (tokens, pixels).
        """
        raise CompatibilityError(
            f"{self.name} has no closed Fisher information: use a method that takes gradients only"
        )

    def to_json(self) -> dict[str, Any]:
        """`{"name": ..., field: ...}` in JSON types."""
        content: dict[str, Any] = {"name": self.name}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            content[field.name] = value.to_json() if isinstance(value, Scaling) else _lists(value)
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`, for this class."""
        fields = {key: _tuples(value) for key, value in content.items() if key != "name"}
        return cls(
            **{key: Scaling.from_json(value) if isinstance(value, dict) else value for key, value in fields.items()}
        )


class ClassLikelihood(Likelihood):
    """A likelihood of labels: the outputs say a probability for each of some classes, in a row or at each position."""

    @abstractmethod
    def names(self, logits: int) -> Sequence[Label]:
        """The label of each class; `range(logits)` where labels are positions."""

    @abstractmethod
    def log_probs(self, outputs: Tensor) -> Tensor:
        """[rows, ..., classes] normalised log-probabilities, float32 at least."""

    @abstractmethod
    def aligned(self, targets: Any, log_probs: Tensor) -> Tensor:
        """Raw targets where the prediction about them stands: int64 classes `[rows, ...]`, or soft `[rows, ..., C]`.

        `IGNORE` (soft: zeros) where no target counts. `log_probs` is the prediction, `[rows, ..., C]`.
        """


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
