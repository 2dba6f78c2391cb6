"""What the benches of Bayesian deep ensembles compute from draws and from rows; no data, networks of a few weights."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.bench import bde, bde_image, bde_language, bde_tabular
from posterity.bench.bde_chains import explored
from posterity.bench.bde_classes import Classes
from posterity.bench.bde_task import CONFIGURATIONS, Averages, Budget, Task, summary
from posterity.models.tabular import mlp
from posterity.tree import Tree

IDENTITY, DEFAULT, ADAPTIVE = CONFIGURATIONS[2], CONFIGURATIONS[3], CONFIGURATIONS[7]


# --- predictions ------------------------------------------------------------------------------------------------------


def test_streamed_averages_are_those_of_all_draws_at_once() -> None:
    torch.manual_seed(0)
    log_test, means = 30 * torch.randn(5, 3, 7), torch.randn(5, 3, 7)  # draws, chains, rows
    averages = Averages()
    for draw in range(5):
        averages.add([{"log_test": log_test[draw, k], "mean": means[draw, k]} for k in range(3)])
    kept = [0, 2]
    found = averages.mixture(kept)
    direct = log_test[:, kept].double().flatten(0, 1).logsumexp(0) - math.log(10)
    torch.testing.assert_close(found["log_test"], direct, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["mean"], means[:, kept].mean((0, 1)))
    single = (log_test[:, kept].double().logsumexp(0) - math.log(5)).mean()
    assert averages.single(kept) == pytest.approx(float(single), rel=1e-12)


def test_coverage_and_error_of_a_mixture() -> None:
    z = torch.tensor([0.0, 1.0, 2.0]).double()
    found = {"log_test": torch.tensor([-1.0, -2.0, -6.0]), "mean": z + 2.0, "cdf": torch.tensor([0.049, 0.051, 0.96])}
    told = bde_tabular._measure(z, found)
    assert told == {"lppd": -3.0, "rmse": 2.0, "coverage": pytest.approx(1 / 3)}


def test_classes_of_rows_and_of_tokens() -> None:
    """Perplexities are of the mean probability: two draws of 1/2 and 1/8 on every token give 1 / 0.3125."""

    def problem(likelihood: po.Likelihood, net: torch.nn.Module) -> Any:
        return po.NetworkProblem(net, likelihood, data_size=3)

    x = torch.tensor([[1, 0, 1], [0, 0, 1]])
    classes = Classes(problem(po.Tokens(), torch.nn.Linear(1, 1)), {"validation": (x, x), "test": (x, x)}, tokens=True)
    probs = torch.full((2, 3, 2), 0.5)
    log_test = torch.stack([torch.full((4,), p).log() for p in (0.5, 0.125)]).logsumexp(0) - math.log(2)
    told = classes.measure({"log_test": log_test, "log_validation": log_test, "test": probs})
    assert told["perplexity_test"] == pytest.approx(1 / 0.3125)

    net = torch.nn.Linear(3, 2, bias=False)
    x, y = torch.eye(3), torch.tensor([0, 1, 1])
    categorical = problem(po.Categorical(classes=(0, 1)), net)
    sets = {"validation": (x, y), "test": (x, y), "far": (torch.zeros(5, 3), None)}
    theta = {"weight": torch.tensor([[2.0, -2.0, 1.0], [-2.0, 2.0, -1.0]])}
    columns = Classes(categorical, sets).look(theta)
    assert columns.keys() == {"log_validation", "log_test", "test", "far"}
    torch.testing.assert_close(columns["log_test"], torch.tensor([4.0, 4.0, -2.0]).sigmoid().log())
    told = Classes(categorical, sets).measure(columns)
    assert told["accuracy"] == pytest.approx(2 / 3)
    assert told["ood_auroc_far"] == 1.0  # at 0 every class has 1/2


def test_the_character_model_does_not_see_what_comes() -> None:
    torch.manual_seed(0)
    net, tokens = bde_language.Characters(11), torch.arange(2 * 13).view(2, 13) % 11
    other = tokens.clone()
    other[:, 7:] = (other[:, 7:] + 3) % 11
    there, here = net(tokens), net(other)
    torch.testing.assert_close(there[:, :7], here[:, :7])
    assert not torch.allclose(there[:, 7:], here[:, 7:])


def test_the_networks_of_pictures() -> None:
    assert bde_image.lenet()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert bde_image.resnet()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


# --- chains -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task() -> Task:
    torch.manual_seed(0)
    x = torch.randn(60, 2)
    y = x[:, 0] - 0.5 * x[:, 1] + 0.3 * torch.randn(60)
    method = po.DeepEnsemble(2, learning_rate=po.Cosine(1e-2))
    model = po.fit(mlp(2, 2, 3, 1), (x, y), "heteroscedastic", method, steps=60, batch_size=12, progress=False)
    problem = model.problem
    z = bde_tabular._standard(problem, y)
    look, measure = partial(bde_tabular._look, problem, x, z, 23), partial(bde_tabular._measure, z[23:].double())
    budget = Budget(2, 12, 24, 4, (1e-2, 2e-2))
    return Task("toy", 0, problem, model.snapshots, (x, y), look, measure, budget)


def test_a_step_size_alone_and_among_others(task: Task) -> None:
    """The first chains have the same addresses in both; the rest only rides along."""
    (alone,) = explored(task, [IDENTITY], (1e-2,))
    among = explored(task, [IDENTITY, DEFAULT], (1e-2, 2e-2))
    for window in ("zero", "half"):
        assert alone[0].told[window].keys() == among[0][0].told[window].keys()
        for key, value in alone[0].told[window].items():
            assert among[0][0].told[window][key] == pytest.approx(value, abs=1e-4), key
    assert [run.step_size for run in among[1]] == [1e-2, 2e-2]
    assert among[1][0].told["half"] != among[0][0].told["half"]
    # chains move: equal figures would mean that nothing was run
    start = bde.ensemble_row(task, bde.ENSEMBLE, task.snapshots, 60, 0.0)
    assert abs(among[0][0].told["half"]["lppd"] - start["lppd"]) > 1e-5


def test_a_step_size_far_beyond_stability_is_lost_and_nothing_else(task: Task) -> None:
    (calm, wild), = explored(task, [IDENTITY], (1e-2, 1e4))  # fmt: skip
    assert (calm.health["half"].lost, wild.health["half"].lost) == (0, 2)
    assert wild.told["half"]["lppd"] is None
    assert calm.told["half"]["lppd"] is not None
    (run,), = explored(task, [IDENTITY], (1e30,))  # fmt: skip
    assert run.health["half"].dead == run.health["zero"].lost == 2


def test_rows_say_what_validation_picked(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = bde.compared(task, [IDENTITY, ADAPTIVE], ("identity",))
    keys = [(row["method"], row["window"], row["picked"]) for row in rows]
    assert keys == [
        ("identity", "zero", "validation"),
        ("identity", "half", "validation"),
        ("adaptive", "half", "validation"),
        ("identity", "zero", "auto"),
        ("identity", "half", "auto"),
    ]
    for row in rows[:3]:
        sweep = row["sweep"]
        best = sweep["validation_lppd"].index(max(sweep["validation_lppd"]))
        assert row["step_size"] == sweep["step_size"][best]
        assert row["lppd"] == sweep["lppd"][best]
    assert rows[3]["stable_limit"] > rows[3]["step_size"]
    shape = set(bde.ensemble_row(task, bde.ENSEMBLE, task.snapshots, 60, 0.0))
    assert all(set(row) == shape for row in rows)


def test_batches_are_permutations_of_the_rows(task: Task) -> None:
    cache: dict[int, Tensor] = {}
    inputs: list[Tree] = [{"x": torch.stack([b.inputs for b in task.batches(cache, t)])} for t in range(6)]
    seen = torch.cat([one["x"] for one in inputs[:5]], dim=1)  # an epoch of 5 batches
    for k in range(2):
        assert torch.equal(seen[k].sort(0).values, task.train[0].sort(0).values)
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(inputs[5]["x"], inputs[0]["x"])


def test_a_mixture_of_no_chain_has_no_figures(task: Task) -> None:
    averages = Averages()
    assert set(summary(task, averages, [0]).values()) == {None}
    averages.add([task.look(one.theta) for one in task.snapshots])
    assert set(summary(task, averages, []).values()) == {None}
    assert None not in summary(task, averages, [1]).values()


# --- claims -----------------------------------------------------------------------------------------------------------


def _made_up(gains: dict[str, float], sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """An ensemble at LPPD -1 and one of equal gradients at -0.98 on every set; methods with these gains in both windows."""
    rows: list[dict[str, Any]] = []
    for data, one in bde_tabular.SETS.items():
        for seed in range(one.seeds):
            cell = {"data": data, "seed": seed, "window": None, "picked": None, "single_lppd": -2.0, "sweep": {}}
            rows += [
                {**cell, "method": "ensemble", "lppd": -1.0},
                {**cell, "method": "ensemble, longer", "lppd": -0.98},
            ]
            for method, gain in gains.items():
                for window, more in (("zero", -0.01), ("half", 0.0)):
                    own = {"method": method, "window": window, "lppd": -1.0 + gain + more + 0.001 * seed}
                    rows.append({**cell, **own, "picked": "validation", "single_lppd": -1.5, "sweep": sweep})
    return rows


def test_claims_of_made_up_rows() -> None:
    """Seeds 0 to 4 on the small sets add 0 to 0.004 to the gain, 0.002 in the mean; 0 and 0.001 on the large ones."""
    gains = {"second-moment": 0.06, "identity": 0.05, "second-moment, uncorrected": 0.02, "gradient": 0.01}
    # usable: the first; the third loses a chain, the fourth 0.03 nats, the last has none left
    sweep = {"lppd": [-1.019, -1.0, -1.03, None], "lost": [0, 1, 0, 8]}
    claims = bde_tabular.claims(_made_up(gains, sweep))
    assert claims["small_data_gain"] == pytest.approx(0.062)
    spread = torch.tensor([0.0, 0.001, 0.002, 0.003, 0.004] * 2).double().std().item()
    assert claims["small_data_gain_error"] == pytest.approx(spread / 10**0.5)
    assert claims["large_data_loss"] == pytest.approx(-0.06)
    assert claims["width_second_moment"] == claims["width_identity"] == 19.0
    assert claims["width_gain"] == 0.0
    assert claims["gain_over_longer_small"] == pytest.approx(0.042)
    assert claims["geometry_part_large"] == pytest.approx(0.01)
    assert claims["correction_part_energy"] == pytest.approx(0.04)
    assert claims["zero_minus_half_gradient_small"] == pytest.approx(-0.01)
    assert claims["single_gain_small"] == pytest.approx(0.5)
    assert claims["relative_gain"] == pytest.approx(0.061)  # the tenth of 19: five each of 0.060 and 0.061, ascending
    assert "small_data_gain_auto" not in claims  # no such rows
    assert claims.keys() >= bde_tabular.LIMITS.keys()


def test_overall_claims_are_per_set() -> None:
    rows = _made_up({"second-moment": 0.02, "identity, uncorrected": -0.01}, {"lppd": [], "lost": []})
    claims = bde.overall([row | {"accuracy": 0.5} for row in rows], ("accuracy",))
    assert claims["gain_second_moment_bike"] == pytest.approx(0.0205)
    assert claims["gain_identity_uncorrected_protein"] == pytest.approx(-0.0095)
    assert claims["accuracy_gain_bike"] == 0.0
    assert all(math.isfinite(value) for value in claims.values())
