"""What a parameter does, and what scikit-learn's tools do with the estimators."""

from __future__ import annotations

import copy
import dataclasses
import functools
import random as python_random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import posterity as po
from posterity.interfaces.sklearn import PosterityClassifier, PosterityRegressor
from posterity.models.tabular import mlp

FAST: dict[str, Any] = {"method": po.MAP(learning_rate=0.05), "network": "linear", "epochs": 8, "random_state": 0}
SETTLED = {**FAST, "method": po.MAP(learning_rate=po.Cosine(0.1)), "epochs": 25, "batch_size": 59}
ROWS = 113


def numbers() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    X = random.normal(size=(ROWS, 3))
    return X, X @ [2.0, -1.0, 0.5] + 0.3 * random.normal(size=ROWS)


def classes() -> tuple[np.ndarray, np.ndarray]:
    X, y = numbers()
    return X, np.digitize(y, [-1.0, 1.0])


def test_answers_are_arrays_and_agree() -> None:
    X, y = classes()
    model = PosterityClassifier(**FAST).fit(X, y)
    probs = model.predict_proba(X)
    assert isinstance(probs, np.ndarray)
    assert probs.shape == (ROWS, 3)
    assert probs.sum(1) == pytest.approx(np.ones(ROWS), abs=1e-12)
    assert (model.predict(X) == model.classes_[probs.argmax(1)]).all()
    assert model.score(X, y) == (model.predict(X) == y).mean() > 0.7
    assert not hasattr(PosterityRegressor(), "predict_proba")
    assert not hasattr(PosterityRegressor(), "classes_")


def test_a_clone_is_not_fitted_and_fits_the_same() -> None:
    X, y = classes()
    model = PosterityClassifier(**FAST).fit(X, y)
    again = clone(model)
    assert [name for name in vars(again) if name.endswith("_")] == []
    assert again.get_params() == model.get_params()
    assert (again.fit(X, y).predict_proba(X) == model.predict_proba(X)).all()
    assert (clone(model).set_params(random_state=1).fit(X, y).predict_proba(X) != model.predict_proba(X)).any()


def test_the_seed_is_drawn_as_elsewhere_in_scikit_learn() -> None:
    X, y = numbers()
    given = PosterityRegressor(**{**FAST, "random_state": np.random.RandomState(7)}).fit(X, y).predict(X)
    assert (PosterityRegressor(**{**FAST, "random_state": 7}).fit(X, y).predict(X) == given).all()
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    assert (PosterityRegressor(**{**FAST, "random_state": None}).fit(X, y).predict(X) == given).all()
    np.random.set_state(state)  # noqa: NPY002


def test_nothing_global_moves() -> None:
    X, y = classes()

    def states() -> tuple[Any, ...]:
        numpy = np.random.get_state()  # noqa: NPY002
        return torch.get_rng_state().tolist(), numpy[1].tolist(), numpy[2], python_random.getstate()

    before, held = states(), (X.copy(), y.copy())
    model = PosterityClassifier(**{**FAST, "method": po.MeanFieldVI()}).fit(X, y)
    model.predict_proba(X)
    assert states() == before
    assert (held[0] == X).all()
    assert (held[1] == y).all()


def test_networks_of_ones_own() -> None:
    X, y = classes()
    module = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)).train()
    before = copy.deepcopy(module.state_dict())
    model = PosterityClassifier(**{**FAST, "network": module}).fit(X, y)
    assert model.predict_proba(X).shape == (ROWS, 3)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training
    ensemble = {**FAST, "method": po.DeepEnsemble(2)}
    for network in (functools.partial(mlp, width=5), nn.Linear):
        found = PosterityClassifier(**{**ensemble, "network": network}).fit(X, y)
        assert found.model_.posterior.finite == 2
        first, second = (draw for draw in found.model_.posterior.draws(None, po.Random(0)))
        assert not torch.equal(*(next(iter(draw.values())) for draw in (first, second)))  # members are built apart


