"""The user's module stays as it was: what a forward could change is noted before, and put back after.

Attributes, flags, hooks, buffers, parameters and parts come and go by name; tensors, arrays, lists, dicts and sets are also
put back in content, nested ones too. The contents of parameters are left alone: a forward is given those that are
inferred, and a frozen one has no writer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["restored"]

_REGISTRIES = ("_buffers", "_modules", "_parameters")


@contextmanager
def restored(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put all `modules` back on leaving, also after an exception."""
    undo: list[Callable[[], None]] = []
    seen: set[int] = set()
    for module in modules:
        for registry in (vars(module), *(getattr(module, name) for name in _REGISTRIES)):
            _note(registry, undo, seen)
    try:
        yield
    finally:
        for put_back in undo:
            put_back()


def _note(value: Any, undo: list[Callable[[], None]], seen: set[int]) -> None:
    """Add what puts back the content of `value` and of all that it holds; each object once."""
    if not isinstance(value, Tensor | np.ndarray | dict | list | set | deque | tuple) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        if not isinstance(value, nn.Parameter) and value.layout is torch.strided and not value.is_meta:
            undo.append(_tensor(value))
    elif isinstance(value, np.ndarray):
        undo.append(_array(value))
    else:
        if not isinstance(value, tuple):
            undo.append(_mapping(value) if isinstance(value, dict) else _collection(value))
        for part in value.values() if isinstance(value, dict) else value:
            _note(part, undo, seen)


def _tensor(value: Tensor) -> Callable[[], None]:
    data, content = value.detach(), value.detach().clone()

    def put_back() -> None:
        if not torch.equal(data, content):
            data.copy_(content)

    return put_back


def _array(value: np.ndarray) -> Callable[[], None]:
    content = value.copy()

    def put_back() -> None:
        if value.flags.writeable:
            value[...] = content

    return put_back


def _mapping(value: dict) -> Callable[[], None]:
    content = dict(value)

    def put_back() -> None:
        if list(value) != list(content):
            value.clear()
            value.update(content)
        for key, part in content.items():
            if value[key] is not part:
                value[key] = part

    return put_back


def _collection(value: Any) -> Callable[[], None]:
    content = list(value)

    def put_back() -> None:
        if len(value) != len(content) or any(one is not other for one, other in zip(value, content)):
            value.clear()
            value.update(content) if isinstance(value, set) else value.extend(content)

    return put_back
