"""Masses of Hamiltonian chains from the statistics that an optimizer leaves behind.

    s = 1                              "identity"
        g^2                            "gradient"         g, mu, nu: the last gradient of the MEAN loss and Adam's
        mu^2                           "first-moment"     bias-corrected moments, taken together at the snapshot
        sqrt(nu)                       "second-moment"
        w N B nu + prior precision     "fisher"           the curvature of U where the likelihood is well specified
    M = (s / mean s + floor) / (1 + floor)

A chain depends on h^2 / M alone, so every mass has mean 1 over the weights of its member: step sizes compare. `layer_wise`
puts the mean of s over each tensor in its place. Schlager et al. (2026), arXiv 2607.25312, section 3, but for the floor,
which is relative here, and "fisher", whose nu carries the square that makes it a curvature.

"adaptive" is scale-adapted (Springenberg et al., 2016): M = sqrt(v) from gradients of the warm-up, then frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from posterity.inference.algorithm import Start, gaussian_prior, optimizer_statistics
from posterity.problem.problem import Problem
from posterity.problem.snapshot import Snapshot
from posterity.tree import Tree, rows, split

__all__ = ["MASSES", "Adapting", "Mass", "similarity"]

MASSES = ("identity", "gradient", "first-moment", "second-moment", "fisher", "adaptive")
BARE = ("identity", "adaptive")  # need no optimizer
# A tenth of the mean keeps weights whose gradient vanished from running away; a root spreads less, and needs less.
_FLOORS = {"gradient": 0.1, "first-moment": 0.1, "second-moment": 0.01, "fisher": 0.1, "adaptive": 0.01}


@dataclass(frozen=True)
class Mass:
    """Which statistic the mass of a chain is made of.

    Args:
        kind: one of `MASSES`.
        layer_wise: one number per tensor, the mean of its statistic.
        shared: the same mass for all members, the mean of theirs.
        floor: added to s / mean s, >= 0; None for 0.1, and 0.01 on roots.

    Raises:
        ValueError: an unknown kind, a negative floor, an adaptive mass that is shared.
    """

    kind: str = "second-moment"
    layer_wise: bool = False
    shared: bool = False
    floor: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in MASSES:
            raise ValueError(f"mass must be one of {MASSES}, got {self.kind!r}")
        if self.floor is not None and not 0.0 <= self.floor < float("inf"):
            raise ValueError(f"floor must be finite and >= 0, got {self.floor}")
        if self.shared and self.kind == "adaptive":
            raise ValueError("an adaptive mass is each chain's own: shared=True does not go with it")

    def of(self, problem: Problem, start: Start, theta: Tree, names: Sequence[str]) -> Tensor:
        """[members, d] masses for the named tensors of `theta`, each from its own member's statistics.

        Raises:
            CompatibilityError: a statistic that the start does not bring.
        """
        plain = torch.ones_like(rows(theta, names))
        if self.kind in BARE:
            return plain
        each = optimizer_statistics(start, len(plain), f"mass={self.kind!r}")
        statistic = torch.cat([rows(self._statistic(problem, one, names), names) for one in each])
        mass = self.normalised(statistic.to(plain), theta, names)
        return mass.mean(0, keepdim=True).repeat(len(mass), 1) if self.shared else mass

    def _statistic(self, problem: Problem, snapshot: Snapshot, names: Sequence[str]) -> Tree:
        """Of one member, under a leading axis of one."""
        source = {"gradient": snapshot.gradient, "first-moment": snapshot.first}.get(self.kind, snapshot.second)
        if self.kind == "fisher":
            size = problem.data_weight * problem.data_size
            return {name: snapshot.fisher(name, size, gaussian_prior(problem, name)[0])[None] for name in names}
        found = {name: source[name].unsqueeze(0) for name in names}
        if self.kind == "second-moment":
            return {name: leaf.sqrt() for name, leaf in found.items()}
        return {name: leaf.square() for name, leaf in found.items()}

    def normalised(self, statistic: Tensor, like: Tree, names: Sequence[str]) -> Tensor:
        """[members, d] M of the statistic s; ones where s vanishes everywhere."""
        if self.layer_wise:
            parts = split(statistic, like, names)
            averaged = {
                n: leaf.flatten(1).mean(1, keepdim=True).expand(-1, leaf[0].numel()) for n, leaf in parts.items()
            }
            statistic = rows(averaged, names)
        mean = statistic.double().mean(1, keepdim=True).to(statistic)
        floor = _FLOORS.get(self.kind, 0.0) if self.floor is None else self.floor
        return torch.where(mean > 0.0, (statistic / mean + floor) / (1.0 + floor), 1.0)


class Adapting(NamedTuple):
    """Running statistics of grad U along the warm-up, [members, d] each; without elements where a mass does not adapt.

        tau <- tau (1 - g_bar^2 / v) + 1,    g_bar <- g_bar + (g - g_bar) / (tau + 1),    v <- v + (g^2 - v) / (tau + 1)

    Springenberg et al. (2016), section 4.2. v starts at the first g^2: a start at 1 would bring a scale of its own.
    """

    tau: Tensor
    mean: Tensor
    square: Tensor

    @classmethod
    def fresh(cls, theta: Tensor, wanted: bool) -> Adapting:
        like = theta if wanted else theta[:, :0]
        return cls(torch.ones_like(like), torch.zeros_like(like), torch.zeros_like(like))

    def update_(self, g: Tensor, alive: Tensor, first: bool) -> None:
        """Take in the gradient of the living chains; statistics of the others stay."""
        for k in alive.nonzero().flatten().tolist():
            tau, mean, square = self.tau[k], self.mean[k], self.square[k]
            if first:
                mean.copy_(g[k])
                square.copy_(g[k].square())
                continue
            tiny = torch.finfo(square.dtype).tiny
            tau.mul_(1.0 - mean.square() / square.clamp(min=tiny)).add_(1.0).clamp_(min=1.0)
            mean.add_((g[k] - mean) / (tau + 1.0))
            square.add_((g[k].square() - square) / (tau + 1.0))


def similarity(mass: Tensor) -> float:
    """The mean correlation of log M over pairs of members; NaN for one member, and where a mass is 1 everywhere."""
    logs = mass.double().log()
    members = len(logs)
    if members < 2 or float(logs.var(1).min()) < 1e-12:
        return float("nan")
    return float((torch.corrcoef(logs).sum() - members) / (members * (members - 1)))
