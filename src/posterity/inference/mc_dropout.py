"""Monte Carlo dropout: training with dropout, and predictions that go on dropping.

    p(y | x) = 1/S sum over s of p(y | x, theta, m_s)        m_s: masks by the rates that the network trains with

Training is `MAP`, in which the network's own dropouts draw a mask for each row. A draw of the posterior is one set of masks
for all rows. Read as variational inference, a unit's weights are a mixture of two narrow normals, at 0 and at theta. Gal and
Ghahramani (2016), arXiv 1506.02142.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, PosterityWarning
from posterity.inference.map import MAP, MAPState
from posterity.posterior.mc_dropout import Masked
from posterity.posterior.mixture import mixture
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.data import take
from posterity.problem.dropout import Dropouts, masks
from posterity.problem.problem import NetworkProblem, Problem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.tree import MASKS, clone, member

__all__ = ["MCDropout"]


@dataclass(frozen=True)
class MCDropout(MAP):
    """Maximum a posteriori training of a network with dropout, which predictions leave on; arguments as in `MAP`.

    `via="mean"` predicts without masks. What the network has left in evaluation mode stays off: load a run with a network
    whose parts are in the modes that they were fitted in.

    Raises:
        CompatibilityError: a network without a dropout of a rate above 0, or one whose masks would differ by row.
    """

    name: ClassVar[str] = "mc-dropout"
    ensemble_name: ClassVar[str] = ""

    def check(self, problem: Problem, batch: Any) -> None:
        super().check(problem, batch)
        if not isinstance(problem, NetworkProblem):
            raise CompatibilityError("MCDropout needs a network: a bare density has no dropout")
        read = problem.read(batch)
        _check_reach(problem, read)
        _check_rows(problem, read)

    def posterior(self, state: MAPState, shards: Posterior | None = None) -> Posterior:
        theta = Snapshot.of(state.best).theta if self.keep_best and state.best else state.theta
        return mixture([Masked(clone(member(theta, k))) for k in range(self.members)])


def _check_reach(problem: NetworkProblem, batch: Batch) -> None:
    """What drops in a training forward can be made to drop in evaluation mode, and nothing else."""
    theta = problem.start()
    with torch.no_grad():
        with Dropouts(None) as training:
            problem.outputs(theta, batch, Random(0).fold("dropout"), train=True)
        with masks(problem.network, torch.tensor(0)) as evaluation:
            problem.outputs(theta, batch)
    assert evaluation is not None
    if not training.found:
        raise CompatibilityError(
            "MCDropout needs a network that drops units in training, and this one has no dropout with a rate above 0: put "
            "nn.Dropout(0.1) before its last layers, or use another method"
        )
    if missed := training.found - evaluation.found:
        advice = "it is given a rate of 0 in evaluation mode; use nn.Dropout, or pass the rate in both modes"
        if not evaluation.found:
            raise CompatibilityError(f"MCDropout cannot reach any dropout of this network ({_told(missed)}): {advice}")
        warnings.warn(f"the draws are made without {_told(missed)}: {advice}", PosterityWarning, stacklevel=3)
    if more := evaluation.found - training.found:
        warnings.warn(
            f"the draws also drop by {_told(more)}, which training leaves off: give a rate of 0 to what is not to drop",
            PosterityWarning,
            stacklevel=3,
        )


def _told(found: Counter[str]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(found.items()))


def _check_rows(problem: NetworkProblem, batch: Batch) -> None:
    """The masks of a row do not depend on the rows before it: axis 0 of everything that is dropped is the rows."""
    if batch.rows < 2:
        return
    rest = take(batch.inputs, slice(1, batch.rows))
    with torch.no_grad():
        plain, dropped = (
            _apart(problem.outputs(theta, batch), problem.outputs(theta, rest), batch.rows)
            for theta in (problem.start(), {**problem.start(), MASKS: torch.tensor(0)})
        )
    tolerance = 1e-3 if problem.precision == "float32" else 5e-2
    if dropped > tolerance >= plain:
        raise CompatibilityError(
            "MCDropout would give a row other masks beside other rows: a dropout of this network sees its rows on another "
            "axis than the first; use batch_first=True, or let the rows be axis 0"
        )


def _apart(whole: Any, rest: Any, rows: int) -> float:
    """The largest difference, relative to the largest number, between rows and the same rows without the first."""
    pairs = zip(*(out if isinstance(out, tuple | list) else (out,) for out in (whole, rest)))
    largest = [0.0]
    for one, other in pairs:
        if isinstance(one, Tensor) and one.dim() and one.shape[0] == rows and one[1:].shape == other.shape:
            gap = (one[1:].double() - other.double()).abs().max()
            largest.append(float(gap / one.double().abs().max().clamp(min=1e-30)))
    return max(largest)
