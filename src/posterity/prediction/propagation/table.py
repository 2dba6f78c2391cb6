"""The table of rules: what an operation does to means and variances. One function per operation, under all of torch's names.

A rule takes the operation's own arguments, any of which may be a `MeanVar`, and returns values. An operation without a rule
is an error in both front ends: no variance is dropped unsaid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.problem.carrier import name_of

__all__ = ["IN_PLACE", "RULES", "mirrored", "rule"]

Rule = Callable[..., Any]

RULES: dict[Any, Rule] = {}
IN_PLACE: set[Any] = set()  # functions that write into their first argument and return it

_PLACES = (torch, F, Tensor, torch._C._nn, torch.special)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for every function and method of these names, and for their in-place forms `name_`.

    Raises:
        ValueError: a name that torch does not know, or that has a rule.
    """

    def register(found: Rule) -> Rule:
        _enter(names, lambda function: found)
        return found

    return register


def mirrored(*names: str) -> Callable[[Callable[[Any], Rule]], Callable[[Any], Rule]]:
    """As `rule`, of a function that makes the rule from the torch function that is called."""

    def register(make: Callable[[Any], Rule]) -> Callable[[Any], Rule]:
        for name in names:
            _enter((name,), make)
        return make

    return register


def _enter(names: Sequence[str], make: Callable[[Any], Rule]) -> None:
    entered: dict[Any, Rule] = {}
    for name in names:
        functions = list(_functions(name))
        if not functions:
            raise ValueError(f"torch has no operation {name!r}")
        entered |= {function: make(function) for function in functions}
        in_place = list(_functions(f"{name}_"))
        entered |= {function: make(functions[0]) for function in in_place}
        IN_PLACE.update(in_place)
    if taken := [function for function in entered if function in RULES]:
        raise ValueError(f"{name_of(taken[0])} already has a rule")
    RULES.update(entered)
    IN_PLACE.update(function for function in entered if name_of(function).startswith("__i"))


def _functions(name: str) -> Iterator[Any]:
    """Of a name `relu`, `Tensor.relu`, `F.relu`, every overload of `aten.relu`; of an operator `__add__`, the method."""
    for place in _PLACES:
        if (function := getattr(place, name, None)) is not None and callable(function):
            yield function
    packet = getattr(torch.ops.aten, name, None) if not name.startswith("__") else None
    if packet is not None:
        for overload in packet.overloads():
            if overload != "out" and not overload.endswith("_out"):
                yield getattr(packet, overload)
