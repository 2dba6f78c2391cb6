"""Raw batches of every form become one shape, or an error that says what is missing."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.problem.batches import Batch, Reader, check_finite, copied, rows_of, tensors_in, to_device

ROWS = 7
X, Z, Y = torch.randn(ROWS, 3), torch.randn(ROWS, 2), torch.arange(ROWS)
W = torch.full((ROWS,), 0.5)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one is other or torch.equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return type(other) is dict and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    return one == other


@pytest.mark.parametrize(
    ("raw", "reader", "wanted"),
    [
        ((X, Y), Reader(), Batch(X, Y, None, ROWS)),
        ([X, Y], Reader(), Batch(X, Y, None, ROWS)),
        ((X, Z, Y), Reader(), Batch((X, Z), Y, None, ROWS)),
        ((Y, X), Reader(target=0), Batch(X, Y, None, ROWS)),
        ((X, Y, W), Reader(weight=-1), Batch(X, Y, W, ROWS)),
        ((X, Y, W), Reader(weight=2, target=1), Batch(X, Y, W, ROWS)),
        ((W, X, Y), Reader(weight=0), Batch(X, Y, W, ROWS)),
        (({"a": X}, Y), Reader(), Batch({"a": X}, Y, None, ROWS)),
        ({"a": X, "b": Z, "labels": Y}, Reader(target="labels"), Batch({"a": X, "b": Z}, Y, None, ROWS)),
        (UserDict({"a": X, "labels": Y}), Reader(target="labels"), Batch({"a": X}, Y, None, ROWS)),
        ({"a": X, "y": Y, "w": W}, Reader(target="y", weight="w"), Batch({"a": X}, Y, W, ROWS)),
        ((X, ["p"] * ROWS), Reader(), Batch(X, ["p"] * ROWS, None, ROWS)),
        (Batch(X, Y, None, ROWS), Reader(target="unused"), Batch(X, Y, None, ROWS)),
    ],
)
def test_reads(raw: Any, reader: Reader, wanted: Batch) -> None:
    assert _same(tuple(reader(raw)), tuple(wanted))


@pytest.mark.parametrize(
    ("raw", "reader", "wanted"),
    [
        (X, Reader(), X),
        ([X], Reader(), X),
        ((X, Y), Reader(), X),
        ({"a": X}, Reader(target="labels"), {"a": X}),
        ({"a": X, "labels": Y}, Reader(target="labels"), {"a": X}),
        ({"a": X}, Reader(), {"a": X}),
    ],
)
def test_reads_inputs_with_or_without_targets(raw: Any, reader: Reader, wanted: Any) -> None:
    batch = reader(raw, targets=False)
    assert _same(wanted, batch.inputs)
    assert batch.rows == ROWS


@pytest.mark.parametrize(
    ("raw", "reader", "words"),
    [
        (X, Reader(), r"must be \(inputs, targets\) or a dict with its target named; got Tensor"),
        ((X,), Reader(), "a batch of 1 part.* cannot hold inputs and targets"),
        ({"a": X, "b": Y}, Reader(), r"keys \['a', 'b'\]: name the target"),
        ({"a": X, "b": Y}, Reader(target="labels"), r"no key 'labels'; it has \['a', 'b'\]"),
        ((X, Y[:3]), Reader(), "7 rows of inputs but 3 of targets"),
        ((X, Y, W[:3]), Reader(weight=-1), r"shape \(7,\), one per row; got \(3,\)"),
        ((X, Y, -W), Reader(weight=-1), "finite and >= 0"),
        ((X, Y, W * torch.inf), Reader(weight=-1), "finite and >= 0"),
        ((Y, W), Reader(target=0, weight=1), "leaves no inputs"),
        ((torch.tensor(1.0), Y), Reader(), "tensor without axes"),
    ],
)
def test_refuses(raw: Any, reader: Reader, words: str) -> None:
    with pytest.raises(po.DataError, match=words):
        reader(raw)


def test_finds_every_tensor_with_its_place() -> None:
    nested = {"a": (X, [Z]), "b": "text"}
    assert [(where, id(found)) for where, found in tensors_in(nested)] == [
        ("input['a'][0]", id(X)),
        ("input['a'][1][0]", id(Z)),
    ]


@pytest.mark.parametrize(
    ("value", "rows"), [(X, 7), ({"a": X}, 7), ((Z, X), 7), (["p", "q"], 2), (np.zeros((5, 2)), 5), ({"a": ["p"]}, 1)]
)
def test_counts_rows(value: Any, rows: int) -> None:
    assert rows_of(value) == rows


def test_rows_of_nothing_countable() -> None:
    with pytest.raises(po.DataError, match="no rows can be counted in a int"):
        rows_of(3)


def test_names_the_rows_that_are_not_finite() -> None:
    bad = X.clone()
    bad[[1, 3], 0] = torch.tensor([torch.nan, torch.inf])
    check_finite(Batch({"a": X, "count": Y}, None), "batch 2")
    with pytest.raises(po.DataError, match=r"batch 2: input\['a'\] holds NaN or infinity in 2 of 7 rows \(1, 3\)"):
        check_finite(Batch({"a": bad}, None), "batch 2")
    with pytest.raises(po.DataError, match=r"7 of 7 rows \(0, 1, 2, 3, 4, \.\.\.\)"):
        check_finite(Batch(X * torch.nan, None), "batch 0")


def test_finite_values_whose_sum_is_not_are_fine() -> None:
    check_finite(Batch(torch.full((ROWS, 3), 3e38), None), "batch 0")


def test_copies_and_moves_what_is_nested() -> None:
    nested = {"a": (X, "text"), "b": [Z]}
    copy = copied(nested)
    assert copy["a"][0] is not X
    assert torch.equal(copy["a"][0], X)
    assert copy["a"][1] == "text"
    moved = to_device(nested, torch.device("meta"))
    assert moved["a"][0].device.type == moved["b"][0].device.type == "meta"
