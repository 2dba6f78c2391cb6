"""Densities with known answers: what a method says of them can be held against the truth.

All are over one flat tensor {"x": [dim]}, normalised, and can be drawn from exactly. `log_prob` takes leading axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, ShapeError
from posterity.problem.densities import Density
from posterity.problem.scores import counted, noisy, tempered
from posterity.random import Random

__all__ = [
    "Estimate",
    "Gaussian",
    "Mixture",
    "Reference",
    "banana",
    "counted",
    "funnel",
    "gaussian",
    "mixture",
    "noisy",
    "tempered",
]

LOG_2PI = math.log(2 * math.pi)


class Estimate(NamedTuple):
    """A Monte Carlo mean and its standard error."""

    value: float
    standard_error: float


class Reference(Density):
    """A normalised density with known moments and exact draws.

    Args:
        log_prob: [..., dim] -> [...] log p(x), nats.
        sampler: (count, random) -> [count, dim] independent draws.
        mean: [dim].
        covariance: [dim, dim], or [dim] variances where the coordinates are uncorrelated.
    """

    def __init__(
        self,
        log_prob: Callable[[Tensor], Tensor],
        sampler: Callable[[int, Random], Tensor],
        mean: Tensor,
        covariance: Tensor,
    ) -> None:
        super().__init__(lambda tree: log_prob(tree["x"]), {"x": torch.zeros_like(mean)}, batched=True)
        self.log_prob = log_prob
        self._sampler = sampler
        self._covariance = covariance
        self.mean = mean
        self.dim = len(mean)

    @property
    def covariance(self) -> Tensor:
        """[dim, dim]."""
        return self._covariance.diag() if self._covariance.ndim == 1 else self._covariance

    @property
    def std(self) -> Tensor:
        """[dim] marginal standard deviations."""
        variances = self._covariance if self._covariance.ndim == 1 else self._covariance.diagonal()
        return variances.sqrt()

    def draws(self, count: int, random: Random) -> Tensor:
        """[count, dim] independent exact draws."""
        return self._sampler(count, random)

    def forward_kl(self, log_q: Callable[[Tensor], Tensor], count: int, random: Random) -> Estimate:
        """KL(p || q) in nats, from `count` exact draws; `log_q` takes [count, dim] and gives [count]."""
        x = self.draws(count, random)
        gaps = (self.log_prob(x) - log_q(x)).double()
        return Estimate(gaps.mean().item(), gaps.std().item() / math.sqrt(count))


class Gaussian(Reference):
    """N(mean, basis diag(variances) basis^T).

    Args:
        mean: [dim].
        variances: [dim], the eigenvalues of the covariance, > 0.
        basis: [dim, dim] with the eigenvectors as columns; None for the axes.
    """

    def __init__(self, mean: Tensor, variances: Tensor, basis: Tensor | None = None) -> None:
        scales = variances.sqrt()
        constant = -0.5 * (len(mean) * LOG_2PI + variances.log().sum())

        def log_prob(x: Tensor) -> Tensor:
            centered = x - mean
            along = centered if basis is None else centered @ basis
            return constant - 0.5 * (along.square() / variances).sum(-1)

        def sampler(count: int, random: Random) -> Tensor:
            along = scales * random.fold("x").normal((count, len(mean)), like=mean)
            return mean + (along if basis is None else along @ basis.mT)

        covariance = variances if basis is None else basis * variances @ basis.mT
        super().__init__(log_prob, sampler, mean, covariance)
        self.variances, self.basis = variances, basis

    def kl(self, mean: Tensor, covariance_or_std: Tensor) -> float:
        """KL(q || p) of q = N(mean, .) from this density, nats.

            1/2 sum (l - 1 - log l) + 1/2 |W (mean - m)|^2,  l the eigenvalues of W S W^T,  W = diag(v)^-1/2 basis^T

        Args:
            mean: [dim].
            covariance_or_std: S as [dim, dim], or the standard deviations [dim]. Infinite where S is singular.

        Raises:
            ShapeError: shapes other than these.
        """
        spread = covariance_or_std.detach().double()
        if mean.shape != self.mean.shape or spread.shape not in ((self.dim,), (self.dim, self.dim)):
            raise ShapeError(
                f"a Gaussian over {self.dim} numbers needs a mean [{self.dim}] and a std [{self.dim}] or covariance "
                f"[{self.dim}, {self.dim}], got {list(mean.shape)} and {list(spread.shape)}"
            )
        gap = mean.detach().double() - self.mean.double()
        scales = self.variances.double().sqrt()
        if not bool(gap.isfinite().all() and spread.isfinite().all()):
            return math.nan
        if self.basis is None and spread.ndim == 1:
            ratios = (spread / scales).square()
        else:
            covariance = spread.square().diag() if spread.ndim == 1 else spread
            basis = torch.eye(self.dim, dtype=torch.float64) if self.basis is None else self.basis.double()
            gap = gap @ basis
            ratios = torch.linalg.eigvalsh(basis.mT @ covariance @ basis / torch.outer(scales, scales))
        if bool((ratios <= 0).any()):
            return math.inf
        excess = ratios - 1  # log1p keeps what is left of the difference where q is nearly p
        return 0.5 * ((excess - excess.log1p()).sum() + (gap / scales).square().sum()).item()

    def kl_per_dim(self, mean: Tensor, covariance_or_std: Tensor) -> float:
        """KL(q || p) / dim, nats per dimension."""
        return self.kl(mean, covariance_or_std) / self.dim


def gaussian(
    dim: int,
    condition: float = 1.0,
    rotation: int | None = None,
    mean_seed: int | None = 0,
    largest: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Gaussian:
    """N(m, S) whose eigenvalues are log-spaced in [largest / condition, largest], m ~ N(0, I).

    Args:
        dim: >= 1.
        condition: largest over smallest eigenvalue, >= 1.
        rotation: seed of a random orthogonal basis; None keeps the axes.
        mean_seed: seed of the mean; None for zero.
        largest: largest eigenvalue, > 0.
        dtype: of the density and its start.

    Raises:
        CompatibilityError: a number out of its range.

    >>> target = gaussian(3, condition=100.0, mean_seed=None)
    >>> target.covariance.diagonal().tolist()
    [0.01, 0.1, 1.0]
    >>> target.kl(target.mean, target.std)
    0.0
    """
    if dim < 1 or not condition >= 1 or not largest > 0:
        raise CompatibilityError(
            f"a Gaussian needs dim >= 1, condition >= 1 and largest > 0, got {dim}, {condition} and {largest}"
        )
    like = torch.empty(0, dtype=torch.float64)
    powers = torch.linspace(-math.log10(condition), 0.0, dim, dtype=torch.float64)
    variances = (largest * 10**powers).to(dtype)
    mean = like.new_zeros(dim) if mean_seed is None else Random(mean_seed).fold("mean").normal((dim,), like)
    basis = None
    if rotation is not None:
        q, r = torch.linalg.qr(Random(rotation).fold("rotation").normal((dim, dim), like))
        basis = (q * r.diagonal().sign()).to(dtype)  # the signs make it uniform over the orthogonal group
    return Gaussian(mean.to(dtype), variances, basis)


class Mixture(Reference):
    """Two isotropic Gaussians at +separation (the right one) and -separation on the first axis."""

    def __init__(
        self, separation: float, std: float, weights: tuple[float, float], dim: int, dtype: torch.dtype
    ) -> None:
        axis = torch.zeros(dim, dtype=dtype)
        axis[0] = 1.0
        centers = separation * torch.stack([axis, -axis])
        right = weights[0] / sum(weights)
        logs = torch.tensor([right, 1 - right], dtype=dtype).log()

        def log_prob(x: Tensor) -> Tensor:
            squares = (x.unsqueeze(-2) - centers).square().sum(-1) / std**2
            return (logs - 0.5 * squares).logsumexp(-1) - 0.5 * dim * (LOG_2PI + 2 * math.log(std))

        def sampler(count: int, random: Random) -> Tensor:
            generator = random.fold("component").generator()
            left = torch.rand(count, generator=generator, dtype=torch.float64) >= right
            return centers[left.long()] + std * random.fold("x").normal((count, dim), like=axis)

        mean = (2 * right - 1) * separation * axis
        between = 4 * right * (1 - right) * separation**2  # the variance of +-separation
        super().__init__(log_prob, sampler, mean, std**2 + between * axis)

    def right_mass(self, draws: Tensor) -> float:
        """The fraction of draws [count, dim] nearer to the right component; the density's own is near weights[0]."""
        return (draws[:, 0] > 0).double().mean().item()


