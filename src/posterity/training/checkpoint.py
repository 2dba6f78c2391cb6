"""The state of a run as one flat tree, and back: what resuming needs, to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.errors import StorageError
from posterity.problem.snapshot import Snapshot
from posterity.tree import Tree, pick

__all__ = ["carried", "flatten", "left_behind", "restore"]


def flatten(state: Any, prefix: str = "state") -> Tree:
    """Every tensor of nested NamedTuples and trees by its path; carriers (factored weights) are stored by their parts."""
    if isinstance(state, Tensor):
        return {prefix: state}
    parts = state._asdict() if hasattr(state, "_asdict") else state
    if not isinstance(parts, Mapping):
        raise TypeError(f"a State holds tensors, trees and NamedTuples only; {prefix} is a {type(state).__name__}")
    out: Tree = {}
    for name, part in parts.items():
        out.update(flatten(part, f"{prefix}/{name}"))
    return out


def restore(template: Any, flat: Tree, prefix: str = "state") -> Any:
    """`flat` in the structure of `template`, whose trees may hold other names (an empty one, filled since).

    Raises:
        StorageError: a tensor of the template is not there.
    """
    if isinstance(template, Tensor):
        if prefix not in flat:
            raise StorageError(f"the checkpoint lacks {prefix!r}: it was written by another version or algorithm")
        return flat[prefix].to(template.device)
    if hasattr(template, "_asdict"):
        return type(template)(*(restore(part, flat, f"{prefix}/{name}") for name, part in template._asdict().items()))
    if any(not isinstance(part, Tensor) for part in template.values()):
        return {name: restore(part, flat, f"{prefix}/{name}") for name, part in template.items()}
    device = next((leaf.device for leaf in template.values()), torch.device("cpu"))
    path = f"{prefix}/"
    return {name[len(path) :]: leaf.to(device) for name, leaf in flat.items() if name.startswith(path)}


def carried(starts: Sequence[Tree | Snapshot]) -> Tree:
    """What the last stage left to this one, flat, to lie in the checkpoints of this one too."""
    flat = [one.flat() if isinstance(one, Snapshot) else {f"theta/{n}": v for n, v in one.items()} for one in starts]
    return {f"left/{k}/{name}": leaf for k, one in enumerate(flat) for name, leaf in one.items()}


def left_behind(checkpoint: Tree) -> list[Tree | Snapshot]:
    """The inverse of `carried`; empty in the first stage."""
    left: list[Tree | Snapshot] = []
    while one := pick(checkpoint, f"left/{len(left)}/"):
        left.append(Snapshot.of(one) if "step" in one else pick(one, "theta/"))
    return left
