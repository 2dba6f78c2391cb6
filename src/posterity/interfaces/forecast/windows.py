"""Windows of series: what was seen, what is known ahead, and what came, split by time and scaled by the training part.

    training    targets before the validation part        validation, test    all targets inside their part
    scale       (y - mean) / std of each series, over its observed training times; known columns over those of all series

A window of a later part may look back into an earlier one, as a forecast made then would. Gaps are filled with the last
value and flagged by a channel. Windows with a gap among their targets are not trained on; windows that look back on more
gaps than values are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posterity.errors import DataError
from posterity.interfaces.forecast.series import Series, Table
from posterity.interfaces.transforms import Transform

__all__ = ["Shape", "Windowed", "Windows", "windowed"]

_LEAST = 10  # training windows of a series


@dataclass(frozen=True)
class Shape:
    """Of the windows, and of the parts: shares of the times of each series, a horizon at least."""

    lookback: int
    horizon: int
    validation: float = 0.15
    test: float = 0.2

    def ends(self, times: int) -> tuple[int, int]:
        """Where the training part and the validation part end."""
        test = max(self.horizon, round(self.test * times))
        return times - test - max(self.horizon, round(self.validation * times)), times - test


@dataclass(frozen=True)
class Windows:
    """Some windows, in standardised units.

    Args:
        past: [rows, lookback, channels] the target, whether it was missing (where there are gaps), the known columns.
        future: [rows, horizon, known] the known columns.
        y: [rows, horizon], NaN where it was not observed.
        series, origin: [rows] which series, and the first forecast time in it.
    """

    past: Tensor
    future: Tensor
    y: Tensor
    series: NDArray[np.int64]
    origin: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.past)

    @property
    def inputs(self) -> Tensor | tuple[Tensor, Tensor]:
        """What the network sees."""
        return (self.past, self.future) if self.future.shape[2] else self.past


@dataclass(frozen=True)
class Windowed:
    """All windows of a table.

    Args:
        last: one window per series, that ends at its last observed time; its `y` is unknown.
        mean, std: [series] float64 of the observed training times, in units of the target.
        left_out: windows of the training and validation parts that gaps cost.
        columns: names of the known columns, the calendar's included.
    """

    table: Table
    shape: Shape
    train: Windows
    validation: Windows
    test: Windows
    last: Windows
    mean: Tensor
    std: Tensor
    left_out: int
    columns: tuple[str, ...]
    transform: Transform | None = None

    def seen(self, index: int) -> NDArray[np.float64]:
        """[times] of a series as the network sees it, but for the scale: transformed where there is a transform."""
        return _seen(self.table.series[index], self.transform)


def windowed(table: Table, shape: Shape, calendar: bool = True, transform: Transform | None = None) -> Windowed:
    """Cut every series of a table into windows.

    Args:
        transform: of the target, before it is scaled; `mean` and `std` are then those of what it becomes.

    Raises DataError: a series that is too short, does not vary in its training part or cannot be transformed, known columns
    that end before the horizon does, no window without a gap.
    """
    for one in table.series:
        _check_length(one, shape)
    gaps = any(np.isnan(one.y).any() for one in table.series)
    names, known = _known(table, shape, calendar)
    parts: dict[str, list[tuple[int, int]]] = {"train": [], "validation": [], "test": [], "last": []}
    moments: list[tuple[float, float]] = []
    channels: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    left_out = 0
    for index, one in enumerate(table.series):
        train, validation = shape.ends(len(one.y))
        y = _seen(one, transform)
        moments.append(_moments(one, y[:train]))
        y = (y - moments[-1][0]) / moments[-1][1]
        missing = np.isnan(y)
        filled = y[np.maximum.accumulate(np.where(missing, 0, np.arange(len(y))))]
        flag = [missing.astype(np.float64)[:, None]] if gaps else []
        channels.append((y, np.hstack([filled[:, None], *flag, known[index][: len(y)]])))
        ranges = {
            "train": (shape.lookback, train - shape.horizon),
            "validation": (train, validation - shape.horizon),
            "test": (validation, len(y) - shape.horizon),
            "last": (len(y), len(y)),
        }
        for part, (first, end) in ranges.items():
            for origin in range(first, end + 1):
                seen = missing[origin - shape.lookback : origin].mean() <= 0.5
                targets = part in ("test", "last") or not missing[origin : origin + shape.horizon].any()
                if part == "last" or (seen and targets):
                    parts[part].append((index, origin))
                else:
                    left_out += 1
    cut = {part: _cut(places, channels, known, shape) for part, places in parts.items()}
    for part in ("train", "validation", "test"):
        if not len(cut[part]):
            raise DataError(f"gaps leave no window of the {part} part: a shorter --lookback or --horizon, or fill them")
    mean, std = torch.tensor(moments, dtype=torch.float64).T
    return Windowed(table, shape, **cut, mean=mean, std=std, left_out=left_out, columns=names, transform=transform)


def _check_length(one: Series, shape: Shape) -> None:
    train, _ = shape.ends(len(one.y))
    if train < shape.lookback + shape.horizon + _LEAST - 1:
        raise DataError(
            f"{one.called} is too short: of its {len(one.y):,} times {max(train, 0):,} are left to train on, and a lookback "
            f"of {shape.lookback} with a horizon of {shape.horizon} needs {shape.lookback + shape.horizon + _LEAST - 1}: a "
            "shorter --lookback or --horizon, or more times"
        )


def _seen(one: Series, transform: Transform | None) -> NDArray[np.float64]:
    if transform is None:
        return one.y
    y = torch.from_numpy(one.y)
    bad = ~transform.inside(y) & y.isfinite()
    if bool(bad.any()):
        raise DataError(
            f"the target of {one.called} is not above 0 at {int(bad.sum()):,} of its times ({one.y[bad.numpy()][0]:g}): its "
            "logarithm cannot be forecast; leave --log out"
        )
    return np.asarray(transform.forward(y).numpy())


def _moments(one: Series, training: NDArray[np.float64]) -> tuple[float, float]:
    seen = training[np.isfinite(training)]
    mean, std = (seen.mean(), seen.std()) if len(seen) else (0.0, 0.0)
    if std <= 1e-12 * abs(mean):
        raise DataError(
            f"the target of {one.called} does not vary in its training part (its first {len(training):,} times)"
        )
    return float(mean), float(std)


def _known(table: Table, shape: Shape, calendar: bool) -> tuple[tuple[str, ...], list[NDArray[np.float64]]]:
    """Names, and [times + horizon, columns] of each series: the calendar as it is, the others standardised."""
    years = table.grid.lasts_years(max(shape.ends(len(one.y))[0] for one in table.series))
    training = np.concatenate([one.known[: shape.ends(len(one.y))[0]] for one in table.series])
    mean, std = training.mean(0), training.std(0)
    names: tuple[str, ...] = table.known
    found = []
    for one in table.series:
        times = len(one.y) + shape.horizon
        if table.known and len(one.known) < times:
            raise DataError(
                f"the known columns of {one.called} end {times - len(one.known)} times before the forecast does: add rows "
                f"with them and an empty {table.target!r}, {shape.horizon} after the last observed one"
            )
        columns = (one.known[:times] - mean) / np.where(std > 0, std, 1.0) if table.known else np.zeros((times, 0))
        if calendar:
            ticks = one.first + table.grid.step * np.arange(times)
            own, values = table.grid.calendar(ticks, years)
            names = (*table.known, *own)
            columns = np.hstack([columns, values])
        found.append(columns)
    return names, found


def _cut(
    places: list[tuple[int, int]],
    channels: list[tuple[NDArray[np.float64], NDArray[np.float64]]],
    known: list[NDArray[np.float64]],
    shape: Shape,
) -> Windows:
    series, origin = np.array(places, dtype=np.int64).reshape(-1, 2).T
    back, ahead = np.arange(-shape.lookback, 0), np.arange(shape.horizon)

    def stacked(windows: Iterator[NDArray[np.float64]], empty: tuple[int, ...]) -> Tensor:
        rows = list(windows)
        return torch.from_numpy(np.stack(rows) if rows else np.zeros(empty)).float()

    def targets(index: int, at: int) -> NDArray[np.float64]:
        y = channels[index][0]
        return y[at + ahead] if at < len(y) else np.full(shape.horizon, np.nan)

    past = stacked((channels[i][1][at + back] for i, at in places), (0, shape.lookback, 1))
    future = stacked((known[i][at + ahead] for i, at in places), (0, shape.horizon, 0))
    y = stacked((targets(i, at) for i, at in places), (0, shape.horizon))
    return Windows(past, future, y, series, origin)
