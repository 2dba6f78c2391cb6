"""What the step of each algorithm is made of, beside a step of SGD and of AdamW in a plain loop on the same batch.

    gradient  inside the problem: forward, backward, and putting the weights in
    products  of matrices, and factorisations, outside of it
    noise     drawing normals, outside of it
    calls     what is left of a step of the same layers made narrow: Python, and the way into torch
    update    the rest: what the elementwise arithmetic on trees as large as the weights takes

Shares of the step, CPU time, one thread, medians over turns that all take within one process. `narrow_times_adamw` is the
ratio on the narrow layers, `narrow_calls_times_adamw` that of the functions that Python calls there. `bytes_per_weight` is
what the operations of the update read and write, `gigabytes_per_second` that over its time, `of_copy` as a share of what
copying a tree reaches in the same run. `best_times_sgd` is a step of only its gradients (its own, or a plain loop's where
those are quicker), its normals as fast as torch draws them, and every number of its state that changes read and written
once, as fast as a copy.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from posterity.bench.bench import Cell, Limit, Row
from posterity.bench.operations import OperationClock
from posterity.bench.profiled_methods import LARGE, SMALL_ONLY
from posterity.bench.watched import NETWORKS, Setting, WatchedStep, plain_steps, watched_step
from posterity.bench.worker import Step
from posterity.errors import PosterityWarning
from posterity.inference.algorithm import Algorithm
from posterity.random import Random
from posterity.tree import CHUNK

__all__ = ["LIMITS", "cells", "claims", "profiled"]

# a regression of a method's arithmetic or of its calls shows here first
LIMITS = {
    "map_times_adamw": Limit(high=1.5),
    "mean_field_times_adamw": Limit(high=2.0),
    "ivon_times_adamw": Limit(high=1.8),
    "score_vi_times_adamw": Limit(high=1.9),
    "low_rank_times_adamw": Limit(high=0.5),
}

STEPS, BRIEF = 5, 0.1  # steps in a turn: a lagged one has a period of five; one, where five take longer than so many s
PARTS = ("gradient", "products", "noise", "calls", "update")


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """Every method on both networks; those that are for few weights on a small one."""
    turns = 2 if quick else 9
    found: dict[str, Cell] = {}
    for network, methods in (("perceptron", LARGE), ("cnn", LARGE), ("small", SMALL_ONLY)):
        setting = NETWORKS[network]
        if quick:
            setting = setting._replace(net=setting.narrow, row=setting.narrow_row)
        for name, method in methods.items():
            found[f"{network}, {name}"] = partial(_cell, network, name, method, setting, turns)
    return found


def claims(rows: list[Row]) -> dict[str, float]:
    """Every figure of every row, as METHOD_FIGURE, on the convolutional network METHOD_cnn_FIGURE."""
    shown = (
        "times_sgd",
        "times_adamw",
        "narrow_times_adamw",
        "narrow_calls_times_adamw",
        "best_times_sgd",
        *PARTS,
        "bytes_per_weight",
        "of_copy",
    )
    found: dict[str, float] = {}
    for row in rows:
        name = row["method"].replace("-", "_") + "_cnn" * (row["network"] == "cnn")
        found |= {f"{name}_{field}": row[field] for field in shown}
    wide = [row for row in rows if row["network"] == "perceptron"]
    for field in ("copy_gigabytes_per_second", "nanoseconds_per_normal"):
        found[field] = statistics.median(row[field] for row in wide)
    return found


def _cell(network: str, name: str, method: Algorithm, setting: Setting, turns: int) -> list[Row]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosterityWarning)
        found = profiled(method, setting, turns)
    return [{"network": network, "method": name, **found}]


def profiled(method: Algorithm, setting: Setting, turns: int) -> Row:
    """The figures of one method."""
    with watched_step(method, setting.narrow, setting.narrow_row) as narrow:
        plain_narrow = plain_steps(setting.narrow, setting.narrow_row)
        brief = _turns(narrow, plain_narrow, turns)
        counts = _python_calls(narrow.step) / _python_calls(plain_narrow["adamw"])
        calls = statistics.median(whole - inside for whole, inside in brief["ours"])
    with watched_step(method, setting.net, setting.row) as ours:
        times = _turns(ours, plain_steps(setting.net, setting.row), turns)
        seen = _seen(ours)
        weights = sum(leaf.numel() for leaf in ours.problem.network.trainable.values())
    copy, normal = _copy_seconds(weights), _normal_seconds(weights)  # of a number
    plain = {who: statistics.median(seconds for seconds, _ in each) for who, each in times.items()}
    whole, gradient = plain["ours"], statistics.median(inside for _, inside in times["ours"])
    parts, left = {}, whole
    for part, seconds in zip(PARTS, (gradient, seen["products"], seen["noise"], calls, whole)):
        parts[part] = min(seconds, left)  # the update is what the others leave
        left -= parts[part]
    traffic = seen["bytes"] / parts["update"] if parts["update"] > 0 else 0.0
    least = min(gradient, seen["gradients"] * plain["gradient"]) + seen["drawn"] * normal + copy * seen["changed"]
    return {
        "weights": weights,
        "milliseconds": 1e3 * whole,
        "times_sgd": _ratio(times, "sgd"),
        "times_adamw": _ratio(times, "adamw"),
        "narrow_times_adamw": _ratio(brief, "adamw"),
        "narrow_calls_times_adamw": counts,
        **{part: seconds / whole for part, seconds in parts.items()},
        "bound": max(parts, key=parts.__getitem__),
        "gradients": seen["gradients"],
        "normals_per_weight": seen["drawn"] / weights,
        "state_per_weight": seen["changed"] / weights,
        "bytes_per_weight": seen["bytes"] / weights,
        "gigabytes_per_second": traffic / 1e9,
        "copy_gigabytes_per_second": 8e-9 / copy,
        "of_copy": traffic * copy / 8,
        "nanoseconds_per_normal": 1e9 * normal,
        "best_times_sgd": least / plain["sgd"],
        "turns": turns,
    }


def _python_calls(step: Step) -> int:
    """Functions that Python calls in a step: the same on every machine, and however busy it is."""
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        for _ in range(STEPS):
            step()
    finally:
        sys.setprofile(None)
    return count


def _ratio(times: Mapping[str, list[tuple[float, float]]], other: str) -> float:
    return statistics.median(own / its for (own, _), (its, _) in zip(times["ours"], times[other]))


def _turns(ours: WatchedStep, others: Mapping[str, Step], turns: int) -> dict[str, list[tuple[float, float]]]:
    """CPU seconds of a step of each, and those in our problem, turn by turn, in another order each."""
    steps = {"ours": ours.step, **others}
    order = list(steps)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for step in steps.values():
        step()
        step()
    count = STEPS if _seconds(ours.step) * STEPS < BRIEF else 1
    for turn in range(turns):
        first = turn % len(order)
        for name in [*order[first:], *order[:first]]:
            inside, began = ours.problem.seconds, time.process_time()
            for _ in range(count):
                steps[name]()
            whole, inside = time.process_time() - began, ours.problem.seconds - inside
            found[name].append((whole / count, inside / count))
    return found


def _seen(ours: WatchedStep) -> dict[str, float]:
    """Per step: seconds, numbers drawn and bytes outside of the problem; gradients; numbers of the state that change."""
    before = [leaf.clone() for leaf in _numbers(ours.state())]
    ours.problem.gradients, ours.problem.clock = 0, OperationClock()
    with ours.problem.clock as clock:
        for _ in range(STEPS):
            ours.step()
    ours.problem.clock = None
    changed = sum(new.numel() for old, new in zip(before, _numbers(ours.state())) if not old.equal(new))
    each = {
        "products": clock.seconds["product"],
        "noise": clock.seconds["noise"],
        "drawn": clock.drawn,
        "bytes": clock.bytes,
    }
    return {
        **{key: value / STEPS for key, value in each.items()},
        "gradients": ours.problem.gradients / STEPS,
        "changed": changed,
    }


def _numbers(state: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]


def _copy_seconds(numbers: int) -> float:
    """Of a number read and written, in a tree of so many."""
    source, target = torch.zeros(numbers), torch.zeros(numbers)
    return statistics.median(_seconds(lambda: target.copy_(source)) for _ in range(25)) / numbers


def _normal_seconds(numbers: int) -> float:
    """Of a standard normal, drawn by chunks as the algorithms do."""
    chunk, generator = torch.empty(min(numbers, CHUNK)), Random(0).generator()
    return statistics.median(_seconds(lambda: chunk.normal_(generator=generator)) for _ in range(25)) / chunk.numel()


def _seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
