"""Calibration: edges of bins, empty bins, and the interval of the ECE."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from posterity.errors import DataError, ShapeError
from posterity.evaluation.calibration import confidence_gap, ece, reliability

CASES = [
    # confidence, correct, bins, ece
    ([0.95, 1.0], [1, 0], 10, 0.475),  # one bin: mean 0.975, accuracy 0.5
    ([1.0, 1.0, 1.0], [1, 1, 1], 15, 0.0),
    ([0.0, 0.0, 0.0], [1, 1, 1], 15, 1.0),
    ([0.0, 1.0], [0, 1], 15, 0.0),
    ([0.0, 1.0], [1, 0], 15, 1.0),
    ([0.1, 0.5, 0.9], [0, 1, 1], 15, (0.1 + 0.5 + 0.1) / 3),  # 15 bins, 3 rows: each alone
    ([0.9, 0.9, 0.9, 0.9], [1, 1, 0, 0], 15, 0.4),
    ([0.6, 0.8], [1, 0], 1, 0.2),  # one bin: 0.7 against 0.5
    ([0.3], [0], 15, 0.3),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("confidence", "correct", "bins", "expected"), CASES)
def test_by_hand(confidence, correct, bins, expected, dtype):
    metric = ece(torch.tensor(confidence, dtype=dtype), torch.tensor(correct), bins)
    # a float32 confidence is off by at most 2^-25
    assert metric.value == pytest.approx(expected, abs=3e-8)
    assert metric.n == len(confidence)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_edges_belong_to_the_bin_on_their_left(dtype):
    table = reliability(torch.tensor([0, 0.2, 0.4, 0.6, 0.8, 1.0], dtype=dtype), torch.ones(6), 5)
    assert table.count.tolist() == [2, 1, 1, 1, 1]


def test_softmax_that_saturates():
    confidence = torch.tensor([[17.5, 0.0], [40.0, 0.0]]).softmax(1).amax(1)
    assert confidence.tolist() == [1, 1]
    assert ece(confidence, torch.tensor([True, False])).value == 0.5


def test_empty_bins_are_blank():
    table = reliability(torch.tensor([0.05, 0.95, 0.85]), torch.tensor([0, 1, 0]), 4)
    assert table.count.tolist() == [1, 0, 0, 2]
    assert table.confidence.isnan().tolist() == [False, True, True, False]
    assert table.accuracy.isnan().tolist() == [False, True, True, False]
    assert table.gap.tolist() == pytest.approx([0.05, math.nan, math.nan, 0.4], abs=3e-8, nan_ok=True)
    assert table.lower.tolist() == [0, 0.25, 0.5, 0.75]
    assert table.upper.tolist() == [0.25, 0.5, 0.75, 1]


def test_no_rows_and_one_row():
    empty = ece(torch.zeros(0), torch.zeros(0))
    assert math.isnan(empty.value)
    assert empty[3:] == (0, "no rows")
    assert reliability(torch.zeros(0), torch.zeros(0)).count.tolist() == [0] * 15
    one = ece(torch.tensor([0.75]), torch.tensor([True]))
    assert one.value == 0.25
    assert math.isnan(one.low)
    assert one.reason == "an interval needs at least two rows"


def test_sign_of_the_gap():
    over = confidence_gap(torch.full((4,), 0.9), torch.tensor([1, 1, 0, 0]))
    under = confidence_gap(torch.full((4,), 0.1), torch.tensor([1, 1, 0, 0]))
    assert over.value == pytest.approx(0.4)
    assert under.value == pytest.approx(-0.4)


@pytest.mark.parametrize("confidence", [math.nan, 1.00001, -0.00001, 17.0])
def test_what_is_no_probability(confidence):
    with pytest.raises(DataError, match=r"confidence is .* in 1 row \(1\)"):
        ece(torch.tensor([0.5, confidence]), torch.tensor([1, 0]))


def test_other_mistakes():
    with pytest.raises(ShapeError):
        ece(torch.zeros(7), torch.zeros(7, 1))
    with pytest.raises(DataError, match="0 or 1"):
        ece(torch.zeros(2), torch.tensor([0, 3]))
    with pytest.raises(DataError, match="bins"):
        ece(torch.zeros(2), torch.zeros(2), bins=0)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=100), st.integers(1, 20))
def test_against_a_loop_over_bins(rows, bins):
    confidence = torch.tensor([level / 60 for level, _ in rows], dtype=torch.float64)
    correct = torch.tensor([right for _, right in rows])
    table = reliability(confidence, correct, bins)
    assert int(table.count.sum()) == len(rows)
    expected = 0.0
    for index in range(bins):
        inside = [
            (c, y)
            for c, y in zip(confidence.tolist(), correct.tolist())
            if index / bins < c <= (index + 1) / bins or (index == 0 and c == 0)
        ]
        assert table.count[index] == len(inside)
        expected += abs(sum(c - y for c, y in inside)) / len(rows)
    metric = ece(confidence, correct, bins)
    filled = table.count > 0
    from_table = (table.count[filled] * table.gap[filled].abs()).sum().item() / len(rows)
    # sums of at most 100 float64
    assert metric.value == pytest.approx(expected, abs=1e-13)
    assert metric.value == pytest.approx(from_table, abs=1e-13)
    signed = (table.count[filled] * table.gap[filled]).sum().item() / len(rows)
    assert confidence_gap(confidence, correct).value == pytest.approx(signed, abs=1e-13)
    assert len(rows) == 1 or metric.low <= metric.value <= metric.high


@pytest.mark.parametrize("slope", [1.0, 0.9, 0.6])
def test_the_interval_holds_the_truth(slope):
    # Confidences at the middle of bins 5..14 of 15, right with probability slope * confidence: the binned error of the
    # population is (1 - slope) * mean confidence, 0 for the calibrated one.
    generator = torch.Generator().manual_seed(0)
    middles = (torch.arange(5, 15, dtype=torch.float64) + 0.5) / 15
    truth = (1 - slope) * middles.mean().item()
    held = 0
    for _ in range(400):
        confidence = middles[torch.randint(10, (199,), generator=generator)]
        correct = torch.rand(199, generator=generator, dtype=torch.float64) < slope * confidence
        metric = ece(confidence, correct)
        # a calibrated model has an ECE above 0 in every sample: the interval has to reach down to 0 from there
        held += metric.low <= truth <= metric.high
    # By construction at least 95 in 100; fewer than this in 400 has probability 1e-3.
    assert held >= stats.binom.ppf(1e-3, 400, 0.95)


def test_the_interval_of_a_clear_error_is_that_of_a_mean():
    # One bin, far from calibrated: ECE = |mean(confidence - correct)|, so the two intervals agree but for the two half
    # rows, a relative 1 / (2 * 1009) of the variance, the Monte Carlo quantile, 3 %, and t against normal.
    generator = torch.Generator().manual_seed(1)
    confidence, correct = torch.full((1009,), 0.95), torch.rand(1009, generator=generator) < 0.5
    metric, mean = ece(confidence, correct), confidence_gap(confidence, correct)
    assert metric.value == pytest.approx(mean.value)
    assert metric.high - metric.value == pytest.approx(mean.high - mean.value, rel=0.06)
    assert metric.value - metric.low == pytest.approx(mean.value - mean.low, rel=0.06)


def test_no_error_seen_is_not_no_error():
    metric = ece(torch.ones(3), torch.ones(3))
    assert metric.value == 0
    assert metric.high > 0.1
