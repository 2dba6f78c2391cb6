"""Trees of tensors: `dict[str, Tensor]`, and the few things done to them.

A name is a parameter's name in the module, `likelihood.<name>` for the likelihood's own parameters, or
`buffer.<name>` for a buffer that a forward changes. K members or draws add a leading axis. A draw may hold, under
`dropout.seed`, the seed of the masks that its network drops units by, () int64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

__all__ = [
    "BUFFER",
    "CHUNK",
    "LIKELIHOOD",
    "MASKS",
    "Tree",
    "chunks",
    "clone",
    "count",
    "empty_like",
    "first",
    "member",
    "pick",
    "rows",
    "split",
    "squared_norms",
    "stack",
    "tree_map",
    "weights",
]

Tree = dict[str, Tensor]

BUFFER = "buffer."
LIKELIHOOD = "likelihood."
MASKS = "dropout.seed"

# 64k float32 elements are 256 KiB: a handful of operands stay in a core's second-level cache.
CHUNK = 65536


def tree_map(function: Callable[..., Tensor], tree: Mapping[str, Tensor], *rest: Mapping[str, Tensor]) -> Tree:
    """Apply `function` leaf by leaf; `rest` must hold every name of `tree`."""
    return {name: function(leaf, *(other[name] for other in rest)) for name, leaf in tree.items()}


def clone(tree: Mapping[str, Tensor]) -> Tree:
    """A deep copy, detached and contiguous."""
    return {name: leaf.detach().clone(memory_format=torch.contiguous_format) for name, leaf in tree.items()}


def empty_like(tree: Mapping[str, Tensor]) -> Tree:
    """Uninitialised leaves shaped like those of `tree`, in one allocation where they share a type and a device.

    An allocator hands one large block out again; many middling ones go back to the system, and a step that asks for them
    anew pays for every page. Each leaf starts a multiple of 64 elements after the first: aligned as if it were alone.

    >>> tree = empty_like({"w": torch.zeros(2, 3), "b": torch.zeros(5)})
    >>> tree["w"].shape, tree["b"].storage_offset()
    (torch.Size([2, 3]), 64)
    """
    if len({(leaf.dtype, leaf.device) for leaf in tree.values()}) != 1:
        return {name: torch.empty_like(leaf, memory_format=torch.contiguous_format) for name, leaf in tree.items()}
    sizes = [-(-leaf.numel() // 64) * 64 for leaf in tree.values()]
    parts = first(tree).new_empty(sum(sizes)).split(sizes)
    return {name: part[: leaf.numel()].view(leaf.shape) for (name, leaf), part in zip(tree.items(), parts)}


def weights(tree: Mapping[str, Tensor]) -> Tree:
    """Everything but buffers and the seed of masks: what has a prior, a gradient and noise."""
    return {name: leaf for name, leaf in tree.items() if not name.startswith(BUFFER) and name != MASKS}


def pick(tree: Mapping[str, Tensor], prefix: str) -> Tree:
    """The leaves under `prefix`, their names without it."""
    return {name[len(prefix) :]: leaf for name, leaf in tree.items() if name.startswith(prefix)}


def stack(trees: Sequence[Mapping[str, Tensor]]) -> Tree:
    """K trees of one shape as one tree with a leading axis K."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def rows(tree: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """[K, d] the named tensors of K members, each member's flattened one after the other: a copy."""
    return torch.cat([tree[name].reshape(tree[name].shape[0], -1) for name in names], dim=1)


def split(flat: Tensor, like: Mapping[str, Tensor], names: Sequence[str]) -> Tree:
    """The inverse of `rows` for [..., d]: leaves [..., *shape] of the members in `like`, views of `flat` where they can be.

    >>> tree = {"w": torch.ones(2, 3, 5), "b": torch.zeros(2, 7)}
    >>> flat = rows(tree, ["w", "b"])
    >>> flat.shape, split(flat, tree, ["w", "b"])["w"].equal(tree["w"])
    (torch.Size([2, 22]), True)
    """
    parts = flat.split([like[name][0].numel() for name in names], dim=-1)
    return {name: part.reshape(*flat.shape[:-1], *like[name].shape[1:]) for name, part in zip(names, parts)}


def member(tree: Mapping[str, Tensor], index: int) -> Tree:
    """Member `index` of a tree with a leading axis: views, not copies."""
    return {name: leaf[index] for name, leaf in tree.items()}


def first(tree: Mapping[str, Tensor]) -> Tensor:
    """Any leaf, to read a device or a leading axis from."""
    return next(iter(tree.values()))


def count(tree: Mapping[str, Tensor]) -> int:
    """The number of elements over all leaves."""
    return sum(leaf.numel() for leaf in tree.values())


def squared_norms(tree: Mapping[str, Tensor]) -> Tensor:
    """[K] squared Euclidean norms of the K members of a tree with a leading axis."""
    norms = [torch.linalg.vector_norm(leaf.reshape(leaf.shape[0], -1), dim=1).square() for leaf in tree.values()]
    return torch.stack(norms).sum(0)


def chunks(*tensors: Tensor, alive: Tensor | None = None) -> Iterator[tuple[Tensor, ...]]:
    """Flat views of at most `CHUNK` elements of several contiguous tensors of one shape, side by side.

    Element-wise updates written with `out=` over these views keep their temporaries in cache and allocate nothing.
    With `alive` ([K] bool) the leading axis is K members, and the rows of dead members are left out.

    >>> a, b = torch.zeros(2, 3), torch.ones(2, 3)
    >>> for x, y in chunks(a, b, alive=torch.tensor([False, True])):
    ...     _ = x.add_(y)
    >>> a.tolist()
    [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    if alive is not None and not bool(alive.all()):
        for k in alive.nonzero().flatten().tolist():
            yield from chunks(*(tensor[k] for tensor in tensors))
        return
    flat = [tensor.view(-1) for tensor in tensors]
    size = flat[0].numel()
    if size <= CHUNK:
        if size:
            yield tuple(flat)
        return
    for start in range(0, size, CHUNK):
        yield tuple(tensor[start : start + CHUNK] for tensor in flat)
