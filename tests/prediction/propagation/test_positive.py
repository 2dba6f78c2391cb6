"""Powers and logarithms against draws of a lognormal, for narrow and for wide inputs, where a normal has no moments."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from posterity.posterior.diagonal import Diagonal
from posterity.prediction.propagation.eager import Propagated, unwrapped
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.prediction.propagation.value import MeanVar
from posterity.problem.likelihoods import Gaussian
from posterity.problem.network import Network
from posterity.problem.priors import Normal
from posterity.problem.problem import NetworkProblem
from posterity.random import Random

DRAWS = 200_000
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "log": torch.log, "log2": torch.log2, "log10": torch.log10, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "1 / x": lambda x: 1.0 / x, "x^-1.5": lambda x: x**-1.5,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0])
def test_moments_are_those_of_a_lognormal(name: str, ratio: float) -> None:
    """200000 draws leave 0.0022 of a std in the mean, and with heavy tails (x^-1.5 at ratio 1) some 10 % of the variance."""
    mean = torch.tensor([0.05, 2.0, 40.0], dtype=torch.float64)
    spread = math.log1p(ratio**2)
    z = Random(5).normal((DRAWS, 3)).double()
    draws = FUNCTIONS[name](mean * torch.exp(math.sqrt(spread) * z - spread / 2))
    found = unwrapped(FUNCTIONS[name](Propagated(MeanVar(mean, (ratio * mean).square()))))
    std = draws.std(0)
    assert ((found.mean - draws.mean(0)).abs() <= 0.012 * std).all()
    torch.testing.assert_close(found.var.sqrt(), std, rtol=0.1, atol=0)


def test_log1p_knows_where_it_is() -> None:
    x = MeanVar(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 0.1]))
    shifted = MeanVar(x.mean + 1, x.var)
    found, wanted = unwrapped(torch.log1p(Propagated(x))), unwrapped(torch.log(Propagated(shifted)))
    torch.testing.assert_close((found.mean, found.var), (wanted.mean, wanted.var))


def test_a_norm_by_hand_is_finite_under_wide_weights() -> None:
    """As Llama's, where the mean square is within a few of its stds of 0."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 6), nn.Linear(6, 3)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embedding(ids).mean(1)
            return self.head(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    with Random(0).forked():
        problem = NetworkProblem(Network(Normed()), Gaussian(std=0.1), Normal(1.0), data_size=5)
    means = {name: leaf for name, leaf in problem.start().items() if not name.startswith("likelihood.")}
    posterior = Diagonal(
        problem.start(), {name: torch.full_like(leaf, 2.0 if "embed" in name else 0.1) for name, leaf in means.items()}
    )
    found = propagate(problem, weight_values(posterior), torch.tensor([[0, 3, 5], [1, 2, 6]]))
    assert torch.isfinite(found.mean).all()
    assert torch.isfinite(found.var).all()
    assert (found.var > 0).all()
