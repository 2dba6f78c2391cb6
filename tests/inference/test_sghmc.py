"""Chains: the implemented step against theory, masses and step sizes from known statistics, lost chains, bad input."""

from typing import Any

import pytest
import torch
from torch import nn

import posterity as po
from posterity.bench.sghmc_gaussian import SAMPLERS, stationary_variance, theory
from posterity.errors import CompatibilityError, NonFiniteError, PosterityWarning
from posterity.inference.algorithm import Plan
from posterity.inference.mass import Adapting, similarity
from posterity.inference.step_size import largest_curvature
from posterity.inference.tally import Tally
from posterity.posterior.chains import Chains
from posterity.problem.priors import ScaleMixture
from posterity.random import Random

FEATURES, MEMBERS = 3, 5


# --- the step ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("friction", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("h", [0.1, 0.5, 1.2])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_step_has_the_stationary_variance_of_theory(name: str, h: float, friction: float) -> None:
    sampler, one = SAMPLERS[name](friction), torch.ones((), dtype=torch.float64)
    noise = 0.5 / float(sampler.noise_ratio(h, one, one))
    # a 4 x 4 linear system in float64, as well conditioned as 1 / (1 - c^2) = 10
    assert stationary_variance(sampler, h, 1.0) == pytest.approx(theory(sampler, h, 1.0), rel=1e-10)
    assert stationary_variance(sampler, h, 1.0, noise) == pytest.approx(theory(sampler, h, 1.0, 0.5), rel=1e-10)
    assert stationary_variance(sampler, h, 1.0, noise, True) == pytest.approx(theory(sampler, h, 1.0), rel=1e-10)


def test_noise_beyond_what_is_injected_is_left() -> None:
    sampler, one = po.SGHMC(), torch.ones((), dtype=torch.float64)
    noise = 2.0 / float(sampler.noise_ratio(0.3, one, one))
    assert stationary_variance(sampler, 0.3, 1.0, noise, corrected=True) == pytest.approx(2.0, rel=1e-10)


def test_temperature_multiplies_the_variance() -> None:
    assert stationary_variance(po.SGHMC(temperature=0.25), 0.4, 1.0) == pytest.approx(0.25, rel=1e-10)


def density(precision: torch.Tensor) -> po.Density:
    return po.Density(lambda t: -0.5 * (t["x"] @ precision * t["x"]).sum(-1), {"x": torch.zeros(len(precision))}, True)


def walked(algorithm: po.Algorithm, problem: Any, starts: Any, steps: int) -> Any:
    random = Random(0)
    state = algorithm.init(problem, starts, random.fold("init"), Plan(1, steps, steps))
    for _ in range(steps):
        state, _ = algorithm.step(problem, state, [None] * algorithm.members, random)
    return state


BARE: dict[str, Any] = {"mass": "identity", "noise_correction": False}


def test_a_chain_does_not_depend_on_those_beside_it() -> None:
    problem = density(torch.diag(torch.tensor([1.0, 9.0, 4.0])))
    starts = [{"x": Random(2).fold(k).normal((3,))} for k in range(MEMBERS)]
    many = walked(po.SGHMC(members=MEMBERS, **BARE), problem, starts, 100)
    alone = walked(po.SGHMC(members=1, **BARE), problem, starts[:1], 100)
    # float32 products in another order, 100 steps of a stable map
    assert torch.allclose(many.theta["x"][0], alone.theta["x"][0], atol=1e-5)
    assert not torch.allclose(many.theta["x"][0], many.theta["x"][1], atol=0.1)


def test_kinetic_temperature_is_the_temperature() -> None:
    problem = density(torch.diag(torch.logspace(0, 2, 50)))
    state = walked(po.SGHMC(members=MEMBERS, warmup=100, **BARE), problem, [problem.start()] * MEMBERS, 1100)
    told = state.tally.told()["kinetic_temperature"]
    # momenta of 50 weights forget within 1 / friction = 20 steps: 5 x 50 x 1000 / 20 squares of normals, off by 1.3 %
    assert sum(told) / MEMBERS == pytest.approx(1.0, abs=0.05)


# --- masses --------------------------------------------------------------------------------------------------------


def snapshot(k: int = 0) -> po.Snapshot:
    def tree(scale: float) -> dict[str, torch.Tensor]:
        return {"x": scale * torch.tensor([1.0, 2.0, 6.0]) * (k + 1.0), "y": scale * torch.ones(2, 1)}

    return po.Snapshot(
        theta=tree(0.0), first=tree(0.1), second={n: v.square() for n, v in tree(1.0).items()}, gradient=tree(3.0),
        batch_size=torch.tensor(7), step=torch.tensor(11),
    )  # fmt: skip


