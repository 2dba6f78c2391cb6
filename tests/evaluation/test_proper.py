"""Proper metrics: by hand, at the edges, and against scikit-learn."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss

from posterity.errors import DataError, ShapeError
from posterity.evaluation.proper import accuracy, brier, brier_rows, crps, nll, rmse


@pytest.mark.parametrize(
    ("probs", "targets", "expected"),
    [
        ([[1.0, 0.0]], [0], 0.0),  # sure and right
        ([[1.0, 0.0]], [1], 2.0),  # sure and wrong: (1 - 0)^2 + (0 - 1)^2
        ([[0.5, 0.5]], [1], 0.5),
        ([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], [2, 0], (0.04 + 0.09 + 0.25) / 2),
    ],
)
def test_brier_by_hand(probs, targets, expected):
    assert brier(torch.tensor(probs, dtype=torch.float64), torch.tensor(targets)).value == pytest.approx(expected)


def test_brier_keeps_its_digits_next_to_zero():
    # (1e-5)^2 + (1e-5)^2: sum p^2 - 2 p_y + 1 in float32 would give 0
    rows = brier_rows(torch.tensor([[1e-5, 1 - 1e-5]], dtype=torch.float64), torch.tensor([1]))
    assert rows.item() == pytest.approx(2e-10, rel=1e-6)


def test_nll_of_probability_zero_and_one():
    assert nll(torch.tensor([1.0, 1.0]).log())[:3] == (0, 0, 0)
    impossible = nll(torch.tensor([0.5, 0.0, 0.0]).log())
    assert impossible.value == math.inf
    assert impossible.reason == "2 of 3 rows infinite"


def test_nothing_is_made_up_for_no_rows_or_one():
    assert math.isnan(nll(torch.zeros(0)).value)
    assert math.isnan(accuracy(torch.zeros(0, dtype=torch.bool)).value)
    assert math.isnan(brier(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64)).value)
    assert math.isnan(crps(torch.zeros(0)).value)
    assert math.isnan(rmse(torch.zeros(0, 3), torch.zeros(0, 3)).value)
    for metric in (nll(torch.tensor([-0.5])), rmse(torch.tensor([1.0]), torch.tensor([1.5]))):
        assert metric.value == 0.5
        assert math.isnan(metric.low)
        assert metric.reason is not None
    # one row right: the exact interval is [0.025, 1], for 0.025^(1/1) = 0.025
    assert accuracy(torch.tensor([True]))[:3] == (1, pytest.approx(0.025, abs=1e-12), 1)


def test_rmse_of_several_outputs():
    mean, y = torch.zeros(2, 3), torch.tensor([[1.0, 2.0, 2.0], [0.0, 0.0, 3.0]])
    metric = rmse(mean, y)  # row means of squares 3 and 3
    assert metric.value == pytest.approx(math.sqrt(3))
    assert metric.low == pytest.approx(metric.high)
    assert metric.n == 2


def test_rmse_interval_is_the_root_of_that_of_the_squares():
    metric = rmse(torch.zeros(7), torch.tensor([1.0, 1, 1, 1, 2, 2, 2]))
    squares = [1.0] * 4 + [4.0] * 3
    mean = sum(squares) / 7
    std = math.sqrt(sum((s - mean) ** 2 for s in squares) / 6)
    half = 2.446911851144969 * std / math.sqrt(7)  # t_6(0.975)
    assert metric[:3] == pytest.approx((math.sqrt(mean), math.sqrt(mean - half), math.sqrt(mean + half)), rel=1e-9)


@pytest.mark.parametrize("probability", [math.nan, 1.00001, -0.00001])
def test_no_probability(probability):
    with pytest.raises(DataError, match=r"probs is .* in 1 row \(1\)"):
        brier(torch.tensor([[0.5, 0.5], [probability, 0.0]]), torch.tensor([0, 1]))


def test_rounding_beyond_one_is_forgiven():
    assert brier(torch.tensor([[1 + 5e-7, 0.0]]), torch.tensor([0])).value == 0


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (torch.zeros(7, 1, dtype=torch.int64), ShapeError, r"\[7, 1\]"),
        (torch.zeros(3, dtype=torch.int64), ShapeError, r"\[3\]"),
        (torch.zeros(7), DataError, "integer"),
        (torch.full((7,), 5), DataError, r"0\.\.4, got 5\.\.5"),
        (torch.full((7,), -100), DataError, r"got -100"),
    ],
)
def test_targets_that_do_not_fit(targets, error, message):
    with pytest.raises(error, match=message):
        brier(torch.full((7, 5), 0.2), targets)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_targets_of_any_integer_type(dtype):
    assert brier(torch.full((7, 5), 0.2), torch.full((7,), 4, dtype=dtype)).value == pytest.approx(0.8)


def test_nothing_is_broadcast():
    with pytest.raises(ShapeError):
        rmse(torch.zeros(7), torch.zeros(7, 1))
    with pytest.raises(ShapeError):
        brier(torch.full((7,), 0.2), torch.zeros(7, dtype=torch.int64))


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.integers(2, 40), st.integers(2, 5), st.integers(0, 10_000))
def test_against_scikit_learn(rows, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(rows, classes, generator=generator, dtype=torch.float64).log_softmax(1)
    targets = torch.randint(classes, (rows,), generator=generator)
    probs, labels = log_probs.exp(), list(range(classes))
    values = (brier(probs, targets).value, nll(log_probs[torch.arange(rows), targets]).value)
    # both in float64: a sum of at most 200 terms
    assert values[0] == pytest.approx(brier_score_loss(targets, probs, labels=labels, scale_by_half=False), rel=1e-12)
    assert values[1] == pytest.approx(log_loss(targets, probs, labels=labels), rel=1e-12)
