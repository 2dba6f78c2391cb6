"""What a pass of means and variances is made of, layer by layer and in whole networks, beside the layer's own pass.

    products     of matrices, convolutions
    functions    exponentials, error functions and their like: the moments of activations, softmax
    elementwise  sums, products and moves of tensors as large as the activations or the weights
    calls        what is left of the pass: Python, and the way into torch

Shares of the pass, CPU time, one thread, of the time that operations take together where the clock on each makes that more.
`times_mean` is the pass over the layer's own, the median over turns that both take. Inputs of a layer have a variance, and
so does every weight. Shapes are those of ViT-S/16 and of ResNet-18's second stage; fast and exact rules are those of
`propagation_cost.py`, and so are the networks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.bench.bench import Cell, Limit, Row
from posterity.bench.operations import Kind, OperationClock
from posterity.bench.propagation_cost import EXACT, FAST, NETWORKS, setting
from posterity.prediction.propagation.eager import Propagated
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.prediction.propagation.run import Pass
from posterity.prediction.propagation.settings import Rules
from posterity.prediction.propagation.value import MeanVar
from posterity.random import Random

__all__ = ["LAYERS", "LIMITS", "cells", "claims"]

LIMITS = {"linear_fast_times_mean": Limit(high=5.0), "convolution_fast_times_mean": Limit(high=5.0)}

PARTS = ("products", "functions", "elementwise", "calls")
KINDS: Mapping[Kind, str] = {
    "product": "products",
    "function": "functions",
    "elementwise": "elementwise",
    "noise": "elementwise",
}
TOKENS, PIXELS = (1, 197, 384), (1, 128, 28, 28)
STD = 0.3  # of the inputs, which are standard normal


class Attention(nn.Module):
    """Scaled dot-product attention of six heads on [rows, tokens, width]; queries, keys and values are the input."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (6, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


# a layer, and the shape of its input
LAYERS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (partial(nn.Linear, 384, 384), TOKENS),
    "convolution": (partial(nn.Conv2d, 128, 128, 3, padding=1), PIXELS),
    "layer-norm": (partial(nn.LayerNorm, 384), TOKENS),
    "batch-norm": (partial(nn.BatchNorm2d, 128), PIXELS),
    "relu": (nn.ReLU, TOKENS),
    "gelu": (nn.GELU, TOKENS),
    "silu": (nn.SiLU, TOKENS),
    "max-pool": (partial(nn.MaxPool2d, 2), PIXELS),
    "average-pool": (partial(nn.AvgPool2d, 2), PIXELS),
    "attention": (Attention, TOKENS),
}
RULES: Mapping[str, Rules] = {"fast": FAST, "exact": EXACT}


class Anchored(nn.Module):
    """A layer beside one weight that it does not use: what is inferred may not be nothing."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.classifier = layer, nn.Parameter(torch.zeros(1))

    def forward(self, x: Any) -> Any:
        return {"logits": self.layer(x)}


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """Every layer, and the whole networks."""
    turns = 2 if quick else 15
    found: dict[str, Cell] = {name: partial(_layer, name, quick, turns) for name in LAYERS}
    return found | {f"{name}, whole": partial(_network, name, quick, turns) for name in NETWORKS}


def claims(rows: list[Row]) -> dict[str, float]:
    """Every figure of every row, as LAYER_RULES_FIGURE."""
    return {
        f"{row['layer'].replace('-', '_')}_{row['rules']}_{field}": row[field]
        for row in rows
        for field in ("times_mean", *PARTS)
    }


def _layer(name: str, quick: bool, turns: int) -> list[Row]:
    build, (rows, *shape) = LAYERS[name]
    with Random(0).forked():
        module = Anchored(build()).eval()
    mean = Random(1).normal((rows, *shape))
    return _rows(name, module, mean, Propagated(MeanVar(mean, torch.full_like(mean, STD**2))), turns)


def _network(name: str, quick: bool, turns: int) -> list[Row]:
    size = 32 if quick else 224
    x = Random(1).normal((1, 3, size, size))
    return _rows(name, NETWORKS[name](quick), x, x, turns)


def _rows(name: str, module: nn.Module, mean: Tensor, inputs: Any, turns: int) -> list[Row]:
    """One for each choice of rules."""
    problem, posterior, _ = setting(module)
    values = weight_values(posterior)

    def passed(rules: Rules) -> Tensor:
        return propagate(problem, values, inputs, Pass(rules)).var  # which is not computed before it is asked for

    with torch.inference_mode(), problem.network.session(train=False):
        return [
            {"layer": name, "rules": which, **_profiled(partial(passed, rules), partial(module, mean), turns)}
            for which, rules in RULES.items()
        ]


def _profiled(work: Callable[[], Any], plain: Callable[[], Any], turns: int) -> Row:
    """Both in turns, then the first once more under the clock."""
    seconds: dict[str, list[float]] = {"work": [], "plain": []}
    calls = {"work": work, "plain": plain}
    for one in calls.values():
        one()
    for turn in range(turns):
        for who in sorted(calls, reverse=bool(turn % 2)):
            began = time.process_time()
            calls[who]()
            seconds[who].append(time.process_time() - began)
    clocks = [OperationClock() for _ in range(turns)]
    for clock in clocks:
        with clock:
            work()
    whole = statistics.median(seconds["work"])
    parts = dict.fromkeys(PARTS, 0.0)
    for kind, part in KINDS.items():
        parts[part] += statistics.median(clock.seconds[kind] for clock in clocks)
    parts["calls"] = max(0.0, whole - sum(parts.values()))
    together = sum(parts.values())
    return {
        "milliseconds": 1e3 * whole,
        "times_mean": statistics.median(a / b for a, b in zip(seconds["work"], seconds["plain"])),
        **{part: each / together for part, each in parts.items()},
        "operations": clocks[0].calls,
        "turns": turns,
    }
