"""What is forecast in units of the target, as mixtures of normals: by a model, and by the seasonal naive rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import posterity as po
from posterity.errors import CompatibilityError
from posterity.interfaces.forecast.windows import Windowed, Windows
from posterity.interfaces.transformed import TransformedMixture
from posterity.interfaces.transforms import Transform
from posterity.models.seasonal_naive import seasonal_naive, seasonal_naive_std
from posterity.prediction.predictive import GaussianMixture
from posterity.problem.likelihoods import Gaussian
from posterity.problem.scaling import Scaling

__all__ = ["Mixture", "naive", "observed", "said"]


@dataclass(frozen=True)
class Mixture:
    """Normal components: `mean`, `std` [draws, rows, horizon] float64, of the target or of what it was transformed to."""

    mean: Tensor
    std: Tensor
    via: str = "given"
    transform: Transform | None = None

    def predictive(self, rows: Tensor) -> GaussianMixture:
        """Of the places that a mask [rows, horizon] picks, in order, as one row each; in units of the target."""
        mean, std = self.mean[:, rows], self.std[:, rows]
        scaling = Scaling(mean.mean(), std.mean())  # targets like 1e8 +- 2 keep their digits
        location, scale = (mean - scaling.mean) / scaling.std, std / scaling.std
        pred = GaussianMixture(Gaussian(std=1.0, scaling=scaling), len(mean), self.via, location, scale)
        if self.transform is None:
            return pred
        return TransformedMixture.of(pred, self.transform)


def said(model: po.BayesianModel, data: Windowed, windows: Windows, draws: int | None = None) -> Mixture:
    """What a fitted model says of windows. Raises CompatibilityError for another likelihood than a normal one."""
    pred = model.predict(windows.inputs, draws=draws)
    if not isinstance(pred, GaussianMixture):
        raise CompatibilityError("forecasts are said by the gaussian likelihood")
    location, scale = pred.scaling.location(pred.location), pred.scaling.scale(pred.scale)
    scale = scale.expand(location.shape)
    mean, std = (moment[torch.from_numpy(windows.series), None] for moment in (data.mean, data.std))
    return Mixture(mean + std * location, std * scale, pred.via, data.transform)


def naive(data: Windowed, windows: Windows, season: int) -> Mixture:
    """The seasonal naive forecast, its spread that of its errors in the training part."""
    means, stds = [], []
    spread = [_spread(data, index, season) for index in range(len(data.table.series))]
    for index, origin in zip(windows.series.tolist(), windows.origin.tolist()):
        y = data.seen(index)
        filled = y[np.maximum.accumulate(np.where(np.isnan(y), 0, np.arange(len(y))))]
        back = torch.from_numpy(filled[origin - season : origin])[None]
        means.append(seasonal_naive(back, data.shape.horizon, season)[0])
        stds.append(spread[index])
    return Mixture(torch.stack(means)[None], torch.stack(stds)[None], transform=data.transform)


def _spread(data: Windowed, index: int, season: int) -> Tensor:
    y = data.seen(index)
    train, _ = data.shape.ends(len(y))
    found = seasonal_naive_std(torch.from_numpy(y[:train]), data.shape.horizon, season)
    # where no pair of times tells, or all pairs agree, the spread of the series itself is the honest one
    return torch.where(found > 0, found, data.std[index])


def observed(data: Windowed, windows: Windows) -> Tensor:
    """[rows, horizon] float64 targets as in the table, NaN where there are none."""
    steps = np.arange(data.shape.horizon)
    pairs = zip(windows.series.tolist(), windows.origin.tolist())
    return torch.from_numpy(np.stack([data.table.series[index].y[origin + steps] for index, origin in pairs]))
