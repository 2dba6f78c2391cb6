"""R-hat and ESS against closed forms and arviz."""

import math
import warnings

import pytest
import torch
from tests.evaluation import chains as fake

from posterity.errors import ShapeError
from posterity.evaluation.chains import between_rhat, ess, split_rhat


@pytest.fixture(scope="module")
def arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 0.x announces 1.x when it is loaded
        return pytest.importorskip("arviz", reason="arviz is not installed")


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, -0.4])
def test_ess_of_an_ar_1_series(rho):
    """n (1 - rho) / (1 + rho): the mean of 40 series.

    One estimate at rho = 0.9, n = 20,011 has a relative std near 2 sqrt((2 m + 1) / n) with m = 2 tau = 38 lags, 0.12;
    of 40 of them 0.02. Geyer's sum has a small positive bias in tau: 6 % are allowed.
    """
    n = 20_011
    found = ess(fake.ar(rho, 40, n)).mean().item()
    assert found == pytest.approx(n * (1 - rho) / (1 + rho), rel=0.06)


def test_ess_is_independent_of_shift_and_scale_and_bounded():
    series = fake.ar(0.6, 3, 211)
    torch.testing.assert_close(ess(1e3 + 7e-4 * series), ess(series), rtol=1e-6, atol=0)
    back_and_forth = torch.tensor([1.0, -1.0]).repeat(50) + 0.01 * fake.ar(0.0, 100)
    assert ess(back_and_forth).item() == pytest.approx(100 * math.log10(100))


def test_rhat_of_shifted_halves_in_closed_form():
    """Quarters with equal variance v and means 0, 0, d, d: B/n = d^2 / 3, so R-hat^2 = (n - 1)/n + d^2 / (3 v)."""
    n, d = 25, 1.7
    quarter = fake.ar(0.0, n)
    quarter = quarter - quarter.mean()
    series = torch.cat([quarter, quarter, quarter + d, quarter + d])
    want = math.sqrt((n - 1) / n + d**2 / 3 / quarter.var().item())
    assert split_rhat(series).item() == pytest.approx(want, rel=1e-12)
    # cut in two, whose means are 0 and d: B/n = d^2 / 2, and a half has the variance of its quarters but for n - 1
    half = torch.cat([quarter, quarter]).var().item()
    want = math.sqrt((2 * n - 1) / (2 * n) + d**2 / 2 / half)
    assert split_rhat(series, splits=2).item() == pytest.approx(want, rel=1e-12)


def test_the_oldest_draws_that_fill_no_piece_are_left_out():
    series = fake.ar(0.3, 5, 43)
    torch.testing.assert_close(split_rhat(series), split_rhat(series[:, 3:]))


def test_chains_in_their_own_modes_are_settled_and_apart():
    """Means 0, 9, ..., 36 and unit variance: B/n = 81 * 2.5, W = 1: R-hat between chains is near sqrt(1 + 202.5 * 8/9)."""
    chains = fake.ar(0.0, 5, 601) + 9 * torch.arange(5)[:, None]
    assert (split_rhat(chains) < 1.05).all()
    # ten halves: their variance is that of five means, each twice: 10/9 * 2 * 81 = 180; 5 % for the noise of W
    assert between_rhat(chains).item() == pytest.approx(math.sqrt(181), rel=0.05)


def test_what_is_undefined_is_nan():
    constant, few = torch.full((3, 40), 0.1), torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    for function in (split_rhat, ess):
        assert function(constant).isnan().all()
        assert function(few).isnan().all()
    assert between_rhat(few).isnan()
    assert between_rhat(torch.randn(1, 40, generator=torch.Generator().manual_seed(0))).isnan()
    stuck = torch.tensor([0.0, 1.0]).repeat_interleave(20)
    assert split_rhat(stuck).item() == math.inf
    with pytest.raises(ShapeError, match="splits=1"):
        split_rhat(constant, 1)
    with pytest.raises(ShapeError, match="no axis"):
        ess(torch.tensor(1.0))
    with pytest.raises(ShapeError, match=r"\[40\]"):
        between_rhat(constant[0])


def _known(arviz, name, x, method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(getattr(arviz, name)(x.numpy(), method=method))


@pytest.mark.parametrize("rho", [0.0, 0.7, 0.95])
def test_rhat_agrees_with_arviz(arviz, rho):
    """The same formula: to the digits of float64."""
    chains = fake.ar(rho, 3, 200) + 0.3 * torch.arange(3)[:, None]
    for chain, found in zip(chains, split_rhat(chains)):
        assert found.item() == pytest.approx(_known(arviz, "rhat", chain.view(4, 50), "identity"), rel=1e-9)
    assert between_rhat(chains).item() == pytest.approx(_known(arviz, "rhat", chains, "split"), rel=1e-9)


@pytest.mark.parametrize("rho", [0.0, 0.7, 0.95])
def test_ess_agrees_with_arviz(arviz, rho):
    """arviz leaves out the last positive pair's odd half and subtracts 1/(n - 1) from each rho: a few percent."""
    for chain in fake.ar(rho, 3, 2003):
        assert ess(chain).item() == pytest.approx(_known(arviz, "ess", chain[None], "identity"), rel=0.05)
