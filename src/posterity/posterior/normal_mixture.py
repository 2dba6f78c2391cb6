"""A mixture of diagonal normals with weights of its own: theta ~ sum over k of pi_k N(m_k, diag s_k^2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from posterity.posterior.diagonal import Diagonal
from posterity.posterior.moments import Deterministic, Moment, Normal
from posterity.posterior.posterior import Posterior
from posterity.random import Random
from posterity.tree import Tree, pick

__all__ = ["NormalMixture", "normal_mixture_log_prob"]


def normal_mixture_log_prob(logits: Tensor, centers: Tensor, stds: Tensor, x: Tensor) -> Tensor:
    """[n] log density in nats of x [n, d] under softmax(logits [K]), means and stds [K, d]."""
    z = (x.unsqueeze(1) - centers) / stds
    constant = stds.log().sum(-1) + 0.5 * math.log(2 * math.pi) * x.shape[-1]
    return (logits.log_softmax(-1) - constant - 0.5 * z.square().sum(-1)).logsumexp(-1)


class NormalMixture(Posterior):
    """A mixture of independent normals over the named tensors; the others vary by themselves, or not at all.

    Args:
        point: every tensor, the changed buffers among them; those named are replaced in draws.
        names: the tensors that the mixture is over, flattened and joined in this order.
        logits: [K] log pi up to a constant.
        centers, component_stds: [K, d] m_k and s_k.
        stds: of tensors that vary around their `point`, independent of the mixture.
    """

    kind: ClassVar[str] = "normal-mixture"

    def __init__(
        self, point: Tree, names: tuple[str, ...], logits: Tensor, centers: Tensor, component_stds: Tensor, stds: Tree
    ) -> None:
        self.point, self.names, self.logits, self.stds = point, names, logits, stds
        self.centers, self.component_stds = centers.contiguous(), component_stds.contiguous()

    @property
    def finite(self) -> int | None:
        return None

    @property
    def weights(self) -> Tensor:
        """[K] pi, sums to one."""
        return self.logits.softmax(-1)

    def log_prob(self, x: Tensor) -> Tensor:
        """[n] log density in nats of the joined named tensors [n, d]."""
        return normal_mixture_log_prob(self.logits, self.centers, self.component_stds, x)

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        bounds = self.weights.double().cpu().cumsum(0)
        for i, draw in enumerate(Diagonal(self.point, self.stds).draws(n, random)):
            u = torch.rand((), generator=random.fold("component").fold(i).generator(), dtype=torch.float64)
            k = min(int(torch.searchsorted(bounds, u, right=True)), len(bounds) - 1)
            z = random.fold("mixture").fold(i).normal((self.centers.shape[1],), like=self.centers)
            yield {**draw, **self._split(torch.addcmul(self.centers[k], self.component_stds[k], z))}

    def _split(self, flat: Tensor) -> Tree:
        parts = flat.split([self.point[name].numel() for name in self.names])
        return {name: part.view_as(self.point[name]) for name, part in zip(self.names, parts)}

    def _mean(self) -> Tensor:
        return self.weights @ self.centers

    def mean(self) -> Tree:
        return {**self.point, **self._split(self._mean())}

    def moments(self) -> dict[str, Moment]:
        inside = self.component_stds.square() + (self.centers - self._mean()).square()
        stds = {**self.stds, **self._split((self.weights @ inside).sqrt())}
        return {k: Normal(m, stds[k]) if k in stds else Deterministic(m) for k, m in self.mean().items()}

    def tensors(self) -> Tree:
        own = {"logits": self.logits, "centers": self.centers, "component_stds": self.component_stds}
        stored = {f"point/{k}": v for k, v in self.point.items()} | {f"std/{k}": v for k, v in self.stds.items()}
        return {**stored, **own}

    def meta(self) -> dict[str, Any]:
        return {"names": list(self.names)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> NormalMixture:
        names, point, stds = tuple(meta["names"]), pick(tensors, "point/"), pick(tensors, "std/")
        return cls(point, names, tensors["logits"], tensors["centers"], tensors["component_stds"], stds)
