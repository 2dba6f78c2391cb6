"""`evaluate` and `compare`: how good predictions are on labelled data, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import RandomSampler

from posterity.errors import CompatibilityError, DataError
from posterity.evaluation.chain_findings import chain_details
from posterity.evaluation.details import classification_details, regression_details, shown_by
from posterity.evaluation.evaluation import Evaluation, Row
from posterity.evaluation.fed import Asked, Given, Predictor, fed
from posterity.evaluation.groups import as_groups, group_reliability, group_table
from posterity.evaluation.measured import Measured, differences
from posterity.evaluation.metric import Metric
from posterity.evaluation.metrics import classification_metrics, regression_metrics
from posterity.evaluation.predictions import is_predictions
from posterity.evaluation.rows import LEVELS, Rows
from posterity.evaluation.threshold import best_threshold, effective_reliability
from posterity.group import ALONE, Group
from posterity.model import BayesianModel, versions
from posterity.problem.data import check_whole

__all__ = ["compare", "evaluate"]

COSTS = (1.0, 10.0)


def evaluate(
    model: Any,
    data: Any,
    ood: Mapping[str, Any] | None = None,
    *,
    via: str | Sequence[str] | None = None,
    draws: int | None = None,
    levels: Sequence[float] = LEVELS,
    validation: Any = None,
    groups: Any = None,
    show: Any = None,
    labels: Sequence[Any] | None = None,
    method: str | None = None,
    seed: int | None = None,
    batch_size: int | None = None,
    distribute: bool = False,
) -> Evaluation:
    """Metrics of a model, or of anybody's predictions, on labelled data, each with n and a 95 % interval.

    Classification: see `classification_metrics`; with `validation` also effective_reliability_1 and _10, whose threshold
    is picked there; with foreign sets `detection_metrics`. Regression: `regression_metrics`, in units of the target. Only
    a few numbers per row are kept, whatever the number of classes, draws or rows. Chains are diagnosed on the first 2000
    rows, in the details.

        po.evaluate(model, (x, y))                                  a fitted model
        po.evaluate(probs, y)                                       probabilities [rows, classes] or [draws, rows, classes]
        po.evaluate({"mean": mean, "std": std}, y)                  normal predictions, [rows] or [draws, rows]
        po.evaluate({"mean": mean, "lower": a, "upper": b}, y, levels=(0.9,))
        po.evaluate(pandas.read_csv("predictions.csv"), y)          what `posterity predict` wrote

    Args:
        model: what `fit` returned; or predictions: a `Predictive`, an array, a mapping or a frame.
        data: labelled rows, as in `fit`; with predictions their targets.
        ood: name -> inputs of a foreign set (labels in it are ignored), or predictions on it; classification only.
        via: "draws", "mean", "propagation", or several of them, a row each; as in `predict` unless given.
        draws, seed, batch_size: as in `predict`.
        levels: of the intervals of a regression; metrics without a level in their name are those of 0.9.
        validation: labelled rows (with predictions: a pair of predictions and targets) that pick the threshold of the
            effective reliability; classification only.
        groups: one value per row, or several columns of them by name: the metrics of each group.
        show: what a row looks like, for the most and least certain ones: a function of its number or something indexed
            by it, that gives a picture [h, w], [h, w, 3] or [channels, h, w], a text, or a pair (text, picture). Inputs
            that are pictures show themselves.
        labels: with predictions, the class of each column; 0, 1, ... unless given.
        method: the row's name; the fit's method unless given.
        distribute: share the batches among the ranks of `torch.distributed`, each of which calls this with the same
            arguments and gets the same figures: those of one process, every row counted once.

    Raises:
        DataError: no rows, no targets, a shuffled loader with `groups` or `show`, foreign sets for a regression.
        CompatibilityError: options of a model beside predictions.
    """
    asked = _asked(
        data, ood, levels=levels, validation=validation, groups=groups, show=show, labels=labels, draws=draws, seed=seed,
        batch_size=batch_size, distribute=distribute,
    )  # fmt: skip
    measured = list(_measure(model, method, via, asked))
    return Evaluation([_row(each, asked, model) for each in measured], _settings({measured[0].method: model}))


def compare(
    models: Mapping[str, Any],
    data: Any,
    ood: Any = None,
    *,
    baseline: str | None = None,
    details: bool = True,
    **options: Any,
) -> Evaluation:
    """Several models on the same rows, with their paired differences from one of them.

    A difference is the metric of a method minus that of the baseline, the mean over seeds, and its interval a bootstrap
    over the rows that both share: what other test rows would change, not what another seed would.

    Args:
        models: name -> a model or predictions, or an iterable of them, one per seed.
        data, ood: as in `evaluate`; with predictions `ood` is name -> {set: predictions}.
        baseline: the name of one of the models; the first unless given.
        details: keep the tables behind the plots (of every method's first seed).
        options: as in `evaluate`.

    Raises:
        DataError: no models, or no such baseline; else as `evaluate`.
    """
    if not models:
        raise DataError("there are no models to compare")
    first = next(iter(models)) if baseline is None else baseline
    if first not in models:
        raise DataError(f"the baseline {first!r} is not among the models: {', '.join(models)}")
    via = options.pop("via", None)
    shared = _asked(data, None, **options)
    found: dict[tuple[str, str], list[Measured]] = {}
    told: dict[str, Any] = {}
    rows = []
    for name, given in models.items():
        several = not (isinstance(given, BayesianModel) or is_predictions(given) or hasattr(given, "columns"))
        ways = via.get(name) if isinstance(via, Mapping) else via
        for index, model in enumerate(given if several else [given]):
            foreign = ood.get(name) if ood and isinstance(next(iter(ood.values())), Mapping) and name in ood else ood
            asked = replace(shared, ood=dict(foreign or {}))
            told.setdefault(name, model)
            for each in _measure(model, name, ways, asked):
                row = _row(each, asked, model, details and index == 0)
                if several:
                    row["seed"] = int(model.settings.get("seed", index)) if isinstance(model, BayesianModel) else index
                rows.append(row)
                found.setdefault((name, each.via), []).append(each)
    against = next(key for key in found if key[0] == first)
    return Evaluation(rows, _settings(told), differences(found, against))


def _asked(
    data: Any,
    ood: Mapping[str, Any] | None,
    *,
    levels: Sequence[float] = LEVELS,
    validation: Any = None,
    groups: Any = None,
    show: Any = None,
    labels: Sequence[Any] | None = None,
    distribute: bool = False,
    **options: Any,
) -> Asked:
    """The arguments of `evaluate`, read; `options` are those of `predict`."""
    if wrong := [level for level in levels if not 0 < level < 1]:
        raise DataError(f"levels are fractions between 0 and 1, got {wrong[0]:g}")
    names = None if labels is None else tuple(labels)
    group = Group.current() if distribute else ALONE
    if distribute:
        check_whole(data, "evaluation")
    return Asked(
        data, dict(ood or {}), tuple(levels), validation, as_groups(groups), shown_by(show, data), options, names, group
    )


def _measure(model: Any, method: str | None, via: str | Sequence[str] | None, asked: Asked) -> Iterator[Measured]:
    """Feed the rows of each way to predict."""
    if (asked.groups or asked.show) and isinstance(getattr(asked.data, "sampler", None), RandomSampler):
        raise DataError("the loader shuffles, so groups and pictures would go to other rows: give one that does not")
    if isinstance(model, BayesianModel):
        for way in [via] if via is None or isinstance(via, str) else via:
            yield fed(Predictor(model, way, asked), method or str(model.settings.get("method", "model")), asked)
    elif is_predictions(model) or hasattr(model, "columns"):
        if via is not None or asked.group.size > 1 or any(value is not None for value in asked.options.values()):
            raise CompatibilityError(
                "via, draws, seed, batch_size and distribute are a model's: predictions are made already"
            )
        yield fed(Given(model, asked), method or "given", asked)
    else:
        raise DataError(f"neither a fitted model nor predictions: {type(model).__name__}")


def _row(measured: Measured, asked: Asked, model: Any, detailed: bool = True) -> Row:
    rows, foreign = measured.rows, measured.foreign
    if measured.classes:
        metrics = classification_metrics(rows, ood=foreign)
        if measured.held_out is not None:
            metrics |= _effective(rows, measured.held_out)
    else:
        metrics = regression_metrics(rows, levels=asked.levels)
    row: Row = {"method": measured.method, "via": measured.via, "metrics": metrics}
    if not detailed:
        return row
    if measured.classes:
        details = classification_details(rows, foreign, measured.labels, asked.show)
    else:
        details = regression_details(rows, asked.levels, asked.show)
    details |= chain_details(model, asked.data, measured.via)
    groups = group_table(rows, asked.groups, measured.labels)
    if groups["by"]:
        details["groups"] = groups
    if by_bin := group_reliability(rows, asked.groups):
        details["group_reliability"] = by_bin
    if details:
        row["details"] = details
    return row


def _settings(models: Mapping[str, Any]) -> dict[str, Any]:
    """The versions, and what each fitted method was told."""
    fitted = {name: model for name, model in models.items() if isinstance(model, BayesianModel)}
    names = ("method", "data_size", "data_weight", "seed", "epochs", "batch_size", "hyperparameters")
    methods = {
        name: {**{key: model.settings[key] for key in names if key in model.settings}, "temperature": model.temperature}
        for name, model in fitted.items()
    }
    return {"versions": versions(), **({"methods": methods} if methods else {})}


def _effective(rows: Rows, held_out: Rows) -> dict[str, Metric]:
    """Effective reliability at each cost, its threshold picked on rows that nothing else was judged by."""
    metrics = {}
    for cost in COSTS:
        if "correct" in rows:
            threshold = best_threshold(held_out["confidence"], held_out["correct"], cost)
            name = f"effective_reliability_{cost:g}"
            metrics[name] = effective_reliability(rows["confidence"], rows["correct"], threshold, cost)
    return metrics
