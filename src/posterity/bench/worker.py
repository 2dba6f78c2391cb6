"""One contestant in a process of its own, timed or weighed by the process that started it.

    python worker.py MODULE CONTESTANT WIDTHS ROWS         e.g. peers adamw 784-1536-1536-1536-10 256

`MODULE.CONTESTANTS[CONTESTANT](net, inputs, targets, data_size)` returns a step. After two steps to warm up the worker
says what it holds; a line `n` on its standard input asks for n more steps, answered by their CPU seconds and the peak so
far. It imports torch and MODULE, nothing else: a peer's environment runs this file by its path.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

__all__ = ["Builder", "Step", "main", "perceptron"]

Step: TypeAlias = Callable[[], None]
Builder: TypeAlias = Callable[[nn.Module, Tensor, Tensor, int], Step]

DATA_SIZE = 60_000  # N: what priors and KL terms are weighed against
WARM_UP = 2  # steps: the first allocates what the others reuse


def perceptron(widths: list[int]) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def resident() -> int:
    """Bytes of this process in memory now."""
    return _status("VmRSS")


def peak() -> int:
    """The most bytes that this process had in memory so far.

    Not `ru_maxrss`, which Linux hands on from the process that started this one.
    """
    return _status("VmHWM")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}: memory is measured on Linux only")


def main(module: str, contestant: str, widths: str, rows: str) -> None:
    """Serve one contestant until standard input ends."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    builder: Builder = import_module(module).CONTESTANTS[contestant]
    _contest(builder, [3, 5, 2], 7)[0]()  # loads its code, which is not its memory
    gc.collect()
    step, opening = _contest(builder, [int(width) for width in widths.split("-")], int(rows))
    for _ in range(WARM_UP):
        step()
    _say(opening)
    for line in sys.stdin:
        steps = int(line)
        began = time.process_time()
        for _ in range(steps):
            step()
        _say({"seconds": (time.process_time() - began) / steps, "peak": peak()})


def _contest(builder: Builder, widths: list[int], rows: int) -> tuple[Step, dict[str, int]]:
    """A step on random data, and what is resident with the network and one batch loaded."""
    net = perceptron(widths)
    inputs, targets = torch.randn(rows, widths[0]), torch.randint(widths[-1], (rows,))
    weights = sum(leaf.numel() for leaf in net.parameters())  # before: a peer may change its network
    opening = {"resident": resident(), "weights": weights}
    return builder(net, inputs, targets, DATA_SIZE), opening


def _say(answer: Mapping[str, float]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
