"""`infer`: an algorithm over a bare density, from the first step to the posterior."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contract.toy import SGLD
from torch import Tensor

import posterity as po
from posterity.posterior.draws import Draws
from posterity.problem.reference import gaussian

TARGET = gaussian(3, condition=10.0)


SHORT = pytest.mark.filterwarnings("ignore:.* has not arrived")


def test_a_fit_that_has_not_arrived_says_so_and_one_that_has_does_not() -> None:
    far = {"x": TARGET.mean + 100.0}
    with pytest.warns(po.PosterityWarning, match="bam has not arrived"):
        po.infer(TARGET, po.BaM(), 5, start=far)
    po.infer(TARGET, po.BaM(), 20)


@SHORT
def test_a_family_arrives_and_the_same_seed_arrives_at_the_same_bits() -> None:
    first, again, other = (po.infer(TARGET, po.MeanFieldVI(), 200, seed=seed).mean()["x"] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    found = po.infer(TARGET, po.ScoreVI("dense"), 500)
    assert TARGET.kl(found.mean()["x"], found.moments()["x"].std) < 1e-6


def test_members_start_where_they_are_told() -> None:
    starts = [{"x": torch.full((3,), 7.0).double()}, {"x": torch.full((3,), -7.0).double()}]
    seen: list[Tensor] = []
    method = po.Ensemble(po.MAP(learning_rate=1e-3), 2)
    po.infer(
        TARGET, method, 1, start=starts, callback=lambda step, state: seen.append(method.point(state)["x"].clone())
    )
    torch.testing.assert_close(seen[0], torch.stack([start["x"] for start in starts]), atol=2e-3, rtol=0.0)


def test_what_a_sampler_emits_is_the_posterior() -> None:
    posterior = po.infer(TARGET, SGLD(burn_in=10, keep_every=2), 30)
    assert isinstance(posterior, Draws)
    assert posterior.finite == 10


@SHORT
def test_a_callback_ends_the_run() -> None:
    steps: list[int] = []

    def stop(step: int, state: Any) -> bool:
        steps.append(step)
        return step == 4

    po.infer(TARGET, po.ScoreVI(), 100, callback=stop)
    assert steps == [1, 2, 3, 4]


def test_a_density_that_is_nowhere_finite_is_an_error() -> None:
    nowhere = po.Density(lambda t: t["x"].sum() * float("nan"), {"x": torch.zeros(2)})
    with pytest.raises(po.NonFiniteError, match="3 steps in a row, the last of them step 3"):
        po.infer(nowhere, po.ScoreVI(), 100, max_failures=3)


def test_no_steps_and_no_network_are_refused() -> None:
    with pytest.raises(ValueError, match="steps must be at least 1"):
        po.infer(TARGET, po.MAP(), 0)
    with pytest.raises(po.PriorError, match="bare density"):
        po.infer(TARGET, po.LastLayerLaplace(), 10)
