"""What a pass of means and variances costs, in passes of the network at the mean of its weights.

vit       width and tokens of ViT-S/16 (384, 6 heads, 1536 within; 224 x 224 pixels), 4 layers
resnet    ResNet-18's basic blocks, 224 x 224 pixels

full           every weight with a variance of its own, their squares kept; fast activations; exact: with exact ones
rank-one       variances of matrices and kernels as products of rows and columns
last-layer     a posterior over the last layer alone
draws-4        four networks whose weights are there; with-drawing: and are drawn first
compiled-...   the graph of the network through torch.compile, against the network as it is; compiled-mean: the mean's

times_mean      CPU time over that of the network, one thread: the median over rounds of the ratio within a round, in which
                all take turns
peak_mebibytes  the most that tensors made in the pass hold at once, beyond weights and inputs, by the profiler's record of
                allocations; peak_times_mean: over that of the network
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posterity.bench.bde import defined
from posterity.bench.bench import Cell, Limit, Row
from posterity.posterior.diagonal import Diagonal
from posterity.prediction.propagation.graph import graph_of
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.prediction.propagation.run import Pass
from posterity.prediction.propagation.settings import Rules
from posterity.prediction.propagation.value import Value
from posterity.problem.likelihoods import Categorical
from posterity.problem.network import Network
from posterity.problem.priors import Normal
from posterity.problem.problem import NetworkProblem
from posterity.random import Random

__all__ = ["LIMITS", "cells", "claims", "measured"]

LIMITS = {
    "eager_time": Limit(high=3.4),
    "compiled_time": Limit(high=2.0),
    "last_layer_time": Limit(high=1.1),
    "peak_memory": Limit(high=3.0),
}

FAST, EXACT = Rules(accuracy="fast", attention="mean"), Rules()
RANK_ONE = Rules(accuracy="fast", attention="mean", variance="rank-one")
NOISE, LEAST = 0.03, 0.003  # stds of a weight in those of its tensor; of a tensor without any
ROUNDS = 15

Contestants = dict[str, Callable[[], Any]]


def _transformers(name: str, config: str, **options: Any) -> nn.Module:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "the networks of this bench need transformers: pip install 'posterity[huggingface]'"
        ) from error
    with Random(0).forked():
        return getattr(transformers, name)(getattr(transformers, config)(**options, num_labels=10)).eval()


def vit(quick: bool) -> nn.Module:
    width, heads, layers, size, patch = (64, 2, 2, 32, 8) if quick else (384, 6, 4, 224, 16)
    return _transformers(
        "ViTForImageClassification", "ViTConfig", hidden_size=width, num_attention_heads=heads, num_hidden_layers=layers,
        intermediate_size=4 * width, image_size=size, patch_size=patch,
    )  # fmt: skip


def resnet(quick: bool) -> nn.Module:
    sizes = {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8} if quick else {}
    return _transformers(
        "ResNetForImageClassification", "ResNetConfig", layer_type="basic",
        **({"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "embedding_size": 64} | sizes),
    )  # fmt: skip


NETWORKS: Mapping[str, Callable[[bool], nn.Module]] = {"vit": vit, "resnet": resnet}


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """Each network, each batch; compiled in a cell of its own, which takes minutes."""
    rounds, many = (3, 4) if quick else (ROUNDS, 16)
    size = 32 if quick else 224
    found: dict[str, Cell] = {}
    for name, make in NETWORKS.items():
        for rows in (1, many):
            x = Random(1).normal((rows, 3, size, size))
            found[f"{name}, batch {rows}"] = partial(_cell, name, make, quick, x, rounds if rows == 1 else rounds // 3)
    if not quick:
        found["vit, compiled"] = partial(_compiled_cell, "vit", vit, Random(1).normal((1, 3, size, size)), rounds)
    return found


def claims(rows: list[Row]) -> dict[str, float]:
    """Ratios to the network at its mean; those of the vision transformer at batch 1 without a suffix."""
    found: dict[str, float] = {}
    names = {
        "full": "eager_time", "rank-one": "eager_rank_one_time", "exact": "exact_time", "last-layer": "last_layer_time",
        "draws-4": "draws_4_time", "draws-4-with-drawing": "draws_4_with_drawing_time",
        "compiled-rank-one": "compiled_time", "compiled-full": "compiled_general_time",
        "compiled-mean": "compiled_mean_time",
    }  # fmt: skip
    for row in rows:
        suffix = "" if row["network"] == "vit" else f"_{row['network']}"
        suffix += "" if row["rows"] == 1 else f"_batch_{row['rows']}"
        if row["method"] in names and row["times_mean"] is not None:
            found[names[row["method"]] + suffix] = row["times_mean"]
        kind = {"compiled-rank-one": "", "compiled-full": "_general", "full": "_eager"}.get(row["method"])
        if kind is not None and row["peak_times_mean"] is not None:
            found[f"peak_memory{kind}{suffix}"] = row["peak_times_mean"]
    return defined(found)


def setting(module: nn.Module) -> tuple[NetworkProblem, Diagonal, Diagonal]:
    """The problem, normals around all weights, and around those of the last layer."""
    problem = NetworkProblem(Network(module, output="logits"), Categorical(), Normal(1.0), data_size=1)
    means = {name: leaf.detach() for name, leaf in problem.network.trainable.items()}
    stds = {name: torch.full_like(leaf, max(NOISE * _std(leaf), LEAST)) for name, leaf in means.items()}
    last = [name for name in means if name.startswith("classifier")]
    return problem, Diagonal(means, stds), Diagonal(means, {name: stds[name] for name in last})


def _std(leaf: Tensor) -> float:
    return float(leaf.std()) if leaf.numel() > 1 else 0.0


def _cell(name: str, make: Callable[[bool], nn.Module], quick: bool, x: Tensor, rounds: int) -> list[Row]:
    module = make(quick)
    problem, posterior, last = setting(module)
    theta, drawn = posterior.mean(), list(posterior.draws(4, Random(0)))

    def passed(values: dict[str, Value], rules: Rules) -> Callable[[], Any]:
        return lambda: propagate(problem, values, x, Pass(rules))

    full = weight_values(posterior)
    contestants: Contestants = {
        "mean": lambda: module(x),
        "full": passed(full, FAST),
        "rank-one": passed(weight_values(posterior, "rank-one"), RANK_ONE),
        "exact": passed(full, EXACT),
        "last-layer": passed(weight_values(last), FAST),
        "mean-as-predicted": lambda: problem.outputs(theta, x),
        "draws-4": lambda: [problem.outputs(one, x) for one in drawn],
        "draws-4-with-drawing": lambda: [problem.outputs(one, x) for one in posterior.draws(4, Random(0))],
    }
    with torch.inference_mode(), problem.network.session(train=False):
        return [{"network": name, "rows": len(x), **row} for row in measured(contestants, rounds)]


def _compiled_cell(name: str, make: Callable[[bool], nn.Module], x: Tensor, rounds: int) -> list[Row]:
    module = make(False)
    problem, posterior, _ = setting(module)
    contestants: Contestants = {"mean": lambda: module(x)}
    about: dict[str, Row] = {}
    with torch.no_grad(), problem.network.session(train=False):
        for method, rules in (("compiled-rank-one", RANK_ONE), ("compiled-full", FAST), ("compiled-mean", None)):
            began = time.perf_counter()
            try:
                graph = module if rules is None else _written(problem, posterior, rules, x)
                found = torch.compile(graph, dynamic=False)
                found(x)
            except Exception as error:  # without a compiler for C++, or whatever else it meets
                about[method] = {"reason": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"}
                continue
            contestants[method] = partial(found, x)
            about[method] = {"compile_seconds": time.perf_counter() - began}
        rows = measured(contestants, rounds)
    absent = [{**_EMPTY, "method": method} for method in about if method not in contestants]
    return [{"network": name, "rows": len(x), **row, **about.get(row["method"], {})} for row in (*rows, *absent)]


def _written(problem: NetworkProblem, posterior: Diagonal, rules: Rules, x: Tensor) -> nn.Module:
    """The graph for inputs of this shape, without what its outputs do not need."""
    graph = graph_of(problem.network, weight_values(posterior, rules.variance), torch.cat([x, x]), Pass(rules))
    module = torch.export.export(graph, (x,), strict=False).module()
    assert isinstance(module, torch.fx.GraphModule)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


_EMPTY: Row = {
    "method": "", "milliseconds": None, "times_mean": None, "times_mean_low": None, "times_mean_high": None, "rounds": 0,
    "peak_mebibytes": None, "peak_times_mean": None, "compile_seconds": None, "reason": "",
}  # fmt: skip


def measured(contestants: Contestants, rounds: int) -> list[Row]:
    """A row per contestant; the ratios are to the one of the name "mean"."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    peaks = {name: peak(function) for name, function in contestants.items()}  # which warms up, too
    order = list(contestants)
    for turn in range(rounds):
        first = turn % len(order)
        for name in [*order[first:], *order[:first]]:
            began = time.process_time()
            contestants[name]()
            seconds[name].append(time.process_time() - began)
    rows = []
    for name, own in seconds.items():
        ratios = sorted(a / b for a, b in zip(own, seconds["mean"]))
        row = {
            "method": name,
            "milliseconds": 1e3 * statistics.median(own),
            "times_mean": statistics.median(ratios),
            "times_mean_low": ratios[len(ratios) // 4],
            "times_mean_high": ratios[-1 - len(ratios) // 4],
            "rounds": rounds,
            "peak_mebibytes": peaks[name] / 2**20,
            "peak_times_mean": peaks[name] / peaks["mean"],
        }
        rows.append({**_EMPTY, **row})
    return rows


def peak(function: Callable[[], Any]) -> int:
    """The most bytes that were allocated and not yet freed in a call, after a first one."""
    function()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        found = function()
    del found
    records = [one for one in profile.profiler.kineto_results.events() if one.name() == "[memory]"]
    most = held = 0
    for record in sorted(records, key=lambda one: one.start_ns()):
        held += record.nbytes()
        most = max(most, held)
    return most
