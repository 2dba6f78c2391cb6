"""A forecast from a table: fitted on the first part of each series, evaluated on the last, said for the times to come.

The evaluation's rows are single times of the test part, each forecast once at most, from origins a horizon apart, or the few
times more that let them start at every time of a season; beside the seasonal naive forecast of the same times. What it says
by horizon comes from every origin (`horizons.py`).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import posterity as po
from posterity.errors import DataError, StorageError
from posterity.interfaces.forecast.horizons import LEVELS, by_horizon
from posterity.interfaces.forecast.network import describe, forecaster
from posterity.interfaces.forecast.said import Mixture, naive, observed, said
from posterity.interfaces.forecast.series import Table
from posterity.interfaces.forecast.windows import Shape, Windowed, Windows, windowed
from posterity.interfaces.settings import Named, build_method
from posterity.interfaces.tables.words import pandas, plural
from posterity.interfaces.transforms import Log
from posterity.posterior.storage import MANIFEST
from posterity.random import Random

__all__ = ["NAIVE", "Forecast", "Options", "forecast"]

NAIVE = "seasonal-naive"
_STEPS, _EPOCHS, _BATCH = 1500, (5, 200), 64  # of a fit, within these bounds of epochs
_CALIBRATION = 30  # windows: fewer tell the scale of errors to worse than 13 %
_GROUPS = 24  # horizons looked at one by one in the report


@dataclass(frozen=True)
class Options:
    """What was asked for.

    Args:
        horizon: times to forecast.
        lookback: times seen; twice the horizon or a season unless given, whichever is longer, as far as the series allow.
        season: of the naive forecast, in times; by the step of the series unless given.
        calendar: whether the hour, the week-day and the time of the year are known columns.
        test, validation: shares of the times of each series.
        epochs: per member; what makes 1500 steps unless given.
        log: forecast the logarithm of a positive target: intervals stay above 0, and grow with its level.
    """

    horizon: int = 24
    lookback: int | None = None
    season: int | None = None
    method: Named = "deep-ensemble"
    network: str = "koopa"
    calendar: bool = True
    test: float = 0.2
    validation: float = 0.15
    epochs: int | None = None
    seed: int = 0
    log: bool = False

    def __post_init__(self) -> None:
        for name in ("horizon", "lookback", "season", "epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DataError(f"--{name} must be at least 1, got {value}")
        for name in ("test", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise DataError(f"--{name} is a share of the times in [0, 1), got {getattr(self, name):g}")
        if self.test + self.validation >= 1:
            raise DataError("--test and --validation together leave no times to train on")


@dataclass(frozen=True)
class Forecast:
    """What a forecast leaves.

    Args:
        frame: time, series (where there are several), mean, std, lower_0.5, upper_0.5, lower_0.9, upper_0.9, epistemic_std,
            aleatoric_std; in units of the target, a row for each time to come.
        evaluation: of the test part, with the seasonal naive forecast; its first row's details hold `horizons`.
        data: the windows.
    """

    model: po.BayesianModel
    frame: Any
    evaluation: po.Evaluation
    data: Windowed

    @property
    def horizons(self) -> dict[str, list[Any]]:
        """A line per step ahead, as `by_horizon` says."""
        return self.evaluation.rows[0]["details"]["horizons"]


def forecast(
    table: Table, options: Options, out: str | os.PathLike[str] | None = None, *,
    tell: Callable[[str], None] = lambda line: None, progress: bool | None = None,
) -> Forecast:  # fmt: skip
    """Fit, evaluate and forecast.

    Args:
        table: of `read_series`.
        out: folder of the run, as `po.load` reads it.
        tell: hears what was decided.

    Raises:
        DataError: series that are too short, or known columns that end too early.
        StorageError: `out` holds a run.
        CompatibilityError: no such method or network.
    """
    if out is not None and (Path(out) / MANIFEST).exists():
        raise StorageError(f"{out} holds a run already: another --output leaves it alone")
    method = build_method(options.method)
    season = _season(table, options)
    data = windowed(table, _shape(table, options, season), options.calendar, Log() if options.log else None)
    for line in (*table.said, *_decided(data, season)):
        tell(line)
    build = forecaster(options.network, data.train.past, options.horizon, data.train.future.shape[2])
    with Random(options.seed).fold("describe").forked():
        tell(f"network: {describe(options.network, build())}")
    per_epoch = -(-len(data.train) // _BATCH)
    epochs = options.epochs or int(min(max(-(-_STEPS // per_epoch), _EPOCHS[0]), _EPOCHS[1]))
    held_out = (data.validation.inputs, data.validation.y)
    model = po.fit(
        build, (data.train.inputs, data.train.y), "gaussian", method, po.Normal(2.0, fan_in=True), epochs=epochs,
        batch_size=_BATCH, validation=held_out, seed=options.seed, out=out, progress=progress,
    )  # fmt: skip
    if len(data.validation) >= _CALIBRATION:
        model.calibrate(held_out)
        tell(f"temperature {model.temperature:.3g} fitted on {plural(len(data.validation), 'validation window')}")
        if out is not None:
            model.save(out)
    result = _evaluated(model, data, season, str(options.method))
    result.settings.update(
        {
            "target": table.target, "horizon": options.horizon, "lookback": data.shape.lookback, "season": season,
            "network": options.network, "log": options.log, "known": list(data.columns), "series": len(table.series),
            "windows": {part: len(getattr(data, part)) for part in ("train", "validation", "test")},
        }
    )  # fmt: skip
    return Forecast(model, _frame(said(model, data, data.last), data), result, data)


def _season(table: Table, options: Options) -> int:
    """As asked, else the grid's where every training part holds two of them, else 1."""
    if options.season is not None:
        return options.season
    least = min(Shape(1, options.horizon, options.validation, options.test).ends(len(s.y))[0] for s in table.series)
    return table.grid.season if 2 * table.grid.season <= least else 1


