"""The graph front end says what the eager one says, for any number of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.posterior.diagonal import Diagonal
from posterity.prediction.propagation.graph import graph_of
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.prediction.propagation.run import Pass
from posterity.prediction.propagation.value import MeanVar, Value
from posterity.problem.network import Network
from posterity.random import Random


class Tied(nn.Module):
    """One matrix reads and writes; an in-place sum; two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = nn.Embedding(9, 8), nn.Linear(8, 9, bias=False)
        self.write.weight = self.read.weight
        self.norm, self.places = nn.LayerNorm(8), nn.Embedding(9, 8)

    def forward(self, words: Tensor, places: Tensor) -> dict[str, Tensor]:
        h = self.read(words)
        h += self.places(places)
        return {"scores": self.write(self.norm(h)), "other": h}


class InPlace(nn.Module):
    """Attention and norms by hand, of which steps are written in place: before, on the way and after."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.query(x) @ self.key(x).mT
        logits.mul_(0.4)
        out = torch.softmax(logits, -1) @ self.value(x)
        square = out.pow(2).mean(-1, keepdim=True)
        square.add_(1e-5)
        own = out * torch.rsqrt(square)
        before = torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + 1e-5)
        out.mul_(2.0)
        return self.head(own + out * before).mean(1)


NETWORKS: dict[str, tuple[object, tuple[int, ...]]] = {
    "perceptron": (nn.Sequential(nn.Linear(7, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)), (5, 7)),
    "convolutional": (
        nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(4, 3),
        ),
        (4, 2, 9, 8),
    ),
    "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (4, 5, 8)),
    "in place": (InPlace(), (3, 5, 6)),
}  # fmt: skip


def setting(module: nn.Module, output: str | None = None) -> tuple[po.NetworkProblem, dict[str, Value]]:
    network = Network(module.eval(), output=output)
    problem = po.NetworkProblem(network, po.Gaussian(std=1.0), po.Normal(1.0), data_size=10)
    means = {name: leaf.detach() for name, leaf in network.trainable.items()}
    return problem, weight_values(Diagonal(means, {name: 0.1 * torch.ones_like(leaf) for name, leaf in means.items()}))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_says_what_the_eager_pass_says(name: str) -> None:
    module, shape = NETWORKS[name]
    problem, values = setting(module)
    x = Random(0).fold(name).normal(shape)
    with torch.no_grad():
        whole = propagate(problem, values, x)
        graph = graph_of(problem.network, values, x)
        for rows in (shape[0], 1):
            mean, var = graph(x[:rows])
            torch.testing.assert_close(mean, whole.mean[:rows], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(var, whole.var[:rows], rtol=1e-5, atol=1e-6)


def test_tied_weights_vary_under_each_of_their_names() -> None:
    problem, values = setting(Tied(), output="scores")
    inputs = {"words": torch.tensor([[1, 2], [3, 4]]), "places": torch.tensor([[0, 1], [0, 1]])}
    with torch.no_grad():
        whole = propagate(problem, values, inputs)
        mean, var = graph_of(problem.network, values, inputs)(*inputs.values())
    torch.testing.assert_close((mean, var), (whole.mean, whole.var))


def test_sites_have_the_names_of_the_eager_pass() -> None:
    module, shape = NETWORKS["perceptron"]
    problem, values = setting(module)
    x = Random(0).normal(shape)
    scaled = Pass(scales={"1#0": torch.tensor(3.0), "2#0": torch.tensor(0.5)})
    with torch.no_grad():
        whole = propagate(problem, values, x, scaled)
        _, var = graph_of(problem.network, values, x, scaled)(x)
        _, plain = graph_of(problem.network, values, x)(x)
    assert isinstance(whole, MeanVar)
    torch.testing.assert_close(var, whole.var)
    assert not torch.allclose(var, plain)


def test_what_cannot_be_written_down_is_said() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if float(x.detach().sum()) > 0 else x

    problem, values = setting(nn.Sequential(nn.Linear(3, 3), Branching()))
    with pytest.raises(po.CompatibilityError, match="torch.export cannot write this network down"):
        graph_of(problem.network, values, torch.ones(2, 3))


def test_low_rank_weights_keep_their_factors() -> None:
    x = Random(3).normal((31, 6))
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 1))
    model = po.fit(net, (x, x[:, 0]), "gaussian", po.LowRankVI(rank=3), epochs=3, seed=0, progress=False)
    values = weight_values(model.posterior)
    with torch.no_grad():
        found = propagate(model.problem, values, x)
        mean, var = graph_of(model.problem.network, values, x)(x)
    torch.testing.assert_close(mean, found.mean)
    torch.testing.assert_close(var, found.var)
