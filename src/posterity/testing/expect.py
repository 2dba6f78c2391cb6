"""Assertions that say what differs, and where; they hold under `python -O` too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["expect", "near", "same"]


def expect(fine: bool, message: str) -> None:
    """Raise AssertionError with `message` where `fine` is not."""
    if not fine:
        raise AssertionError(message)


def same(found: Any, wanted: Any, what: str) -> None:
    """Equal to the bit: nested tensors, arrays, mappings and sequences; NaN equals NaN.

    >>> same({"a": [1, float("nan")]}, {"a": [1, float("nan")]}, "pair")
    """
    if isinstance(wanted, Tensor):
        expect(isinstance(found, Tensor), f"{what} is {found!r}, where a tensor was")
        kinds = (found.dtype, tuple(found.shape)), (wanted.dtype, tuple(wanted.shape))
        expect(kinds[0] == kinds[1], f"{what} is {kinds[0]}, not {kinds[1]}")
        different = (found != wanted) & ~((found != found) & (wanted != wanted))
        count = int(different.sum())
        largest = float((found - wanted).abs().nan_to_num().max()) if count and found.is_floating_point() else count
        expect(count == 0, f"{what} differs in {count} of {wanted.numel()} elements, by up to {largest:.3g}")
    elif isinstance(wanted, np.ndarray):
        expect(np.array_equal(found, wanted), f"{what} differs")
    elif isinstance(wanted, Mapping):
        expect(list(found) == list(wanted), f"{what} has the names {list(found)}, not {list(wanted)}")
        for name in wanted:
            same(found[name], wanted[name], f"{what}[{name!r}]")
    elif isinstance(wanted, list | tuple):
        expect(len(found) == len(wanted), f"{what} has length {len(found)}, not {len(wanted)}")
        for i, (one, other) in enumerate(zip(found, wanted)):
            same(one, other, f"{what}[{i}]")
    else:
        equal = found is wanted or found == wanted or (found != found and wanted != wanted)
        expect(bool(equal), f"{what} is {found!r}, not {wanted!r}")


def near(found: Any, wanted: Any, tolerance: Any, what: str) -> None:
    """Within `tolerance` everywhere: a number, or one that broadcasts to the tensors."""
    found, wanted = torch.as_tensor(found).double(), torch.as_tensor(wanted).double()
    expect(found.shape == wanted.shape, f"{what} has shape {tuple(found.shape)}, not {tuple(wanted.shape)}")
    if not found.numel():
        return
    excess = ((found - wanted).abs() / torch.as_tensor(tolerance).double()).nan_to_num(nan=torch.inf).flatten()
    worst = int(excess.argmax())
    pair = f"{float(found.flatten()[worst]):.6g}, not {float(wanted.flatten()[worst]):.6g}"
    expect(float(excess[worst]) <= 1.0, f"{what} is off by {float(excess[worst]):.3g} tolerances: {pair}")
