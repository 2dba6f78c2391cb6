"""What chains side by side save, and what their draws cost to keep and to predict from.

    speedup   CPU time of one SGHMC step of all K chains in a loop, / by another path; minima over turns taken in one run

The perceptron is 12-16-16-2 with a heteroscedastic likelihood, B = 128. The draws are a synthetic chain: 8 trained members,
each scattered by normals of std 0.01, as many for each. Predictions run in processes of their own.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from posterity.bench.bench import Cell, Limit, Row
from posterity.bench.worker import peak, perceptron, resident
from posterity.inference.algorithm import Plan
from posterity.inference.ensemble import Ensemble
from posterity.inference.map import MAP
from posterity.inference.schedule import Cosine
from posterity.inference.sghmc import SGHMC
from posterity.model import BayesianModel, load
from posterity.posterior.draws import Streamed
from posterity.posterior.shards import ShardReader, ShardWriter, compact
from posterity.problem.likelihoods import Categorical, Heteroscedastic, Likelihood
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.training.fit import fit
from posterity.tree import Tree

__all__ = ["LIMITS", "cells", "claims", "main"]

LIMITS = {
    "speedup_8": Limit(low=5.0),
    "speedup_32": Limit(low=10.0),
    "vmap_speedup_8": Limit(low=2.0),
    "vmap_speedup_32": Limit(low=6.0),
    "speedup_cnn": Limit(low=0.98),
    "fp16_lppd_error": Limit(high=1e-4),
}

WIDTHS, ROWS = [12, 16, 16, 2], 128
MEMBERS = 8  # whose chains are scattered
SCATTER = 1e-2
TRAIN, TEST = 2000, 3476


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """The steps of a perceptron and of a convolutional network, the draws in half precision, the predictions."""
    turns, draws = (2, (24, 240)) if quick else (41, (240, 2400))
    return {
        "perceptron, K=8": partial(_perceptrons, 8, 10, turns),
        "perceptron, K=32": partial(_perceptrons, 32, 3, turns),
        "CNN 28x28, K=8": partial(_convolutions, 8, 1, turns),
        "float16": partial(_halves, draws[1], quick),
        "classes": partial(_predictions, "classes", draws, quick),
        "numbers": partial(_predictions, "numbers", draws, quick),
    }


def claims(rows: list[Row]) -> dict[str, float]:
    """Speed-ups over the loop; nats by which float16 moves the LPPD; seconds and MiB of a prediction from all draws."""
    speed = {(row["network"], row["path"], row["members"]): row["speedup"] for row in rows if "speedup" in row}
    predicted = [row for row in rows if "kind" in row]
    most = max(row["draws"] for row in predicted)
    return {
        "speedup_8": speed["perceptron", "flat", 8],
        "speedup_32": speed["perceptron", "flat", 32],
        "vmap_speedup_8": speed["perceptron", "vmap", 8],
        "vmap_speedup_32": speed["perceptron", "vmap", 32],
        "speedup_cnn": speed["cnn", "auto", 8],
        "fp16_lppd_error": next(row["lppd_error"] for row in rows if "lppd_error" in row),
        **{f"predict_{row['kind']}_seconds": row["predict_seconds"] for row in predicted if row["draws"] == most},
        **{
            f"predict_{row['kind']}_mebibytes" + "_of_a_tenth" * (row["draws"] < most): row["predict_mebibytes"]
            for row in predicted
        },
    }


# --- steps -------------------------------------------------------------------------------------------------------------


def _perceptrons(members: int, steps: int, turns: int) -> list[Row]:
    x, y = _numbers(ROWS * 4)
    return _race(
        "perceptron", perceptron(WIDTHS), _likelihood(y), (x, y), ROWS, ("flat", "vmap"), members, steps, turns
    )


def _convolutions(members: int, steps: int, turns: int) -> list[Row]:
    random = Random(0).fold("pictures")
    x, y = random.normal((128, 1, 28, 28)), torch.arange(128) % 10
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 7 * 7, 10),
    )  # fmt: skip
    likelihood = Categorical(classes=tuple(range(10)))
    return _race("cnn", net, likelihood, (x, y), 64, ("auto", "vmap"), members, steps, turns)


def _race(
    name: str, net: nn.Module, likelihood: Likelihood, data: tuple[Tensor, Tensor], rows: int,
    paths: Sequence[str], members: int, steps: int, turns: int,
) -> list[Row]:  # fmt: skip
    """A row per path; each turn has `steps` steps of every path, in another order."""
    contestants = {path: _chains(net, likelihood, data, rows, path, members) for path in ("loop", *paths)}
    seconds: dict[str, list[float]] = {path: [] for path in contestants}
    order = list(contestants)
    for path in order:
        contestants[path](2)  # the first step allocates what the others reuse
    for turn in range(turns):
        first = turn % len(order)
        for path in [*order[first:], *order[:first]]:
            seconds[path].append(contestants[path](steps) / steps)
    return [
        {
            "network": name,
            "path": path,
            "members": members,
            "batch_size": rows,
            "milliseconds": 1e3 * min(each),
            "speedup": min(seconds["loop"]) / min(each),
            "median_speedup": statistics.median(a / b for a, b in zip(seconds["loop"], each)),
            "turns": turns,
        }
        for path, each in seconds.items()
    ]


def _chains(
    net: nn.Module, likelihood: Likelihood, data: tuple[Tensor, Tensor], rows: int, path: str, members: int
) -> Callable[[int], float]:
    """So many steps of K chains, each on a batch of its own, inside the network's session as `fit` opens it: CPU seconds."""
    x, y = data
    problem = NetworkProblem(net, likelihood, data_size=10_000, side_by_side=path)
    random = Random(0)
    problem.probe((x[:rows], y[:rows]), random)
    batches = []
    for k in range(members):
        chosen = torch.randperm(len(x), generator=random.fold("rows").fold(k).generator())[:rows]
        batches.append(problem.read((x[chosen], y[chosen])))
    method = SGHMC(mass="identity", members=members, noise_correction=False, step_size=1e-6, check_stability=False)
    state = method.init(problem, problem.starts(members, "reset", random), random, Plan(rows, 1_000_000, 1000))

    def take(steps: int) -> float:
        nonlocal state
        with problem.network.session(train=True):
            began = time.process_time()
            for _ in range(steps):
                state, _ = method.step(problem, state, batches, random)
            return time.process_time() - began

    return take


