"""Score-based variational inference over flows: both objectives, parts of a network, two modes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.errors import CompatibilityError
from posterity.inference.algorithm import Plan
from posterity.inference.score_flow import ScoreFlow
from posterity.posterior.flow import FLOWS, Flow
from posterity.problem.densities import Density
from posterity.problem.reference import gaussian, mixture
from posterity.random import Random
from posterity.testing.runs import final, network_problem, rows_for, walk
from posterity.testing.worlds import batch_norm_network, inputs, labels, plain_network

pytest.importorskip("zuko")

SMALL: dict[str, Any] = {"flow": "realnvp", "hidden": (5,), "draws": 3}


def fitted(target: Density, algorithm: ScoreFlow, steps: int, seed: int = 0) -> Flow:
    found = final(algorithm, target, lambda step, k: None, steps, seed)
    assert isinstance(found, Flow)
    return found


def flow_draws(q: Flow, n: int) -> Tensor:
    return q._rows(Random(7).normal((n, q.shape.dim), like=q.point["x"]))["x"]


@pytest.mark.parametrize("objective", ["score", "elbo"])
@pytest.mark.parametrize("reweight", [False, True])
def test_a_rotated_normal_is_found(objective: str, reweight: bool) -> None:
    """An affine autoregressive layer can be any normal in two dimensions. KL is 2.7 at the start; on five other seeds it
    ended at most at 0.024 by the bound, whose draws stay noisy, and at 0.010 by the score.
    """
    if objective == "elbo" and reweight:
        pytest.skip("the bound sees the values already")
    target = gaussian(2, condition=10.0, rotation=0)
    options: dict[str, Any] = {"flow": "maf", "transforms": 1, "hidden": (4,), "draws": 8, "temper": 0.2}
    q = fitted(target, ScoreFlow(objective=objective, reweight=reweight, learning_rate=po.Cosine(0.03), **options), 200)
    assert target.forward_kl(q.log_prob, 1000, Random(9)).value < (0.05 if objective == "elbo" else 0.03)


@pytest.mark.slow
def test_two_modes_with_their_weights() -> None:
    """Measured on six seeds, this one among them: KL of 0.008 to 0.016 and a mass of 0.69 to 0.72. The estimate is
    heavy-tailed: of 2000 draws it is off by 0.015, of 100,000 by 0.001.
    """
    target = mixture(separation=3.0, std=1.0, weights=(0.7, 0.3))
    q = fitted(target, ScoreFlow(), 400, seed=3)
    assert target.forward_kl(q.log_prob, 100_000, Random(9)).value < 0.03
    assert abs(target.right_mass(flow_draws(q, 2000)) - 0.7) < 0.07


@pytest.mark.parametrize("flow", FLOWS)
def test_one_dimension_works(flow: str) -> None:
    target = gaussian(1, mean_seed=0)
    q = fitted(target, ScoreFlow(flow=flow, hidden=(4,), draws=8, learning_rate=po.Cosine(0.05), temper=0.0), 60)
    before = fitted(target, ScoreFlow(flow=flow, hidden=(4,), draws=8), 1)
    after, start = (target.forward_kl(one.log_prob, 500, Random(9)).value for one in (q, before))
    assert after < 0.02
    assert after < start


def test_the_last_layer_moves_and_the_rest_stays_at_the_mode() -> None:
    x = inputs()
    problem = network_problem(batch_norm_network(), x, labels(x), "categorical")
    algorithm = ScoreFlow(over="last-layer", **SMALL)
    assert [stage.name for stage, _ in algorithm.stages(Plan(7, 5, 5))] == ["map", "score-vi-flow"]
    algorithm.check(problem, rows_for(x, labels(x))(0, 0))
    moments = list(walk(algorithm, problem, rows_for(x, labels(x)), 6))
    base = moments[5].stage.point(moments[5].state)
    q = moments[-1].stage.posterior(moments[-1].state)
    assert isinstance(q, Flow)
    assert q.shape.dim == 5 * 4 + 5
    one, two = q.draws(2, Random(0))
    last = set(q.spread)
    assert last == {"5.weight", "5.bias"}
    for name, leaf in base.items():
        if name.startswith("buffer."):
            continue
        assert torch.equal(one[name], leaf[0]) == (name not in last)
        assert torch.equal(one[name], two[name]) == (name not in last)


def test_a_subspace_has_orthonormal_columns_over_all_weights() -> None:
    x = inputs()
    problem = network_problem(plain_network(), x, labels(x), "categorical")
    algorithm = ScoreFlow(over="subspace", subspace_dim=3, init_std=0.2, **SMALL)
    *_, last = walk(algorithm, problem, rows_for(x, labels(x)), 3)
    columns = torch.cat([leaf[0].reshape(-1, 3) for leaf in last.state.spread.values()])
    assert len(columns) == sum(leaf.numel() for leaf in problem.start().values())
    torch.testing.assert_close(columns.T @ columns, 0.04 * torch.eye(3), atol=1e-6, rtol=0)
    with pytest.raises(CompatibilityError, match="lower subspace_dim"):
        ScoreFlow(over="subspace", subspace_dim=1000, max_dim=2000, **SMALL).check(problem, None)


def test_named_tensors() -> None:
    x = inputs()
    problem = network_problem(plain_network(), x, labels(x), "categorical")
    *_, last = walk(ScoreFlow(over=["2.bias"], **SMALL), problem, rows_for(x, labels(x)), 3)
    assert list(last.state.spread) == ["2.bias"]
    for over, said in ((["3.bias"], "3.bias"), ([], "no tensor")):
        with pytest.raises(CompatibilityError, match=said):
            ScoreFlow(over=over, **SMALL).check(problem, None)
    with pytest.raises(CompatibilityError, match="no last layer"):
        ScoreFlow(over="last-layer").check(mixture(), None)


def test_the_score_of_a_part_is_that_of_its_coordinates() -> None:
    """The gradient that a subspace's coordinates are given is d log p(m + A x) / d x, here of a normal in closed form."""
    target = gaussian(5, condition=7.0)
    captured: list[Tensor] = []

    class Spying(ScoreFlow):
        def _by_score(
            self, problem: Any, state: Any, shape: Any, frozen: Any, x: Any, rows: Any, k: int, t: int
        ) -> bool:
            columns = state.spread["x"][0]
            theta = state.theta["x"][0] + x @ columns.T
            wanted = -((theta - target.mean) / target.variances) @ columns
            captured.extend([rows.score, wanted])
            return True

    Spying.name = "spying"
    algorithm = Spying(over="subspace", subspace_dim=2, base=po.MAP(learning_rate=0.01), **SMALL)
    list(walk(algorithm, target, lambda step, k: None, 2))
    torch.testing.assert_close(captured[0], captured[1])


