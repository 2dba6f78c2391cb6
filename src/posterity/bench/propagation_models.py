"""Propagation through networks that others wrote, none of them changed: does it run, in three forms, and is it right.

weights        independent normals around each model's own, of 3 % of the std of each tensor (0.003 where that is zero)
mean_gap       root mean square over rows and outputs of (propagated mean - mean of the draws) / std of the draws;
               mean_gap_network the same of the network of the mean weights; floor what the draws leave, 1 / sqrt(draws)
var_ratio      all propagated variances together over those of the draws; var_ratio_pooled with what a pooling averages taken
               as wholly correlated (`Rules(pooling=1.0)`), as positions that share noisy weights nearly are
log_var_correlation   of both, over rows and outputs
graph          `torch.export`'s graph agrees with the eager pass in mean and variance to 1e-5, at all rows and at one
onnx           a file that ONNX Runtime was seen to agree with to 1e-5, at 1, 5 and 17 rows
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from posterity.bench.bench import Cell, Limit, Row, finite
from posterity.bench.zoo import FRESH, Specimen
from posterity.bench.zoo_trained import TRAINED
from posterity.errors import DataError, PosterityError, PosterityWarning, ShapeError
from posterity.posterior.diagonal import Diagonal
from posterity.prediction.export import TOLERANCE, exported, write_onnx
from posterity.prediction.propagation.graph import graph_of
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.prediction.propagation.run import Pass
from posterity.prediction.propagation.settings import Propagation, Rules
from posterity.prediction.propagation.value import MeanVar, Value
from posterity.problem.network import Network
from posterity.problem.priors import Normal
from posterity.problem.problem import NetworkProblem
from posterity.random import Random

__all__ = ["LIMITS", "cells", "claims", "noisy"]

LIMITS = {
    "models_total": Limit(low=21.0),
    "models_not_eager": Limit(high=0.0),
    "models_graph": Limit(low=18.0),
    "models_onnx": Limit(low=18.0),
}

NOISE, LEAST = 0.03, 0.003
DRAWS, FEW = 256, 32
QUICK = ("DeiT", "ResNet", "BERT", "GPT-2", "nn.MultiheadAttention")
QUICK_ONNX = "nn.MultiheadAttention"


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """A cell per model."""
    models = {name: FRESH[name] for name in QUICK} if quick else {**FRESH, **TRAINED}
    return {
        name: partial(_cell, name, make, FEW if quick else DRAWS, not quick or name == QUICK_ONNX)
        for name, make in models.items()
    }


def _cell(name: str, make: Callable[[], Specimen], draws: int, files: bool) -> list[Row]:
    try:
        one = make()
    except DataError as error:
        warnings.warn(f"{name} is left out: {error}", PosterityWarning, stacklevel=2)
        return []
    return [measured(name, one, draws, files)]


def noisy(one: Specimen) -> tuple[NetworkProblem, Diagonal]:
    """A problem of the network, and normals around its weights."""
    problem = NetworkProblem(Network(one.module.eval(), output=one.output), one.likelihood, Normal(1.0), data_size=1)
    means = {name: leaf.detach() for name, leaf in problem.network.trainable.items()}
    return problem, Diagonal(means, {name: torch.full_like(leaf, _std(leaf)) for name, leaf in means.items()})


def _std(leaf: Tensor) -> float:
    found = NOISE * float(leaf.std()) if leaf.numel() > 1 else 0.0
    return found or LEAST


def measured(name: str, one: Specimen, draws: int = DRAWS, files: bool = True) -> Row:
    """One model's row; what was not tried is None."""
    problem, posterior = noisy(one)
    values = weight_values(posterior)
    weights = sum(leaf.numel() for leaf in posterior.means.values())
    row: Row = {"model": name, "weights": weights, "draws": draws, "eager": False, "graph": False, "onnx": None}
    row |= dict.fromkeys((*_MEASURES, "graph_difference", "onnx_difference")) | {"reason": ""}
    with torch.no_grad():
        try:
            found = propagate(problem, values, one.inputs)
        except PosterityError as error:
            return row | {"reason": f"eager: {_brief(error)}"}
        if not isinstance(found, MeanVar):
            return row | {"reason": "eager: no variance arrives at the output"}
        pooled = propagate(problem, values, one.inputs, Pass(Rules(pooling=1.0)))
        row |= {"eager": True} | _compared(problem, posterior, one, (found, pooled), draws)
        try:
            difference = _graph_difference(problem, values, one.inputs, found)
            row |= {"graph_difference": finite(difference), "graph": difference <= TOLERANCE}
            reason = "" if row["graph"] else "graph: says something else"
        except PosterityError as error:
            reason = f"graph: {_brief(error)}"
        if files and row["graph"]:
            try:
                row["onnx_difference"] = _file_difference(problem, posterior, one.inputs)
                row["onnx"] = True
            except PosterityError as error:
                reason = f"onnx: {_brief(error)}"
        if files:
            row["onnx"] = bool(row["onnx"])
    return row | {"reason": reason}


