"""Temperature scaling: one number fitted on held-out data, the baseline of every later calibration.

    logits / T  or  std * sqrt(T),    T = argmin of the held-out NLL of the whole predictive

The NLL of the MIXTURE over draws is minimised, not the mean of the draws' own. Guo et al. (2017).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from posterity.errors import DataError
from posterity.prediction.predictive import reducer
from posterity.problem.likelihoods import Categorical, Likelihood
from posterity.problem.targets import plain
from posterity.tree import Tree

__all__ = ["check_labels", "fit_temperature"]

# Golden-section search on log T over [1/20, 20]: 24 steps narrow 6 to 6 * 0.618^24 = 6e-5, a relative error below 1e-4.
_LOW, _HIGH, _STEPS = math.log(0.05), math.log(20.0), 24
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def check_labels(likelihood: Likelihood, targets: Sequence[Any]) -> None:
    """Refuse batches of raw labels that are all the same one: whatever is surer of it fits them better, without end.

    Raises:
        DataError: several rows of one class.
    """
    if not isinstance(likelihood, Categorical):
        return
    found: set[Any] = set()
    rows = 0
    for batch in map(plain, targets):
        if isinstance(batch, Tensor) and batch.is_floating_point():
            return  # a distribution in each row
        labels = batch.flatten().tolist() if isinstance(batch, Tensor) else list(batch)
        found |= set(labels) - {likelihood.ignore_index}
        rows += len(labels)
    if rows > 1 and len(found) == 1:
        raise DataError(f"all {rows} calibration targets are {found.pop()!r}: rows of several classes are needed")


def fit_temperature(
    likelihood: Likelihood, recorded: Sequence[tuple[Sequence[tuple[Any, Tree]], Any]]
) -> tuple[float, dict[str, Any]]:
    """The temperature with the least held-out NLL, and what it changed.

    Args:
        likelihood: of the network.
        recorded: for each batch the outputs under every draw with that draw's likelihood parameters, and raw targets.

    Returns:
        T, and {"nll_before", "nll_after", "rows", "at_bound"}; T is 1 where no other temperature is better. `at_bound` says
        that T stopped at 1/20 or 20, so that the std or the logits are off by more.

    Raises:
        DataError: no rows, or an NLL that is not finite.
        CompatibilityError: a likelihood that has no temperature.
    """

    def nll(temperature: float) -> tuple[float, int]:
        total, rows = 0.0, 0
        for outputs, targets in recorded:
            reduced = reducer(likelihood, temperature)
            for output, own in outputs:
                reduced.add(output, own)
            log_prob = reduced.result().log_prob(targets)
            total, rows = total - float(log_prob.double().sum()), rows + int((~likelihood.void(targets)).sum())
        return total / max(rows, 1), rows

    before, rows = nll(1.0)
    if rows == 0:
        raise DataError("the calibration data has no rows, or none whose target counts")
    if not math.isfinite(before):
        raise DataError("the NLL of the calibration data is not finite: check its targets")
    low, high = _LOW, _HIGH
    values: dict[float, float] = {}

    def at(log_temperature: float) -> float:
        if log_temperature not in values:
            values[log_temperature] = nll(math.exp(log_temperature))[0]
        return values[log_temperature]

    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    for _ in range(_STEPS):
        if at(left) <= at(right):
            high, right = right, left
            left = high - _GOLDEN * (high - low)
        else:
            low, left = left, right
            right = low + _GOLDEN * (high - low)
    best = min(values, key=lambda key: values[key])
    after = values[best]
    if after >= before:
        return 1.0, {"nll_before": before, "nll_after": before, "rows": rows, "at_bound": False}
    at_bound = not _LOW + 0.01 < best < _HIGH - 0.01
    return math.exp(best), {"nll_before": before, "nll_after": after, "rows": rows, "at_bound": at_bound}