def test_too_many_dimensions_are_refused_with_the_number() -> None:
    target = Density(lambda tree: -tree["x"].square().sum(), {"x": torch.zeros(1009)})
    with pytest.raises(CompatibilityError, match=r"1,009 dimensions is more than max_dim \(256\).*subspace"):
        ScoreFlow().check(target, None)


def test_the_proximal_term_acts_where_q_t_is_older() -> None:
    def gap(**options: Any) -> float:
        ends = []
        for alpha in (0.0, 1.0):
            algorithm = ScoreFlow(alpha=alpha, alpha_warmup=0.0, **SMALL, **options)
            *_, last = walk(algorithm, mixture(), lambda step, k: None, 4)
            ends.append(last.state.q)
        return max(float((ends[0][name] - leaf).abs().max()) for name, leaf in ends[1].items())

    assert gap() == 0.0
    assert gap(inner_steps=2) > 1e-6
    assert gap(lag=3) > 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {"flow": "glow"}, {"transforms": 0}, {"bins": 1}, {"objective": "kl"}, {"objective": "elbo", "inner_steps": 2},
        {"objective": "elbo", "lag": 2}, {"draws": 0}, {"over": "first-layer"}, {"init_std": -1.0}, {"temper": 2.0},
        {"max_dim": 0},
    ],
)  # fmt: skip
def test_settings_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must|takes"):
        ScoreFlow(**options)
