"""What every rank does for `scaling.py`: `torchrun ... -m posterity.bench.scaling_ranks WORK OPTIONS OUT`.

    one     rank 0 does the work alone, as a process that has no other, and rank 1 waits
    both    every rank does all of that work at the same time and says nothing to the other: what the machine has for two
    two     the ranks share the work

They take turns within one launch, in another order each; a turn lasts until the last rank is done. Rank 0 writes the rows.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posterity.bench.bench import Row
from posterity.bench.worker import peak, perceptron, resident
from posterity.evaluation.evaluate import evaluate
from posterity.group import ALONE, Group, torchrun
from posterity.inference.algorithm import Algorithm, Plan
from posterity.inference.ensemble import DeepEnsemble
from posterity.inference.ivon import IVON
from posterity.inference.map import MAP
from posterity.inference.mean_field import MeanFieldVI
from posterity.inference.sghmc import SGHMC
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.training.fit import fit

__all__ = ["METHODS", "main"]

METHODS: Mapping[str, Algorithm] = {"map": MAP(), "mean-field": MeanFieldVI(), "ivon": IVON()}
SHARED: Mapping[str, Algorithm] = {
    "ensemble": DeepEnsemble(4),
    "chains": SGHMC(members=4, warmup=2, draws_per_chain=2, thin=2, step_size=1e-6, check_stability=False),
}
PLAN = Plan(256, 100_000, 1000)
WORDS, LENGTH, CLASSES = 4000, 32, 10


class Reader(nn.Module):
    """[rows, LENGTH] words -> [rows, CLASSES]: a transformer encoder of four layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        """The logits of the mean over the words."""
        return self.head(self.body(self.embed(words)).mean(1))


