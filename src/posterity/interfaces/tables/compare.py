"""Methods x seeds on one table: the same rows, the same budget, resumable.

The budget is passes over the training rows, summed over the members of a method: an ensemble of five gets a fifth of
the epochs for each of its members. The split is the same for all, so that differences are paired by rows. All methods
share one data_weight; with a grid of them, the one of each method's own that its validation rows like best is compared too.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import posterity as po
from posterity.errors import DataError, StorageError
from posterity.evaluation.evaluate import compare
from posterity.interfaces.settings import Named, build_method
from posterity.interfaces.tables.prepared import Prepared, Tell
from posterity.interfaces.tables.run import TABLE, TableModel, fit_table, row_keys
from posterity.posterior.files import atomic_json, read_json

__all__ = ["compare_methods"]

COMPARISON = "comparison.json"


def compare_methods(
    prepared: Prepared, out: str | os.PathLike[str], *, tell: Tell = lambda line: None, progress: bool | None = None
) -> po.Evaluation:
    """Fit every method of the settings with every seed, each in a folder of its own, and evaluate all on the test rows.

    Finished runs in `out` are taken as they are, a killed one goes on. The baseline of the differences is the first
    method.

    Raises:
        DataError: no test rows, or no method.
        StorageError: `out` holds a comparison with other settings or rows.
    """
    settings, out = prepared.settings, Path(out)
    if not len(prepared.parts.test):
        raise DataError("a comparison needs test rows: --test 0.2, or a split column with test rows")
    named: dict[str, Named] = (
        dict(settings.methods) if isinstance(settings.methods, Mapping) else {name: name for name in settings.methods}
    )
    if not named:
        raise DataError("there is no method to compare: --methods map,ivon")
    methods = {name: build_method(each) for name, each in named.items()}
    budget = prepared.epochs * max(method.members for method in methods.values())
    train, test = (prepared.encoded(rows) for rows in (prepared.parts.train, prepared.parts.test))
    validation = prepared.encoded(prepared.parts.validation) if len(prepared.parts.validation) else None
    if settings.data_weights and validation is None:
        raise DataError("a data_weight is picked on validation rows: --validation 0.15, or without --data-weights")
    _claim(out, prepared, budget, int(row_keys(train[0]).sum()))

    def fits(name: str, weight: float) -> list[TableModel]:
        """Every seed of a method, fitted or found."""
        own = settings.data_weight == weight
        told = dataclasses.replace(prepared, settings=settings.updated(data_weight=weight))
        epochs = max(1, round(budget / methods[name].members))
        found = []
        for seed in range(settings.seed, settings.seed + settings.seeds):
            place = f"{name}-{seed}" if own else f"{name}-w{weight:g}-{seed}"
            if not (out / place / TABLE).exists():
                tell(f"{place}: {methods[name].members} x {epochs} epochs")
            found.append(
                fit_table(
                    told, out / place, method=named[name], epochs=epochs, seed=seed, resume=True, progress=progress
                )
            )
        return found

    tables = {name: fits(name, settings.data_weight) for name in methods}
    picked: dict[str, float] = {}
    for name in methods if settings.data_weights else ():
        picked[name] = min(settings.data_weights, key=lambda weight: _nll(fits(name, weight), validation))
        tell(f"{name}: the validation rows like data_weight {picked[name]:g} best")
        if picked[name] != settings.data_weight:
            tables[f"{name}, data_weight {picked[name]:g}"] = fits(name, picked[name])
    rows = prepared.frame.iloc[prepared.parts.test]
    options = tables[next(iter(methods))][0].evaluation_options(rows, groups=prepared.groups)
    models = {name: [table.model for table in seeds] for name, seeds in tables.items()}
    result = compare(models, test, validation=validation, **options)
    result.settings.update(_said(prepared, budget))
    if picked:
        result.settings["data_weight_picked"] = picked
    return result


def _nll(tables: Sequence[TableModel], validation: Any) -> float:
    """The mean over seeds of the validation NLL."""
    inputs, targets = validation
    return sum(-float(table.model.predict(inputs).log_prob(targets).mean()) for table in tables) / len(tables)


def _said(prepared: Prepared, budget: int) -> dict[str, Any]:
    settings, parts = prepared.settings, prepared.parts
    return {
        "data": str(settings.data),
        "target": prepared.target.name,
        "task": prepared.target.task,
        "rows": {"train": len(parts.train), "validation": len(parts.validation), "test": len(parts.test)},
        "network": settings.network,
        "likelihood": prepared.likelihood,
        "prior_std": settings.prior,
        "data_weight": settings.data_weight,
        "data_weight_grid": list(settings.data_weights),
        "calibrated": prepared.calibrates,
        "budget": f"{budget} passes over the training rows for each method and seed, members together",
        "batch_size": prepared.batch_size,
        "seeds": list(range(settings.seed, settings.seed + settings.seeds)),
        "split_seed": settings.split_seed,
    }


def _claim(out: Path, prepared: Prepared, budget: int, rows: int) -> None:
    """Note what is compared in `out`, or find the same noted there."""
    settings = prepared.settings
    told = {
        "format_version": 1,
        "rows": rows,
        "budget": budget,
        "batch_size": prepared.batch_size,
        **{
            name: getattr(settings, name)
            for name in ("target", "network", "likelihood", "prior", "data_weight", "calibrate", "split_seed")
        },
    }
    path = out / COMPARISON
    if path.exists():
        if differ := [key for key, value in told.items() if read_json(path).get(key) != value]:
            raise StorageError(f"{out} holds a comparison with another {', '.join(differ)}: give another --out")
        return
    if out.exists() and any(out.iterdir()):
        raise StorageError(f"{out} holds something else: give another --out")
    out.mkdir(parents=True, exist_ok=True)
    atomic_json(path, told)