def test_rows_without_weight_are_as_if_they_were_not_there() -> None:
    X, y = classes()
    weight = (np.arange(ROWS) % 4 > 0).astype(float)
    left = weight > 0
    weighted = PosterityClassifier(**FAST).fit(X, y, sample_weight=weight)
    assert (weighted.predict_proba(X) == PosterityClassifier(**FAST).fit(X[left], y[left]).predict_proba(X)).all()


def test_weights_weigh() -> None:
    """Two rows for each x that say 0 and 1, at odds of 3: the probability is 3/4, which no features can change."""
    X = np.repeat(np.linspace(-1, 1, 59), 2)[:, None]
    y = np.tile([0, 1], 59)
    options = {**SETTLED, "validation": 0, "prior": 10.0}
    by_row = PosterityClassifier(**options).fit(X, y, sample_weight=np.where(y == 1, 3.0, 1.0)).predict_proba(X)[:, 1]
    by_class = PosterityClassifier(**options, class_weight={1: 3.0}).fit(X, y).predict_proba(X)[:, 1]
    even = PosterityClassifier(**options).fit(X, y).predict_proba(X)[:, 1]
    # 50 steps that shrink from 0.1 settle a logit to about 0.1, at p = 3/4 a fifth of that; the prior takes less than 0.01
    assert by_row == pytest.approx(np.full(118, 0.75), abs=0.04)
    assert by_class == pytest.approx(np.full(118, 0.75), abs=0.04)
    assert even == pytest.approx(np.full(118, 0.5), abs=0.04)


def test_balanced_classes_weigh_the_same() -> None:
    random = np.random.default_rng(1)
    X = random.normal(size=(400, 1))
    y = (random.random(400) < 0.1).astype(int)
    options = {**SETTLED, "validation": 0}
    assert PosterityClassifier(**options).fit(X, y).predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), abs=0.05)
    even = PosterityClassifier(**options, class_weight="balanced").fit(X, y).predict_proba(X)[:, 1]
    assert even.mean() == pytest.approx(0.5, abs=0.1)


def test_rows_held_out_pick_the_temperature() -> None:
    X, y = numbers()
    without = PosterityRegressor(**FAST, validation=0).fit(X, y).model_
    assert without.problem.data_size == ROWS
    assert without.calibration is None
    few = PosterityRegressor(**FAST).fit(X, y).model_  # 17 rows tell the scale of errors to 17 %: too little
    assert few.problem.data_size == ROWS - 17
    assert few.calibration is None
    enough = PosterityRegressor(**FAST, validation=0.3).fit(X, y).model_
    assert (enough.calibration or {})["rows"] == 34
    assert PosterityRegressor(**FAST, validation=0.3, calibrate=False).fit(X, y).model_.calibration is None
    assert PosterityRegressor(**FAST, calibrate=True).fit(X, y).model_.calibration is not None


def test_ways_of_predicting() -> None:
    X, y = numbers()
    model = PosterityRegressor(**{**FAST, "method": "mean-field"}, draws=5, validation=0).fit(X, y)
    assert (model.predictive(X).via, model.predictive(X).draws, len(model.predictive(X))) == ("draws", 5, ROWS)
    by_draws = model.predict(X, return_std=True)
    one_pass = model.set_params(via="propagation").predict(X, return_std=True)
    assert model.predictive(X).via == "propagation"
    assert (one_pass[1] != by_draws[1]).any()
    std = float(np.median(by_draws[1]))
    assert one_pass[0] == pytest.approx(by_draws[0], abs=2 * std)  # the same network, so within its own spread


