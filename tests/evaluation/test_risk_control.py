"""The guaranteed threshold: the tests behind it are exact, the sequence is kept, and the risk is as promised."""

import itertools
import math

import pytest
import torch
from scipy import stats

from posterity.bench import guarantees
from posterity.errors import DataError, ShapeError
from posterity.evaluation.risk_control import (
    Guarantee,
    allowed_errors,
    control_risk,
    first_rank,
    rows_needed,
    upper_bound,
)

TWO_ERRORS = 0.05 + 2 * math.sqrt(0.05 * 0.95 / 400)  # 5 % + 2 standard errors of 400 repetitions


def rows(n, rate, seed=0, values=None):
    """Certainties, and whether rows are right that are wrong with probability rate(u), u in [0, 1], surest at 0."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(n, generator=generator, dtype=torch.float64)
    u = u if values is None else torch.ceil(u * values) / values
    return -u, torch.rand(n, generator=generator, dtype=torch.float64) >= rate(u)


def reference(certainty, correct, max_risk, confidence):
    """(answered, errors) by testing every end of a tie from the first on, with scipy's binomial."""
    start = first_rank(len(correct), max_risk, confidence)
    answered = 0
    for value in sorted(set(certainty.tolist()), reverse=True):
        inside = certainty >= value
        m, k = int(inside.sum()), int((~correct[inside]).sum())
        if m < start:
            continue
        if stats.binom.cdf(k, m, max_risk) > 1 - confidence:
            break
        answered, errors = m, k
    return (answered, errors) if answered else (0, 0)


def test_the_exact_bounds_are_scipys():
    for confidence, max_risk in ((0.95, 0.02), (0.9, 0.1), (0.99, 0.005)):
        n = rows_needed(max_risk, confidence)
        assert (1 - max_risk) ** n <= 1 - confidence < (1 - max_risk) ** (n - 1)
        for m in (n - 1, n, 3 * n + 1):
            k = allowed_errors(m, max_risk, confidence)
            assert k < 0 or stats.binom.cdf(k, m, max_risk) <= 1 - confidence
            assert stats.binom.cdf(k + 1, m, max_risk) > 1 - confidence
    assert rows_needed(0.02, 0.95) == 149
    # the one-sided bound is the quantile of a beta distribution
    assert upper_bound(9, 311, 0.95) == pytest.approx(stats.beta.ppf(0.95, 10, 302), rel=1e-9)


@pytest.mark.parametrize("n", [149, 151, 236, 487, 2003])
def test_the_first_rank_allows_what_a_rank_before_it_does_not(n):
    start = first_rank(n, 0.02, 0.95)
    assert 149 <= start <= n
    assert allowed_errors(start, 0.02, 0.95) > allowed_errors(start - 1, 0.02, 0.95)


@pytest.mark.parametrize("values", [None, 13])
@pytest.mark.parametrize("seed", range(7))
def test_the_sequence_is_that_of_the_reference(values, seed):
    certainty, correct = rows(701, lambda u: 0.002 + 0.3 * u**4, seed, values)
    found = control_risk(certainty, correct, 0.02)
    assert (found.answered, found.errors) == reference(certainty, correct, 0.02, 0.95)
    assert int((certainty >= found.cut).sum()) == found.answered  # whole ties, and the rows that the bound is of
    assert not found.holds or found.upper <= 0.02


def test_errors_that_come_in_a_row_end_the_sequence():
    """A low risk further down is not reached past a place where the bound fails."""
    correct = torch.ones(3001, dtype=torch.bool)
    certainty = -torch.arange(3001.0)
    start = first_rank(3001, 0.02, 0.95)
    correct[start : start + 40] = False
    found = control_risk(certainty, correct, 0.02)
    assert start < found.answered < start + 40
    # 40 errors in 3001 rows would be few enough
    assert allowed_errors(3001, 0.02, 0.95) >= 40
    assert (found.tried, found.tried_errors) == (found.answered + 1, found.errors + 1)


def test_everything_and_nothing():
    right = torch.ones(200, dtype=torch.bool)
    everything = control_risk(torch.rand(200), right, 0.02)
    assert (everything.cut, everything.coverage, everything.risk) == (-math.inf, 1.0, 0.0)
    nothing = control_risk(torch.rand(200), ~right, 0.02)
    assert (nothing.cut, nothing.holds, nothing.upper) == (math.inf, False, 1.0)
    assert math.isnan(nothing.risk)
    assert math.isnan(control_risk(torch.zeros(0), torch.zeros(0), 0.02).coverage)
    for found in (everything, nothing):
        assert Guarantee.from_json(found.to_json()) == found


