"""One canonicaliser: every way of writing labels and numbers means the same, every misfit is a named error."""

import numpy as np
import pandas as pd
import pytest
import torch

from posterity.errors import DataError, ShapeError
from posterity.problem.targets import IGNORE, align, distribution, finite, ignored_rows, indices, plain

LABELS = [2, 0, 4, 1, 3, 0, 2]  # 7 rows, 5 classes
EXPECTED = torch.tensor(LABELS)
INTEGERS = [getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_labels_of_every_tensor_dtype(dtype: torch.dtype) -> None:
    found = indices(plain(EXPECTED.to(dtype)), range(5))
    assert found.dtype == torch.int64
    assert found.equal(EXPECTED)


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", ">i4", "f2", "f4", "f8", object])
def test_labels_of_every_numpy_dtype(dtype: object) -> None:
    array = np.array(LABELS).astype(dtype)
    array.setflags(write=False)  # a memory-mapped file cannot be written to
    assert indices(plain(array), range(5)).equal(EXPECTED)


@pytest.mark.parametrize(
    "targets",
    [
        LABELS,
        tuple(LABELS),
        [torch.tensor(label) for label in LABELS],
        np.array(LABELS)[::-1][::-1],
        pd.Series(LABELS, index=range(10, 17)),
        pd.Series(LABELS, dtype="Int64"),
        pd.Series(LABELS).astype("category"),
    ],
    ids=["list", "tuple", "list of tensors", "strides", "series", "nullable series", "categories"],
)
def test_labels_of_every_container(targets: object) -> None:
    assert indices(plain(targets), range(5)).equal(EXPECTED)


@pytest.mark.parametrize(
    "targets",
    [
        ["b", "a", "c", "a"],
        np.array(["b", "a", "c", "a"]),
        np.array([b"b", b"a", b"c", b"a"]),
        np.array(["b", "a", "c", "a"], dtype=object),
        pd.Series(["b", "a", "c", "a"]),
        pd.Series(["b", "a", "c", "a"]).astype("category"),
    ],
    ids=["list", "array", "bytes", "objects", "series", "categories"],
)
def test_strings_match_labels_in_the_order_given(targets: object) -> None:
    assert indices(plain(targets), ("a", "b", "c")).tolist() == [1, 0, 2, 0]
    assert indices(plain(targets), ("c", "a", "b")).tolist() == [2, 1, 0, 1]


def test_integers_and_booleans_match_labels_by_value() -> None:
    assert indices(torch.tensor([5, 0, 2, 5]), (0, 2, 5)).tolist() == [2, 0, 1, 2]
    assert indices(torch.tensor([5, 0, 2, 5]), (5, 2, 0)).tolist() == [0, 2, 1, 0]
    assert indices(torch.tensor([True, False]), (False, True)).tolist() == [1, 0]
    assert indices(plain([-1, 1, 1]), (-1, 1)).tolist() == [0, 1, 1]


def test_ignored_labels_become_minus_100_whatever_marked_them() -> None:
    assert indices(torch.tensor([0, 255, 2], dtype=torch.uint8), range(3), ignore=255).tolist() == [0, IGNORE, 2]
    assert indices(torch.tensor([5, -100, 0]), (0, 2, 5)).tolist() == [2, IGNORE, 0]


@pytest.mark.parametrize(
    ("targets", "labels", "message"),
    [
        (["a", "z", "z"], ("a", "b"), r"unknown label 'z' in 2 rows \(rows 1, 2\); the known ones are 'a', 'b'"),
        ([0, 7], (0, 2, 5), r"unknown label 7 in 1 row \(rows 1\); the known ones are 0, 2, 5"),
        ([0, 5], range(5), "unknown label 5"),
        ([0, -1], range(5), "unknown label -1"),
        ([0.5, 1.0], range(2), r"not whole numbers in 1 row \(rows 0\).*regression"),
        ([0, 1], ("a", "b"), "the targets are numbers, the known classes strings"),
        (["a", "b"], range(2), "the targets are strings, the known classes numbers.*surveyed"),
    ],
)
def test_unknown_labels_are_named(targets: list, labels: tuple, message: str) -> None:
    with pytest.raises(DataError, match=message):
        indices(plain(targets), labels)


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (["a", 1, "b"], DataError, "mix values of types int, str"),
        ([[0, 1], [2]], DataError, "not rows of one length"),
        ([torch.zeros(2), torch.zeros(3)], ShapeError, "do not stack"),
        ([1, None, 2], DataError, r"missing targets in 1 row \(rows 1\)"),
        (pd.Series([1, pd.NA, 2], dtype=object), DataError, r"missing targets in 1 row \(rows 1\)"),
        (pd.Series(["a", None]), DataError, r"missing targets in 1 row \(rows 1\)"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), DataError, "datetime64"),
        (torch.zeros(2, dtype=torch.complex64), DataError, "complex"),
        (torch.tensor(1), ShapeError, "row axis"),
        (3.0, ShapeError, "row axis"),
    ],
)
def test_what_cannot_be_a_target_is_named(targets: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        plain(targets)


def test_float_arrays_keep_their_precision() -> None:
    assert plain([1.5]).dtype == torch.float64
    assert plain(np.array([1.5], dtype=np.float32)).dtype == torch.float32
    assert plain(np.array([1.5], dtype=np.float16)).dtype == torch.float32


def test_a_targets_graph_is_left_behind() -> None:
    assert not plain(torch.zeros(3, requires_grad=True)).requires_grad


def test_nan_and_infinity_name_the_first_rows() -> None:
    targets = torch.zeros(9, 2)
    targets[3, 0], targets[5, 1] = torch.nan, torch.inf
    with pytest.raises(DataError, match=r"NaN or infinity in the targets in 2 rows \(rows 103, 105\)"):
        finite(targets, first=100)
    with pytest.raises(DataError, match=r"\(rows 1\)"):
        finite(plain(pd.Series([1, pd.NA, 2], dtype="Int64")))
    targets[:] = torch.nan
    with pytest.raises(DataError, match=r"in 9 rows \(rows 0, 1, 2, 3, 4, \.\.\.\)"):
        finite(targets)


@pytest.mark.parametrize(
    ("found", "wanted"), [((7,), (7, 1)), ((7, 1), (7,)), ((7, 1, 3), (7, 3)), ((7, 3), (7, 3)), ((1,), (1, 1))]
)
def test_axes_of_one_are_aligned(found: tuple, wanted: tuple) -> None:
    values = torch.arange(float(np.prod(found))).reshape(found)
    aligned = align(values, wanted)
    assert aligned.shape == wanted
    assert aligned.flatten().equal(values.flatten())


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ((3,), (3, 3)),
        ((3, 3), (3,)),
        ((3,), (1, 3)),
        ((1, 3), (3,)),
        ((1,), (3,)),
        ((7, 1), (5, 1)),
        ((4,), (2, 2)),
        ((7, 2, 3), (7, 3, 2)),
        ((7, 6), (7, 2, 3)),
    ],
)
def test_nothing_is_broadcast(found: tuple, wanted: tuple) -> None:
    with pytest.raises(ShapeError) as error:
        align(torch.zeros(found), wanted)
    assert str(found) in str(error.value)
    assert str(wanted) in str(error.value)


