"""The parts that algorithms are made of: starts, potentials, schedules, Adam, ensembles."""

from __future__ import annotations

import math

import pytest
import torch

import posterity as po
from posterity.inference.adam import Adam
from posterity.inference.algorithm import gradients, keep_buffers, potentials, stacked_start, varying
from posterity.inference.schedule import at
from posterity.problem.batches import Batch
from posterity.problem.priors import Laplace, Normal, Prior, ScaleMixture
from posterity.random import Random
from posterity.testing.runs import network_problem, rows_for
from posterity.testing.worlds import batch_norm_network, inputs, labels, plain_network
from posterity.tree import Tree, member, stack, weights

X = inputs()
Y = labels(X)


@pytest.mark.parametrize("prior", [Normal(0.3), Laplace(0.3), ScaleMixture(1.0, 0.1)])
def test_a_potential_and_its_gradient(prior: Prior) -> None:
    """U = -log p - w (N/B) sum log p(y | x), and what autograd makes of it, for members with batches of their own."""
    problem = network_problem(plain_network(), X, Y, "categorical", prior)
    problem.data_weight = 1.7
    thetas = stack(problem.starts(2, "reset", Random(0)))
    batches = [rows_for(X, Y)(0, k) for k in range(2)]
    energy, gradient, _ = potentials(problem, {n: leaf.clone() for n, leaf in thetas.items()}, batches, Random(0), 3)
    for k, batch in enumerate(batches):
        theta = {name: leaf.double().requires_grad_() for name, leaf in member(thetas, k).items()}
        hidden = torch.tanh(batch.inputs.double() @ theta["0.weight"].T + theta["0.bias"])
        logits = hidden @ theta["2.weight"].T + theta["2.bias"]
        fit = torch.nn.functional.cross_entropy(logits, batch.targets, reduction="sum")
        wanted = 1.7 * 23 / 7 * fit - problem.prior.log_density(theta)
        assert float(energy[k]) == pytest.approx(wanted.item(), rel=1e-5)  # float32 over 23 rows
        for (name, leaf), one in zip(theta.items(), torch.autograd.grad(wanted, list(theta.values()))):
            torch.testing.assert_close(gradient[name][k].double(), one, rtol=1e-4, atol=1e-4, msg=name)
            del leaf


def test_the_gradient_is_of_the_mean_loss_whatever_the_split() -> None:
    """One batch of 12, and 3 + 4 + 5 accumulated."""
    problem = network_problem(plain_network(), X, Y, "categorical")
    theta = stack([problem.start()])
    parts = [Batch(X[a:b], Y[a:b], rows=b - a) for a, b in ((0, 3), (3, 7), (7, 12))]
    whole, wanted, _ = gradients(problem, theta, [Batch(X[:12], Y[:12], rows=12)], Random(0), 0)
    split, found, info = gradients(problem, theta, [parts], Random(0), 0)
    torch.testing.assert_close(split, whole)
    for name, leaf in wanted.items():
        torch.testing.assert_close(found[name], leaf)
    norm = math.sqrt(sum(float(leaf.square().sum()) for leaf in found.values()))
    assert float(info.gradient_norm) == pytest.approx(norm, rel=1e-5)


def test_random_numbers_have_the_address_of_member_and_step() -> None:
    """Dropout: another mask for another member or step, the same one when asked again."""
    problem = network_problem(batch_norm_network(), X, Y, "categorical")
    thetas, batch = stack([problem.start()] * 2), Batch(X, Y, rows=23)

    def losses(step: int) -> list[float]:
        return gradients(problem, thetas, [batch, batch], Random(0), step)[0].tolist()

    assert losses(0) == losses(0)
    assert len({*losses(0), *losses(1)}) == 4


def test_starts_are_stacked_and_counted() -> None:
    trees: list[Tree] = [{"a": torch.full((3,), float(k))} for k in range(2)]
    problem = po.Density(lambda t: -t["a"].sum(), trees[0])
    stacked = stacked_start(problem, trees, 2)
    assert stacked["a"].tolist() == [[0.0] * 3, [1.0] * 3]
    alone = stacked_start(problem, trees[1], 1)
    alone["a"].add_(9.0)
    assert trees[1]["a"].tolist() == [1.0] * 3, "a start is copied"
    assert stacked_start(problem, trees[1], 2)["a"].tolist() == [[1.0] * 3] * 2, "one start for all"
    with pytest.raises(ValueError, match="3 members need as many starts, got 2"):
        stacked_start(problem, trees, 3)


