"""Carriers of a weight that can be written out: what their fast paths leave goes to the weight itself.

The weight is formed once per carrier, in the autograd graph of its parts, and kept; it is read-only.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.errors import CompatibilityError
from posterity.problem.carrier import Carrier, handles, name_of

__all__ = ["Formed", "refuse_max_norm", "replaced"]

_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_WRITES = {"__set__", "__delete__", "__setitem__", *(f"__i{operator}__" for operator in _OPERATORS)}


class Formed(Carrier):
    """Base of the carriers that stand for a weight `form()`."""

    _formed: Tensor | None = None

    @abstractmethod
    def form(self) -> Tensor:
        """The weight, of the carrier's shape, from its parts."""

    def dense(self) -> Tensor:
        """The weight as a plain tensor, in the autograd graph of the parts; formed at the first call and kept.

        Raises:
            CompatibilityError: if someone wrote into the tensor of an earlier call.
        """
        formed = self._formed
        if formed is None or self._outgrown(formed):
            kind = self.device.type
            with torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext():
                self._formed = formed = self.form()
        elif not formed.is_inference() and formed._version:
            raise CompatibilityError(
                f"{self!r} was formed and then written to in place; a factored weight is read-only"
            )
        return formed

    def _outgrown(self, formed: Tensor) -> bool:
        """Whether it was formed in a mode (no_grad, inference) whose tensors cannot serve the present one."""
        if formed.is_inference() and not torch.is_inference_mode_enabled():
            return True
        return self.requires_grad and torch.is_grad_enabled() and not formed.requires_grad

    @classmethod
    def fallback(
        cls, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call the function on the weight itself; raises where that would write into it."""
        name = getattr(function, "__name__", "")
        writes = name in _WRITES or (name.endswith("_") and not name.endswith("__"))
        if (writes and args and isinstance(args[0], Formed)) or isinstance(kwargs.get("out"), Formed):
            raise CompatibilityError(
                f"{name_of(function)} would write into a factored weight, which is read-only; change its factors, or "
                "keep this parameter dense"
            )
        return function(*_with_dense(args), **_with_dense(dict(kwargs)))


def refuse_max_norm(max_norm: float | None) -> None:
    """Raise where an embedding would rewrite its weight."""
    if max_norm is not None:
        raise CompatibilityError(
            f"an embedding with max_norm={max_norm} rewrites its weight, and a factored weight is read-only; set "
            "max_norm=None, or keep this parameter dense"
        )


@handles(Formed, F.embedding_bag)
def _embedding_bag(input: Any, weight: Any, *args: Any, **options: Any) -> Any:
    given = inspect.signature(F.embedding_bag).bind(input, weight, *args, **options).arguments
    refuse_max_norm(given.get("max_norm"))
    return F.embedding_bag(**{**_with_dense(given), "sparse": False})  # the parts' gradients are dense


def replaced(value: Any, kind: type[Any], by: Callable[[Any], Any]) -> Any:
    """`value` with each carrier of a kind in it replaced; lists because an LSTM takes its weights in one."""
    if isinstance(value, kind):
        return by(value)
    if type(value) in (tuple, list):
        return type(value)(replaced(item, kind, by) for item in value)
    if type(value) is dict:
        return {key: replaced(item, kind, by) for key, item in value.items()}
    return value


def _with_dense(value: Any) -> Any:
    return replaced(value, Formed, Formed.dense)
