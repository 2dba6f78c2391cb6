"""The parameters that a loop and an algorithm share: those of the module, and the likelihood's own."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from posterity.errors import CompatibilityError
from posterity.tree import BUFFER, LIKELIHOOD, Tree

__all__ = ["Parameters"]


class Parameters(dict[str, nn.Parameter]):
    """By the names that they have in a `Tree`."""

    @classmethod
    def of(cls, module: nn.Module, own: Tree) -> Parameters:
        """The trainable ones of `module`, and one for each of the likelihood's."""
        trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        return cls(trainable | {LIKELIHOOD + name: nn.Parameter(leaf) for name, leaf in own.items()})

    def follow(self, start: Tree) -> None:
        """Go where the module went.

        Raises:
            CompatibilityError: other tensors than those of `start` are trainable.
        """
        names = {name for name in start if not name.startswith(BUFFER)}
        if changed := sorted(self.keys() ^ names):
            raise CompatibilityError(f"{changed[0]!r} was frozen or freed since: do so before the optimizer is made")
        for name, parameter in self.items():
            parameter.data = parameter.data.to(start[name].device)

    @property
    def own(self) -> Tree:
        """The likelihood's."""
        return {name: parameter for name, parameter in self.items() if name.startswith(LIKELIHOOD)}

    @torch.no_grad()
    def put(self, thetas: Tree) -> None:
        """Write [1, ...] weights over the values."""
        for name, parameter in self.items():
            parameter.copy_(thetas[name][0])

    def unreached(self) -> frozenset[str]:
        """The module's that no backward reached since `clear`."""
        return frozenset(n for n, one in self.items() if one.grad is None and not n.startswith(LIKELIHOOD))

    def gradient(self, factor: float, idle: Collection[str]) -> Tree:
        """[1, ...] what backward left, times `factor`; zeros where it left nothing.

        Raises:
            CompatibilityError: it left something at an `idle` one.
        """
        found: Tree = {}
        for name, parameter in self.items():
            one = parameter.grad
            if one is None:
                one = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            elif name in idle:
                raise CompatibilityError(
                    f"{name!r} was taken for unused: the first step did not reach it, and this one does. Freeze it, or use "
                    "larger batches, or gradient accumulation"
                )
            one = one.detach().contiguous()
            found[name] = (one if factor == 1.0 else one.mul_(factor))[None]
        return found

    def clear(self) -> None:
        """Forget the gradients: the algorithm may keep their memory."""
        for parameter in self.values():
            parameter.grad = None
