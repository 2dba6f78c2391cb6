"""Geweke's joint test (2004) of the samplers' steps: data drawn anew under the weights after every step of a chain.

Weights and data then have their joint distribution, whose weights are the prior's, N(0, p^2), whatever a step does on the
way: a wrong factor of N, of the prior, of the noise or of the friction moves their variance. 4000 chains side by side, the
outputs of one layer, each with rows of its own: variances are off by sqrt(2 / 4000) = 2.2 %.
"""

from __future__ import annotations

import pytest
import torch
from tests.truth.seeds import stream
from torch import Tensor, nn

import posterity as po
from posterity.inference.algorithm import Plan
from posterity.inference.sampler import Sampler
from posterity.problem.batches import Batch
from posterity.problem.likelihoods import Gaussian

CHAINS, ROWS, NOISE, PRIOR, STEPS = 4000, 5, 0.7, 1.3, 1500
ERROR = (2 / CHAINS) ** 0.5


def last_weights(sampler: Sampler, data_weight: float = 1.0) -> Tensor:
    """[chains] the weights after the last step, started at the prior."""
    x = 1 + stream(0).normal((ROWS, 1))
    likelihood = Gaussian(std=NOISE, standardize=False).surveyed([torch.zeros(ROWS, CHAINS)])
    network = nn.Linear(1, CHAINS, bias=False)
    problem = po.NetworkProblem(network, likelihood, po.Normal(PRIOR), data_size=ROWS, data_weight=data_weight)
    problem.probe(Batch(x, torch.zeros(ROWS, CHAINS), rows=ROWS), stream(0))
    start = {"weight": PRIOR * stream(1).normal((CHAINS, 1))}
    random, plan = stream(2), Plan(ROWS, STEPS, STEPS)
    state = sampler.init(problem, start, random, plan)
    with problem.network.session(train=True):
        for step in range(STEPS):
            mean = x @ state.theta["weight"][0].T
            y = mean + NOISE * stream(3).fold(step).normal((ROWS, CHAINS))
            state, _ = sampler.step(problem, state, [Batch(x, y, rows=ROWS)], random)
    return state.theta["weight"][0].flatten().double()


SHARED = {"members": 1, "mass": "identity", "noise_correction": False, "warmup": 0, "draws_per_chain": STEPS, "thin": 1}
# h^2 P is 0.01 and h P 0.001 at the precision P of what one step sees: the bias of a step is below 1 % of a variance
SAMPLERS = {
    "sghmc": po.SGHMC(friction=0.1, step_size=0.025, **SHARED),
    "sghmc, euler": po.SGHMC(friction=0.1, step_size=0.005, integrator="euler", **SHARED),
    "sgld": po.SGLD(step_size=1e-3, **SHARED),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_weights_stay_the_priors(name: str) -> None:
    found = last_weights(SAMPLERS[name])
    assert abs(found.mean()) < 4 * PRIOR / CHAINS**0.5
    assert abs(found.var() / PRIOR**2 - 1) < 4 * ERROR


def test_it_tells_a_wrong_scale() -> None:
    """Rows that count four times, and are drawn once."""
    found = last_weights(SAMPLERS["sghmc"], data_weight=4.0)
    assert abs(found.var() / PRIOR**2 - 1) > 6 * ERROR