def two_tensors() -> po.Density:
    return po.Density(
        lambda t: -0.5 * t["x"].square().sum() - t["y"].square().sum(), {"x": torch.zeros(3), "y": torch.zeros(2, 1)}
    )


def mass_of(mass: po.Mass, *snapshots: po.Snapshot) -> torch.Tensor:
    theta = {name: torch.stack([one.theta[name] for one in snapshots]) for name in ("x", "y")}
    return mass.of(two_tensors(), list(snapshots), theta, ["x", "y"])


@pytest.mark.parametrize(
    ("kind", "statistic"),
    [
        ("gradient", [9.0, 36.0, 324.0, 9.0, 9.0]),
        ("first-moment", [0.01, 0.04, 0.36, 0.01, 0.01]),
        ("second-moment", [1.0, 2.0, 6.0, 1.0, 1.0]),
        ("fisher", [7.0, 28.0, 252.0, 7.0, 7.0]),  # w N = 1, B = 7, a flat prior
        ("identity", [1.0] * 5),
    ],
)
def test_masses_are_their_statistics(kind: str, statistic: list[float]) -> None:
    wanted = torch.tensor(statistic)
    found = mass_of(po.Mass(kind, floor=0.0), snapshot())[0]
    assert torch.allclose(found, wanted / wanted.mean(), rtol=1e-6)
    floored = mass_of(po.Mass(kind, floor=0.5), snapshot())[0]
    assert floored.mean() == pytest.approx(1.0, rel=1e-6)
    if kind != "identity":
        assert torch.allclose(floored, (wanted / wanted.mean() + 0.5) / 1.5, rtol=1e-6)


def test_layers_and_members_can_share_a_mass() -> None:
    by_layer = mass_of(po.Mass(layer_wise=True, floor=0.0), snapshot())[0]
    assert torch.allclose(by_layer, torch.tensor([3.0, 3.0, 3.0, 1.0, 1.0]) / 2.2, rtol=1e-6)
    own = mass_of(po.Mass(), snapshot(0), snapshot(1))
    assert not torch.allclose(own[0], own[1])
    shared = mass_of(po.Mass(shared=True), snapshot(0), snapshot(1))
    assert torch.allclose(shared, own.mean(0).expand(2, 5), rtol=1e-6)


def test_a_mass_belongs_to_its_member() -> None:
    own = mass_of(po.Mass(), snapshot(0), snapshot(1))
    assert torch.equal(mass_of(po.Mass(), snapshot(1), snapshot(0)), own.flip(0))
    assert similarity(own) == pytest.approx(torch.corrcoef(own.log())[0, 1].item(), rel=1e-4)


def test_a_statistic_of_zeros_is_no_geometry() -> None:
    silent = snapshot()._replace(second={"x": torch.zeros(3), "y": torch.zeros(2, 1)})
    assert torch.equal(mass_of(po.Mass(), silent), torch.ones(1, 5))


def test_an_adapting_mass_finds_the_scale_of_gradients() -> None:
    scales = torch.tensor([[0.1, 1.0, 30.0]])
    adapting = Adapting.fresh(scales, True)
    for t in range(400):
        adapting.update_(scales * Random(4).fold(t).normal((1, 3)), torch.tensor([True]), t == 0)
    # tau settles near (g_bar^2 = 0) t: the mean of 400 squares, off by sqrt(2 / 400) = 7 %
    assert torch.allclose(adapting.square.sqrt(), scales, rtol=0.15)


# --- step sizes ----------------------------------------------------------------------------------------------------


def test_the_largest_curvature_is_found() -> None:
    root = Random(3).normal((4, 4))
    precision = root @ root.T + torch.eye(4)
    mass = torch.tensor([0.5, 1.0, 2.0, 0.5])
    wanted = torch.linalg.eigvalsh(mass.rsqrt()[:, None] * precision * mass.rsqrt()).max()
    problem = density(precision)
    found = largest_curvature(problem, problem.start(), ["x"], mass, None, Random(0), products=200)
    assert found == pytest.approx(float(wanted), rel=1e-4)


