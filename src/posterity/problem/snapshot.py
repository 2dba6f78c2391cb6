"""Weights of one member with the optimizer's statistics, taken together at one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from posterity.tree import Tree, member, pick

__all__ = ["Snapshot"]

_TREES = ("theta", "first", "second", "gradient")


class Snapshot(NamedTuple):
    """What a deep ensemble's member leaves to the methods that start from it.

    The moments are bias-corrected and of the gradient of the MEAN loss, without prior or weight decay. Stacked, every
    leaf has a leading member axis.
    """

    theta: Tree  # weights and changed buffers
    first: Tree  # E[g]
    second: Tree  # E[g^2]
    gradient: Tree  # the step's own g
    batch_size: Tensor  # () int64
    step: Tensor  # () int64

    def member(self, k: int) -> Snapshot:
        """Member k of stacked snapshots: views."""
        trees = {part: member(getattr(self, part), k) for part in _TREES}
        return Snapshot(**trees, batch_size=self.batch_size[k], step=self.step[k])

    def fisher(self, name: str, size: float, precision: float) -> Tensor:
        """w N B nu + prior precision of one tensor: the curvature of U where the likelihood is right; w N is `size`."""
        return self.second[name] * (size * float(self.batch_size)) + precision

    def flat(self) -> Tree:
        """One tree, for storage: `theta/<name>`, `first/<name>`, ..., `batch_size`, `step`."""
        trees = {f"{part}/{name}": leaf for part in _TREES for name, leaf in getattr(self, part).items()}
        return {**trees, "batch_size": self.batch_size, "step": self.step}

    @classmethod
    def of(cls, flat: Mapping[str, Tensor]) -> Snapshot:
        """The inverse of `flat`."""
        trees = {part: pick(flat, f"{part}/") for part in _TREES}
        return cls(**trees, batch_size=flat["batch_size"], step=flat["step"])
