"""Distributions in the units of the target, and of targets that were transformed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import posterity as po
from posterity.interfaces.sklearn import PosterityRegressor
from posterity.interfaces.transformed import TransformedMixture
from posterity.interfaces.transforms import Log, Transform, YeoJohnson, transform_from_json
from posterity.problem.scaling import Scaling

FAST: dict[str, Any] = {"method": po.MAP(learning_rate=0.05), "network": "linear", "epochs": 12, "random_state": 0}
ROWS = 223


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    X = random.normal(size=(ROWS, 2))
    return X, X[:, 0] - 0.5 * X[:, 1] + 0.4 * random.normal(size=ROWS)


def test_intervals_are_a_frame_in_units() -> None:
    X, y = data()
    frame = pd.DataFrame(X, columns=["a", "b"], index=np.arange(ROWS) * 2 + 1)
    model = PosterityRegressor(**FAST).fit(frame, 1000 + 50 * y)
    found = model.predict_interval(frame, levels=(0.5, 0.9))
    assert list(found.columns) == ["mean", "std", "lower_0.5", "upper_0.5", "lower_0.9", "upper_0.9"]
    assert found.index.equals(frame.index)
    mean, std = model.predict(frame, return_std=True)
    assert (found["mean"] == mean).all()
    assert (found["std"] == std).all()
    assert (model.predict(frame) == mean).all()
    # one normal of a linear network: the ends are mean -+ 1.6449 std, the noise 0.4 * 50, to rounding in float32 of 1000
    assert (found["upper_0.9"] - found["mean"]).to_numpy() == pytest.approx(1.6448536 * std, rel=1e-4)
    assert (found["mean"] - found["lower_0.5"]).to_numpy() == pytest.approx(0.6744898 * std, rel=1e-4)
    assert std == pytest.approx(np.full(ROWS, 20.0), rel=0.25)  # learned from 190 rows: 5 %, and 12 epochs short of it
    one = PosterityRegressor(**FAST).fit(X, y).predict_interval(X[:3], levels=0.8)
    assert list(one.columns) == ["mean", "std", "lower_0.8", "upper_0.8"]
    assert one.index.equals(pd.RangeIndex(3))


def test_coverage_is_what_was_said() -> None:
    X, y = data()
    half = ROWS // 2
    found = PosterityRegressor(**{**FAST, "epochs": 40}).fit(X[:half], y[:half]).predict_interval(X[half:], 0.9)
    inside = (found["lower_0.9"].to_numpy() <= y[half:]) & (y[half:] <= found["upper_0.9"].to_numpy())
    # 112 rows at 0.9: a std of 0.028, and that of the noise, learned from 111 rows, moves coverage by 0.03
    assert 0.77 < inside.mean() <= 1.0


@pytest.mark.parametrize("transform", [None, "yeo-johnson"])
def test_units_are_yours(transform: str | None) -> None:
    """y = 1e6 + 1e-2 z and x in millions give the predictions of z and x, moved and stretched."""
    X, z = data()
    options = {**FAST, "target_transform": transform}
    plain = PosterityRegressor(**options).fit(X, z).predict_interval(X)
    moved = PosterityRegressor(**options).fit(1e6 * X, 1e6 + 1e-2 * z).predict_interval(1e6 * X)
    # inputs and standardised targets differ by rounding: float64 of 1e6 + 1e-2 z by 1e-8 of its std, and float32 by 6e-8 in
    # a hundred steps of Adam
    assert (moved["std"] / 1e-2).to_numpy() == pytest.approx(plain["std"].to_numpy(), rel=2e-3)
    if transform is None:
        assert ((moved - 1e6) / 1e-2)["mean"].to_numpy() == pytest.approx(plain["mean"].to_numpy(), abs=2e-3)


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic", "student-t", "poisson"])
def test_every_likelihood(likelihood: str) -> None:
    X, z = data()
    y = np.random.default_rng(1).poisson(np.exp(z / 2 + 1)) if likelihood == "poisson" else z
    model = PosterityRegressor(**FAST, likelihood=likelihood).fit(X, y)
    found = model.predict_interval(X)
    assert np.isfinite(found.to_numpy()).all()
    assert (found["lower_0.9"] <= found["lower_0.5"]).all()
    assert (found["upper_0.5"] <= found["upper_0.9"]).all()
    assert model.score(X, y) > 0.4


def test_noise_and_lack_of_data_add_up() -> None:
    X, y = data()
    pred: Any = (
        PosterityRegressor(**{**FAST, "method": po.DeepEnsemble(3)}, target_transform="yeo-johnson")
        .fit(X, y)
        .predictive(X)
    )
    assert pred.var == pytest.approx(pred.epistemic**2 + pred.aleatoric**2, rel=1e-5)
    assert (pred.epistemic > 0).all()
    alone: Any = PosterityRegressor(**FAST, target_transform="yeo-johnson").fit(X, y).predictive(X)
    assert (alone.epistemic == 0).all()


def test_a_positive_target_has_positive_intervals_and_a_mean_of_its_own() -> None:
    X, z = data()
    y = np.exp(z)
    model = PosterityRegressor(**FAST, target_transform="log").fit(X, y)
    found = model.predict_interval(X, levels=(0.5, 0.999))
    assert (found["lower_0.999"] > 0).all()
    plain = PosterityRegressor(**FAST).fit(X, z).predict_interval(X, levels=(0.5, 0.999))
    for name in ("lower_0.5", "upper_0.5", "lower_0.999", "upper_0.999"):  # the same network, mapped by exp
        assert found[name].to_numpy() == pytest.approx(np.exp(plain[name].to_numpy()), rel=1e-5)
    mean, std = plain["mean"].to_numpy(), plain["std"].to_numpy()
    assert found["mean"].to_numpy() == pytest.approx(np.exp(mean + std**2 / 2), rel=1e-5)  # not exp(mean)
    assert found["std"].to_numpy() == pytest.approx(np.exp(mean + std**2 / 2) * np.sqrt(np.expm1(std**2)), rel=1e-5)
    metrics = po.evaluate(model.predictive(X), y, groups={"half": np.arange(ROWS) % 2}).rows[0]["metrics"]
    other = po.evaluate(PosterityRegressor(**FAST).fit(X, z).predictive(X), z).rows[0]["metrics"]
    assert metrics["interval_coverage"].value == other["interval_coverage"].value
    assert metrics["nll"].value == pytest.approx(other["nll"].value + z.mean(), abs=1e-4)  # the Jacobian: -log y
    assert metrics["crps"].value == pytest.approx(crps(found, y), rel=0.1)


def crps(found: Any, y: np.ndarray) -> float:
    """Of log-normals with these quartiles, by 400 draws each; their error is 1 / sqrt(400 * 223) of a spread, 0.3 %."""
    low, high = np.log(found["lower_0.5"].to_numpy()), np.log(found["upper_0.5"].to_numpy())
    draws = np.exp(
        (low + high) / 2 + (high - low) / (2 * 0.6744898) * np.random.default_rng(3).normal(size=(400, len(y)))
    )
    near = np.abs(draws - y).mean(0) - 0.5 * np.abs(draws - draws[::-1]).mean(0)
    return float(near.mean())


def test_yeo_johnson_is_that_of_scipy() -> None:
    y = np.random.default_rng(0).gamma(2.0, 3.0, size=501) - 1
    found = YeoJohnson.learn(y)
    z = (y - y.mean()) / y.std()
    assert found.power == pytest.approx(stats.yeojohnson_normmax(z), abs=1e-5)
    ours = found.forward(torch.from_numpy(y))
    assert ours.numpy() == pytest.approx(stats.yeojohnson(z, found.power), abs=1e-12)
    assert found.inverse(ours).numpy() == pytest.approx(y, rel=1e-12, abs=1e-12)
    assert 0 <= YeoJohnson.learn(np.exp(3 * z)).power <= YeoJohnson.learn(-np.exp(3 * z)).power <= 2
    assert YeoJohnson.learn(np.full(7, 3.0)) == YeoJohnson(1.0, 3.0, 1.0)
    assert transform_from_json(found.to_json()) == found
    assert transform_from_json(Log().to_json()) == Log()


TRANSFORMS = [Log(), *(YeoJohnson(power, 10.0, 3.0) for power in (0.0, 0.3, 1.0, 2.0))]
PLACES = {"wide": ([0.0, 1.0, -0.5], [0.5, 0.8, 0.6]), "apart": ([0.0, 3.0], [0.05, 0.07]), "one": ([0.2], [0.01])}


def mixture(
    transform: Transform, location: list[float], scale: list[float], spread: float | None = None
) -> TransformedMixture:
    """One row, whose z is 0.3 + 0.7 N(location, scale^2)."""
    likelihood = po.Gaussian(scaling=Scaling(torch.tensor([0.3]), torch.tensor([0.7])))
    each = [torch.tensor(values)[:, None] for values in (location, scale)]
    inside = None if spread is None else torch.full_like(each[0], spread)
    return TransformedMixture(likelihood, len(location), "draws", *each, inside, transform)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda one: f"{one.name} {getattr(one, 'power', '')}")
def test_what_is_said_against_a_fine_grid(transform: Transform, place: str) -> None:
    pred = mixture(transform, *PLACES[place])
    centres, stds = (0.3 + 0.7 * np.array(PLACES[place][0]), 0.7 * np.array(PLACES[place][1]))
    z = np.linspace((centres - 12 * stds).min(), (centres + 14 * stds).max(), 200_001)
    density = np.mean([stats.norm.pdf(z, centre, std) for centre, std in zip(centres, stds)], 0)
    below = np.mean([stats.norm.cdf(z, centre, std) for centre, std in zip(centres, stds)], 0)
    y = transform.inverse(torch.from_numpy(z)).numpy()
    mean = np.trapezoid(density * y, z)
    std = np.sqrt(np.trapezoid(density * (y - mean) ** 2, z))
    # float32 of numbers of about 10 is 1e-6, 3e-5 of the smallest std here (0.02); the sums are good to as much
    assert pred.mean.item() == pytest.approx(mean, abs=1e-4 * std)
    assert pred.std.item() == pytest.approx(std, rel=1e-4)
    for share in (0.05, 0.4, 0.9):
        cell = int(np.searchsorted(below, share))
        at = float(y[cell - 1 : cell + 1].mean())  # the step of the CRPS in the middle of a cell: error of second order
        one = torch.tensor([at], dtype=torch.float64)
        assert pred.quantile(share).item() == pytest.approx(at, abs=2e-3 * std)  # of the grid, between two components
        assert pred.cdf(one).item() == pytest.approx(below[cell - 1 : cell + 1].mean(), abs=1e-5)
        slope = (density / np.gradient(y, z))[cell]
        assert pred.log_prob(one).item() == pytest.approx(np.log(slope), abs=2e-3)  # half a cell of the steepest flank
        score = np.trapezoid((below - (y >= at)) ** 2 * np.gradient(y, z), z)
        assert pred.crps(one).item() == pytest.approx(score, abs=1e-4 * std)
    assert pred.interval(0.8) == (pred.quantile(0.1), pred.quantile(0.9))


def test_the_spread_of_a_propagated_mean_is_lack_of_data() -> None:
    """log y ~ N(m, i + n): E y = e^(m + (i + n)/2); the variance of E[y | m] is that times e^i - 1."""
    pred = mixture(Log(), [0.2], [0.5], 0.09)
    m, n, i = 0.3 + 0.7 * 0.2, (0.7 * 0.5) ** 2, 0.49 * 0.09
    assert pred.mean.item() == pytest.approx(np.exp(m + (n + i) / 2), rel=1e-5)
    assert pred.epistemic.item() == pytest.approx(np.exp(m + (n + i) / 2) * np.sqrt(np.expm1(i)), rel=1e-5)
    assert pred.std.item() == pytest.approx(np.exp(m + (n + i) / 2) * np.sqrt(np.expm1(n + i)), rel=1e-5)


def test_values_that_a_target_cannot_have() -> None:
    pred = mixture(Log(), [0.0, 1.0, -0.5], [0.5, 0.8, 0.6])
    assert pred.cdf(0.0).item() == pred.cdf(-3.0).item() == 0.0
    assert pred.log_prob(torch.tensor([-3.0])).item() == -np.inf
    with pytest.raises(po.DataError, match="numbers above 0"):
        pred.crps(torch.tensor([-3.0]))
    with pytest.raises(po.CompatibilityError, match="no transform is called 'sqrt'"):
        transform_from_json({"name": "sqrt"})
    both = po.Predictive.concat([pred, pred])
    assert both[1:].mean == pred.mean
