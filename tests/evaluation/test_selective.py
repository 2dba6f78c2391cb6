"""Selective prediction: ties, a quadratic reference, and intervals."""

import math
import time
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from posterity.errors import DataError, ShapeError
from posterity.evaluation.metric import clopper_pearson
from posterity.evaluation.selective import (
    aurc,
    best_threshold,
    coverage_at_risk,
    effective_reliability,
    excess_aurc,
    risk_coverage,
)

ROWS = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40)


def quadratic(confidence, correct):
    """The mean over i of the expected risk of the i most confident rows, by its definition."""
    n, total = len(confidence), 0.0
    for i in range(1, n + 1):
        threshold = sorted(confidence, reverse=True)[i - 1]
        above = [1 - y for c, y in zip(confidence, correct) if c > threshold]
        tie = [1 - y for c, y in zip(confidence, correct) if c == threshold]
        total += (sum(above) + (i - len(above)) * sum(tie) / len(tie)) / i
    return total / n


@pytest.mark.parametrize(
    ("confidence", "correct", "risk", "area"),
    [
        ([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0], [0, 0, 1 / 3, 1 / 2], 5 / 24),
        ([0.9, 0.8, 0.7, 0.6], [0, 0, 1, 1], [1, 1, 2 / 3, 1 / 2], 19 / 24),
        ([0.5, 0.5, 0.5, 0.5], [1, 0, 0, 1], [1 / 2] * 4, 1 / 2),  # one tie: the error rate
        ([0.9, 0.5, 0.5, 0.1, 0.1, 0.1], [1, 1, 0, 0, 0, 1], [0, 1 / 4, 1 / 3, 5 / 12, 7 / 15, 1 / 2], 59 / 180),
        ([0.3], [0], [1], 1),
        ([0.3, 0.3], [1, 1], [0, 0], 0),
    ],
)
def test_by_hand(confidence, correct, risk, area):
    curve = risk_coverage(torch.tensor(confidence), torch.tensor(correct))
    n = len(confidence)
    assert curve.risk.tolist() == pytest.approx(risk)
    assert curve.coverage.tolist() == pytest.approx([(i + 1) / n for i in range(n)])
    assert curve.confidence.tolist() == pytest.approx(sorted(confidence, reverse=True))
    assert aurc(torch.tensor(confidence), torch.tensor(correct)).value == pytest.approx(area)


def test_ties_are_the_mean_over_their_orders():
    errors = [1, 0, 0, 1, 0]
    areas = [sum(sum(order[:i]) / i for i in range(1, 6)) / 5 for order in permutations(errors)]
    value = aurc(torch.full((5,), 0.7), 1 - torch.tensor(errors)).value
    assert value == pytest.approx(sum(areas) / len(areas), rel=1e-12)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(ROWS)
def test_against_the_quadratic_reference(rows):
    confidence, correct = [float(c) for c, _ in rows], [int(y) for _, y in rows]
    metric = aurc(torch.tensor(confidence), torch.tensor(correct))
    assert metric.value == pytest.approx(quadratic(confidence, correct), rel=1e-12, abs=1e-15)
    assert 0 <= metric.low <= metric.value <= metric.high <= 1
    backwards = aurc(torch.tensor(confidence[::-1]), torch.tensor(correct[::-1]))
    assert backwards[:3] == pytest.approx(metric[:3], rel=1e-9)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(ROWS)
def test_excess_is_what_the_perfect_order_would_save(rows):
    confidence, correct = [float(c) for c, _ in rows], [int(y) for _, y in rows]
    metric = excess_aurc(torch.tensor(confidence), torch.tensor(correct))
    # the perfect confidence: 1 where right, 0 where wrong; inside either the order is without consequence
    best = quadratic([float(y) for y in correct], correct)
    assert metric.value == pytest.approx(quadratic(confidence, correct) - best, rel=1e-9, abs=1e-14)
    assert 0 <= metric.low <= metric.value <= metric.high <= math.log(2)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(ROWS, st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0]))
