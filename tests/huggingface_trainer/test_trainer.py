"""An unchanged Trainer finds the posterior that `po.fit` finds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import TrainerCallback

import posterity as po
from posterity.huggingface import bayesian
from posterity.tree import Tree

METHODS = [po.IVON(), po.ScoreVI(), po.MeanFieldVI(), po.MAP(), po.OptimizerLaplace()]
PRIORS = {"number": 1.0, "centred": po.Normal(0.5, center="start")}


def fitted(network: Any, rows: Any, method: Any, likelihood: str = "categorical", **options: Any) -> po.BayesianModel:
    loader = DataLoader(rows, batch_size=options.pop("batch_size", 8), drop_last=options.pop("drop_last", False))
    return po.fit(network, loader, likelihood, method, target="labels", epochs=2, seed=3, **options)


def apart(model: po.BayesianModel, other: po.BayesianModel) -> float:
    one, two = model.posterior.tensors(), other.posterior.tensors()
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_trainer_agrees_with_fit_to_the_bit(
    trainer: Any, method: Any, prior: str, bert: Any, sentences: Any
) -> None:
    driven = bayesian(bert(), method, prior=PRIORS[prior], seed=3)
    trainer(driven).train()
    reference = fitted(bert(), sentences(), method, prior=PRIORS[prior])
    assert apart(driven.model(), reference) == 0.0
    assert list(driven.model().history) == list(reference.history)
    assert driven.model().problem.data_size == 24


def test_tied_embeddings_of_a_language_model_agree_with_fit(trainer: Any, llama: Any, sentences: Any) -> None:
    driven = bayesian(llama(tie_word_embeddings=True), po.IVON(), likelihood="tokens", seed=3)
    rows = sentences(tokens=True)
    trainer(driven, rows).train()
    reference = fitted(llama(tie_word_embeddings=True), rows, po.IVON(), "tokens")
    assert apart(driven.model(), reference) == 0.0
    assert driven.network.lm_head.weight is driven.network.model.embed_tokens.weight


def test_a_frozen_trunk_stays_as_it_was(trainer: Any, bert: Any, sentences: Any) -> None:
    network, reference = bert(), bert()
    for one in (network, reference):
        one.bert.requires_grad_(False)
    before = {name: value.clone() for name, value in network.bert.state_dict().items()}
    driven = bayesian(network, po.IVON(), seed=3)
    trainer(driven).train()
    assert apart(driven.model(), fitted(reference, sentences(), po.IVON())) == 0.0
    assert all(value.equal(before[name]) for name, value in network.bert.state_dict().items())


def test_weights_that_no_forward_reaches_keep_their_prior(trainer: Any, bert: Any, sentences: Any) -> None:
    network, reference = bert(), bert()
    for one in (network, reference):
        one.spare = torch.nn.Linear(2, 2)
        torch.nn.init.constant_(one.spare.weight, 0.1), torch.nn.init.constant_(one.spare.bias, 0.1)
    driven = bayesian(network, po.IVON(), prior=0.5, seed=3)
    trainer(driven).train()
    assert apart(driven.model(), fitted(reference, sentences(), po.IVON(), prior=0.5)) == 0.0
    assert driven.model().posterior.moments()["spare.weight"].std.unique().tolist() == [0.5]


@pytest.mark.parametrize(("rows", "batch", "parts"), [(24, 4, 2), (21, 4, 2), (22, 3, 3)])
def test_accumulated_batches_count_as_one(
    trainer: Any, rows: int, batch: int, parts: int, bert: Any, sentences: Any
) -> None:
    driven = bayesian(bert(), po.IVON(), seed=3)
    trainer(driven, sentences(rows), per_device_train_batch_size=batch, gradient_accumulation_steps=parts).train()
    assert (
        apart(driven.model(), fitted(bert(), sentences(rows), po.IVON(), batch_size=batch, accumulation=parts)) < 1e-5
    )
    assert apart(driven.model(), fitted(bert(), sentences(rows), po.IVON(), batch_size=batch * parts)) < 1e-5


def test_dropped_rows_do_not_count(trainer: Any, bert: Any, sentences: Any) -> None:
    driven = bayesian(bert(), po.IVON(), seed=3)
    trainer(driven, sentences(23), dataloader_drop_last=True).train()
    assert driven.model().problem.data_size == 16
    assert apart(driven.model(), fitted(bert(), sentences(23), po.IVON(), drop_last=True)) == 0.0


def test_ignored_labels_count_for_nothing_and_batches_of_them_are_left_out(
    trainer: Any, bert: Any, sentences: Any
) -> None:
    rows = sentences()
    rows.labels[:10] = -100
    driven = bayesian(bert(), po.IVON(), seed=3)
    trainer(driven, rows).train()
    reference = fitted(bert(), rows, po.IVON())
    assert [line["left_out"] for line in driven.model().history] == [1, 1]
    assert all(torch.isfinite(leaf).all() for leaf in driven.model().posterior.tensors().values())
    assert [line["left_out"] for line in reference.history] == [1, 1]


def test_bf16_casts_the_forward_as_fit_does(trainer: Any, bert: Any, sentences: Any) -> None:
    driven = bayesian(bert(), po.IVON(), seed=3)
    trainer(driven, bf16=True).train()
    model = driven.model()
    assert model.problem.precision == "bf16"
    assert {leaf.dtype for leaf in model.posterior.tensors().values()} == {torch.float32}
    assert apart(model, fitted(bert(), sentences(), po.IVON(), precision="bf16")) < 0.1


def test_the_trainers_clipping_is_that_of_fit_once_both_say_it(trainer: Any, bert: Any, sentences: Any) -> None:
    driven = bayesian(bert(), po.IVON(), seed=3, clip=0.1)
    trainer(driven, max_grad_norm=0.1).train()
    assert apart(driven.model(), fitted(bert(), sentences(), po.IVON(), clip=0.1)) < 1e-4


class _Killed(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        if state.global_step == 4:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("method", "every", "prior"),
    [
        (po.IVON(), 2, "number"), (po.IVON(), 3, "centred"), (po.ScoreVI(), 2, "centred"),
        pytest.param(po.MeanFieldVI(), 3, "number", marks=pytest.mark.slow),
        pytest.param(po.MAP(), 2, "number", marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)  # fmt: skip
def test_a_resumed_run_ends_at_the_same_bits(trainer: Any, method: Any, every: int, prior: str, bert: Any) -> None:
    saving = {"save_strategy": "steps", "save_steps": every, "save_total_limit": 1}
    whole = bayesian(bert(), method, prior=PRIORS[prior])
    trainer(whole).train()
    with pytest.raises(KeyboardInterrupt):
        trainer(bayesian(bert(), method, prior=PRIORS[prior]), callbacks=(_Killed(),), **saving).train()
    resumed = bayesian(bert(), method, prior=PRIORS[prior])
    trainer(resumed, **saving).train(resume_from_checkpoint=True)
    assert apart(whole.model(), resumed.model()) == 0.0
    assert list(whole.model().history) == list(resumed.model().history)


def test_training_again_starts_again(trainer: Any, bert: Any) -> None:
    driven = bayesian(bert(), po.IVON())
    again = trainer(driven)
    again.train()
    first = driven.model()
    again.train()
    assert [line["step"] for line in driven.model().history] == [3, 6]
    assert apart(first, driven.model()) > 0.0


def test_another_fits_checkpoint_is_refused(trainer: Any, bert: Any) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3}
    trainer(bayesian(bert(), po.IVON()), **saving).train()
    with pytest.raises(po.StorageError, match="data_weight"):
        trainer(bayesian(bert(), po.IVON(), data_weight=2.0), **saving).train(resume_from_checkpoint=True)


class _Watching(TrainerCallback):
    """The module's weights in the Trainer's evaluations and in its forwards."""

    def __init__(self) -> None:
        self.evaluated: list[Tree] = []
        self.trained: list[Tensor] = []

    def on_evaluate(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self.evaluated.append({name: leaf.detach().clone() for name, leaf in found["model"].named_parameters()})

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self.trained.append(found["model"].classifier.weight.detach().clone())


def test_evaluations_see_the_mean_and_steps_see_draws(trainer: Any, bert: Any, sentences: Any) -> None:
    watching, driven = _Watching(), bayesian(bert(), po.IVON())
    going = trainer(driven, callbacks=(watching,), held_out=sentences(8), eval_strategy="epoch")
    going.train()
    mean = driven.model().posterior.mean()
    assert all(leaf.equal(mean[name]) for name, leaf in watching.evaluated[-1].items())
    assert all(not leaf.equal(mean["classifier.weight"]) for leaf in watching.trained)
    assert driven.network.classifier.weight.equal(mean["classifier.weight"])


def test_the_trainers_log_shows_the_methods_rate_and_the_mean_loss(trainer: Any, bert: Any) -> None:
    driven = bayesian(bert(), po.IVON(learning_rate=0.05))
    going = trainer(driven, per_device_train_batch_size=4, gradient_accumulation_steps=2, logging_steps=1)
    going.train()
    logs = [line for line in going.state.log_history if "loss" in line]
    assert {float(line["learning_rate"]) for line in logs} == {0.05}
    mean = sum(float(line["loss"]) for line in logs) / len(logs)
    assert mean == pytest.approx(sum(line["nll"] for line in driven.model().history) / 2, rel=1e-3)


def test_the_model_predicts_evaluates_and_calibrates(trainer: Any, bert: Any, sentences: Any) -> None:
    driven = bayesian(bert(), po.IVON())
    trainer(driven).train()
    model, rows = driven.model(), sentences(16)
    batch = {"input_ids": rows.ids, "attention_mask": torch.ones_like(rows.ids)}
    assert model.predict(batch).probs.shape == (16, 2)
    model.calibrate(DataLoader(rows, batch_size=8))
    result = po.evaluate(model, DataLoader(rows, batch_size=8))
    assert result.rows[0]["metrics"]["nll"].n == 16
