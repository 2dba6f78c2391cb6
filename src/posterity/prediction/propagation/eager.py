"""The eager front end: weights as carriers of mean and variance, through the user's module as it is.

Only weights (and inputs, if they are given with a variance) are wrapped; what comes of them is a `Propagated`, and what does
not is a plain tensor. Control flow and shapes are the module's own, and autograd works throughout.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from posterity.errors import CompatibilityError
from posterity.prediction.propagation import rules  # noqa: F401  (fills the table)
from posterity.prediction.propagation.run import current
from posterity.prediction.propagation.sampled import sampled
from posterity.prediction.propagation.table import IN_PLACE, RULES
from posterity.prediction.propagation.value import MeanVar
from posterity.problem.carrier import Carrier, Function, name_of
from posterity.problem.formed import replaced

__all__ = ["Propagated", "followed", "unwrapped", "wrapped"]


class Propagated(Carrier):
    """A tensor of which mean and variance are known, where the user's code expects a tensor."""

    value: MeanVar

    @staticmethod
    def __new__(cls, value: MeanVar) -> Propagated:
        mean = value.mean
        carrier = Tensor._make_wrapper_subclass(cls, mean.shape, dtype=mean.dtype, device=mean.device)
        carrier.value = value
        return carrier

    @classmethod
    def __torch_function__(
        cls, func: Function, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = RULES.get(func)
        if found is None:
            return super().__torch_function__(func, types, args, kwargs)
        result = found(*unwrapped(args), **unwrapped(dict(kwargs or {})))
        if result is NotImplemented:
            return cls.fallback(func, types, args, kwargs or {})
        if func in IN_PLACE or (kwargs and kwargs.get("inplace")):
            return _written(func, args[0], result)
        return wrapped(result)

    @classmethod
    def fallback(
        cls, function: Function, types: Sequence[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        if current().rules.unknown == "draws":
            return wrapped(sampled(function, unwrapped(args), unwrapped(dict(kwargs))))
        path = current().path
        where = f" in the module {path!r}" if path else ""
        raise CompatibilityError(
            f"no rule says what {name_of(function)} does to means and variances{where} ({_line()}): predict with "
            "via='draws', take it by draws of its inputs (Rules(unknown='draws')), or register a rule for it with "
            "posterity.prediction.propagation.table.rule"
        )


def _written(function: Function, target: Any, result: Any) -> Any:
    """An in-place operation's target with its new value."""
    if not isinstance(target, Propagated):
        if name_of(function).startswith("__i"):
            return wrapped(result)  # x += y gives the name x to what comes back
        raise CompatibilityError(
            f"{name_of(function)} would write a variance into a tensor that has none ({_line()}): use the form that "
            "returns its result"
        )
    target.value = result if isinstance(result, MeanVar) else MeanVar(result, torch.zeros_like(result))
    return target


def _line() -> str:
    """Where the user's code called."""
    own = ("/posterity/", "/torch/", "<")
    frames = [f for f in traceback.extract_stack() if not any(part in f.filename for part in own)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "inside torch"


def wrapped(value: Any) -> Any:
    """Values as carriers, also inside tuples."""
    if isinstance(value, MeanVar):
        return Propagated(value)
    if isinstance(value, tuple | list):
        return type(value)(wrapped(one) for one in value)
    return value


def unwrapped(value: Any) -> Any:
    """The inverse of `wrapped`, also inside tuples, lists and dicts."""
    return replaced(value, Propagated, attrgetter("value"))


@contextmanager
def followed(module: nn.Module) -> Iterator[None]:
    """Tell the current pass which module it is in."""
    paths = {id(one): name for name, one in module.named_modules()}

    def enter(one: nn.Module, args: Any) -> None:
        if id(one) in paths:
            current().paths.append(paths[id(one)])

    def leave(one: nn.Module, args: Any, output: Any) -> None:
        if id(one) in paths:
            current().paths.pop()

    with ExitStack() as stack:
        for handle in (
            nn.modules.module.register_module_forward_pre_hook(enter),
            nn.modules.module.register_module_forward_hook(leave, always_call=True),
        ):
            stack.callback(handle.remove)
        yield
