"""Transforms of a positive or skewed target: the network sees z = t(y), people see y.

    log            z = log y                                                    y > 0
    yeo-johnson    z = psi((y - center) / spread)                               center, spread: mean and std of training
                   psi(v) = ((v + 1)^a - 1) / a              v >= 0,            log(v + 1) where a = 0
                            -((1 - v)^(2 - a) - 1) / (2 - a) v < 0,             -log(1 - v) where a = 2

Yeo and Johnson (2000). a is the likeliest in [0, 2], where psi maps all numbers to all numbers: every quantile then has an
inverse, and the moments of y are finite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posterity.errors import CompatibilityError, DataError
from posterity.interfaces.tables.words import rows_where

__all__ = ["TRANSFORMS", "Log", "Transform", "YeoJohnson", "transform_from_json"]

_NEAR = 1e-8  # an exponent this small is 0: its power is a logarithm to rounding


@dataclass(frozen=True)
class Transform(ABC):
    """An increasing map of the target. Tensors are float64, of any shape."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def learn(cls, y: NDArray[np.float64]) -> Self:
        """From the targets of training rows."""

    @abstractmethod
    def forward(self, y: Tensor) -> Tensor:
        """z = t(y)."""

    @abstractmethod
    def inverse(self, z: Tensor) -> Tensor:
        """y with t(y) = z."""

    @abstractmethod
    def log_slope(self, y: Tensor) -> Tensor:
        """log t'(y): what the log density of y has above that of z."""

    def inside(self, y: Tensor) -> Tensor:
        """Where y is a value that the target can have, bool."""
        return torch.isfinite(y)

    def check(self, y: NDArray[np.float64]) -> None:
        """Raise DataError where the target of a row cannot be transformed; the rows are named."""
        return

    def to_json(self) -> dict[str, Any]:
        """Its name, and its fields by name."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True)
class Log(Transform):
    """z = log y."""

    name: ClassVar[str] = "log"

    @classmethod
    def learn(cls, y: NDArray[np.float64]) -> Log:
        return cls()

    def forward(self, y: Tensor) -> Tensor:
        return y.log()

    def inverse(self, z: Tensor) -> Tensor:
        return z.exp()

    def log_slope(self, y: Tensor) -> Tensor:
        return -y.log()

    def inside(self, y: Tensor) -> Tensor:
        return y > 0

    def check(self, y: NDArray[np.float64]) -> None:
        if (y <= 0).any():
            raise DataError(
                f"the logarithm of a target needs numbers above 0, and there are others in {rows_where(y <= 0)}: remove "
                "these rows, or use target_transform='yeo-johnson'"
            )


@dataclass(frozen=True)
class YeoJohnson(Transform):
    """z = psi((y - center) / spread), psi of exponent `power` in [0, 2]."""

    power: float
    center: float
    spread: float

    name: ClassVar[str] = "yeo-johnson"

    @classmethod
    def learn(cls, y: NDArray[np.float64]) -> YeoJohnson:
        """The power that makes z likeliest as a normal variable: -n/2 log var(z) + sum log psi'(v) is largest."""
        from scipy.optimize import minimize_scalar

        center, spread = float(y.mean()), float(y.std())
        if not spread > 1e-12 * abs(center):
            return cls(1.0, center, 1.0)
        standardised = torch.from_numpy((y - center) / spread)
        slope = float(_log_slope(standardised, 2.0).sum())  # proportional to power - 1

        def loss(power: float) -> float:
            variance = float(_psi(standardised, power).var(correction=0))
            return 0.5 * len(y) * float(np.log(variance)) - (power - 1) * slope

        found = minimize_scalar(loss, bounds=(0.0, 2.0), method="bounded", options={"xatol": 1e-6})
        return cls(float(found.x), center, spread)

    def forward(self, y: Tensor) -> Tensor:
        return _psi((y - self.center) / self.spread, self.power)

    def inverse(self, z: Tensor) -> Tensor:
        size = torch.where(z < 0, _grown(-z, 2 - self.power), _grown(z, self.power))
        return self.center + self.spread * torch.where(z < 0, -size, size)

    def log_slope(self, y: Tensor) -> Tensor:
        return _log_slope((y - self.center) / self.spread, self.power) - float(np.log(self.spread))


def _psi(v: Tensor, power: float) -> Tensor:
    return torch.where(v < 0, -_shrunk(-v, 2 - power), _shrunk(v, power))


def _shrunk(v: Tensor, power: float) -> Tensor:
    """((v + 1)^power - 1) / power for v >= 0; anything elsewhere, without NaN."""
    log = v.clamp_min(0).log1p()
    return log if power < _NEAR else torch.expm1(power * log) / power


def _grown(z: Tensor, power: float) -> Tensor:
    """The inverse of `_shrunk`."""
    z = z.clamp_min(0)
    return torch.expm1(z if power < _NEAR else torch.log1p(power * z) / power)


def _log_slope(v: Tensor, power: float) -> Tensor:
    """log psi'(v) = (power - 1) sign(v) log(|v| + 1)."""
    return (power - 1) * torch.sign(v) * v.abs().log1p()


TRANSFORMS: Mapping[str, type[Transform]] = {each.name: each for each in (Log, YeoJohnson)}


def transform_from_json(content: Mapping[str, Any] | None) -> Transform | None:
    """What `to_json` gave. Raises CompatibilityError: an unknown name."""
    if content is None:
        return None
    fields = {key: value for key, value in content.items() if key != "name"}
    if content.get("name") not in TRANSFORMS:
        raise CompatibilityError(f"no transform is called {content.get('name')!r}: there are {', '.join(TRANSFORMS)}")
    return TRANSFORMS[content["name"]](**fields)