@pytest.mark.parametrize(
    "method",
    [
        po.MAP(), po.DeepEnsemble(2), po.MeanFieldVI(), po.IVON(), po.LastLayerLaplace(base=po.MAP()),
        po.SWAG(base=po.MAP(), collections=3, learning_rate=1e-6), po.RankOneVI(),
    ],
    ids=lambda method: method.title,
)  # fmt: skip
def test_a_warm_start_goes_on(method: po.Algorithm) -> None:
    """After a further epoch of tiny steps the means are those of the first fit, which a cold start does not find."""
    X, y = numbers()
    model = PosterityRegressor(**{**FAST, "method": method, "epochs": 30}, warm_start=True, validation=0).fit(X, y)
    first, columns = model.predict(X), model.columns_
    slow: dict[str, Any] = {"base": po.MAP(learning_rate=1e-6)} if hasattr(method, "base") else {}
    if hasattr(method, "learning_rate"):
        slow["learning_rate"] = 1e-6
    model.set_params(method=type(method)(**{**_fields(method), **slow}), epochs=1)
    again = model.fit(X[::-1], y[::-1]).predict(X)
    cold = clone(model).fit(X, y).predict(X)
    assert model.columns_ is columns
    gap, other = np.abs(again - first).mean(), np.abs(cold - first).mean()
    assert gap < 0.25 * other, (gap, other)


def _fields(method: po.Algorithm) -> dict[str, Any]:
    return {field.name: getattr(method, field.name) for field in dataclasses.fields(method) if field.init}


def test_a_warm_start_keeps_what_outputs_mean() -> None:
    X, y = numbers()
    model = PosterityRegressor(**FAST, warm_start=True).fit(X, y)
    scaling = model.model_.problem.likelihood.scaling
    model.fit(100 * X, 1000 + y)
    assert model.model_.problem.likelihood.scaling == scaling
    with pytest.raises(ValueError, match="X has 2 features, but PosterityRegressor is expecting 3"):
        model.fit(X[:, :2], y)
    with pytest.raises(po.CompatibilityError, match=r"start= has shape \(1, 3\) at '0.weight', this network \(64, 3\)"):
        model.set_params(network="mlp").fit(X, y)
    classifier = PosterityClassifier(**FAST, warm_start=True).fit(*classes())
    before = classifier.classes_
    classifier.fit(X[:20], classes()[1][:20].clip(0, 1))  # a class may be absent
    assert classifier.classes_ is before
    with pytest.raises(po.DataError, match=r"goes on with the classes 0, 1, 2, and y holds 5"):
        classifier.fit(X, np.where(y > 0, 5, 0))


def test_what_was_decided_is_said_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = numbers()
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(d=1)
    PosterityRegressor(**FAST).fit(frame, y)
    assert capsys.readouterr() == ("", "")
    PosterityRegressor(**FAST, verbose=1).fit(frame, y)
    out, err = capsys.readouterr()
    assert out == ""
    assert "column 'd' is 1 in every row: ignored" in err


@pytest.mark.parametrize("kind", ["array", "tensor", "list"])
def test_a_search_over_methods_and_networks(kind: str) -> None:
    X, y = classes()
    targets = {"array": y, "tensor": torch.tensor(y), "list": y.tolist()}[kind]
    pipe = make_pipeline(StandardScaler(), PosterityClassifier(**{**FAST, "epochs": 3}))
    grid = {"posterityclassifier__method": ["map", po.MAP(learning_rate=0.1)], "posterityclassifier__prior": [2.0]}
    search = GridSearchCV(pipe, grid, cv=2, scoring="neg_log_loss", error_score="raise").fit(X, targets)
    assert search.best_params_["posterityclassifier__method"] == po.MAP(learning_rate=0.1)  # three epochs are few
    assert search.predict(X).shape == (ROWS,)


def test_cross_validation_and_columns_transformed_by_hand() -> None:
    X, y = numbers()
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(d=["u", "v"] * 56 + ["u"])
    scaled = ColumnTransformer([("numbers", StandardScaler(), ["a", "b", "c"])], remainder="passthrough")
    pipe = make_pipeline(scaled.set_output(transform="pandas"), PosterityRegressor(**FAST))
    assert cross_val_score(pipe, frame, y, cv=3, error_score="raise").mean() > 0.5
    assert cross_val_predict(PosterityRegressor(**FAST), frame, y, cv=3).shape == (ROWS,)
    assert pipe.fit(frame, y)[-1].columns_.names[-2:] == ("remainder__d=u", "remainder__d=v")
