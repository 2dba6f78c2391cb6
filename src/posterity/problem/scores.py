"""The same density with other scores: noisy, tempered, counted. They nest."""

from __future__ import annotations

from collections.abc import Sequence
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
        super().__init__(lambda tree: beta * density.log_density(tree), density.start(), density.batched)
        self.density = density
        self.prior, self.idle = density.prior, density.idle
        self.data_size, self.data_weight = density.data_size, density.data_weight
        self.std: Tensor | None = getattr(density, "std", None) if beta == 1 else None

    def nll(self, theta: Tree, batch: Any, random: Random) -> tuple[Tensor, Tree, Info]:
        values, gradients, info = self.nlls({n: leaf.unsqueeze(0) for n, leaf in theta.items()}, [batch], [random])
        return values[0], {name: leaf[0] for name, leaf in gradients.items()}, info

    def nlls(self, thetas: Tree, batches: Sequence[Any], randoms: Sequence[Random]) -> tuple[Tensor, Tree, Info]:
        values, gradients, info = self.density.nlls(thetas, batches, randoms)
        values, gradients = self._changed(values, gradients, randoms)
        norms = squared_norms(gradients).sqrt()
        return values, gradients, Info(values, norms, info.finite & torch.isfinite(norms), info.buffers, info.extra)

    def _changed(self, values: Tensor, gradients: Tree, randoms: Sequence[Random]) -> tuple[Tensor, Tree]:
        """[K] values and gradients of the other density, made into one's own."""
        raise NotImplementedError


class _Noisy(_Wrapped):
    def __init__(self, density: Density, tau: float, scale: Tensor) -> None:
        super().__init__(density)
        self.tau, self.scale = tau, scale

    def _changed(self, values: Tensor, gradients: Tree, randoms: Sequence[Random]) -> tuple[Tensor, Tree]:
        for k, random in enumerate(randoms):
            noise = random.fold("score noise").normals({name: leaf[k] for name, leaf in gradients.items()})
            for name, z in noise.items():
                gradients[name][k].add_((self.tau / self.scale).to(z) * z)
        return values, gradients


class _Tempered(_Wrapped):
    def __init__(self, density: Density, beta: float) -> None:
        super().__init__(density, beta)
        self.beta = beta

    def _changed(self, values: Tensor, gradients: Tree, randoms: Sequence[Random]) -> tuple[Tensor, Tree]:
        return self.beta * values, tree_map(lambda g: self.beta * g, gradients)


class Counted(_Wrapped):
    """A density that counts how often it was asked for a score, in `evaluations`."""

    def __init__(self, density: Density) -> None:
        super().__init__(density)
        self.evaluations = 0

    def _changed(self, values: Tensor, gradients: Tree, randoms: Sequence[Random]) -> tuple[Tensor, Tree]:
        self.evaluations += len(randoms)
        return values, gradients


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
