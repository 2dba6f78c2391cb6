"""A normalizing flow over a part of the weights: theta = point + A x, x = f^-1(z), z ~ N(0, I).

    log q(x) = log N(f(x); 0, I) + log |det df / dx|,    f = autoregressive or coupling layers after (x - b) exp(-a)

A is a diagonal (a number per weight) or the d x k columns of a subspace. The layers are zuko's (extra `flows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from posterity.errors import CompatibilityError, StorageError
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.moments import Deterministic, Moment, Normal
from posterity.posterior.posterior import Posterior
from posterity.random import Random
from posterity.tree import Tree, count, first, pick

__all__ = [
    "FLOWS",
    "Flow",
    "FlowShape",
    "flow_base",
    "flow_log_prob",
    "flow_start",
    "joined_spread",
    "pulled",
    "shifted",
]

FLOWS = ("nsf", "maf", "realnvp")
BOUND = 5.0  # of splines, in units of the start's std; beyond it a layer is the identity
MOMENT_DRAWS = 1024


@dataclass(frozen=True)
class FlowShape:
    """What a flow is made of.

    Args:
        flow: "nsf" (neural splines, autoregressive), "maf" (affine, autoregressive) or "realnvp" (affine couplings).
        dim: numbers that it is over.
        transforms: layers, >= 1.
        hidden: widths of the conditioning networks.
        bins: of a spline, >= 2; read by "nsf" only.

    Raises:
        ValueError: an unknown flow or a size out of range.
    """

    flow: str
    dim: int
    transforms: int
    hidden: tuple[int, ...]
    bins: int

    def __post_init__(self) -> None:
        if self.flow not in FLOWS:
            raise ValueError(f"flow must be one of {FLOWS}, got {self.flow!r}")
        if min(self.dim, self.transforms, *self.hidden) < 1 or self.bins < 2:
            raise ValueError(f"dim, transforms and hidden must be at least 1 and bins at least 2, got {self}")

    @property
    def least(self) -> int:
        """A lower bound of the number of parameters: the weights of the conditioning networks, for half of the numbers."""
        half = max(self.dim // 2, 1)
        widths = (half, *self.hidden, half * (self.bins if self.flow == "nsf" else 1))
        return self.transforms * sum(a * b for a, b in pairwise(widths))


class _Flow(nn.Module):
    """Layers after a trainable location and scale, in both directions."""

    def __init__(self, shape: FlowShape) -> None:
        super().__init__()
        self.layers = _layers(shape)
        self.location = nn.Parameter(torch.zeros(shape.dim))
        self.log_scale = nn.Parameter(torch.zeros(shape.dim))

    def forward(self, x: Tensor, inverse: bool = False) -> Tensor:
        """[n] log q(x), or [n, dim] x of base draws where `inverse`."""
        flow = self.layers()
        if inverse:
            return torch.addcmul(self.location, flow.transform.inv(x), self.log_scale.exp())
        return flow.log_prob((x - self.location) * (-self.log_scale).exp()) - self.log_scale.sum()


def _layers(shape: FlowShape) -> nn.Module:
    try:
        import zuko
    except ImportError as error:
        raise ImportError("flows need the package zuko: pip install 'posterity[flows]'") from error
    # Smooth: a rectifier's kinks move with its weights, which the gradient of the score's objective does not see.
    options = {"transforms": shape.transforms, "hidden_features": shape.hidden, "activation": nn.SiLU}
    if shape.flow == "nsf":
        spline = partial(zuko.transforms.MonotonicRQSTransform, bound=BOUND)
        shapes = [(shape.bins,), (shape.bins,), (shape.bins - 1,)]
        return zuko.flows.MAF(shape.dim, univariate=spline, shapes=shapes, **options)
    build = zuko.flows.MAF if shape.flow == "maf" else zuko.flows.RealNVP
    return build(shape.dim, **options)


@lru_cache(maxsize=16)
def _template(shape: FlowShape, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """The module whose parameters are given in each call; its own are never read."""
    with Random(0).forked():
        return _Flow(shape).to(device=device, dtype=dtype)


def flow_start(shape: FlowShape, random: Random, like: Tensor) -> Tree:
    """Parameters with which q(x) is about N(0, I): the layers' own, the last of each network's shrunk by 100."""
    with random.forked():
        module = _Flow(shape)
    with torch.no_grad():
        for network in module.modules():
            if isinstance(network, nn.Sequential | nn.ParameterList):  # one dimension has numbers in a network's place
                last = network[-1] if isinstance(network, nn.Sequential) else network
                for parameter in last.parameters():
                    parameter.mul_(0.01)
    return {name: leaf.detach().to(like) for name, leaf in module.named_parameters()}


def _called(shape: FlowShape, parameters: Mapping[str, Tensor], x: Tensor, inverse: bool) -> Tensor:
    leaf = next(iter(parameters.values()))
    module = _template(shape, leaf.dtype, leaf.device)
    return torch.func.functional_call(module, dict(parameters), (x, inverse))


def flow_log_prob(shape: FlowShape, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """[n] log q(x) in nats of x [n, dim]."""
    return _called(shape, parameters, x, False)


def flow_base(shape: FlowShape, parameters: Mapping[str, Tensor], z: Tensor) -> Tensor:
    """[n, dim] the x of standard normal z [n, dim]."""
    return _called(shape, parameters, z, True)


def shifted(x: Tensor, center: Tensor, spread: Tensor) -> Tensor:
    """[n, d] point + A x of x [n, k] for a diagonal A [d] (k = d) or A [d, k]."""
    return center + (x * spread if spread.ndim == 1 else x @ spread.T)


def pulled(score: Tensor, spread: Tensor) -> Tensor:
    """[n, k] A^T s of rows [n, d]."""
    return score * spread if spread.ndim == 1 else score @ spread


def joined_spread(spread: Mapping[str, Tensor], point: Mapping[str, Tensor]) -> Tensor:
    """A of its parts by tensor, [d] or [d, k]: those shaped like the tensors of `point`, or with one axis more."""
    parts = [leaf.reshape(point[name].numel(), *leaf.shape[point[name].ndim :]) for name, leaf in spread.items()]
    return torch.cat(parts)


class Flow(Posterior):
    """A flow over the named tensors around their point; the others vary by themselves, or not at all.

    Args:
        point: every tensor, the changed buffers among them.
        spread: A, for each tensor of the flow either shaped like it or [*shape, k]; joined in this order.
        parameters: of the flow, by name.
        shape: what it is made of.
        stds: of tensors that vary around their `point`, independent of the flow.

    Moments are those of 1024 fixed draws: a flow has none in closed form.
    """

    kind: ClassVar[str] = "flow"

    def __init__(self, point: Tree, spread: Tree, parameters: Tree, shape: FlowShape, stds: Tree) -> None:
        self.point, self.parameters, self.shape, self.stds = point, parameters, shape, stds
        self.spread = {name: leaf.contiguous() for name, leaf in spread.items()}
        self._moments: tuple[Tree, Tree] | None = None

    @property
    def finite(self) -> int | None:
        return None

    def log_prob(self, x: Tensor) -> Tensor:
        """[n] log density in nats of the joined named tensors [n, d].

        Raises:
            CompatibilityError: a flow over a subspace, which has no density over all of its weights.
        """
        spread = joined_spread(self.spread, self.point)
        if spread.ndim == 2:
            raise CompatibilityError("a flow over a subspace has no density over the weights: take draws")
        center = torch.cat([self.point[name].reshape(-1) for name in self.spread])
        with torch.no_grad():
            return flow_log_prob(self.shape, self.parameters, (x - center) / spread) - spread.log().sum()

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        for i, draw in enumerate(Diagonal(self.point, self.stds).draws(n, random)):
            z = random.fold("flow").fold(i).normal((1, self.shape.dim), like=first(self.parameters))
            yield {**draw, **{name: leaf[0] for name, leaf in self._rows(z).items()}}

    def _rows(self, z: Tensor) -> Tree:
        """[n, ...] the named tensors at base draws z [n, dim]."""
        with torch.no_grad():
            x = flow_base(self.shape, self.parameters, z)
            flat = shifted(x, x.new_zeros(()), joined_spread(self.spread, self.point))
        parts = flat.split([self.point[name].numel() for name in self.spread], dim=1)
        return {n: self.point[n] + part.reshape(-1, *self.point[n].shape) for n, part in zip(self.spread, parts)}

    def _of_draws(self) -> tuple[Tree, Tree]:
        if self._moments is None:
            z = Random(0).fold("moments").normal((MOMENT_DRAWS, self.shape.dim), like=first(self.parameters))
            rows = self._rows(z)
            self._moments = {n: r.mean(0) for n, r in rows.items()}, {n: r.std(0) for n, r in rows.items()}
        return self._moments

    def mean(self) -> Tree:
        return {**self.point, **self._of_draws()[0]}

    def moments(self) -> dict[str, Moment]:
        stds = {**self.stds, **self._of_draws()[1]}
        return {k: Normal(m, stds[k]) if k in stds else Deterministic(m) for k, m in self.mean().items()}

    def tensors(self) -> Tree:
        parts = {"point": self.point, "spread": self.spread, "flow": self.parameters, "std": self.stds}
        return {f"{part}/{name}": leaf for part, tree in parts.items() for name, leaf in tree.items()}

    def meta(self) -> dict[str, Any]:
        return {"names": list(self.spread), "shape": asdict(self.shape)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Flow:
        point, spread, parameters, stds = (pick(tensors, f"{part}/") for part in ("point", "spread", "flow", "std"))
        shape = FlowShape(**{**meta["shape"], "hidden": tuple(meta["shape"]["hidden"])})
        if shape.least > count(parameters):  # before layers of that size are built
            raise StorageError(f"the stored flow has {count(parameters)} numbers and is said to have {shape}")
        wanted = dict(_template(shape, first(parameters).dtype, first(parameters).device).named_parameters())
        if {n: p.shape for n, p in wanted.items()} != {n: p.shape for n, p in parameters.items()}:
            raise StorageError(
                "the stored flow does not fit the installed zuko: load it with the version that wrote it"
            )
        return cls(
            point, {name: spread[name] for name in meta["names"]}, {n: parameters[n] for n in wanted}, shape, stds
        )
