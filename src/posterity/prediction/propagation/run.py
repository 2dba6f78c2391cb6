"""One pass: its settings, which module it is in, and the sites whose variance is scaled.

A site is the input of an activation or of a normalisation, or what comes out of a pooling: `path#0`, `path#1`, ... in the
order of the calls inside the module at `path`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from posterity.prediction.propagation.activations import fast_within
from posterity.prediction.propagation.activations.moments import Accuracy
from posterity.prediction.propagation.noise import Noise
from posterity.prediction.propagation.settings import Propagation, Rules
from posterity.prediction.propagation.value import MeanVar, Value

__all__ = [
    "OUTPUTS",
    "Pass",
    "accuracy",
    "at_site",
    "current",
    "inside",
    "outputs_scaled",
    "pass_of",
    "running",
    "scaled",
]

OUTPUTS = "outputs"  # the key of what multiplies the variance of the network's outputs


@dataclass
class Pass:
    """The state of one pass.

    Args:
        scales: what multiplies the variance at a site, by key.
        fast: sites whose activation takes its fast form.
        paths: of the modules that the pass is in, outermost first.
        seen: how often each path had a site; sites: all keys in the order met, the present one last.
        suits: of each activation with a fast form, whether the stds of this pass suit that form.
        noise: of a pass for a covariance, what appears on its way.
    """

    rules: Rules = field(default_factory=Rules)
    scales: Mapping[str, Tensor | float] = field(default_factory=dict)
    fast: frozenset[str] = frozenset()
    paths: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    sites: list[str] = field(default_factory=list)
    suits: dict[str, bool] | None = None
    noise: Noise | None = None

    @property
    def path(self) -> str:
        """Of the module that the pass is in; "" for the network itself."""
        return self.paths[-1] if self.paths else ""

    def again(self) -> Pass:
        """A pass with the same settings, before its first site."""
        return Pass(self.rules, self.scales, self.fast)


def pass_of(settings: Propagation) -> Pass:
    """A pass with these settings."""
    return Pass(settings.rules, settings.scales, settings.fast)


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
    return scaled(x, key)


def scaled(x: Value, key: str) -> Value:
    """x with its variance scaled by what the pass has for this key."""
    scale = current().scales.get(key)
    return x.times(scale) if isinstance(x, MeanVar) and scale is not None else x


def outputs_scaled(output: Any) -> Any:
    """What a network says, a value or a tuple of them, with the variance scaled by what the pass has for the outputs."""
    return tuple(map(outputs_scaled, output)) if isinstance(output, tuple) else scaled(output, OUTPUTS)


def accuracy(name: str, x: MeanVar) -> Accuracy:
    """Of the activation of this name at the present site, x being its input."""
    one = current()
    if one is _DEFAULT or not one.sites:
        return one.rules.accuracy
    key = one.sites[-1]
    if one.suits is not None:
        one.suits[key] = fast_within(name, float(x.var.max().sqrt()))
    return "fast" if key in one.fast else one.rules.accuracy
