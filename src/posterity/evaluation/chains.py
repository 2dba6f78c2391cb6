"""Diagnostics of chains: whether each settled, what its draws are worth, and what the ensemble adds to one chain.

Judged by what the network says at a few points, chain by chain: weights can be permuted without a change, and chains that
start at the members of an ensemble stay in different modes by design. Neither R-hat nor ESS measures quality: read them
beside LPPD and the temperatures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posterity.errors import DataError
from posterity.evaluation.chain_outputs import ChainOutputs, chain_outputs, chains_of
from posterity.evaluation.convergence import MIN_DRAWS, between_rhat, ess, split_rhat
from posterity.evaluation.details import Detail
from posterity.evaluation.metric import Metric, mean_interval
from posterity.posterior.chains import Chains
from posterity.posterior.files import strict_json

if TYPE_CHECKING:
    import pandas

__all__ = ["GOOD", "ChainDiagnostics", "between_rhat", "chain_diagnostics", "ess", "split_rhat"]

GOOD = 1.1  # an R-hat below it counts as settled


@dataclass(frozen=True, eq=False)
class ChainDiagnostics:
    """What is known of C kept chains of S draws.

    Args:
        table: {column: [chain]}, a row per kept chain: member, draws; rhat_median, rhat_95, rhat_share (of functionals
            below 1.1); ess (median), ess_per_1000_gradients (warm-up not counted); step_size with its stable_limit and
            noise_limit; kinetic_temperature and effective_temperature (predicted from the gradient noise);
            start_nll and chain_nll (training NLL before and after the warm-up, nats a row); lppd of the chain alone.
        lppd: of all chains together, nats a row.
        gain: lppd minus the mean of the single chains' lppd; its interval is over rows, paired.
        between_rhat: median over functionals of the ordinary R-hat; 2 to 3 is usual for an ensemble, never a gate.
        weight_rhat, weight_rhat_share: R-hat within chains of up to 1000 weights, median and share below 1.1; to know.
        temperature: T that was asked for; friction: per step.
        mass_similarity: mean correlation of log M between members.
        noise: quantiles of the noise ratio r, "0.05", "0.5", "0.95", and "clamped", the share of weights with r > 1.
        lost: member -> why its chain was left out. members: chains that were started.
        trace: step, member, nll, kinetic: the training NLL and kinetic temperature along all chains.
        reasons: what is NaN -> why.
        functional: what R-hat and ESS were computed of, in words.
        outputs: the draws' outputs at the points, see `ChainOutputs`.
    """

    table: Detail
    lppd: Metric
    gain: Metric
    between_rhat: float
    weight_rhat: float
    weight_rhat_share: float
    temperature: float
    friction: float
    mass_similarity: float
    noise: Mapping[str, float]
    lost: Mapping[str, str]
    members: int
    trace: Detail
    reasons: Mapping[str, str]
    functional: str
    outputs: ChainOutputs = field(repr=False)
    steps: Mapping[str, int] = field(default_factory=dict)  # warmup, thin

    def to_frame(self) -> pandas.DataFrame:
        """One row per kept chain. Raises ImportError without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame() needs pandas: pip install 'posterity[tables]'") from error
        return pandas.DataFrame(self.table)

    def to_json(self) -> dict[str, Any]:
        """All but the outputs, as strict JSON: NaN becomes null."""
        names = (
            "between_rhat", "weight_rhat", "weight_rhat_share", "temperature", "friction", "mass_similarity", "noise",
            "lost", "members", "trace", "reasons", "functional", "steps",
        )  # fmt: skip
        record = {"chains": self.table, "lppd": self.lppd.to_json(), "gain": self.gain.to_json()}
        return strict_json({**record, **{name: getattr(self, name) for name in names}}, null=True)

    def to_arviz(self) -> Any:
        """The chains for arviz: an InferenceData with arviz 0.x, an xarray.DataTree with 1.x.

        Groups: posterior, the outputs at the points with dims chain, draw, point (class); log_likelihood, "y";
        sample_stats, the step size, and the NLL and kinetic temperature where the trace has every draw.
        Coordinates: chain the member, point the row of the data. Raises ImportError naming the extra.
        """
        from posterity.evaluation.inference_data import inference_data

        return inference_data(self)


