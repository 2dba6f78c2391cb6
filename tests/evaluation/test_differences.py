"""Paired differences: the statistics, what they agree with, and that their intervals hold the truth."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from posterity.errors import DataError, ShapeError
from posterity.evaluation import calibration, selective
from posterity.evaluation.differences import aurc, ece, mean, paired_difference, root_mean
from posterity.evaluation.measured import pooled
from posterity.evaluation.metric import bootstrap, mean_interval

ROWS = st.lists(st.tuples(st.integers(0, 15), st.booleans()), min_size=1, max_size=40)


def rows(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(ROWS, st.sampled_from([torch.float32, torch.float64]))
def test_statistics_are_the_metrics(table, dtype):
    # fifteenths: at the edges of the bins, where the dtype decides
    confidence = torch.tensor([k / 15 for k, _ in table], dtype=dtype)
    correct = torch.tensor([right for _, right in table])
    assert ece(confidence, correct).item() == pytest.approx(calibration.ece(confidence, correct).value, abs=1e-12)
    assert aurc(confidence, correct).item() == pytest.approx(selective.aurc(confidence, correct).value, abs=1e-12)


def test_statistics_work_over_the_last_axis():
    confidence, correct = (rows(0, 5, 3, 11) * 4).ceil() / 4, rows(1, 5, 3, 11) < 0.5
    one, two = (confidence,), (confidence, correct)
    for statistic, columns in ((mean, one), (root_mean, one), (ece, two), (aurc, two)):
        whole = statistic(*columns)
        assert whole.shape == (5, 3)
        assert whole[4, 1].item() == pytest.approx(statistic(*(column[4, 1] for column in columns)).item(), abs=1e-12)
    assert root_mean(torch.tensor([9.0, 16.0])).item() == pytest.approx(3.5355339059327378)


@pytest.mark.parametrize("statistic", [mean, root_mean])
def test_counting_rows_is_drawing_them(statistic):
    first, second = rows(0, 101), rows(1, 101)
    fast = paired_difference(statistic, [(first,)], [(second,)], replicates=300, seed=5)
    slow = paired_difference(lambda values: statistic(values), [(first,)], [(second,)], replicates=300, seed=5)
    assert fast[:4] == pytest.approx(slow[:4], abs=1e-12)


def test_one_index_for_all_columns():
    # the second is the first plus 1 in every row: the difference is -1 whichever rows are drawn
    values = rows(0, 53)
    metric = paired_difference(mean, [(values,)], [(values + 1,)])
    assert metric[:4] == pytest.approx((-1, -1, -1, 53), abs=1e-12)
    # unpaired, either mean alone is off by more than 0.1
    assert bootstrap(mean, values).high - bootstrap(mean, values).low > 0.1


def test_comparisons_of_one_pair_are_pooled():
    keys = {"method": "b", "via": "draws", "baseline": "a", "baseline_via": "draws", "n": 9, "reason": None}
    lines = [
        {"metric": "nll", "value": value, "low": value - 9, "high": value + 9, **keys} for value in (0.1, 0.2, 0.6)
    ] + [{"metric": "rmse", "value": 1.0, "low": 0.5, "high": 1.5, **keys}]
    found = pooled({name: [line[name] for line in lines] for name in lines[0]})
    assert found["metric"] == ["nll", "rmse"]
    half = stats.t.ppf(0.975, 2) * np.std([0.1, 0.2, 0.6], ddof=1) / 3**0.5
    assert found["value"][0] == pytest.approx(0.3)
    assert (found["low"][0], found["high"][0]) == pytest.approx((0.3 - half, 0.3 + half))
    assert (found["value"][1], found["low"][1], found["high"][1]) == (1.0, 0.5, 1.5)
    assert pooled({}) == {}


def test_the_mean_over_seeds():
    first, second = [(rows(seed, 53),) for seed in range(3)], [(rows(seed, 53),) for seed in range(3, 5)]
    metric = paired_difference(mean, first, second)
    columns = torch.stack([c for (c,) in first]).mean(0) - torch.stack([c for (c,) in second]).mean(0)
    expected = mean_interval(columns)
    assert metric.value == pytest.approx(expected.value)
    # percentile against Student: 1000 replicates give the quantiles to 5 % of a std or 3 % of the half-width, t / z is
    # 1.024 and the std with n below the line 0.99; both quantiles at twice that
    assert metric.high - metric.low == pytest.approx(expected.high - expected.low, rel=0.1)
    swapped = paired_difference(mean, second, first)
    assert swapped[:3] == pytest.approx((-metric.value, -metric.high, -metric.low))
    confidence, correct = rows(8, 53), rows(9, 53) < 0.7
    for statistic in (ece, aurc):
        other = [(rows(seed, 53), correct) for seed in (10, 11)]
        values = [statistic(*run).item() for run in other]
        metric = paired_difference(statistic, [(confidence, correct)], other)
        assert metric.value == pytest.approx(statistic(confidence, correct).item() - sum(values) / 2, abs=1e-12)
        assert metric.low < metric.value < metric.high


@pytest.mark.parametrize("statistic", [ece, aurc])
def test_a_method_against_itself(statistic):
    confidence, correct = rows(0, 307), rows(1, 307) < 0.7
    metric = paired_difference(statistic, [(confidence, correct)], [(confidence, correct)])
    assert metric.value == 0
    assert metric.low <= 0 <= metric.high


def test_no_rows_one_row_and_an_infinite_one():
    for statistic, width in ((mean, 1), (ece, 2), (aurc, 2)):
        none, one = (torch.zeros(0),) * width, (torch.ones(1),) * width
        assert paired_difference(statistic, [none], [none])[3:] == (0, "no rows")
        assert paired_difference(statistic, [one], [one])[3:] == (1, "an interval needs at least two rows")
    metric = paired_difference(mean, [(torch.tensor([0.5, math.inf]),)], [(torch.zeros(2),)])
    assert metric.value == math.inf
    assert math.isnan(metric.low)
    assert "undefined" in metric.reason


def test_no_error_seen_is_not_no_difference():
    right = torch.ones(29)
    metric = paired_difference(aurc, [(rows(0, 29), right)], [(rows(1, 29), right)])
    bound = selective.aurc(rows(0, 29), right).high
    assert metric[:3] == pytest.approx((0, -bound, bound))


def test_mistakes():
    with pytest.raises(DataError, match="both methods"):
        paired_difference(mean, [], [(torch.zeros(7),)])
    with pytest.raises(DataError, match=r"second is NaN in 1 row \(1\)"):
        paired_difference(mean, [(torch.zeros(2),)], [(torch.tensor([0, math.nan]),)])
    with pytest.raises(ShapeError, match="same rows"):
        paired_difference(mean, [(torch.zeros(7),)], [(torch.zeros(5),)])


# Intervals that hold the truth 95 times in 100 as n grows; 0.93 is allowed for, and fewer than this in 300 trials has
# then probability 1e-3.
HELD = stats.binom.ppf(1e-3, 300, 0.93)


@pytest.mark.parametrize("statistic", [mean, root_mean])
def test_the_interval_holds_the_truth(statistic):
    generator = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(300):
        # hard rows are hard for both: errors z + e of variance 2 against z of variance 1
        shared, own = torch.randn(2, 211, generator=generator, dtype=torch.float64)
        first, second = (shared + own).square(), shared.square()
        truth = 1.0 if statistic is mean else math.sqrt(2) - 1
        metric = paired_difference(statistic, [(first,)], [(second,)], replicates=400)
        held += metric.low <= truth <= metric.high
    assert held >= HELD


@pytest.mark.parametrize(("first", "second"), [(1.0, 0.6), (1.0, 0.9), (1.0, 1.0)])
def test_the_interval_of_the_ece_holds_the_truth(first, second):
    # As in test_reliability: the binned error of the population is (1 - slope) * mean confidence.
    generator = torch.Generator().manual_seed(0)
    middles = (torch.arange(5, 15, dtype=torch.float64) + 0.5) / 15
    truth = (second - first) * middles.mean().item()
    held = 0
    for _ in range(300):
        confidence = middles[torch.randint(10, (199,), generator=generator)]
        chance = torch.rand(199, generator=generator, dtype=torch.float64)
        runs = [(confidence, chance < slope * confidence) for slope in (first, second)]
        metric = paired_difference(ece, runs[:1], runs[1:])
        held += metric.low <= truth <= metric.high
    assert held >= stats.binom.ppf(1e-3, 300, 0.95)


@pytest.mark.parametrize("power", [0.2, 0.02])
def test_the_interval_of_the_aurc_holds_the_truth(power):
    # As in test_selective: c = u^power against a confidence that is noise, whose AURC is the error rate.
    generator = torch.Generator().manual_seed(0)
    s = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    area = ((1 - (1 - s) ** power).cumsum(0) / torch.arange(1, 200_001)).mean().item()
    truth = area - (1 - 1 / (1 + power))
    held = 0
    for _ in range(300):
        u, chance, noise = torch.rand(3, 307, generator=generator, dtype=torch.float64)
        correct = chance < u**power
        metric = paired_difference(aurc, [(u**power, correct)], [(noise, correct)])
        held += metric.low <= truth <= metric.high
    assert held >= HELD
