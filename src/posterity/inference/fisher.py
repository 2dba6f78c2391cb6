"""Score matching as it is usually meant: the Fisher divergence, with the gradient through the draws.

    F(m, log s) = 1/2 E |grad log q(theta) - s(theta)|^2,    theta = m + s z,    z ~ N(0, I),    q = N(m, diag s^2)

    r = -z / s + grad U(theta),       H = Hessian of U = w N Hessian of the mean NLL + prior precision
    dF/dm     = < H r >
    dF/dlog s = < r z / s + s z H r >

over (w N)^2, averages over the draws of a step; Adam on both. H r is one product of the Hessian with a vector.

The fixed point is not that of the evidence lower bound nor of `ScoreVI`, which does not differentiate through the draws: for
a normal with precision P it is s_i^2 = 1 / sqrt((P^2)_ii) <= 1 / P_ii <= the true variance. Under mini-batches the variance
of the scores, where it depends on theta, is part of F. Hyvarinen (2005) for the divergence.

A step needs second derivatives by the weights: it keeps the graph of a backward pass, about three times the memory of a
gradient, and a forward whose operations can be differentiated twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from posterity.errors import CompatibilityError
from posterity.inference.adam_normals import AdamNormals, AdamNormalsState, joined_draws
from posterity.inference.algorithm import gaussian_prior
from posterity.inference.gaussian import noisy
from posterity.inference.score_matching import joined_info
from posterity.problem.batches import Batch
from posterity.problem.problem import Info, Problem, batch_rows
from posterity.random import Random
from posterity.tree import Tree, clone, member, stack, tree_map

__all__ = ["FisherVI"]


@dataclass(frozen=True)
class FisherVI(AdamNormals):
    """The Fisher divergence to independent normals, by Hessian-vector products; a baseline.

    Arguments and errors as in `AdamNormals`.

    Raises:
        CompatibilityError: a forward that cannot be differentiated twice.
    """

    name: ClassVar[str] = "fisher-vi"

    def check(self, problem: Problem, batch: Any) -> None:
        super().check(problem, batch)
        theta = problem.start()
        try:
            problem.hvp(theta, batch, Random(0).fold("check"), tree_map(torch.ones_like, theta))
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            raise CompatibilityError(
                f"FisherVI needs second derivatives, and the forward has none ({error}): use ScoreVI or ADVI"
            ) from error

    def gradients(
        self, problem: Problem, state: AdamNormalsState, batches: Sequence[Batch], random: Random, t: int
    ) -> tuple[Tree, Tree, Info]:
        """dF/dm and dF/dlog s over (w N)^2."""
        share = 1.0 / (problem.data_weight * problem.data_size)
        by_mean = [tree_map(lambda leaf: torch.zeros_like(leaf[0]), state.log_std) for _ in batches]
        by_log_std = [clone(zeros) for zeros in by_mean]
        infos: list[list[Info]] = [[] for _ in batches]
        for i in range(self.draws):
            stream = random if i == 0 else random.fold(f"draw {i}")
            thetas = noisy(state.mean, state.log_std, torch.exp, stream, t)
            for k, batch in enumerate(batches):
                theta = member(thetas, k)
                r, hr, info = _residual(problem, state, theta, k, batch, stream.fold("step").fold(k).fold(t))
                infos[k].append(info)
                for name in r:
                    shift = theta[name] - state.mean[name][k]  # s z
                    inverse = torch.exp(-2.0 * state.log_std[name][k])
                    by_mean[k][name].add_(hr[name], alpha=1.0 / self.draws)
                    by_log_std[k][name].add_(shift * (r[name] * inverse * share + hr[name]), alpha=1.0 / self.draws)
        return stack(by_mean), stack(by_log_std), joined_info([joined_draws(of_draws) for of_draws in infos])


def _residual(
    problem: Problem, state: AdamNormalsState, theta: Tree, k: int, batch: Any, random: Random
) -> tuple[Tree, Tree, Info]:
    """r and H r of member k over w N and (w N)^2, at one draw of its weights; Info of the one member.

    The parts of an accumulated batch one by one, each with one address for both derivatives.
    """
    share = 1.0 / (problem.data_weight * problem.data_size)
    parts = batch if isinstance(batch, list) else [batch]
    streams = [random if i == 0 else random.fold(f"part {i}") for i in range(len(parts))]
    shares = [batch_rows(part) / batch_rows(batch) for part in parts]
    r = {name: torch.zeros_like(leaf[k]) for name, leaf in state.log_std.items()}
    infos, moved = [], theta
    for part, stream, rows in zip(parts, streams, shares):
        _, gradient, info = problem.nll(moved, part, stream)
        moved = {**moved, **{name: leaf[0] for name, leaf in info.buffers.items()}}
        infos.append(info)
        for name, leaf in r.items():
            leaf.add_(gradient[name], alpha=rows)
    norm = torch.stack([torch.linalg.vector_norm(leaf) for leaf in r.values()]).norm()[None]
    hr = {}
    for name, leaf in r.items():
        precision, center = gaussian_prior(problem, name)
        inverse = torch.exp(-2.0 * state.log_std[name][k])
        leaf.add_(theta[name] - center, alpha=precision * share)
        leaf.addcmul_(theta[name] - state.mean[name][k], inverse, value=-share)
        hr[name] = leaf * (precision * share)
    vector = {name: r.get(name, torch.zeros_like(leaf)) for name, leaf in theta.items()}
    for part, stream, rows in zip(parts, streams, shares):
        product = problem.hvp(theta, part, stream, vector)
        for name, leaf in hr.items():
            leaf.add_(product[name], alpha=rows)
    finite = torch.stack([info.finite for info in infos]).all(0)
    for leaf in hr.values():
        finite = finite & torch.isfinite(leaf).all().to(finite.device)
    finite = problem.drawing.sum_((~finite).to(torch.int64)) == 0
    nll = torch.stack([info.nll * rows for info, rows in zip(infos, shares)]).sum(0)
    return r, hr, Info(nll, norm, finite, infos[-1].buffers)
