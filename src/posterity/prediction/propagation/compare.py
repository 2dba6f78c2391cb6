"""Propagation beside draws, layer by layer: where do their means and variances part?

    mean_gap   root mean square over elements of (propagated mean - mean of the draws) / larger of both stds
    var_ratio  sum of the propagated variances / sum of those of the draws

A layer is a call of a module that calls no other: an attention of torch's, which calls none of its parts, is one. Of its
outputs the first is looked at, and of that at most 16384 elements. What varies neither way is left out. By the larger std,
since that of the draws alone is hardly known where few of them pass a threshold (ReLU).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from posterity.posterior.posterior import Posterior
from posterity.prediction.propagation.eager import Propagated
from posterity.prediction.propagation.joint import Joint
from posterity.prediction.propagation.propagate import propagate, values_of
from posterity.prediction.propagation.run import pass_of
from posterity.prediction.propagation.settings import Propagation
from posterity.prediction.propagation.value import dense, split
from posterity.problem.problem import NetworkProblem
from posterity.random import Random

__all__ = ["Compared", "compared", "parts_at"]

DRAWS = 64
ELEMENTS = 2**14  # of an output that are looked at
ROUNDING = 1e-6  # std over size of what varies by float32 alone
NOISE, GAP = 3.0, 0.25  # floors and stds that means may lie apart
RATIO = (0.5, 2.0)  # of variances that agree

Key = tuple[str, int]  # a module's path, and which of its calls
_Moments = tuple[Tensor, Tensor | None]  # mean and variance
_NETWORK: Key = ("", 0)


@dataclass(frozen=True)
class Compared:
    """One layer, or the network's output.

    Args:
        path: of the module, with `#i` for its call i where it is called several times; "" for the network.
        kind: the name of its class.
        mean_gap: in stds.
        var_ratio: >= 0; infinity where the draws do not vary.
        elements: how many were looked at.
        floor: what the draws' own noise makes of mean_gap, 1 / sqrt(draws); 0 where they are all that there are.
    """

    path: str
    kind: str
    mean_gap: float
    var_ratio: float
    elements: int
    floor: float

    @property
    def parts(self) -> bool:
        """Whether means lie more than 3 floors and a quarter of a std apart, or variances by more than a factor of 2."""
        return self.mean_gap > NOISE * self.floor + GAP or not RATIO[0] <= self.var_ratio <= RATIO[1]


def compared(
    problem: NetworkProblem,
    posterior: Posterior,
    inputs: Any,
    settings: Propagation,
    draws: int = DRAWS,
    random: Random | None = None,
) -> list[Compared]:
    """A row for every layer in the order of their calls, and one for what the network says at the end.

    With `Rules(covariance=True)`, which has no variances on its way, the last row alone.

    Args:
        inputs: one batch; both passes hold it whole.
        draws: of the weights; all of a finite posterior.

    Raises:
        CompatibilityError: an operation without a rule, and as `propagate`.
    """
    random, finite = random or Random(0), posterior.finite is not None
    parts = values_of(posterior, settings)
    drawn, propagated = _Seen(), _Seen()
    module, kind = problem.network.module, type(problem.network.module).__name__

    def watched(seen: _Seen) -> AbstractContextManager[None]:
        return nullcontext() if settings.rules.covariance else _watched(module, seen)

    with torch.inference_mode(), problem.network.session(train=False):
        for i, theta in enumerate(posterior.draws(None if finite else draws, random.fold("draw"))):
            with watched(drawn):
                said = problem.outputs(theta, inputs, random.fold("forward").fold(i))
            drawn.add(_NETWORK, kind, _of_network(said))
        for values in parts:
            with watched(propagated):
                said = propagate(problem, values, inputs, pass_of(settings))
            propagated.add(_NETWORK, kind, _of_network(said))
    calls = Counter(path for path, _ in drawn.found)
    found = []
    for (path, call), own in drawn.found.items():
        other = propagated.found.get((path, call))
        if other is not None and other.mean.shape == own.mean.shape:
            label = path if calls[path] == 1 else f"{path}#{call}"
            found.append(_row(label, drawn.kinds[path, call], own, other, finite))
    return sorted(filter(None, found), key=lambda row: row.path == "")


def parts_at(rows: list[Compared]) -> Compared | None:
    """The first layer where propagation and draws part."""
    return next((row for row in rows if row.parts), None)


@dataclass
class _Spread:
    """Mean and variance of what came one after another, each exact or with a variance of its own (Welford, 1962)."""

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    between: Tensor = field(default_factory=lambda: torch.zeros(()))
    within: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, mean: Tensor, var: Tensor | None) -> None:
        if self.count and mean.shape != self.mean.shape:
            return  # a call that took another path
        self.count += 1
        step = mean - self.mean
        self.mean = self.mean + step / self.count
        self.between = self.between + step * (mean - self.mean)
        self.within = self.within + (torch.zeros_like(mean) if var is None else var)

    def var(self, drawn: bool) -> Tensor:
        """Of all that there are, or the unbiased one of draws."""
        return (self.within + self.between * (self.count / max(self.count - 1, 1) if drawn else 1.0)) / self.count


class _Seen:
    """What each layer gave, by its key."""

    def __init__(self) -> None:
        self.found: dict[Key, _Spread] = {}
        self.kinds: dict[Key, str] = {}

    def add(self, key: Key, kind: str, value: _Moments) -> None:
        index = _chosen(value[0].numel()).to(value[0].device)
        mean, var = (None if x is None else x.reshape(-1)[index].double().cpu() for x in value)
        assert mean is not None
        self.kinds[key] = kind
        self.found.setdefault(key, _Spread()).add(mean, var)


@lru_cache(maxsize=256)
def _chosen(count: int) -> Tensor:
    """Indices of the elements that are looked at."""
    if count <= ELEMENTS:
        return torch.arange(count)
    return torch.randint(count, (ELEMENTS,), generator=Random(0).fold("elements").generator())


def _first(output: Any) -> _Moments | None:
    """Of the first tensor of numbers in what a layer gave."""
    if isinstance(output, Propagated):
        return split(output.value)
    if isinstance(output, Tensor):
        return (output, None) if output.is_floating_point() else None
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((found for part in parts if (found := _first(part)) is not None), None)


def _of_network(output: Any) -> _Moments:
    """Of all that the likelihood reads, row by row."""
    if isinstance(output, Joint):
        return output.mean, output.var
    parts = [dense(part) for part in (output if isinstance(output, tuple) else (output,))]
    mean, var = (torch.cat([x.reshape(len(x), -1) for x in both], 1) for both in zip(*parts))
    return mean, var


def _row(path: str, kind: str, drawn: _Spread, propagated: _Spread, finite: bool) -> Compared | None:
    var, told = drawn.var(drawn=not finite), propagated.var(drawn=False)
    varies = (var > (ROUNDING * drawn.mean).square()) | (told > 0)
    if not varies.any():
        return None
    gap = (propagated.mean - drawn.mean)[varies].square() / torch.maximum(var, told)[varies]
    total = float(var[varies].sum())
    return Compared(
        path, kind,
        mean_gap=float(gap.mean().sqrt()),
        var_ratio=float(told.sum()) / total if total > 0 else math.inf,
        elements=len(var),
        floor=0.0 if finite else drawn.count**-0.5,
    )  # fmt: skip


@contextmanager
def _watched(module: nn.Module, seen: _Seen) -> Iterator[None]:
    """Add what every layer of a module gives."""
    paths = {id(one): path for path, one in module.named_modules() if path}
    calls: Counter[str] = Counter()
    calling: list[bool] = []  # for each of the calls that are going on, whether it called another

    def enter(one: nn.Module, args: Any) -> None:
        if id(one) in paths:
            if calling:
                calling[-1] = True
            calling.append(False)

    def leave(one: nn.Module, args: Any, output: Any) -> None:
        if id(one) not in paths or calling.pop():
            return
        path = paths[id(one)]
        if (value := _first(output)) is not None:
            seen.add((path, calls[path]), type(one).__name__, value)
        calls[path] += 1

    with ExitStack() as stack:
        hooks = nn.modules.module
        stack.callback(hooks.register_module_forward_pre_hook(enter).remove)
        stack.callback(hooks.register_module_forward_hook(leave, always_call=True).remove)
        yield
