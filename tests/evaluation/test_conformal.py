"""Conformal sets and intervals: what MAPIE finds, coverage as promised, and each row by itself."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import posterity as po
from posterity.errors import CompatibilityError, DataError, StorageError
from posterity.evaluation.conformal import Conformal, ConformalIntervals, conformal
from posterity.evaluation.conformal_scores import (
    CLASS_SCORES,
    NUMBER_SCORES,
    class_scores,
    conformal_quantile,
    number_scores,
    widened,
)
from posterity.evaluation.predictions import as_predictive

KINDS = ("clay", "sand", "silt")


def line(n, seed):
    """y around 100 + 20 x, with a noise that grows to the right; the network sees neither its size nor its shape."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=generator)
    return x, 100 + 20 * x[:, 0] + (1 + 8 * x[:, 0]) * torch.randn(n, generator=generator)


def soils(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator)
    logits = torch.stack([torch.zeros(n), 2 * x[:, 0], 2 * x[:, 1] - 1], 1)
    return x, [KINDS[k] for k in torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]]


@pytest.fixture(scope="module")
def regression():
    options = {"epochs": 20, "batch_size": 50, "progress": False, "seed": 0}
    return po.fit(lambda: nn.Linear(1, 1), line(503, 0), "gaussian", po.DeepEnsemble(3), **options)


@pytest.fixture(scope="module")
def classification():
    options = {"epochs": 20, "batch_size": 50, "progress": False, "seed": 0}
    return po.fit(lambda: nn.Linear(2, 3), soils(503, 0), po.Categorical(KINDS), po.DeepEnsemble(3), **options)


# --- the core ---------------------------------------------------------------------------------------------------------


def test_the_quantile_is_an_order_statistic():
    scores = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0, 7.0, 6.0, 9.0, 8.0])
    # ranks ceil(10 level): 9, 5, 6 of nine rows
    assert [conformal_quantile(scores, level) for level in (0.9, 0.5, 0.51)] == [9.0, 5.0, 6.0]
    with pytest.raises(DataError, match="level 0.91 needs at least 11 rows, got 9"):
        conformal_quantile(scores, 0.91)
    conformal_quantile(torch.arange(11.0), 0.91)
    with pytest.raises(DataError, match="NaN"):
        conformal_quantile(torch.full((20,), math.nan), 0.9)
    for level in (0.0, 1.0, 90):
        with pytest.raises(DataError, match="fraction"):
            conformal_quantile(scores, level)


def test_class_scores_by_hand():
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.25, 0.5, 0.25]], dtype=torch.float64)
    expected = {
        "lac": [[0.8, 0.5, 0.7], [0.75, 0.5, 0.75]],
        "aps": [[0.8, 0.0, 0.5], [0.5, 0.0, 0.5]],  # equal probabilities, equal scores
    }
    for score, values in expected.items():
        assert torch.allclose(class_scores(probs, score), torch.tensor(values, dtype=torch.float64), atol=1e-15)
    seven = torch.tensor([[0.3, 0.2, 0.16, 0.12, 0.1, 0.07, 0.05]], dtype=torch.float64)
    penalty = class_scores(seven, "raps") - class_scores(seven, "aps")
    assert torch.allclose(penalty, torch.tensor([[0, 0, 0, 0, 0, 0.01, 0.02]], dtype=torch.float64), atol=1e-15)


@pytest.mark.parametrize("score", NUMBER_SCORES)
def test_what_is_inside_scores_at_most_the_quantile(score):
    generator = torch.Generator().manual_seed(0)
    mean, y = torch.randn(2, 211, generator=generator, dtype=torch.float64)
    pred = as_predictive({"mean": mean, "std": 0.5 + torch.rand(211, generator=generator)})
    scores = number_scores(pred, y, score, 0.8)
    for quantile in (0.3, 1.7):
        lower, upper = widened(pred, score, 0.8, quantile)
        near = (scores - quantile).abs() < 1e-5  # quantiles of predictions are float32
        assert torch.equal(((lower <= y) & (y <= upper)) | near, (scores <= quantile) | near)


def test_an_interval_that_shrinks_past_its_middle_is_a_point():
    pred = as_predictive({"mean": torch.tensor([1.0, 2.0]), "std": torch.tensor([0.1, 10.0])})
    lower, upper = widened(pred, "quantile", 0.9, -1.0)
    assert lower[0] == upper[0] == pytest.approx(1.0)
    assert upper[1] - lower[1] == pytest.approx(2 * (1.6449 * 10 - 1), rel=1e-4)


# --- against MAPIE ----------------------------------------------------------------------------------------------------


