"""What factors save: a step's gradient, predictions, whole trainings, against dense weights, mean-field and an ensemble.

    gradient    a draw of the weights and the gradient of its loss, through an unmodified module; the update is left out
    times_dense its CPU time / that of the dense weights' gradient; minima over turns taken in one run
    trained     CPU time of a whole `fit`; an ensemble of five is 1

Each runs on one thread, on random data.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posterity.bench import worker
from posterity.bench.bench import Cell, Limit, Row
from posterity.bench.race import Race, available_peers, ours, times
from posterity.errors import PosterityWarning
from posterity.inference.algorithm import Algorithm, Plan, gradients
from posterity.inference.ensemble import DeepEnsemble
from posterity.inference.gaussian import noisy
from posterity.inference.low_rank import LowRankVI
from posterity.inference.mean_field import MeanFieldVI
from posterity.inference.ranks import Ranks
from posterity.inference.reparameterised import data_gradients
from posterity.model import BayesianModel
from posterity.problem.factored_problem import FactoredProblem
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.training.fit import fit

__all__ = ["CONTESTANTS", "LIMITS", "cells", "claims"]

LIMITS = {
    "linear_1024_time": Limit(high=0.25),
    "linear_512_time": Limit(high=0.45),
    "embedding_time": Limit(high=2.0),
    "predict_32_passes": Limit(high=8.0),
    "train_lstm_vs_ensemble": Limit(high=0.35),
    "train_text_vs_ensemble": Limit(high=0.35),
}

CONTESTANTS: dict[str, worker.Builder] = {
    "low_rank": ours(LowRankVI(rank=8)),
    "mean_field": ours(MeanFieldVI()),
}
WORDS = 30522
RACE = Race(__name__, "1024-1024-1024-1024-10", 128, 3, 9)


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """Gradients of one layer, predictions, whole trainings; whole steps beside those of peers, where they are there."""
    turns = 2 if quick else 31
    small = 16 if quick else 1
    found: dict[str, Cell] = {
        f"linear {width}{name}": partial(
            _gradients, f"linear {width}{name}", partial(_linear, width // small, depth), 8, turns
        )
        for width in (1024, 512)
        for name, depth in (("", 4), (" alone", 1))  # what a step costs once, whatever the network, weighs on one layer
    }
    found["embedding"] = partial(_gradients, "embedding", partial(_embedding, WORDS // small), 16, turns)
    found["prediction"] = partial(_predictions, turns if quick else 15)
    for name, build in (("lstm", _lstm), ("text", _text)):
        found[f"training, {name}"] = partial(_trainings, name, build, 64 if quick else 1024, 1 if quick else 4)
    names = [
        "adamw",
        *CONTESTANTS,
        *(name for name in (available_peers() if peers else ()) if name == "bayesian_torch"),
    ]
    found["step"] = partial(times, names, Race(__name__, "64-128-128-8", 32, 2, 2) if quick else RACE)
    return found


def claims(rows: list[Row]) -> dict[str, float]:
    """Ratios to dense weights, and to an ensemble of five."""
    by = {(row["case"], row["method"]): row for row in rows if "case" in row}
    found = {
        f"{case.replace(' ', '_')}_time": row["times_dense"]
        for (case, method), row in by.items()
        if method == "low-rank" and "times_dense" in row
    }
    found |= {
        f"{case.replace(' ', '_')}_time_mean_field": row["times_dense"]
        for (case, method), row in by.items()
        if method == "mean-field" and "times_dense" in row
    }
    found["predict_32_passes"] = by["prediction", "low-rank"]["passes"]
    found["predict_32_passes_mean_field"] = by["prediction", "mean-field"]["passes"]
    for case in ("lstm", "text"):
        found[f"train_{case}_vs_ensemble"] = by[f"training {case}", "low-rank"]["times_ensemble"]
    found |= {f"step_{row['contestant']}": row["times_adamw"] for row in rows if "times_adamw" in row}
    return found


# --- gradients of one layer ------------------------------------------------------------------------------------------

Data = tuple[nn.Module, Tensor, Tensor]


class _Layers(nn.Module):
    """Linears, each followed by ReLU if asked; the first two outputs are the logits: the loss costs next to nothing."""

    def __init__(self, width: int, depth: int, relu: bool = False) -> None:
        super().__init__()
        after = (nn.ReLU(),) if relu else ()
        self.layers = nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(width, width), *after)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[:, :2]


def _linear(width: int, depth: int) -> Data:
    return _Layers(width, depth), Random(0).normal((128, width)), torch.arange(128) % 2


class _Lookup(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(words, 256), nn.Linear(256, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x).mean(1))


def _embedding(words: int) -> Data:
    generator = Random(0).fold("words").generator()
    return _Lookup(words), torch.randint(words, (64, 24), generator=generator), torch.arange(64) % 2


_SESSIONS = ExitStack()


def _gradients(case: str, build: Callable[[], Data], rank: int, turns: int) -> list[Row]:
    """One draw's gradient of each method, in turns."""
    contestants = {
        "dense": _dense(*_seeded(build)),
        "low-rank": _low_rank(*_seeded(build), rank),
        "mean-field": _mean_field(*_seeded(build)),
    }
    seconds = _in_turns(contestants, turns)
    _SESSIONS.close()
    best = {name: min(each) for name, each in seconds.items()}
    return [
        {
            "case": case,
            "method": name,
            "milliseconds": 1e3 * best[name],
            "times_dense": best[name] / best["dense"],
            "median_times_dense": statistics.median(a / b for a, b in zip(each, seconds["dense"])),
            "turns": turns,
        }
        for name, each in seconds.items()
    ]


