"""Priors over the weights, one independent density per weight.

    Normal        log p(w) = -(w - loc)^2 / (2 std^2) + const
    Laplace       log p(w) = -|w - loc| / scale + const
    ScaleMixture  log p(w) = log( pi N(w; loc, std1^2) + (1 - pi) N(w; loc, std2^2) )       Blundell et al. (2015)

A prior is written without a network and bound to one: `prior.bind(start)` resolves scales and centres tensor by tensor.
The likelihood's own parameters (`likelihood.<name>`, in standardised units) always have a N(0, 1) prior; buffers have none.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from posterity.errors import PriorError
from posterity.random import Random
from posterity.tree import LIKELIHOOD, Tree, weights

__all__ = ["SMALLEST", "Flat", "Laplace", "Normal", "Prior", "ScaleMixture", "prior_from", "prior_from_json"]

Center = Literal["zero", "start"] | Mapping[str, Tensor]
SMALLEST = 1e-8  # std: float32 holds the square of a precision of 1 / std^2, which IVON takes


@dataclass(frozen=True)
class Prior(ABC):
    """What every prior can say; an algorithm names the classes that it takes."""

    name: ClassVar[str]

    @abstractmethod
    def bind(self, start: Tree) -> Prior:
        """This prior with scales and centres resolved for the tensors of `start`."""

    @abstractmethod
    def log_density(self, theta: Tree) -> Tensor:
        """() log p(theta), summed over all weights; buffers do not count."""

    @abstractmethod
    def gradient(self, theta: Tree) -> Tree:
        """The gradient of `log_density`, for trees with or without a leading member axis."""

    @abstractmethod
    def draw(self, name: str, like: Tensor, random: Random) -> Tensor:
        """One draw of a tensor shaped like `like`."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The hyperparameters; given centres are stored with the run, not here."""


@dataclass(frozen=True)
class Flat(Prior):
    """No preference: log p = 0. For bare densities, which bring their own prior."""

    name: ClassVar[str] = "flat"

    def bind(self, start: Tree) -> Flat:
        return self

    def log_density(self, theta: Tree) -> Tensor:
        return torch.zeros(())

    def gradient(self, theta: Tree) -> Tree:
        return {name: torch.zeros_like(leaf) for name, leaf in weights(theta).items()}

    def draw(self, name: str, like: Tensor, random: Random) -> Tensor:
        raise PriorError("a flat prior has no draws")

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name}


@dataclass(frozen=True)
class _Located(Prior):
    """Shared by the priors with a scale and a centre per tensor."""

    def _check(self, center: Center, *scales: float) -> None:
        if isinstance(center, str) and center not in ("zero", "start"):
            raise PriorError(f"center must be 'zero', 'start' or a mapping of tensors, got {center!r}")
        for scale in scales:
            if not (math.isfinite(scale) and scale > 0):
                raise PriorError(f"a prior's scale must be finite and > 0, got {scale}")
            if scale < SMALLEST:
                raise PriorError(f"a prior's scale must be at least {SMALLEST}, got {scale}: float32 loses its powers")


def _centers(center: Center, start: Tree) -> Tree:
    """Centres by name; an absent name means zero."""
    named = {name: leaf for name, leaf in weights(start).items() if not name.startswith(LIKELIHOOD)}
    if center == "zero":
        return {}
    if center == "start":
        return {name: leaf.detach().clone() for name, leaf in named.items()}
    assert isinstance(center, Mapping)
    if missing := sorted(named.keys() - center.keys()):
        raise PriorError(f"the prior's centre lacks the tensors {missing}")
    for name, leaf in named.items():
        if center[name].shape != leaf.shape:
            raise PriorError(
                f"the prior's centre has shape {tuple(center[name].shape)} at {name!r}, the weight {tuple(leaf.shape)}"
            )
    return {name: center[name].detach().to(leaf) for name, leaf in named.items()}


def fan_in(shape: tuple[int, ...]) -> int:
    """Inputs that one output of a weight of this shape sums over; 1 for vectors and scalars."""
    return math.prod(shape[1:]) if len(shape) > 1 else 1


