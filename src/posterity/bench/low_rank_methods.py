"""What the benches of low-rank networks share: ten methods, two blocks, and how claims read their rows.

    equal    every method at data_weight w = 1 and one step size
    tuned    every method at the pair (w, step size) of one grid with the smallest validation NLL of that seed

All train for the same epochs with Adam's moments on a cosine, under one prior. The maximum a posteriori fits of dense
weights return their best validation epoch, as they do by default; what is fitted to factors or to an evidence bound is the
last. Two methods start at the deterministic fit of the same pair, and are charged for it: the low-rank network from its best
approximation ("svd"), and SWAG, which goes on for half as many epochs of SGD at ten times the step size. An ensemble has the
pair of its single method. Test rows are looked at for the two reported pairs only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from posterity.bench.bde import key_of, mean, standard_error
from posterity.bench.bench import Row, finite
from posterity.evaluation.proper import nll
from posterity.inference.algorithm import Algorithm
from posterity.inference.ensemble import Ensemble
from posterity.inference.low_rank import LowRankVI
from posterity.inference.map import MAP
from posterity.inference.mc_dropout import MCDropout
from posterity.inference.mean_field import MeanFieldVI
from posterity.inference.rank_one import RankOneVI
from posterity.inference.ranks import Ranks
from posterity.inference.schedule import Cosine
from posterity.inference.swag import SWAG
from posterity.model import BayesianModel
from posterity.prediction.base import Predictive
from posterity.problem.priors import Normal
from posterity.training.fit import fit

__all__ = ["DRAWS", "METHODS", "Figures", "Method", "Predict", "Task", "Trial", "compared", "grid"]

DRAWS = 32
DROPOUT = 0.1
MEMBERS = 5
COLLECTIONS = 20  # of SWAG, all of whose deviations are kept
PRIOR = Normal(math.sqrt(2.0), fan_in=True)  # variance 2 / fan-in of an entry, that of He et al. (2015)

Predict = Callable[[Any], Predictive]  # inputs -> what is said about them


class Trial(NamedTuple):
    weight: float  # data_weight
    rate: float  # Adam's step size for dense weights


def grid(weights: Sequence[float], rates: Sequence[float]) -> tuple[Trial, ...]:
    """All pairs; the first is that of the equal block, so that 1 comes first among the weights."""
    if weights[0] != 1.0:
        raise ValueError(f"the equal block is at data_weight 1, which must come first; got {weights}")
    return tuple(Trial(weight, rate) for weight in weights for rate in rates)


class Task(NamedTuple):
    """One data set and seed.

    Args:
        data: its name.
        network: dropout rate -> a new network.
        train, validation: (inputs, targets).
        measure: of a way to predict, the fields of a row; asked for the reported pairs only.
        trials: the grid.
        rank: of the factors.
        relative_std, init_std: where the stds of factors and of mean-field start.
        draws: of the methods that have no end of them.
        handed: what is done to a way to predict before it is used.
    """

    data: str
    seed: int
    network: Callable[[float], nn.Module]
    likelihood: str
    train: tuple[Any, Any]
    validation: tuple[Any, Any]
    measure: Callable[[Predict], Mapping[str, float | None]]
    trials: tuple[Trial, ...]
    rank: Ranks
    epochs: int
    batch_size: int
    relative_std: float = LowRankVI.relative_std
    init_std: float = MeanFieldVI.init_std
    draws: int = DRAWS
    handed: Callable[[Predict], Predict] = lambda predict: predict


class Method(NamedTuple):
    """How a method is set.

    Args:
        make: (step size, task) -> the algorithm.
        point: it has one network and no draws.
        dropout: of its network.
        after: the method whose fit of the same pair it starts at.
        single: of an ensemble, the method whose pair it takes.
    """

    make: Callable[[float, Task], Algorithm]
    point: bool = False
    dropout: float = 0.0
    after: str = ""
    single: str = ""


def _low_rank(rate: float, task: Task, **options: Any) -> LowRankVI:
    options = {"relative_std": task.relative_std, **options}
    return LowRankVI(task.rank, learning_rate=Cosine(rate), **options)


def _swag(rate: float, task: Task) -> Algorithm:
    steps = task.epochs * math.ceil(len(task.train[1]) / task.batch_size) // 2
    return SWAG(learning_rate=10 * rate, collections=COLLECTIONS, every=max(1, steps // COLLECTIONS))


METHODS: dict[str, Method] = {  # a method comes after what it starts at
    "deterministic": Method(lambda rate, task: MAP(learning_rate=Cosine(rate)), point=True),
    "low-rank": Method(_low_rank),
    "low-rank-svd": Method(lambda rate, task: _low_rank(rate, task, initial="svd"), after="deterministic"),
    "low-rank-point": Method(lambda rate, task: _low_rank(rate, task, relative_std=0.0), point=True),
    "mean-field": Method(lambda rate, task: MeanFieldVI(learning_rate=Cosine(rate), init_std=task.init_std)),
    "rank-one": Method(lambda rate, task: RankOneVI(learning_rate=Cosine(rate))),
    "swag": Method(_swag, after="deterministic"),
    "mc-dropout": Method(lambda rate, task: MCDropout(learning_rate=Cosine(rate)), dropout=DROPOUT),
    "low-rank-ensemble": Method(lambda rate, task: Ensemble(_low_rank(rate, task), MEMBERS), single="low-rank"),
    "deep-ensemble": Method(
        lambda rate, task: Ensemble(MAP(learning_rate=Cosine(rate)), MEMBERS), single="deterministic"
    ),
}


class _Fitted(NamedTuple):
    model: BayesianModel
    seconds: float  # of CPU time, with those of the fit that it started at
    validation_nll: float


def compared(task: Task) -> list[Row]:
    """A row per method and block."""
    fits: dict[tuple[str, Trial], _Fitted] = {}
    picked: dict[str, Trial] = {}
    equal = task.trials[0]
    rows = []
    for name, method in METHODS.items():
        tried = list(dict.fromkeys((equal, picked[method.single]))) if method.single else list(task.trials)
        for trial in tried:
            fits[name, trial] = _fitted(task, method, trial, fits.get((method.after, trial)))
        nlls = [fits[name, trial].validation_nll for trial in tried]
        picked[name] = picked[method.single] if method.single else tried[_smallest(nlls)]
        sweep = {
            "data_weight": [trial.weight for trial in tried],
            "rate": [trial.rate for trial in tried],
            "validation_nll": [finite(value) for value in nlls],
        }
        measured: dict[Trial, Row] = {}
        for block, trial in (("equal", equal), ("tuned", picked[name])):
            if trial not in measured:
                measured[trial] = _measured(task, method, fits[name, trial])
            own = {"data": task.data, "seed": task.seed, "block": block, "method": name}
            rows.append({**own, "data_weight": trial.weight, "rate": trial.rate, **measured[trial], "sweep": sweep})
        for trial in tried:  # only what others start at is needed again
            if not any(other.after == name for other in METHODS.values()):
                del fits[name, trial]
    return rows


def _smallest(values: Sequence[float]) -> int:
    """Where the smallest is; one that is not finite counts as infinite."""
    return min(range(len(values)), key=lambda i: values[i] if math.isfinite(values[i]) else math.inf)


def _fitted(task: Task, method: Method, trial: Trial, before: _Fitted | None) -> _Fitted:
    began = time.process_time()
    model = fit(
        lambda: task.network(method.dropout),
        task.train,
        task.likelihood,
        method.make(trial.rate, task),
        PRIOR,
        epochs=task.epochs,
        batch_size=task.batch_size,
        data_weight=trial.weight,
        validation=task.validation,
        start=None if before is None else before.model,
        seed=task.seed,
        clip=5.0,
        progress=False,
    )
    seconds = time.process_time() - began + (0.0 if before is None else before.seconds)
    x, y = task.validation
    return _Fitted(model, seconds, nll(task.handed(_predictor(task, method, model))(x).log_prob(y)).value)


def _predictor(task: Task, method: Method, model: BayesianModel) -> Predict:
    if method.point:
        return lambda x: model.predict(x, via="mean")
    draws = None if model.posterior.finite else task.draws
    return lambda x: model.predict(x, via="draws", draws=draws)


def _measured(task: Task, method: Method, fitted: _Fitted) -> Row:
    began = time.process_time()
    told = dict(task.measure(task.handed(_predictor(task, method, fitted.model))))
    cost = {
        "validation_nll": finite(fitted.validation_nll),
        "parameters": fitted.model.posterior.size,
        "seconds": fitted.seconds,
        "predict_seconds": time.process_time() - began,
    }
    return {**told, **cost}


class Figures:
    """Rows by data set, block, method and seed; a figure that does not exist is left out of means."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(r["data"], r["block"], r["method"], r["seed"]): r for r in rows}

    def of(self, data: str, method: str, field: str, block: str = "tuned") -> dict[int, float]:
        """The figure of each seed that has one."""
        return {
            seed: float(row[field])
            for (one, part, name, seed), row in self._rows.items()
            if (one, part, name) == (data, block, method) and row.get(field) is not None
        }

    def mean(self, data: str, method: str, field: str, block: str = "tuned") -> float:
        """Over the seeds; NaN where there are none."""
        return mean(list(self.of(data, method, field, block).values()))

    def difference(self, data: str, method: str, over: str, field: str, block: str = "tuned") -> list[float]:
        """method - over, one for each seed that has both."""
        first, second = (self.of(data, name, field, block) for name in (method, over))
        return [first[seed] - second[seed] for seed in first if seed in second]

    def told(self, data: str, prefix: str, fields: Sequence[str]) -> dict[str, float]:
        """`{prefix}_{method}_{field}` of the tuned block; also `{prefix}_{method}_parameters` and `..._seconds`.

        `..._error` behind one of the fields is its standard error over the seeds.
        """
        found: dict[str, float] = {}
        for method in METHODS:
            for field in fields:
                values = list(self.of(data, method, field).values())
                name = f"{prefix}_{key_of(method)}_{field}"
                found |= {name: mean(values), f"{name}_error": standard_error(values)}
            for field in ("parameters", "seconds"):
                found[f"{prefix}_{key_of(method)}_{field}"] = self.mean(data, method, field)
        return found

    def against(
        self, data: str, prefix: str, over: str, fields: Sequence[str], block: str = "tuned"
    ) -> dict[str, float]:
        """`{prefix}_{field}_minus_{over}` of the low-rank network, paired by seed, with standard errors."""
        found: dict[str, float] = {}
        for field in fields:
            values = self.difference(data, "low-rank", over, field, block)
            name = f"{prefix}_{field}_minus_{key_of(over)}"
            found |= {name: mean(values), f"{name}_error": standard_error(values)}
        return found
