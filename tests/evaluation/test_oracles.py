"""Metrics against other people's: scikit-learn, netcal, scoringrules."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    log_loss,
    mean_pinball_loss,
    roc_auc_score,
)

from posterity.evaluation.calibration import ece
from posterity.evaluation.classwise import Classwise
from posterity.evaluation.detection import aupr, auroc, fpr_at_tpr
from posterity.evaluation.intervals import interval_score, interval_score_rows, quantile_loss, quantile_loss_rows
from posterity.evaluation.proper import accuracy, brier, crps, lppd, nll
from posterity.prediction.components import GaussianMixture
from posterity.problem.likelihoods import Gaussian

SETTINGS = settings(derandomize=True, max_examples=50, deadline=None)
LEVELS = st.lists(st.integers(0, 5), min_size=1, max_size=30)
SEEDS = st.integers(0, 2**31)
# Sums of at most a few hundred float64, in another order.
CLOSE = {"rel": 1e-11, "abs": 1e-12}


def draws(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@SETTINGS
@given(st.integers(2, 40), st.integers(2, 7), SEEDS)
def test_means_over_rows(rows, classes, seed):
    log_probs = (3 * draws(seed, rows, classes)).log_softmax(1)
    targets = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(seed))
    probs, labels, log_prob = log_probs.exp(), list(range(classes)), log_probs[torch.arange(rows), targets]
    # all classes: scikit-learn halves the sum over classes only if asked to
    expected = brier_score_loss(targets, probs, labels=labels, scale_by_half=False)
    assert brier(probs, targets).value == pytest.approx(expected, **CLOSE)
    assert nll(log_prob).value == pytest.approx(log_loss(targets, probs, labels=labels), **CLOSE)
    assert lppd(log_prob).value == pytest.approx(-log_loss(targets, probs, labels=labels), **CLOSE)
    predicted = probs.argmax(1)
    assert accuracy(predicted == targets).value == pytest.approx(accuracy_score(targets, predicted), **CLOSE)


@SETTINGS
@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=2, max_size=40))
def test_brier_of_two_classes_is_twice_the_binary_one(rows):
    p, y = torch.tensor([k / 8 for k, _ in rows], dtype=torch.float64), torch.tensor([int(y) for _, y in rows])
    expected = brier_score_loss(y, p, pos_label=1)
    assert brier(torch.stack([1 - p, p], 1), y).value == pytest.approx(2 * expected, **CLOSE)


@SETTINGS
@given(LEVELS, LEVELS)
def test_detection(familiar, foreign):
    labels, values = [0] * len(familiar) + [1] * len(foreign), familiar + foreign
    area, out = (
        auroc(torch.tensor(familiar), torch.tensor(foreign)),
        aupr(torch.tensor(foreign), torch.tensor(familiar)),
    )
    within = aupr(-torch.tensor(familiar), -torch.tensor(foreign))
    if len(set(values)) == 1:
        assert all(math.isnan(metric.value) and metric.reason for metric in (area, out, within))
        return
    assert area.value == pytest.approx(roc_auc_score(labels, values), **CLOSE)
    assert out.value == pytest.approx(average_precision_score(labels, values), **CLOSE)
    turned = average_precision_score([1 - label for label in labels], [-value for value in values])
    assert within.value == pytest.approx(turned, **CLOSE)
    for metric in (out, within):
        assert 0 <= metric.low <= metric.value <= metric.high <= 1


@SETTINGS
@given(LEVELS, LEVELS, st.integers(1, 20))
def test_fpr_at_every_threshold(familiar, foreign, twentieths):
    # by its definition: of the values at which enough familiar rows are accepted, the smallest
    enough = [v for v in set(familiar) if 20 * sum(x <= v for x in familiar) >= twentieths * len(familiar)]
    metric = fpr_at_tpr(torch.tensor(familiar), torch.tensor(foreign), twentieths / 20)
    if len({*familiar, *foreign}) == 1:
        assert math.isnan(metric.value)
        return
    assert metric.value == pytest.approx(sum(x <= min(enough) for x in foreign) / len(foreign))
    assert metric.low <= metric.value <= metric.high


@SETTINGS
@given(st.integers(1, 40), st.sampled_from([0.05, 0.25, 0.5, 0.9]), SEEDS)
def test_pinball_loss(rows, level, seed):
    quantile, y = draws(seed, 2, rows)
    expected = mean_pinball_loss(y, quantile, alpha=level)
    assert quantile_loss(quantile, y, level).value == pytest.approx(expected, **CLOSE)
    assert quantile_loss_rows(quantile, y, level).mean().item() == pytest.approx(expected, **CLOSE)


@SETTINGS
@given(
    st.lists(st.tuples(st.integers(0, 59), st.booleans()), min_size=2, max_size=60), st.sampled_from([4, 12, 15, 20])
)
def test_ece(rows, bins):
    netcal = pytest.importorskip("netcal.metrics")
    # centres of sixtieths: never at the edge of a bin, where netcal has them closed on the left
    confidence = torch.tensor([(level + 0.5) / 60 for level, _ in rows], dtype=torch.float64)
    correct = torch.tensor([right for _, right in rows])
    expected = netcal.ECE(bins).measure(confidence.numpy(), correct.long().numpy())
    assert ece(confidence, correct, bins).value == pytest.approx(expected, **CLOSE)


@SETTINGS
@given(st.integers(2, 40), st.integers(2, 5), SEEDS)
def test_ece_of_a_class(rows, classes, seed):
    netcal = pytest.importorskip("netcal.metrics")
    probs = (2 * draws(seed, rows, classes)).softmax(1)
    targets = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(seed))
    measured = Classwise.of(probs, targets)
    expected = [netcal.ECE(15).measure(probs[:, c].numpy(), (targets == c).long().numpy()) for c in range(classes)]
    assert [metric.value for metric in measured.per_class()] == pytest.approx(expected, **CLOSE)
    assert measured.ece().value == pytest.approx(sum(expected) / classes, **CLOSE)


@SETTINGS
@given(st.integers(1, 40), st.sampled_from([0.5, 0.8, 0.9, 0.95]), SEEDS)
def test_interval_score(rows, level, seed):
    rules = pytest.importorskip("scoringrules")
    centre, width, y = draws(seed, 3, rows)
    lower, upper = centre - width.abs(), centre + width.abs()
    expected = np.atleast_1d(rules.interval_score(y.numpy(), lower.numpy(), upper.numpy(), 1 - level))
    # 1 - level is rounded: relative 1e-15, magnified by 2 / (1 - level)
    assert interval_score_rows(lower, upper, y, level).tolist() == pytest.approx(expected.tolist(), **CLOSE)
    assert interval_score(lower, upper, y, level).value == pytest.approx(expected.mean(), **CLOSE)


@SETTINGS
@given(st.integers(1, 40), st.sampled_from([0.05, 0.5, 0.9]), SEEDS)
def test_quantile_score(rows, level, seed):
    rules = pytest.importorskip("scoringrules")
    quantile, y = draws(seed, 2, rows)
    expected = np.atleast_1d(rules.quantile_score(y.numpy(), quantile.numpy(), level))
    assert quantile_loss_rows(quantile, y, level).tolist() == pytest.approx(expected.tolist(), **CLOSE)


@SETTINGS
@given(st.integers(1, 40), st.integers(1, 7), SEEDS)
def test_crps_of_normals(rows, members, seed):
    rules = pytest.importorskip("scoringrules")
    noise = draws(seed, 2 * members + 1, rows)
    location, scale, y = noise[:members], 0.1 + noise[members:-1].abs(), noise[-1]
    pred = GaussianMixture(Gaussian(), 3, "draws", location, scale)
    if members == 1:
        expected = rules.crps_normal(y.numpy(), location[0].numpy(), scale[0].numpy())
    else:  # the components are equally likely
        weight = torch.full((rows, members), 1 / members, dtype=torch.float64).numpy()
        expected = rules.crps_mixnorm(y.numpy(), location.T.numpy(), scale.T.numpy(), weight)
    # the prediction is rounded to float32, 6e-8 of it; the mixture's CRPS is a difference of terms of order 3
    assert pred.crps(y).tolist() == pytest.approx(np.atleast_1d(expected).tolist(), rel=1e-6, abs=1e-6)
    assert crps(pred.crps(y)).value == pytest.approx(expected.mean(), rel=1e-6, abs=1e-6)