def _in_turns(contestants: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    for name in order:
        contestants[name]()
    for turn in range(turns):
        first = turn % len(order)
        for name in [*order[first:], *order[:first]]:
            began = time.process_time()
            contestants[name]()
            seconds[name].append(time.process_time() - began)
    return seconds


def _seeded(build: Callable[[], Data]) -> Data:
    with Random(0).forked():
        return build()


def _opened(net: nn.Module, x: Tensor, y: Tensor) -> tuple[NetworkProblem, Any, Random]:
    """A problem inside the network's session, as `fit` opens it, until all are closed."""
    problem = NetworkProblem(net, "categorical", 1.0, data_size=10_000)
    problem.probe((x, y), Random(0))
    _SESSIONS.enter_context(problem.network.session(train=True))
    return problem, problem.read((x, y)), Random(0)


def _dense(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    problem, batch, random = _opened(net, x, y)
    theta = {name: leaf.unsqueeze(0) for name, leaf in problem.start().items()}

    def once() -> None:
        gradients(problem, theta, (batch,), random, 0)

    return once


def _mean_field(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    problem, batch, random = _opened(net, x, y)
    state = MeanFieldVI().init(problem, problem.start(), random, Plan(batch.rows, 100, 10))

    def once() -> None:
        thetas = noisy(state.mean, state.log_std, torch.exp, random, 0)
        gradients(problem, thetas, (batch,), random, 0)

    return once


def _low_rank(net: nn.Module, x: Tensor, y: Tensor, rank: Ranks) -> Callable[[], None]:
    problem, batch, random = _opened(net, x, y)
    state = LowRankVI(rank).init(problem, problem.start(), random, Plan(batch.rows, 100, 10))

    def once() -> None:
        view = FactoredProblem(problem, state.mean, state.center)
        thetas = noisy(state.mean, state.log_std, torch.exp, random, 0)
        data_gradients("shared", view, state.mean, state.log_std, thetas, (batch,), random, 0)

    return once


# --- predictions -----------------------------------------------------------------------------------------------------


def _predictions(turns: int) -> list[Row]:
    """32 draws of three layers of 512 and ReLU, in passes of the dense network over the same 256 rows."""
    x = Random(0).normal((256, 512))
    y = torch.arange(256) % 2

    def fitted(method: Algorithm) -> BayesianModel:
        with Random(0).forked():
            net = _Layers(512, 3, relu=True)
        return fit(net, (x, y), "categorical", method, steps=2, batch_size=128, progress=False)

    low, field = fitted(LowRankVI(8)), fitted(MeanFieldVI())
    plain_net = low.problem.network.module

    def dense() -> None:
        with torch.inference_mode():
            plain_net(x)

    contestants = {
        "dense": dense,
        "low-rank": lambda: low.predict(x, draws=32),
        "mean-field": lambda: field.predict(x, draws=32),
    }
    seconds = _in_turns(contestants, turns)
    best = {name: min(each) for name, each in seconds.items()}
    return [
        {"case": "prediction", "method": name, "milliseconds": 1e3 * best[name], "passes": best[name] / best["dense"]}
        for name in contestants
    ]


# --- whole trainings -------------------------------------------------------------------------------------------------


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(17, 64, num_layers=2, batch_first=True), nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def _lstm(rows: int) -> Data:
    return _Recurrent(), Random(0).normal((rows, 24, 17)), Random(1).normal((rows,))


class _Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8000, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embed(x)).mean(1))


def _text(rows: int) -> Data:
    generator = Random(0).fold("text").generator()
    return _Reader(), torch.randint(8000, (rows, 24), generator=generator), torch.arange(rows) % 2


def _trainings(name: str, build: Callable[[int], Data], rows: int, epochs: int) -> list[Row]:
    """Whole fits with equal epochs and batches."""
    seconds: dict[str, float] = {}
    members: dict[str, Algorithm] = {"ensemble": DeepEnsemble(5), "low-rank": LowRankVI(8), "mean-field": MeanFieldVI()}
    likelihood = "heteroscedastic" if name == "lstm" else "categorical"
    for method, algorithm in members.items():
        net, x, y = _seeded(partial(build, rows))
        options: dict[str, Any] = {"batch_size": 128, "progress": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PosterityWarning)
            fit(net, (x, y), likelihood, algorithm, steps=1, **options)  # loads its code
            began = time.process_time()
            fit(net, (x, y), likelihood, algorithm, epochs=epochs, **options)
        seconds[method] = time.process_time() - began
    return [
        {"case": f"training {name}", "method": method, "seconds": each, "times_ensemble": each / seconds["ensemble"]}
        for method, each in seconds.items()
    ]
