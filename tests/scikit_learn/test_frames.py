"""Frames of pandas and polars, labels of every kind, and what is wrong with them in a sentence."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse

import posterity as po
from posterity.interfaces.sklearn import PosterityClassifier, PosterityRegressor

FAST: dict[str, Any] = {"method": po.MAP(learning_rate=0.05), "network": "linear", "epochs": 5, "random_state": 0}
ROWS = 61


def visits() -> Any:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": random.normal(50, 9, ROWS),
            "sex": (["m", "f"] * ROWS)[:ROWS],
            "ward": pd.Categorical((["a", "b", "c"] * ROWS)[:ROWS]),
            "stays": pd.array(([1, None, 3] * ROWS)[:ROWS], dtype="Int64"),
            "when": pd.date_range("2026-01-01", periods=ROWS, freq="D"),
            "lab": np.where(random.random(ROWS) < 0.3, np.nan, random.normal(size=ROWS)),
        }
    )


def old() -> Any:
    return (visits()["age"] > 50).astype(int)


def test_columns_of_every_kind_and_gaps() -> None:
    model = PosterityClassifier(**FAST).fit(visits(), old())
    assert model.columns_.names == (
        "age", "sex=f", "sex=m", "ward=a", "ward=b", "ward=c", "stays", "stays missing", "when: days",
        "when: week-day sin", "when: week-day cos", "lab", "lab missing",
    )  # fmt: skip
    assert list(model.feature_names_in_) == list(visits().columns)
    assert model.n_features_in_ == 6
    # gaps in training are an input; what training never saw is still a finite answer
    strange = visits().iloc[:3].assign(sex="x", ward=None, age=np.nan, lab=1e300)
    assert np.isfinite(model.predict_proba(strange)).all()


def test_polars_says_what_pandas_says() -> None:
    frame = visits()
    ours = PosterityClassifier(**FAST).fit(pl.from_pandas(frame), pl.Series(old().to_numpy()))
    same = PosterityClassifier(**FAST).fit(frame, old())
    assert list(ours.feature_names_in_) == list(same.feature_names_in_)
    assert (ours.predict_proba(pl.from_pandas(frame)) == same.predict_proba(frame)).all()
    with pytest.raises(ValueError, match=r"LazyFrame has no rows yet: collect\(\) it first"):
        ours.predict(pl.from_pandas(frame).lazy())


def test_an_array_with_gaps_is_a_frame_without_names() -> None:
    X = visits()[["age", "lab"]].to_numpy()
    assert np.isnan(X).any()
    by_array = PosterityRegressor(**FAST).fit(X, X[:, 0])
    assert by_array.columns_.names == ("x0", "x1", "x1 missing")
    assert not hasattr(by_array, "feature_names_in_")
    by_frame = PosterityRegressor(**FAST).fit(pd.DataFrame(X, columns=["x0", "x1"]), X[:, 0])
    assert (by_array.predict(X) == by_frame.predict(pd.DataFrame(X, columns=["x0", "x1"]))).all()
    by_number = PosterityRegressor(**FAST).fit(pd.DataFrame(X), X[:, 0])  # names that are no text are no names
    assert (by_array.predict(X) == by_number.predict(pd.DataFrame(X))).all()


LABELS: dict[str, tuple[Any, Any]] = {
    "int": (lambda y: y, [0, 1]),
    "uint8": (lambda y: y.to_numpy(np.uint8), [0, 1]),
    "Int64": (lambda y: y.astype("Int64"), [0, 1]),
    "float": (lambda y: y + 1.0, [1.0, 2.0]),
    "negative": (lambda y: y.map({0: -100, 1: 5}), [-100, 5]),  # -100 counts as any other label does
    "bool": (lambda y: y.astype(bool), [False, True]),
    "boolean": (lambda y: y.astype("boolean"), [False, True]),
    "str": (lambda y: y.map({0: "no", 1: "yes"}), ["no", "yes"]),
    "object": (lambda y: y.map({0: "no", 1: "yes"}).to_numpy(dtype=object), ["no", "yes"]),
    "category": (lambda y: y.map({0: "no", 1: "yes"}).astype("category"), ["no", "yes"]),
    "list": (lambda y: y.map({0: "no", 1: "yes"}).tolist(), ["no", "yes"]),
    "polars": (lambda y: pl.Series(y.map({0: "no", 1: "yes"}).tolist()), ["no", "yes"]),
    "tensor": (lambda y: torch.tensor(y.to_numpy()), [0, 1]),
}


@pytest.fixture(scope="module")
def plain() -> PosterityClassifier:
    return PosterityClassifier(**FAST).fit(visits(), old())


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_every_kind(kind: str, plain: PosterityClassifier) -> None:
    make, classes = LABELS[kind]
    frame, y = visits(), make(old())
    model = PosterityClassifier(**FAST).fit(frame, y)
    said = model.predict(frame)
    assert model.classes_.tolist() == classes
    assert isinstance(said, np.ndarray)
    assert said.dtype == model.classes_.dtype
    assert (np.searchsorted(model.classes_, said) == plain.predict(frame)).all()
    assert (model.predict_proba(frame) == plain.predict_proba(frame)).all()
    if kind in ("int", "float", "boolean", "category", "polars"):
        assert po.evaluate(model.predictive(frame), y).rows[0]["metrics"]["accuracy"].n == ROWS


def fit(frame: Any = None, y: Any = None, kind: Any = PosterityClassifier, weight: Any = None, **params: Any) -> Any:
    target = old() if y is None else y
    return kind(**{**FAST, **params}).fit(visits() if frame is None else frame, target, sample_weight=weight)


FAULTS: dict[str, tuple[Any, str]] = {
    "text": (
        lambda: fit(visits().assign(note=[f"word {i}" for i in range(ROWS)])),
        "column 'note' holds free text (61 distinct values in 61 rows): leave it out before the fit",
    ),
    "text in an array": (
        lambda: fit(visits()[["age", "sex"]].to_numpy()),
        "could not convert string to float: 'm': an array holds numbers; give text and categories as the columns of a "
        "pandas or polars frame",
    ),
    "infinity": (
        lambda: fit(visits().assign(lab=[1.0] * 7 + [np.inf] + [2.0] * (ROWS - 8))),
        "column 'lab' is infinite in 1 row (row 7, counted from 0): correct these rows or leave their values empty",
    ),
    "infinity in an array": (lambda: fit(np.full((ROWS, 2), np.inf)), "Input X contains infinity"),
    "sparse": (lambda: fit(sparse.eye(ROWS).tocsr()), "Sparse data was passed"),
    "absent column": (lambda: fit().predict(visits().drop(columns="sex")), "seen at fit time, yet now missing"),
    "other order": (lambda: fit().predict(visits()[visits().columns[::-1]]), "must be in the same order"),
    "another type": (
        lambda: fit().predict(visits().assign(age="old")),
        "column 'age' holds 'old', which is not a number, in 61 rows",
    ),
    "two columns of a name": (lambda: fit(pd.concat([visits()[["age"]]] * 2, axis=1)), "Expected unique column names"),
    "no feature": (lambda: fit(visits()[["age"]].assign(age=1)), "column 'age' is 1 in every row: ignored"),
    "no rows": (lambda: fit(visits()[:0], old()[:0]), "Found array with 0 sample(s)"),
    "lengths": (lambda: fit(visits()[:60]), "inconsistent numbers of samples: [60, 61]"),
    "one class": (
        lambda: fit(y=["a"] * ROWS),
        "only one class, 'a', in 61 rows: a classifier needs rows of at least two classes",
    ),
    "a missing label": (
        lambda: fit(y=old().astype(object).mask(old().index == 3, None)),
        "y contains NaN, None or NA in 1 row (row 3, counted from 0): remove these rows, a label is not filled in",
    ),
    "numbers for labels": (lambda: fit(y=visits()["age"]), "Unknown label type: continuous"),
    "a missing target": (
        lambda: fit(y=visits()["lab"].where(visits().index != 3), kind=PosterityRegressor), "y contains NaN in ",
    ),
    "text for numbers": (lambda: fit(y=["a"] * ROWS, kind=PosterityRegressor), "for classes use PosterityClassifier"),
    "two targets": (lambda: fit(y=np.zeros((ROWS, 2)), kind=PosterityRegressor), "y should be a 1d array"),
    "a negative count": (
        lambda: fit(y=old() - 1, kind=PosterityRegressor, likelihood="poisson"), "counts are whole numbers >= 0",
    ),
    "logarithm of 0": (
        lambda: fit(y=old(), kind=PosterityRegressor, target_transform="log"),
        "the logarithm of a target needs numbers above 0, and there are others in ",
    ),
    "transform": (lambda: fit(kind=PosterityRegressor, target_transform="sqrt"), "None or one of 'log', 'yeo-johnson'"),
    "transform of counts": (
        lambda: fit(kind=PosterityRegressor, target_transform="log", likelihood="poisson"),
        "target_transform goes with gaussian and heteroscedastic",
    ),
    "likelihood": (lambda: fit(kind=PosterityRegressor, likelihood="normal"), "gaussian, heteroscedastic, student-t"),
    "method": (lambda: fit(method="ivo"), "no method is called 'ivo': did you mean ivon?"),
    "no method": (lambda: fit(method=7), "method must be a name such as 'ivon' or an algorithm"),
    "network": (lambda: fit(network="linera"), "no network is called 'linera': did you mean linear?"),
    "no network": (lambda: fit(network=7), "a torch.nn.Module, or a function of inputs and outputs"),
    "no module": (lambda: fit(network=lambda inputs, outputs: 7), "built int, which is no torch.nn.Module"),
    "a module of another width": (
        lambda: fit(network=torch.nn.Linear(6, 2)),
        "the network does not take the 13 inputs that the columns become (age, sex=f",
    ),
    "a module of other outputs": (
        lambda: fit(network=lambda inputs, outputs: torch.nn.Linear(inputs, 1)), "categorical wants logits",
    ),
    "epochs": (lambda: fit(epochs=0), "epochs must be above 0, got 0"),
    "validation": (lambda: fit(validation=1), "validation is the share of the rows to hold out, in [0, 1), got 1"),
    "calibrate": (lambda: fit(calibrate=True, validation=0), "calibrate=True needs validation above 0"),
    "class weight": (lambda: fit(class_weight={"x": 2}), "class_weight names 'x', which is no class of y: they are 0, 1"),
    "class weights": (lambda: fit(class_weight="even"), "'balanced' or a mapping from labels to weights, got 'even'"),
    "weights": (lambda: fit(weight=np.zeros(ROWS)), "must contain at least one non-zero number"),
    "one row with a weight": (lambda: fit(weight=np.eye(ROWS)[0]), "all rows but one have the sample_weight 0"),
    "via": (lambda: fit(via="x", validation=0).predict(visits()), "via must be 'draws', 'mean' or 'propagation'"),
    "percent": (lambda: fit(kind=PosterityRegressor).predict_interval(visits(), 90), "fractions, not percent"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault: str) -> None:
    make, told = FAULTS[fault]
    with pytest.raises((ValueError, TypeError), match=re.escape(told)) as found:
        make()
    assert "--" not in str(found.value), "options of the command line mean nothing here"
    assert isinstance(found.value, ValueError) or fault == "sparse"  # scikit-learn's own is a TypeError
