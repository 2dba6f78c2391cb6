"""N is what was seen: however the same rows are dealt out, weighted or counted, the posterior is the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from posterity.model import BayesianModel
from posterity.testing.case import Case
from posterity.testing.expect import expect, near
from posterity.testing.resume import all_draws
from posterity.testing.worlds import inputs, labels, plain_network
from posterity.training.fit import fit

__all__ = ["data_size_is_what_was_seen", "same_rows_same_posterior"]

# A step is a sum over rows that is rounded in another order, 12 x 6e-8 of it; a few steps later, and after a division by
# a root of itself (Adam, IVON), some hundred times that. Draws on the disk may be in float16: 2^-11 of the largest.
TOLERANCE = 1e-4
HALF = 2.0**-10


def same_rows_same_posterior(case: Case) -> None:
    """12 rows as one batch, as 3 x 4 and as 4 x 3 accumulated ones; twice over as 24 rows, with `data_weight=2`, and with
    `data_size=24`: within each group the same posterior, and another one from group to group.
    """
    x = inputs(12)
    y = labels(x)
    twice = torch.cat([x, x]), torch.cat([y, y])
    once = {
        "12 rows at once": _fitted(case, x, y, 12),
        "3 rows, 4 times accumulated": _fitted(case, x, y, 3, accumulation=4),
        "4 rows, 3 times accumulated": _fitted(case, x, y, 4, accumulation=3),
        "5 rows, 3 times accumulated": _fitted(case, x, y, 5, accumulation=3),
    }
    doubled = {
        "24 rows at once": _fitted(case, *twice, 24),
        "data_weight=2": _fitted(case, x, y, 12, data_weight=2.0),
        "data_size=24": _fitted(case, x, y, 12, data_size=24),
        "24 rows, 4 times accumulated": _fitted(case, *twice, 6, accumulation=4),
    }
    for group in (once, doubled):
        _alike(case, group)
    one, two = (next(iter(group.values())) for group in (once, doubled))
    pairs = zip(all_draws(one.posterior), all_draws(two.posterior))
    gap = max(float((a[name] - b[name]).abs().max()) for a, b in pairs for name in a)
    expect(gap > 10 * TOLERANCE, f"twice as much data moved no weight by more than {gap:.2g}: N has no effect")


def _fitted(case: Case, x: torch.Tensor, y: torch.Tensor, batch_size: int, **options: Any) -> BayesianModel:
    batches = DataLoader(TensorDataset(x, y), batch_size=batch_size)  # in order: every step sees every row
    return fit(plain_network(), batches, "categorical", case.algorithm, prior=0.3, epochs=6, **options)


def _alike(case: Case, group: Mapping[str, BayesianModel]) -> None:
    (first, wanted), *rest = group.items()
    for how, found in rest:
        pairs = list(zip(all_draws(found.posterior), all_draws(wanted.posterior), strict=True))
        expect(bool(pairs), "there are no draws to compare")
        for one, other in pairs:
            for name, leaf in other.items():
                tolerance = TOLERANCE + HALF * float(leaf.abs().max()) * case.emits
                near(one[name], leaf, tolerance, f"a draw of {name}, {how} against {first},")


def data_size_is_what_was_seen(case: Case) -> None:
    """N counts the rows of an epoch: with `drop_last`, a sampler of some rows, or a sampler with repeats."""
    x = inputs()
    data = TensorDataset(x, labels(x))
    some = SubsetRandomSampler(range(5, 16))
    repeats = torch.utils.data.RandomSampler(data, replacement=True, num_samples=31)
    for wanted, loader in {
        21: DataLoader(data, batch_size=7, drop_last=True),
        11: DataLoader(data, batch_size=4, sampler=some),
        8: DataLoader(data, batch_size=4, sampler=some, drop_last=True),
        31: DataLoader(data, batch_size=5, sampler=repeats),
    }.items():
        model = fit(case.network(plain_network()), loader, "categorical", case.algorithm, epochs=1)
        expect(model.problem.data_size == wanted, f"N is {model.problem.data_size}, where {wanted} rows were seen")
