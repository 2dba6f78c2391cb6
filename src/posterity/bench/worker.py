"""One contestant in a process of its own, timed or weighed by the process that started it.

    python worker.py MODULE CONTESTANT NETWORK ROWS         e.g. peers adamw 784-1536-1536-1536-10 256

NETWORK is the widths of a perceptron, or "resnet-101" or "vit-l-32" (about 305M weights) at 224x224 pixels, random weights.

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
CLASSES = {i: str(i) for i in range(10)}  # of the large networks
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


class Logits(nn.Module):
    """A network of transformers that gives its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        """[rows, 3, 224, 224] -> [rows, classes]."""
        return self.model(pixels).logits


def resnet_101() -> nn.Module:
    """ResNet-101, ten classes."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return Logits(ResNetForImageClassification(ResNetConfig(depths=[3, 4, 23, 3], id2label=CLASSES)))


def vit_l_32() -> nn.Module:
    """ViT-L/32, ten classes."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        patch_size=32,
        id2label=CLASSES,
    )
    return Logits(ViTForImageClassification(config))


LARGE = {"resnet-101": resnet_101, "vit-l-32": vit_l_32}


def main(module: str, contestant: str, network: str, rows: str) -> None:
    """Serve one contestant until standard input ends."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    builder: Builder = import_module(module).CONTESTANTS[contestant]
    _contest(builder, "3-5-2", 7)[0]()  # loads its code, which is not its memory
    gc.collect()
    step, opening = _contest(builder, network, int(rows))
    for _ in range(WARM_UP):
        step()
    _say(opening)
    for line in sys.stdin:
        steps = int(line)
        began = time.process_time()
        for _ in range(steps):
            step()
        _say({"seconds": (time.process_time() - began) / steps, "peak": peak()})


def _contest(builder: Builder, network: str, rows: int) -> tuple[Step, dict[str, int]]:
    """A step on random data, and what is resident with the network and one batch loaded."""
    if network in LARGE:
        net, inputs, targets = LARGE[network](), torch.randn(rows, 3, 224, 224), torch.randint(len(CLASSES), (rows,))
    else:
        widths = [int(width) for width in network.split("-")]
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
