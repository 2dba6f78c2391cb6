"""PAC-Bayes bounds against closed forms, known figures, and what they promise."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posterity.errors import DataError
from posterity.evaluation.bounds import binary_kl, kl_inverse, mcallester, sampling_bound, seeger

SHARE = st.floats(0, 1)
DELTA = st.floats(1e-6, 0.999)


def test_binary_kl():
    assert binary_kl(0.25, 0.5) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    assert binary_kl(0, 0.3) == pytest.approx(-math.log(0.7))
    assert binary_kl(1, 0.3) == pytest.approx(-math.log(0.3))
    assert binary_kl(0.3, 0.3) == binary_kl(0, 0) == binary_kl(1, 1) == 0
    assert binary_kl(0.3, 0) == binary_kl(0.3, 1) == binary_kl(0, 1) == binary_kl(1, 0) == math.inf
    # (b - a)^2 / (2 a (1 - a)) near a, where the naive formula loses every digit
    assert binary_kl(0.2, 0.2 + 1e-7) == pytest.approx(1e-14 / 0.32, rel=0.02)


@given(SHARE, st.floats(0, 50))
def test_the_inverse_undoes_kl(risk, bound):
    p = kl_inverse(risk, bound)
    assert risk <= p <= 1
    assert p <= risk + math.sqrt(bound / 2) + 1e-15
    if p < 1 and risk < 1:
        # rounding of p by an ulp moves kl by less than kl'(p) ulp
        slope = (p - risk) / (p * (1 - p)) if p > 0 else 0.0
        assert binary_kl(risk, p) == pytest.approx(bound, rel=1e-9, abs=1e-15 + 4e-16 * slope)


def test_extremes_of_the_inverse():
    assert kl_inverse(0, 0.3) == pytest.approx(1 - math.exp(-0.3), abs=1e-16)
    assert kl_inverse(0, 1e-20) == pytest.approx(1e-20)
    assert kl_inverse(0, 0) == 0
    assert kl_inverse(0.37, 0) == 0.37
    assert kl_inverse(1, 0.5) == kl_inverse(0.2, math.inf) == kl_inverse(0, math.inf) == kl_inverse(0.9, 1e9) == 1
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(DataError, match="share between 0 and 1"):
            kl_inverse(wrong, 1.0)
    for wrong in (-1e-9, math.nan):
        with pytest.raises(DataError, match="at least 0 nats"):
            kl_inverse(0.5, wrong)


@given(SHARE, st.floats(0, 1e9), st.integers(1, 10**9), DELTA)
def test_the_inverse_is_never_above_mcallester(risk, kl, rows, delta):
    tight, loose = seeger(risk, kl, rows, delta), mcallester(risk, kl, rows, delta)
    assert risk <= tight <= min(1, loose)


@pytest.mark.parametrize("rows", [1, 13, 40_406])
@pytest.mark.parametrize("kl", [0, 1e-9, 1.0, 1e3, 1e12, math.inf])
@pytest.mark.parametrize("risk", [0, 1e-12, 0.1, 0.5, 0.999, 1])
def test_bounds_over_a_grid(risk, kl, rows):
    tight, loose = seeger(risk, kl, rows, 0.05), mcallester(risk, kl, rows, 0.05)
    assert risk <= tight <= min(1, loose)
    if risk < 1 and tight < 1:
        assert tight > risk  # no finite number of rows promises the error that was seen
        assert seeger(risk, kl, rows, 0.01) > tight
        assert seeger(risk, kl + 1, rows, 0.05) > tight


@pytest.mark.parametrize(
    ("kl", "loose", "tight"), [(1e3, 0.212, 0.180), (1e4, 0.452, 0.417), (5e4, 0.887, 0.820), (1e5, 1.21, 0.955)]
)
def test_known_figures(kl, loose, tight):
    """N = 40,406, error 0.1, delta 0.05."""
    assert mcallester(0.1, kl, 40_406, 0.05) == pytest.approx(loose, abs=0.005)
    assert seeger(0.1, kl, 40_406, 0.05) == pytest.approx(tight, abs=0.0006)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13, 100])
def test_the_constant_of_maurer_covers_every_number_of_rows(rows):
    """E exp(N kl(k/N || p)) <= 2 sqrt(N), k binomial: what the theorem needs, at p = 1/2 (p drops out of the sum)."""
    terms = [
        math.exp(
            math.lgamma(rows + 1) - math.lgamma(k + 1) - math.lgamma(rows - k + 1)
            + (k * math.log(k / rows) if k else 0) + ((rows - k) * math.log(1 - k / rows) if k < rows else 0)
        )
        for k in range(rows + 1)
    ]  # fmt: skip
    assert sum(terms) <= 2 * math.sqrt(rows)
    bound = seeger(0.0, 0.0, rows, 0.05)
    assert bound == pytest.approx(1 - math.exp(-math.log(2 * math.sqrt(rows) / 0.05) / rows))


def test_the_sampling_bound_holds_as_often_as_it_says():
    """Draws with errors of their own laws: below the mean of their means in less than delta of all sets of draws."""
    draws, sets, delta = 50, 4000, 0.1
    means = torch.linspace(0.02, 0.3, draws, dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    seen = torch.bernoulli(means.expand(sets, draws), generator=random).mean(1)
    missed = sum(sampling_bound(risk, draws, delta) < means.mean().item() for risk in seen.tolist())
    # delta = 0.1 itself counts both sides; at delta / 2 with the slack of a Chernoff bound 1 % of misses is normal
    assert missed / sets <= delta
    assert sampling_bound(0.2, 200, 0.025) == pytest.approx(0.2906, abs=0.002)
    assert sampling_bound(0.2, 10**6, 0.025) == pytest.approx(0.2 + math.sqrt(2 * 0.16 * math.log(80) / 1e6), abs=2e-5)


def test_arguments_out_of_range():
    for delta in (0, 1, -1, math.nan):
        with pytest.raises(DataError, match="delta is a probability"):
            seeger(0.1, 1.0, 10, delta)
        with pytest.raises(DataError, match="delta is a probability"):
            sampling_bound(0.1, 10, delta)
    with pytest.raises(DataError, match="at least one row"):
        mcallester(0.1, 1.0, 0, 0.05)
    with pytest.raises(DataError, match="at least 0 nats"):
        mcallester(0.1, -1.0, 5, 0.05)
    with pytest.raises(DataError, match="at least one draw"):
        sampling_bound(0.1, 0, 0.05)
    with pytest.raises(DataError, match="share between"):
        mcallester(1.5, 1.0, 5, 0.05)
