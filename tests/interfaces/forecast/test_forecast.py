"""`posterity forecast`: what a person types and gets, and how it ends when they are wrong."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import posterity as po
from posterity.errors import CompatibilityError, DataError
from posterity.interfaces.forecast.run import NAIVE, Options, forecast
from posterity.interfaces.forecast.series import read_series

pandas = pytest.importorskip("pandas")

TIMES = 281


def hours(seed: int = 0) -> Any:
    """A day of 24 hours around 100, noise of std 2."""
    t = np.arange(TIMES)
    y = 100 + 10 * np.sin(2 * np.pi * t / 24) + 2 * np.random.default_rng(seed).normal(size=TIMES)
    return pandas.DataFrame({"when": pandas.date_range("2024-03-01", periods=TIMES, freq="h"), "load": y})


FAST = ("--time", "when", "--target", "load", "--horizon", 5, "--network", "dlinear", "--method", "map", "--epochs", 12)


def test_a_series_is_forecast_in_units_and_judged(shell: Any, tmp_path: Any) -> None:
    hours().drop(index=[30, 31]).to_csv("load.csv", index=False)
    code, out, err = shell("forecast", "load.csv", *FAST, "--json")
    assert code == 0, err
    assert "2 times of 281 not observed" in err
    run = tmp_path / "forecast"
    frame = pandas.read_csv(run / "forecast.csv")
    assert frame["time"].tolist() == [f"2024-03-12 {hour:02}:00:00" for hour in range(17, 22)]
    ends = ["lower_0.9", "lower_0.5", "mean", "upper_0.5", "upper_0.9"]
    assert (frame[ends].diff(axis=1).iloc[:, 1:] > 0).all(axis=None)
    assert frame["mean"].between(80, 120).all()
    assert np.allclose(frame["std"] ** 2, frame["epistemic_std"] ** 2 + frame["aleatoric_std"] ** 2, rtol=1e-4)
    told = json.loads(out)
    assert [row["time"] for row in told["forecast"]] == frame["time"].tolist()
    record = json.loads((run / "evaluation.json").read_text())
    assert told["evaluation"] == record
    assert [row["method"] for row in record["rows"]] == ["map", NAIVE]
    tested = round(0.2 * TIMES)  # times of the test part, each forecast once
    assert record["rows"][0]["metrics"]["crps"]["n"] == tested // 5 * 5
    assert {"pit", "bands", "intervals", "groups"} <= record["rows"][0]["details"].keys()
    assert "crps" in record["differences"]["metric"]
    extremes = record["rows"][0]["details"]["extremes"]
    for row, about in zip(extremes["row"], extremes["about"]):
        time = pandas.Timestamp("2024-03-01") + pandas.Timedelta(hours=TIMES - tested + row)
        assert about == f"{time}, {row % 5 + 1} ahead"
    horizons = record["rows"][0]["details"]["horizons"]
    assert horizons["step"] == [1, 2, 3, 4, 5]
    assert horizons["n"] == [tested - 4] * 5
    assert horizons["independent"] == [(tested - 4) // 5] * 5
    assert all(low <= high for low, high in zip(horizons["low_0.9"], horizons["high_0.9"]))
    assert record["settings"]["season"] == 24
    assert "posterity forecast load.csv" in record["settings"]["command"]
    fan = (run / "fan.svg").read_text()
    assert fan.startswith("<svg")
    assert "#0a0c0" not in fan
    assert "load" in fan
    assert "<html" in (run / "report.html").read_text()
    code, _, err = shell("forecast", "load.csv", *FAST)
    assert (code, "holds a run already" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "lod"), "did you mean 'load'"),
        (("--horizon", 0), "--horizon must be at least 1"),
        (("--horizon", 90), "is too short"),
        (("--network", "lstmm"), "did you mean lstm"),
        (("--method", "ivo"), "did you mean ivon"),
        (("--test", 1.5), "--test is a share"),
        (("--known", "holiday"), "no column is called 'holiday'"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(
    shell: Any, tmp_path: Any, arguments: tuple[Any, ...], message: str
) -> None:
    hours().to_csv("load.csv", index=False)
    code, out, err = shell("forecast", "load.csv", *FAST, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["load.csv"]


def test_several_series_and_a_column_known_ahead() -> None:
    """Two shops on scales 1:100; a promotion adds 4 times the noise, at random times that the past does not tell."""
    random, steps = np.random.default_rng(3), 4
    frames = []
    for shop, scale in (("b", 100.0), ("a", 1.0)):
        promo = random.integers(0, 2, TIMES + steps)
        promo[-steps:] = [0, 1, 0, 1]
        y = scale * (10 + 2.0 * promo + 0.5 * random.normal(size=TIMES + steps))
        y[-steps:] = np.nan
        frames.append(pandas.DataFrame({"n": np.arange(TIMES + steps), "y": y, "promo": promo, "shop": shop}))
    table = read_series(pandas.concat(frames), "n", "y", "shop", ["promo"])
    options = Options(horizon=steps, lookback=8, method="map", network="dlinear", epochs=15)
    found = forecast(table, options, progress=False)
    assert found.data.columns == ("promo",)
    assert found.frame["series"].tolist() == ["a"] * steps + ["b"] * steps
    for scale, rows in ((1.0, found.frame.iloc[:steps]), (100.0, found.frame.iloc[steps:])):
        mean = rows["mean"].to_numpy() / scale
        assert mean[[1, 3]].min() - mean[[0, 2]].max() > 1.0  # half of the effect
        assert rows["std"].between(0.2 * scale, 1.5 * scale).all()
    metrics = {row["method"]: row["metrics"] for row in found.evaluation.rows}
    assert metrics["map"]["rmse"].value < 0.8 * metrics[NAIVE]["rmse"].value
    groups = found.evaluation.rows[0]["details"]["groups"]
    assert set(zip(groups["by"], groups["group"])) == {
        *(("horizon", str(step)) for step in (1, 2, 3, 4)), ("series", "a"), ("series", "b"),
    }  # fmt: skip
    assert isinstance(found.model, po.BayesianModel)


def test_targets_far_from_0_keep_their_digits() -> None:
    far = hours().assign(load=lambda table: 1e9 + table["load"])  # float32 holds 1e9 to 32
    options = Options(horizon=3, lookback=6, method="map", network="dlinear", epochs=3)
    near, found = (forecast(read_series(one, "when", "load"), options, progress=False) for one in (hours(), far))
    assert np.allclose(found.frame["mean"] - 1e9, near.frame["mean"], atol=0.1)
    for name in ("lower_0.9", "upper_0.5"):
        assert np.allclose(found.frame[name] - 1e9, near.frame[name], atol=0.1)
    pairs = [one.evaluation.rows[0]["metrics"]["crps"].value for one in (near, found)]
    assert pairs[0] == pytest.approx(pairs[1], rel=0.01)


def test_a_positive_target_has_positive_intervals() -> None:
    """log y = 1 + 2 sin + 0.4 noise: in units of y itself, mean and std are those of a lognormal."""
    skewed = hours().assign(load=lambda table: np.exp(0.4 * (table["load"] - 100) / 2 + 1))
    options = Options(horizon=3, lookback=6, method="map", network="dlinear", epochs=10, log=True)
    found = forecast(read_series(skewed, "when", "load"), options, progress=False)
    frame = found.frame
    assert (frame["lower_0.9"] > 0).all()
    median = (frame["lower_0.5"] * frame["upper_0.5"]) ** 0.5  # quantiles of a lognormal are symmetric in the logarithm
    spread = np.log(frame["upper_0.9"] / median) / 1.644854
    assert np.allclose(frame["mean"], median * np.exp(spread**2 / 2), rtol=1e-3)
    assert np.allclose(frame["std"], frame["mean"] * np.sqrt(np.expm1(spread**2)), rtol=1e-3)
    ours, rule = (row["metrics"] for row in found.evaluation.rows)
    assert 0 < ours["crps"].value < rule["crps"].value
    y = skewed["load"].to_numpy()[-56:]
    bands = found.evaluation.rows[0]["details"]["bands"]
    assert np.allclose(bands["target"][:3], y[:3], rtol=1e-5)
    with pytest.raises(DataError, match="not above 0 at 1 of its times"):
        forecast(read_series(skewed.assign(load=skewed["load"] - skewed["load"].min()), "when", "load"), options)


def test_a_network_that_is_not_there_is_refused_before_a_fit() -> None:
    table = read_series(hours(), "when", "load")
    with pytest.raises(CompatibilityError, match="there are koopa, dlinear, lstm"):
        forecast(table, Options(horizon=3, network="transformer"), progress=False)
