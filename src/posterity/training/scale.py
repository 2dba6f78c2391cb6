"""The width of a posterior, picked on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posterity.errors import CompatibilityError
from posterity.evaluation.evaluate import evaluate
from posterity.model import BayesianModel
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.mixture import Mixture
from posterity.posterior.posterior import Posterior

__all__ = ["pick_scale"]

SCALES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)


def pick_scale(
    model: BayesianModel, validation: Any, scales: Sequence[float] = SCALES, draws: int = 32
) -> BayesianModel:
    """The model with all stds of its posterior times the scale of the lowest validation NLL.

    Args:
        model: with independent normals, or a mixture of them: mean-field, IVON, ScoreVI, OptimizerLaplace.
        validation: labelled rows that were not trained on.
        scales: > 0; the pick is in `settings["scale"]` of what is returned.
        draws: of each candidate, the same noise for all.

    Raises:
        CompatibilityError: a posterior of another kind.
        ValueError: no scale, or one that is not > 0.
    """
    if not scales or min(scales) <= 0.0:
        raise ValueError(f"scales must be > 0, got {list(scales)}")
    candidates = [_scaled(model, scale) for scale in scales]
    found = [evaluate(one, validation, via="draws", draws=draws).rows[0] for one in candidates]
    nlls = [float(row["metrics"]["nll"].value) for row in found]
    return candidates[min(range(len(nlls)), key=nlls.__getitem__)]


def _scaled(model: BayesianModel, scale: float) -> BayesianModel:
    settings = {**model.settings, "scale": scale}
    posterior = _times(model.posterior, scale)
    return BayesianModel(model.problem, posterior, settings=settings, history=model.history, snapshots=model.snapshots)


def _times(posterior: Posterior, scale: float) -> Posterior:
    if isinstance(posterior, Mixture):
        return Mixture([_times(one, scale) for one in posterior.components])
    if not isinstance(posterior, Diagonal):
        raise CompatibilityError(
            f"only independent normals, or a mixture of them, can be scaled; this posterior is {posterior.kind!r}"
        )
    return Diagonal(posterior.means, {name: std * scale for name, std in posterior.stds.items()})