def test_auto_is_a_fifth_of_the_limit_and_told() -> None:
    problem = density(torch.diag(torch.tensor([1.0, 100.0, 4.0])))
    sampler = po.SGHMC(members=1, **BARE)
    state = walked(sampler, problem, [problem.start()], 1)
    assert float(state.step_size[0]) == pytest.approx(0.2 * 2.0 / 10.0, rel=1e-3)
    assert "step size 0.04, identity mass: stable below 0.2" in sampler.told(state)


def test_the_optimizer_s_statistics_limit_auto() -> None:
    sampler = po.SGHMC(members=1, mass="identity")
    state = walked(sampler, two_tensors(), [snapshot()], 1)
    spread = 7 * 0.99 * torch.tensor([1.0, 4.0, 36.0])  # V = nu - mu^2 = 0.99 nu of 7 rows, on batches of one
    assert torch.allclose(state.noise[0, :3], spread, rtol=1e-5)
    stable, quiet = sampler.limits(state, 0)
    assert float(sampler.noise_ratio(quiet, state.noise[0], state.mass[0]).median()) == pytest.approx(0.5, rel=1e-3)
    # the largest Fisher information, B V / (w N), is above the curvature of 2
    assert stable == pytest.approx(2.0 / float(spread[2]) ** 0.5, rel=1e-5)
    assert float(state.step_size[0]) == pytest.approx(min(0.2 * stable, quiet), rel=1e-5)


def test_an_unstable_step_is_refused_with_its_limit() -> None:
    problem = density(torch.diag(torch.tensor([1.0, 100.0])))
    with pytest.raises(CompatibilityError, match=r"step_size=0\.3 is not stable at member 0, where the limit is 0\.2"):
        walked(po.SGHMC(members=1, step_size=0.3, **BARE), problem, [problem.start()], 1)


def test_auto_needs_something_to_go_by() -> None:
    flat = po.Density(lambda t: 0.0 * t["x"].sum(), {"x": torch.zeros(2)})
    with pytest.raises(CompatibilityError, match="neither curvature nor gradient noise"):
        walked(po.SGHMC(members=1, **BARE), flat, [flat.start()], 1)


# --- lost chains ---------------------------------------------------------------------------------------------------


def quartic() -> po.Density:
    return po.Density(lambda t: -t["x"].pow(4).sum(-1), {"x": torch.zeros(3)}, batched=True)


EXPLODING: dict[str, Any] = {
    **BARE, "members": 3, "step_size": 0.1, "check_stability": False, "warmup": 10, "draws_per_chain": 7, "thin": 5,
}  # fmt: skip


def test_a_dead_chain_freezes_and_is_left_out() -> None:
    starts = [{"x": torch.zeros(3)}, {"x": torch.full((3,), 1e9)}, {"x": torch.full((3,), 0.1)}]
    with pytest.warns(PosterityWarning, match="chain 1 of 3 is left out: its gradient was not finite"):
        found = po.infer(quartic(), po.SGHMC(**EXPLODING), steps=1, start=starts)
    assert isinstance(found, Chains)
    assert (found.names, found.chains, found.per_chain, found.finite) == ([0, 2], 2, 7, 14)
    assert set(found.about["lost"]) == {"1"}
    draws = [draw["x"] for draw in found.draws(None, Random(0))]
    assert all(bool(x.abs().max() < 5.0) for x in draws)
    assert not torch.equal(draws[0], draws[7])


def test_all_dead_is_an_error_with_the_step_size() -> None:
    start = {"x": torch.full((3,), 1e9)}
    with pytest.raises(NonFiniteError, match=r"every chain.*lower step_size, which was 0\.1"):
        po.infer(quartic(), po.SGHMC(**EXPLODING), steps=1, start=[start] * 3)


def test_a_chain_that_wanders_off_is_lost() -> None:
    tally = Tally.none(3)
    for t in range(10):
        nll = torch.tensor([0.5, 0.5 + t, 0.5], dtype=torch.float64)
        fine = torch.tensor([True, True, t != 4])
        tally.add_(nll, torch.ones(3), fine, warm=t >= 5)
    lost = tally.lost(allowance=2.0)  # member 1 rose by the mean of 5 .. 9
    assert list(lost) == [1]
    assert "rose by 7 nats a row, where 2 is" in lost[1]


# --- networks ------------------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {"members": 2, "warmup": 3, "draws_per_chain": 4, "thin": 2}
X = Random(1).normal((29, FEATURES))
Y = X[:, 0] + 0.1 * Random(2).normal((29,))


def net(*extra: nn.Module) -> nn.Module:
    with Random(0).forked():
        return nn.Sequential(nn.Linear(FEATURES, 4), *extra, nn.Tanh(), nn.Linear(4, 1))


