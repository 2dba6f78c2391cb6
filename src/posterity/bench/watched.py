"""Steps to be profiled: of an algorithm in its last stage, on a problem that is watched, and of plain torch loops."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.bench import peers
from posterity.bench.operations import OperationClock
from posterity.bench.worker import DATA_SIZE, Step, perceptron
from posterity.inference.algorithm import Algorithm, Plan
from posterity.inference.mc_dropout import MCDropout
from posterity.problem.problem import NetworkProblem
from posterity.random import Random

__all__ = ["NETWORKS", "Setting", "Watched", "WatchedStep", "plain_steps", "watched_step"]

CLASSES = 10
PLAN = Plan(128, 100_000, 1000)


class Setting(NamedTuple):
    """A network, the same layers made narrow, and the shape of a row."""

    net: Callable[[], nn.Module]
    narrow: Callable[[], nn.Module]
    row: tuple[int, ...]
    narrow_row: tuple[int, ...]


def convolutions(channels: int, width: int) -> nn.Module:
    """Two convolutions and a Linear on [rows, 1, width, width]."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * channels * (width // 4) ** 2, CLASSES),
    )  # fmt: skip


WIDE, NARROW, SMALL = [256, 640, 640, 640, CLASSES], [16, 40, 40, 40, CLASSES], [8, 16, 16, CLASSES]
NETWORKS: Mapping[str, Setting] = {
    "perceptron": Setting(partial(perceptron, WIDE), partial(perceptron, NARROW), (WIDE[0],), (NARROW[0],)),
    "cnn": Setting(partial(convolutions, 16, 28), partial(convolutions, 8, 4), (1, 28, 28), (1, 4, 4)),
    "small": Setting(partial(perceptron, SMALL), partial(perceptron, [3, 3, 3, CLASSES]), (SMALL[0],), (3,)),
}


class Watched(NetworkProblem):
    """A problem that adds up the CPU time that is spent in it, and the gradients that it gives."""

    seconds = 0.0
    gradients = 0.0
    clock: OperationClock | None = None  # is stopped meanwhile
    _inside = False

    @contextmanager
    def _watched(self, gradients: float) -> Iterator[None]:
        if self._inside:
            yield
            return
        self._inside = True
        if self.clock is not None:
            self.clock.running = False
        began = time.process_time()
        try:
            yield
        finally:
            self.seconds += time.process_time() - began
            self.gradients += gradients
            self._inside = False
            if self.clock is not None:
                self.clock.running = True

    def nll(self, *args: Any) -> Any:
        with self._watched(1):
            return super().nll(*args)

    def nlls(self, thetas: Any, batches: Any, randoms: Any) -> Any:
        with self._watched(len(batches)):
            return super().nlls(thetas, batches, randoms)

    def hvp(self, *args: Any) -> Any:
        with self._watched(2):  # a gradient, and the gradient of its product with the vector
            return super().hvp(*args)

    def outputs(self, *args: Any, **options: Any) -> Any:
        with self._watched(1 / 3):  # a forward is one product a layer, a gradient three
            return super().outputs(*args, **options)


class WatchedStep(NamedTuple):
    """An algorithm in its last stage: a step, its problem, and the state as it is now."""

    step: Step
    problem: Watched
    state: Callable[[], Any]


def _seeded(build: Callable[[], nn.Module], row: tuple[int, ...]) -> tuple[nn.Module, Tensor, Tensor]:
    with Random(0).forked():
        net = build()
    random = Random(0).fold("rows")
    return net, random.normal((PLAN.batch_size, *row)), torch.arange(PLAN.batch_size) % CLASSES


@contextmanager
def watched_step(method: Algorithm, build: Callable[[], nn.Module], row: tuple[int, ...]) -> Iterator[WatchedStep]:
    """Inside the network's session as `fit` opens it; stages before the last take two steps."""
    net, x, y = _seeded(build, row)
    if isinstance(method, MCDropout):
        net = nn.Sequential(net[:-1], nn.Dropout(0.1), net[-1])  # type: ignore[index]
    problem, random = Watched(net, "categorical", 1.0, data_size=DATA_SIZE), Random(0)
    batch = problem.read((x, y))
    problem.probe(batch, random)
    starts: Any = problem.starts(method.members, method.member_init, random)
    with problem.network.session(train=True):
        *before, (last, plan) = method.stages(PLAN)
        for stage, one in before:
            state = stage.init(problem, starts, random, one)
            for _ in range(2):
                state, _ = stage.step(problem, state, [batch] * stage.members, random)
            starts = stage.snapshots(state)
        state = last.init(problem, starts, random, plan)

        def step() -> None:
            nonlocal state
            state, _ = last.step(problem, state, [batch] * last.members, random)

        yield WatchedStep(step, problem, lambda: state)


def plain_steps(build: Callable[[], nn.Module], row: tuple[int, ...]) -> dict[str, Step]:
    """Torch's own steps, and the gradient alone."""
    net, x, y = _seeded(build, row)

    def gradient() -> None:
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()

    loops = {name: getattr(peers, name)(*_seeded(build, row), DATA_SIZE) for name in ("sgd", "adamw")}
    return {"gradient": gradient, **loops}