# --- draws -------------------------------------------------------------------------------------------------------------


def _numbers(rows: int) -> tuple[Tensor, Tensor]:
    """A bent plane with noise that grows along the first input."""
    random = Random(1).fold("numbers")
    x, noise = random.fold("x").normal((rows, WIDTHS[0])), random.fold("noise").normal((rows,))
    return x, torch.sin(x[:, 0] + x[:, 1]) + 0.5 * x[:, 2] + (0.1 + 0.2 * torch.sigmoid(x[:, 0])) * noise


def _likelihood(y: Tensor) -> Heteroscedastic:
    return Heteroscedastic().surveyed([y])


@cache
def _trained(quick: bool) -> BayesianModel:
    x, y = _numbers(TRAIN + TEST)
    with Random(0).forked():
        net = perceptron(WIDTHS)
    method = Ensemble(MAP(learning_rate=Cosine(1e-2)), MEMBERS)
    data = x[:TRAIN], y[:TRAIN]
    return fit(net, data, _likelihood(y[:TRAIN]), method, epochs=3 if quick else 60, batch_size=ROWS, progress=False)


def _scattered(model: BayesianModel, draws: int) -> Iterator[Tree]:
    """The synthetic chains, one member after the other."""
    random = Random(2).fold("chain")
    for k, theta in enumerate(model.posterior.draws(None, random)):
        for i in range(draws // MEMBERS):
            noise = random.fold(k).fold(i).normals(theta)
            yield {name: leaf + SCATTER * noise[name] for name, leaf in theta.items()}


def _halves(draws: int, quick: bool) -> list[Row]:
    """LPPD of the test rows, in standardised units, of the draws and of what shards keep of them."""
    model = _trained(quick)
    x, y = _numbers(TRAIN + TEST)
    full: list[Tensor] = []
    kept: list[Tensor] = []
    halved, numbers = 0, 0
    with torch.inference_mode(), model.problem.network.session(train=False):
        for theta in _scattered(model, draws):
            small = {name: compact(leaf) for name, leaf in theta.items()}
            halved += sum(leaf.numel() for leaf in small.values() if leaf.dtype == torch.float16)
            numbers += sum(leaf.numel() for leaf in small.values())
            for each, tree in ((full, theta), (kept, {name: leaf.float() for name, leaf in small.items()})):
                outputs = model.problem.outputs(tree, x[TRAIN:])
                each.append(model.problem.row_log_probs(tree, outputs, y[TRAIN:]).double())
    one, other = (torch.stack(each) for each in (full, kept))
    lppd, rounded = (float((each.logsumexp(0) - math.log(len(each))).mean()) for each in (one, other))
    return [
        {
            "draws": len(one),
            "lppd": lppd,
            "lppd_kept": rounded,
            "lppd_error": abs(rounded - lppd),
            "largest_move": float((other - one).abs().max()),  # of one row's log density under one draw
            "halved": halved / numbers,  # share of the numbers that are kept in float16
        }
    ]


def _predictions(kind: str, draws: Sequence[int], quick: bool) -> list[Row]:
    """Of the same draws: read as classes, whose running means are all that is kept, or as numbers, a mixture of them all."""
    trained, rows = _trained(quick), []
    likelihood = Categorical(classes=(0, 1)) if kind == "classes" else trained.problem.likelihood
    problem = NetworkProblem(trained.problem.network, likelihood, data_size=TRAIN)
    settings = {**trained.settings, "likelihood": likelihood.to_json()}
    for count in draws:
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            writer = ShardWriter(folder)
            for theta in _scattered(trained, count):
                writer.append(theta)
            shards = writer.close()
            seconds = time.process_time() - began
            size = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
            streamed = Streamed(ShardReader(folder, shards))
            BayesianModel(problem, streamed, settings=settings).save(folder, shards=shards)
            command = [sys.executable, "-c", f"from {__name__} import main; main({folder!r})"]
            answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        measured = {"disk_mebibytes": size / 2**20, "write_seconds": seconds, **answer}
        rows.append({"kind": kind, "draws": count, "rows": TEST, **measured})
    return rows


def main(folder: str) -> None:
    """Predict the test rows from the draws in a folder, and say what it took."""
    torch.set_num_threads(1)
    x, _ = _numbers(TRAIN + TEST)
    model = load(folder, perceptron(WIDTHS))
    model.predict(x[TRAIN:], draws=2)  # loads its code, and allocates what the others reuse
    before, began = resident(), time.process_time()
    pred = model.predict(x[TRAIN:])
    seconds = time.process_time() - began
    assert len(pred) == TEST
    sys.stdout.write(json.dumps({"predict_seconds": seconds, "predict_mebibytes": (peak() - before) / 2**20}))
