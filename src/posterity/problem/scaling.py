"""Standardised targets: networks see z = (y - mean) / std, people see their own units.

    location in original units   mean + std * location
    std in original units        std * scale          (never + mean)
    log density                  log p(y) = log p(z) - sum_i log std_i

Mean and population std come from one streaming pass (Chan, Golub and LeVeque, 1979), in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.errors import DataError, PosterityWarning, ShapeError
from posterity.problem.targets import finite, plain

__all__ = ["Scaling"]

# A std below this share of the mean is rounding: n equal float64 numbers have a std of a few 1e-16 of their mean.
_CONSTANT = 1e-12


@dataclass(frozen=True, eq=False)
class Scaling:
    """The mean and std of each output of the targets, `[d]` or `[...]` float64; one output is `[1]`.

    >>> scaling = Scaling(torch.tensor([1000.0]), torch.tensor([10.0]))
    >>> scaling.location(torch.tensor([0.5])).item(), scaling.scale(torch.tensor([0.5])).item()
    (1005.0, 5.0)
    """

    mean: Tensor
    std: Tensor

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            value = torch.as_tensor(getattr(self, name), dtype=torch.float64).detach().cpu()
            object.__setattr__(self, name, value.reshape(1) if value.ndim == 0 else value)
        if self.mean.shape != self.std.shape:
            raise ShapeError(f"mean of shape {tuple(self.mean.shape)} and std of shape {tuple(self.std.shape)} differ")
        if not bool((torch.isfinite(self.mean) & torch.isfinite(self.std) & (self.std > 0)).all()):
            raise DataError("a scaling needs finite means and finite stds > 0")

    @classmethod
    def identity(cls, outputs: int | Sequence[int] = 1) -> Scaling:
        """Leaves `outputs` outputs (a number or a shape) in the units they come in."""
        return cls(torch.zeros(outputs, dtype=torch.float64), torch.ones(outputs, dtype=torch.float64))

    @classmethod
    def of(cls, batches: Iterable[Any]) -> Scaling:
        """The scaling of a stream of raw target batches `[rows]` or `[rows, ...]`.

        A constant output keeps its own units (std 1) and is named in a `PosterityWarning`.

        Raises:
            DataError: no rows, or NaN or infinity in a row.
            ShapeError: batches of different shapes.
        """
        rows, mean, squares = 0, torch.zeros(0), torch.zeros(0)
        for batch in batches:
            values = plain(batch)
            if not isinstance(values, Tensor):
                raise DataError("the targets are strings: a regression needs numbers")
            finite(values, first=rows)
            values = values.cpu().to(torch.float64)
            values = values[:, None] if values.ndim == 1 else values
            n = values.shape[0]
            if n == 0:
                continue
            centre = values.mean(0)
            spread = (values - centre).square().sum(0)
            if rows == 0:
                rows, mean, squares = n, centre, spread
                continue
            if centre.shape != mean.shape:
                raise ShapeError(
                    f"a batch of targets has outputs {tuple(centre.shape)}, those before {tuple(mean.shape)}"
                )
            delta = centre - mean
            squares = squares + spread + delta.square() * (rows * n / (rows + n))
            mean = mean + delta * (n / (rows + n))
            rows += n
        if rows == 0:
            raise DataError("no targets: 0 rows")
        return cls(mean, _guarded(mean, (squares / rows).sqrt(), rows))

    def standardize(self, targets: Tensor) -> Tensor:
        """float64 (y - mean) / std for `targets` `[rows, ...]`, on their device."""
        values = targets.cpu() if targets.device.type == "mps" else targets  # MPS has no float64
        values = values.to(torch.float64)
        return (values - self._like(self.mean, values)) / self._like(self.std, values)

    def location(self, values: Tensor) -> Tensor:
        """Locations (means, quantiles) in original units: float64 mean + std * values, for values `[..., *outputs]`."""
        return self._like(self.mean, values) + self.scale(values)

    def scale(self, values: Tensor) -> Tensor:
        """Spreads (stds, widths, CRPS) in original units: float64 std * values, for values `[..., *outputs]`."""
        return self._like(self.std, values) * values.to(torch.float64)

    @property
    def log_volume(self) -> float:
        """sum_i log std_i: what a row's log density loses on the way to original units."""
        return float(self.std.log().sum())

    def _like(self, values: Tensor, like: Tensor) -> Tensor:
        """`values` for the trailing axes of `like`, said explicitly: one output fits `[rows]` and `[rows, 1]`."""
        values = values.to(like.device)
        if values.numel() == 1:
            return values.reshape(())
        if like.shape[-values.ndim :] != values.shape:
            raise ShapeError(
                f"values of shape {tuple(like.shape)} do not end in the outputs {tuple(values.shape)} of the scaling"
            )
        return values

    def to_json(self) -> dict[str, Any]:
        """Plain lists; float64 survives JSON exactly."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Scaling:
        """The inverse of `to_json`."""
        return cls(*(torch.tensor(content[name], dtype=torch.float64) for name in ("mean", "std")))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scaling) and torch.equal(self.mean, other.mean) and torch.equal(self.std, other.std)

    def __hash__(self) -> int:
        return hash((tuple(self.mean.flatten().tolist()), tuple(self.std.flatten().tolist())))


def _guarded(mean: Tensor, std: Tensor, rows: int) -> Tensor:
    constant = std <= _CONSTANT * mean.abs()
    if bool(constant.any()):
        index = constant.nonzero()
        named = ", ".join(".".join(map(str, place)) for place in index[:5].tolist()) + (
            ", ..." if len(index) > 5 else ""
        )
        warnings.warn(
            f"output {named} of the targets is constant over {rows} rows: it is centred but not scaled",
            PosterityWarning,
            stacklevel=3,
        )
    return torch.where(constant, torch.ones_like(std), std)
