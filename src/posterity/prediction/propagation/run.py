"""One pass: its settings, which module it is in, and the sites whose variance is scaled.

A site is the input of an activation or of a normalisation, or what comes out of a pooling: `path#0`, `path#1`, ... in the
order of the calls inside the module at `path`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from posterity.prediction.propagation.activations.moments import Accuracy
from posterity.prediction.propagation.value import MeanVar, Value

__all__ = ["Pass", "Rules", "at_site", "current", "inside", "running"]


@dataclass(frozen=True)
class Rules:
    """What can be chosen about the rules.

    Args:
        accuracy: of the moments of activations.
        attention: "mean" takes attention weights at their mean; "logits" adds what the variance of their logits does, which
            counts noise that all keys share too often.
        pooling: correlation in [0, 1] of the positions that a pooling averages.
    """

    accuracy: Accuracy = "exact"
    attention: Literal["mean", "logits"] = "mean"
    pooling: float = 0.0

    def __post_init__(self) -> None:
        for name, allowed in (("accuracy", ("fast", "exact")), ("attention", ("mean", "logits"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        if not 0.0 <= self.pooling <= 1.0:
            raise ValueError(f"pooling must lie in [0, 1], got {self.pooling}")


@dataclass
class Pass:
    """The state of one pass.

    Args:
        scales: what multiplies the variance at a site, by key.
        paths: of the modules that the pass is in, outermost first.
        seen: how often each path had a site; sites: all keys in the order met.
    """

    rules: Rules = field(default_factory=Rules)
    scales: Mapping[str, Tensor] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    sites: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Of the module that the pass is in; "" for the network itself."""
        return self.paths[-1] if self.paths else ""


_CURRENT: ContextVar[Pass] = ContextVar("pass")
_DEFAULT = Pass()


def current() -> Pass:
    """The pass that is running; outside of one, the defaults."""
    return _CURRENT.get(_DEFAULT)


@contextmanager
def running(one: Pass) -> Iterator[Pass]:
    """Make `one` the current pass."""
    token = _CURRENT.set(one)
    try:
        yield one
    finally:
        _CURRENT.reset(token)


@contextmanager
def inside(path: str) -> Iterator[None]:
    """In the module at `path`."""
    paths = current().paths
    paths.append(path)
    try:
        yield
    finally:
        paths.pop()


def at_site(x: Value) -> Value:
    """x with its variance scaled by what the next site of this module has."""
    if not isinstance(x, MeanVar):
        return x
    one = current()
    if one is _DEFAULT:
        return x
    index = one.seen.get(one.path, 0)
    one.seen[one.path] = index + 1
    key = f"{one.path}#{index}"
    one.sites.append(key)
    scale = one.scales.get(key)
    return x if scale is None else MeanVar(x.mean, x.var * scale)
