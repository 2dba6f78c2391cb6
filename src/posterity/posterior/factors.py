"""Independent normals on the factors of matrices: W = A B^T with A, B ~ normal, or W = W0 + A B^T.

A draw holds `Factored` weights, which are never written out where they need not be. Toure and Stephens (2026, arXiv
2602.00387).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.moments import Deterministic, FactoredNormal, Moment, Normal
from posterity.posterior.posterior import Posterior
from posterity.problem.carrier import is_constant, part_name, rebuild, stem
from posterity.problem.factored_problem import factor_prior
from posterity.problem.formed import Formed
from posterity.problem.priors import Normal as NormalPrior
from posterity.problem.priors import Prior
from posterity.random import Random
from posterity.tree import Tree, count, pick, weights

__all__ = ["Factors", "divergence"]


class Factors(Posterior):
    """Normals over a tree of factors (`posterity.problem.factored_problem` names its leaves).

    Args:
        means: every leaf: factors, the constants that they change, other weights, the changed buffers.
        stds: of those that vary, shaped like their means; without any, the posterior is one point.
        centers: of the factors' prior, where that is centred on the start.
    """

    kind: ClassVar[str] = "factors"

    def __init__(self, means: Tree, stds: Tree, centers: Tree | None = None) -> None:
        self.means, self.stds, self.centers = means, stds, centers or {}

    @property
    def factored(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Means of A [m, r] and B [n, r] of each factored tensor, by name."""
        stems = [stem(name) for name in self.means if name.endswith(part_name("", "left"))]
        pairs = {name: (self.means[part_name(name, "left")], self.means[part_name(name, "right")]) for name in stems}
        return {name: (left, right.flatten(end_dim=-2)) for name, (left, right) in pairs.items()}

    @property
    def finite(self) -> int | None:
        return None if self.stds else 1

    @property
    def size(self) -> int:
        return count({n: leaf for n, leaf in self.means.items() if not is_constant(n)}) + count(self.stds)

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        if not self.stds:
            n = 1
        for draw in Diagonal(self.means, self.stds).draws(n, random):
            yield rebuild(draw)

    def mean(self) -> Tree:
        """E W = M_A M_B^T, written out."""
        return {n: leaf.dense() if isinstance(leaf, Formed) else leaf for n, leaf in rebuild(self.means).items()}

    def moments(self) -> dict[str, Moment]:
        found: dict[str, Moment] = {}
        for name, leaf in rebuild(self.means).items():
            if isinstance(leaf, Formed):
                found[name] = self._factored_moment(name)
            elif name in self.stds:
                found[name] = Normal(leaf, self.stds[name])
            else:
                found[name] = Deterministic(leaf)
        return found

    def _factored_moment(self, name: str) -> FactoredNormal:
        (left, left_std), (right, right_std) = (
            (self.means[part], self.stds.get(part, torch.zeros_like(self.means[part])))
            for part in (part_name(name, "left"), part_name(name, "right"))
        )
        shape = len(left), *right.shape[:-1]
        columns = right.flatten(end_dim=-2), right_std.flatten(end_dim=-2)
        return FactoredNormal(left, left_std, *columns, shape, self.means.get(part_name(name, "base")))

    def divergence(self, prior: Prior) -> float:
        """KL(q || p) over factors and other weights, in nats: an upper bound on that over the matrices themselves."""
        bound = factor_prior(prior, self.means, self.centers)
        if not isinstance(bound, NormalPrior):
            raise CompatibilityError(f"the divergence from a {prior.name} prior has no closed form: use po.Normal")
        trained = [n for n in weights(self.means) if n not in self.stds and not is_constant(n)]
        if trained:
            raise CompatibilityError(
                f"the weights {trained[:3]} of this posterior are points, which no normal prior holds: its divergence is "
                "infinite. Fit with LowRankVI(vectors='normal'), or freeze them (requires_grad_(False))"
            )
        return divergence(bound, self.means, self.stds)

    # --- ranks -----------------------------------------------------------------------------------------------------

    def strengths(self) -> dict[str, Tensor]:
        """[r] |a_k| |b_k| of the mean factors' columns, by tensor: what each rank-one part adds to E W."""
        norm = torch.linalg.vector_norm
        return {name: norm(left, dim=0) * norm(right, dim=0) for name, (left, right) in self.factored.items()}

    def effective_ranks(self, threshold: float = 0.05) -> dict[str, int]:
        """How many parts reach `threshold` of the strongest, by tensor."""
        return {name: int((s >= threshold * s.max()).sum()) for name, s in self.strengths().items()}

    def pruned(self, threshold: float = 0.05) -> Factors:
        """Without the parts weaker than `threshold` of the strongest of their tensor.

        Raises:
            ValueError: a threshold outside [0, 1].
        """
        if not 0.0 <= threshold <= 1.0:
            raise ValueError(f"threshold must lie in [0, 1], got {threshold}")
        trees: list[Tree] = [dict(self.means), dict(self.stds), dict(self.centers)]
        for name, s in self.strengths().items():
            kept = s >= threshold * s.max()
            for tree in trees:
                for part in (part_name(name, "left"), part_name(name, "right")):
                    if part in tree:
                        tree[part] = tree[part][..., kept].contiguous()
        return Factors(*trees)

    def tensors(self) -> Tree:
        parts = {"mean": self.means, "std": self.stds, "center": self.centers}
        return {f"{part}/{name}": leaf for part, tree in parts.items() for name, leaf in tree.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Factors:
        return cls(pick(tensors, "mean/"), pick(tensors, "std/"), pick(tensors, "center/"))


def divergence(prior: NormalPrior, means: Tree, stds: Tree) -> float:
    """KL in nats, over the entries that vary: a padding row that stays zero has none."""
    total = 0.0
    for name, std in stds.items():
        p = prior.stds[name]
        ratio, shift = std.double() / p, (means[name].double() - prior.centers.get(name, 0.0)) / p
        each = 0.5 * (ratio.square() + shift.square() - 1.0) - ratio.log()
        total += float(each[std > 0.0].sum())
    return total