def test_buffers_are_kept_for_finite_members_only() -> None:
    theta = {"buffer.b": torch.zeros(2, 3), "w": torch.zeros(2, 1)}
    new = {"buffer.b": torch.ones(2, 3)}
    keep_buffers(theta, po.Info(torch.zeros(2), torch.zeros(2), torch.tensor([False, True]), new))
    assert theta["buffer.b"].tolist() == [[0.0] * 3, [1.0] * 3]


def test_what_varies_is_what_a_forward_reaches() -> None:
    net = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 5), "idle": torch.nn.Linear(2, 2)})
    net.forward = lambda x: net["used"](x)  # type: ignore[method-assign]
    problem = network_problem(net, X, Y, "categorical")
    assert set(varying(problem, problem.start())) == {"used.weight", "used.bias"}
    assert set(weights(problem.start())) == {"used.weight", "used.bias", "idle.weight", "idle.bias"}


def test_adam_is_torchs() -> None:
    x = {"a": torch.tensor([0.3, -0.2, 0.5]), "b": torch.tensor([[0.1], [0.9]])}
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in x.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=0.03, betas=(0.8, 0.95))
    m, v = ({name: torch.zeros_like(leaf) for name, leaf in x.items()} for _ in range(2))
    for t in range(1, 6):
        optimizer.zero_grad()
        (leaves["a"].cosh().sum() + (leaves["a"][0] * leaves["b"]).sum()).backward()
        gradient = {name: leaf.grad.clone() for name, leaf in leaves.items() if leaf.grad is not None}
        optimizer.step()
        Adam(0.03, t, 0.8, 0.95).update_(x, gradient, m, v)
    for name, leaf in leaves.items():
        torch.testing.assert_close(x[name], leaf.detach())


def test_adam_leaves_dead_members_alone() -> None:
    x, gradient, m, v = ({"a": torch.full((3, 2), value)} for value in (1.0, 0.5, 0.0, 0.0))
    gradient["a"][1] = torch.nan
    Adam(0.1, 1).update_(x, gradient, m, v, alive=torch.tensor([True, False, True]))
    assert x["a"][1].tolist() == [1.0, 1.0]
    assert not m["a"][1].any()
    assert not v["a"][1].any()
    torch.testing.assert_close(x["a"][[0, 2]], torch.full((2, 2), 0.9))


def test_a_cosine_warms_up_and_comes_down() -> None:
    schedule = po.Cosine(2.0, warmup=0.2, final=0.1)
    values = [at(schedule, t, 10) for t in range(10)]
    assert values[0] < values[1] < values[2] == 2.0
    assert values[2:] == sorted(values[2:], reverse=True)
    assert values[9] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 7 / 8))))
    assert at(schedule, 10, 10) == pytest.approx(0.2)
    assert at(0.3, 7, 10) == 0.3
    for wrong in ({"peak": 0.0}, {"peak": math.inf}, {"peak": 1.0, "warmup": 1.0}, {"peak": 1.0, "final": 2.0}):
        with pytest.raises(ValueError, match="must"):
            po.Cosine(**wrong)


def test_an_ensemble_is_the_algorithm_with_members() -> None:
    assert po.DeepEnsemble(3, init="same", learning_rate=0.1) == po.MAP(
        members=3, member_init="same", learning_rate=0.1
    )
    assert po.Ensemble(po.IVON(beta1=0.5), 4) == po.IVON(beta1=0.5, members=4)
    with pytest.raises(ValueError, match="init must be"):
        po.Ensemble(po.MAP(), 2, init="fresh")
    with pytest.raises(ValueError, match="at least 1"):
        po.Ensemble(po.MAP(), 0)
    with pytest.raises(ValueError, match="takes an algorithm first"):
        po.Ensemble(3)  # type: ignore[arg-type]


def test_hyperparameters_are_json() -> None:
    found = po.LastLayerLaplace(base=po.MAP(learning_rate=po.Cosine(0.1))).hyperparameters()
    assert found["base"]["learning_rate"] == {"peak": 0.1, "warmup": 0.0, "final": 0.0}
    assert found["structure"] == "full"


def test_an_ensemble_has_its_own_title() -> None:
    algorithms = (po.MAP(), po.DeepEnsemble(3), po.IVON(), po.Ensemble(po.IVON(), 2))
    assert [algorithm.title for algorithm in algorithms] == ["map", "deep-ensemble", "ivon", "ivon-ensemble"]
