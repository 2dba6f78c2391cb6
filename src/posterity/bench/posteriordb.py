"""Sixteen posteriors with reference draws, on unconstrained numbers: what an approximation is held against.

Data and draws are posteriordb's (Magnusson et al., 2025; stan-dev/posteriordb, BSD-3), read from the folder
POSTERITY_DATA/open/posteriordb/<name>/{data.json, draws.npz}; the densities are written anew in `reference_models.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from posterity.bench.data import data_folder
from posterity.bench.reference_models import MODELS
from posterity.bench.reference_parts import Model
from posterity.bench.transforms import forward, inverse
from posterity.errors import DataError
from posterity.problem.densities import Density

__all__ = ["CHAINS", "Posterior16", "load", "names"]

CHAINS = 10  # the reference draws of a posterior are ten chains, one after the other


@dataclass(frozen=True)
class Posterior16:
    """One posterior.

    Args:
        name: the data's name and the model's.
        columns: names of the constrained numbers.
        reference: [draws, dim] unconstrained reference draws, float64.
        constrained: [draws, columns] the same draws as published.
        density: log density over {"x": [dim]} with the transforms' Jacobians, up to a constant; starts at zero.
    """

    name: str
    columns: tuple[str, ...]
    reference: Tensor
    constrained: Tensor
    density: Density = field(init=False)
    model: Model = field(repr=False)

    def __post_init__(self) -> None:
        start = {"x": torch.zeros_like(self.reference[0])}
        density = Density(lambda tree: self.log_prob(tree["x"]), start, batched=True)
        object.__setattr__(self, "density", density)

    @property
    def dim(self) -> int:
        return self.reference.shape[1]

    def log_prob(self, x: Tensor) -> Tensor:
        """[..., dim] -> [...] log density of unconstrained numbers, nats, up to a constant."""
        parameters, log_det = forward(self.model.layout, x)
        return self.model.log_prob(parameters) + log_det

    def constrain(self, x: Tensor) -> Tensor:
        """[..., dim] -> [..., columns] what the published draws hold."""
        parameters, _ = forward(self.model.layout, x)
        if self.model.columns is not None:
            return self.model.columns(parameters)
        return torch.cat(list(parameters.values()), -1)


def names() -> list[str]:
    """The posteriors that `load` knows."""
    return list(MODELS)


def load(name: str) -> Posterior16:
    """The posterior `name`, from the folder that the environment variable POSTERITY_DATA names.

    Raises:
        DataError: an unknown name; POSTERITY_DATA is not set, or its folder lacks this posterior.
    """
    if name not in MODELS:
        raise DataError(f"there is no reference posterior {name!r}; choose one of {', '.join(MODELS)}")
    folder = data_folder(f"open/posteriordb/{name}", "data.json", "draws.npz")
    model = MODELS[name](json.loads((folder / "data.json").read_text(encoding="utf-8")))
    with np.load(folder / "draws.npz", allow_pickle=False) as file:
        columns, draws = file["names"].tolist(), torch.from_numpy(file["draws"].astype(np.float64))
    constrained = draws.reshape(-1, draws.shape[-1])
    if model.parameters is not None:
        parameters = model.parameters(constrained)
    else:
        widths = [transform.width for transform in model.layout.values()]
        parameters = dict(zip(model.layout, constrained.split(widths, -1)))
    return Posterior16(name, tuple(columns), inverse(model.layout, parameters), constrained, model)
