"""Propagation through networks that others wrote, unchanged: the bench's small configurations."""

from __future__ import annotations

import pytest
import torch

import posterity as po
from posterity.bench.propagation_models import noisy
from posterity.bench.zoo import FRESH
from posterity.posterior.diagonal import Diagonal
from posterity.prediction.propagation.graph import graph_of
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.prediction.propagation.value import MeanVar

pytest.importorskip("transformers", reason="the huggingface extra is not installed")

NO_GRAPH = {"ViLT": "torch.export cannot write this network down"}  # takes its pictures' sizes from their pixels


@pytest.mark.parametrize("name", FRESH)
def test_every_output_has_a_variance_and_without_spread_the_networks_own_value(name: str) -> None:
    one = FRESH[name]()
    problem, posterior = noisy(one)
    still = Diagonal(posterior.means, {key: torch.zeros_like(std) for key, std in posterior.stds.items()})
    with torch.no_grad():
        own = problem.outputs(posterior.means, one.inputs)
        sure = propagate(problem, weight_values(still), one.inputs)
        found = propagate(problem, weight_values(posterior), one.inputs)
    assert isinstance(sure, MeanVar)
    assert isinstance(found, MeanVar)
    # float32 through some 30 operations whose moments are formed otherwise than the plain values
    torch.testing.assert_close(sure.mean, own, rtol=1e-4, atol=1e-5)
    assert float(sure.var.abs().max()) <= 1e-6 * float(found.var.max())
    assert found.mean.shape == own.shape
    assert bool(found.mean.isfinite().all())
    assert bool((found.var > 0).all())


@pytest.mark.slow
@pytest.mark.parametrize("name", FRESH)
def test_the_graph_says_what_the_eager_pass_says(name: str) -> None:
    one = FRESH[name]()
    problem, posterior = noisy(one)
    values = weight_values(posterior)
    args, kwargs = problem.network.arguments(one.inputs)
    with torch.no_grad():
        if name in NO_GRAPH:
            with pytest.raises(po.CompatibilityError, match=NO_GRAPH[name]):
                graph_of(problem.network, values, one.inputs)
            return
        found = propagate(problem, values, one.inputs)
        graph = graph_of(problem.network, values, one.inputs)
        for rows in (len(found.mean), 1):
            mean, var = graph(*(leaf[:rows] for leaf in (*args, *kwargs.values())))
            torch.testing.assert_close(mean, found.mean[:rows], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(var, found.var[:rows], rtol=1e-4, atol=1e-5 * float(found.var.max()))
