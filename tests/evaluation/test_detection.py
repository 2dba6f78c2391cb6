"""AUROC: orientation, ties, one value, and intervals."""

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from posterity.errors import DataError, ShapeError
from posterity.evaluation.detection import aupr, auroc, fpr_at_tpr

LEVELS = st.lists(st.integers(0, 5), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("familiar", "foreign", "expected"),
    [
        ([0, 1], [2, 3], 1.0),  # larger = more foreign
        ([2, 3], [0, 1], 0.0),
        ([0, 1], [1, 2], 3.5 / 4),  # a tie is half a pair
        ([1, 1], [1, 2], 3 / 4),
        ([0], [1], 1.0),
        ([1], [0], 0.0),
        ([0, 2], [1], 0.5),
        ([-math.inf, 0], [0, math.inf], 3.5 / 4),
    ],
)
def test_by_hand(familiar, foreign, expected):
    metric = auroc(torch.tensor(familiar), torch.tensor(foreign))
    assert metric.value == pytest.approx(expected)
    assert metric.n == len(familiar) + len(foreign)
    assert 0 <= metric.low <= metric.value <= metric.high <= 1
    assert metric.low < metric.high  # separated or not, so few rows leave much open
    assert metric.reason is None


def test_one_value_tells_nothing():
    metric = auroc(torch.zeros(7), torch.zeros(3))
    assert math.isnan(metric.value)
    assert metric[3:] == (10, "every row has the same value")
    assert auroc(torch.zeros(7), torch.ones(3)).value == 1


def test_both_sets_are_needed():
    with pytest.raises(DataError, match="7 in-distribution and 0 out-of-distribution"):
        auroc(torch.zeros(7), torch.zeros(0))
    with pytest.raises(DataError, match="0 in-distribution and 7 out-of-distribution"):
        auroc(torch.zeros(0), torch.zeros(7))


def test_mistakes():
    with pytest.raises(DataError, match=r"ood_scores is NaN in 1 row \(1\)"):
        auroc(torch.zeros(7), torch.tensor([0, math.nan]))
    with pytest.raises(ShapeError, match="one number per row"):
        auroc(torch.zeros(7), torch.zeros(7, 5))


@settings(derandomize=True, max_examples=50, deadline=None)
@given(LEVELS, LEVELS)
def test_against_scikit_learn(familiar, foreign):
    metric = auroc(torch.tensor(familiar), torch.tensor(foreign))
    if len({*familiar, *foreign}) == 1:
        assert math.isnan(metric.value)
        return
    labels = [0] * len(familiar) + [1] * len(foreign)
    assert metric.value == pytest.approx(roc_auc_score(labels, familiar + foreign), abs=1e-12)
    mirrored = auroc(torch.tensor(foreign), torch.tensor(familiar))
    assert mirrored[:3] == pytest.approx((1 - metric.value, 1 - metric.high, 1 - metric.low), abs=1e-9)


def test_delong_by_hand():
    # familiar 0, 1, 3; foreign 2, 4: psi = 2/3, 1, phi = 1, 1, 1/2; variances 1/18 and 1/12
    metric = auroc(torch.tensor([0, 1, 3]), torch.tensor([2, 4]))
    value, half = 5 / 6, 1.959963984540054 * math.sqrt(1 / 36 + 1 / 36) / (5 / 36)
    assert metric.value == pytest.approx(value)
    assert metric.low == pytest.approx(1 / (1 + math.exp(-math.log(5) + half)))
    assert metric.high == pytest.approx(1 / (1 + math.exp(-math.log(5) - half)))


def test_separated_sets_by_hand():
    # one row each: V(A0) = A0 (1 - A0), so 1 - A0 = z sqrt(A0 (1 - A0)) and A0 = 1 / (1 + z^2)
    assert auroc(torch.zeros(1), torch.ones(1)).low == pytest.approx(1 / (1 + 1.959963984540054**2), rel=1e-9)


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
@pytest.mark.parametrize(("m", "n"), [(29, 53), (173, 101)])
def test_the_interval_holds_the_truth(shift, m, n):
    generator = torch.Generator().manual_seed(0)
    truth = NormalDist().cdf(shift / math.sqrt(2))
    held = 0
    for _ in range(400):
        familiar = torch.randn(m, generator=generator, dtype=torch.float64)
        metric = auroc(familiar, shift + torch.randn(n, generator=generator, dtype=torch.float64))
        held += metric.low <= truth <= metric.high
    # right as the sets grow only: 0.94 allowed for; fewer than this in 400 has then probability 1e-3
    assert held >= stats.binom.ppf(1e-3, 400, 0.94)
    assert held <= stats.binom.ppf(1 - 1e-3, 400, 0.97)


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
@pytest.mark.parametrize(("positive", "negative"), [(29, 53), (499, 23)])
def test_the_interval_of_the_average_precision_holds_the_truth(shift, positive, negative):
    # the mean precision over the positive rows, by quadrature
    generator = torch.Generator().manual_seed(0)
    z = torch.special.ndtri((torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000) + shift
    found, wrong = positive * torch.special.ndtr(shift - z), negative * torch.special.ndtr(-z)
    truth, held = (found / (found + wrong)).mean().item(), 0
    for _ in range(400):
        rows = shift + torch.randn(positive, generator=generator, dtype=torch.float64)
        metric = aupr(rows, torch.randn(negative, generator=generator, dtype=torch.float64))
        held += metric.low <= truth <= metric.high
    # Boyd's variance is that of a proportion, too large for most distributions of the precision: at least 0.95
    assert held >= stats.binom.ppf(1e-3, 400, 0.95)


def test_boyd_by_hand():
    # AP = 5/6 of two positive rows: logit log 5, half-width 1.96 / sqrt(2 * 5/36)
    metric = aupr(torch.tensor([1, 2]), torch.tensor([0, 1]))
    half = 1.959963984540054 / math.sqrt(10 / 36)
    assert metric.low == pytest.approx(1 / (1 + math.exp(-math.log(5) + half)))
    assert metric.high == pytest.approx(1 / (1 + math.exp(-math.log(5) - half)))


@pytest.mark.parametrize("shift", [0.0, 1.0, 6.0])
@pytest.mark.parametrize(("m", "n"), [(29, 53), (173, 101)])
def test_the_interval_of_the_fpr_holds_the_truth(shift, m, n):
    generator = torch.Generator().manual_seed(0)
    truth, held = NormalDist().cdf(NormalDist().inv_cdf(0.95) - shift), 0
    for _ in range(200):
        familiar = torch.randn(m, generator=generator, dtype=torch.float64)
        metric = fpr_at_tpr(familiar, shift + torch.randn(n, generator=generator, dtype=torch.float64))
        held += metric.low <= truth <= metric.high
    # two bounds that hold 97.5 in 100 each, whatever the distributions
    assert held >= stats.binom.ppf(1e-3, 200, 0.95)


def test_the_interval_of_the_fpr_by_hand():
    # P(X >= k) <= 0.0125 for X ~ Bin(100, 0.95) from k = 100 on
    # (0.95^100 = 0.0059; for 99 it is 0.037); row 100 is the largest.
    foreign = torch.arange(100.0)
    metric = fpr_at_tpr(torch.arange(100.0), foreign)
    below = max(k for k in range(101) if stats.binom.cdf(k - 1, 100, 0.95) <= 0.0125)
    assert metric.value == 0.95
    assert metric.high == 1  # row 100 is the largest: all of the foreign rows pass
    assert metric.low == pytest.approx(stats.beta.ppf(0.0125, below, 101 - below), rel=1e-9)