def mixture(
    separation: float = 3.0,
    std: float = 1.0,
    weights: tuple[float, float] = (0.7, 0.3),
    dim: int = 2,
    dtype: torch.dtype = torch.float64,
) -> Mixture:
    """w N(+separation e_1, std^2 I) + (1 - w) N(-separation e_1, std^2 I), the weights made to sum to one.

    Raises:
        CompatibilityError: a std, weight or dim that is not > 0.
    """
    if not (std > 0 and min(weights) > 0 and dim >= 1):
        raise CompatibilityError(f"a mixture needs std, weights and dim > 0, got {std}, {weights} and {dim}")
    return Mixture(separation, std, weights, dim, dtype)


def funnel(dim: int, std: float = 3.0, dtype: torch.dtype = torch.float64) -> Reference:
    """Neal's funnel: v ~ N(0, std^2), x_i | v ~ N(0, exp(v)), flat as (v, x_2, ..., x_dim). Neal (2003), section 8."""
    if dim < 2 or not std > 0:
        raise CompatibilityError(f"a funnel needs dim >= 2 and std > 0, got {dim} and {std}")
    constant = -0.5 * dim * LOG_2PI - math.log(std)

    def log_prob(x: Tensor) -> Tensor:
        v, rest = x[..., 0], x[..., 1:]
        return constant - 0.5 * ((v / std).square() + (dim - 1) * v + rest.square().sum(-1) * (-v).exp())

    def sampler(count: int, random: Random) -> Tensor:
        z = random.fold("x").normal((count, dim), like=mean)
        v = std * z[:, :1]
        return torch.cat([v, z[:, 1:] * (0.5 * v).exp()], 1)

    mean = torch.zeros(dim, dtype=dtype)
    variances = torch.full_like(mean, math.exp(0.5 * std**2))  # E exp(v)
    variances[0] = std**2
    return Reference(log_prob, sampler, mean, variances)


def banana(b: float = 0.03, std: float = 10.0, dtype: torch.dtype = torch.float64) -> Reference:
    """A Gaussian bent along a parabola: x_1 ~ N(0, std^2), x_2 | x_1 ~ N(b (x_1^2 - std^2), 1). Haario et al. (1999)."""
    if not std > 0:
        raise CompatibilityError(f"a banana needs std > 0, got {std}")

    def log_prob(x: Tensor) -> Tensor:
        bent = x[..., 1] - b * (x[..., 0].square() - std**2)
        return -0.5 * ((x[..., 0] / std).square() + bent.square()) - LOG_2PI - math.log(std)

    def sampler(count: int, random: Random) -> Tensor:
        z = random.fold("x").normal((count, 2), like=mean)
        along = std * z[:, 0]
        return torch.stack([along, z[:, 1] + b * (along.square() - std**2)], 1)

    mean = torch.zeros(2, dtype=dtype)
    return Reference(log_prob, sampler, mean, mean.new_tensor([std**2, 1 + 2 * b**2 * std**4]))
