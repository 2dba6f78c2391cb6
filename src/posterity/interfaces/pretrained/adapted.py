"""What is inferred of a backbone: a head on features that stay as they are, or the last blocks too.

head           a linear layer on the features
last-blocks    the last blocks and that layer; the prior of a pretrained weight is centred at it
low-rank       low-rank changes of the matrices in the last blocks (`po.LowRankVI(change=True)`) and that layer
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import posterity as po
from posterity.errors import CompatibilityError
from posterity.inference.ranks import Rank
from posterity.interfaces.methods import DEFAULT
from posterity.interfaces.pretrained.backbones import Backbone, Trunk
from posterity.interfaces.settings import Named, build_method

__all__ = ["ADAPT", "Classifier", "Whole", "builder", "computed", "method_for", "prior_for"]

ADAPT = ("head", "last-blocks", "low-rank")
RANK, CHANGE = 8, 0.2  # of low-rank changes; how far a pretrained weight may go, as a share of the prior of the head's
GENTLE = 0.1  # of a method's learning rate where pretrained weights move


class Classifier(nn.Module):
    """States to [rows, classes] logits.

    Args:
        tail: states to features; one that gives them as they are where only the head is inferred.
    """

    def __init__(self, tail: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.tail, self.head = tail, nn.Linear(width, classes)

    def forward(self, *states: Tensor) -> Tensor:
        return self.head(self.tail(*states))


class Whole(Classifier):
    """The same on pixels or tokens: under the same names, with what lies below."""

    def __init__(self, body: nn.Module, classifier: Classifier) -> None:
        nn.Module.__init__(self)
        self.body, self.tail, self.head = body, classifier.tail, classifier.head

    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(*self.body(*inputs))


def computed(backbone: Backbone, adapt: str) -> nn.Module:
    """The part of a backbone that is computed once: inputs to states.

    Raises CompatibilityError: an unknown way, or a backbone whose last blocks are not known.
    """
    if adapt not in ADAPT:
        raise CompatibilityError(f"--adapt is one of {', '.join(ADAPT)}, got {adapt!r}")
    if adapt == "head":
        return Trunk(backbone)
    if backbone.tail is None:
        raise CompatibilityError(
            f"the last blocks of {backbone.name} are not known: --adapt head leaves them as they are"
        )
    return backbone.below


def builder(backbone: Backbone, adapt: str, classes: int) -> Callable[[], Classifier]:
    """A function that builds what is fitted, its last blocks as they were pretrained and its head anew."""

    def build() -> Classifier:
        if adapt == "head" or backbone.tail is None:
            return Classifier(nn.Identity(), backbone.width, classes)
        tail = copy.deepcopy(backbone.tail)
        for weight in tail.parameters():
            weight.requires_grad_(adapt == "last-blocks" or _is_matrix(weight))
        return Classifier(tail, backbone.width, classes)

    return build


def method_for(adapt: str, named: Named | None, rank: int | None, build: Callable[[], nn.Module]) -> po.Algorithm:
    """The algorithm; where pretrained weights move, with a tenth of its learning rate.

    Raises CompatibilityError: no such method, or another one than low-rank for low-rank changes.
    """
    if adapt == "low-rank":
        if named not in (None, "low-rank"):
            raise CompatibilityError(f"--adapt low-rank is a method of its own: leave --method {named} out")
        with torch.random.fork_rng():
            shapes = {name: w.shape for name, w in build().named_parameters() if w.requires_grad}
        ranks: dict[str, Rank] = {
            name: min(rank or RANK, shape[0], shape[1:].numel())
            for name, shape in shapes.items()
            if name.startswith("tail.")
        }
        return po.LowRankVI({**ranks, "head.*": "normal"}, change=True, learning_rate=po.Cosine(2e-3))
    method = build_method(named or DEFAULT, rank)
    return method if adapt == "head" else _gentle(method)


def prior_for(adapt: str, scale: float, build: Callable[[], nn.Module]) -> po.Prior:
    """Normal, of std `scale` over the root of a weight's fan-in for the head; a fifth of that about what was pretrained."""
    std = {"head.*": scale, "*": CHANGE * scale}
    if adapt != "last-blocks":
        return po.Normal(std, fan_in=True)
    with torch.random.fork_rng():
        start = {name: w.detach() for name, w in build().named_parameters() if w.requires_grad}
    center = {name: w.zero_() if name.startswith("head.") else w for name, w in start.items()}
    return po.Normal(std, fan_in=True, center=center)


def _is_matrix(weight: Tensor) -> bool:
    """Whether a change of low rank is less than the whole: not of vectors, nor of kernels of one channel."""
    return weight.ndim > 1 and min(weight.shape[0], weight.shape[1:].numel()) > RANK and weight.shape[1] > 1


def _gentle(method: Any) -> Any:
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if field.name == "learning_rate" and isinstance(value, po.Cosine):
            changes[field.name] = dataclasses.replace(value, peak=GENTLE * value.peak)
        elif field.name == "learning_rate" and isinstance(value, float):
            changes[field.name] = GENTLE * value
        elif isinstance(value, po.Algorithm):
            changes[field.name] = _gentle(value)
    return dataclasses.replace(method, **changes)