@dataclass(frozen=True)
class Normal(_Located):
    """Independent normals.

    Args:
        std: the standard deviation of every weight, > 0; or of each tensor, by name or pattern (`"head.*"`), where the
            first match wins and `"*"` is the default.
        fan_in: divide the std of matrices and kernels by sqrt(fan-in), so that layers of any width start alike.
        center: "zero", "start" (the weights that the fit starts at, for pretrained networks) or named tensors.

    Raises:
        PriorError: a scale that is not finite and positive, a pattern map without a match for a tensor.
    """

    std: float | Mapping[str, float] = 1.0
    fan_in: bool = False
    center: Center = "zero"
    stds: Mapping[str, float] = field(default_factory=dict, repr=False)
    centers: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    name: ClassVar[str] = "normal"

    def __post_init__(self) -> None:
        self._check(self.center, *(self.std.values() if isinstance(self.std, Mapping) else [self.std]))

    def bind(self, start: Tree) -> Normal:
        stds = {name: self._scale(name, tuple(leaf.shape)) for name, leaf in weights(start).items()}
        return replace(self, stds=stds, centers=_centers(self.center, start))

    def _scale(self, name: str, shape: tuple[int, ...]) -> float:
        if name.startswith(LIKELIHOOD):
            return 1.0
        std = self.std if not isinstance(self.std, Mapping) else _match(self.std, name)
        return std / math.sqrt(fan_in(shape)) if self.fan_in else std

    def precision(self, name: str) -> float:
        """1 / std^2 of one tensor."""
        return 1.0 / self.stds[name] ** 2

    def log_density(self, theta: Tree) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for name, leaf in weights(theta).items():
            std = self.stds[name]
            z = (leaf.double() - self._center(name)) / std
            total = total - 0.5 * z.square().sum().cpu() - leaf.numel() * (math.log(std) + 0.5 * math.log(2 * math.pi))
        return total

    def gradient(self, theta: Tree) -> Tree:
        out: Tree = {}
        for name, leaf in weights(theta).items():
            deviation = leaf - self.centers[name] if name in self.centers else leaf
            out[name] = deviation * -self.precision(name)
        return out

    def draw(self, name: str, like: Tensor, random: Random) -> Tensor:
        return random.normal(tuple(like.shape), like=like).mul_(self.stds[name]).add_(self._center(name))

    def kl(self, name: str, mean: Tensor, std: Tensor) -> Tensor:
        """() KL( N(mean, std^2) || this ) of one tensor, in nats: sum of log(p/s) + (s^2 + d^2)/(2 p^2) - 1/2."""
        p = self.stds[name]
        ratio = std.double() / p
        shift = (mean.double() - self._center(name)) / p
        return (0.5 * (ratio.square() + shift.square() - 1.0) - ratio.log()).sum()

    def _center(self, name: str) -> Tensor | float:
        return self.centers.get(name, 0.0)

    def to_json(self) -> dict[str, Any]:
        std = dict(self.std) if isinstance(self.std, Mapping) else self.std
        return {"name": self.name, "std": std, "fan_in": self.fan_in, "center": _center_json(self.center)}


@dataclass(frozen=True)
class Laplace(_Located):
    """Independent double exponentials.

    Args:
        scale: mean absolute deviation of every weight, > 0 (std = sqrt(2) scale).
        center: as in `Normal`.
    """

    scale: float = 1.0
    center: Center = "zero"
    centers: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    name: ClassVar[str] = "laplace"

    def __post_init__(self) -> None:
        self._check(self.center, self.scale)

    def bind(self, start: Tree) -> Laplace:
        return replace(self, centers=_centers(self.center, start))

    def log_density(self, theta: Tree) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for name, leaf in weights(theta).items():
            if name.startswith(LIKELIHOOD):
                total = total + _standard_normal(leaf)
            else:
                deviation = (leaf.double() - self.centers.get(name, 0.0)).abs().sum().cpu()
                total = total - deviation / self.scale - leaf.numel() * math.log(2 * self.scale)
        return total

    def gradient(self, theta: Tree) -> Tree:
        return {
            name: -leaf if name.startswith(LIKELIHOOD) else -(leaf - self.centers.get(name, 0.0)).sign() / self.scale
            for name, leaf in weights(theta).items()
        }

    def draw(self, name: str, like: Tensor, random: Random) -> Tensor:
        if name.startswith(LIKELIHOOD):
            return random.normal(tuple(like.shape), like=like)
        size = torch.empty_like(like).exponential_(generator=random.fold("size").generator(like.device))
        sign = random.fold("sign").normal(tuple(like.shape), like=like).sign_()
        return size.mul_(sign).mul_(self.scale).add_(self.centers.get(name, 0.0))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "scale": self.scale, "center": _center_json(self.center)}


