"""Every network of the zoo, side by side and one by one, and left as it was."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.problem.batches import Batch
from posterity.problem.likelihoods import likelihood_from
from posterity.problem.network import Network
from posterity.tree import BUFFER, Tree

from .zoo import ROWS, ZOO, Animal

with suppress(ImportError):
    from . import zoo_transformers  # noqa: F401

MEMBERS = 2


def _rolled(value: Any, rows: int) -> Any:
    """The same rows in another order."""
    if isinstance(value, Tensor):
        return value.roll(rows, 0)
    if isinstance(value, Mapping):
        return {key: _rolled(part, rows) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_rolled(part, rows) for part in value)
    return [*value[-rows:], *value[:-rows]] if rows and isinstance(value, list) else value


def _problem(animal: Animal, how: str) -> tuple[po.NetworkProblem, list[Batch]]:
    with po.Random(1).forked(data=True):
        net, x, y = animal.build()
    likelihood = likelihood_from(animal.likelihood)
    likelihood = likelihood.surveyed([y]) if likelihood.needs_survey else likelihood
    problem = po.NetworkProblem(Network(net, animal.output), likelihood, data_size=ROWS, side_by_side=how)
    batches = [Batch(_rolled(x, k), _rolled(y, k), None, ROWS) for k in range(MEMBERS)]
    problem.probe(batches[0], po.Random(0))
    return problem, batches


def _stacked(problem: po.NetworkProblem) -> Tree:
    """Weights of members that differ."""
    start = problem.start()
    away = [
        po.Random(k).normals({n: leaf for n, leaf in start.items() if not n.startswith(BUFFER)}) for k in range(MEMBERS)
    ]
    return {
        name: torch.stack([leaf + 0.1 * noise[name] if name in noise else leaf for noise in away])
        for name, leaf in start.items()
    }


@pytest.mark.parametrize("name", ZOO)
def test_side_by_side_is_one_by_one(name: str) -> None:
    randoms = [po.Random(3).fold(k).fold(1) for k in range(MEMBERS)]
    problem, batches = _problem(ZOO[name], "loop")
    thetas = _stacked(problem)
    wanted = problem.nlls(thetas, batches, randoms)
    auto, batches = _problem(ZOO[name], "auto")
    found = auto.nlls(thetas, batches, randoms)
    # float32 sums of some hundred products in another order, through a few layers
    assert torch.allclose(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    assert found[2].finite.tolist() == wanted[2].finite.tolist()
    assert found[1].keys() == wanted[1].keys()
    assert found[2].buffers.keys() == wanted[2].buffers.keys()
    for leaf, value in wanted[1].items():
        scale = max(1.0, float(value.abs().max()))
        assert torch.allclose(found[1][leaf], value, rtol=0, atol=2e-6 * scale), leaf
    for leaf, value in wanted[2].buffers.items():
        assert torch.equal(found[2].buffers[leaf], value), leaf
