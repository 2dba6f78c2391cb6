"""Epochs and evaluations arrive in TensorBoard and MLflow."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import posterity as po
from posterity.loggers import MLflow, TensorBoard

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(20, 2, generator=GENERATOR)
DATA = (X, (X[:, 0] > 0).long())


def fitted(**options: Any) -> po.BayesianModel:
    return po.fit(lambda: nn.Linear(2, 2), DATA, method=po.IVON(), epochs=3, **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_the_epochs_and_the_metrics(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorBoard(tmp_path) as log:
        model = fitted(callbacks=[log])
        result = po.evaluate(model, DATA)
        log.evaluation(result)
    events = EventAccumulator(str(tmp_path)).Reload()
    shown = [(event.step, event.value) for event in events.Scalars("ivon/nll")]
    assert shown == [(line["step"], pytest.approx(line["nll"], rel=1e-6)) for line in model.history]
    accuracy = result.rows[0]["metrics"]["accuracy"].value
    assert events.Scalars("ivon/draws/accuracy")[0].value == pytest.approx(accuracy)


def test_mlflow_has_the_epochs_and_the_metrics(monkeypatch: Any) -> None:
    written: list[tuple[dict[str, float], int]] = []
    monkeypatch.setitem(
        sys.modules, "mlflow", SimpleNamespace(log_metrics=lambda numbers, step: written.append((numbers, step)))
    )
    log, model = MLflow(), fitted()
    log.history(model.history)
    assert [step for _, step in written] == [1, 2, 3]
    assert written[-1][0]["ivon/nll"] == model.history[-1]["nll"]
    log.evaluation(po.evaluate(model, DATA), step=3)
    assert "ivon/draws/ece" in written[-1][0]


def test_undefined_numbers_are_left_out(monkeypatch: Any) -> None:
    written: list[dict[str, float]] = []
    monkeypatch.setitem(
        sys.modules, "mlflow", SimpleNamespace(log_metrics=lambda numbers, step: written.append(numbers))
    )
    MLflow()({"stage": "map", "epoch": 0, "step": 4, "nll": float("nan"), "skipped": 1})
    assert written == [{"map/epoch": 0.0, "map/skipped": 1.0}]


def test_a_logger_that_is_not_installed_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match="pip install mlflow"):
        MLflow()
