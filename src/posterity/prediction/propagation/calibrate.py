"""Calibration: one scale of the variance per site, fitted on held-out rows by the NLL of what is predicted.

    v <- a_i v  at site i       a, T = argmin  NLL(a, T) + 1/(2 n) sum (log a_i)^2           n rows, arXiv 2606.16214

Two thirds of the rows fit. The others stop the fit where it is best, and say whether the variance helps at all: if the mean
network with a temperature of its own has the lower NLL there, it answers instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Literal

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, DataError
from posterity.posterior.posterior import Posterior
from posterity.prediction.draws import predict_blocks, recorded_outputs
from posterity.prediction.propagation.head import check_head, said_by
from posterity.prediction.propagation.propagate import likelihood_parameters, points_of_each, propagate, values_of
from posterity.prediction.propagation.run import OUTPUTS, Pass
from posterity.prediction.propagation.settings import Propagation
from posterity.prediction.propagation.value import Value
from posterity.prediction.temperature import fit_temperature
from posterity.prediction.tempered import tempered_log_prob
from posterity.problem.batches import Batch
from posterity.problem.data import pick_rows, take
from posterity.problem.likelihoods import Poisson
from posterity.problem.problem import NetworkProblem
from posterity.random import Random

__all__ = ["Sites", "calibrated"]

Sites = Literal["all", "outputs"]

ROWS = 128  # of a step
RATE = 0.1  # of Adam, on log a
STEPS, EVERY, PATIENCE = 120, 5, 4  # at most so many; a look every few; the end after so many looks without a gain
CHECKED = 1 / 3  # of the rows


@dataclass(frozen=True)
class _Task:
    """What is calibrated."""

    problem: NetworkProblem
    posterior: Posterior
    points: int | None
    random: Random

    def nll(self, rows: Sequence[Batch], settings: Propagation, temperature: float) -> float:
        """Of all these rows together, in nats per row that counts."""
        predicted = predict_blocks(
            self.problem, self.posterior, rows, via="propagation", draws=self.points, random=self.random,
            temperature=temperature, settings=settings,
        )  # fmt: skip
        total, count = 0.0, 0
        for pred, targets in predicted:
            total -= float(pred.log_prob(targets).double().sum())
            count += int((~self.problem.likelihood.void(targets)).sum())
        return total / max(count, 1)

    def temperature(self, rows: Sequence[Batch], settings: Propagation) -> tuple[float, dict[str, Any]]:
        """As `fit_temperature`, and 1 for counts."""
        if isinstance(self.problem.likelihood, Poisson):
            return 1.0, {"nll_after": self.nll(rows, settings, 1.0), "at_bound": False}
        recorded = recorded_outputs(
            self.problem,
            self.posterior,
            rows,
            via="propagation",
            draws=self.points,
            random=self.random,
            settings=settings,
        )
        return fit_temperature(self.problem.likelihood, recorded)


def calibrated(
    problem: NetworkProblem,
    posterior: Posterior,
    batches: Sequence[Batch],
    settings: Propagation,
    *,
    sites: Sites,
    points: int | None,
    random: Random,
) -> tuple[Propagation, float, dict[str, Any]]:
    """The settings with scales and fast sites, the temperature, and what they changed.

    Args:
        batches: labelled rows that were not trained on.
        sites: "all", one scale per site; "outputs", one for what the network says.

    Returns:
        Settings, T and {"nll_before", "nll_after", "rows" of all rows; "nll_propagated", "nll_mean", "checked" of those that
        check, each with its own T; "sites", "steps", "at_bound"}.

    Raises:
        DataError: fewer than three rows.
        CompatibilityError: unknown sites; an operation that cannot be propagated.
    """
    if sites not in ("all", "outputs"):
        raise CompatibilityError(f"sites must be 'all' or 'outputs', got {sites!r}")
    check_head(problem.likelihood, settings.rules.head)
    task = _Task(problem, posterior, points, random)
    plain = replace(settings, scales={}, fast=frozenset(), helps=True)
    fit, check = _divided(batches, random.fold("rows"))
    scales, steps = _scales(task, plain, fit, check, sites)
    found = replace(plain, scales=scales, fast=_sites(task, replace(plain, scales=scales), fit[0])[1])
    mean = replace(plain, helps=False)
    of_found, of_mean = (task.nll(check, one, task.temperature(fit, one)[0]) for one in (found, mean))
    if scales and of_mean < of_found:
        found = mean
    temperature, about = task.temperature(batches, found)
    return found, temperature, {
        "nll_before": task.nll(batches, plain, 1.0), "nll_after": about["nll_after"], "rows": _count(batches),
        "nll_propagated": of_found, "nll_mean": of_mean, "checked": _count(check),
        "sites": len(scales), "steps": steps, "at_bound": about["at_bound"],
    }  # fmt: skip


def _scales(
    task: _Task, plain: Propagation, fit: Sequence[Batch], check: Sequence[Batch], sites: Sites
) -> tuple[dict[str, float], int]:
    """The scales where the rows that check have the lowest NLL, and after how many steps that was."""
    keys = _sites(task, plain, fit[0])[0]
    keys = keys if sites == "all" or not keys else [OUTPUTS]
    if not keys:
        return {}, 0
    network, counts = task.problem.network, isinstance(task.problem.likelihood, Poisson)
    parts = values_of(task.posterior, plain)
    logs = torch.zeros(len(keys), device=network.device, requires_grad=True)
    log_temperature = torch.zeros((), device=network.device, requires_grad=True)
    optimizer = torch.optim.Adam([logs] if counts else [logs, log_temperature], lr=RATE)

    def nll(batch: Batch) -> Tensor:
        one = Pass(plain.rules, dict(zip(keys, logs.exp())))
        return -_log_prob(task, parts, batch, one, log_temperature.exp()).sum()

    def checked() -> float:
        with torch.no_grad():
            return float(sum(nll(batch) for batch in check)) / _count(check)

    n, kept, at, waited = _count(fit), torch.zeros(len(keys)), 0, 0
    steps = cycle(fit)
    with torch.enable_grad(), network.session(train=False):
        best = checked()
        for step in range(1, STEPS + 1):
            batch = next(steps)
            loss = nll(batch) / batch.rows + 0.5 * logs.square().sum() / n
            if not bool(torch.isfinite(loss)):
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % EVERY:
                continue
            if (now := checked()) < best:
                best, kept, at, waited = now, logs.detach().clone(), step, 0
            elif (waited := waited + 1) == PATIENCE:
                break
    return {key: float(value) for key, value in zip(keys, kept.exp())}, at


def _log_prob(task: _Task, parts: Sequence[dict[str, Value]], batch: Batch, one: Pass, temperature: Tensor) -> Tensor:
    """[rows] of one batch, in nats."""
    outputs: list[Any] = []
    for values in parts:
        said = propagate(task.problem, values, batch, one.again())
        outputs += said_by(said, task.problem.likelihood, points_of_each(task.points, len(parts)), one.rules.head)
    parameters = likelihood_parameters(parts[0])
    return tempered_log_prob(task.problem.likelihood, outputs, parameters, batch.targets, temperature)


def _sites(task: _Task, settings: Propagation, batch: Batch) -> tuple[list[str], frozenset[str]]:
    """The sites that a batch meets, in order, and those whose stds suit the fast form of their activation."""
    keys: dict[str, None] = {}
    suits: dict[str, bool] = {}
    for values in values_of(task.posterior, settings):
        one = Pass(settings.rules, settings.scales, suits={})
        with torch.no_grad(), task.problem.network.session(train=False):
            propagate(task.problem, values, batch, one)
        keys |= dict.fromkeys(one.sites)
        suits |= {key: suits.get(key, True) and suit for key, suit in (one.suits or {}).items()}
    return list(keys), frozenset(key for key, suit in suits.items() if suit)


def _divided(batches: Sequence[Batch], random: Random) -> tuple[list[Batch], list[Batch]]:
    """Rows that fit, in batches of a step, and rows that check; the same for the same data."""
    if _count(batches) < 3:
        raise DataError(
            f"the calibration data has {_count(batches)} rows: it needs at least 3, and a few hundred to be worth it"
        )
    fit: list[Batch] = []
    check: list[Batch] = []
    seen = chosen = 0
    for i, batch in enumerate(batches):
        order = torch.randperm(batch.rows, generator=random.fold(i).generator())
        seen += batch.rows
        some = round(seen * CHECKED) - chosen
        chosen += some
        for index, into in ((order[:some], check), (order[some:], fit)):
            into += [_rows(batch, part) for part in index.split(ROWS) if len(part)]
    return fit, check


def _rows(batch: Batch, index: Tensor) -> Batch:
    return Batch(take(batch.inputs, index), pick_rows(batch.targets, index), rows=len(index))


def _count(batches: Sequence[Batch]) -> int:
    return sum(batch.rows for batch in batches)
