"""Numbers from locations and scales, in standardised units z = (y - mean) / std of the training targets.

    Gaussian          y ~ N(m, s^2)          s per output: learned in `log_std`, or known    Fisher  1 / s^2
    Heteroscedastic   y ~ N(m(x), s(x)^2)    the network says m and log s                    Fisher  (1 / s^2, 2)
    StudentT          y ~ m + s t_df         s per output, learned in `log_scale`            Fisher  (df+1)/((df+3) s^2)

Outputs are `[rows, ...]`, one location for each target, independent given them; `[rows]` and `[rows, 1]` mean the same.
`log_prob` is the density of z; that of y is smaller by `scaling.log_volume`, a constant. The learned noise starts at
the std of the targets (log 1 = 0): the likeliest value while the network explains nothing, so that only what is
explained moves it down. Every log scale is clamped to [-6, 6] (a factor of 400), beyond which it gets no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, DataError, ShapeError
from posterity.problem.likelihoods.base import Likelihood, Outputs, exact, numbers, row_sum
from posterity.problem.scaling import Scaling
from posterity.problem.targets import align
from posterity.tree import Tree

__all__ = ["LIMIT", "Gaussian", "Heteroscedastic", "LocationScale", "StudentT"]

LIMIT = 6.0


@dataclass(frozen=True)
class LocationScale(Likelihood):
    """What the three share: a scaling of the targets, learned by `surveyed`, and a location and log scale per output.

    `standardize=False` leaves the targets in their own units (the survey then only counts the outputs); scales are then
    clamped, and noise starts, in those units.
    """

    standardize: bool = True
    scaling: Scaling | None = None

    @property
    def needs_survey(self) -> bool:
        """Until the scaling is known."""
        return self.scaling is None

    def surveyed(self, targets: Iterable[Any]) -> Self:
        """Learns the mean and std of each output; a scaling given by hand stays as it is.

        Raises:
            DataError: no rows, NaN or infinity.
        """
        found = Scaling.of(targets) if self.standardize else _identity(targets)
        return self if self.scaling is not None else replace(self, scaling=found)

    def location_and_log_scale(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Location `[rows, ...]` and log scale (broadcastable to it) in standardised units, float32 at least."""
        raise NotImplementedError

    def location_shape(self, outputs: Outputs) -> tuple[int, ...]:
        """[rows, ...]: the shape of one location per target."""
        assert isinstance(outputs, Tensor)
        return tuple(outputs.shape)

    def standardized(self, targets: Any, shape: Sequence[int]) -> Tensor:
        """float64 standardised targets, one for each location of `shape` = [rows, ...]."""
        values = align(numbers(targets), shape, "locations")
        return values.double() if self.scaling is None else self.scaling.standardize(values)

    def canonical(self, targets: Any, outputs: Outputs) -> Tensor:
        """Standardised targets, one for each location, float32 (float64 if the outputs are)."""
        self.check(outputs)
        reference = outputs if isinstance(outputs, Tensor) else outputs[0]
        values = self.standardized(targets, self.location_shape(outputs))
        return values.to(exact(reference[:0]).dtype).to(reference.device)

    def log_density(self, z: Tensor, location: Tensor, log_scale: Tensor) -> Tensor:
        """Element-wise log density of standardised targets; normal unless a subclass says otherwise."""
        residual = (z - location) * torch.exp(-log_scale)
        return -0.5 * residual.square() - log_scale - 0.5 * math.log(2 * math.pi)

    def log_prob(self, outputs: Outputs, targets: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows]: sum over outputs of the log density of the standardised targets."""
        return row_sum(self.log_density(targets, *self.location_and_log_scale(outputs, parameters)))

    def per_output(self, values: Tensor, location: Tensor) -> Tensor:
        """A value per output, as a parameter or constant, aligned with `location` `[rows, ...]`."""
        shape = tuple(location.shape[1:])
        return align(values[None], (1, *shape), "outputs")[0].to(location.dtype).to(location.device)

    def _fresh(self, name: str, way_out: str) -> Tree:
        if self.scaling is None:
            raise CompatibilityError(
                f"{self.name} learns its noise, one value per output, and does not know the outputs yet: call "
                f"`surveyed(targets)`, or give scaling=Scaling.identity(outputs){way_out}"
            )
        return {name: torch.zeros(self.scaling.mean.shape)}


def _identity(targets: Iterable[Any]) -> Scaling:
    """The identity for outputs counted, and checked, in one pass."""
    rows, shape = 0, None
    for batch in targets:
        values = numbers(batch, rows)
        found = tuple(values.shape[1:]) or (1,)
        if shape is not None and found != shape:
            raise ShapeError(f"a batch of targets has outputs {found}, those before {shape}")
        rows, shape = rows + len(values), found
    if shape is None or rows == 0:
        raise DataError("no targets: 0 rows")
    return Scaling.identity(shape)


@dataclass(frozen=True)
class Gaussian(LocationScale):
    """N(m, s^2) with one s per output: learned in `log_std`, or known.

    `std`: None learns it; a number > 0, or one per output, in the ORIGINAL units of the target says that it is known.
    """

    std: float | tuple[float, ...] | None = None

    name: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        if self.std is None:
            return
        values = torch.as_tensor(self.std, dtype=torch.float64)
        if values.ndim > 1 or values.numel() == 0 or not bool((torch.isfinite(values) & (values > 0)).all()):
            raise DataError(f"a known std is a number > 0 in units of the target, or one per output, got {self.std}")
        object.__setattr__(self, "std", values.item() if values.ndim == 0 else tuple(values.tolist()))

    def parameters(self) -> Tree:
        """`{"log_std": [outputs]}` in standardised units, or `{}` where the std is known."""
        return {} if self.std is not None else self._fresh("log_std", ", or a known std=")

    def location_and_log_scale(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The outputs, and log s."""
        assert isinstance(outputs, Tensor)
        location = exact(outputs)
        if self.std is None:
            return location, self.per_output(parameters["log_std"], location).clamp(-LIMIT, LIMIT)
        known = torch.as_tensor(self.std, dtype=torch.float64).log()
        if self.scaling is not None:
            known = known - self.scaling.std.log()
        return location, self.per_output(known.expand(location.shape[1:]) if known.ndim == 0 else known, location)

    def fisher(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows, k, k]: diag(1 / s^2)."""
        self.check(outputs)
        location, log_scale = self.location_and_log_scale(outputs, parameters)
        return _diagonal(torch.exp(-2 * log_scale).expand(location.shape))


def _diagonal(values: Tensor) -> Tensor:
    return torch.diag_embed(values[:, None] if values.ndim == 1 else values.flatten(1))


@dataclass(frozen=True)
class Heteroscedastic(LocationScale):
    """N(m(x), s(x)^2): outputs `[rows, ..., 2 d]` hold d means and then d log stds, or are a pair (means, log stds)."""

    name: ClassVar[str] = "heteroscedastic"

    def check(self, outputs: Outputs) -> None:
        """`[rows, ..., 2 d]`, or a pair of tensors of one shape."""
        if isinstance(outputs, (tuple, list)):
            if len(outputs) != 2 or not all(isinstance(part, Tensor) for part in outputs):
                raise CompatibilityError(
                    f"heteroscedastic wants one tensor or a pair (mean, log_std), got {len(outputs)} outputs"
                )
            for part in outputs:
                super().check(part)
            if outputs[0].shape != outputs[1].shape:
                raise ShapeError(
                    f"means of shape {tuple(outputs[0].shape)}, but log stds of shape {tuple(outputs[1].shape)}"
                )
            return
        super().check(outputs)
        if outputs.ndim < 2 or outputs.shape[-1] % 2 or outputs.shape[-1] == 0:
            raise ShapeError(
                "heteroscedastic wants outputs [rows, ..., 2 d], d means and then d log stds, got "
                f"{tuple(outputs.shape)}: the last layer needs two outputs for each target"
            )

    def location_shape(self, outputs: Outputs) -> tuple[int, ...]:
        """[rows, ..., d]."""
        if isinstance(outputs, Tensor):
            return (*outputs.shape[:-1], outputs.shape[-1] // 2)
        return tuple(outputs[0].shape)

    def location_and_log_scale(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The means, and the clamped log stds."""
        location, log_scale = outputs.chunk(2, -1) if isinstance(outputs, Tensor) else outputs
        return exact(location), exact(log_scale).clamp(-LIMIT, LIMIT)

    def fisher(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows, 2 d, 2 d]: diag(1 / s^2) for means, 2 for log stds (0 where clamped), in the order of the outputs."""
        self.check(outputs)
        location, log_scale = self.location_and_log_scale(outputs, {})
        raw = outputs.chunk(2, -1)[1] if isinstance(outputs, Tensor) else outputs[1]
        free = 2.0 * (raw.abs() < LIMIT).to(location.dtype)
        information = torch.exp(-2 * log_scale)
        if isinstance(outputs, Tensor):
            return _diagonal(torch.cat([information, free], -1))
        return _diagonal(torch.cat([part.reshape(len(part), -1) for part in (information, free)], 1))


@dataclass(frozen=True)
class StudentT(LocationScale):
    """m + s t_df: tails that forgive outliers, with one learned s per output.

    `df` is a whole number, 3 (the variance is finite) to 100 (beyond, use "gaussian"): the cdf is then a finite sum.
    """

    df: int = 4

    name: ClassVar[str] = "student-t"

    def __post_init__(self) -> None:
        if self.df != int(self.df) or not 3 <= self.df <= 100:
            raise DataError(
                f"df must be a whole number from 3 to 100, got {self.df}: below, no variance; above, use 'gaussian'"
            )
        object.__setattr__(self, "df", int(self.df))

    def parameters(self) -> Tree:
        """`{"log_scale": [outputs]}` in standardised units."""
        return self._fresh("log_scale", "")

    def location_and_log_scale(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The outputs, and log s (the std is s sqrt(df / (df - 2)))."""
        assert isinstance(outputs, Tensor)
        location = exact(outputs)
        return location, self.per_output(parameters["log_scale"], location).clamp(-LIMIT, LIMIT)

    def log_density(self, z: Tensor, location: Tensor, log_scale: Tensor) -> Tensor:
        """Element-wise log t_df((z - m) / s) - log s."""
        residual = (z - location) * torch.exp(-log_scale)
        half = 0.5 * (self.df + 1)
        constant = math.lgamma(half) - math.lgamma(0.5 * self.df) - 0.5 * math.log(self.df * math.pi)
        return constant - log_scale - half * torch.log1p(residual.square() / self.df)

    def fisher(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows, k, k]: diag((df + 1) / ((df + 3) s^2))."""
        self.check(outputs)
        location, log_scale = self.location_and_log_scale(outputs, parameters)
        return _diagonal((self.df + 1) / (self.df + 3) * torch.exp(-2 * log_scale).expand(location.shape))
