"""What a Trainer cannot do is said before the first step."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Trainer

import posterity as po
from posterity.huggingface import bayesian

UNDRIVEN = [
    po.DeepEnsemble(members=2), po.SGHMC(), po.SGLD(), po.SWAG(), po.LowRankVI(), po.RankOneVI(), po.MCDropout(),
    po.LastLayerLaplace(),
]  # fmt: skip


@pytest.mark.parametrize("method", UNDRIVEN, ids=lambda method: method.name)
def test_what_cannot_be_driven_names_what_can(method: Any, bert: Any) -> None:
    with pytest.raises(po.CompatibilityError, match=r"cannot be driven .*po\.IVON\(\)"):
        bayesian(bert(), method)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"method": "ivon"}, po.CompatibilityError, "must be an algorithm"),
        ({"seed": -1}, po.CompatibilityError, "seed"),
        ({"method": po.IVON(), "prior": po.Laplace(1.0)}, po.PriorError, "normal"),
        ({"likelihood": "gaussian"}, po.CompatibilityError, "surveyed"),
        ({"likelihood": po.Categorical(class_weight="balanced")}, po.CompatibilityError, "surveyed"),
    ],
)
def test_parts_that_do_not_go_together(options: dict[str, Any], error: type[Exception], match: str, bert: Any) -> None:
    with pytest.raises(error, match=match):
        bayesian(bert(), **options)


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ({"load_best_model_at_end": True, "eval_strategy": "no"}, "puts back weights"),
        ({"max_grad_norm": 0.5}, "differ"),
    ],
    ids=["best model", "clipping"],
)
def test_arguments_that_would_spoil_the_posterior(trainer: Any, args: dict[str, Any], match: str, bert: Any) -> None:
    with pytest.raises(po.CompatibilityError, match=match):
        trainer(bayesian(bert(), po.IVON(), clip=1.0), **args).train()


@pytest.mark.parametrize(
    ("args", "match"),
    [({"max_grad_norm": 1.0}, "clips gradients"), ({"learning_rate": 1e-3, "weight_decay": 0.1}, "nor weight_decay")],
    ids=["clipping", "unused"],
)
def test_arguments_that_mean_something_else_here(trainer: Any, args: dict[str, Any], match: str, bert: Any) -> None:
    with pytest.warns(po.PosterityWarning, match=match):
        trainer(bayesian(bert(), po.IVON()), **args).train()


def test_a_data_size_that_the_trainer_does_not_have(trainer: Any, bert: Any) -> None:
    with pytest.raises(po.DataError, match="an epoch of this loop has 24 rows"):
        trainer(bayesian(bert(), po.IVON(), data_size=100)).train()


@pytest.mark.parametrize("left_out", ["callback", "loss", "optimizers"])
def test_a_part_that_the_trainer_was_not_given(trainer: Any, left_out: str, bert: Any) -> None:
    driven = bayesian(bert(), po.IVON())
    going: Trainer = trainer(driven, learning_rate=5e-5)
    if left_out == "callback":
        going.remove_callback(type(driven.callback))
    elif left_out == "loss":
        going.compute_loss_func = None
    else:
        going.optimizer = going.lr_scheduler = None
    with pytest.raises(po.CompatibilityError, match=r"callback|driven\.loss|optimizers="):
        going.train()


def test_another_network(trainer: Any, bert: Any) -> None:
    driven = bayesian(bert(), po.IVON())
    driven.network = bert()
    going = trainer(driven)
    driven.network = bert()
    with pytest.raises(po.CompatibilityError, match="another network"):
        going.train()


def test_weights_frozen_too_late(trainer: Any, bert: Any) -> None:
    driven = bayesian(bert(), po.IVON())
    driven.network.classifier.bias.requires_grad_(False)
    with pytest.raises(po.CompatibilityError, match="frozen or freed"):
        trainer(driven).train()


def test_a_model_of_nothing(bert: Any) -> None:
    with pytest.raises(po.CompatibilityError, match="nothing was trained"):
        bayesian(bert(), po.IVON()).model()


def test_losses_that_stop_being_finite_end_the_run(trainer: Any, bert: Any, sentences: Any) -> None:
    driven = bayesian(bert(), po.MAP(learning_rate=1e30))
    with pytest.raises(po.NonFiniteError):
        trainer(driven, sentences(), num_train_epochs=10).train()
