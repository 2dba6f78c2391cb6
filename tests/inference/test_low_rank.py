"""LowRankVI: its gradients against autograd of the bound, its draws, its starts, its ranks, and what it refuses."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.inference.ranks import tensor_ranks
from posterity.posterior.factors import Factors
from posterity.posterior.mixture import Mixture
from posterity.problem.carrier import leaves
from posterity.problem.factored import Factored
from posterity.problem.factored_problem import FactoredProblem, factor_std
from posterity.random import Random
from posterity.tree import Tree, member

ROWS, INPUTS, HIDDEN, CLASSES = 23, 19, 17, 3
X = Random(0).fold("x").normal((ROWS, INPUTS))
Y = torch.arange(ROWS) % CLASSES
RANKS = {"0.weight": 3, "2.weight": 2}


def network(seed: int = 0) -> nn.Sequential:
    with Random(seed).forked():
        return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def problem_of(net: nn.Module | None = None, prior: Any = 1.0, **options: Any) -> po.NetworkProblem:
    problem = po.NetworkProblem(net or network(), "categorical", prior, data_size=ROWS, **options)
    problem.probe((X, Y), Random(0))
    return problem


def started(method: po.LowRankVI, problem: po.NetworkProblem, steps: int = 10) -> Any:
    return method.init(problem, problem.start(), Random(1), po.Plan(ROWS, steps, 1))


def fitted(method: po.Algorithm, net: nn.Module | None = None, steps: int = 5, **options: Any) -> po.BayesianModel:
    return po.fit(net or network(), (X, Y), "categorical", method, steps=steps, batch_size=7, progress=False, **options)


def factors_of(model: po.BayesianModel) -> Factors:
    assert isinstance(model.posterior, Factors)
    return model.posterior


# --- the bound ---------------------------------------------------------------------------------------------------------


def bound(problem: po.NetworkProblem, method: po.LowRankVI, mean: Tree, log_std: Tree, z: Tree, share: float) -> Tensor:
    """NLL at the draw + share * KL, written with torch alone."""
    theta = {n: m + log_std[n].exp() * z[n] if n in log_std else m for n, m in mean.items()}
    w1 = theta["0.weight::left"] @ theta["0.weight::right"].T
    w2 = theta["2.weight::left"] @ theta["2.weight::right"].T
    hidden = torch.tanh(X.double() @ w1.T + theta["0.bias"])
    nll = nn.functional.cross_entropy(hidden @ w2.T + theta["2.bias"], Y)
    kl = torch.zeros((), dtype=torch.float64)
    for name, m in mean.items():
        rank = RANKS.get(name.partition("::")[0])
        p = 0.7 if rank is None else factor_std(0.7, rank)
        if name in log_std:
            s = log_std[name].exp()
            kl = kl + (math.log(p) - log_std[name] + (s**2 + m**2) / (2 * p**2) - 0.5).sum()
        else:
            kl = kl + (m**2 / (2 * p**2)).sum()
    return nll + share * kl


@pytest.mark.parametrize("noise", ["shared", "antithetic"])
def test_a_step_follows_the_gradient_of_the_bound(noise: Any) -> None:
    problem = problem_of(prior=po.Normal(0.7), data_weight=2.0)
    # Adam's first step is h g / (|g| + eps): with a large eps it would be the gradient; its first moment is (1 - b1) g.
    method = po.LowRankVI(RANKS, noise=noise, kl_ramp=0.5)
    state = started(method, problem)
    before = {n: leaf[0].double().clone().requires_grad_() for n, leaf in state.mean.items()}
    rho = {n: leaf[0].double().clone().requires_grad_() for n, leaf in state.log_std.items()}
    random = Random(5)
    noise_of = random.fold("noise")
    z = {
        n: torch.empty(leaf.shape[1:]).normal_(generator=noise_of.fold(n).fold(0).fold(0).generator()).double()
        for n, leaf in state.log_std.items()
    }
    state, _ = method.step(problem, state, [problem.read((X, Y))], random)

    share = 1 / (0.5 * 10) / (2.0 * ROWS)  # the ramp's first step
    signs = [1.0] if noise == "shared" else [1.0, -1.0]
    total = sum(bound(problem, method, before, rho, {n: s * e for n, e in z.items()}, share) for s in signs) / len(
        signs
    )
    total.backward()
    # (1 - b1) = 0.1 and float32 against float64
    for name, leaf in before.items():
        torch.testing.assert_close(state.mean_first[name][0].double() / 0.1, leaf.grad, rtol=2e-4, atol=2e-6)
    for name, leaf in rho.items():
        torch.testing.assert_close(state.log_std_first[name][0].double() / 0.1, leaf.grad, rtol=2e-4, atol=2e-6)


def test_factors_move_by_the_factor_rate() -> None:
    problem = problem_of()
    method = po.LowRankVI(RANKS, learning_rate=1e-3, factor_rate=5.0, std_learning_rate=1e-2)
    state = started(method, problem)
    before = copy.deepcopy(state.mean)
    state, _ = method.step(problem, state, [problem.read((X, Y))], Random(0))
    moved = {n: float((state.mean[n] - leaf).abs().median()) for n, leaf in before.items()}
    assert moved["0.weight::left"] == pytest.approx(5e-3, rel=1e-2)
    assert moved["2.bias"] == pytest.approx(1e-3, rel=1e-2)


def test_a_scale_mixture_is_of_the_factors_and_unbiased_by_its_draws() -> None:
    """The mean over draws of the sampled gradient is that of the closed form, for a mixture whose two parts are one."""
    prior_std = 0.6
    draws = 4000
    mean, log_std = torch.tensor([0.5, -1.2]), torch.tensor([-1.0, -0.2])
    from posterity.inference.elbo import add_divergence_, add_sampled_divergence_

    wanted = torch.zeros(2), torch.zeros(2)
    add_divergence_(*wanted, mean, log_std, prior_std**-2, None, 1.0, torch.empty(2))
    theta = mean + log_std.exp() * Random(0).normal((draws, 2))
    pull = po.ScaleMixture(prior_std, prior_std).bind({"w": mean}).gradient({"w": theta})["w"]
    found = torch.zeros(draws, 2), torch.zeros(draws, 2)
    add_sampled_divergence_(*found, mean.expand(draws, 2), theta, pull, 1.0)
    for one, other in zip(found, wanted):
        error = one.std(0) / math.sqrt(draws)
        assert bool(((one.mean(0) - other).abs() <= 4 * error + 1e-5).all())
    model = fitted(po.LowRankVI(RANKS), prior=po.ScaleMixture(1.0, 0.05))
    assert "kl" not in model.history[-1]


def test_the_divergence_is_that_of_many_draws() -> None:
    model = fitted(po.LowRankVI(RANKS, vectors="normal"), prior=po.Normal(0.7))
    posterior, prior = factors_of(model), model.problem.prior
    draws = 1000
    found = torch.zeros(draws, dtype=torch.float64)
    for name, std in posterior.stds.items():
        z = Random(3).fold(name).normal((draws, *std.shape)).double()
        theta = posterior.means[name] + std * z
        rank = RANKS.get(name.partition("::")[0])
        p = 0.7 if rank is None else factor_std(0.7, rank)
        each = -std.double().log() - 0.5 * z**2 + math.log(p) + 0.5 * (theta / p) ** 2
        found += each.flatten(1).sum(1)
    # The watched KL is of the last step; the posterior is after it.
    assert abs(float(found.mean()) - posterior.divergence(prior)) <= 4 * float(found.std()) / math.sqrt(draws)
    assert model.history[-1]["kl"] == pytest.approx(posterior.divergence(prior), rel=1e-6)


def test_point_weights_have_no_finite_divergence() -> None:
    with pytest.raises(po.CompatibilityError, match=r"0\.bias.*vectors='normal'"):
        fitted(po.LowRankVI(RANKS)).posterior.divergence(problem_of().prior)


# --- draws -------------------------------------------------------------------------------------------------------------


def test_draws_are_factored_and_of_the_rank(tmp_path: Path) -> None:
    model = fitted(po.LowRankVI(RANKS))
    for draw in model.posterior.draws(20, Random(7)):
        assert isinstance(draw["0.weight"], Factored)
        assert {n: int(torch.linalg.matrix_rank(draw[n].dense())) for n in RANKS} == RANKS
    mean = model.posterior.mean()
    assert int(torch.linalg.matrix_rank(mean["0.weight"])) == 3
    model.save(tmp_path / "run")
    again = po.load(tmp_path / "run", network(1))
    assert torch.equal(model.predict(X).probs, again.predict(X).probs)
    assert torch.equal(model.to_module(network(1))[0].weight, mean["0.weight"])


def test_the_moments_are_those_of_the_draws() -> None:
    model = fitted(po.LowRankVI({"0.weight": 3}, relative_std=0.5))
    draws = torch.stack([d["0.weight"].dense() for d in model.posterior.draws(1000, Random(0))]).double()
    moment = model.posterior.moments()["0.weight"]
    assert float((draws.mean(0) - moment.mean).abs().max() / moment.std.max()) < 5 / math.sqrt(1000)
    # A product's kurtosis is below 9, so the std of a variance is below sqrt(8 / 1000) of it.
    assert float((draws.std(0) / moment.std - 1).abs().max()) < 5 * 0.5 * math.sqrt(8 / 1000)


def test_numbers_learnt_are_counted() -> None:
    problem = problem_of()
    state = started(po.LowRankVI(RANKS), problem)
    numbers = 2 * (3 * (HIDDEN + INPUTS) + 2 * (CLASSES + HIDDEN)) + HIDDEN + CLASSES
    line = po.LowRankVI(RANKS).told(state)
    assert line is not None
    assert f"{numbers} numbers are learnt" in line
    assert "rank 2 to 3" in line


def test_pruning_drops_what_adds_nothing() -> None:
    posterior = factors_of(fitted(po.LowRankVI(RANKS)))
    for part in ("left", "right"):
        posterior.means[f"0.weight::{part}"][:, 1] *= 0.05  # 0.0025 of its strength
    assert posterior.effective_ranks() == {"0.weight": 2, "2.weight": 2}
    small = posterior.pruned()
    assert small.means["0.weight::right"].shape == (INPUTS, 2)
    assert small.stds["0.weight::left"].shape == (HIDDEN, 2)
    lost = posterior.mean()["0.weight"] - small.mean()["0.weight"]
    assert float(lost.norm() / posterior.mean()["0.weight"].norm()) < 0.01
    next(small.draws(1, Random(0)))
    with pytest.raises(ValueError, match="threshold"):
        posterior.pruned(1.5)


def test_without_spread_it_stays_one_network_of_low_rank() -> None:
    model = fitted(po.LowRankVI(RANKS, relative_std=0.0))
    assert model.posterior.finite == 1
    assert torch.equal(model.predict(X).probs, model.predict(X, via="mean").probs)
    two = fitted(po.Ensemble(po.LowRankVI(RANKS, relative_std=0.0), 2))
    assert isinstance(two.posterior, Mixture)
    assert two.posterior.finite == 2
    assert two.predict(X).draws == 2


# --- local noise -------------------------------------------------------------------------------------------------------


def local_and_shared(std: float, draws: int) -> tuple[Tree, Tree]:
    """[draws, ...] gradients by the log stds with noise per row, and with one draw for all rows."""
    problem = problem_of()
    found: dict[str, Tree] = {}
    for noise in ("local", "shared"):
        method = po.LowRankVI(RANKS, noise=noise, relative_std=std, kl_ramp=1.0)
        state = started(method, problem, steps=10**9)  # the ramp leaves the divergence out
        each = []
        for i in range(draws):
            fresh = state._replace(
                mean={n: leaf.clone() for n, leaf in state.mean.items()},
                log_std={n: leaf.clone() for n, leaf in state.log_std.items()},
                **{
                    part: {n: torch.zeros_like(leaf) for n, leaf in getattr(state, part).items()}
                    for part in ("mean_first", "mean_second", "log_std_first", "log_std_second")
                },
            )
            after, _ = method.step(problem, fresh, [problem.read((X, Y))], Random(100 + i))
            each.append({n: leaf[0] / 0.1 for n, leaf in after.log_std_first.items()})
        found[noise] = {n: torch.stack([one[n] for one in each]) for n in each[0]}
    return found["local"], found["shared"]


def test_local_noise_has_the_same_gradient_with_less_of_it() -> None:
    draws = 100
    local, shared = local_and_shared(0.1, draws)
    quiet = loud = 0.0
    for name, one in local.items():
        other = shared[name]
        error = ((one.var(0) + other.var(0)) / draws).sqrt()
        z = (one.mean(0) - other.mean(0)) / (error + 1e-12)
        assert float(z.square().mean().sqrt()) < 1.5, name  # 1 in expectation, over 30 and more entries
        quiet, loud = quiet + float(one.var(0).sum()), loud + float(other.var(0).sum())
    assert quiet < loud / 1.4  # measured: 1/1.8, of 23 rows; more rows, more gain


def test_local_noise_has_the_law_of_drawn_weights() -> None:
    from posterity.problem.local_noise import LocallyNoisy

    random = Random(2)
    parts = [random.fold(i).normal(shape) for i, shape in enumerate([(5, 2), (5, 2), (7, 2), (7, 2)])]
    parts = [parts[0], parts[1].abs(), parts[2], parts[3].abs()]
    x, draws = random.fold("x").normal((1, 7)), 200_000
    with random.forked():
        local = nn.functional.linear(x.expand(draws, 7), LocallyNoisy(*parts))
    left = parts[0] + parts[1] * random.fold("l").normal((draws, 5, 2))
    right = parts[2] + parts[3] * random.fold("r").normal((draws, 7, 2))
    wanted = torch.einsum("dmr,dnr,n->dm", left, right, x[0])
    scale = wanted.std(0)
    assert float(((local.mean(0) - wanted.mean(0)) / scale).abs().max()) < 6 / math.sqrt(draws) * math.sqrt(2)
    # Entries of a covariance in units of the stds: kurtosis 15 at most leaves sqrt(16 / draws) each
    both = [torch.cov((y / scale).T) for y in (local, wanted)]
    assert float((both[0] - both[1]).abs().max()) < 6 * math.sqrt(2 * 16 / draws)


def test_local_noise_refuses_a_layer_used_twice_and_shares_over_positions() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(self.a(x)))

    with pytest.raises(po.CompatibilityError, match="noise='shared'"):
        fitted(po.LowRankVI({"a.weight": 2}, noise="local"), Twice())

    from posterity.problem.local_noise import LocallyNoisy

    parts = torch.ones(5, 2), torch.ones(5, 2), torch.ones(7, 2), torch.ones(7, 2)
    same = torch.ones(1, 11, 7)
    with Random(0).forked():
        out = nn.functional.linear(same, LocallyNoisy(*parts))
    assert bool((out == out[:, :1]).all())


# --- starts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [0.1, 0.7])
def test_weights_start_at_the_scale_of_the_networks_own(eta: float) -> None:
    net = nn.Linear(211, 307, bias=False)
    problem = po.NetworkProblem(net, "categorical", data_size=ROWS)
    state = po.LowRankVI(16, relative_std=eta).init(problem, problem.start(), Random(0), po.Plan(1, 1, 1))
    drawn = Factors(member(state.mean, 0), {n: rho[0].exp() for n, rho in state.log_std.items()}).draws(3, Random(1))
    for draw in drawn:
        size = float(draw["weight"].dense().square().mean() / net.weight.detach().square().mean())
        assert size == pytest.approx(1.0, abs=0.1)  # of 16 (211 + 307) normals


def test_svd_starts_at_the_best_approximation() -> None:
    net = network()
    problem = problem_of(net)
    state = started(po.LowRankVI(RANKS, initial="svd"), problem)
    found = po.LowRankVI(RANKS).point(state)["0.weight"][0]
    u, s, vh = torch.linalg.svd(net[0].weight.detach())
    torch.testing.assert_close(found, u[:, :3] * s[:3] @ vh[:3], atol=1e-5, rtol=1e-5)
    trained = fitted(po.MAP(), net)
    with pytest.warns(po.PosterityWarning, match="does not pay"):
        begun = fitted(
            po.LowRankVI({"2.weight": 3}, learning_rate=0.0, std_learning_rate=0.0), net, steps=1, start=trained
        )
    torch.testing.assert_close(  # rank 3 of 3 x 17: nothing is lost
        begun.posterior.mean()["2.weight"], trained.posterior.mean()["2.weight"], atol=1e-5, rtol=1e-5
    )


def test_a_change_starts_at_the_weights_and_leaves_them_be() -> None:
    net = network()
    method = po.LowRankVI(RANKS, change=True)
    problem = problem_of(net, prior=po.Normal(0.1))
    state = started(method, problem)
    torch.testing.assert_close(method.point(state)["0.weight"][0], net[0].weight.detach())
    for _ in range(3):
        state, _ = method.step(problem, state, [problem.read((X, Y))], Random(0))
    assert torch.equal(state.mean["0.weight::base"][0], net[0].weight.detach())
    moved = method.point(state)["0.weight"][0] - net[0].weight.detach()
    assert int(torch.linalg.matrix_rank(moved, rtol=1e-4)) == 3
    moment = method.posterior(state).moments()["0.weight"]
    torch.testing.assert_close(moment.mean, method.point(state)["0.weight"][0])
    learnt = sum(leaf.numel() for name, leaf in state.mean.items() if "base" not in name)
    assert method.posterior(state).size == learnt + sum(leaf.numel() for leaf in state.log_std.values())


def test_a_prior_centred_on_the_start_is_of_the_factors() -> None:
    prior = po.Normal(0.7, center="start")
    method = po.LowRankVI(RANKS, vectors="normal", learning_rate=0.0, std_learning_rate=0.0)
    model = fitted(method, prior=prior, steps=1)
    posterior = factors_of(model)
    assert torch.equal(posterior.centers["0.weight::left"], posterior.means["0.weight::left"])
    assert posterior.size == 2 * sum(leaf.numel() for leaf in posterior.stds.values())
    kl = posterior.divergence(model.problem.prior)
    wanted = 0.0
    for name, std in posterior.stds.items():
        rank = RANKS.get(name.partition("::")[0])
        p = 0.7 if rank is None else factor_std(0.7, rank)
        wanted += float(((p / std.double()).log() + (std.double() / p) ** 2 / 2 - 0.5).sum())
    assert kl == pytest.approx(wanted, rel=1e-6)
    given = {name: leaf.detach() for name, leaf in network().named_parameters()}
    with pytest.raises(po.PriorError, match="center='start'"):
        fitted(po.LowRankVI(RANKS), prior=po.Normal(0.7, center=given))


def test_the_padding_row_of_an_embedding_stays_zero() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(29, 13, padding_idx=0), nn.Linear(13, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x).sum(1))

    words = torch.arange(ROWS * 5).reshape(ROWS, 5) % 29
    model = po.fit(
        Words(), (words, Y), "categorical", po.LowRankVI({"embed.weight": 3}), steps=5, batch_size=7, progress=False
    )
    for draw in model.posterior.draws(3, Random(0)):
        row = draw["embed.weight"].dense()
        assert not bool(row[0].any())
        assert bool(row[1:].any(1).all())
    assert math.isfinite(model.history[-1]["kl"])


def test_tied_weights_have_one_pair_of_factors() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(29, 13), nn.Linear(13, 29, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x).sum(1))

    words = torch.arange(ROWS * 5).reshape(ROWS, 5) % 29
    model = po.fit(
        Tied(), (words, Y), "categorical", po.LowRankVI({"embed.weight": 3}), steps=2, batch_size=7, progress=False
    )
    assert list(factors_of(model).factored) == ["embed.weight"]


def test_members_start_and_end_apart() -> None:
    model = fitted(po.Ensemble(po.LowRankVI(RANKS), 2))
    assert isinstance(model.posterior, Mixture)
    one, other = model.posterior.components
    assert not torch.allclose(one.mean()["0.weight"], other.mean()["0.weight"], atol=1e-3)


def test_a_view_of_a_problem_gives_gradients_by_the_factors() -> None:
    problem = problem_of()
    state = started(po.LowRankVI(RANKS), problem)
    theta = member(state.mean, 0)
    view = FactoredProblem(problem, theta, {})
    loss, gradient, _ = view.nll(theta, (X, Y), Random(0))
    assert gradient.keys() == theta.keys()
    carried = {n: leaf for n, leaf in view.start().items() if n.endswith("bias")}
    carried |= {n: Factored(theta[f"{n}::left"], theta[f"{n}::right"]) for n in RANKS}
    same, other, _ = problem.nll(carried, (X, Y), Random(0))
    assert float(loss) == float(same)
    assert torch.equal(leaves(other)["0.weight::left"], gradient["0.weight::left"])


# --- ranks and refusals ------------------------------------------------------------------------------------------------


def test_one_number_is_capped_where_more_would_not_pay() -> None:
    shapes = {"a": (128, 128), "b": (10, 64), "c": (8, 3, 3, 3), "d": (3, 5), "e": (77,)}
    assert tensor_ranks(shapes, 8) == {"a": 8, "b": 4, "c": 3, "d": "normal"}
    assert tensor_ranks(shapes, 100) == {"a": 32, "b": 4, "c": 3, "d": "normal"}
    assert tensor_ranks({"a": (128, 128)}, 1) == {"a": 1}


def test_patterns_are_obeyed() -> None:
    shapes = {"body.0.weight": (128, 128), "head.weight": (10, 64), "pos": (1, 5, 64), "bias": (7,)}
    ranks: Any = {"body.*": 3, "head.*": "point"}
    assert tensor_ranks(shapes, ranks) == {"body.0.weight": 3, "head.weight": "point", "pos": "normal"}
    with pytest.warns(po.PosterityWarning, match="rank 9 of 'head.weight' does not pay"):
        tensor_ranks(shapes, {"head.weight": 9})


def test_nothing_to_factor_is_said_and_goes_on() -> None:
    with pytest.warns(po.PosterityWarning, match="all of them become mean-field"):
        model = fitted(po.LowRankVI(8, vectors="normal"), nn.Sequential(nn.Linear(INPUTS, CLASSES)))
    assert factors_of(model).factored == {}
    assert model.predict(X).probs.shape == (ROWS, CLASSES)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ({"0.weight": 18}, "takes 1 to 17"),
        ({"0.weight": 0}, "takes 1 to 17"),
        ({"1.weight": 2}, "matches no tensor that can be factored; there are 0.weight, 2.weight"),
        ({"0.bias": 2}, "'0.bias' is a vector"),
        ({"0.weight": "low"}, "takes a number, 'normal' or 'point'"),
    ],
)
def test_bad_ranks_are_named(ranks: Any, message: str) -> None:
    with pytest.raises(po.CompatibilityError, match=message):
        fitted(po.LowRankVI(ranks))


def test_a_parametrised_tensor_is_not_factored() -> None:
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(INPUTS, HIDDEN)), nn.Linear(HIDDEN, CLASSES))
    with pytest.raises(po.CompatibilityError, match="remove_parametrizations"):
        fitted(po.LowRankVI({"0.*original1": 2}), net)
    assert list(factors_of(fitted(po.LowRankVI({"1.weight": 2}), net)).factored) == ["1.weight"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 0}, {"factor_rate": 0.0}, {"relative_std": -0.1}, {"kl_ramp": 1.5}, {"initial": "ones"},
        {"noise": "flipout"}, {"vectors": "none"}, {"change": True, "noise": "local"},
    ],
)  # fmt: skip
def test_bad_hyperparameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(reversed(wrong))):
        po.LowRankVI(**wrong)
