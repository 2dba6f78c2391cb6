"""Every kind of posterior against what every posterior promises. A new kind is one golden folder, and its row here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from itertools import islice

import pytest
import torch
from tests.golden.test_golden import GOLDEN

import posterity as po
from posterity.bench.safety.runs import KINDS, inputs, network
from posterity.posterior.files import strict_json
from posterity.posterior.moments import Deterministic
from posterity.posterior.posterior import posterior_from
from posterity.testing.expect import same
from posterity.tree import MASKS, Tree

X = inputs()
HERE = po.Random(5)
MANY = 2000


@cache
def model(kind: str) -> po.BayesianModel:
    return po.load(GOLDEN / "format-1" / kind, network(kind)())


def drawn(kind: str, n: int, random: po.Random = HERE) -> list[Tree]:
    """At most `n` draws: a finite posterior has no more than it has."""
    posterior = model(kind).posterior
    return list(posterior.draws(min(n, posterior.finite or n), random))


def a_draw_has_its_address(kind: str) -> None:
    """Draw i is the same at every call, and however many are asked for; another stream has other draws."""
    one, again, more = drawn(kind, 1), drawn(kind, 1), drawn(kind, 3)
    same(again, one, "the first draw, made twice,")
    if model(kind).posterior.finite is None:
        same(more[:1], one, "the first draw of three")
        assert any(not leaf.equal(one[0][name]) for name, leaf in drawn(kind, 1, po.Random(6))[0].items())


def moments_are_those_of_the_draws(kind: str) -> None:
    """Means within 6 standard errors, stds within 10 %, of 2000 draws of some 32 numbers: once in 10^7 runs by chance."""
    draws = drawn(kind, MANY)
    for name, moment in model(kind).posterior.moments().items():
        values = torch.stack([draw[name] for draw in draws]).double()
        spread = values.std(0, correction=0)
        mean = moment.mean.double()
        if isinstance(moment, Deterministic):
            assert float((values - mean).abs().max()) < 1e-6, name
            continue
        room = 6 * spread / len(draws) ** 0.5 if len(draws) == MANY else torch.full_like(spread, 1e-3)
        assert bool(((values.mean(0) - mean).abs() <= room + 1e-6).all()), name
        assert bool(((spread - moment.std.double()).abs() <= 0.1 * spread + 1e-3).all()), name


def the_mean_is_that_of_the_draws(kind: str) -> None:
    draws, mean = drawn(kind, MANY), model(kind).posterior.mean()
    for name, leaf in mean.items():
        if name == MASKS or not leaf.is_floating_point():
            continue
        values = torch.stack([draw[name] for draw in draws]).double()
        error = 6 * values.std(0, correction=0) / len(draws) ** 0.5 + 1e-5
        assert bool(((values.mean(0) - leaf.double()).abs() <= error).all()), name


def tensors_and_json_are_all_there_is(kind: str) -> None:
    posterior = model(kind).posterior
    tensors = {name: leaf.clone() for name, leaf in posterior.tensors().items()}
    again = posterior_from(posterior.kind, tensors, strict_json(posterior.meta()))
    same(list(islice(again.draws(None, HERE), 3)), list(islice(posterior.draws(None, HERE), 3)), "the draws put back")


def the_divergence_from_the_prior_is_positive(kind: str) -> None:
    assert model(kind).posterior.divergence(model(kind).problem.prior) > 0


def a_row_does_not_feel_the_others(kind: str) -> None:
    """Rows one by one, in sevens, and from the last to the first."""
    whole = model(kind).predict(X).probs
    for said in (model(kind).predict(X, batch_size=1), model(kind).predict(X, batch_size=7)):
        assert float((said.probs - whole).abs().max()) < 1e-6
    assert float((model(kind).predict(X.flip(0)).probs.flip(0) - whole).abs().max()) < 1e-6


def predicting_changes_nothing(kind: str) -> None:
    before = [{name: leaf.clone() for name, leaf in draw.items()} for draw in drawn(kind, 2)]
    first = model(kind).predict(X).probs
    same(drawn(kind, 2), before, "the draws after a prediction")
    assert model(kind).predict(X).probs.equal(first)


def one_pass_says_what_the_draws_say(kind: str) -> None:
    """Probabilities of short fits within 0.03 of those of 2000 draws, whose own error is 0.01."""
    draws = None if model(kind).posterior.finite else MANY
    drawn, passed = (
        model(kind).predict(X, via=via, draws=n).probs for via, n in (("draws", draws), ("propagation", None))
    )
    assert float((drawn - passed).abs().max()) < 0.03


POSTERIOR_CHECKS: dict[str, Callable[[str], None]] = {
    check.__name__: check
    for check in (
        a_draw_has_its_address, moments_are_those_of_the_draws, the_mean_is_that_of_the_draws,
        tensors_and_json_are_all_there_is, the_divergence_from_the_prior_is_positive, a_row_does_not_feel_the_others,
        predicting_changes_nothing, one_pass_says_what_the_draws_say,
    )
}  # fmt: skip

NO_MEAN = "the average of an ensemble's weights is no network"
NO_FORM = "no closed form"
REFUSED: dict[str, dict[str, str]] = {
    "the_mean_is_that_of_the_draws": dict.fromkeys(["deep-ensemble", "mean-field-ensemble", "sghmc"], NO_MEAN),
    "moments_are_those_of_the_draws": {"mean-field-ensemble": NO_MEAN},
    "tensors_and_json_are_all_there_is": {"sghmc": "its draws stay in shards on the disk: tests/posterior/test_shards.py"},
    "the_divergence_from_the_prior_is_positive": {
        **dict.fromkeys(
            [
                "deep-ensemble", "score-vi-dense", "score-vi-low-rank", "score-vi-mixture", "score-vi-flow", "laplace",
                "laplace-kronecker", "sghmc", "swag", "rank-one", "mc-dropout",
            ],
            NO_FORM,
        ),
        "map": "a point has no spread",
        **dict.fromkeys(["low-rank", "low-rank-change"], "its vectors are points"),
    },
    "one_pass_says_what_the_draws_say": {"mc-dropout": "its spread is in masks, not in weights"},
}  # fmt: skip


@pytest.mark.parametrize("check", POSTERIOR_CHECKS)
@pytest.mark.parametrize("kind", KINDS)
def test_posterior(kind: str, check: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", po.PosterityWarning)
        if kind not in REFUSED.get(check, {}):
            POSTERIOR_CHECKS[check](kind)
            return
        with pytest.raises(po.PosterityError):  # by name, not by a wrong number
            POSTERIOR_CHECKS[check](kind)


def test_every_kind_has_a_folder() -> None:
    assert {path.name for path in (GOLDEN / "format-1").iterdir()} == set(KINDS)
