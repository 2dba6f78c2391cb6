"""Chains for the tests: the posterior that SGHMC leaves, with draws that are made up."""

import math

import torch
from torch import nn

import posterity as po
from posterity.posterior.chains import Chains
from posterity.posterior.draws import Draws
from posterity.problem.scaling import Scaling


def about(members=5, lost=(3,), steps=41, warmup=400, thin=20, **more):
    """What a fit records; member 3 left after its twentieth recorded step."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(2, steps, members, generator=generator).tolist()
    every = [20 * i for i in range(steps)]
    nll = [[0.5 + 0.4 * math.exp(-t / 150) + 0.02 * e for e in row] for t, row in zip(every, noise[0])]
    kinetic = [[1 + 0.02 * e for e in row] for row in noise[1]]
    for member in lost:
        for i in range(steps):
            nll[i][member] = nll[i][member] + 0.2 * 1.5**i if i < 20 else None
            kinetic[i][member] = kinetic[i][member] + 0.1 * i if i < 20 else None
    return {
        "step_size": [1e-3 + 1e-4 * k for k in range(members)],
        "stable_limit": [5e-3] * members,
        "noise_limit": None,
        "friction": 0.05,
        "temperature": 1.0,
        "thin": thin,
        "warmup": warmup,
        "kinetic_temperature": [1 + 0.01 * k for k in range(members)],
        "noise_ratio": {"0.05": 0.01, "0.5": 0.2, "0.95": 0.7, "clamped": 0.03},
        "effective_temperature": [1.02] * members,
        "mass": {"kind": "second-moment", "layer_wise": False, "shared": False},
        "mass_similarity": 0.12,
        "start_nll": [0.9] * members,
        "chain_nll": [0.52] * members,
        "lost": {str(k): "its gradient was not finite at step 400" for k in lost},
        "trace": {"step": every, "nll": nll, "kinetic": kinetic},
        **more,
    }


def regression(rows=67, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    return x, x[:, 0] + 0.3 * torch.randn(rows, generator=generator)


def classes(rows=67, seed=0):
    x, y = regression(rows, seed)
    return x, (y > 0).long() + (y > 0.7).long()


def ar(rho, *shape, seed=1):
    """Series of unit variance and correlation rho between neighbours, [..., draw]."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    x[..., 1:] *= math.sqrt(1 - rho**2)
    shift = 1
    while shift < shape[-1]:  # x_t = sum_k rho^k e_{t-k}, twice as many terms each time
        x[..., shift:] += rho**shift * x[..., :-shift].clone()
        shift *= 2
    return x


def model(data, likelihood=None, names=(0, 1, 2, 4), per_chain=40, rho=0.0, outputs=1, told=None, spread=0.05):
    """A model whose chains wander about centres of their own: made-up draws, no fit.

    The first output is 0.3 away from x[0] in each chain, and `spread` is the std of every weight along a chain.
    """
    likelihood = likelihood or po.Gaussian(std=0.3, scaling=Scaling.identity())
    problem = po.NetworkProblem(nn.Linear(3, outputs), likelihood, 1.0, data_size=len(data[1]))
    told = told or about()
    every = len(told["step_size"])
    stacked = {}
    for i, (name, leaf) in enumerate(problem.start().items()):
        steps = spread * ar(rho, *leaf.shape, len(names), per_chain, seed=i).movedim((-2, -1), (0, 1))
        own = 0.3 * torch.randn(len(names), 1, *leaf.shape, generator=torch.Generator().manual_seed(90 + i))
        centre = torch.zeros_like(leaf)
        centre.view(outputs, -1)[:, 0] = torch.linspace(1, -1, outputs)[:outputs] if name == "weight" else 0
        draws = torch.full((per_chain, every, *leaf.shape), math.nan)  # those of lost chains are nobody's business
        draws[:, list(names)] = (centre + own + steps).float().transpose(0, 1)
        stacked[name] = draws.flatten(0, 1)
    settings = {"method": "sghmc", "seed": 0, "data_size": len(data[1])}
    return po.BayesianModel(problem, Chains(Draws(stacked), every, names, told), settings=settings)