def test_best_threshold_against_every_threshold(rows, cost):
    confidence, correct = torch.tensor([float(c) for c, _ in rows]), torch.tensor([int(y) for _, y in rows])
    found = best_threshold(confidence, correct, cost)
    values = {
        t: effective_reliability(confidence, correct, t, cost).value for t in [*set(confidence.tolist()), math.inf]
    }
    assert values[found] == pytest.approx(max(values.values()), abs=1e-12)
    assert all(value < values[found] - 1e-12 for t, value in values.items() if t < found)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(ROWS, st.integers(0, 10))
def test_coverage_at_risk_against_every_threshold(rows, tenths):
    confidence, correct = [float(c) for c, _ in rows], [int(y) for _, y in rows]
    expected = 0.0
    for threshold in set(confidence):
        answered = [1 - y for c, y in zip(confidence, correct) if c >= threshold]
        if sum(answered) / len(answered) <= tenths / 10:
            expected = max(expected, len(answered) / len(rows))
    metric = coverage_at_risk(torch.tensor(confidence), torch.tensor(correct), tenths / 10)
    assert metric.value == pytest.approx(expected)


def test_coverage_at_risk_by_hand():
    # risks 1, 1/2, 1/3, 1/4, 2/5: falls before it rises, so the search has to come from the end
    confidence, correct = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]), torch.tensor([0, 1, 1, 1, 0])
    assert coverage_at_risk(confidence, correct, 0.25).value == 0.8
    assert coverage_at_risk(confidence, correct, 0.2).value == 0
    assert coverage_at_risk(confidence, correct, 1.0).value == 1
    # a tie enters whole: without its error the first three would do
    assert coverage_at_risk(torch.tensor([0.9, 0.5, 0.5, 0.5]), torch.tensor([1, 1, 1, 0]), 0.1).value == 0.25


def test_no_rows_one_row_and_one_class():
    none, flag = torch.zeros(0), torch.zeros(0, dtype=torch.bool)
    assert aurc(none, flag)[3:] == (0, "no rows")
    assert math.isnan(aurc(none, flag).value)
    assert math.isnan(coverage_at_risk(none, flag).value)
    assert coverage_at_risk(torch.ones(1), torch.ones(1)).value == 1
    assert math.isnan(coverage_at_risk(torch.ones(1), torch.ones(1)).low)
    # no error in 7 rows: the upper exact bound of the error rate e, in the worst order: e + integral_e^1 e / t dt
    bound = clopper_pearson(0, 7)[1]
    right, wrong = aurc(torch.arange(7.0), torch.ones(7)), aurc(torch.arange(7.0), torch.zeros(7))
    assert right[:3] == (0, 0, pytest.approx(bound * (1 - math.log(bound))))
    # no right row: the accuracy a at the bound, in the best order: integral_a^1 (t - a) / t dt
    assert wrong[:3] == (1, pytest.approx(1 - bound + bound * math.log(bound)), 1)


@pytest.mark.parametrize("power", [0.2, 0.02])
def test_the_interval_of_the_aurc_holds_the_truth(power):
    # c = u^power, right with probability c: risk of the share t most confident is (1/t) int (1 - (1-s)^power) ds over
    # [0, t], and AURC its mean over t, by quadrature. Error rates 1/6 and 1/51.
    generator = torch.Generator().manual_seed(0)
    s = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    truth = ((1 - (1 - s) ** power).cumsum(0) / torch.arange(1, 200_001)).mean().item()
    held = 0
    for _ in range(400):
        confidence = torch.rand(307, generator=generator, dtype=torch.float64) ** power
        metric = aurc(confidence, torch.rand(307, generator=generator, dtype=torch.float64) < confidence)
        held += metric.low <= truth <= metric.high
    # right as n grows only: 0.94 for these 307 rows
    assert held >= stats.binom.ppf(1e-3, 400, 0.94)


