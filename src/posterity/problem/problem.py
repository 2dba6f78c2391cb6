"""What is inferred: a network, a likelihood and a prior, with the one scale that all algorithms share.

    U(theta) = -log p(theta) - w * (N / B) * sum over the batch of log p(y | x, theta)

A problem gives algorithms the MEAN negative log-likelihood of a batch and its gradient: no prior, no N. N is `data_size`,
w is `data_weight` (1 is Bayes' rule; w * N is the effective number of rows).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from posterity.errors import CompatibilityError, DataError
from posterity.group import ALONE, Group
from posterity.problem.batches import Batch, Reader, share, to_device
from posterity.problem.carrier import is_constant, leaves, rebuild
from posterity.problem.dropout import masks
from posterity.problem.info import Info
from posterity.problem.likelihoods import Likelihood, likelihood_from
from posterity.problem.measured import (
    Measured,
    check_differentiable,
    in_one,
    joined,
    over_ranks_,
    reached_late,
    settled,
)
from posterity.problem.network import Network
from posterity.problem.noise import ForwardNoise
from posterity.problem.priors import Prior, prior_from
from posterity.problem.side_by_side import SideBySide
from posterity.random import Random
from posterity.tree import BUFFER, LIKELIHOOD, MASKS, Tree, clone, member, pick, stack, weights

__all__ = ["Info", "NetworkProblem", "Problem", "batch_rows", "stacked_nlls"]

Result = TypeVar("Result")


class Problem(Protocol):
    """Two kinds: `NetworkProblem` and `Density`."""

    data_size: int
    data_weight: float
    drawing: Group  # the ranks that draw weights of their own: gradients are those of this rank's draws

    @property
    def prior(self) -> Prior:
        """Bound to the tensors of this problem."""

    @property
    def idle(self) -> frozenset[str]:
        """Trainable tensors that a forward never reaches: their posterior is their prior."""

    def start(self) -> Tree:
        """The weights that the user's module has, with its changing buffers and the likelihood's own parameters."""

    def starts(self, members: int, init: str, random: Random) -> list[Tree]:
        """One start per member: the first is `start`; the others are fresh (`init="reset"`) or the same."""

    def nll(self, theta: Tree, batch: Any, random: Random) -> tuple[Tensor, Tree, Info]:
        """() mean negative log-likelihood over the rows, its gradient, and Info with a leading axis of one."""

    def nlls(self, thetas: Tree, batches: Sequence[Any], randoms: Sequence[Random]) -> tuple[Tensor, Tree, Info]:
        """[K] and [K, ...] the same for K members, each with its own batch and randomness."""

    def outputs(self, theta: Tree, inputs: Any, random: Random | None = None, train: bool = False) -> Any:
        """What the network says under `theta`."""

    def hvp(self, theta: Tree, batch: Any, random: Random, vector: Tree) -> Tree:
        """The Hessian of the mean negative log-likelihood times `vector`."""


def stacked_nlls(
    problem: Problem, thetas: Tree, batches: Sequence[Any], randoms: Sequence[Random]
) -> tuple[Tensor, Tree, Info]:
    """`nlls` as a loop over the members; their gradients land in one allocation."""
    infos: list[Info] = []

    def each() -> Iterator[Tree]:
        for k, (batch, random) in enumerate(zip(batches, randoms)):
            _, gradient, info = problem.nll(member(thetas, k), batch, random)
            infos.append(info)
            yield gradient

    gradients = in_one(each(), len(batches))
    return torch.cat([info.nll for info in infos]), gradients, _cat(infos)


def _cat(infos: list[Info]) -> Info:
    if len(infos) == 1:
        return infos[0]
    return Info(
        torch.cat([info.nll for info in infos]),
        torch.cat([info.gradient_norm for info in infos]),
        torch.cat([info.finite for info in infos]),
        {name: torch.cat([info.buffers[name] for info in infos]) for name in infos[0].buffers},
        {name: torch.cat([info.extra[name] for info in infos]) for name in infos[0].extra},
    )


class NetworkProblem:
    """A network with a likelihood and a prior.

    Args:
        module: any `nn.Module` (never changed), or a `Network`.
        likelihood: a name ("categorical", "gaussian", ...) or a `Likelihood`.
        prior: a `Prior`, or the std of a normal one.
        data_size: N, the number of rows that the posterior is about, > 0.
        data_weight: w > 0; every row counts w times.
        reader: how raw batches are read.
        precision: "float32" or "bf16" (autocast of the forward; weights, gradients and posterior stay float32).
        clip: largest Euclidean norm of the gradient of the mean loss, or None. Clipping biases samplers.
        side_by_side: how several members are evaluated: "auto", "flat" (perceptrons), "vmap" or "loop". They agree to
            rounding; "auto" takes the fastest that the network allows.

    Raises:
        DataError: N or w out of range.
        CompatibilityError: nothing to infer, an unknown precision or way side by side.
    """

    def __init__(
        self,
        module: nn.Module | Network,
        likelihood: Likelihood | str,
        prior: Prior | str | float = 1.0,
        *,
        data_size: int,
        data_weight: float = 1.0,
        reader: Reader | None = None,
        precision: str = "float32",
        clip: float | None = None,
        side_by_side: str = "auto",
    ) -> None:
        if data_size < 1:
            raise DataError(f"data_size must be at least 1 row, got {data_size}")
        if not (math.isfinite(data_weight) and data_weight > 0):
            raise DataError(f"data_weight must be finite and > 0, got {data_weight}")
        if precision not in ("float32", "bf16"):
            raise CompatibilityError(f"precision must be 'float32' or 'bf16', got {precision!r}")
        if clip is not None and not clip > 0:
            raise CompatibilityError(f"clip must be > 0, got {clip}")
        self.network = module if isinstance(module, Network) else Network(module)
        self.likelihood = likelihood_from(likelihood)
        self.data_size = data_size
        self.data_weight = data_weight
        self.reader = reader or Reader()
        self.precision = precision
        self.clip = clip
        self.group: Group = ALONE  # the ranks among which the rows of every batch are shared
        self.drawing: Group = ALONE  # and those of them that draw weights of their own
        self._noise = ForwardNoise()
        self._side_by_side = SideBySide(self, side_by_side)
        self.idle: frozenset[str] = frozenset()
        self.prior = prior_from(prior).bind(self.start())

    @property
    def whole(self) -> NetworkProblem:
        """The problem of all weights: this one, but where a rank has some of them."""
        return self

    # --- starting points -------------------------------------------------------------------------------------------

    def start(self) -> Tree:
        network = self.network
        own = {LIKELIHOOD + name: leaf.to(network.device) for name, leaf in self.likelihood.parameters().items()}
        buffers = {BUFFER + name: network.buffers[name] for name in sorted(network.changing)}
        return clone({**network.trainable, **own, **buffers})

    def starts(self, members: int, init: str, random: Random) -> list[Tree]:
        if init not in ("reset", "same"):
            raise CompatibilityError(f"members start by 'reset' or at the 'same' weights, got {init!r}")
        own = self.start()
        if init == "same":
            return [clone(own) for _ in range(members)]
        fresh = [self.network.reset(own, random.fold(k), warn=k == 1) for k in range(1, members)]
        return [own, *fresh]

    def probe(self, batch: Any, random: Random, more: Iterable[Any] = ()) -> None:
        """A training forward and backward, and one in evaluation mode, before the first step.

        Finds the buffers that a forward changes and the weights that it never reaches, and lets every misfit of batch,
        network and likelihood speak up before anything is trained or written. A weight is idle where neither this batch
        nor one of `more` (read while any weight is idle, at most 31) reaches it.
        """
        self.network.probed = False
        batch = self.read(batch)
        self.idle = self._unreached(batch, random)
        with torch.no_grad():
            self.outputs(self.start(), batch, random)
        self.network.probed = True
        several = self.network.running_statistics_in_training()
        for i, raw in enumerate(islice(more, 31) if self.idle else ()):
            other = self.read(raw)
            if other.rows > 1 or not several:
                self.idle &= self._unreached(other, random.fold(i))
            if not self.idle:
                break

    def _unreached(self, batch: Batch, random: Random) -> frozenset[str]:
        theta = self.start()
        plain = {name: leaf.requires_grad_() for name, leaf in leaves(weights(theta)).items()}

        def gradient(loss: Tensor) -> list[Tensor | None]:
            check_differentiable(loss)
            return list(torch.autograd.grad(loss, list(plain.values()), allow_unused=True))

        found, _ = self._measured(rebuild(plain), pick(theta, BUFFER), batch, random, gradient)
        missed = {name for name, one in zip(plain, found) if one is None}
        return frozenset(name for name in missed if not name.startswith(LIKELIHOOD))

    # --- what algorithms call --------------------------------------------------------------------------------------

    def nll(self, theta: Tree, batch: Any, random: Random) -> tuple[Tensor, Tree, Info]:
        found, changed = self._own(theta, self._parts(batch), random)
        nll, gradient, info = settled(found, stack([changed]), self.group, self.clip, self.drawing.size > 1)
        return nll[0], rebuild({name: leaf[0] for name, leaf in gradient.items()}), info

    def nlls(self, thetas: Tree, batches: Sequence[Any], randoms: Sequence[Random]) -> tuple[Tensor, Tree, Info]:
        read = {id(batch): self._parts(batch) for batch in batches}
        parts = [read[id(batch)] for batch in batches]
        changed: list[Tree] = []

        def each() -> Iterator[Measured]:
            for k, (own, random) in enumerate(zip(parts, randoms)):
                found, buffers = self._own(member(thetas, k), own, random)
                changed.append(buffers)
                yield found

        found = self._side_by_side(thetas, parts, lambda: joined(each(), len(parts)))
        return settled(found, stack(changed) if changed else {}, self.group, self.clip, self.drawing.size > 1)

    def _parts(self, batch: Any) -> list[Batch]:
        """The parts of an accumulated batch, of each the rows that are this rank's."""
        return [self._own_rows(self.read(part)) for part in (batch if isinstance(batch, list) else [batch])]

    def _own_rows(self, batch: Batch) -> Batch:
        return batch if self.group.size == 1 else share(batch, self.group.share(batch.rows))

    def _own(self, theta: Tree, parts: Sequence[Batch], random: Random) -> tuple[Measured, Tree]:
        """What the rows of one member say, and the buffers after them."""
        rows = sum(part.rows for part in parts)
        buffers = pick(theta, BUFFER)
        carried = buffers.keys()
        every = {name: leaf.detach() for name, leaf in leaves(weights(theta)).items()}
        plain = {name: leaf.requires_grad_() for name, leaf in every.items() if not is_constant(name)}
        total = torch.zeros((), device=self.network.device)
        gradient: Tree = {}
        for i, part in enumerate(parts):
            stream = random.fold("forward") if i == 0 else random.fold(f"forward {i}")
            if part.rows == 0:  # more ranks than rows
                continue
            portion = part.rows / rows

            def backward(loss: Tensor, portion: float = portion) -> tuple[Tensor, Tree]:
                return loss.detach() * portion, self._gradient(loss * portion, plain)

            stream = stream if self.group.rank == 0 else stream.fold(f"rank {self.group.rank}")
            (loss, found), changed = self._measured(rebuild(every), buffers, part, stream, backward)
            buffers = {**buffers, **changed}
            total = total + loss
            gradient = {name: gradient[name].add_(new) for name, new in found.items()} if gradient else found
        if new := sorted(buffers.keys() - carried):
            raise CompatibilityError(
                f"the forward changes the buffers {new}, which these weights lack: call problem.probe(batch, random) "
                "before problem.start()"
            )
        gradient = gradient or {name: torch.zeros_like(leaf) for name, leaf in plain.items()}
        return Measured(total[None], {name: leaf.unsqueeze(0) for name, leaf in gradient.items()}, [rows]), buffers

    def _gradient(self, loss: Tensor, plain: Tree, share: Tensor | None = None) -> Tree:
        """The gradient by every leaf, zeros where the loss does not reach; each in memory of its own, to be written over.

        Of the sum of `loss` times `share`, where that is given.
        """
        found = torch.autograd.grad(loss, list(plain.values()), share, allow_unused=True)
        gradient, memory = {}, set()
        for (name, leaf), one in zip(plain.items(), found):
            if one is None:
                gradient[name] = torch.zeros_like(leaf, memory_format=torch.contiguous_format)
                continue
            if name in self.idle:
                raise reached_late(name)
            one = (one if one.layout is torch.strided else one.to_dense()).contiguous()
            gradient[name] = one.clone() if one.data_ptr() in memory else one
            memory.add(one.data_ptr())
        return gradient

    def outputs(self, theta: Tree, inputs: Any, random: Random | None = None, train: bool = False) -> Any:
        if isinstance(inputs, Batch):
            inputs = inputs.inputs
        args, kwargs = self.network.arguments(to_device(inputs, self.network.device))
        named = {n: leaf for n, leaf in weights(theta).items() if not n.startswith(LIKELIHOOD)}
        # Also without an address: a forward that draws in evaluation mode must not move the caller's generator.
        noise = self._noise.on(random or Random(0).fold("outputs"), train)
        with noise, self._autocast(), masks(self.network, theta.get(MASKS)):
            outputs, _ = self.network.call(named, pick(theta, BUFFER), args, kwargs, train=train)
        return outputs

    def hvp(self, theta: Tree, batch: Any, random: Random, vector: Tree) -> Tree:
        plain = {name: leaf.detach().requires_grad_() for name, leaf in weights(theta).items()}

        def product(loss: Tensor) -> Tree:
            first = torch.autograd.grad(loss, list(plain.values()), create_graph=True, allow_unused=True)
            along = [(g * vector[n]).sum() for n, g in zip(plain, first) if g is not None and g.requires_grad]
            if not along:
                return {name: torch.zeros_like(leaf) for name, leaf in plain.items()}
            return self._gradient(torch.stack(along).sum(), plain)

        own = self._own_rows(self.read(batch))
        result = {name: torch.zeros_like(leaf) for name, leaf in plain.items()}
        if own.rows:
            with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention have no second derivative
                result, _ = self._measured(plain, pick(theta, BUFFER), own, random.fold("forward"), product)
        if self.group.size > 1:
            rows = torch.tensor([own.rows], dtype=torch.float64, device=self.network.device)
            over_ranks_(self.group, [leaf.unsqueeze(0) for leaf in result.values()], rows, self.drawing.size > 1)
        return result

    def turn(self, index: int, raw: Any) -> Batch | None:
        """What this rank says of batch `index` when data are gone through without gradients: ranks take turns."""
        return self.read(raw) if index % self.group.size == self.group.rank else None

    def row_log_probs(self, theta: Tree, outputs: Any, targets: Any) -> Tensor:
        """[rows] log p(y | x, theta) in network units, unweighted: validation and Laplace read it."""
        canonical = self.likelihood.canonical(targets, outputs)
        return self.likelihood.log_prob(outputs, canonical, pick(theta, LIKELIHOOD))

    def read(self, raw: Any) -> Batch:
        """A raw batch as `Batch`, on the network's device."""
        batch = self.reader(raw)
        device = self.network.device
        if batch.rows == 0:
            raise DataError("a batch has no rows")
        if batch.weight is None and isinstance(batch.inputs, Tensor) and batch.inputs.device == device:
            return batch  # as in most steps
        weight = None if batch.weight is None else batch.weight.to(device)
        return batch._replace(inputs=to_device(batch.inputs, device), weight=weight)

    # --- the loss --------------------------------------------------------------------------------------------------

    def _measured(
        self, theta: Tree, buffers: Tree, batch: Batch, random: Random, then: Callable[[Tensor], Result]
    ) -> tuple[Result, Tree]:
        """`then` of the () mean over the rows of -weight * log p(y | x, theta), and the changed buffers."""
        args, kwargs = self.network.arguments(batch.inputs)
        named = {name: leaf for name, leaf in theta.items() if not name.startswith(LIKELIHOOD)}

        def finish(outputs: Any) -> Result:
            with self._autocast(enabled=False):
                log_prob = self.row_log_probs(theta, outputs, batch.targets)
                if batch.weight is not None:
                    log_prob = log_prob * batch.weight
                return then(-log_prob.sum() / batch.rows)

        with torch.enable_grad(), self._noise.on(random, True), self._autocast():
            return self.network.call(named, buffers, args, kwargs, train=True, then=finish)

    def _autocast(self, enabled: bool = True) -> Any:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.network.device.type, dtype=torch.bfloat16, enabled=enabled)


def batch_rows(batch: Any) -> int:
    """Rows of one batch, or of the parts of an accumulated one."""
    if isinstance(batch, list):
        return sum(batch_rows(part) for part in batch)
    return batch.rows if isinstance(batch, Batch) else 1
