"""What a factored weight saves: one Linear, forward and backward, against the same Linear with a dense weight.

    dense     x W^T + b             2 B m n multiplications forward, twice that backward
    factored  (x right) left^T + b  2 B r (m + n), and as much again per gradient

At m = n = 1024, r = 8 the products shrink 64-fold; what is left is memory traffic of the activations and calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from posterity.bench.bench import Cell, Limit, Row
from posterity.problem.factored import Factored

__all__ = ["LIMITS", "cells", "claims", "measure"]

LIMITS = {"factored_time": Limit(high=0.2)}

ROWS, WIDTH, RANK, PASSES = 128, 1024, 8, 10


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """One: the layer."""
    return {"linear": lambda: [dict(measure(2 if quick else 21))]}


def claims(rows: Sequence[Row]) -> dict[str, float]:
    """Times over that of the dense layer."""
    return {"factored_time": rows[0]["ratio"], "formed_time": rows[0]["formed_ratio"]}


def measure(repeats: int = 7) -> dict[str, float]:
    """CPU time of a 1024x1024 Linear at 128 rows, rank 8, forward and backward to input, bias and weight (or factors).

    One thread, process CPU time, ten passes per timing, the minimum over `repeats` interleaved timings; milliseconds
    per pass. `ratio` is factored over dense; `formed_ratio` is the dense product of the factors over dense, what the
    carrier avoids. The new carrier of each pass is inside the timing.
    """
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(WIDTH, WIDTH)
    inputs = torch.randn(ROWS, WIDTH, generator=generator).requires_grad_()
    seed = torch.randn(ROWS, WIDTH, generator=generator)
    left, right = (torch.randn(WIDTH, RANK, generator=generator).requires_grad_() for _ in range(2))

    def gradients(weight: Tensor, wanted: tuple[Tensor, ...]) -> None:
        outputs = functional_call(layer, {"weight": weight}, (inputs,))
        torch.autograd.grad(outputs, (inputs, *wanted), seed)

    bias = layer.bias
    passes: dict[str, Callable[[], None]] = {
        "dense": lambda: gradients(layer.weight, (bias, layer.weight)),
        "factored": lambda: gradients(Factored(left, right), (bias, left, right)),
        "formed": lambda: gradients(left @ right.t(), (bias, left, right)),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for step in passes.values():
            step()
        seconds = {name: float("inf") for name in passes}
        for _ in range(repeats):
            for name, step in passes.items():
                seconds[name] = min(seconds[name], _cpu_seconds(step))
    finally:
        torch.set_num_threads(threads)
    return {
        **{f"{name}_ms": 1e3 * value for name, value in seconds.items()},
        "ratio": seconds["factored"] / seconds["dense"],
        "formed_ratio": seconds["formed"] / seconds["dense"],
    }


def _cpu_seconds(step: Callable[[], None]) -> float:
    start = time.process_time()
    for _ in range(PASSES):
        step()
    return (time.process_time() - start) / PASSES
