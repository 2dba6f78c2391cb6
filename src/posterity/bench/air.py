"""Hourly air of four stations around Beijing as windows of a day and the PM2.5 of the hour after it.

Two stations in the city, two in the country; a network sees of an hour six pollutants, five numbers of the weather, the
direction of the wind, and the hour and day of the year, the last three as points on circles. Gaps of up to six hours keep
the last value; windows with longer ones, or whose target was not measured, are left out. Means and stds are those of the
training hours in the city.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posterity.bench.data import data_folder

__all__ = ["SIZES", "Air", "Sizes", "air", "carried"]

Labelled = tuple[Tensor, Tensor]  # [rows, hours, inputs] float32, [rows] float32 in ug/m3

FILE = "beijing_air_4stations.npz"
HOURS, GAP = 24, 6
CITY, COUNTRY = ("Aotizhongxin", "Wanshouxigong"), ("Dingling", "Huairou")
TRAIN, VALIDATION = np.datetime64("2016-01-01T00"), np.datetime64("2016-07-01T00")  # where they end


class Sizes(NamedTuple):
    train: int = 6000
    validation: int = 800
    test: int = 1200
    foreign: int = 500  # of each station


SIZES = Sizes()


class Air(NamedTuple):
    """Windows of the city, and those of each country station in the hours of the test."""

    train: Labelled
    validation: Labelled
    test: Labelled
    foreign: dict[str, Labelled]


@cache
def air(seed: int, sizes: Sizes = SIZES) -> Air:
    """Training and validation windows drawn by seed; those of the test and of the country are the same for all seeds.

    Training targets lie before 2016, those of validation in its first half, those of the test after it; a window does not
    reach back beyond the start of its part.
    """
    stations, x, y, time = _stations()
    parts = {
        "train": (None, TRAIN),
        "validation": (TRAIN, VALIDATION),
        "test": (VALIDATION, None),
    }
    at = {name: _between(time, *ends) for name, ends in parts.items()}
    hours = x[[stations.index(name) for name in CITY]][:, at["train"]].reshape(-1, x.shape[-1])
    mean, std = np.nanmean(hours, 0), np.nanstd(hours, 0)
    z = (x - mean) / np.where(std > 0, std, 1.0)

    def windows(names: tuple[str, ...], part: str, size: int, own: int) -> Labelled:
        places = [(s, t) for s in map(stations.index, names) for t in _ends(z[s], y[s], at[part])]
        drawn = np.random.default_rng(own).permutation(len(places))[:size]
        rows = [places[i] for i in np.sort(drawn)]
        inputs = np.stack([z[s, t - HOURS : t] for s, t in rows]).astype(np.float32)
        return torch.from_numpy(inputs), torch.tensor([y[s, t] for s, t in rows], dtype=torch.float32)

    return Air(
        windows(CITY, "train", sizes.train, seed),
        windows(CITY, "validation", sizes.validation, seed),
        windows(CITY, "test", sizes.test, 0),
        {name.lower(): windows((name,), "test", sizes.foreign, 0) for name in COUNTRY},
    )


def _between(time: np.ndarray, first: np.datetime64 | None, end: np.datetime64 | None) -> np.ndarray:
    inside = np.ones(len(time), bool)
    return inside & (time >= first if first is not None else True) & (time < end if end is not None else True)


def _ends(z: np.ndarray, y: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The hours t of a part with a target and HOURS whole hours before it, all in the part."""
    whole = (~np.isnan(z).any(1) & inside).cumsum()
    before = np.concatenate([np.zeros(HOURS, int), whole[HOURS - 1 : -1] - np.concatenate([[0], whole[: -HOURS - 1]])])
    return np.flatnonzero(inside & ~np.isnan(y) & (before == HOURS))


def carried(x: np.ndarray, most: int) -> np.ndarray:
    """[hours, columns] with NaN replaced by the last value of the column, up to `most` hours back.

    >>> carried(np.array([[np.nan], [1.0], [np.nan], [np.nan], [np.nan], [2.0]]), 2).ravel().tolist()
    [nan, 1.0, 1.0, 1.0, nan, 2.0]
    """
    hour = np.arange(len(x))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(x), -1, hour), 0)
    usable = (last >= 0) & (hour - last <= most)
    return np.where(usable, np.take_along_axis(x, np.maximum(last, 0), 0), np.nan)


@cache
def _stations() -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Names, inputs [stations, hours, inputs] without short gaps, PM2.5 [stations, hours] as measured, the hours."""
    with np.load(data_folder("open/timeseries", FILE) / FILE, allow_pickle=False) as content:
        raw, wind, time = content["X"].astype(np.float64), content["wd"], content["time"]
        stations = content["stations"].tolist()
        pm = content["columns"].tolist().index("PM2.5")
    days = (time - time.astype("datetime64[Y]")) / np.timedelta64(1, "D")
    clock = np.hstack([_circle(days, 1.0), _circle(days, 365.25)])
    angle = _circle(np.where(wind < 0, np.nan, wind), 16.0)
    each = [np.hstack([carried(np.hstack([raw[s], angle[s]]), GAP), clock]) for s in range(len(stations))]
    return stations, np.stack(each), raw[:, :, pm], time


def _circle(x: np.ndarray, period: float) -> np.ndarray:
    """[...] to [..., 2]: sine and cosine."""
    turn = 2 * np.pi * x / period
    return np.stack([np.sin(turn), np.cos(turn)], -1)
