"""Automatic differentiation variational inference: the evidence lower bound, by the gradient that sticks the landing.

    L(q) = E[ log q(theta) - log p(theta | data) ],    theta = m + s z,    z ~ N(0, I)
    r    = grad log q(theta) - s(theta),    grad log q = -z / s,    s(theta) = grad log p(theta) - w N g
    dL/dm = <r>,    dL/dlog s = <r (theta - m)>

averages over the draws of a step, everything divided by w N, and Adam on both. The gradient passes through theta alone: the
part through the parameters of log q, whose mean is zero, is left out, so that r = 0 for every draw, and noise ends, where q
is the posterior. Kucukelbir et al. (2017); Roeder, Wu and Duvenaud (2017). The full covariance: `advi_full.py`.

`MeanFieldVI` has the same bound and the same fixed point, s_i^2 = 1 / P_ii for a normal with precision P, with the KL to the
prior in closed form: less noise far from the end, more at it, and no full covariance. Where the noise of mini-batches rules,
the two are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.inference.adam_normals import AdamNormals, AdamNormalsState, joined_draws
from posterity.inference.advi_full import ADVIFull
from posterity.inference.algorithm import Algorithm, gaussian_prior, gradients, survivors
from posterity.inference.gaussian import noisy
from posterity.problem.batches import Batch
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import CHUNK, Tree, chunks, tree_map

__all__ = ["ADVI", "ADVIDiagonal"]


def ADVI(covariance: str = "diagonal", **options: Any) -> Algorithm:
    """The evidence lower bound over one normal, by reparameterised gradients and Adam.

    Args:
        covariance: "diagonal" (independent normals) or "full" (over all weights at once, for small networks).
        options: of `ADVIDiagonal` or `ADVIFull`.

    Raises:
        CompatibilityError: an unknown covariance.
        ValueError: an option out of range.

    >>> ADVI().draws, ADVI("full").draws
    (1, 8)
    """
    kinds: dict[str, type[Algorithm]] = {"diagonal": ADVIDiagonal, "full": ADVIFull}
    if covariance not in kinds:
        raise CompatibilityError(f"ADVI has no covariance {covariance!r}: choose one of 'diagonal' or 'full'")
    return kinds[covariance](**options)


@dataclass(frozen=True)
class ADVIDiagonal(AdamNormals):
    """The evidence lower bound over independent normals, by the gradient that sticks the landing.

    Arguments and errors as in `AdamNormals`.
    """

    name: ClassVar[str] = "advi"
    elementwise: ClassVar[bool] = True

    def gradients(
        self, problem: Problem, state: AdamNormalsState, batches: Sequence[Batch], random: Random, t: int
    ) -> tuple[Tree, Tree, Info]:
        """dL/dm and dL/dlog s over w N; a member's Info is finite where all of its draws are."""
        share = 1.0 / (problem.data_weight * problem.data_size)
        sums: tuple[Tree, Tree] | None = None
        infos = []
        for i in range(self.draws):
            stream = random if i == 0 else random.fold(f"draw {i}")
            thetas = noisy(state.mean, state.log_std, torch.exp, stream, t)
            _, gradient, info = gradients(problem, thetas, batches, stream, t)
            infos.append(info)
            for name, log_std in state.log_std.items():
                precision, center = gaussian_prior(problem, name)
                views = [state.mean[name], log_std, thetas[name], gradient[name]]
                if isinstance(center, Tensor):
                    views.append(center.expand_as(log_std).contiguous())
                scratch = torch.empty(min(log_std.numel(), CHUNK), dtype=log_std.dtype, device=log_std.device)
                for m, rho, theta, r, *c in chunks(*views, alive=survivors(info)):
                    # r = w N g - grad log p + grad log q, over the gradient; then r (theta - m), over theta
                    r.add_(theta, alpha=precision * share)
                    if c:
                        r.sub_(c[0], alpha=precision * share)
                    inverse = torch.mul(rho, -2.0, out=scratch[: rho.numel()]).exp_()
                    r.addcmul_(theta.sub_(m), inverse, value=-share)
                    theta.mul_(r)
            by_log_std = {name: thetas[name] for name in state.log_std}
            if sums is None:
                sums = {name: gradient[name] for name in by_log_std}, by_log_std
            else:
                for total, new in zip(sums, (gradient, by_log_std)):
                    for name, leaf in total.items():
                        leaf.add_(new[name])
        assert sums is not None
        if self.draws == 1:
            return *sums, infos[0]
        by_mean, by_log_std = (tree_map(lambda leaf: leaf.div_(self.draws), total) for total in sums)
        return by_mean, by_log_std, joined_draws(infos)
