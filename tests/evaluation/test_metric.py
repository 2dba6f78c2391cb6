"""Metrics as values, and the intervals that they carry."""

import json
import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from posterity.errors import DataError, ShapeError
from posterity.evaluation.metric import (
    NORMAL,
    Metric,
    as_events,
    as_rows,
    bootstrap,
    clopper_pearson,
    mean_interval,
    proportion_interval,
    student_t,
)

# A 95 % interval that does hold the truth 95 times in 100 misses more often than this in 400 trials with
# probability 1e-3: 364 of 400.
HELD = stats.binom.ppf(1e-3, 400, 0.95)


def test_json_is_strict_and_comes_back():
    metric = Metric(0.5, 0.25, 0.75, 7)
    assert metric.to_json() == {"value": 0.5, "low": 0.25, "high": 0.75, "n": 7}
    assert Metric.from_json(json.loads(json.dumps(metric.to_json(), allow_nan=False))) == metric


def test_json_of_nan_is_null_with_a_reason():
    record = Metric.undefined(7, "one class").to_json()
    assert record == {"value": None, "low": None, "high": None, "n": 7, "reason": "one class"}
    back = Metric.from_json(json.loads(json.dumps(record, allow_nan=False)))
    assert math.isnan(back.value)
    assert math.isnan(back.low)
    assert math.isnan(back.high)
    assert back[3:] == (7, "one class")


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_json_keeps_infinity_apart_from_undefined(value):
    record = json.loads(
        json.dumps(Metric(value, math.nan, math.nan, 7, "1 of 7 rows infinite").to_json(), allow_nan=False)
    )
    assert Metric.from_json(record).value == value


@pytest.mark.parametrize(
    "record", [{}, {"value": 1, "low": 0, "high": 2}, {"value": "x", "low": 0, "high": 1, "n": 2}, [1, 2], None]
)
def test_json_that_is_no_metric(record):
    with pytest.raises(DataError, match="not a metric"):
        Metric.from_json(record)


def test_mean_of_two_rows_by_hand():
    # m = 2, s = sqrt(2), t_1(0.975) = tan(0.475 pi) = 12.706: half-width 12.706 * sqrt(2) / sqrt(2)
    metric = mean_interval(torch.tensor([1.0, 3.0]))
    half = math.tan(0.475 * math.pi)
    assert metric.value == 2
    # The quantile is found by bisection to 1e-14 in x, and t^2 = x / (1 - x) with 1 - x = 0.006 here.
    assert metric.low == pytest.approx(2 - half, rel=1e-9)
    assert metric.high == pytest.approx(2 + half, rel=1e-9)
    assert metric[3:] == (2, None)


def test_mean_without_rows_with_one_row_and_with_an_infinite_row():
    empty, one = mean_interval(torch.zeros(0)), mean_interval(torch.tensor([3.0]))
    infinite = mean_interval(torch.tensor([1.0, math.inf, 2.0]))
    assert math.isnan(empty.value)
    assert empty[3:] == (0, "no rows")
    assert one.value == 3
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert one[3:] == (1, "an interval needs at least two rows")
    assert infinite.value == math.inf
    assert math.isnan(infinite.low)
    assert infinite[3:] == (3, "1 of 3 rows infinite")


def test_mean_interval_is_cut_to_its_range():
    metric = mean_interval(torch.tensor([0.0, 1.0]), 0.0, 1.0)
    assert (metric.low, metric.high) == (0, 1)


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 29, 1000, 100_000, 10_000_000])
def test_student_quantile(freedom):
    # lgamma near 1e8 has an absolute error of about 1e-8, which becomes a relative one of the density.
    assert student_t(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-8)


def test_normal_quantile():
    assert pytest.approx(stats.norm.ppf(0.975), rel=1e-14) == NORMAL


@pytest.mark.parametrize(
    ("k", "n"), [(0, 1), (1, 1), (1, 2), (0, 7), (3, 7), (7, 7), (1, 1000), (977, 1000), (500_000, 10**6), (3, 10**6)]
)
def test_clopper_pearson(k, n):
    low, high = clopper_pearson(k, n)
    # lgamma near 1e7 has an absolute error of about 1e-9.
    assert low == pytest.approx(stats.beta.ppf(0.025, k, n - k + 1) if k else 0, rel=1e-9)
    assert high == pytest.approx(stats.beta.ppf(0.975, k + 1, n - k) if k < n else 1, rel=1e-9)


def test_clopper_pearson_by_hand():
    # 0 of 1: (1 - high)^1 = 0.025.
    assert clopper_pearson(0, 1) == (0.0, pytest.approx(0.975, abs=1e-12))
    assert clopper_pearson(0, 0) == (0.0, 1.0)
    assert math.isnan(proportion_interval(0, 0).value)
    assert proportion_interval(0, 0).reason == "no rows"


@pytest.mark.parametrize(("k", "n"), [(8, 7), (-1, 7)])
def test_no_proportion(k, n):
    with pytest.raises(DataError, match=f"{k} of {n}"):
        proportion_interval(k, n)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.integers(0, 300), st.integers(1, 300))
