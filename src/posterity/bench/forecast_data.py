"""The series of the forecasting bench as windows: the splits of the literature, in units of the training part's std.

    etth2      hourly oil temperature and loads of a transformer, 12/4/4 months     lookback 96, horizon 48
    illness    weekly influenza-like illness in the United States, 70/10/20 %       lookback 48, horizon 24
    exchange   daily exchange rates of eight countries, 70/10/20 %                  lookback 96, horizon 48

Validation and test windows look back into the part before, as is usual; their targets lie in their own part. Every
second training window of the long sets is used.
"""

from __future__ import annotations

import gzip
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posterity.bench.data import data_folder

__all__ = ["SETS", "Parts", "Set", "parts"]

Labelled = tuple[Tensor, Tensor]  # [rows, lookback, channels] and [rows, horizon, channels], float32


class Set(NamedTuple):
    """Where a set lies, where its parts end (shares of the rows, or rows), and which windows train: every `stride`-th."""

    folder: str
    file: str
    horizon: int
    ends: tuple[float, float, float]
    header: bool = True
    stride: int = 1


class Parts(NamedTuple):
    """Windows of the three parts."""

    train: Labelled
    validation: Labelled
    test: Labelled


SETS: dict[str, Set] = {
    "etth2": Set("open/timeseries", "ETTh2.csv.gz", 48, (8640, 11520, 14400), stride=2),
    "illness": Set("open/timeseries", "national_illness.csv.gz", 24, (0.7, 0.8, 1.0)),
    "exchange": Set("unclear", "exchange_rate.txt.gz", 48, (0.7, 0.8, 1.0), header=False, stride=2),
}


@cache
def parts(name: str) -> Parts:
    """The windows of a set.

    Raises DataError: POSTERITY_DATA is not set, or lacks the file.
    """
    one = SETS[name]
    values = _read(data_folder(one.folder, one.file) / one.file, one.header)
    train, validation, test = (int(end) if end > 1 else round(end * len(values)) for end in one.ends)
    z = (values - values[:train].mean(0)) / values[:train].std(0)
    lookback = 2 * one.horizon

    def windows(first: int, end: int, stride: int = 1) -> Labelled:
        origins = np.arange(first, end - one.horizon + 1, stride)[:, None]
        past, ahead = z[origins + np.arange(-lookback, 0)], z[origins + np.arange(one.horizon)]
        return torch.from_numpy(past).float(), torch.from_numpy(ahead).float()

    return Parts(windows(lookback, train, one.stride), windows(train, validation), windows(validation, test))


def _read(path: object, header: bool) -> NDArray[np.float64]:
    """[times, channels]; a header comes with a first column of dates, which is left out."""
    with gzip.open(str(path), "rt", encoding="utf-8") as lines:
        table = [line.strip().split(",") for line in lines]
    return np.array([line[1:] for line in table[1:]] if header else table, dtype=np.float64)
