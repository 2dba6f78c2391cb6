"""Windows: nothing of a later part is in an earlier one, scales are the training part's, gaps are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from posterity.errors import DataError
from posterity.interfaces.forecast.said import naive, observed
from posterity.interfaces.forecast.series import Table, read_series
from posterity.interfaces.forecast.windows import Shape, windowed

pandas = pytest.importorskip("pandas")

TIMES, SHAPE = 101, Shape(lookback=7, horizon=3)


def table(y: Any = None, known: Any = None, times: int = TIMES) -> Table:
    y = np.arange(times, dtype=float) if y is None else y
    frame = pandas.DataFrame({"t": np.arange(len(y)), "y": y})
    if known is not None:
        frame["promo"] = known
    return read_series(frame, "t", "y", known=["promo"] if known is not None else [])


def test_each_part_forecasts_only_its_own_times() -> None:
    data = windowed(table(), SHAPE)
    train, validation = SHAPE.ends(TIMES)
    assert (train, validation) == (101 - 20 - 15, 101 - 20)
    for part, first, end in (
        (data.train, 7, train),
        (data.validation, train, validation),
        (data.test, validation, 101),
    ):
        y = observed(data, part)
        assert y.min() == first  # y is its own time
        assert y.max() == end - 1
        assert len(part) == end - first - 3 + 1
        back = part.past[:, :, 0].double() * data.std + data.mean
        assert torch.allclose(back[:, -1] + 1, y[:, 0], atol=1e-4)
        assert torch.allclose(part.y.double() * data.std + data.mean, y, atol=1e-4)
    assert data.last.past[0, -1, 0] * data.std + data.mean == pytest.approx(100.0, abs=1e-3)
    assert data.left_out == 0


def test_scales_do_not_see_later_parts() -> None:
    train, _ = SHAPE.ends(TIMES)
    later = np.arange(TIMES, dtype=float)
    later[train:] = 1e6
    one, other = windowed(table(), SHAPE), windowed(table(later), SHAPE)
    assert one.mean.item() == other.mean.item() == np.arange(train).mean()
    assert torch.equal(one.train.past, other.train.past)
    promo = np.arange(TIMES + 3, dtype=float)
    known = windowed(table(np.append(np.arange(101.0), [np.nan] * 3), promo), SHAPE)
    promo[train:] = -1e6
    moved = windowed(table(np.append(np.arange(101.0), [np.nan] * 3), promo), SHAPE)
    assert torch.equal(known.train.future, moved.train.future)
    assert known.last.future.shape == (1, 3, 1)


def test_windows_with_gaps_are_left_out_and_counted() -> None:
    y = np.arange(TIMES, dtype=float)
    y[[20, 90]] = np.nan
    data = windowed(table(y), SHAPE)
    assert data.left_out == 3  # of training, with a target at 20; a gap of the test part costs no window
    assert data.train.y.isfinite().all()
    assert data.test.y.isnan().sum() == 3
    row = int(np.flatnonzero(data.train.origin == 22)[0])
    assert data.train.past[row, :, 1].tolist() == [0, 0, 0, 0, 0, 1, 0]
    assert data.train.past[row, 5, 0] == data.train.past[row, 4, 0]


def test_the_naive_forecast_is_in_units() -> None:
    data = windowed(table(), SHAPE)
    found = naive(data, data.test, season=2)
    origin = torch.from_numpy(data.test.origin).double()
    assert torch.equal(found.mean[0], torch.stack([origin - 2, origin - 1, origin - 2], 1))
    assert torch.allclose(found.std[0, 0], torch.tensor([2.0, 2.0, 4.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: windowed(table(times=28), SHAPE), "is too short: of its 28 times 18 .* needs 19"),
        (lambda: windowed(table(np.r_[np.ones(80), np.arange(21.0)]), SHAPE), "does not vary in its training part"),
        (lambda: windowed(table(known=np.arange(101.0)), SHAPE), "end 3 times before the forecast does"),
        (lambda: windowed(table(np.where(np.arange(101) % 3 == 0, 1.0 * np.arange(101), np.nan)), SHAPE), "gaps leave no"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_says_why(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        given()