def test_clopper_pearson_mirrors(k, n):
    k = min(k, n)
    low, high = clopper_pearson(k, n)
    assert low <= k / n <= high
    # p -> 1 - p; two bisections to 1e-14 each.
    assert clopper_pearson(n - k, n) == (pytest.approx(1 - high, abs=1e-12), pytest.approx(1 - low, abs=1e-12))


def test_exact_interval_of_a_million_rows_is_fast():
    start = time.process_time()
    for k in range(400_000, 400_020):
        clopper_pearson(k, 10**6)
    # 20 intervals take 0.2 s; a minute would mean a sum over the rows of each.
    assert time.process_time() - start < 5


def test_the_three_intervals_hold_the_truth():
    generator = torch.Generator().manual_seed(0)
    held = torch.zeros(3)
    for _ in range(400):
        normal = 2 + 3 * torch.randn(11, generator=generator, dtype=torch.float64)
        events = torch.rand(37, generator=generator) < 0.9
        skewed = torch.empty(101, dtype=torch.float64).exponential_(generator=generator)
        intervals = (
            (mean_interval(normal), 2.0),
            (proportion_interval(int(events.sum()), 37), 0.9),
            (bootstrap(lambda x: x.mean(-1), skewed, replicates=200), 1.0),
        )
        held += torch.tensor([float(m.low <= truth <= m.high) for m, truth in intervals])
    assert held[0] >= HELD
    assert held[1] >= HELD
    # The bootstrap is right as n grows only: for the mean of 101 exponentials it holds the truth 93 times in 100.
    assert held[2] >= stats.binom.ppf(1e-3, 400, 0.93)
    # and the first is not too wide: Student's interval is exact for normal rows.
    assert held[0] <= stats.binom.ppf(1 - 1e-3, 400, 0.95)


@pytest.mark.parametrize("n", [211, 20_011])
def test_bootstrap_agrees_with_theory_for_a_mean(n):
    values = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    metric = bootstrap(lambda x: x.mean(-1), values)
    half = NORMAL * values.std().item() / math.sqrt(n)
    # 200 replicates know a std to 5 % and 1000 replicates an extreme quantile to about 3 %; three times that.
    assert metric.value - metric.low == pytest.approx(half, rel=0.15)
    assert metric.high - metric.value == pytest.approx(half, rel=0.15)
    assert metric.value == pytest.approx(values.mean().item())
    assert metric.n == n


def test_bootstrap_draws_rows_together_and_is_seeded():
    x = torch.arange(7.0)

    def difference(a, b):
        return (a - b).abs().amax(-1)

    assert bootstrap(difference, x, x)[:3] == (0, 0, 0)
    first, again, other = (bootstrap(lambda x: x.mean(-1), x.exp(), seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_bootstrap_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    bootstrap(lambda x: x.mean(-1), torch.arange(7.0))
    assert torch.equal(torch.get_rng_state(), before)


def test_bootstrap_in_chunks_of_bounded_size():
    sizes = []

    def mean(x):
        sizes.append(x.numel())
        return x.mean(-1)

    bootstrap(mean, torch.zeros(5003))
    assert max(sizes) <= 2**20
    assert sum(sizes) == 5003 * 1001  # all replicates, and the value


def test_bootstrap_without_rows_with_one_and_where_a_replicate_is_undefined():
    assert bootstrap(lambda x: x.mean(-1), torch.zeros(0)).reason == "no rows"
    assert bootstrap(lambda x: x.mean(-1), torch.ones(1)).value == 1
    assert bootstrap(lambda x: x.mean(-1), torch.ones(1)).reason == "an interval needs at least two rows"
    # 0 / 0 where both draws are the row 0: one replicate in four.
    ratio = bootstrap(lambda x: x.sum(-1) / x.sum(-1), torch.tensor([0.0, 1.0]))
    assert ratio.value == 1
    assert math.isnan(ratio.low)
    assert "of 1000 bootstrap replicates" in ratio.reason
    with pytest.raises(DataError, match="at least 100"):
        bootstrap(lambda x: x.mean(-1), torch.ones(2), replicates=10)


def test_columns_are_checked():
    with pytest.raises(ShapeError, match=r"a \[7\] and b \[7, 1\]"):
        as_rows(a=torch.zeros(7), b=torch.zeros(7, 1))
    with pytest.raises(ShapeError, match="axis of rows"):
        as_rows(a=torch.tensor(1.0))
    with pytest.raises(DataError, match=r"a is NaN in 2 rows \(1, 4\)"):
        as_rows(a=torch.tensor([0, math.nan, 0, 0, math.nan]))
    with pytest.raises(DataError, match=r"a is NaN in 7 rows \(0, 1, 2, 3, 4, \.\.\.\)"):
        as_rows(a=torch.full((7, 3), math.nan))
    with pytest.raises(DataError, match=r"correct must be 0 or 1 .* 1 row \(2\)"):
        as_events("correct", torch.tensor([0.0, 1.0, 0.5]))
