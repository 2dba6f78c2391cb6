"""Intervals and quantiles of a regression."""

import math

import pytest
import torch
from scipy import stats

from posterity.errors import DataError, ShapeError
from posterity.evaluation.intervals import (
    covered_rows,
    interval_coverage,
    interval_score,
    interval_width,
    pit,
    quantile_loss,
)

LOWER = torch.tensor([0.0, 0.0, 0.0, 0.0])
UPPER = torch.tensor([1.0, 2.0, 1.0, 2.0])
Y = torch.tensor([1.0, -0.5, 3.0, 0.0])  # at an end, half below, two above, at an end


def test_by_hand():
    coverage = interval_coverage(LOWER, UPPER, Y)
    assert coverage.value == 0.5
    assert coverage[1:3] == pytest.approx(stats.binomtest(2, 4).proportion_ci(0.95, "exact"), abs=1e-9)
    assert interval_width(LOWER, UPPER).value == 1.5
    # level 0.8: 2 / 0.2 = 10 per unit outside: 1, 2 + 5, 1 + 20, 2
    assert interval_score(LOWER, UPPER, Y, level=0.8).value == pytest.approx((1 + 7 + 21 + 2) / 4)


def test_several_outputs_count_once():
    lower, upper = torch.zeros(2, 3), torch.ones(2, 3)
    y = torch.tensor([[0.5, 0.5, 2.0], [0.5, 0.5, 0.5]])
    assert covered_rows(lower, upper, y).tolist() == pytest.approx([2 / 3, 1])
    coverage = interval_coverage(lower, upper, y)
    assert coverage.value == pytest.approx(5 / 6)
    assert coverage.n == 2
    assert coverage.high == 1
    assert interval_width(lower, upper).value == 1


def test_a_single_output_on_its_own_axis_is_exact():
    flat = interval_coverage(LOWER, UPPER, Y)
    assert interval_coverage(LOWER[:, None], UPPER[:, None], Y[:, None]) == flat


def test_no_rows():
    none = torch.zeros(0)
    for metric in (
        interval_coverage(none, none, none),
        interval_width(none, none),
        interval_score(none, none, none),
        quantile_loss(none, none, 0.5),
    ):
        assert math.isnan(metric.value)
        assert metric[3:] == (0, "no rows")


def test_quantile_loss_by_hand_and_at_its_best():
    # 0.9 * 1 above, 0.1 * 2 below
    assert quantile_loss(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.0]), 0.9).value == pytest.approx(0.55)
    y = torch.arange(1.0, 102.0)  # the quantile 0.9 of 1..101 is 91
    losses = {q: quantile_loss(torch.full_like(y, q), y, 0.9).value for q in (85.0, 90.0, 91.0, 92.0, 97.0)}
    assert min(losses, key=lambda q: losses[q]) == 91


def test_interval_score_is_best_at_the_true_quantiles():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(20_011, generator=generator, dtype=torch.float64)
    z = stats.norm.ppf(0.95)
    scores = {
        width: interval_score(torch.full_like(y, -width), torch.full_like(y, width), y, 0.9).value
        for width in (0.7 * z, z, 1.3 * z)
    }
    assert min(scores, key=lambda width: scores[width]) == z
    # 2 * phi(z) / 0.05 = 4.1266 for the standard normal: E = 2z + (2/0.1) * 2 (phi(z) - 0.05 z); the error is 0.015
    assert scores[z] == pytest.approx(40 * stats.norm.pdf(z), abs=0.06)


def test_pit_of_a_calibrated_and_a_narrow_prediction():
    y = torch.randn(1009, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    right = pit(torch.special.ndtr, y)
    narrow = pit(lambda y: torch.special.ndtr(2 * y), y)
    # Kolmogorov's test: seeded, so it either always passes or never does
    assert stats.kstest(right.numpy(), "uniform").pvalue > 0.01
    assert stats.kstest(narrow.numpy(), "uniform").pvalue < 1e-6


def test_mistakes():
    with pytest.raises(DataError, match="above upper in 1 of 2"):
        interval_coverage(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 1.0]), torch.zeros(2))
    with pytest.raises(DataError, match="y is NaN in 1 row"):
        interval_coverage(torch.zeros(2), torch.ones(2), torch.tensor([0, math.nan]))
    with pytest.raises(ShapeError):
        interval_coverage(torch.zeros(7), torch.ones(7), torch.zeros(7, 1))
    with pytest.raises(DataError, match="level"):
        interval_score(LOWER, UPPER, Y, level=90)
    with pytest.raises(DataError, match="level"):
        quantile_loss(LOWER, Y, level=0)
    with pytest.raises(DataError, match=r"cdf\(y\) is outside"):
        pit(lambda y: y + 2, torch.zeros(7))
    with pytest.raises(ShapeError):
        pit(lambda y: y[:, None], torch.zeros(7))
