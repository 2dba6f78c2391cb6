"""What every draw of every chain says about some rows, in one pass over the draws.

Kept per draw: a functional at a few points and a few weights; per chain and row: log (1/S) sum_s p(y | x, theta_s).
Memory grows with chains x draws x points and with chains x rows, never with draws x rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, DataError
from posterity.model import BayesianModel
from posterity.posterior.chains import Chains
from posterity.prediction.draws import batches_of
from posterity.prediction.predictive import Predictive, reducer
from posterity.problem.batches import Batch
from posterity.problem.data import pick_rows, take
from posterity.problem.likelihoods.base import row_sum
from posterity.random import Random
from posterity.tree import LIKELIHOOD, Tree, pick, weights

__all__ = ["ChainOutputs", "chain_outputs", "chains_of"]

_CLASSES = 20  # more of them, or several per row: the log p of the label stands in for the probabilities
_WEIGHTS = 1000


@dataclass(frozen=True)
class ChainOutputs:
    """The outputs of C chains of S draws.

    Args:
        outputs: name -> [chain, draw, point, ...]: "mean" and "log_std" (units of the target), or "probs"
            [chain, draw, point, class], or "log_prob".
        log_prob: [chain, draw, point] nats.
        lppd: [chain, row] log of the chain's mean probability (or density) of each row's target.
        weights: [chain, draw, weight] at most 1000 of them, evenly spaced.
        points: which rows the points are.
        labels: of the classes.
    """

    outputs: Mapping[str, Tensor]
    log_prob: Tensor
    lppd: Tensor
    weights: Tensor
    points: list[int]
    labels: tuple[Any, ...]


def chains_of(model: BayesianModel) -> Chains:
    """Its posterior. Raises CompatibilityError where it is no set of chains."""
    posterior = getattr(model, "posterior", None)
    if isinstance(posterior, Chains):
        return posterior
    method = getattr(model, "settings", {}).get("method", "this")
    raise CompatibilityError(
        f"the posterior of a {method} model has no chains to diagnose: fit with po.SGHMC(...) or po.SGLD(...), or use "
        "po.diagnose for what holds of any method"
    )


def chain_outputs(model: BayesianModel, data: Any, points: int, rows: int | None) -> ChainOutputs:
    """Run every draw over the labelled rows once; arguments as of `chain_diagnostics`."""
    posterior = chains_of(model)
    batches = _held(batches_of(data, model.problem.reader, None, targets=True), rows)
    random = Random(int(model.settings.get("seed", 0)))
    first = _predictions(model, next(posterior.draws(1, random.fold("draw"))), batches, random, 0)
    where = torch.cat([_counted(pred, batch.targets) for pred, batch in first]).nonzero().flatten()
    if not len(where):
        raise DataError("none of the rows has a label: chains are judged on labelled rows")
    spaced = torch.linspace(0, len(where) - 1, min(points, len(where)), dtype=torch.float64).round().long()
    chosen = where[spaced]
    lppd = torch.full((posterior.chains, len(where)), -math.inf, dtype=torch.float64)
    kept: dict[str, list[Tensor]] = {}
    for i, theta in enumerate(posterior.draws(None, random.fold("draw"))):
        told = [_said(pred, batch.targets) for pred, batch in _predictions(model, theta, batches, random, i)]
        columns = {name: torch.cat([each[name] for each in told]) for name in told[0]}
        chain = i // posterior.per_chain
        lppd[chain] = torch.logaddexp(lppd[chain], columns["log_prob"][where].double())
        found = {name: column[chosen].float() for name, column in columns.items()}
        for name, values in {**found, "weights": _some_weights(theta)}.items():
            kept.setdefault(name, []).append(values)
    lppd -= math.log(posterior.per_chain)
    shape = (posterior.chains, posterior.per_chain)
    stacked = {name: torch.stack(values).unflatten(0, shape) for name, values in kept.items()}
    log_prob, some = stacked.pop("log_prob"), stacked.pop("weights")
    labels: tuple[Any, ...] = ()
    if "probs" in stacked:
        labels = tuple(model.problem.likelihood.names(stacked["probs"].shape[-1]))  # type: ignore[attr-defined]
    return ChainOutputs(stacked or {"log_prob": log_prob}, log_prob, lppd, some, chosen.tolist(), labels)


def _held(batches: Any, rows: int | None) -> list[Batch]:
    """The batches of the first rows."""
    held: list[Batch] = []
    left = math.inf if rows is None else rows
    for batch in batches:
        if batch.rows > left:
            some = int(left)
            batch = Batch(take(batch.inputs, slice(0, some)), pick_rows(batch.targets, torch.arange(some)), rows=some)
        held.append(batch)
        left -= batch.rows
        if left <= 0:
            break
    if not held:
        raise DataError("there are no rows to look at")
    return held


def _predictions(
    model: BayesianModel, theta: Tree, batches: list[Batch], random: Random, draw: int
) -> Iterator[tuple[Any, Batch]]:
    """What one draw alone predicts, batch by batch."""
    problem, own = model.problem, pick(theta, LIKELIHOOD)
    for batch in batches:
        one = reducer(problem.likelihood, model.temperature)
        with torch.inference_mode(), problem.network.session(train=False):
            one.add(problem.outputs(theta, batch, random.fold("forward").fold(draw)), own)
        yield one.result(), batch


def _counted(pred: Predictive, targets: Any) -> Tensor:
    """[rows] whether a row has a label."""
    counts = pred.counted(targets)
    return torch.ones(len(pred), dtype=torch.bool) if counts is None else counts.reshape(len(pred), -1).any(1)


def _said(pred: Any, targets: Any) -> dict[str, Tensor]:
    """[row, ...] of one batch: log p of the target, and what is followed along the chains."""
    said = {"log_prob": row_sum(pred.log_prob(targets))}
    if not hasattr(pred, "probs"):
        mean, std = (_first(getattr(pred, name)) for name in ("mean", "std"))
        return {**said, "mean": mean, "log_std": std.log()}
    wide = pred.log_probs.ndim != 2 or pred.log_probs.shape[-1] > _CLASSES
    return said if wide else {**said, "probs": pred.probs}


def _first(values: Tensor) -> Tensor:
    """[rows] the first output of each row."""
    return values if values.ndim == 1 else values.flatten(1)[:, 0]


def _some_weights(theta: Tree) -> Tensor:
    flat = torch.cat([leaf.detach().flatten().float().cpu() for leaf in weights(theta).values()])
    step = torch.linspace(0, len(flat) - 1, min(_WEIGHTS, len(flat)), dtype=torch.float64)
    return flat[step.round().long()]
