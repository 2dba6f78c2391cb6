"""The toy algorithm on its own: its discretisation, its shards; and broken ones, each caught by the check that is for it."""

import gc
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract import toy
from tests.contract.test_contract import CASES
from tests.contract.toy import SGLD, SGLDState

import posterity as po
from posterity.inference.algorithm import Algorithm, gradients, keep_buffers, potentials
from posterity.posterior.draws import Draws, Streamed
from posterity.random import Random
from posterity.testing import CHECKS, Case, check_algorithm
from posterity.testing.expect import same
from posterity.testing.runs import final, network_problem, rows_for, walk
from posterity.testing.worlds import batch_norm_network, inputs, labels

# --- the toy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step_size", "temperature"), [(0.01, 1.0), (0.1, 1.0), (0.1, 0.25)])
def test_the_stationary_law_is_the_one_of_the_discrete_chain(step_size: float, temperature: float) -> None:
    """1009 coordinates of N(2, 0.5^2): the chain's own variance is T v / (1 - h / (2 v)), v = 0.25."""
    v = 0.25
    problem = po.Density(lambda t: -0.5 * (t["x"] - 2.0).square().sum() / v, {"x": torch.full((1009,), 2.0)})
    steps = math.ceil(8 * v / step_size)  # exp(-8) of the start is left
    sgld = SGLD(step_size=step_size, temperature=temperature, burn_in=steps - 1)
    (draw,) = final(sgld, problem, lambda t, k: None, steps).draws(None, Random(0))
    std = math.sqrt(temperature * v / (1 - step_size / (2 * v)))
    assert abs(float(draw["x"].mean()) - 2.0) < 4 * std / math.sqrt(1009)
    assert abs(float(draw["x"].std()) / std - 1) < 4 / math.sqrt(2 * 1009)


