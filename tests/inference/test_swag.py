"""SWAG: gradient descent as torch has it, and the normal that the collected weights give."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.errors import CompatibilityError
from posterity.posterior.low_rank import LowRankPlusDiagonal
from posterity.posterior.mixture import Mixture
from posterity.random import Random
from posterity.testing.runs import Moment, network_problem, rows_for, walk

ROWS, FEATURES, CLASSES = 41, 3, 5
X = Random(1).normal((ROWS, FEATURES))
Y = torch.arange(ROWS).remainder(CLASSES)
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


def net() -> nn.Module:
    with Random(0).forked():
        return nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, CLASSES))


def walked(method: po.SWAG, network: nn.Module | None = None) -> list[tuple[Moment, list[Tensor]]]:
    """The second stage, with each member's weights after every step."""
    problem = network_problem(network or net(), X, Y, "categorical", 0.7)
    found = []
    for one in walk(method, problem, rows_for(X, Y), 5):
        if isinstance(one.stage, po.SWAG):
            leaves = [torch.cat([one.state.theta[n][k].flatten() for n in NAMES]) for k in range(method.members)]
            found.append((one, leaves))
    return found


def joined(tree: dict[str, Tensor], columns: int | None = None) -> Tensor:
    parts = [tree[name].reshape(-1) if columns is None else tree[name].reshape(-1, columns) for name in NAMES]
    return torch.cat(parts)


def test_a_step_is_torchs_own() -> None:
    prior_std, weight = 0.7, 2.0
    method = po.SWAG(learning_rate=0.05, momentum=0.8, collections=3, every=2)
    start = net()
    # float32 and the same order of sums but for the prior's
    model = po.fit(
        start, (X, Y), "categorical", method, prior_std, batch_size=ROWS, data_weight=weight,
        start=dict(start.named_parameters()),
    )  # fmt: skip
    plain = net()
    optimizer = torch.optim.SGD(
        plain.parameters(), lr=0.05, momentum=0.8, weight_decay=1 / (prior_std**2 * weight * ROWS)
    )
    collected = []
    for t in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(X), Y).backward()
        optimizer.step()
        if t % 2 == 1:
            collected.append(torch.cat([p.detach().flatten() for p in plain.parameters()]))
    assert isinstance(model.posterior, LowRankPlusDiagonal)
    torch.testing.assert_close(joined(model.posterior.mean()), torch.stack(collected).mean(0))