def built(network: str, rows: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, "encoder-WIDTH" or the widths of a perceptron, and so many random rows; the same on every rank."""
    kind, *numbers = network.split("-")
    random = Random(0)
    with random.forked():
        net = Reader(int(numbers[0])) if kind == "encoder" else perceptron([int(n) for n in (kind, *numbers)])
    if kind == "encoder":
        inputs = torch.randint(WORDS, (rows, LENGTH), generator=random.fold("words").generator())
    else:
        inputs = random.fold("inputs").normal((rows, int(kind)))
    return net, inputs, torch.arange(rows) % CLASSES


# --- turns -----------------------------------------------------------------------------------------------------------


def _turns(group: Group, works: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of "one", "both" and "two", turn by turn; each once before, unseen."""
    order = list(works)
    found: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(-1, repeats):
        first = max(repeat, 0) % len(order)
        for name in [*order[first:], *order[:first]]:
            group.wait()
            began = time.perf_counter()
            if name != "one" or group.rank == 0:
                works[name]()
            group.wait()
            if repeat >= 0:
                found[name].append(time.perf_counter() - began)
    return found


def _ratios(seconds: Mapping[str, list[float]], steps: int = 1) -> Row:
    """Medians, and those of the ratios within a turn."""
    one, both, two = (seconds[name] for name in ("one", "both", "two"))
    speedup = statistics.median(a / b for a, b in zip(one, two))
    return {
        **{f"{name}_ms": 1e3 * statistics.median(each) / steps for name, each in seconds.items()},
        "speedup": speedup,
        "efficiency": speedup / 2,
        "machine": statistics.median(2 * a / b for a, b in zip(one, both)),
        "of_machine": statistics.median(b / (2 * a) for a, b in zip(two, both)),
        "turns": len(one),
    }


# --- steps on shared rows --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Timed(Group):
    """The ranks, and how long this one was at their means, waiting for the others in it."""

    spent: list[float] = field(default_factory=list, compare=False)

    def mean_(self, *args: Any) -> None:
        began = time.perf_counter()
        super().mean_(*args)
        self.spent.append(time.perf_counter() - began)


class _Clocked(NetworkProblem):
    """Adds up the seconds that are spent in it."""

    seconds = 0.0

    def nlls(self, *args: Any) -> Any:
        began = time.perf_counter()
        found = super().nlls(*args)
        self.seconds += time.perf_counter() - began
        return found


class _Steps:
    """Steps of one algorithm on one batch, on the rows of `group`; where their time goes, per step of each turn."""

    def __init__(self, method: Algorithm, network: str, batch: int, steps: int, group: Group) -> None:
        net, inputs, targets = built(network, batch)
        self.method, self.steps, self.random = method, steps, Random(0)
        self.group = _Timed(group.rank, group.size)
        self.problem = _Clocked(net, "categorical", data_size=60_000)
        self.batch = self.problem.read((inputs, targets))
        self.problem.probe(self.batch, self.random)
        self.problem.group = self.group
        self.state = method.init(self.problem, self.problem.start(), self.random, PLAN)
        self.weights = sum(leaf.numel() for leaf in net.parameters())
        self.parts: dict[str, list[dict[str, float]]] = {}

    def __call__(self, mode: str) -> None:
        self.problem.seconds = 0.0
        self.group.spent.clear()
        began = time.perf_counter()
        with self.problem.network.session(train=True):
            for _ in range(self.steps):
                self.state, _ = self.method.step(self.problem, self.state, (self.batch,), self.random)
        whole, inside, reduce = time.perf_counter() - began, self.problem.seconds, sum(self.group.spent)
        parts = {"compute": inside - reduce, "reduce": reduce, "update": whole - inside}
        turn = {f"{mode}_{name}_ms": 1e3 * seconds / self.steps for name, seconds in parts.items()}
        self.parts.setdefault(mode, []).append(turn)

    def medians(self, mode: str) -> dict[str, float]:
        """Of the parts of a step in the turns after the first."""
        turns = self.parts[mode][1:]
        return {part: statistics.median(each[part] for each in turns) for part in turns[0]}


def rows(group: Group, network: str, batch: int, steps: int, repeats: int, methods: list[str]) -> list[Row]:
    """Steps of every method, alone and on shared rows."""
    found = []
    for name in methods:
        alone, shared = (_Steps(METHODS[name], network, batch, steps, who) for who in (ALONE, group))
        works = {name: partial(who, name) for name, who in (("one", alone), ("both", alone), ("two", shared))}
        seconds = _turns(group, works, repeats)
        parts = {**alone.medians("one"), **shared.medians("two")} if group.rank == 0 else {}
        about = {"method": name, "weights": shared.weights, "batch_size": batch}
        found.append({**about, **_ratios(seconds, steps), **parts})
    return found


# --- whole fits, evaluations, what is sent, what is held -------------------------------------------------------------


def members(group: Group, network: str, batch: int, steps: int, repeats: int, methods: list[str]) -> list[Row]:
    """Whole fits whose members or chains are shared."""
    found = []
    for name in methods:
        net, inputs, targets = built(network, 4 * batch)

        whole = partial(fit, net, (inputs, targets), method=SHARED[name], steps=steps, batch_size=batch, progress=False)
        works = {"one": whole, "both": whole, "two": partial(whole, distribute="members")}
        seconds = _turns(group, works, repeats)
        found.append({"method": name, "batch_size": batch, **_ratios(seconds)})
    return found


def evaluation(group: Group, network: str, rows: int, draws: int, repeats: int) -> list[Row]:
    """An evaluation whose batches are shared, its figures included."""
    net, inputs, targets = built(network, rows)
    few = inputs[:512], targets[:512]
    model = fit(net, few, method=MeanFieldVI(), steps=2, batch_size=256, progress=False)
    whole = partial(evaluate, model, (inputs, targets), draws=draws, batch_size=500)
    seconds = _turns(group, {"one": whole, "both": whole, "two": partial(whole, distribute=True)}, repeats)
    return [{"method": "mean-field", "rows": rows, "draws": draws, **_ratios(seconds)}]


def link(group: Group, megabytes: list[int], repeats: int) -> list[Row]:
    """Means over the ranks of trees of several sizes; a copy in memory, by one process and by both."""
    found: list[Row] = []
    for size in megabytes:
        leaf = torch.ones(1, size * 250_000)
        seconds = _seconds(group, partial(group.mean_, [leaf], torch.ones(1)), repeats)
        found.append({"what": "all-reduce", "megabytes": size, "ms": 1e3 * seconds, "gbs": 1e-3 * size / seconds})
    source, target = torch.ones(20_000_000), torch.zeros(20_000_000)
    for what, ranks in (("copy", 1), ("copy by both", group.size)):
        seconds = _seconds(group, partial(target.copy_, source) if group.rank < ranks else int, repeats)
        found.append({"what": what, "megabytes": 80, "ms": 1e3 * seconds, "gbs": 0.16 * ranks / seconds})
    return found


def _seconds(group: Group, work: Callable[[], Any], repeats: int) -> float:
    """The median on this rank, after two to warm up; the ranks start together."""
    found = []
    for _ in range(repeats + 2):
        group.wait()
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found[2:])


def memory(group: Group, network: str, batch: int, method: str) -> list[Row]:
    """The most that a rank holds above what it did with its code loaded: the largest of all ranks."""

    def run(network: str) -> None:
        net, inputs, targets = built(network, 2 * batch)
        how = None if group.size == 1 else "members" if method in SHARED else "rows"
        chosen = {**METHODS, **SHARED}[method]
        fit(net, (inputs, targets), method=chosen, steps=2, batch_size=batch, progress=False, distribute=how)

    run("784-16-10")
    before = resident()
    run(network)
    most = max(group.every(peak() - before))
    return [{"method": method, "ranks": group.size, "mebibytes": most / 2**20}]


WORKS: Mapping[str, Callable[..., list[Row]]] = {
    "rows": rows, "members": members, "evaluation": evaluation, "link": link, "memory": memory,
}  # fmt: skip


def main(work: str, options: str, out: str) -> None:
    """Do a work on this rank."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with torchrun(timedelta(minutes=5)) as group:
        found = WORKS[work](group, **json.loads(options))
        if group.rank == 0:
            Path(out).write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