def test_one_hot_rows_of_every_dtype_are_hard_labels() -> None:
    one_hot = torch.nn.functional.one_hot(EXPECTED, 5)
    for dtype in (torch.int64, torch.uint8, torch.bool, torch.float32):
        assert distribution(one_hot.to(dtype)).equal(EXPECTED)
    ignored = one_hot.clone()
    ignored[2] = IGNORE
    assert distribution(ignored).tolist() == [2, 0, IGNORE, 1, 3, 0, 2]


def test_soft_rows_stay_soft_with_classes_last() -> None:
    soft = torch.rand(7, 5, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
    assert distribution(soft).equal(soft.movedim(1, -1))
    soft[1, :, 2] = IGNORE
    assert distribution(soft)[1, 2].tolist() == [0.0] * 5


@pytest.mark.parametrize("row", [[0.5, 0.4], [1.5, -0.5], [0, 0], [1, 1], [0.5, 0.5 + 2e-4]])
def test_rows_that_are_no_distribution_are_named(row: list) -> None:
    with pytest.raises(DataError, match=r"do not sum to 1 within 1e-4 in 1 row \(rows 1\)"):
        distribution(torch.tensor([[0.25, 0.75], row]))


def test_rows_that_hold_nothing_but_the_ignored_label() -> None:
    assert ignored_rows([[-100, -100], [-100, 1]], -100).tolist() == [True, False]
    assert ignored_rows(torch.tensor([255, 0]), 255).tolist() == [True, False]
    assert ignored_rows(["a", "b"], -100).tolist() == [False, False]
