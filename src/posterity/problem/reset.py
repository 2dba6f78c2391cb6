"""Fresh weights for a network: its own initialisers, run on copies.

    `reset_parameters` of every part, then `_init_weights(part)` of what holds it, where there is one (Hugging Face)

A tensor that no initialiser touches is re-drawn, with the mean and std that it has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from posterity.random import Random
from posterity.tree import Tree

__all__ = ["initialised", "redrawn"]

# Added to every copy before: an initialiser that writes what was there already (zeros over zeros) is seen to have written.
_MARK = 2.0**-8


class _Initialisers(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self) -> None:
        _visit(self.module, None)


def initialised(module: nn.Module, tensors: Tree, random: Random) -> Tree:
    """The tensors, among those given by name, that the initialisers of `module` write, with their new values.

    The module's own tensors are not touched: copies stand in for them.
    """
    copies = {f"module.{name}": _marked(tensor) for name, tensor in tensors.items()}
    before = {name: (copy, copy._version, copy.clone()) for name, copy in copies.items()}
    with random.forked(data=True), torch.no_grad():
        torch.func.functional_call(_Initialisers(module), copies, ())
    return {
        name.removeprefix("module."): copies[name].detach()
        for name, (copy, version, content) in before.items()
        if copies[name] is not copy or copy._version != version or not torch.equal(copy, content)
    }


def redrawn(value: Tensor, random: Random) -> Tensor:
    """Normal draws with the mean and std of `value`; a single number stays."""
    if value.numel() < 2:
        return value.clone()
    return value.mean() + value.std() * random.normal(tuple(value.shape), like=value)


def _marked(tensor: Tensor) -> Tensor:
    return tensor.detach() + _MARK if tensor.is_floating_point() else tensor.detach().clone()


def _visit(part: nn.Module, shared: Callable[[nn.Module], Any] | None) -> None:
    """As a constructor does: the parts of `part` first, its own initialiser, then the `shared` one in force."""
    own = getattr(part, "_init_weights", None)
    if _takes(own, None):
        shared = own
    for child in part.children():
        _visit(child, shared)
    for name in ("reset_parameters", "_reset_parameters", "_init_weights"):
        initialise = getattr(part, name, None)
        if callable(initialise) and _takes(initialise):
            initialise()
            break
    if shared is not None:
        shared(part)


def _takes(function: Any, *args: Any) -> bool:
    try:
        inspect.signature(function).bind(*args)
    except (TypeError, ValueError):
        return False
    return True
