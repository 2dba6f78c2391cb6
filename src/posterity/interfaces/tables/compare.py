"""Methods x seeds on one table: the same rows, the same budget, resumable.

The budget is passes over the training rows, summed over the members of a method: an ensemble of five gets a fifth of
the epochs for each of its members. The split is the same for all, so that differences are paired by rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import posterity as po
from posterity.errors import DataError, StorageError
from posterity.evaluation.evaluate import compare
from posterity.interfaces.settings import Named, build_method
from posterity.interfaces.tables.run import Prepared, Tell, fit_table, row_keys
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
    _claim(out, prepared, budget, int(row_keys(train[0]).sum()))
    models: dict[str, list[po.BayesianModel]] = {}
    for name, method in methods.items():
        epochs = max(1, round(budget / method.members))
        for seed in range(settings.seed, settings.seed + settings.seeds):
            tell(f"{name}, seed {seed}: {method.members} x {epochs} epochs")
            fitted = fit_table(
                prepared, out / f"{name}-{seed}", method=named[name], epochs=epochs, seed=seed, resume=True,
                progress=progress,
            )  # fmt: skip
            models.setdefault(name, []).append(fitted.model)
    rows = prepared.frame.iloc[prepared.parts.test]
    options = fitted.evaluation_options(rows, groups=prepared.groups)
    validation = prepared.encoded(prepared.parts.validation) if len(prepared.parts.validation) else None
    result = compare(models, test, validation=validation, **options)
    result.settings.update(_said(prepared, budget))
    return result


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