@pytest.mark.parametrize(("members", "rank"), [(1, 3), (2, 20)])
def test_the_normal_is_the_formula(members: int, rank: int) -> None:
    scale, collections, every = 0.6, 5, 3
    method = po.SWAG(learning_rate=0.1, collections=collections, every=every, rank=rank, scale=scale, members=members)
    steps = walked(method)
    assert len(steps) == collections * every
    last = steps[-1][0]
    posterior = last.stage.posterior(last.state)
    parts = posterior.components if isinstance(posterior, Mixture) else [posterior]
    assert len(parts) == members
    for k, part in enumerate(parts):
        assert isinstance(part, LowRankPlusDiagonal)
        taken = torch.stack([leaves[k] for _, leaves in steps[every - 1 :: every]]).double()
        running = torch.stack([taken[: i + 1].mean(0) for i in range(collections)])
        columns = min(rank, collections)
        deviations = (taken - running)[-columns:]
        wanted = deviations.T @ deviations / (2 * (columns - 1)) * scale**2
        factor = joined(part.factors, columns).double()
        torch.testing.assert_close(joined(part.means).double(), taken.mean(0), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            joined(part.stds).double(), scale * taken.std(0, correction=0) / math.sqrt(2), rtol=1e-3, atol=1e-6
        )
        torch.testing.assert_close(factor @ factor.T, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.filterwarnings("ignore:swag has not arrived")
def test_small_steps_around_large_weights_keep_their_variance() -> None:
    """A mean of squares less a squared mean would lose it in float32: (1e-4 / 30)^2 is below 6e-8."""
    large = po.Density(lambda theta: -0.5 * 1e-8 * (theta["w"] - 30.0).square().sum(), {"w": torch.full((3,), 1.0)})
    method = po.SWAG(learning_rate=1e3, momentum=0.0, collections=7, every=1)
    found = po.infer(large, method, 1, start={"w": torch.full((3,), 20.0)})
    assert isinstance(found, LowRankPlusDiagonal)
    path, w = [], 20.0
    for _ in range(7):
        w -= 1e3 * 1e-8 * (w - 30.0)
        path.append(w)
    wanted = torch.tensor(path, dtype=torch.float64).std(correction=0) / math.sqrt(2)
    assert abs(float(found.stds["w"][0]) / float(wanted) - 1.0) < 0.02  # steps of 1e-4, rounded to 2e-6


def test_stages() -> None:
    plan = po.Plan(7, 100, 6)
    (first, own), (second, then) = po.SWAG(collections=4).stages(plan)
    assert (first.name, own, second.name, then.steps) == ("map", plan, "swag", 24)
    ((only, alone),) = po.SWAG(collections=4, every=5).stages_from_start(plan)
    assert (only.name, alone.steps) == ("swag", 20)


def test_what_no_forward_reaches_keeps_its_prior() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.unused = net(), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    model = po.fit(Odd(), (X, Y), "categorical", po.SWAG(collections=2, every=2), 0.37, epochs=1)
    moment = model.posterior.moments()["unused.weight"]
    torch.testing.assert_close(moment.std, torch.full((3, 2), 0.37))
    assert not moment.mean.any()


def test_what_cannot_be_is_said() -> None:
    for fault in (
        {"rank": 1},
        {"collections": 1},
        {"every": 0},
        {"learning_rate": 0.0},
        {"momentum": 1.0},
        {"scale": -1.0},
    ):
        with pytest.raises(ValueError, match=next(iter(fault))):
            po.SWAG(**fault)  # type: ignore[arg-type]
    problem = network_problem(net(), X, Y, "categorical")
    one = next(one for one in walk(po.SWAG(collections=2, every=4), problem, rows_for(X, Y), 1) if _steps(one) == 6)
    with pytest.raises(CompatibilityError, match="collected 1 sets of weights in 6 steps"):
        one.stage.posterior(one.state)


def _steps(one: Moment) -> int:
    return int(one.state.step) if isinstance(one.stage, po.SWAG) else 0


def test_epistemic_uncertainty_grows_off_the_data() -> None:
    method = po.SWAG(base=po.MAP(learning_rate=1e-2), learning_rate=0.02, collections=20)
    y = X[:, 0] - X[:, 1] + 0.5 * Random(2).normal((ROWS,))
    with Random(0).forked():
        network = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 1))
    model = po.fit(network, (X, y), "gaussian", method, epochs=30, batch_size=8)
    on, off = (model.predict(at, draws=64).epistemic.mean() for at in (X, 4.0 * X))  # type: ignore[attr-defined]
    assert off > 2.0 * on > 0.0


def test_weights_that_stand_still_leave_no_negative_variance() -> None:
    """The mean that is moved to a weight misses it by a last bit, and Welford's product is negative for half of them."""
    still = po.Density(lambda theta: 0.0 * theta["w"].sum(), {"w": torch.zeros(1009)})
    method = po.SWAG(collections=2, every=1)
    last = method.stages_from_start(po.Plan(1, 2, 1))[-1][0]
    state = last.init(still, still.start(), Random(0), po.Plan(1, 2, 1))
    state.mean["w"].copy_(Random(1).normal((1, 1009)))
    state.theta["w"].copy_(Random(2).normal((1, 1009)))
    for _ in range(2):
        state, _ = last.step(still, state, [None], Random(0))
    assert int(state.collected) == 2
    assert not bool((state.squares["w"] < 0).any())
