"""Checks of a fitted model: what usually is wrong when its uncertainty is.

Each check is a function from what was looked at to a `Finding`, with numbers and the way out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, PosterityWarning
from posterity.evaluation.chain_findings import chain_findings
from posterity.evaluation.chains import chain_diagnostics
from posterity.evaluation.finding import Finding
from posterity.evaluation.metric import mean_interval
from posterity.evaluation.readable import readable_bytes
from posterity.model import BayesianModel
from posterity.posterior.chains import Chains
from posterity.posterior.diagonal import Diagonal
from posterity.prediction.propagation.compare import compared, parts_at
from posterity.problem.data import as_inputs, take
from posterity.problem.likelihoods import Gaussian
from posterity.problem.likelihoods.base import numbers as as_numbers
from posterity.problem.likelihoods.base import row_sum
from posterity.problem.priors import Normal
from posterity.problem.targets import align
from posterity.random import Random
from posterity.tree import LIKELIHOOD, count, weights

__all__ = ["diagnose"]

_ROWS = 1000  # looked at: the std of an std is then known to 1 / sqrt(2000) = 2 %
_PROPAGATED = 128  # rows that propagation is compared with draws on: of more rows the same draws say little more
_LOSS = 0.05  # nats a row that draws may cost against the mean before it is worth a word
_FLAT = 0.01  # a relative spread of the epistemic std over rows below this is constant to the eye


class _Seen(NamedTuple):
    model: BayesianModel
    inputs: Any
    targets: Any
    predictive: Any


def diagnose(
    model: BayesianModel, data: Any, *, data_size: int | None = None, draws: int | None = None
) -> list[Finding]:
    """What a fitted model's uncertainty suffers from, on labelled rows that it was not trained on.

    Checks: spread of the epistemic std, noise, N and its weight, posterior against prior, draws against the mean,
    propagation against draws layer by layer, calibration of intervals, history of the fit, memory; of chains also lost ones,
    temperature, R-hat and noise.

    Args:
        model: what `fit` returned.
        data: `(inputs, targets)`, held out; the first 1000 rows are looked at.
        data_size: the number of rows that the model should have seen, where it is known.
        draws: of the weights; all members of an ensemble, else 32, unless given.

    Raises DataError: rows that cannot be predicted.
    """
    inputs, targets = as_inputs(data[0]), data[1]
    rows = min(_ROWS, len(targets))
    inputs, targets = take(inputs, slice(0, rows)), targets[:rows]
    seen = _Seen(model, inputs, targets, model.predict(inputs, draws=draws))
    findings = [_spread(seen), _noise(seen), _size(seen, data_size), _against_prior(seen), _draws_and_mean(seen)]
    findings.append(_propagation(seen))
    if isinstance(model.posterior, Chains):
        findings += chain_findings(chain_diagnostics(model, (inputs, targets)))
    return [*findings, _history(seen), _memory(seen)]


def _spread(seen: _Seen) -> Finding:
    check = "epistemic spread"
    pred = seen.predictive
    classes = hasattr(pred, "probs")
    values, scale = pred.epistemic.double(), (pred.entropy if classes else pred.std).double()
    what = "mutual information" if classes else "epistemic std"
    share = (values.mean() / scale.mean().clamp_min(1e-30)).item()
    spread = (values.std() / values.mean().clamp_min(1e-30)).item() if values.numel() > 1 else math.nan
    numbers = {"mean": values.mean().item(), "share": share, "relative_spread": spread, "draws": pred.draws}
    if pred.draws < 2:
        return Finding(
            check, "warning", f"{what} is 0: one set of weights knows no doubt of its own",
            "use a method with a posterior: --method deep-ensemble or ivon", numbers,
        )  # fmt: skip
    if share < 1e-3:
        return Finding(
            check, "fault", f"{what} is {share:.1e} of the whole over {len(pred)} rows: the draws agree on everything",
            "the posterior is too narrow: lower data_weight, raise prior, or check N", numbers,
        )  # fmt: skip
    if spread < _FLAT:
        return Finding(
            check, "warning", f"{what} varies by {spread:.1%} over {len(pred)} rows: it tells no row from another",
            "it should grow away from the training data: train longer, or use another method", numbers,
        )  # fmt: skip
    return Finding(check, "ok", f"{what} is {share:.1%} of the whole and varies by {spread:.0%} over rows", "", numbers)


def _noise(seen: _Seen) -> Finding:
    check, pred = "noise", seen.predictive
    if not hasattr(pred, "interval"):
        return Finding(check, "skipped", "a classification has no noise to fit")
    y = align(as_numbers(seen.targets), pred.mean.shape, "predicted means")
    residual = (y - pred.mean.double()).square().mean().sqrt().item()
    told = pred.std.double().square().mean().sqrt().item()
    ratio = told / residual if residual > 0 else math.inf
    numbers = {"predicted_std": told, "residual_std": residual, "ratio": ratio}
    message = f"predicted std {told:.4g}, error found {residual:.4g} (units of the target), ratio {ratio:.2f}"
    known = isinstance(seen.model.problem.likelihood, Gaussian) and seen.model.problem.likelihood.std is not None
    if 0.67 < ratio < 1.5:
        return Finding(check, "ok", message, "", numbers)
    way = "the std was fixed: leave std= out to learn it" if known else "train longer, or calibrate on held-out rows"
    return Finding(check, "fault" if not 0.5 < ratio < 2 else "warning", message, way, numbers)


def _size(seen: _Seen, expected: int | None) -> Finding:
    problem = seen.model.problem
    effective = problem.data_size * problem.data_weight
    numbers = {"N": problem.data_size, "data_weight": problem.data_weight, "effective": effective, "expected": expected}
    message = f"N = {problem.data_size:,}, data_weight {problem.data_weight:g}: {effective:,.0f} effective rows"
    if expected is not None and expected != problem.data_size:
        return Finding(
            "N", "fault", f"{message}, but {expected:,} rows were there to train on",
            "leave data_size= out: it is counted", numbers,
        )  # fmt: skip
    if problem.data_weight != 1:
        return Finding("N", "warning", f"{message}: not the Bayesian posterior of these rows", "data_weight=1", numbers)
    return Finding("N", "ok", message, "", numbers)


def _against_prior(seen: _Seen) -> Finding:
    check, posterior, prior = "posterior against prior", seen.model.posterior, seen.model.problem.prior
    if not isinstance(posterior, Diagonal) or not isinstance(prior, Normal):
        return Finding(
            check, "skipped", f"says something of normal posteriors and priors only, not of {posterior.kind}"
        )
    stds = {name: std for name, std in weights(posterior.stds).items() if not name.startswith(LIKELIHOOD)}
    ratios = torch.cat([std.double().flatten() / prior.stds[name] for name, std in stds.items()])
    same = (ratios > 0.95).double().mean().item()
    median = ratios.median().item()
    numbers = {"median_ratio": median, "share_at_prior": same}
    message = f"the median posterior std is {median:.2g} of the prior's; {same:.0%} of the weights kept their prior"
    if same > 0.9:
        return Finding(
            check, "warning", message, "the data hardly spoke: train longer, or use a smaller network", numbers
        )
    return Finding(check, "ok", message, "", numbers)


def _draws_and_mean(seen: _Seen) -> Finding:
    check, model = "draws against the mean", seen.model
    if seen.predictive.draws < 2 or model.posterior.finite is not None:
        return Finding(check, "skipped", "a point has no other draws, members have no mean")
    with _quiet():  # of the temperature, which is that of the draws
        mean = model.predict(seen.inputs, via="mean")
    gain = _log_prob(seen.predictive, seen.targets) - _log_prob(mean, seen.targets)
    found = mean_interval(gain)
    numbers = {"gain": found.value, "low": found.low, "high": found.high, "rows": found.n}
    message = f"log p by {seen.predictive.draws} draws minus that of the mean weights: {found.value:+.3f} nats a row " \
        f"({found.low:+.3f} to {found.high:+.3f})"  # fmt: skip
    if found.high < 0 and found.value < -_LOSS:
        way = "the posterior is too wide for the network: raise data_weight, train longer, or predict via the mean"
        return Finding(check, "fault" if found.high < -_LOSS else "warning", message, way, numbers)
    return Finding(check, "ok", message, "", numbers)


def _propagation(seen: _Seen) -> Finding:
    check, model, settings = "propagation", seen.model, seen.model.propagation
    if model.posterior.finite is not None:
        return Finding(check, "skipped", "only a posterior with endless draws says more of them than its networks do")
    inputs = take(seen.inputs, slice(0, _PROPAGATED))
    random = Random(int(model.settings.get("seed", 0)))
    try:
        with _quiet():  # of correlated weights: what they do is in the finding
            rows = compared(
                model.problem, model.posterior, inputs, replace(settings, scales={}, helps=True), random=random
            )
    except CompatibilityError as error:
        return Finding(check, "skipped", str(error))
    if not rows:
        return Finding(check, "skipped", "nothing that the network says varies with its weights")
    first, last = parts_at(rows), rows[-1]
    numbers = {"layer": first and first.path, "var_ratio": last.var_ratio, "mean_gap": last.mean_gap, "floor": last.floor,
               "layers": [asdict(row) for row in rows]}  # fmt: skip
    message = f"in one pass the variance of the outputs is {last.var_ratio:.2g} of that of draws, their means lie " \
        f"{last.mean_gap:.2g} stds apart ({last.floor:.2g} by chance)"  # fmt: skip
    if first is not None and first is not last:
        message += f"; they part first at {first.path!r} ({first.kind}): {first.var_ratio:.2g}, {first.mean_gap:.2g}"
    if not last.parts:
        return Finding(check, "ok", message, "", numbers)
    if settings.scales or not settings.helps:
        return Finding(check, "ok", f"{message}; it was calibrated on held-out rows since", "", numbers)
    ways = ["calibrate(held_out, via='propagation')", "Rules(covariance=True)", "via='draws'"]
    way = " or ".join([", ".join(ways[:-1]), ways[-1]] if not settings.rules.covariance else [ways[0], ways[2]])
    return Finding(check, "warning", message, way, numbers)


def _history(seen: _Seen) -> Finding:
    check = "training"
    found = [line["val_nll"] for line in seen.model.history if math.isfinite(line.get("val_nll", math.nan))]
    if len(found) < 3:
        return Finding(check, "skipped", "fewer than three epochs with validation rows")
    best = min(range(len(found)), key=found.__getitem__)
    numbers = {"epochs": len(found), "best_epoch": best + 1, "best": found[best], "last": found[-1]}
    message = f"validation NLL is least, {found[best]:.4g}, at epoch {best + 1} of {len(found)}; last {found[-1]:.4g}"
    spread = abs(found[0] - found[best]) or 1.0
    if best == len(found) - 1 and found[-2] - found[-1] > 0.01 * spread:
        return Finding(check, "warning", f"{message}: still falling", "more epochs", numbers)
    if found[-1] - found[best] > 0.1 * spread:
        way = "fewer epochs, patience, a narrower prior, or a method that keeps its best snapshot"
        return Finding(check, "warning", f"{message}: it rose again", way, numbers)
    return Finding(check, "ok", message, "", numbers)


def _memory(seen: _Seen) -> Finding:
    theta = seen.model.problem.start()
    size = count(weights(theta))
    held = sum(leaf.numel() * leaf.element_size() for leaf in seen.model.posterior.tensors().values())
    draws = seen.predictive.draws
    needed = held + 2 * 4 * size
    numbers = {"weights": size, "posterior_bytes": held, "predict_bytes": needed, "draws": draws}
    return Finding(
        "memory", "ok",
        f"{size:,} weights; the posterior holds {readable_bytes(held)}, predicting about {readable_bytes(needed)} and its "
        f"inputs, whatever the draws",
        "", numbers,
    )  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's own warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosterityWarning)
        yield


def _log_prob(pred: Any, targets: Any) -> Tensor:
    return row_sum(pred.log_prob(targets)).double()
