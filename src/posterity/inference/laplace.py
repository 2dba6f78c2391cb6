"""Laplace's approximation of the last layer, around the maximum a posteriori.

    precision = diag(1 / p^2) + w * sum over rows of c_r J_r^T F_r J_r

c_r: the row's weight, 0 where its target is ignored; J_r: the outputs of row r by the last Linear's weight and bias; F_r:
the Fisher information of the likelihood at those outputs, so the sum is the exact Gauss-Newton matrix. "full" keeps the
whole matrix; "kronecker" keeps (sum F) x (mean of features outer features), whose eigenbasis makes the inverse and its root
cheap. Daxberger et al. (2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.inference.algorithm import Algorithm, Plan, Start, gaussian_prior, stacked_start
from posterity.inference.last_layer import LastLayer, last_layer
from posterity.inference.map import MAP
from posterity.posterior.dense import Dense, Kronecker
from posterity.posterior.mixture import mixture
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.problem import Info, NetworkProblem, Problem
from posterity.random import Random
from posterity.tree import LIKELIHOOD, Tree, clone, member, pick

__all__ = ["LaplaceState", "LastLayerLaplace"]

# A full precision matrix of 8192 weights takes 0.5 GiB in float64, its inverse root twice that.
LARGEST_FULL = 8192


class LaplaceState(NamedTuple):
    theta: Tree  # [members, ...] the modes
    # "full": {weight: [members, P, P]}; "kronecker": sums {"outputs" and "features": [members, n, n], "count": [members]}
    curvature: Tree
    prior: Tree  # (weight, bias) -> () precision; their order is the order of the flattened weights
    rows: Tensor  # [members] float64, rows seen
    scale: Tensor  # () float64, w N
    step: Tensor  # () int64


@dataclass(frozen=True)
class LastLayerLaplace(Algorithm):
    """Laplace's approximation of the last Linear; all other weights stay at the mode.

    Args:
        structure: "full" (exact Gauss-Newton, up to 8192 weights) or "kronecker".
        base: the MAP training that runs first.
        prior_precision: of the last layer's weights, or None for the problem's prior.

    Raises:
        CompatibilityError: no last Linear to work on, or too many weights for "full" (with the number).
    """

    name: ClassVar[str] = "laplace"

    structure: str = "full"
    base: MAP = field(default_factory=MAP)
    prior_precision: float | None = None

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        if self.structure not in ("full", "kronecker"):
            raise ValueError(f"structure must be 'full' or 'kronecker', got {self.structure!r}")
        if self.prior_precision is not None and not self.prior_precision > 0:
            raise ValueError(f"prior_precision must be > 0, got {self.prior_precision}")

    def stages(self, plan: Plan) -> list[tuple[Algorithm, Plan]]:
        base = replace(self.base, members=self.members, member_init=self.member_init)
        return [(base, plan), (self, plan._replace(steps=plan.steps_per_epoch))]

    def check(self, problem: Problem, batch: Any) -> None:
        super().check(problem, batch)
        if not isinstance(problem, NetworkProblem):
            raise CompatibilityError("LastLayerLaplace needs a network: a bare density has no last layer")
        theta, batch = problem.start(), problem.read(batch)
        layer = last_layer(problem, theta, batch)
        with torch.no_grad():
            self._curvature(problem, theta, layer, batch)

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> LaplaceState:
        self.check_prior(problem)
        if not isinstance(problem, NetworkProblem):
            raise CompatibilityError("LastLayerLaplace needs a network: a bare density has no last layer")
        return LaplaceState(
            theta=stacked_start(problem, start, self.members),
            curvature={},
            prior={},
            rows=torch.zeros(self.members, dtype=torch.float64),
            scale=torch.tensor(problem.data_weight * problem.data_size, dtype=torch.float64),
            step=torch.tensor(0),
        )

    def step(
        self, problem: Problem, state: LaplaceState, batches: Sequence[Batch], random: Random
    ) -> tuple[LaplaceState, Info]:
        assert isinstance(problem, NetworkProblem)
        curvature, prior, rows = dict(state.curvature), dict(state.prior), state.rows.clone()
        nll, seen = torch.zeros(self.members), torch.zeros(self.members)
        finite = torch.ones(self.members, dtype=torch.bool)
        for k, batch in enumerate(batches):
            theta = member(state.theta, k)
            for part in batch if isinstance(batch, list) else [batch]:
                part = problem.read(part)
                layer = last_layer(problem, theta, part)
                prior = self._prior(problem, layer, prior)
                with torch.no_grad():
                    log_prob = problem.row_log_probs(theta, layer.outputs, part.targets)
                    added = self._curvature(problem, theta, layer, part)
                fine = all(bool(torch.isfinite(value).all()) for value in (log_prob, *added.values()))
                nll[k] -= log_prob.sum().cpu()
                seen[k] += part.rows
                finite[k] &= fine
                if fine:
                    for name, value in added.items():
                        if name not in curvature:
                            curvature[name] = value.new_zeros((self.members, *value.shape))
                        curvature[name][k].add_(value)
                    rows[k] += part.rows
        info = Info(nll / seen, torch.zeros(self.members), finite, {})
        return state._replace(curvature=curvature, prior=prior, rows=rows, step=state.step + 1), info

    def _prior(self, problem: Problem, layer: LastLayer, known: Tree) -> Tree:
        names = [layer.weight] + ([layer.bias] if layer.bias else [])
        if known and names != list(known):
            raise CompatibilityError(
                f"LastLayerLaplace cannot be used here: the last Linear holds {list(known)} on one batch and {names} on "
                "another"
            )
        own = {name: self.prior_precision or gaussian_prior(problem, name)[0] for name in names}
        return known or {name: torch.tensor(value, dtype=torch.float64) for name, value in own.items()}

    def _curvature(self, problem: NetworkProblem, theta: Tree, layer: LastLayer, batch: Batch) -> Tree:
        units, width = problem.network.trainable[layer.weight].shape[0], layer.features.shape[-1]
        if self.structure == "full" and (size := units * width) > LARGEST_FULL:
            raise CompatibilityError(
                f"the last layer has {size} weights: a full precision matrix would take {size**2 * 8 / 2**30:.1f} GiB; "
                "use LastLayerLaplace(structure='kronecker')"
            )
        fisher = problem.likelihood.fisher(layer.outputs, pick(theta, LIKELIHOOD)).double()
        count = (~problem.likelihood.void(batch.targets)).to(fisher)  # as in the loss: how often each row counts
        if batch.weight is not None:
            count = count * batch.weight
        fisher = fisher * count[:, None, None]
        features = layer.features.double()
        jacobian = None if layer.jacobian is None else layer.jacobian.double()
        if self.structure == "kronecker":
            if jacobian is not None:
                fisher = torch.einsum("rjtu,rjl,rltv->ruv", jacobian, fisher, jacobian)
            summed = torch.einsum("r,rth,rti->hi", count, features, features) / features.shape[1]
            return {"outputs": fisher.sum(0), "features": summed, "count": count.sum()}
        if jacobian is None:
            blocks = torch.einsum("rab,rth,rti->ahbi", fisher, features, features)
        else:
            by_weight = torch.einsum("rjtu,rth->rjuh", jacobian, features)
            blocks = torch.einsum("rjah,rjl,rlbi->ahbi", by_weight, fisher, by_weight)
        return {layer.weight: blocks.flatten(2).flatten(0, 1)}

    def point(self, state: LaplaceState) -> Tree:
        return state.theta

    def posterior(self, state: LaplaceState, shards: Posterior | None = None) -> Posterior:
        if not state.curvature:
            raise CompatibilityError("LastLayerLaplace saw no batch: run its pass over the data first")
        build = self._full if self.structure == "full" else self._kronecker
        return mixture([build(state, k) for k in range(self.members)])

    def _full(self, state: LaplaceState, k: int) -> Posterior:
        point, names = clone(member(state.theta, k)), tuple(state.prior)
        (matrix,) = member(state.curvature, k).values()
        precision = matrix * (state.scale / state.rows[k]) + torch.diag(self._flat_prior(point, state.prior))
        # (L^-T)(L^-T)^T = (L L^T)^-1
        identity = torch.eye(len(precision), dtype=torch.float64)
        root = torch.linalg.solve_triangular(torch.linalg.cholesky(precision).T, identity, upper=True)
        return Dense(point, names, _by_tensor(root, point, names).float())

    def _flat_prior(self, point: Tree, prior: Tree) -> Tensor:
        """[units * width] in the curvature's order: unit by unit, the bias last."""
        columns = [prior[name].expand(point[name].reshape(point[name].shape[0], -1).shape) for name in prior]
        return torch.cat(columns, dim=1).reshape(-1)

    def _kronecker(self, state: LaplaceState, k: int) -> Posterior:
        point, names = clone(member(state.theta, k)), tuple(state.prior)
        curvature = member(state.curvature, k)
        output_values, rows = torch.linalg.eigh(curvature["outputs"])
        feature_values, columns = torch.linalg.eigh(curvature["features"])
        # sum of F times MEAN of features, per row seen, times w N
        scale = state.scale / state.rows[k] / curvature["count"]
        weight_precision = state.prior[names[0]]
        likelihood = scale * output_values.clamp(min=0.0)[:, None] * feature_values.clamp(min=0.0)[None, :]
        return Kronecker(point, names, rows.float(), columns.float(), (likelihood + weight_precision).rsqrt().float())

    def hyperparameters(self) -> dict[str, Any]:
        return {**super().hyperparameters(), "base": self.base.hyperparameters()}


def _by_tensor(root: Tensor, point: Tree, names: tuple[str, ...]) -> Tensor:
    """Reorder rows from (unit, feature with the bias last) to one tensor after the other."""
    if len(names) == 1:
        return root
    units, width = point[names[0]].shape
    blocks = root.view(units, width + 1, -1)
    return torch.cat([blocks[:, :width].reshape(units * width, -1), blocks[:, width]])
