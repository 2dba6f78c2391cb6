"""Estimators among scikit-learn's tools, and tables as inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import nn

import posterity as po
from posterity.interfaces.sklearn import PosterityClassifier, PosterityRegressor

FAST: dict[str, Any] = {"method": po.MAP(learning_rate=0.1), "network": "linear", "epochs": 3, "batch_size": 32}
ROWS = 61
X = np.random.default_rng(0).normal(size=(ROWS, 3))
Y = (X[:, 0] > 0).astype(int)


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "name": (["m", "f"] * ROWS)[:ROWS],
            "ward": pd.Categorical((["a", "b", "c"] * ROWS)[:ROWS]),
            "stays": pd.array(([1, None, 3] * ROWS)[:ROWS], dtype="Int64"),
            "lab": np.where(np.arange(ROWS) % 7 == 0, np.nan, X[:, 0]),
        }
    )


def test_a_clone_of_a_fitted_estimator_is_not_fitted() -> None:
    """skorch #521"""
    again = clone(PosterityClassifier(**FAST).fit(X, Y))
    assert not [name for name in vars(again) if name.endswith("_")]


@pytest.mark.parametrize("kind", [PosterityClassifier, PosterityRegressor])
def test_a_search_takes_targets_of_torch(kind: Any) -> None:
    """skorch #1076"""
    y = torch.tensor(Y if kind is PosterityClassifier else X[:, 0])
    search = GridSearchCV(kind(**FAST), {"prior": [1.0, 2.0]}, cv=2, error_score="raise").fit(X, y)
    assert search.predict(X).shape == (ROWS,)


@pytest.mark.parametrize("inputs", [X, X.astype(np.float32), torch.tensor(X), frame()], ids=type)
def test_answers_are_arrays_whatever_was_asked(inputs: Any) -> None:
    """dlordinal #47"""
    said = PosterityClassifier(**FAST).fit(inputs, torch.tensor(Y))
    numbers = PosterityRegressor(**FAST).fit(inputs, X[:, 0])
    for answer in (said.predict(inputs), said.predict_proba(inputs), *numbers.predict(inputs, return_std=True)):
        assert isinstance(answer, np.ndarray)


def test_a_regressor_finds_the_width_of_its_inputs_and_has_no_probabilities() -> None:
    """autoemulate #107"""
    model = PosterityRegressor(**FAST).fit(X, X[:, 0])
    assert model.n_features_in_ == 3
    assert not hasattr(model, "predict_proba")


def test_a_frame_keeps_its_columns_and_its_categories() -> None:
    """MAPIE #128, #406"""
    model = PosterityClassifier(**FAST).fit(frame(), Y)
    assert list(model.feature_names_in_) == ["name", "ward", "stays", "lab"]
    part = frame()[:2]  # a part that shows two of the three wards is read as it was
    part["ward"] = pd.Categorical(["a", "b"])
    assert (model.predict_proba(part) == model.predict_proba(frame())[:2]).all()


def test_a_frame_that_is_no_tensor_is_refused_by_the_names_of_its_columns() -> None:
    with pytest.raises(po.DataError, match=r"the columns \['name', 'ward'\] are not numbers; encode or drop them"):
        po.fit(nn.Linear(4, 2), (frame(), Y), epochs=1, seed=0)
