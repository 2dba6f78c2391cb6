"""The processes that work on one thing together: those that `torchrun` started, or one alone.

A `Group` is a value that is handed down to what shares work, as `Random` is to what draws; nothing asks for it behind a
caller's back. Its methods are collective: every rank calls them, in one order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from posterity.errors import CompatibilityError, PosterityError

__all__ = ["ALONE", "Group", "launched", "torchrun"]

DRAWS_ELSEWHERE = (
    "A forward or a loader that draws outside of torch's, numpy's and Python's global generators does this"
)
BUCKET = 2**20  # tensors of fewer elements travel together


@dataclass(frozen=True)
class Group:
    """Process `rank` of `size`, 0 of 1 where there is no other.

    >>> Group(1, 3).share(10), Group(2, 3).share(10)
    (range(4, 7), range(7, 10))
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> Group:
        """That of `torch.distributed`.

        Raises:
            CompatibilityError: it is not initialised.
        """
        if not (dist.is_available() and dist.is_initialized()):
            raise CompatibilityError(
                "distribute= needs the ranks of torch.distributed: start the script with torchrun and call "
                "torch.distributed.init_process_group() before"
            )
        return cls(dist.get_rank(), dist.get_world_size())

    @classmethod
    def here(cls) -> Group:
        """That of `torch.distributed`, or one process alone where it is not initialised."""
        return cls.current() if dist.is_available() and dist.is_initialized() else cls()

    def share(self, count: int) -> range:
        """This rank's part of `count` things in order: the first ranks have one more where it does not divide."""
        least, more = divmod(count, self.size)
        first = self.rank * least + min(self.rank, more)
        return range(first, first + least + (self.rank < more))

    def mean_(self, tensors: Sequence[Tensor], weight: Tensor) -> None:
        """Replace each [K, ...] by its mean over the ranks, in place, member k's weighted by `weight`, [K] >= 0.

        Every rank has the same bits after. A weight of 0 counts nothing; one rank at least has more. Whole numbers, such as
        counters, become the largest.
        """
        if self.size == 1:
            return
        total = weight.to(torch.float64, copy=True)
        dist.all_reduce(total)
        share = weight.double() / total
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        for tensor in floating:
            tensor.mul_(share.to(tensor).reshape(-1, *[1] * (tensor.dim() - 1)))
        for bucket in _buckets(floating):
            dist.all_reduce(bucket)
        for tensor in tensors:
            if not tensor.is_floating_point():
                dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def every(self, value: Any) -> list[Any]:
        """The values of all ranks, in order; anything that can be pickled, small."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def joined(self, leaf: Tensor) -> Tensor:
        """The leaves of all ranks end to end along their first axis, on every rank; their lengths may differ."""
        if self.size == 1:
            return leaf
        lengths = self.every(leaf.shape[0])
        parts = [leaf.new_empty((length, *leaf.shape[1:])) for length in lengths]
        parts[self.rank] = leaf.contiguous()
        for source, part in enumerate(parts):
            dist.broadcast(part, source)
        return torch.cat(parts)

    def wait(self) -> None:
        """Go on when every rank is here."""
        if self.size > 1:
            dist.barrier()

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """A block that rank 0 leaves before the others enter it."""
        if self.rank > 0:
            self.wait()
        try:
            yield
        finally:
            if self.rank == 0:
                self.wait()

    def check_same(self, tree: Mapping[str, Tensor], what: str, advice: str = DRAWS_ELSEWHERE) -> None:
        """Raise where `tree` has other bits on some rank.

        Raises:
            PosterityError: it has, with the names of the tensors.
        """
        if self.size == 1:
            return
        own = {name: _digest(leaf) for name, leaf in tree.items()}
        found = self.every(own)
        if differ := sorted(name for name in own if any(other.get(name) != own[name] for other in found)):
            raise PosterityError(f"{what} is not the same on all {self.size} ranks: {', '.join(differ[:5])}. {advice}")


ALONE = Group()


def _buckets(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Each large tensor as it is; small ones of one type in one copy, which is written back when it was used."""
    small: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() < BUCKET or not tensor.is_contiguous():
            small.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        else:
            yield tensor
    for together in small.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in together])
        yield flat
        for tensor, part in zip(together, flat.split([tensor.numel() for tensor in together])):
            tensor.copy_(part.view_as(tensor))


def _digest(leaf: Tensor) -> bytes:
    return blake2b(
        leaf.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes(), digest_size=8
    ).digest()


def launched() -> bool:
    """Whether `torchrun`, or what sets the same variables, started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def torchrun(patience: timedelta = timedelta(minutes=30)) -> Iterator[Group]:
    """The group that `torchrun` started, for the length of a block; one process alone where it did not.

    nccl with a GPU per local rank where there are enough, else gloo.
    """
    if not launched():
        yield ALONE
        return
    local, here = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.is_available() and torch.cuda.device_count() >= here
    if gpus:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if gpus else "gloo", timeout=patience)
    try:
        yield Group.current()
    finally:
        dist.destroy_process_group()
