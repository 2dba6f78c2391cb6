"""Tensors that are not there: code runs on them as it is, and the bytes that they would take are counted.

    with Imagined() as imagined:
        state, info = algorithm.step(problem, state, batches, random)
    imagined.peak

A large tensor that is made of nothing (`torch.zeros`), or of another such one, has a shape and no numbers: torch's
`FakeTensor`. Small ones are real, and so is what comes of real tensors alone, as batches and targets do: counters, flags and
losses steer the code as they do. What is summed up of a large tensor is made up: 1, true, or index 0; where two such
numbers are compared they are equal.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from posterity.tree import CHUNK

__all__ = ["Imagined"]

SMALL = CHUNK  # elements of the largest real tensor

_aten = torch.ops.aten
_OF_EQUALS = {_aten.lt: False, _aten.gt: False, _aten.ne: False, _aten.le: True, _aten.ge: True, _aten.eq: True}


class Imagined(TorchDispatchMode):
    """Counts the bytes of tensors made inside it, on all devices together; can be entered again.

    Attributes:
        live: bytes held now.
        peak: the most that were held at once since the start, or since it was set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._places = _Places()
        self._held: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._made_up: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __enter__(self) -> Imagined:
        self._places.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._places.__exit__(*error)

    def like(self, one: Tensor) -> Tensor:
        """A tensor from outside as one of those that are not there, if it is large."""
        if one.numel() <= SMALL:
            return one
        return torch.empty(one.shape, dtype=one.dtype, device=one.device, requires_grad=one.requires_grad)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        given = _tensors((args, kwargs))
        if function is _aten._linalg_check_errors.default:
            return None  # of numbers that may be made up
        if any(isinstance(one, FakeTensor) for one in given):
            found = self._without_numbers(function, args, kwargs)
        elif _surely_small(function, given) or self._fits(function, args, kwargs, given):
            found = self._with_numbers(function, args, kwargs, given)
        else:
            found = self._without_numbers(function, args, kwargs)
        if function.is_view:
            return found
        if written := _written(function, args, kwargs):
            return written[0] if isinstance(found, Tensor) else type(found)(written) if found else found
        return self._counted(found)

    def _fits(self, function: Any, args: Any, kwargs: Any, given: list[Tensor]) -> bool:
        """Whether what a function of real tensors makes is small, or not much larger than they are."""
        try:
            with self._fake:
                found = _tensors(function(*args, **kwargs))
        except (DataDependentOutputException, DynamicOutputShapeException):
            return True
        return sum(map(_size, found)) <= max(SMALL, 2 * sum(map(_size, given)))

    def _with_numbers(self, function: Any, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
        doubtful = [one.untyped_storage() in self._made_up for one in given]
        if len(given) == 2 and all(doubtful) and (same := _OF_EQUALS.get(function.overloadpacket)) is not None:
            return torch.full(torch.broadcast_shapes(*(one.shape for one in given)), same)
        try:
            found = function(*args, **kwargs)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # of made-up numbers
            return self._without_numbers(function, args, kwargs)
        if any(doubtful):
            self._made_up.update(one.untyped_storage() for one in _tensors(found))
        return found

    def _without_numbers(self, function: Any, args: Any, kwargs: Any) -> Any:
        with self._fake:
            try:
                found = function(*args, **kwargs)
            except (DataDependentOutputException, DynamicOutputShapeException):
                found = _told(function, args)
        return found if function.is_view else self._shown(found)

    def _shown(self, found: Any) -> Any:
        """Small results of large tensors, in numbers."""

        def number(one: FakeTensor) -> Tensor:
            if one.numel() > SMALL:
                return one
            value = 1.0 if one.is_floating_point() or one.is_complex() else one.dtype == torch.bool
            known = torch.full(tuple(one.shape), value, dtype=one.dtype, device=one.device)
            self._made_up.add(known.untyped_storage())
            return known

        return tree_map_only(FakeTensor, number, found)

    def _counted(self, found: Any) -> Any:
        for storage in (one.untyped_storage() for one in _tensors(found)):
            if storage not in self._held:
                self._held.add(storage)
                self.live += storage.nbytes()
                weakref.finalize(storage, self._gone, storage.nbytes()).atexit = False
        self.peak = max(self.peak, self.live)
        return found

    def _gone(self, size: int) -> None:
        self.live -= size


class _Places(TorchFunctionMode):
    """Tells apart where tensors that are not there would lie."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function is Tensor.data_ptr and isinstance(args[0], FakeTensor):
            return id(args[0].untyped_storage()) + args[0].storage_offset() * args[0].element_size()
        return function(*args, **(kwargs or {}))


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_flatten(values)[0] if isinstance(one, Tensor)]


def _surely_small(function: Any, given: list[Tensor]) -> bool:
    """Whether what a function of real tensors makes need not be looked at: nothing, a view, or at most 256^2 numbers."""
    if function.is_view or torch.Tag.inplace_view in function.tags:
        return True
    tensors, shape = _signature(function)
    return not tensors or (bool(given) and not shape and sum(one.numel() for one in given) <= 256)


@cache
def _signature(function: Any) -> tuple[bool, bool]:
    """Whether a function gives tensors, and whether it is told a shape."""
    schema = function._schema
    return any("Tensor" in str(one.type) for one in schema.returns), "SymInt[]" in str(schema)


def _size(one: Tensor) -> int:
    """Elements that are held; those of an expanded tensor are not."""
    return min(one.numel(), one.untyped_storage().nbytes() // one.element_size())


def _written(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that `function` writes into."""
    arguments = function._schema.arguments if function._schema.is_mutable else ()
    marked = [
        kwargs.get(argument.name, args[i] if i < len(args) else None)
        for i, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [one for one in marked if one is not None]


def _told(function: Any, args: tuple[Any, ...]) -> Any:
    """What a large tensor says of its numbers; where it is asked which of them are true, all are."""
    one = args[0]
    if function is _aten.equal.default:
        return True
    if function is _aten._local_scalar_dense.default:
        return 1.0 if one.is_floating_point() else one.dtype == torch.bool
    if function is _aten.nonzero.default:
        return torch.empty(one.numel(), one.dim(), dtype=torch.int64, device=one.device)
    if function is _aten.index.Tensor and sum(index is not None for index in args[1]) == 1:
        at, mask = next((i, index) for i, index in enumerate(args[1]) if index is not None)
        return one.new_empty((*one.shape[:at], mask.numel(), *one.shape[at + mask.dim() :]))
    raise NotImplementedError(f"{function} needs the numbers of a large tensor, and here it has none")
