"""What is said does not depend on how it is asked, nor on where the model comes from."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from posterity.errors import PosterityWarning
from posterity.model import BayesianModel, load
from posterity.problem.priors import Normal
from posterity.random import Random
from posterity.testing.case import Case
from posterity.testing.expect import expect, near, same
from posterity.testing.resume import same_model
from posterity.testing.worlds import BATCH, batch_norm_network, inputs, labels, loader
from posterity.training.fit import fit

__all__ = ["predictions_are_invariant", "same_seed_twice", "saved_and_loaded"]


def _fitted(case: Case, **options: Any) -> BayesianModel:
    x = inputs(BATCH, seed=5)
    options = {"epochs": 2, "validation": (x, labels(x)), "prior": Normal(center="start"), **options}
    return fit(batch_norm_network(), loader(), "categorical", case.algorithm, **options)


def predictions_are_invariant(case: Case) -> None:
    """Probabilities do not depend on the batch size, the order of the rows, or a loader's workers (to 1e-5); two calls
    agree to the bit; another seed gives other draws of a posterior without end.
    """
    model, x = _fitted(case), inputs(11, seed=9)

    def said(rows: Any, **options: Any) -> Tensor:
        draws = None if model.posterior.finite else 5
        return model.predict(rows, via="draws", draws=draws, **options).log_probs  # type: ignore[attr-defined]

    wanted = said(x)
    same(said(x), wanted, "a second prediction")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, labels(x))
    asked = {
        "in batches of 1": said(x, batch_size=1),
        "in batches of 3": said(x, batch_size=3),
        "in blocks of one batch": said(x, batch_size=3, max_memory=1),
        "without workers": said(DataLoader(data, batch_size=3)),
        "with two workers": _two_workers(said, data),
        "in another order": said(x[order])[order.argsort()],
        "row by row": torch.cat([said(row[None]) for row in x]),
    }
    for how, found in asked.items():
        near(found.exp(), wanted.exp(), 1e-5, f"the prediction {how}")
    differs = not torch.equal(said(x, seed=1), wanted)
    expect(
        differs == (model.posterior.finite is None),
        "seed= changes the draws of a posterior without end, and only those",
    )


def _two_workers(said: Callable[[Any], Tensor], data: Dataset) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch thinks one processor too few for two workers
        return said(DataLoader(data, batch_size=3, num_workers=2))


def same_seed_twice(case: Case) -> None:
    """Two fits of one seed agree to the bit, whatever the global generators do; another seed's fit differs."""
    first = _fitted(case)
    with Random(7).forked(data=True):
        second = _fitted(case)
    same_model(second, first, "of a second fit")
    other = _fitted(case, seed=1)
    one, two = other.posterior.tensors(), first.posterior.tensors()
    differ = not one or any(not torch.equal(one[name], two[name]) for name in two)
    expect(differ, "another seed gave the same posterior: the batches are not addressed by it")


def saved_and_loaded(case: Case) -> None:
    """A run in `out` loaded with a fresh network, whose weights, frozen tensors and buffers are others, is the model that
    `fit` returned: posterior, prior, history, snapshots and predictions, calibrated too; a copy of it is as well.
    `resume=True` returns the finished run.
    """
    with tempfile.TemporaryDirectory() as name:
        out, copy = Path(name, "run"), Path(name, "copy")
        model = _fitted(case, out=out)
        fresh = batch_norm_network(seed=1)
        fresh[1].running_mean += 3.0  # type: ignore[index]
        for where, found in {"loaded": load(out, fresh), "resumed": _resumed(case, out)}.items():
            same_model(found, model, f"of the {where} run")
            same(_prior(found), _prior(model), f"the prior of the {where} run")
            same(found.problem.network.constants, model.problem.network.constants, f"the constants of the {where} run")
            same(found.settings, model.settings, f"the settings of the {where} run")
        model.calibrate(loader(shuffle=False))
        model.save(copy)
        same_model(load(copy, fresh), model, "of a saved and loaded copy")
        load(copy, fresh).save(copy)
        same_model(load(copy, fresh), model, "of a run that was loaded and saved over itself")


def _resumed(case: Case, out: Path) -> BayesianModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosterityWarning)  # that the run is finished
        return _fitted(case, out=out, resume=True)


def _prior(model: BayesianModel) -> dict[str, Any]:
    prior = model.problem.prior
    assert isinstance(prior, Normal)
    return {"stds": dict(prior.stds), "centers": dict(prior.centers)}
