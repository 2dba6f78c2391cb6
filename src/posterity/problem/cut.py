"""Which rows of every weight a rank has: the shards of FSDP2, cut along the first axis.

rank r of R has the rows [r s, (r + 1) s) of a tensor of n rows, s = ceil(n / R): the last ranks have fewer, or none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from posterity.group import Group
from posterity.tree import Tree

__all__ = ["Cut"]


class Cut:
    """The rows that one rank has of each of some named tensors; what has another name is whole on every rank.

    Args:
        shapes: of the whole tensors, each of one axis at least.
        group: the ranks.
        device: where this rank's rows go; where the whole is unless given.

    A path such as `state/mean/layer.weight` ends in the name of the tensor that its leaf is shaped like.

    >>> own = Cut({"w": (5, 2)}, Group(1, 2)).own({"mean/w": torch.zeros(5, 2), "step": torch.tensor(3)})
    >>> own["mean/w"].shape, own["step"].shape
    (torch.Size([2, 2]), torch.Size([]))
    """

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], group: Group, device: torch.device | str | None = None
    ) -> None:
        self.shapes, self.group, self.device = {n: tuple(shape) for n, shape in shapes.items()}, group, device

    def rows(self, name: str) -> slice:
        """Those of the named tensor."""
        rows = self.shapes[name][0]
        each = -(-rows // self.group.size)
        return slice(min(self.group.rank * each, rows), min((self.group.rank + 1) * each, rows))

    def own(self, flat: Mapping[str, Tensor], axis: int = 0) -> Tree:
        """This rank's rows, copied to `device`, of whole leaves, whose rows lie along `axis`: 1 behind one of members."""
        out: Tree = {}
        for path, leaf in flat.items():
            if (name := self._name(path, leaf, axis)) is not None:
                rows = self.rows(name)
                leaf = leaf.narrow(axis, rows.start, rows.stop - rows.start)
            out[path] = leaf.detach().clone(memory_format=torch.contiguous_format).to(self.device)
        return out

    def whole(self, flat: Mapping[str, Tensor], axis: int = 0, keep: bool = True) -> Tree:
        """The inverse of `own`, in the host's memory, leaf by leaf; collective. Without `keep` this rank keeps nothing."""
        out: Tree = {}
        for path, leaf in flat.items():
            if self._name(path, leaf, axis) is not None:
                leaf = self.group.joined(leaf.movedim(axis, 0)).movedim(0, axis)
            if keep:
                out[path] = leaf.cpu()
        return out

    def _name(self, path: str, leaf: Tensor, axis: int) -> str | None:
        """The name that `path` ends in, where `leaf` is shaped like that tensor."""
        while path not in self.shapes and "/" in path:
            path = path.partition("/")[2]
        return path if path in self.shapes and leaf.dim() == len(self.shapes[path]) + axis else None
