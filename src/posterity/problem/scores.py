"""The same density with other scores: noisy, tempered, counted. They nest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, ShapeError
from posterity.problem.densities import Density
from posterity.problem.problem import Info
from posterity.random import Random
from posterity.tree import Tree, squared_norms, tree_map

__all__ = ["Counted", "counted", "noisy", "tempered"]


class _Wrapped(Density):
    """A density that stands before another: its value, gradient and Hessian are made from the other's."""

    def __init__(self, density: Density, beta: float = 1.0) -> None:
        super().__init__(lambda tree: beta * density.log_density(tree), density.start())
        self.density = density
        self.prior, self.idle = density.prior, density.idle
        self.data_size, self.data_weight = density.data_size, density.data_weight
        self.std: Tensor | None = getattr(density, "std", None) if beta == 1 else None


class _Noisy(_Wrapped):
    def __init__(self, density: Density, tau: float, scale: Tensor) -> None:
        super().__init__(density)
        self.tau, self.scale = tau, scale

    def nll(self, theta: Tree, batch: Any, random: Random) -> tuple[Tensor, Tree, Info]:
        value, gradient, info = self.density.nll(theta, batch, random)
        noise = random.fold("score noise").normals(gradient)
        gradient = tree_map(lambda g, z: g + (self.tau / self.scale).to(g) * z, gradient, noise)
        return value, gradient, _noted(info, info.nll, gradient)


class _Tempered(_Wrapped):
    def __init__(self, density: Density, beta: float) -> None:
        super().__init__(density, beta)
        self.beta = beta

    def nll(self, theta: Tree, batch: Any, random: Random) -> tuple[Tensor, Tree, Info]:
        value, gradient, info = self.density.nll(theta, batch, random)
        gradient = tree_map(lambda g: self.beta * g, gradient)
        return self.beta * value, gradient, _noted(info, self.beta * info.nll, gradient)


class Counted(_Wrapped):
    """A density that counts how often it was asked for a score, in `evaluations`."""

    def __init__(self, density: Density) -> None:
        super().__init__(density)
        self.evaluations = 0

    def nll(self, theta: Tree, batch: Any, random: Random) -> tuple[Tensor, Tree, Info]:
        self.evaluations += 1
        return self.density.nll(theta, batch, random)


def _noted(info: Info, nll: Tensor, gradient: Tree) -> Info:
    norm = squared_norms({name: leaf.unsqueeze(0) for name, leaf in gradient.items()}).sqrt()
    return info._replace(nll=nll, gradient_norm=norm, finite=info.finite & torch.isfinite(norm))


def noisy(density: Density, tau: float, scale: Tensor | float | None = None) -> Density:
    """The density with an unbiased noisy gradient, g + tau / scale * xi, xi ~ N(0, 1); its value has no noise.

    The noise is drawn at the address that `nll` is given: one address, one noise.

    Args:
        density: of any kind.
        tau: >= 0; tau^2 is the variance of the score's noise in units of 1 / scale^2.
        scale: > 0, one number or shaped like every tensor; None takes the density's own `std`.

    Raises:
        CompatibilityError: a tau or scale out of range, or no scale for a density that does not know its std.
        ShapeError: a scale of another shape than a tensor's.
    """
    if not tau >= 0:
        raise CompatibilityError(f"the noise of a score needs tau >= 0, got {tau}")
    if scale is None:
        scale = getattr(density, "std", None)
        if scale is None:
            raise CompatibilityError("this density does not know its std: pass noisy(..., scale=)")
    scale = torch.as_tensor(scale)
    if not bool((scale > 0).all()):
        raise CompatibilityError("the scale of a score's noise must be > 0 everywhere")
    for name, leaf in density.start().items():
        if scale.ndim and scale.shape != leaf.shape:
            raise ShapeError(f"the scale of the noise is {list(scale.shape)} and {name!r} is {list(leaf.shape)}")
    return _Noisy(density, tau, scale)


def tempered(density: Density, beta: float) -> Density:
    """p(x)^beta, not normalised: value and gradient times beta > 0.

    Raises:
        CompatibilityError: beta <= 0.
    """
    if not beta > 0:
        raise CompatibilityError(f"a tempered density needs beta > 0, got {beta}")
    return _Tempered(density, beta)


def counted(density: Density) -> Counted:
    """The density, with the number of scores that were asked for in `.evaluations`; K members count K times."""
    return Counted(density)