@dataclass(frozen=True)
class ScaleMixture(_Located):
    """Two normals of one centre: a wide one for weights that matter, a narrow one that holds the rest near it.

    Args:
        std1, std2: the two standard deviations, > 0.
        pi: the weight of the first, in (0, 1).
        center: as in `Normal`.
    """

    std1: float = 1.0
    std2: float = math.exp(-6.0)
    pi: float = 0.5
    center: Center = "zero"
    centers: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    name: ClassVar[str] = "scale-mixture"

    def __post_init__(self) -> None:
        self._check(self.center, self.std1, self.std2)
        if not 0.0 < self.pi < 1.0:
            raise PriorError(f"pi must lie in (0, 1), got {self.pi}")

    def bind(self, start: Tree) -> ScaleMixture:
        return replace(self, centers=_centers(self.center, start))

    def _components(self, deviation: Tensor) -> tuple[Tensor, Tensor]:
        half = -0.5 * math.log(2 * math.pi)
        one = math.log(self.pi) - math.log(self.std1) + half - 0.5 * (deviation / self.std1).square()
        two = math.log1p(-self.pi) - math.log(self.std2) + half - 0.5 * (deviation / self.std2).square()
        return one, two

    def log_density(self, theta: Tree) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for name, leaf in weights(theta).items():
            if name.startswith(LIKELIHOOD):
                total = total + _standard_normal(leaf)
            else:
                one, two = self._components(leaf.double() - self.centers.get(name, 0.0))
                total = total + torch.logaddexp(one, two).sum().cpu()
        return total

    def gradient(self, theta: Tree) -> Tree:
        out: Tree = {}
        for name, leaf in weights(theta).items():
            if name.startswith(LIKELIHOOD):
                out[name] = -leaf
            else:
                deviation = leaf - self.centers.get(name, 0.0)
                one, two = self._components(deviation)
                share = torch.sigmoid(one - two)
                out[name] = -deviation * (share / self.std1**2 + (1 - share) / self.std2**2)
        return out

    def draw(self, name: str, like: Tensor, random: Random) -> Tensor:
        z = random.fold("z").normal(tuple(like.shape), like=like)
        if name.startswith(LIKELIHOOD):
            return z
        which = torch.empty_like(like).uniform_(generator=random.fold("which").generator(like.device))
        return z.mul_(torch.where(which < self.pi, self.std1, self.std2)).add_(self.centers.get(name, 0.0))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "std1": self.std1,
            "std2": self.std2,
            "pi": self.pi,
            "center": _center_json(self.center),
        }


def _standard_normal(leaf: Tensor) -> Tensor:
    return -0.5 * leaf.double().square().sum().cpu() - 0.5 * leaf.numel() * math.log(2 * math.pi)


def _match(patterns: Mapping[str, float], name: str) -> float:
    for pattern, value in patterns.items():
        if fnmatchcase(name, pattern):
            return value
    raise PriorError(f"no pattern of the prior's std matches {name!r}; add a default under '*'")


def _center_json(center: Center) -> str:
    return center if isinstance(center, str) else "given"


_PRIORS: dict[str, type[Prior]] = {prior.name: prior for prior in (Flat, Normal, Laplace, ScaleMixture)}


def prior_from(spec: Prior | str | float) -> Prior:
    """A prior from itself, a name ("normal", "laplace", "scale-mixture") or the std of a normal.

    Raises:
        PriorError: an unknown name or a type that is none of these.
    """
    if isinstance(spec, Prior):
        return spec
    if isinstance(spec, Real) and not isinstance(spec, bool):
        return Normal(float(spec))
    if isinstance(spec, str) and spec in _PRIORS:
        return _PRIORS[spec]()
    raise PriorError(f"unknown prior {spec!r}; use one of {sorted(_PRIORS)}, a std, or an instance such as Normal(1.0)")


def prior_from_json(content: Mapping[str, Any], centers: Tree | None = None) -> Prior:
    """The prior that `to_json` described; `centers` where it was centred at given tensors or at the fit's start."""
    arguments = {key: value for key, value in content.items() if key != "name"}
    if arguments.get("center") == "given" or centers:
        arguments["center"] = centers or {}
    return _PRIORS[content["name"]](**arguments)