def chain_diagnostics(model: Any, data: Any, points: int = 48, *, rows: int | None = 10_000) -> ChainDiagnostics:
    """R-hat and ESS of each chain's predictions, its temperatures, and what the ensemble gains on a single chain.

    Functionals: the predictive mean at each point (regression), the probability of each class (up to 20 classes), else
    the log p of the point's label. The draws are run once; memory grows with draws x points and chains x rows.

    Args:
        model: what `fit` with chains returned (SGHMC, SGLD).
        data: labelled rows, as in `evaluate`.
        points: rows that the functionals are read at, evenly spaced among those of `data` that are looked at.
        rows: how many of the first rows are looked at (and held); None for all.

    With fewer than 8 draws a chain R-hat and ESS are NaN, and `reasons` says so.
    Raises CompatibilityError for a posterior that is no chains, DataError without labelled rows or for points < 1.
    """
    chains = chains_of(model)
    if points < 1 or (rows is not None and rows < 1):
        raise DataError(f"points and rows must be at least 1, got points={points} and rows={rows}")
    outputs = chain_outputs(model, data, points, rows)
    about, reasons = chains.about, {}
    series, functional = _series(outputs)
    if chains.per_chain < MIN_DRAWS:
        reasons["rhat, ess"] = f"{chains.per_chain} draws a chain: R-hat and ESS need at least {MIN_DRAWS}"
    elif fixed := int((series.amax(-1) == series.amin(-1)).sum()):
        reasons["rhat, ess"] = f"{fixed} of {series[..., 0].numel()} series are constant and left out"
    if chains.chains < 2:
        reasons["between_rhat"] = "one chain: there is none to compare it with"
    table = _table(chains, outputs, series, reasons)
    within = split_rhat(outputs.weights.movedim(-1, 0))
    single, together = outputs.lppd, torch.logsumexp(outputs.lppd, 0) - math.log(chains.chains)
    one = Metric.undefined(len(together), "one chain: the ensemble is that chain")
    return ChainDiagnostics(
        table,
        lppd=mean_interval(together),
        gain=mean_interval(together - single.mean(0)) if chains.chains > 1 else one,
        between_rhat=_quantile(between_rhat(series).flatten(), 0.5),
        weight_rhat=_quantile(within.flatten(), 0.5),
        weight_rhat_share=_share(within.flatten()),
        temperature=_number(about.get("temperature", 1.0)),
        friction=_number(about.get("friction")),
        mass_similarity=_number(about.get("mass_similarity")),
        noise={str(name): _number(value) for name, value in (about.get("noise_ratio") or {}).items()},
        lost={str(member): str(why) for member, why in (about.get("lost") or {}).items()},
        members=len(about.get("step_size") or chains.names),
        trace=_trace(about.get("trace") or {}),
        reasons=reasons,
        functional=functional,
        outputs=outputs,
        steps={name: int(about[name]) for name in ("warmup", "thin") if about.get(name) is not None},
    )


def _series(outputs: ChainOutputs) -> tuple[Tensor, str]:
    """[functional, chain, draw], and what they are."""
    name = next(name for name in ("mean", "probs", "log_prob") if name in outputs.outputs)
    values = outputs.outputs[name]
    words = {"mean": "predictive means", "probs": "class probabilities", "log_prob": "log p of labels"}
    series = values.flatten(2).movedim(-1, 0).double()
    return series, f"{words[name]} at {values.shape[2]} points"


def _table(chains: Chains, outputs: ChainOutputs, series: Tensor, reasons: dict[str, str]) -> Detail:
    about = chains.about
    rhat, worth = split_rhat(series), ess(series)  # [functional, chain]
    effective = [_quantile(column, 0.5) for column in worth.T]
    gradients = chains.per_chain * _number(about.get("thin"))
    table: Detail = {
        "member": list(chains.names),
        "draws": [chains.per_chain] * chains.chains,
        "rhat_median": [_quantile(column, 0.5) for column in rhat.T],
        "rhat_95": [_quantile(column, 0.95) for column in rhat.T],
        "rhat_share": [_share(column) for column in rhat.T],
        "ess": effective,
        "ess_per_1000_gradients": [1000 * value / gradients for value in effective],
    }
    told = (
        "step_size", "stable_limit", "noise_limit", "kinetic_temperature", "effective_temperature", "start_nll",
        "chain_nll",
    )  # fmt: skip
    for name in told:
        values = about.get(name)
        if values is None:
            reasons[name] = "the fit did not record it"
        table[name] = [math.nan if values is None else _number(values[member]) for member in chains.names]
    table["lppd"] = outputs.lppd.mean(1).tolist()
    return table


def _trace(trace: Mapping[str, Any]) -> Detail:
    """The recorded steps as lines: step, member, nll, kinetic."""
    table: Detail = {name: [] for name in ("step", "member", "nll", "kinetic")}
    for step, nll, kinetic in zip(trace.get("step", ()), trace.get("nll", ()), trace.get("kinetic", ())):
        for member, pair in enumerate(zip(nll, kinetic)):
            for name, value in zip(table, (int(step), member, *map(_number, pair))):
                table[name].append(value)
    return table


def _quantile(values: Tensor, q: float) -> float:
    """Over what is known; NaN where nothing is."""
    known = values[~values.isnan()]
    if not len(known):
        return math.nan
    between = "linear" if known.isfinite().all() else "nearest"  # nothing lies half-way to infinity
    return known.quantile(q, interpolation=between).item()


def _share(rhat: Tensor) -> float:
    """Of the known ones, below 1.1."""
    known = rhat[~rhat.isnan()]
    return (known < GOOD).double().mean().item() if len(known) else math.nan


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