def sharp(rate, apart):
    """The excess of confidences N(0, 1) of the wrong rows against N(apart, 1) of the right ones, by quadrature.

    AURC = E[error * -log(share of rows at or above)], of which the perfect order has r + (1 - r) log(1 - r).
    """
    z = torch.linspace(-7, 7, 100_001, dtype=torch.float64)
    above = rate * torch.special.ndtr(-z) + (1 - rate) * torch.special.ndtr(apart - z)
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    area = rate * torch.trapezoid(density * -above.log(), z).item()
    return area - (rate + (1 - rate) * math.log(1 - rate))


@pytest.mark.parametrize(("rate", "apart"), [(0.03, 2.0), (0.2, 1.0), (0.2, 4.0), (0.6, 2.0)])
def test_the_interval_of_the_excess_holds_the_truth(rate, apart):
    generator = torch.Generator().manual_seed(0)
    truth, held = sharp(rate, apart), 0
    for _ in range(400):
        wrong = torch.rand(307, generator=generator) < rate
        confidence = torch.randn(307, generator=generator, dtype=torch.float64) + apart * ~wrong
        metric = excess_aurc(confidence, ~wrong)
        held += metric.low <= truth <= metric.high
    # right as n grows only: 0.94 for these 307 rows, in which 9 errors may have one that is misplaced
    assert held >= stats.binom.ppf(1e-3, 400, 0.94)


@pytest.mark.parametrize("threshold", [0.0, 0.9, 0.99])
@pytest.mark.parametrize("cost", [1.0, 10.0])
def test_the_interval_of_the_effective_reliability_holds_the_truth(cost, threshold):
    # c = u^0.1, right with probability c, answered for u >= threshold^10: the integral of c - cost (1 - c) over those
    generator = torch.Generator().manual_seed(0)
    start = threshold**10
    truth = (1 + cost) * (1 - start**1.1) / 1.1 - cost * (1 - start)
    for n in (29, 307):
        held = 0
        for _ in range(200):
            u, chance = torch.rand(2, n, generator=generator, dtype=torch.float64)
            metric = effective_reliability(u**0.1, chance < u**0.1, threshold, cost)
            held += metric.low <= truth <= metric.high
        # made of two exact intervals: 0.95
        assert held >= stats.binom.ppf(1e-3, 200, 0.95)


def test_coverage_at_risk_is_cheap():
    confidence, chance = torch.rand(2, 20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        coverage_at_risk(confidence, chance < confidence, 0.1)
        seconds.append(time.process_time() - start)
        if seconds[-1] < 2:
            break
    # measured: 0.35 s on an idle core; sorting every replicate takes 3.3 s
    assert min(seconds) < 2


@pytest.mark.parametrize("levels", [10, 10**9])
def test_the_standard_error_of_the_aurc_is_that_of_the_jackknife(levels):
    generator = torch.Generator().manual_seed(0)
    confidence = (torch.rand(211, generator=generator, dtype=torch.float64) * levels).ceil() / levels
    correct = torch.rand(211, generator=generator, dtype=torch.float64) < confidence
    metric = aurc(confidence, correct)
    kept = [[j for j in range(211) if j != i] for i in range(211)]
    without = torch.tensor([aurc(confidence[rows], correct[rows]).value for rows in kept])
    jackknife = math.sqrt(211 - 1) * without.std(correction=0).item()
    wrong = int((~correct).sum())
    error = metric.value * math.log(metric.high / metric.value) / stats.t.ppf(0.975, min(wrong, 211 - wrong))
    # the two differ by terms of order log(n) / n = 2.5 % of themselves
    assert error == pytest.approx(jackknife, rel=0.03)


def test_mistakes():
    with pytest.raises(DataError, match="NaN in 1 row"):
        aurc(torch.tensor([0.5, math.nan]), torch.tensor([1, 0]))
    with pytest.raises(ShapeError):
        aurc(torch.zeros(7), torch.zeros(7, 1))
    with pytest.raises(DataError, match="fraction"):
        coverage_at_risk(torch.zeros(7), torch.zeros(7), 5)
