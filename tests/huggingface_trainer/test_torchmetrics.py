"""Metrics for torchmetrics are those of `po.evaluate`."""

from __future__ import annotations

import pytest
import torch

import posterity as po
from posterity.torchmetrics import NAMES, RowMetric, collection

GENERATOR = torch.Generator().manual_seed(0)
PROBS = torch.rand(40, 3, generator=GENERATOR).softmax(1)
LABELS = torch.randint(0, 3, (40,), generator=GENERATOR)
NORMAL = {"mean": torch.randn(40, generator=GENERATOR), "std": torch.rand(40, generator=GENERATOR) + 0.5}
NUMBERS = torch.randn(40, generator=GENERATOR)
CLASSES = ("nll", "accuracy", "brier", "ece", "confidence_gap", "aurc", "excess_aurc")


@pytest.mark.parametrize("name", CLASSES)
def test_batches_of_classes_give_what_evaluate_gives(name: str) -> None:
    metric = RowMetric(name)
    for rows in (slice(0, 7), slice(7, 30), slice(30, 40)):
        metric.update(PROBS[rows], LABELS[rows])
    found = po.evaluate(PROBS, LABELS).rows[0]["metrics"][name]
    assert metric.compute().item() == pytest.approx(found.value, abs=1e-12)


@pytest.mark.parametrize("name", ["nll", *NAMES[len(CLASSES) :]])
def test_batches_of_numbers_give_what_evaluate_gives(name: str) -> None:
    metric = RowMetric(name)
    for rows in (slice(0, 7), slice(7, 40)):
        metric.update({key: value[rows] for key, value in NORMAL.items()}, NUMBERS[rows])
    found = po.evaluate(NORMAL, NUMBERS).rows[0]["metrics"][name]
    assert metric.compute().item() == pytest.approx(found.value, abs=1e-12)


def test_a_models_predictions_can_be_given_as_they_are() -> None:
    x = torch.randn(30, 2, generator=GENERATOR)
    y = (x[:, 0] > 0).long()
    model = po.fit(lambda: torch.nn.Linear(2, 2), (x, y), method=po.IVON(), steps=5)
    metrics = collection("nll", "ece")
    metrics.update(model.predict(x), y)
    found = po.evaluate(model, (x, y)).rows[0]["metrics"]
    assert {name: value.item() for name, value in metrics.compute().items()} == pytest.approx(
        {name: found[name].value for name in ("nll", "ece")}, abs=1e-12
    )


def test_reset_forgets_and_states_of_two_processes_add_up() -> None:
    whole, one, other = RowMetric("aurc"), RowMetric("aurc"), RowMetric("aurc")
    whole.update(PROBS, LABELS), one.update(PROBS[:9], LABELS[:9]), other.update(PROBS[9:], LABELS[9:])
    expected = whole.compute()
    one.merge_state(other)
    assert one.compute() == expected
    whole.reset()
    whole.update(PROBS[:9], LABELS[:9])
    assert whole.compute() != expected


@pytest.mark.parametrize(("name", "better"), [("accuracy", True), ("crps", False), ("interval_width", None)])
def test_torchmetrics_learns_which_way_is_better(name: str, better: bool | None) -> None:
    assert RowMetric(name).higher_is_better is better


def test_an_unknown_metric_names_those_there_are() -> None:
    with pytest.raises(po.CompatibilityError, match="excess_aurc"):
        RowMetric("f1")