def _shape(table: Table, options: Options, season: int) -> Shape:
    parts = Shape(1, options.horizon, options.validation, options.test)
    least = min(parts.ends(len(one.y))[0] for one in table.series)
    lookback = options.lookback or max(2, min(max(2 * options.horizon, season), least // 3))
    return Shape(max(lookback, 1), options.horizon, options.validation, options.test)


def _decided(data: Windowed, season: int) -> list[str]:
    shape = data.shape
    parts = ", ".join(
        f"{plural(len(getattr(data, part)), f'{part} window')}" for part in ("train", "validation", "test")
    )
    lines = [f"lookback {shape.lookback}, horizon {shape.horizon}, season {season}: {parts}"]
    if data.left_out:
        lines.append(f"{plural(data.left_out, 'window')} left out for their gaps")
    if data.columns:
        lines.append(f"known ahead: {', '.join(data.columns)}")
    return lines


def _evaluated(model: po.BayesianModel, data: Windowed, season: int, method: str) -> po.Evaluation:
    ours, rule = said(model, data, data.test), naive(data, data.test, season)
    y = observed(data, data.test)
    chosen = _apart(data.test, _spacing(data.shape.horizon, season))[:, None] & y.isfinite()
    if not bool(chosen.any()):
        raise DataError("no time of the test part was observed: a larger --test")
    result = po.compare(
        {method: ours.predictive(chosen), NAIVE: rule.predictive(chosen)}, y[chosen], baseline=NAIVE,
        groups=_groups(data, chosen), show=_places(data, chosen).__getitem__,
    )  # fmt: skip
    result.rows[0]["details"]["horizons"] = by_horizon(ours, rule, y)
    return result


def _spacing(horizon: int, season: int) -> int:
    """From origin to origin: a multiple of a season would make the step ahead say what hour it is.

    >>> _spacing(24, 24), _spacing(8, 52), _spacing(5, 24), _spacing(6, 1)
    (25, 9, 5, 6)
    """
    return next(times for times in itertools.count(horizon) if math.gcd(times, season) == 1)


def _apart(windows: Windows, spacing: int) -> Tensor:
    """[rows] those whose targets do not overlap: in each series the first, and every one so many times after the last."""
    kept: list[bool] = []
    last: dict[int, int] = {}
    for index, origin in zip(windows.series.tolist(), windows.origin.tolist()):
        kept.append(index not in last or origin >= last[index] + spacing)
        if kept[-1]:
            last[index] = origin
    return torch.tensor(kept)


def _groups(data: Windowed, chosen: Tensor) -> dict[str, Any]:
    horizon = data.shape.horizon
    width = -(-horizon // _GROUPS)
    step = torch.arange(horizon) // width * width + width
    groups = {"horizon": step.clamp(max=horizon).expand(chosen.shape)[chosen].numpy()}
    if len(data.table.series) > 1:
        names = np.array([one.name for one in data.table.series])[data.test.series]
        groups["series"] = np.repeat(names[:, None], horizon, 1)[chosen.numpy()]
    return groups


def _places(data: Windowed, chosen: Tensor) -> list[str]:
    """Which time a row is of, how far ahead, and of which series."""
    found = []
    for row, step in chosen.nonzero().tolist():
        one = data.table.series[int(data.test.series[row])]
        tick = one.first + data.table.grid.step * (data.test.origin[[row]] + step)
        found.append(f"{one.name + ', ' if one.name else ''}{data.table.grid.texts(tick)[0]}, {step + 1} ahead")
    return found


def _frame(ahead: Mixture, data: Windowed) -> Any:
    horizon, grid = data.shape.horizon, data.table.grid
    pred = ahead.predictive(torch.ones(len(data.last), horizon, dtype=torch.bool))
    columns: dict[str, Any] = {"time": [], "series": []}
    for index, origin in zip(data.last.series.tolist(), data.last.origin.tolist()):
        one = data.table.series[index]
        columns["time"] += grid.texts(one.first + grid.step * (origin + np.arange(horizon)))
        columns["series"] += [one.name] * horizon
    if len(data.table.series) == 1:
        del columns["series"]
    columns |= {"mean": pred.mean.numpy(), "std": pred.std.numpy()}
    for level in LEVELS:
        lower, upper = pred.interval(level)
        columns |= {f"lower_{level:g}": lower.numpy(), f"upper_{level:g}": upper.numpy()}
    columns |= {"epistemic_std": pred.epistemic.numpy(), "aleatoric_std": pred.aleatoric.numpy()}
    return pandas().DataFrame(columns)
