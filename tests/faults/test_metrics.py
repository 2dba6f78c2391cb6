"""Metrics at their edges: probabilities of 0 and 1, bins without rows, one class, NaN, ties."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import posterity as po
from posterity.evaluation.calibration import confidence_gap, ece, ece_of, reliability
from posterity.evaluation.classwise import Classwise
from posterity.evaluation.detection import auroc
from posterity.evaluation.selective import aurc, excess_aurc
from posterity.random import Random


@pytest.mark.parametrize(
    ("confidence", "correct", "bins", "expected"),
    [
        ([1.0, 1.0, 1.0, 1.0, 0.0], [1, 1, 1, 1, 0], 15, 0.0),  # torchmetrics #1646: 0 is in the first bin
        ([0.95, 1.0], [1, 0], 10, 0.475),  # torchmetrics #3510: 1 is in the last
        ([0.1, 0.5, 0.9], [0, 1, 1], 15, 0.7 / 3),  # torch-uncertainty #300: more bins than rows
    ],
)
def test_every_row_is_in_a_bin(confidence: list[float], correct: list[int], bins: int, expected: float) -> None:
    table = reliability(torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct), bins)
    assert int(table.count.sum()) == len(confidence)
    assert ece_of(table).value == pytest.approx(expected, abs=1e-12)


def test_bins_count_100_rows_with_0_and_1_among_them() -> None:
    """FARM #710"""
    p = torch.cat([torch.rand(98, generator=Random(0).generator()), torch.tensor([0.0, 1.0])])
    for bins in (1, 10, 15, 200):
        for mass in (False, True):
            assert int(reliability(p, p > 0.5, bins, mass).count.sum()) == 100


def test_bins_without_rows_are_blank_and_number_and_diagram_agree() -> None:
    """netcal #52, torch-uncertainty #300"""
    table = reliability(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, 1, 0]), 15)
    columns = table.columns()
    assert columns["count"] == [1, *[0] * 13, 2]
    assert all(math.isnan(columns[name][b]) for name in ("accuracy", "gap", "low") for b in range(1, 14))
    assert ece_of(table).value == pytest.approx(abs(1 - 0.5) * 2 / 3)


def test_the_calibration_of_two_classes_is_that_of_the_top_one_and_by_class_under_its_own_name() -> None:
    """torchmetrics #1105, netcal #17"""
    metrics = po.evaluate(torch.tensor([[0.99, 0.01]]), torch.tensor([1])).rows[0]["metrics"]
    assert metrics["ece"].value == pytest.approx(0.99)  # class 0 is said with 0.99 and wrong
    assert metrics["ece_classwise"].value == pytest.approx(0.99)  # |0.99 - 0| and |0.01 - 1|
    assert metrics["confidence_gap"].value == pytest.approx(0.99)


@pytest.mark.parametrize("row", [[1.00001, -0.00001], [2.0, -1.0], [99.0, 1.0], [math.nan, 0.5]])
def test_what_is_no_probability_is_never_taken_for_a_logit_or_skipped(row: list[float]) -> None:
    with pytest.raises(po.DataError, match=r"probs is (outside \[0, 1\]|NaN) in 1 row \(1\)"):
        po.evaluate(torch.tensor([[0.5, 0.5], row]), torch.tensor([0, 1]))


def test_nan_is_never_put_in_a_bin() -> None:
    with pytest.raises(po.DataError, match=r"NaN in 1 row \(1\)"):
        ece(torch.tensor([0.5, math.nan]), torch.tensor([1, 0]))
    empty = ece(torch.zeros(0), torch.zeros(0))
    assert math.isnan(empty.value)
    assert empty.reason == "no rows"


def test_fractions_are_fractions_in_json_too() -> None:
    """torch-uncertainty #176"""
    result = po.evaluate(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1]))
    metrics = json.loads(json.dumps(result.to_json()))["rows"][0]["metrics"]
    assert metrics["ece"]["value"] == pytest.approx(0.4)
    assert metrics["accuracy"]["value"] == 0.5


def test_what_one_class_or_one_value_cannot_tell_is_nan_with_a_reason() -> None:
    """torchmetrics #2494, #205, #348"""
    same = auroc(torch.ones(4), torch.ones(3))
    assert math.isnan(same.value)
    assert same.reason == "every row has the same value"
    alone = Classwise.of(torch.ones(3, 1), torch.zeros(3, dtype=torch.int64)).ece()
    assert math.isnan(alone.value)
    assert alone.reason == "one class"


def test_foreign_rows_need_familiar_ones_beside_them() -> None:
    """torch-uncertainty #139"""
    with pytest.raises(po.DataError, match="3 in-distribution and 0 out-of-distribution"):
        auroc(torch.arange(3.0), torch.zeros(0))
    with pytest.raises(po.DataError):
        auroc(torch.zeros(0), torch.arange(3.0))
    sure, flat = torch.tensor([[0.99, 0.01]] * 3), torch.full((4, 2), 0.5)
    found = po.evaluate(sure, torch.zeros(3, dtype=torch.int64), ood={"flat": flat}).rows[0]["metrics"]
    assert (found["ood_auroc"].value, found["ood_auroc"].n) == (1, 7)


def test_the_risk_of_six_tied_rows_is_the_mean_over_their_orders() -> None:
    """torch-uncertainty #335, MAPIE #953"""
    correct = torch.tensor([1, 0, 1, 0, 1, 1])
    assert aurc(torch.full((6,), 0.7), correct).value == pytest.approx(1 / 3)
    # the best order: two errors last
    assert excess_aurc(torch.full((6,), 0.7), correct).value == pytest.approx(1 / 3 - (1 / 5 + 2 / 6) / 6)


def test_over_and_under_confidence_have_a_sign() -> None:
    """torch-uncertainty #342"""
    right = torch.tensor([1, 0])
    assert confidence_gap(torch.full((2,), 0.9), right).value == pytest.approx(0.4)
    assert confidence_gap(torch.full((2,), 0.1), right).value == pytest.approx(-0.4)


def test_a_calibrated_model_says_everything_that_it_said_before() -> None:
    """uncertainty-toolbox #21, #88"""
    x, noise = Random(0).fold("x").normal((400, 1)), Random(0).fold("noise").normal((400,))
    model = po.fit(lambda: nn.Linear(1, 1), (x, noise), "gaussian", epochs=30, seed=0, progress=False)
    before = model.predict(x)
    model.calibrate((x, 3 * noise))
    after = model.predict(x)
    assert 2.5 < after.std.mean() / before.std.mean() < 3.5
    assert (after.interval(0.9)[1] > before.interval(0.9)[1]).all()
    assert (after.quantile(0.5) - after.mean).abs().max() < 1e-3
    assert 0.85 < po.evaluate(model, (x, 3 * noise)).rows[0]["metrics"]["interval_coverage"].value < 0.95
