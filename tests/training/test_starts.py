"""Where a fit starts: at the user's weights, at fresh ones, or where an earlier fit ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import posterity as po
from posterity.problem.network import Network
from posterity.problem.problem import NetworkProblem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.testing.expect import same
from posterity.testing.worlds import batch_norm_network, inputs, labels, plain_network
from posterity.training.starts import member_starts
from posterity.tree import Tree

X = inputs()
Y = labels(X)


def starts(algorithm: po.Algorithm, start: Any = None, builder: Any = None, net: nn.Module | None = None) -> list[Any]:
    problem = NetworkProblem(Network(net or plain_network()), po.Categorical(classes=(0, 1, 2, 3, 4)), data_size=23)
    return member_starts(problem, algorithm, start, builder, Random(0).fold("starts"))


def weights_of(net: nn.Module) -> Tree:
    return {name: leaf.detach().clone() for name, leaf in net.named_parameters()}


def test_the_first_member_starts_at_the_users_weights_and_the_others_afresh() -> None:
    found = starts(po.DeepEnsemble(3))
    same(found[0], weights_of(plain_network()), "the first start")
    for name in ("0.weight", "2.bias"):
        assert len({tuple(one[name].flatten().tolist()) for one in found}) == 3
    same(starts(po.DeepEnsemble(3)), found, "the same starts again")
    # torch's Linear starts within 1 / sqrt(3 inputs)
    assert 0.3 < float(found[1]["0.weight"].abs().max()) < 3**-0.5
    for one in starts(po.DeepEnsemble(3, init="same")):
        same(one, found[0], "a start at the same weights")


def test_a_network_that_is_built_is_built_for_each_member() -> None:
    def build() -> nn.Module:
        net = nn.Linear(3, 5)
        nn.init.normal_(net.weight, 7.0)
        return net

    first = build()
    state = torch.get_rng_state()
    found = starts(po.DeepEnsemble(3), builder=build, net=first)
    assert torch.get_rng_state().equal(state)
    same(found[0], weights_of(first), "the first start")
    assert len({float(one["weight"].sum()) for one in found}) == 3
    for one in found:
        assert abs(float(one["weight"].mean()) - 7.0) < 4 / 15**0.5
    model = po.fit(build, (X, Y), method=po.DeepEnsemble(3), epochs=1)
    again = po.fit(build, (X, Y), method=po.DeepEnsemble(3), epochs=1)
    same(again.posterior.tensors(), model.posterior.tensors(), "a fit of a network that is built")


def test_a_state_dict_starts_all_members_with_its_buffers() -> None:
    net = batch_norm_network(seed=1)
    net[1].running_mean += 3.0  # type: ignore[index, operator]
    found = starts(po.DeepEnsemble(2), net.state_dict(), net=batch_norm_network())
    for one in found:
        same(one["0.weight"], net.state_dict()["0.weight"], "a weight")
        same(one["buffer.1.running_mean"], net.state_dict()["1.running_mean"], "a buffer")
        assert "2.weight" not in one, "frozen tensors are the network's own"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[po.BayesianModel, Path]:
    folder = tmp_path_factory.mktemp("run")
    return po.fit(plain_network(), (X, Y), method=po.DeepEnsemble(2), validation=0.3, epochs=2, out=folder), folder


def test_an_ensemble_starts_another_fit(run: tuple[po.BayesianModel, Path]) -> None:
    """As a model, as its folder, and as snapshots: member by member, with the optimizer's statistics."""
    model, folder = run
    for given in (model, folder, str(folder), model.snapshots, [model]):
        found = starts(po.Ensemble(po.MeanFieldVI(), 2), given)
        assert all(isinstance(one, Snapshot) for one in found)
        same([one.flat() for one in found], [one.flat() for one in model.snapshots], "the snapshots")
    after = po.fit(plain_network(seed=3), (X, Y), method=po.DeepEnsemble(2, learning_rate=1e-12), start=model, epochs=1)
    for name, leaf in after.posterior.tensors().items():
        # steps of 1e-12 at most: nothing is left of the network's own weights
        torch.testing.assert_close(leaf, torch.stack([s.theta[name] for s in model.snapshots]), rtol=0, atol=1e-6)


def test_a_variational_fit_starts_another_at_its_mean() -> None:
    model = po.fit(plain_network(), (X, Y), method=po.MeanFieldVI(), epochs=1)
    (found,) = starts(po.MAP(), model)
    same(found, model.posterior.mean(), "the start")


def test_the_likelihoods_own_parameters_go_on_too() -> None:
    y = X[:, 0]
    model = po.fit(plain_network(1), (X, y), "gaussian", po.MAP(learning_rate=0.1), epochs=5)
    wanted = model.posterior.mean()["likelihood.log_std"]
    assert bool(wanted.any())
    after = po.fit(plain_network(1), (X, y), "gaussian", po.MAP(learning_rate=1e-12), start=model, epochs=1)
    torch.testing.assert_close(after.posterior.mean()["likelihood.log_std"], wanted, rtol=0, atol=1e-6)


def test_one_start_serves_all_members_and_two_do_not_serve_three(run: tuple[po.BayesianModel, Path]) -> None:
    (first,) = {float(one["0.weight"].sum()) for one in starts(po.DeepEnsemble(3), plain_network(seed=2).state_dict())}
    assert first == float(plain_network(seed=2).state_dict()["0.weight"].sum())
    with pytest.raises(po.CompatibilityError, match="2 sets of weights for 3 members"):
        starts(po.DeepEnsemble(3), run[0])
    with pytest.raises(po.CompatibilityError, match="another network"):
        starts(po.MAP(), nn.Linear(2, 2).state_dict())
    with pytest.raises(po.CompatibilityError, match=r"shape \(3, 4\) at '2\.weight', this network \(5, 4\)"):
        starts(po.MAP(), plain_network(3).state_dict())


def test_a_run_without_snapshots_says_so(tmp_path: Path) -> None:
    po.fit(plain_network(), (X, Y), method=po.IVON(), epochs=1, out=tmp_path)
    with pytest.raises(po.StorageError, match="keeps no snapshots: load the model"):
        starts(po.MAP(), tmp_path)
