"""Has a fit of a bare density arrived? Where it has, the scores at its draws cancel.

    r_i = |mean_s g_i| / std_s(g_i),    g = grad log p(theta_s),  theta_s ~ q

The reverse KL from a q whose centre c is free has the gradient -E_q[g] by c: 0 at its optimum, whatever the family and the
density; far from the mass of p all scores point there. No family says how far it is from p, this says how far from its best.
"""

from __future__ import annotations

import warnings

import torch

from posterity.errors import PosterityWarning
from posterity.posterior.posterior import Posterior
from posterity.problem.densities import Density
from posterity.random import Random
from posterity.tree import Tree, stack

__all__ = ["pull", "warn_of_pull"]

DRAWS = 64  # by chance r is 1/8, and 0.6 in the worst of 10^6 weights
FAR = 1.0


def pull(density: Density, posterior: Posterior, random: Random) -> tuple[str, float]:
    """The tensor with the largest r over `DRAWS` draws, and that r; infinite where equal scores are not 0."""
    scores = stack([_score(density, draw) for draw in posterior.draws(DRAWS, random)])
    worst = {}
    for name, g in scores.items():
        mean, spread = g.double().mean(0).abs(), g.double().std(0)
        worst[name] = torch.where(mean == 0, 0.0, mean / spread).nan_to_num(torch.inf, torch.inf).max().item()
    return max(worst.items(), key=lambda pair: pair[1])


def warn_of_pull(density: Density, posterior: Posterior, method: str, random: Random) -> None:
    """Warn where all scores still point one way. A finite posterior is its draws' own affair."""
    if posterior.finite is not None:
        return
    name, r = pull(density, posterior, random)
    if not r <= FAR:
        warnings.warn(
            f"{method} has not arrived: the mean score of {name!r} over {DRAWS} draws is {r:.3g} times its spread, "
            f"and about {DRAWS**-0.5:.2f} once it has. Start nearer to the mass, or give more steps or a larger init_std",
            PosterityWarning,
            stacklevel=3,
        )


def _score(density: Density, theta: Tree) -> Tree:
    """By `log_density` itself: wrappers that count scores or add noise to them are not asked."""
    plain = {name: leaf.detach().requires_grad_() for name, leaf in theta.items()}
    with torch.enable_grad():
        found = torch.autograd.grad(density.log_density(plain), list(plain.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(plain.items(), found)}