def test_one_value_of_certainty_answers_all_or_nothing():
    correct = torch.arange(400) >= 3
    found = control_risk(torch.full((400,), 1.0), correct, 0.02)
    assert (found.answered, found.errors) == (400, 3)
    # 4 errors in 400 rows are too many: P(Binomial(400, 0.02) <= 4) is 0.097
    assert not control_risk(torch.full((400,), 1.0), torch.arange(400) >= 4, 0.02).holds


def test_it_says_what_is_missing():
    few = control_risk(torch.rand(120), torch.ones(120), 0.02)
    assert str(few) == (
        "risk <= 0.02 cannot be guaranteed with 95 % confidence from 120 rows: without an error they bound it by 0.0247, "
        "and 149 rows without an error are needed"
    )
    correct = torch.ones(600, dtype=torch.bool)
    correct[:9] = False
    wrong = control_risk(-torch.arange(600.0), correct, 0.02)
    assert str(wrong) == (
        "risk <= 0.02 cannot be guaranteed with 95 % confidence with 9 errors in the 236 surest of 600 rows: they bound it "
        "by 0.0656; 1 would be allowed there (149 rows are needed without an error)"
    )
    found = control_risk(-torch.arange(600.0), correct.flip(0), 0.02)
    # 591 right rows, then errors only: as many as are allowed are answered
    assert found.answered - 591 == found.errors == allowed_errors(found.answered, 0.02, 0.95)
    assert str(found).startswith(
        "answers 99.5 % of the rows; risk <= 0.02 guaranteed with 95 % confidence: 6 errors in 597"
    )


def test_arguments_out_of_range():
    good = torch.ones(5)
    for max_risk, confidence in ((0.0, 0.95), (1.0, 0.95), (2.0, 0.95), (0.02, 0.5), (0.02, 95), (math.nan, 0.95)):
        with pytest.raises(DataError, match="fraction between"):
            control_risk(good, good, max_risk, confidence)
    with pytest.raises(DataError, match="NaN"):
        control_risk(torch.tensor([0.5, math.nan]), good[:2], 0.02)
    with pytest.raises(ShapeError):
        control_risk(good, good[:3], 0.02)


def test_the_risk_is_exceeded_no_more_often_than_promised():
    """Every row is wrong a little too often, so that each answer is a failure: the hardest case. The largest threshold
    whose own bound is met, without the sequence, fails far more often."""
    exceeded = naive = 0
    for seed in range(400):
        certainty, correct = rows(400, lambda u: torch.full_like(u, 0.1001), seed)
        exceeded += control_risk(certainty, correct, 0.1).holds
        wrong = (~correct[certainty.argsort(descending=True)]).cumsum(0).tolist()
        naive += any(k <= LIMITS[m] for m, k in enumerate(wrong, 1) if m >= 29)
    assert exceeded / 400 <= TWO_ERRORS
    assert exceeded > 4  # not by answering nothing: about 4 % of the repetitions answer
    assert naive / 400 > 2 * TWO_ERRORS


LIMITS = [-1, *(int(stats.binom.ppf(0.05, m, 0.1)) - 1 for m in range(1, 401))]


@pytest.mark.slow
def test_the_guarantees_over_400_repetitions():
    cells = guarantees.cells(False, False)
    found = guarantees.claims(list(itertools.chain.from_iterable(cell() for cell in cells.values())))
    assert {name: found[name] for name, limit in guarantees.LIMITS.items() if not limit.holds(found[name])} == {}


def test_the_bench_knows_its_populations():
    """R of the bench is the mean error rate of the rows surer than u."""
    grid = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    for name, (rate, risk) in guarantees.POPULATIONS.items():
        mean = rate(grid).cumsum(0) / torch.arange(1, 200_001)
        for u in (0.003, 0.2, 0.7, 1.0):
            at = round(u * 200_000) - 1
            # the sum is an integral to the eighth of a cell, times a jump of 0.5 at most: 1e-5 at 600 cells
            assert risk(grid[at]).item() == pytest.approx(mean[at].item(), abs=1e-5), (name, u)
    rows = [row for cell in guarantees.cells(True, False).values() for row in cell()]
    assert set(guarantees.LIMITS) <= set(guarantees.claims(rows))
