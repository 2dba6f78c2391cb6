"""`certify`: a number that the error on new rows does not exceed, with probability 1 - delta.

    error' = kl^-1(error over the draws, ln(2 / delta') / draws)                    delta' = delta / 2
    bound  = kl^-1(error', (KL(q || p) + ln(2 sqrt(N) / delta')) / N)

The error is that of the Gibbs classifier: every row is judged by the top class of one draw of the weights. See `bounds`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from posterity.errors import CompatibilityError, DataError
from posterity.evaluation.bounds import mcallester, sampling_bound, seeger
from posterity.evaluation.gibbs import gibbs_errors
from posterity.model import BayesianModel
from posterity.posterior.mixture import Mixture
from posterity.posterior.moments import FactoredNormal
from posterity.posterior.posterior import Posterior
from posterity.prediction.draws import batches_of
from posterity.problem.data import source
from posterity.problem.likelihoods import ClassLikelihood
from posterity.problem.priors import Normal, Prior
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.tree import BUFFER, count

__all__ = ["Certificate", "certify"]

_ASSUMED = (
    "the rows are independent draws of one distribution, and new rows come from it too",
    "the network, its frozen weights and the prior's std were chosen without these rows (what led to the posterior may have "
    "been chosen on them: learning rate, steps, stopping, data_weight)",
    "delta, the number of draws and the seed were fixed before the bound was seen",
)
_CENTERS = {
    "zero": "the prior is centred at zero",
    "start": "the prior is centred at the weights that the fit started from, and these were not trained on these rows: a "
    "fresh network, and no start= of a fit to them (the run does not record where it started)",
    "given": "the prior is centred at given weights, and these were found without these rows",
    "held-out": "the prior is centred at weights that were fitted to other rows, none of them among these",
}


@dataclass(frozen=True)
class Certificate:
    """A PAC-Bayes bound on the error of new rows. Errors are shares in [0, 1], the KL is in nats.

    Args:
        bound: the error on new rows, by the inverse of kl (Seeger, Maurer); of the Gibbs classifier.
        mcallester: the same in McAllester's form, never smaller; may exceed 1.
        gibbs_error: the share of wrong top classes over rows and draws; gibbs_bound: what it could be for endless draws.
        kl: KL(q || p), or the upper bound that the posterior's family has.
        rows: N; draws; delta: the probability that the bound is wrong, half for the draws and half for the rows.
        weights: of the network; parameters: numbers that describe the posterior.
        majority_error: of always saying the most common class of these rows.
        center: of the prior, "zero", "start", "given" or "held-out".
        assumptions: what the bound takes for true; reservations: where that is known not to be quite so.
    """

    bound: float
    mcallester: float
    gibbs_error: float
    gibbs_bound: float
    kl: float
    rows: int
    draws: int
    delta: float
    weights: int
    parameters: int
    majority_error: float
    center: str
    assumptions: tuple[str, ...] = ()
    reservations: tuple[str, ...] = ()

    @property
    def limit(self) -> float:
        """The bound that endless draws would give, were their error the one seen."""
        return seeger(self.gibbs_error, self.kl, self.rows, self.delta / 2)

    @property
    def verdict(self) -> str:
        """Below the majority's error "informative", else "vacuous" where McAllester's form is 1 or more, or between them."""
        if self.bound < self.majority_error:
            return "informative"
        return "vacuous" if self.mcallester >= 1 else "worse than guessing the majority"

    def to_json(self) -> dict[str, Any]:
        """Every field, the verdict and the limit, in JSON types."""
        record = dataclasses.asdict(self)
        lists = {name: list(record[name]) for name in ("assumptions", "reservations")}
        return {"verdict": self.verdict, **record, "limit": self.limit, **lists}

    def __str__(self) -> str:
        lines = [
            f"{self.verdict}: new rows are wrong with probability {self.bound:.4f} at most (guessing the majority: "
            f"{self.majority_error:.4f})",
            f"with probability {1 - self.delta:g} over {self.rows:,} rows and {self.draws:,} draws; KL {self.kl:.1f} nats, "
            f"{self.parameters:,} numbers for {self.weights:,} weights",
            f"error of a draw on these rows {self.gibbs_error:.4f}, at most {self.gibbs_bound:.4f}; with endless draws the "
            f"bound would be {self.limit:.4f}; McAllester's form {self.mcallester:.4f}",
            *(f"assumed: {line}" for line in self.assumptions),
            *(f"but: {line}" for line in self.reservations),
        ]
        return "\n".join(lines)


def certify(
    model: BayesianModel,
    data: Any,
    *,
    delta: float = 0.05,
    draws: int = 200,
    prior: Prior | BayesianModel | Mapping[str, Tensor] | None = None,
    target: str | int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
) -> Certificate:
    """Bound the error of new rows by the error on the rows that the posterior was fitted to and its distance from the prior.

    The bound holds for the Gibbs classifier, and for any posterior, however it was found: any data_weight, learning rate or
    stopping rule. It takes for true, and cannot check, that the rows are independent and of one distribution; that the
    prior (its std and centre), the network and its frozen weights were fixed before these rows were seen, with everything
    that they depend on (a scaling of inputs, a rank) picked on other data, or else delta shared out over what was tried.
    The majority vote of the draws has at most twice the error; `predict`, which averages probabilities, is not covered.

    Args:
        model: a fitted classifier whose posterior has a spread in every weight (`MeanFieldVI`, `IVON`, an ensemble of them).
        data: the labelled rows of the fit, all of them and no others; those held out for validation are not among them.
        delta: the probability that the bound is wrong, in (0, 1).
        draws: of the weights, one pass over the rows each; more make the bound tighter. A multiple of an ensemble's members.
        prior: instead of the problem's own: a model fitted to other rows, or weights by name, at which a prior of the
            same std is then centred; or a normal prior. The fit may have used another.
        target: the target's key or position in a batch, where it is not that of the fit.
        batch_size: rows per pass where `data` brings no batches; 1024 unless given.
        seed: of the draws; the fit's unless given.

    Raises:
        CompatibilityError: no classification with one label per row; a posterior without closed-form KL, or with weights
            or buffers without spread.
        DataError: another number of rows than the fit's N, rows without a label, delta or draws out of range.

    Sources: Seeger (2002); Maurer (2004); Langford and Caruana (2001); Dziugaite and Roy (2017).
    """
    problem, posterior = model.problem, model.posterior
    if not 0 < delta < 1:
        raise DataError(f"delta is a probability between 0 and 1, got {delta}")
    if draws < 1:
        raise DataError(f"a certificate needs at least one draw, got {draws}")
    _check_distribution(problem, posterior)
    center, reference = _reference(model, prior)
    kl = posterior.divergence(reference)
    if isinstance(posterior, Mixture):  # draws go round the components: as many of each
        members = len(posterior.components)
        draws = -(-draws // members) * members
    reader = problem.reader if target is None else replace(problem.reader, target=target)
    if isinstance(data, DataLoader | Dataset) or (isinstance(data, tuple) and len(data) == 2):
        _check_rows(problem, source(data, reader, "certified").rows)
    random = Random(int(model.settings.get("seed", 0)) if seed is None else seed).fold("certificate")
    wrong, classes = gibbs_errors(problem, posterior, batches_of(data, reader, batch_size, targets=True), draws, random)
    rows = int(classes.sum())
    _check_rows(problem, rows)
    error = float(wrong.sum()) / (rows * draws)
    error_bound = sampling_bound(error, draws, delta / 2)
    return Certificate(
        bound=seeger(error_bound, kl, rows, delta / 2),
        mcallester=mcallester(error_bound, kl, rows, delta / 2),
        gibbs_error=error,
        gibbs_bound=error_bound,
        kl=kl,
        rows=rows,
        draws=draws,
        delta=delta,
        weights=count(problem.network.trainable),
        parameters=posterior.size,
        majority_error=1 - float(classes.max()) / rows,
        center=center,
        assumptions=(_CENTERS[center], *_ASSUMED),
    )


def _check_distribution(problem: NetworkProblem, posterior: Posterior) -> None:
    if not isinstance(problem.likelihood, ClassLikelihood):
        raise CompatibilityError(
            f"a certificate bounds the share of wrong classes, and the {problem.likelihood.name} likelihood has none"
        )
    if posterior.finite is not None:
        raise CompatibilityError(
            f"a {posterior.kind} posterior is a finite set of weights, infinitely far from its prior: fit a distribution, "
            "method=po.MeanFieldVI() or po.IVON()"
        )
    if problem.network.changing:
        names = sorted(name.removeprefix(BUFFER) for name in problem.network.changing)
        raise CompatibilityError(
            f"the fit learned the buffers {names} from the rows, and no prior covers them: use a normalisation without "
            "running statistics (LayerNorm, GroupNorm), or freeze it in evaluation mode"
        )


def _check_rows(problem: NetworkProblem, rows: int | None) -> None:
    if rows is not None and rows != problem.data_size:
        raise DataError(
            f"the bound holds for the rows of the fit only: it had N = {problem.data_size:,}, and there are {rows:,} (rows "
            "held out for validation are not among them)"
        )


def _reference(model: BayesianModel, prior: Prior | BayesianModel | Mapping[str, Tensor] | None) -> tuple[str, Prior]:
    """Where the prior of the bound is centred, and that prior, bound to the network's tensors."""
    problem, own = model.problem, model.problem.prior
    factored = _factored(model.posterior)
    if prior is None:
        told = model.settings.get("prior", own.to_json()).get("center", "zero")  # a loaded prior knows its centre only
        return "start" if any(moment.base is not None for moment in factored) else told, own
    if factored:
        raise CompatibilityError(
            "the prior of low-rank factors belongs to their fit: leave prior= out, and centre it by start=other and "
            "prior=po.Normal(std, center='start') in po.fit"
        )
    if prior is model:
        raise CompatibilityError("prior= must be fitted to other rows than the model itself")
    if isinstance(prior, Prior):
        if getattr(prior, "center", None) == "start":
            raise CompatibilityError("prior= must say where it is centred: 'zero', or a mapping of tensors")
        center, bound = prior.to_json().get("center", "zero"), prior.bind(problem.start())
    elif isinstance(own, Normal):
        weights = prior.posterior.mean() if isinstance(prior, BayesianModel) else prior
        center, bound = "held-out", replace(own, center=weights).bind(problem.start())
    else:
        raise CompatibilityError(f"only a normal prior can be centred elsewhere for a bound, this one is {own.name}")
    if isinstance(own, Normal) and isinstance(bound, Normal):
        # weights that no forward reaches stay at their own prior: they change no prediction, and cost nothing
        kept = {name: leaf for name, leaf in bound.centers.items() if name not in problem.idle}
        idle = {name: own.centers[name] for name in problem.idle if name in own.centers}
        stds = {**bound.stds, **{name: own.stds[name] for name in problem.idle}}
        bound = replace(bound, centers={**kept, **idle}, stds=stds)
    return center, bound


def _factored(posterior: Posterior) -> list[FactoredNormal]:
    parts = posterior.components if isinstance(posterior, Mixture) else [posterior]
    return [moment for part in parts for moment in part.moments().values() if isinstance(moment, FactoredNormal)]