class Said:
    """An estimator whose inputs are its predictions: columns of probabilities, or mean, std, lower, upper."""

    fitted_ = True

    def __init__(self, column=None, classes=()):
        self.column, self.classes_ = column, np.arange(len(classes))

    def fit(self, x, y):
        return self

    def predict_proba(self, x):
        return np.asarray(x)

    def predict(self, x, return_std=False):
        if self.column is None:
            return np.asarray(x).argmax(1)
        return (x[:, 0], x[:, 1]) if return_std else x[:, self.column]


@pytest.mark.parametrize("level", [0.6, 0.9])
def test_intervals_are_those_of_mapie(level):
    mapie = pytest.importorskip("mapie.regression")
    scores = pytest.importorskip("mapie.conformity_scores")
    generator = np.random.default_rng(0)
    mean, std = generator.normal(size=307), 0.2 + generator.random(307)
    y = mean + 1.4 * std * generator.normal(size=307)
    half = as_predictive({"mean": torch.zeros(1), "std": torch.ones(1)}).interval(level)[1].item()
    table = np.stack([mean, std, mean - half * std, mean + half * std], 1)
    held, new = slice(0, 150), slice(150, None)
    pred = as_predictive({"mean": torch.tensor(mean), "std": torch.tensor(std)})
    for score in NUMBER_SCORES:
        if score == "quantile":
            theirs = mapie.ConformalizedQuantileRegressor(
                [Said(2), Said(3), Said(0)], confidence_level=level, prefit=True
            )
            options = {"symmetric_correction": True}
        else:
            kind = "absolute" if score == "absolute" else scores.StdConformityScore()
            theirs = mapie.SplitConformalRegressor(Said(0), confidence_level=level, conformity_score=kind)
            options = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs.conformalize(table[held], y[held])
            found = theirs.predict_interval(table[new], **options)[1][:, :, 0]
        quantile = conformal_quantile(number_scores(pred[held], torch.tensor(y[held]), score, level), level)
        lower, upper = widened(pred[new], score, level, quantile)
        # float32 means and bounds of size 3; of normalised ones MAPIE 1.6 takes the next smaller residual at the lower end
        own = torch.stack([lower, upper], 1)[:, 1 if score == "normalised" else 0 :]
        assert torch.allclose(own, torch.tensor(found)[:, -own.shape[1] :], atol=2e-6, rtol=0), score


@pytest.mark.parametrize("level", [0.6, 0.9])
def test_lac_sets_are_those_of_mapie(level):
    mapie = pytest.importorskip("mapie.classification")
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(5), 307)
    y = np.array([generator.choice(5, p=row) for row in probs])
    theirs = mapie.SplitConformalClassifier(Said(classes=range(5)), confidence_level=level, conformity_score="lac")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.conformalize(probs[:150], y[:150])
        found = theirs.predict_set(probs[150:])[1][:, :, 0]
    scores = class_scores(torch.tensor(probs), "lac")
    quantile = conformal_quantile(scores[:150].gather(1, torch.tensor(y[:150, None]))[:, 0], level)
    assert torch.equal(scores[150:] <= quantile, torch.tensor(found))


def test_an_estimator_goes_to_mapie_as_it_is():
    """What MAPIE has beyond this: its other scores and risks take the scikit-learn estimators."""
    mapie = pytest.importorskip("mapie.regression")
    estimators = pytest.importorskip("posterity.interfaces.sklearn")
    (x, y), (held, truth), (new, _) = (
        tuple(map(np.asarray, line(n, seed))) for n, seed in ((211, 0), (199, 1), (7, 2))
    )
    estimator = estimators.PosterityRegressor("map", network="linear", epochs=8, batch_size=50, random_state=0)
    estimator.fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = mapie.SplitConformalRegressor(estimator, confidence_level=0.9).conformalize(held, truth)
        found = theirs.predict_interval(new)[1][:, :, 0]
    ours = conformal(estimator, (held, truth), score="absolute").predict(new)
    assert isinstance(ours, ConformalIntervals)
    # float32 predictions of size 100
    assert torch.allclose(torch.stack([ours.lower, ours.upper], 1), torch.tensor(found), rtol=1e-6, atol=0)


# --- a model ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", NUMBER_SCORES)
def test_intervals_in_units_of_the_target(regression, score):
    said = conformal(regression, line(401, 1), score=score).predict(line(2003, 2)[0])
    _, y = line(2003, 2)
    assert 90 < said.mean.min() < said.mean.max() < 130
    inside = ((said.lower <= y) & (y <= said.upper)).double().mean().item()
    # 401 and 2003 rows: 0.9 +- 3 sqrt(0.09 (1/401 + 1/2003))
    assert inside == pytest.approx(0.9, abs=3 * math.sqrt(0.09 * (1 / 401 + 1 / 2003)))
    metrics = po.evaluate(said, y, levels=(0.9,)).rows[0]["metrics"]
    assert metrics["interval_coverage"].value == pytest.approx(inside)
    assert list(said.to_frame().columns) == ["mean", "lower", "upper"]