def test_draws_go_to_shards_and_predict(tmp_path: Path) -> None:
    x = inputs()
    method = SGLD(keep_every=3, burn_in=5, members=2)
    model = po.fit(batch_norm_network(), (x, labels(x)), method=method, epochs=5, batch_size=7, out=tmp_path)
    assert model.posterior.finite == 2 * ((5 * 4 - 5) // 3)  # 2 chains, every third of the 15 steps after the burn-in
    pred = model.predict(x, keep="draws")
    assert pred.per_draw.shape == (10, 23, 5)
    assert len({tuple(draw.flatten().tolist()) for draw in pred.per_draw}) == 10
    assert float(pred.epistemic.min()) > 0
    loaded = po.load(tmp_path, batch_norm_network(seed=1))
    assert isinstance(loaded.posterior, Streamed)
    assert loaded.predict(x).log_probs.equal(pred.log_probs)


def test_draws_without_a_folder_live_as_long_as_their_posterior() -> None:
    x = inputs()
    model = po.fit(batch_norm_network(), (x, labels(x)), method=SGLD(), epochs=1)
    folder = model.posterior.reader._folder  # type: ignore[attr-defined]
    assert folder.exists()
    assert model.predict(x).draws == 1
    del model
    gc.collect()
    assert not folder.exists()


def test_a_run_that_keeps_no_draw_says_so() -> None:
    x = inputs()
    with pytest.raises(po.CompatibilityError, match="kept no draw"):
        po.fit(batch_norm_network(), (x, labels(x)), method=SGLD(burn_in=99), epochs=1)


def test_the_page_about_new_algorithms_quotes_the_toy() -> None:
    """Every block of code in it is the toy's, but for the last, which is the call that proves it."""
    root = Path(__file__).parents[2]
    *quoted, proof = re.findall(
        r"```python\n(.*?)```", (root / "docs" / "new-algorithm.md").read_text("utf-8"), re.DOTALL
    )

    def flat(text: str) -> str:  # a page shows methods without their class, hence without its indentation
        return "\n".join(line.strip() for line in text.strip().splitlines())

    source = flat(Path(toy.__file__).read_text("utf-8"))
    assert len(quoted) == 4
    for block in quoted:
        for part in re.split(r"\n\n+", block):
            assert flat(part) in source
    assert "step_size=0.015, burn_in=150), steps=800, tolerance=0.16" in proof
    row = CASES["toy-sgld"]
    assert (row.precise, row.steps, row.tolerance) == (SGLD(step_size=0.015, burn_in=150), 800, 0.16)


# --- broken ones -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Broken(SGLD):
    """The toy's step in parts, so that each can go wrong."""

    def noise(self, random: Random, name: str, k: int, t: int, like: torch.Tensor) -> torch.Tensor:
        return random.fold("noise").fold(name).fold(k).fold(t).normal(tuple(like.shape), like=like)

    def gradient(self, problem: Any, theta: Any, batches: Any, random: Random, t: int) -> tuple[Any, Any]:
        _, gradient, info = potentials(problem, theta, batches, random, t)
        return gradient, info

    def alive(self, info: po.Info) -> list[int]:
        return info.finite.nonzero().flatten().tolist()

    def keep(self, theta: Any, info: po.Info) -> None:
        keep_buffers(theta, info)

    def step(self, problem: Any, state: SGLDState, batches: Sequence[Any], random: Random) -> tuple[SGLDState, po.Info]:
        t = int(state.step)
        gradient, info = self.gradient(problem, state.theta, batches, random, t)
        for name, leaf in gradient.items():
            for k in self.alive(info):
                xi = self.noise(random, name, k, t, leaf[k])
                state.theta[name][k].sub_(leaf[k], alpha=self.step_size).add_(xi, alpha=math.sqrt(2 * self.step_size))
        self.keep(state.theta, info)
        return state._replace(step=state.step + 1), info


class Sound(_Broken):
    pass


class GlobalNoise(_Broken):
    def noise(self, random: Random, name: str, k: int, t: int, like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape)


class OneNoise(_Broken):
    """Forgets the step in the address: every step adds the same noise."""

    def noise(self, random: Random, name: str, k: int, t: int, like: torch.Tensor) -> torch.Tensor:
        return super().noise(random, name, k, 0, like)


class NoData(_Broken):
    """Forgets N: the gradient of the mean loss in place of the potential's."""

    def gradient(self, problem: Any, theta: Any, batches: Any, random: Random, t: int) -> tuple[Any, Any]:
        _, gradient, info = gradients(problem, theta, batches, random, t)
        pull = problem.prior.gradient(theta)
        return {name: leaf - pull[name] for name, leaf in gradient.items()}, info


class NoPrior(_Broken):
    def gradient(self, problem: Any, theta: Any, batches: Any, random: Random, t: int) -> tuple[Any, Any]:
        _, gradient, info = gradients(problem, theta, batches, random, t)
        return {name: leaf * problem.data_size * problem.data_weight for name, leaf in gradient.items()}, info


class NotSkipping(_Broken):
    def alive(self, info: po.Info) -> list[int]:
        return list(range(len(info.finite)))


class NoBuffers(_Broken):
    def keep(self, theta: Any, info: po.Info) -> None:
        pass


class OneNoiseForAll(_Broken):
    """Forgets the member in the address."""

    def noise(self, random: Random, name: str, k: int, t: int, like: torch.Tensor) -> torch.Tensor:
        return super().noise(random, name, 0, t, like)


class FirstBatchOnly(_Broken):
    """Every member steps on the batch of the first."""

    def gradient(self, problem: Any, theta: Any, batches: Any, random: Random, t: int) -> tuple[Any, Any]:
        return super().gradient(problem, theta, [batches[0]] * len(batches), random, t)


class Dissected(_Broken):
    """Its draws are the state's own memory, which the next step writes over."""

    emit = Algorithm.emit

    def posterior(self, state: SGLDState, shards: Any = None) -> Any:
        return Draws(state.theta)


_HIDDEN: dict[str, torch.Tensor] = {}


class HiddenState(_Broken):
    """Keeps momentum outside of its State: a resumed run forgets it."""

    def gradient(self, problem: Any, theta: Any, batches: Any, random: Random, t: int) -> tuple[Any, Any]:
        gradient, info = super().gradient(problem, theta, batches, random, t)
        if t == 0:
            _HIDDEN.clear()
        for name, leaf in gradient.items():
            _HIDDEN[name] = 0.9 * _HIDDEN.get(name, torch.zeros_like(leaf)) + leaf
        return {name: leaf.clone() for name, leaf in _HIDDEN.items()}, info


BROKEN = [
    (GlobalNoise, "untouched", "torch's generator"),
    (GlobalNoise, "same_seed_twice", "second fit"),
    (OneNoise, "correlated_density", "mean|stds|correlations"),
    (NoData, "conjugate_regression", "mean|stds|correlations"),
    (NoData, "same_rows_same_posterior", "N has no effect"),
    (NoPrior, "conjugate_regression", "mean|stds|correlations"),
    (NotSkipping, "non_finite_steps_are_skipped", "not finite"),
    (NotSkipping, "non_finite_runs_stop", "spoils all later steps"),
    (NoBuffers, "members_keep_their_statistics", "same running statistics"),
    (FirstBatchOnly, "members_are_independent", "its own batch|another one's batches"),
    (OneNoiseForAll, "members_are_independent", "share the random numbers"),
    (Dissected, "pure_is_in_place", "a posterior taken before"),
    (HiddenState, "pure_is_in_place", "in place and pure"),
    (HiddenState, "killed_and_resumed", "resumed fit"),
]


@pytest.mark.parametrize(("broken", "check", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_each_fault_is_caught_by_its_check(broken: type[SGLD], check: str, message: str) -> None:
    case = Case(broken(), broken(step_size=0.015, burn_in=150), steps=800, tolerance=0.16)
    with pytest.raises(AssertionError, match=message):
        CHECKS[check](case)


def test_what_is_caught_is_the_fault() -> None:
    """The same parts, unbroken, are the toy itself, to the bit: it passes every check."""
    x = inputs()
    problems = [network_problem(batch_norm_network(), x, labels(x), "categorical") for _ in range(2)]
    walks = [walk(toy(members=2), problem, rows_for(x, labels(x)), 7) for toy, problem in zip((Sound, SGLD), problems)]
    for one, other in zip(*walks, strict=True):
        same(one.state.theta, other.state.theta, "the sound parts")


# --- the front door -----------------------------------------------------------------------------------------------------


def test_check_algorithm_reports_and_names_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: CHECKS[name] for name in ("untouched", "pure_is_in_place")}
    monkeypatch.setattr("posterity.testing.contract.CHECKS", few)
    assert check_algorithm(po.MAP(), skip={"untouched": "shown elsewhere"}) == {
        "untouched": "skipped: shown elsewhere",
        "pure_is_in_place": "passed",
    }
    with pytest.raises(AssertionError, match="^untouched: after fit"):
        check_algorithm(GlobalNoise())
    for skip in ({"unknown": "why"}, {"untouched": ""}):
        with pytest.raises(ValueError, match="skip takes a reason"):
            check_algorithm(po.MAP(), skip=skip)
    with pytest.raises(ValueError, match="spread must be one of"):
        check_algorithm(po.MAP(), spread="wide")
