"""A network whose weights lie in shards among ranks, for one that no rank has the memory to train.

Each rank has its rows of every weight, of every gradient and of whatever an algorithm keeps beside them, and its share of
the rows of every batch. FSDP2 gathers the weights of a block when it runs, and sums the gradients of all ranks into rows:

    gradient = sum over ranks of the gradient of  -(sum of log p over the rank's rows) / rows of all ranks

The trees that algorithms see are plain tensors of this rank's rows, under the names of the whole weights.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.group import ALONE, Group
from posterity.problem.batches import Batch, share
from posterity.problem.cut import Cut
from posterity.problem.info import Info
from posterity.problem.measured import Measured, check_differentiable, reached_late, settled
from posterity.problem.network import Network
from posterity.problem.priors import Prior
from posterity.problem.problem import NetworkProblem
from posterity.problem.sharded_copy import check_can_be_cut, sharded_copy
from posterity.random import Random
from posterity.tree import BUFFER, LIKELIHOOD, Tree, clone, member, pick, stack, weights

__all__ = ["ShardedProblem"]


class ShardedProblem(NetworkProblem):
    """This rank's rows of a problem, for one member at a time.

    Args:
        whole: the problem; its network is copied, never changed.
        group: the ranks; whatever runs the network is collective.
        device: where the rows go; where the network is unless given.

    Raises:
        CompatibilityError: a network that cannot be cut or copied.
        PosterityError: other weights on other ranks.
    """

    def __init__(self, whole: NetworkProblem, group: Group, device: torch.device | str | None = None) -> None:
        if whole._side_by_side.how in ("flat", "vmap"):
            raise CompatibilityError(
                f"side_by_side={whole._side_by_side.how!r} is for several members, and distribute='shards' has one"
            )
        self._whole = whole
        parameters = {**dict(whole.network.module.named_parameters()), **_of_likelihood(whole)}
        check_can_be_cut(parameters)
        group.check_same(
            parameters,
            "the network",
            "Build it from one seed: fit(lambda: Net(), ...), or torch.manual_seed before Net()",
        )
        where = whole.network.device if device is None else torch.device(device)
        self.cut = Cut({name: leaf.shape for name, leaf in parameters.items()}, group, where)
        self._module: Any = sharded_copy(whole.network.module, self.cut, where, whole.precision)
        self._shards: dict[str, Any] = {n: one for n, one in self._module.named_parameters() if one.requires_grad}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what there is to say was said of the whole network
            network = Network(self._module, output=whole.network.output)
        super().__init__(
            network, whole.likelihood, _cut_prior(whole.prior, self.cut), data_size=whole.data_size,
            data_weight=whole.data_weight, reader=whole.reader, precision=whole.precision, clip=whole.clip,
            side_by_side="loop",
        )  # fmt: skip
        self.group = group

    @property
    def whole(self) -> NetworkProblem:
        return self._whole

    # --- before the first step -------------------------------------------------------------------------------------

    def start(self) -> Tree:
        buffers = {BUFFER + name: self.network.buffers[name] for name in sorted(self.network.changing)}
        return self.cut.own({**self.whole.network.trainable, **_of_likelihood(self.whole), **buffers})

    def probe(self, batch: Any, random: Random, more: Iterable[Any] = ()) -> None:
        self._module.set_reduce_scatter_unused_params(False)  # what has no gradient has none on any rank
        try:
            super().probe(batch, random, more)
        except (RuntimeError, NotImplementedError) as error:
            if not re.search(r"\bDTensor\b|\bmeta\b", str(error)):
                raise
            raise CompatibilityError(
                "distribute='shards' gathers the weights of a module when it is called, and this forward uses some without "
                f"that ({str(error).splitlines()[0]}): call the module that has them"
            ) from error
        network, own = self.whole.network, self.network
        network.changing, network.probed, network.spares_inputs = own.changing, own.probed, own.spares_inputs
        self.whole.idle = self.idle
        self._module.set_reduce_scatter_unused_params(True)  # from now on rows may reach a weight on one rank only
        last = Cut(self.cut.shapes, Group(self.group.size - 1, self.group.size))
        trained = [last.rows(name) for name in self._shards if name not in self.idle]
        if all(rows.start == rows.stop for rows in trained):
            raise CompatibilityError(
                f"distribute='shards' cuts weights into rows, and no trained one has enough of them for {self.group.size} "
                "ranks: the last would have nothing"
            )

    def _unreached(self, batch: Batch, random: Random) -> frozenset[str]:
        theta = self.start()
        own = self._put_in(theta)
        first = share(batch, range(-(-batch.rows // self.group.size)))  # on every rank, as many as a step brings

        def backward(loss: Tensor) -> None:
            check_differentiable(loss)
            loss.backward()

        self._measured(own, pick(theta, BUFFER), first, random, backward)
        missed = frozenset(name for name, shard in self._shards.items() if shard.grad is None)
        for shard in self._shards.values():
            shard.grad = None
        return missed

    # --- what algorithms call --------------------------------------------------------------------------------------

    def nll(self, theta: Tree, batch: Any, random: Random) -> tuple[Tensor, Tree, Info]:
        nll, gradient, info = self.nlls(stack([theta]), [batch], [random])
        return nll[0], member(gradient, 0), info

    def nlls(self, thetas: Tree, batches: Sequence[Any], randoms: Sequence[Random]) -> tuple[Tensor, Tree, Info]:
        if len(batches) != 1:
            raise CompatibilityError(f"distribute='shards' has one member at a time, and there are {len(batches)}")
        parts = [self.read(part) for part in (batches[0] if isinstance(batches[0], list) else batches)]
        rows, counted = sum(part.rows for part in parts), 0
        theta = member(thetas, 0)
        own, buffers = self._put_in(theta), pick(theta, BUFFER)
        total = torch.zeros((), device=self.network.device)
        for i, part in enumerate(parts):
            stream = randoms[0].fold("forward" if i == 0 else f"forward {i}")
            stream = stream if self.group.rank == 0 else stream.fold(f"rank {self.group.rank}")
            mine = self._own_rows(part)
            loss, changed = self._measured(own, buffers, mine._replace(rows=rows), stream, _backward)
            buffers = {**buffers, **changed}
            total, counted = total + loss, counted + mine.rows
        gradient = self._gradients(own)
        after = clone(stack([buffers]))
        weight = torch.tensor([counted], dtype=torch.float64, device=self.network.device)
        self.group.mean_(list(after.values()), weight)
        found = Measured(self.group.sum_(total)[None], gradient, [rows])
        return settled(found, after, ALONE, self.clip, cut=self.group)

    def outputs(self, theta: Tree, inputs: Any, random: Random | None = None, train: bool = False) -> Any:
        """Without a gradient."""
        self._put_in(theta)
        given = {name: leaf for name, leaf in theta.items() if name not in weights(theta)}
        # what FSDP2 allocates here serves in training too
        with torch.inference_mode(False), torch.no_grad(), self._said():
            outputs = super().outputs(given, inputs, random, train)
        self._module.reshard()
        return outputs

    def row_log_probs(self, theta: Tree, outputs: Any, targets: Any) -> Tensor:
        differentiated = any(leaf.requires_grad for leaf in theta.values())  # then they are whole already
        return super().row_log_probs(theta if differentiated else self._whole_likelihood(theta), outputs, targets)

    def turn(self, index: int, raw: Any) -> Batch | None:
        return self._own_rows(self.read(raw))

    def hvp(self, theta: Tree, batch: Any, random: Random, vector: Tree) -> Tree:
        raise CompatibilityError("distribute='shards' has no second derivatives: FSDP2 does not pass them on")

    def _measured(self, *arguments: Any) -> Any:
        with self._said():
            return super()._measured(*arguments)

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Leave out what FSDP2 says of outputs that are views: nothing writes into those of the whole network."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", rf"FSDP2-wrapped module \({type(self._module).__name__}\)")
            yield

    # --- rows ------------------------------------------------------------------------------------------------------

    def _own_rows(self, batch: Batch) -> Batch:
        """This rank's; where there are too few the first, not counted: every rank takes part in every forward."""
        mine = self.group.share(batch.rows)
        if len(mine):
            return share(batch, mine)
        return share(batch, range(1))._replace(weight=torch.zeros(1, device=self.network.device), rows=0)

    @torch.no_grad()
    def _put_in(self, theta: Tree) -> Tree:
        """Write the weights into the module; the likelihood's own parameters, whole, to be differentiated by."""
        for name, shard in self._shards.items():
            shard.to_local().copy_(theta[name])
        return {name: leaf.requires_grad_() for name, leaf in self._whole_likelihood(theta).items()}

    def _whole_likelihood(self, theta: Tree) -> Tree:
        return {name: self.group.joined(leaf).clone() for name, leaf in theta.items() if name.startswith(LIKELIHOOD)}

    @torch.no_grad()
    def _gradients(self, own: Tree) -> Tree:
        """[1, ...] this rank's rows of what the backward passes of all ranks left, taken away."""
        gradient = {}
        for name, shard in self._shards.items():
            found, shard.grad = shard.grad, None
            rows = torch.zeros_like(shard.to_local()) if found is None else found.to_local()
            if name in self.idle and bool(rows.any()):
                raise reached_late(name)
            gradient[name] = rows
        for name, leaf in own.items():
            found = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            gradient[name] = self.cut.own({name: self.group.sum_(found)})[name]
        return {name: rows.unsqueeze(0) for name, rows in gradient.items()}


def _backward(loss: Tensor) -> Tensor:
    loss.backward()
    return loss.detach()


def _of_likelihood(problem: NetworkProblem) -> Tree:
    return {LIKELIHOOD + name: leaf for name, leaf in problem.likelihood.parameters().items()}


def _cut_prior(prior: Prior, cut: Cut) -> Prior:
    """`prior`, its given centres cut to this rank's rows."""
    center = getattr(prior, "center", None)
    return replace(prior, center=cut.own(center)) if isinstance(center, Mapping) else prior  # type: ignore[call-arg]