@pytest.mark.parametrize("score", CLASS_SCORES)
def test_sets_of_the_labels(classification, score):
    x, y = soils(2003, 2)
    said = conformal(classification, soils(401, 1), score=score).predict(x)
    inside = sum(name in said[row] for row, name in enumerate(y)) / 2003
    assert inside == pytest.approx(0.9, abs=3 * math.sqrt(0.09 * (1 / 401 + 1 / 2003)))
    assert 1 < said.size.double().mean() < 3
    if score != "lac":
        assert all(name in said[row] for row, name in enumerate(said.label))
    frame = said.to_frame()
    assert frame["size"].tolist() == [len(one) for one in frame["set"]] == said.size.tolist()


def test_a_row_does_not_depend_on_the_others(classification):
    found = conformal(classification, soils(401, 1), score="aps")
    x, _ = soils(31, 3)
    whole = found.predict(x)
    # one row alone goes through another product, whose last bit may differ: not so near to the quantile here
    assert [found.predict(x[row : row + 1])[0] for row in range(31)] == [whole[row] for row in range(31)]


def test_coverage_of_the_parts(regression, classification):
    x, y = line(1501, 4)
    right = (x[:, 0] > 0.5).tolist()
    table = conformal(regression, line(401, 1), score="absolute").coverage((x, y), groups={"right": right})
    assert list(zip(table["by"], table["group"])) == [("all", "all"), ("right", "False"), ("right", "True")]
    assert table["n"][0] == table["n"][1] + table["n"][2] == 1501
    # one width for all: too wide where the noise is small, too narrow where it is large
    assert table["note"][1:] == ["above", "below"]
    assert table["covered"][0] == pytest.approx(0.9, abs=3 * math.sqrt(0.09 * (1 / 401 + 1 / 1501)))
    x, names = soils(1501, 4)
    found = conformal(classification, soils(401, 1))
    table = found.coverage((x, names))
    assert table["by"] == ["all"] + ["class"] * 3 + ["predicted"] * 3
    said = found.predict(x)
    clay = [row for row, name in enumerate(names) if name == "clay"]
    assert table["n"][1] == len(clay)
    assert table["covered"][1] == pytest.approx(sum("clay" in said[row] for row in clay) / len(clay))
    assert table["size"][1] == pytest.approx(said.size[clay].double().mean().item())


def test_it_is_kept_as_json_beside_its_model(regression, tmp_path):
    found = conformal(regression, line(401, 1), 0.8, draws=2)
    path = tmp_path / "conformal.json"
    record = found.to_json(path)
    assert json.loads(path.read_text()) == json.loads(json.dumps(record))
    again = Conformal.from_json(path, regression)
    x, _ = line(17, 5)
    assert torch.equal(again.predict(x).lower, found.predict(x).lower)
    for wrong in ({}, {**record, "kind": "selective"}, {**record, "score": "best"}):
        with pytest.raises(StorageError, match="not a conformal"):
            Conformal.from_json(wrong, regression)
    regression.temperature = 2.0
    try:
        with pytest.raises(CompatibilityError, match="temperature"):
            found.predict(x)
        with pytest.raises(CompatibilityError, match="temperature"):
            Conformal.from_json(record, regression)
    finally:
        regression.temperature = 1.0


def test_what_it_is_not_for(regression, classification):
    with pytest.raises(DataError, match="needs at least 9 rows, got 5"):
        conformal(regression, line(5, 1))
    with pytest.raises(DataError, match="score of numbers must be one of quantile, normalised, absolute, got 'lac'"):
        conformal(regression, line(50, 1), score="lac")
    with pytest.raises(DataError, match="score of classes"):
        conformal(classification, soils(50, 1), score="absolute")
    with pytest.raises(DataError, match="fraction"):
        conformal(regression, line(50, 1), 90)
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    two = po.fit(nn.Linear(2, 2), (x, x), "gaussian", po.MAP(), epochs=1, progress=False)
    with pytest.raises(CompatibilityError, match="one number per row"):
        conformal(two, (x, x))
    several = po.fit(nn.Linear(2, 2), (x, (x > 0).float()), "multilabel", po.MAP(), epochs=1, progress=False)
    with pytest.raises(CompatibilityError, match="one class per row"):
        conformal(several, (x, (x > 0).float()))


@pytest.mark.slow
@pytest.mark.parametrize("score", NUMBER_SCORES)
def test_the_coverage_of_a_model_over_400_repetitions(regression, score):
    total = 0.0
    for repetition in range(400):
        found = conformal(regression, line(199, 100 + repetition), score=score)
        total += found.coverage(line(500, 1000 + repetition))["covered"][0]
    assert 0.89 <= total / 400 <= 0.93
