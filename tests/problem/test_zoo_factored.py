"""Every network of the zoo with factors in the place of its matrices: the loss and its gradient are those of the product."""

from __future__ import annotations

import warnings
from contextlib import suppress

import pytest
import torch

import posterity as po
from posterity.problem.carrier import leaves
from posterity.problem.factored import Factored
from posterity.problem.factored_change import FactoredChange
from posterity.problem.likelihoods import likelihood_from
from posterity.problem.network import Network
from posterity.random import Random
from posterity.tree import Tree, weights

from .zoo import ROWS, ZOO, Animal

with suppress(ImportError):
    from . import zoo_transformers  # noqa: F401

REFUSED = {"embedding_with_max_norm": "max_norm"}  # rewrites its weight


def problem_of(animal: Animal) -> tuple[po.NetworkProblem, object]:
    net, x, y = animal.build()
    likelihood = likelihood_from(animal.likelihood)
    likelihood = likelihood.surveyed([y]) if hasattr(likelihood, "surveyed") else likelihood
    reader = po.problem.batches.Reader(target=animal.target)
    problem = po.NetworkProblem(Network(net, output=animal.output), likelihood, data_size=ROWS, reader=reader)
    batch = {**x, animal.target: y} if animal.target is not None and isinstance(x, dict) else (x, y)
    problem.probe(batch, Random(0))
    return problem, batch


def factored(theta: Tree, change: bool) -> tuple[Tree, Tree]:
    """The tree with factors of rank 2 in the place of its matrices, and the same written out."""
    carried, dense = dict(theta), dict(theta)
    for name, leaf in weights(theta).items():
        if leaf.ndim < 2 or name.startswith("likelihood.") or "parametrizations" in name or name.endswith(("_g", "_v")):
            continue
        random = Random(1).fold(name)
        size = float(leaf.double().std(correction=0)) or 0.1
        left = random.fold("left").normal((leaf.shape[0], 2), like=leaf) * size
        right = random.fold("right").normal((*leaf.shape[1:], 2), like=leaf)
        weight = FactoredChange(leaf, left, right) if change else Factored(left, right)
        carried[name], dense[name] = weight, weight.dense().detach()
    return carried, dense


@pytest.mark.parametrize("change", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_factors_say_what_their_product_says(name: str, change: bool) -> None:
    problem, batch = problem_of(ZOO[name])
    carried, dense = factored(problem.start(), change)
    if name in REFUSED:
        with pytest.raises(po.CompatibilityError, match=REFUSED[name]):
            problem.nll(carried, batch, Random(2))
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        loss, gradient, _ = problem.nll(carried, batch, Random(2))
        wanted, by_dense, _ = problem.nll(dense, batch, Random(2))
    half = any(leaf.dtype == torch.bfloat16 for leaf in dense.values())
    assert float(loss) == pytest.approx(float(wanted), rel=2e-2 if half else 1e-4)
    if half:
        return
    found = leaves(gradient)
    for key, weight in carried.items():
        if not isinstance(weight, Factored | FactoredChange) or key in problem.idle:
            continue
        g = by_dense[key].double()
        left = torch.einsum("i...,...r->ir", g, weight.right.double())
        right = torch.einsum("i...,ir->...r", g, weight.left.double())
        scale = max(float(left.abs().max() + right.abs().max()), 1e-3)  # a gradient may vanish but for rounding
        assert float((found[f"{key}::left"] - left).abs().max()) <= 1e-3 * scale, key
        assert float((found[f"{key}::right"] - right).abs().max()) <= 1e-3 * scale, key
