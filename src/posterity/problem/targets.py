"""One canonicaliser for targets: whatever a loader, a frame or a list holds becomes one of three tensors.

    class labels          int64 [rows, ...], `IGNORE` where a label does not count
    soft labels           float [rows, ..., classes], rows of zeros where a label does not count
    numbers               float64 [rows, ...] shaped like the network's outputs, finite

Labels are matched by value: integers of every dtype, booleans, whole floats and strings. Nothing is broadcast:
`[rows, 1]` and `[rows]` both mean one value per row and are aligned by reshaping, any other difference is a
`ShapeError`. NaN and infinity are errors that name the first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posterity.errors import DataError, ShapeError

__all__ = [
    "IGNORE",
    "Label",
    "align",
    "bounded",
    "distribution",
    "finite",
    "ignored_rows",
    "indices",
    "is_distribution",
    "plain",
    "quoted",
    "whole",
]

IGNORE = -100  # what canonical labels hold where a label does not count: the convention of PyTorch and Hugging Face

Label: TypeAlias = str | int | bool
Targets = TypeVar("Targets", bound=Tensor | NDArray[np.str_])

_SOFT = 1e-4  # how far soft labels may be from summing to 1: a float32 softmax of 1e5 classes stays within 1e-5


def plain(targets: Any) -> Tensor | NDArray[np.str_]:
    """`targets` as a tensor on its own device, or as a numpy array of strings.

    Tensors, numpy arrays, (nested) lists, lists of tensors, and anything with `to_numpy` (pandas, polars, narwhals).

    Raises:
        DataError: missing values, mixed or unusable types, no row axis, ragged lists.
    """
    if isinstance(targets, (list, tuple)) and targets and all(isinstance(item, Tensor) for item in targets):
        try:
            targets = torch.stack(list(targets))
        except RuntimeError as error:
            raise ShapeError(f"the targets are a list of tensors that do not stack: {error}") from error
    if isinstance(targets, Tensor):
        result: Tensor | NDArray[np.str_] = targets.detach()
        if targets.is_complex():
            raise DataError("the targets are complex numbers: give their real and imaginary parts as two outputs")
        if result.dtype in (torch.uint16, torch.uint32, torch.uint64):
            result = targets.to(torch.int64)  # torch knows few operations on these
    else:
        result = _from_numpy(_as_numpy(targets))
    if result.ndim == 0:
        raise ShapeError("the targets are a single value: they need a row axis, [rows] or [rows, ...]")
    return result


def _as_numpy(targets: Any) -> NDArray[Any]:
    if hasattr(targets, "to_numpy"):
        return np.asarray(targets.to_numpy())
    if isinstance(targets, (list, tuple)) and any(isinstance(item, str) for item in targets):
        return np.array(targets, dtype=object)  # numpy would turn ["a", 1] into two strings in silence
    try:
        return np.asarray(targets)
    except ValueError as error:
        raise DataError(f"the targets are not rows of one length: {error}") from error


def _from_numpy(array: NDArray[Any]) -> Tensor | NDArray[np.str_]:
    kind = array.dtype.kind
    if kind in "OT":
        array = _typed(array.astype(object))
        kind = array.dtype.kind
    if kind == "S":
        return np.char.decode(array, "utf-8")
    if kind == "U":
        return array
    if kind == "b":
        return torch.from_numpy(array.astype(np.bool_))
    if kind in "iu":
        return torch.from_numpy(array.astype(np.int64))
    if kind == "f":
        return torch.from_numpy(array.astype(np.float32 if array.dtype.itemsize <= 4 else np.float64))
    raise DataError(f"targets of type {array.dtype} cannot be used: give numbers, booleans or strings")


def _typed(array: NDArray[Any]) -> NDArray[Any]:
    """An object array as strings, booleans, integers or floats, whichever all of its values are."""
    values = array.ravel().tolist()
    if missing := [index for index, value in enumerate(values) if _is_missing(value)]:
        width = max(1, len(values) // max(1, len(array)))
        _refuse("missing targets", [index // width for index in missing])
    kinds: list[tuple[Any, Any]] = [
        (str, np.str_),
        ((bool, np.bool_), np.bool_),
        (Integral, np.int64),
        (Real, np.float64),
    ]
    for kind, dtype in kinds:
        if values and all(isinstance(value, kind) for value in values):
            return array.astype(dtype)
    names = sorted({type(value).__name__ for value in values})
    raise DataError(
        f"the targets mix values of types {', '.join(names)}: give one type" if names else "no targets: 0 rows"
    )


def _is_missing(value: Any) -> bool:
    try:
        return value is None or not bool(value == value)
    except (TypeError, ValueError):  # pandas.NA refuses to be a truth value
        return True


def _refuse(what: str, rows: Sequence[int], hint: str = "") -> None:
    rows = sorted(set(rows))
    named = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    raise DataError(f"{what} in {len(rows)} row{'s'[: len(rows) != 1]} (rows {named}){hint}")


def _bad_rows(bad: Tensor, first: int) -> list[int]:
    flags = bad if bad.ndim == 1 else bad.flatten(1).any(1)
    return [first + row for row in flags.nonzero().flatten().tolist()]


def finite(targets: Tensor, first: int = 0) -> Tensor:
    """`targets`, or a DataError that names the rows that hold NaN or infinity, counted from `first`."""
    if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
        rows = _bad_rows(~torch.isfinite(targets), first)
        _refuse("NaN or infinity in the targets", rows, ": drop these rows, nothing is imputed for a target")
    return targets


def whole(targets: Tensor, hint: str, first: int = 0) -> Tensor:
    """Integers, booleans and whole floats as int64; `hint` tells what to do about anything else."""
    if not targets.is_floating_point():
        return targets.to(torch.int64)
    finite(targets, first)
    if not bool((targets == targets.round()).all()):
        _refuse("targets that are not whole numbers", _bad_rows(targets != targets.round(), first), f": {hint}")
    return targets.to(torch.int64)


def ignored_rows(targets: Any, ignore: int) -> Tensor:
    """[rows] bool: rows of raw targets that hold nothing but `ignore`."""
    values = plain(targets)
    if not isinstance(values, Tensor):
        return torch.zeros(len(values), dtype=torch.bool)
    return values == ignore if values.ndim == 1 else (values == ignore).flatten(1).all(1)


def align(targets: Targets, shape: Sequence[int], what: str = "outputs") -> Targets:
    """`targets` in exactly `shape` = [rows, ...]: only axes of size 1 after the rows are added or dropped.

    >>> align(torch.zeros(3, 1), (3,)).shape
    torch.Size([3])
    """
    shape = tuple(shape)
    if tuple(targets.shape) == shape:
        return targets
    same_rows = targets.ndim > 0 and targets.shape[0] == shape[0]
    if same_rows and [n for n in targets.shape[1:] if n != 1] == [n for n in shape[1:] if n != 1]:
        return targets.reshape(shape)  # type: ignore[return-value]
    raise ShapeError(
        f"targets of shape {tuple(targets.shape)} do not fit {what} of shape {shape}: "
        "there must be one target for each, and nothing is broadcast"
    )


def quoted(labels: Sequence[Label], limit: int = 10) -> str:
    """Labels for a message, the first `limit` of them."""
    return ", ".join(repr(label) for label in labels[:limit]) + (", ..." if len(labels) > limit else "")


def indices(targets: Tensor | NDArray[np.str_], labels: Sequence[Label], ignore: int = IGNORE) -> Tensor:
    """int64 positions of `targets` in `labels`, in the shape of `targets`; `IGNORE` where a target is `ignore`.

    `labels` is `range(C)` where the targets are positions already.

    Raises:
        DataError: a target that is not among `labels`; both are named.
    """
    textual = bool(labels) and isinstance(labels[0], str)
    if isinstance(targets, Tensor) == textual:
        found, known = ("numbers", "strings") if textual else ("strings", "numbers")
        way_out = "" if textual else "; `surveyed` learns string classes from the training targets"
        raise DataError(f"the targets are {found}, the known classes {known} ({quoted(labels)}){way_out}")
    if isinstance(targets, Tensor):
        values = whole(
            targets, "class labels are integers, booleans or strings; for numbers use a regression likelihood"
        )
        ignored = values == ignore
        if isinstance(labels, range):  # already positions 0..C-1
            unknown = ~ignored & ((values < 0) | (values >= len(labels)))
            result = values
        else:
            order = sorted(range(len(labels)), key=lambda index: labels[index])
            known_values = torch.tensor([int(labels[index]) for index in order], device=values.device)
            slot = torch.searchsorted(known_values, values.contiguous()).clamp_(max=len(order) - 1)
            unknown = ~ignored & (known_values[slot] != values)
            result = torch.tensor(order, device=values.device)[slot]
        if bool(unknown.any()):
            _unknown(int(values[unknown][0]), _bad_rows(unknown, 0), labels)
        return result.masked_fill(ignored, IGNORE)
    order = sorted(range(len(labels)), key=lambda index: labels[index])
    known_names = np.array([labels[index] for index in order])
    places = np.searchsorted(known_names, targets).clip(max=len(order) - 1)
    strange = known_names[places] != targets
    if strange.any():
        _unknown(str(targets[strange][0]), _bad_rows(torch.from_numpy(strange), 0), labels)
    return torch.tensor(order)[torch.from_numpy(places)]


def _unknown(label: Label, rows: Sequence[int], labels: Sequence[Label]) -> None:
    _refuse(f"unknown label {label!r}", rows, f"; the known ones are {quoted(labels)}")


def distribution(targets: Tensor, ignore: int = IGNORE) -> Tensor:
    """One-hot or soft labels `[rows, classes, ...]` as hard or soft canonical labels.

    Rows (or pixels) of zeros and ones become int64 `[rows, ...]`, others float `[rows, ..., classes]`. A row that is
    `ignore` throughout does not count.

    Raises:
        DataError: rows that hold a negative value or do not sum to 1 within 1e-4.
    """
    values, ignored, bad = _simplex(finite(targets), ignore)
    if bool(bad.any()):
        _refuse("labels over the classes that are negative or do not sum to 1 within 1e-4", _bad_rows(bad, 0))
    if bool(((values == 0) | (values == 1)).all()):
        return values.argmax(-1).masked_fill(ignored, IGNORE)
    return values


def is_distribution(targets: Tensor, ignore: int = IGNORE) -> bool:
    """Whether `targets` can be read as one-hot or soft labels `[rows, classes, ...]`."""
    return targets.ndim > 1 and targets.shape[1] > 1 and not bool(_simplex(targets, ignore)[2].any())


def _simplex(targets: Tensor, ignore: int) -> tuple[Tensor, Tensor, Tensor]:
    """Labels with the classes last and zeros where ignored; which are ignored; which are no distribution."""
    values = targets.movedim(1, -1).to(torch.promote_types(targets.dtype, torch.float32))
    ignored = (values == ignore).all(-1)
    values = values.masked_fill(ignored[..., None], 0)
    bad = ~((values >= 0).all(-1) & ((values.sum(-1) - 1).abs() <= _SOFT)) & ~ignored
    return values, ignored, bad


def bounded(targets: Tensor, ignore: int | None, allowed: Callable[[Tensor], Tensor], hint: str) -> Tensor:
    """`targets` after a check that every value is `allowed` or `ignore`; the first rows that are not are named."""
    finite(targets)
    bad = ~allowed(targets)
    if ignore is not None:
        bad &= targets != ignore
    if bool(bad.any()):
        _refuse(f"targets out of range ({targets[bad][0].item():g})", _bad_rows(bad, 0), f": {hint}")
    return targets