def _brief(error: Exception) -> str:
    """The first line."""
    return str(error).strip().splitlines()[0][:160]


_MEASURES = (
    "outputs", "mean_gap", "mean_gap_network", "floor", "var_ratio", "var_ratio_pooled", "log_var_correlation",
)  # fmt: skip


def _compared(
    problem: NetworkProblem, posterior: Diagonal, one: Specimen, passes: tuple[MeanVar, MeanVar], draws: int
) -> Row:
    """The mean and variance of both passes against those of the draws, and the mean network's outputs."""
    network = problem.outputs(posterior.means, one.inputs).double()
    total, squares = torch.zeros_like(network), torch.zeros_like(network)
    for theta in posterior.draws(draws, Random(0).fold("draw")):
        step = problem.outputs(theta, one.inputs).double() - network
        total, squares = total + step, squares + step.square()
    mean = network + total / draws
    var = (squares - total.square() / draws) / (draws - 1)

    def gap(of: Tensor) -> float:
        return float(((of - mean).square() / var).mean().sqrt())

    found = passes[0]
    own, pooled = (float(one.var.double().sum() / var.sum()) for one in passes)
    logs = torch.stack([found.var.double().flatten().log(), var.flatten().log()])
    return {
        "outputs": var.numel(),
        "mean_gap": gap(found.mean.double()),
        "mean_gap_network": gap(network),
        "floor": 1 / math.sqrt(draws),
        "var_ratio": own,
        "var_ratio_pooled": pooled,
        "log_var_correlation": finite(float(torch.corrcoef(logs)[0, 1])),
    }


def _graph_difference(problem: NetworkProblem, values: dict[str, Value], inputs: Any, found: MeanVar) -> float:
    """The largest of means (relative to what is above 1) and variances (relative to the largest)."""
    graph = graph_of(problem.network, values, inputs)
    args, kwargs = problem.network.arguments(inputs)
    every = (*args, *kwargs.values())
    worst = 0.0
    for rows in (len(found.mean), 1):
        mean, var = graph(*(leaf[:rows] for leaf in every))
        if var is None:
            raise ShapeError("the graph's output has no variance")
        for own, wanted, least in ((mean, found.mean[:rows], 1.0), (var, found.var[:rows], 0.0)):
            worst = max(worst, float((own - wanted).abs().max() / wanted.abs().max().clamp_min(least)))
    return worst


def _file_difference(problem: NetworkProblem, posterior: Diagonal, inputs: Any) -> float:
    module, every, names = exported(
        problem, posterior, inputs, via="propagation", draws=None, temperature=1.0, seed=0, settings=Propagation()
    )
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of itself
        return write_onnx(module, every, names, Path(folder) / "model.onnx", {})


def claims(rows: list[Row]) -> dict[str, float]:
    """Counts of models; and of gaps of the mean, the draws' own noise removed, the propagated over the mean network's.

    The ratios are of models whose mean network is more than three floors away: of the others both gaps are noise.
    """
    known = [row for row in rows if row["eager"]]
    ratios = [_ratio(row) for row in known if row["mean_gap_network"] > 3 * row["floor"]]
    var, pooled = ([row[name] for row in known] for name in ("var_ratio", "var_ratio_pooled"))
    return {
        "models_total": float(len(rows)),
        "models_eager": float(len(known)),
        "models_not_eager": float(len(rows) - len(known)),
        "models_graph": float(sum(bool(row["graph"]) for row in rows)),
        "models_onnx": float(sum(bool(row["onnx"]) for row in rows)),
        "mean_gap_models": float(len(ratios)),
        "mean_gap_ratio_worst": max(ratios, default=0.0),
        "mean_gap_ratio_median": median(ratios) if ratios else 0.0,
        "var_ratio_lowest": min(var, default=0.0),
        "var_ratio_median": median(var) if var else 0.0,
        "var_ratio_highest": max(var, default=0.0),
        "var_ratio_pooled_lowest": min(pooled, default=0.0),
        "var_ratio_pooled_median": median(pooled) if pooled else 0.0,
        "var_ratio_pooled_highest": max(pooled, default=0.0),
        "log_var_correlation_median": median(row["log_var_correlation"] or 0.0 for row in known) if known else 0.0,
    }


def _ratio(row: Row) -> float:
    own, network = (
        math.sqrt(max(0.0, row[name] ** 2 - row["floor"] ** 2)) for name in ("mean_gap", "mean_gap_network")
    )
    return own / network