def test_draws_are_read_chain_by_chain_and_load(tmp_path: Any) -> None:
    model = po.fit(net(), (X, Y), "gaussian", po.SGHMC(**QUICK), epochs=2, out=tmp_path)
    assert isinstance(model.posterior, Chains)
    every = list(model.posterior.draws(None, Random(0)))
    assert len(every) == 8
    few = list(model.posterior.draws(2, Random(0)))  # one of each chain
    assert all(torch.equal(a["0.weight"], b["0.weight"]) for a, b in zip(few, (every[0], every[4])))
    loaded = po.load(tmp_path, net())
    assert isinstance(loaded.posterior, Chains)
    assert loaded.posterior.about == model.posterior.about
    assert torch.equal(loaded.predict(X).mean, model.predict(X).mean)


def test_start_skips_the_ensemble() -> None:
    ensemble = po.fit(net(), (X, Y), "gaussian", po.DeepEnsemble(2), epochs=3)
    model = po.fit(net(), (X, Y), "gaussian", po.SGHMC(**QUICK), start=ensemble)
    assert {row["stage"] for row in model.history} == {"sghmc"}
    assert model.history[-1]["step"] == 3 + 4 * 2
    bare = [one.theta for one in ensemble.snapshots]
    po.fit(net(), (X, Y), "gaussian", po.SGHMC(**BARE, **QUICK), start=bare)
    for method in (po.SGHMC(**QUICK, noise_correction=False), po.SGHMC(**QUICK, mass="identity")):
        with pytest.raises(CompatibilityError, match="needs the optimizer's statistics"):
            po.fit(net(), (X, Y), "gaussian", method, start=bare)


def test_members_of_other_shapes_are_refused() -> None:
    wide = nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, 1)).state_dict()
    with pytest.raises(CompatibilityError, match=r"shape \(7, 3\)"):
        po.fit(net(), (X, Y), "gaussian", po.SGHMC(**BARE, **QUICK), start=[net().state_dict(), wide])


def test_batch_normalisation_is_refused_before_training() -> None:
    with pytest.raises(CompatibilityError, match="batch normalisation.*GroupNorm"):
        po.fit(net(nn.BatchNorm1d(4)), (X, Y), "gaussian", po.SGHMC(**QUICK), epochs=1)


def test_dropout_is_silenced_and_said() -> None:
    with pytest.warns(PosterityWarning, match=r"without the dropout of \['1'\]"):
        po.fit(net(nn.Dropout(0.5)), (X, Y), "gaussian", po.SGHMC(**QUICK), epochs=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mass": "hessian"}, {"friction": 0.0}, {"integrator": "leapfrog"}, {"step_size": "fast"}, {"step_size": -1.0},
        {"thin": 0}, {"temperature": 0.0}, {"mass": "adaptive", "warmup": 0}, {"ensemble": po.DeepEnsemble(3)},
    ],
)  # fmt: skip
def test_hyperparameters_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[0]):
        po.SGHMC(**wrong)


@pytest.mark.parametrize("prior", [po.Normal(0.7), po.Laplace(0.4), ScaleMixture(1.0, 0.1, 0.3)])
def test_priors_draw_what_they_say(prior: po.Prior) -> None:
    bound = prior.bind({"w": torch.zeros(2)})
    x = bound.draw("w", torch.zeros(40_000), Random(0)).double()
    wanted = {"normal": 0.49, "laplace": 0.32, "scale-mixture": 0.3 + 0.7 * 0.01}[prior.name]
    # kurtosis at most 10: off by sqrt(9 / 40000) = 1.5 %
    assert float(x.square().mean()) == pytest.approx(wanted, rel=0.06)
    assert abs(float(x.mean())) < 4 * (wanted / 40_000) ** 0.5


def test_members_can_have_their_own_step_and_go_beyond_the_limit() -> None:
    problem, start = two_tensors(), snapshot()
    sampler = po.SGHMC(members=2, mass="identity", step_size=(0.1, 7.0), check_stability=False)
    assert walked(sampler, problem, [start, start], 1).step_size.tolist() == [0.1, 7.0]
    with pytest.raises(ValueError, match="step_size must be"):
        po.SGHMC(members=3, step_size=(0.1, 0.2))
    with pytest.raises(CompatibilityError, match=r"step_size=7 is not stable at member 1"):
        walked(po.SGHMC(members=2, mass="identity", step_size=(0.1, 7.0)), problem, [start, start], 1)
