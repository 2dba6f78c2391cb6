"""How a raw batch of a loader is read: inputs, targets, weights, rows.

Tuples (`x, y` or `x1, x2, y`), dicts and `BatchEncoding` (`target="labels"`) become one shape, `Batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, DataError

__all__ = ["Batch", "Reader", "check_finite", "copied", "row_weights", "rows_of", "share", "tensors_in", "to_device"]


class Batch(NamedTuple):
    """One batch as the problem sees it."""

    inputs: Any  # a tensor, a tuple of positional inputs, or a mapping of keyword inputs
    targets: Any = None  # as the user gave them; the likelihood makes them canonical
    weight: Tensor | None = None  # [rows], multiplies each row's log-likelihood
    rows: int = 0


@dataclass(frozen=True)
class Reader:
    """Turns the raw batches of a loader into `Batch`.

    Args:
        target: the target's key in dict batches, its position in tuple batches (default: the last).
        weight: the key or position of per-row weights, if any.
    """

    target: str | int | None = None
    weight: str | int | None = None

    def __call__(self, raw: Any, targets: bool = True) -> Batch:
        """Read one batch; without `targets`, one that may hold inputs only (a bare tensor, or a dict without target).

        Raises:
            DataError: the target is not there, or the parts of the batch disagree on the number of rows.
        """
        if isinstance(raw, Batch):
            return raw
        inputs, target, weight = self._parts(raw, targets)
        rows = rows_of(inputs)
        if target is not None and (n := rows_of(target)) != rows:
            raise DataError(f"a batch has {rows} rows of inputs but {n} of targets")
        return Batch(inputs, target, None if weight is None else row_weights(weight, rows), rows)

    def _parts(self, raw: Any, targets: bool) -> tuple[Any, Any, Any]:
        if isinstance(raw, Mapping):
            return self._from_mapping(raw, targets)
        if isinstance(raw, tuple | list) and not (len(raw) > 0 and isinstance(raw[0], int | float | str)):
            return self._from_sequence(list(raw), targets)
        if targets:
            raise DataError(
                f"a batch must be (inputs, targets) or a dict with its target named; got {type(raw).__name__}"
            )
        return raw, None, None

    def _from_mapping(self, raw: Mapping, targets: bool) -> tuple[Any, Any, Any]:
        rest = dict(raw)
        weight = rest.pop(self.weight, None) if isinstance(self.weight, str) else None
        if not isinstance(self.target, str):
            if targets:
                raise DataError(
                    f"batches are dicts with the keys {sorted(map(str, rest))}: name the target, target='labels'"
                )
            return rest, None, None
        if targets and self.target not in rest:
            raise DataError(f"a batch has no key {self.target!r}; it has {sorted(map(str, rest))}")
        return rest, rest.pop(self.target, None), weight

    def _from_sequence(self, raw: list, targets: bool) -> tuple[Any, Any, Any]:
        if len(raw) < 2:
            if targets or not raw:
                raise DataError(f"a batch of {len(raw)} part(s) cannot hold inputs and targets")
            return raw[0], None, None
        target = self.target if isinstance(self.target, int) else (-2 if self.weight == -1 else -1)
        positions = {"target": target % len(raw)}
        if isinstance(self.weight, int):
            positions["weight"] = self.weight % len(raw)
        inputs = tuple(part for i, part in enumerate(raw) if i not in positions.values())
        if not inputs:
            raise DataError(f"a batch of {len(raw)} parts leaves no inputs beside its target and weights")
        weight = raw[positions["weight"]] if "weight" in positions else None
        return (inputs[0] if len(inputs) == 1 else inputs), raw[positions["target"]], weight


def row_weights(weight: Any, rows: int) -> Tensor:
    """[rows] float32.

    Raises:
        DataError: not one number per row, or one that is negative or not finite.
    """
    weight = torch.as_tensor(weight, dtype=torch.float32)
    if weight.shape != (rows,):
        raise DataError(f"sample weights must have shape ({rows},), one per row; got {tuple(weight.shape)}")
    if not bool((weight >= 0).all() & torch.isfinite(weight).all()):
        raise DataError("sample weights must be finite and >= 0")
    return weight


def tensors_in(value: Any, where: str = "input") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested tuples, lists and mappings, with its place."""
    if isinstance(value, Tensor):
        yield where, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from tensors_in(part, f"{where}[{key!r}]")
    elif isinstance(value, tuple | list):
        for i, part in enumerate(value):
            yield from tensors_in(part, f"{where}[{i}]")


def _apply(function: Callable[[Tensor], Any], value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _apply(function, part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_apply(function, part) for part in value)
    return value


def to_device(value: Any, device: torch.device) -> Any:
    """Nested tensors on `device`; everything else as it is."""
    return _apply(lambda tensor: tensor.to(device), value)


def copied(value: Any) -> Any:
    """Copies of nested tensors; everything else as it is."""
    return _apply(Tensor.clone, value)


def share(batch: Batch, rows: range) -> Batch:
    """Some consecutive rows of a batch.

    Raises:
        CompatibilityError: an input that is no tensor of rows.
    """
    chosen = slice(rows.start, rows.stop)

    def cut(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: cut(part) for key, part in value.items()}
        if isinstance(value, tuple):
            return tuple(cut(part) for part in value)
        if not hasattr(value, "__getitem__") or not getattr(value, "ndim", 1) or len(value) != batch.rows:
            raise CompatibilityError(
                f"a batch of {batch.rows} rows has an input that cannot be shared among ranks row by row: "
                f"{type(value).__name__} {list(getattr(value, 'shape', ()))}"
            )
        return value[chosen]

    weight = None if batch.weight is None else batch.weight[chosen]
    targets = batch.targets if batch.targets is None else batch.targets[chosen]
    return Batch(cut(batch.inputs), targets, weight, len(rows))


def rows_of(value: Any) -> int:
    """The length of the leading axis of the first tensor, array or list in `value`."""
    for _, tensor in tensors_in(value):
        if tensor.dim() == 0:
            raise DataError("a batch must have rows along its first axis; got a tensor without axes")
        return tensor.shape[0]
    if isinstance(value, Mapping):
        return rows_of(next(iter(value.values()), ()))
    if isinstance(value, Sequence) or hasattr(value, "__len__"):
        return len(value)
    raise DataError(f"no rows can be counted in a {type(value).__name__}")


def check_finite(batch: Batch, place: str) -> None:
    """Raise where the inputs of a batch hold NaN or infinity, naming the part and the first rows."""
    for where, tensor in tensors_in(batch.inputs):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.sum())):
            bad = ~torch.isfinite(tensor).reshape(tensor.shape[0], -1).all(1)
            if bool(bad.any()):
                rows = bad.nonzero().flatten().tolist()
                shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
                raise DataError(
                    f"{place}: {where} holds NaN or infinity in {len(rows)} of {tensor.shape[0]} rows ({shown}); "
                    "impute or drop them"
                )
