"""Calibration: edges of bins, empty bins, and the interval of the ECE."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from posterity.errors import CompatibilityError, DataError, ShapeError
from posterity.evaluation.calibration import confidence_gap, ece, ece_of, reliability
from posterity.evaluation.classwise import Classwise

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


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=60), st.integers(1, 20))
def test_equal_mass(rows, bins):
    confidence = torch.tensor([level / 12 for level, _ in rows], dtype=torch.float64)
    correct = torch.tensor([right for _, right in rows])
    table = reliability(confidence, correct, bins, mass=True)
    assert int(table.count.sum()) == len(rows)
    assert len(table.count) <= bins
    assert (table.count > 0).all()
    # every row is between the edges of its bin, so that ties are together; counts differ by the ties at both ends
    inside = (table.lower < confidence[:, None]) & (confidence[:, None] <= table.upper)
    inside[:, 0] |= confidence == 0
    assert inside.sum(0).tolist() == table.count.tolist()
    widest = int(torch.bincount((confidence * 12).round().long()).max())
    assert int(table.count.max()) <= len(rows) / bins + widest + 1
    expected = sum(abs((confidence - correct.double())[inside[:, b]].sum().item()) for b in range(len(table.count)))
    assert ece(confidence, correct, bins, mass=True).value == pytest.approx(expected / len(rows), abs=1e-13)


def test_equal_mass_without_ties_is_equal():
    generator = torch.Generator().manual_seed(0)
    for rows in (15, 16, 29, 1009):
        table = reliability(torch.rand(rows, generator=generator) ** 0.1, torch.ones(rows), mass=True)
        assert int(table.count.max() - table.count.min()) <= 1
        assert len(table.count) == 15


@pytest.mark.parametrize("slope", [1.0, 0.6])
def test_the_interval_of_equal_mass_holds_the_truth(slope):
    # right with probability slope * confidence: the error is (1 - slope) E[confidence] = (1 - slope) 3/4 in any bins
    generator = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(400):
        confidence = 0.5 + 0.5 * torch.rand(199, generator=generator, dtype=torch.float64)
        correct = torch.rand(199, generator=generator, dtype=torch.float64) < slope * confidence
        metric = ece(confidence, correct, mass=True)
        held += metric.low <= (1 - slope) * 0.75 <= metric.high
    assert held >= stats.binom.ppf(1e-3, 400, 0.95)


def test_number_and_diagram_are_one_table():
    generator = torch.Generator().manual_seed(0)
    confidence, correct = torch.rand(101, generator=generator), torch.rand(101, generator=generator) < 0.5
    for mass in (False, True):
        assert ece(confidence, correct, 7, mass) == ece_of(reliability(confidence, correct, 7, mass))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_classwise_of_blocks_is_that_of_the_whole(dtype):
    generator = torch.Generator().manual_seed(0)
    probs = (3 * torch.randn(101, 5, generator=generator, dtype=dtype)).softmax(1)
    targets = torch.randint(5, (101,), generator=generator)
    whole = Classwise.of(probs, targets, 7)
    for cuts in ([50, 51], [1, 100], [0, 101], [29, 31, 41]):
        parts = [Classwise.of(p, y, 7) for p, y in zip(probs.split(cuts), targets.split(cuts))]
        merged = parts[0]
        for part in parts[1:]:
            merged = merged + part
        assert merged.count.equal(whole.count)
        assert merged.hits.equal(whole.hits)
        # float64 sums of 101 in another order
        assert merged.ece()[:3] == pytest.approx(whole.ece()[:3], rel=1e-12)
    assert whole.count.shape == (5, 7)
    for index, metric in enumerate(whole.per_class()):
        expected = ece(probs[:, index], targets == index, 7)
        assert metric[:4] == pytest.approx(expected[:4], rel=1e-9)
    low = sum(metric.value for metric in whole.per_class()) / 5
    assert whole.ece().value == pytest.approx(low)
    assert whole.ece().n == 101


def test_classwise_that_does_not_fit():
    tallies = Classwise.of(torch.full((7, 5), 0.2), torch.zeros(7, dtype=torch.int64))
    with pytest.raises(CompatibilityError, match=r"\[5, 15\] and \[3, 15\]"):
        tallies + Classwise.of(torch.full((7, 3), 0.2), torch.zeros(7, dtype=torch.int64))
    with pytest.raises(ShapeError):
        Classwise.of(torch.full((7,), 0.2), torch.zeros(7, dtype=torch.int64))
    with pytest.raises(DataError, match=r"0\.\.4"):
        Classwise.of(torch.full((7, 5), 0.2), torch.full((7,), 5))
    assert [metric.reason for metric in Classwise.of(torch.zeros(0, 2), torch.zeros(0).long()).per_class()] == [
        "no rows"
    ] * 2


@pytest.mark.parametrize("sharpness", [1.0, 1.5])
def test_the_interval_of_the_classwise_error_holds_the_truth(sharpness):
    # Five rows of logits, each in a bin of its own for every class, drawn at random; what is said is sharper than what
    # is so. The binned error of the population is then the mean over the rows and classes of |said - so|.
    logits = torch.tensor(
        [[0.8, 0.3, 0.1], [0.8, -1.1, 1.7], [0.9, 0.9, 0.6], [-0.3, -0.2, 0.6], [1.7, 0.1, -2.3]], dtype=torch.float64
    )
    so, said = logits.softmax(1), (sharpness * logits).softmax(1)
    assert all(len((said[:, c] * 15).ceil().unique()) == 5 for c in range(3))
    truth = (said - so).abs().mean().item()
    generator = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(300):
        rows = torch.randint(5, (199,), generator=generator)
        targets = torch.multinomial(so[rows], 1, generator=generator).flatten()
        metric = Classwise.of(said[rows], targets).ece()
        held += metric.low <= truth <= metric.high
    assert held >= stats.binom.ppf(1e-3, 300, 0.95)
