"""A saved estimator says the same in a new process, and its folder runs no code."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import posterity as po
from posterity.interfaces.methods import METHODS
from posterity.interfaces.sklearn import PosterityClassifier, PosterityRegressor
from posterity.interfaces.sklearn.folder import ESTIMATOR, _restored, _stored

FAST: dict[str, Any] = {"method": po.MAP(learning_rate=0.05), "network": "linear", "epochs": 3, "random_state": 0}
ROWS = 61


def visits() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"age": random.normal(50, 9, ROWS), "sex": ["m", "f", "f"] * 20 + ["m"]})
    return frame, np.where(frame["age"] > 50, "old", "young")


def with_path(folder: Path, path: list[str], value: Any) -> None:
    """Edit the JSON of a saved estimator."""
    content = json.loads((folder / ESTIMATOR).read_text())
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (folder / ESTIMATOR).write_text(json.dumps(content))


METHODS_KEPT = ["map", "deep-ensemble", "mean-field", "ivon", "laplace", "swag", "rank-one", "mc-dropout", po.SGHMC(
    ensemble=po.MAP(), members=2, draws_per_chain=3, warmup=2, thin=1)]  # fmt: skip


@pytest.mark.parametrize("method", METHODS_KEPT, ids=str)
def test_saved_and_pickled_estimators_say_the_same(method: Any, tmp_path: Path) -> None:
    frame, _ = visits()
    y = frame["age"] ** 2
    model = PosterityRegressor(**{**FAST, "method": method}, target_transform="yeo-johnson").fit(frame, y)
    said = model.predict_interval(frame)
    model.save(tmp_path / "run")
    assert {path.suffix for path in (tmp_path / "run").iterdir()} == {".json", ".safetensors"}
    loaded = PosterityRegressor.load(tmp_path / "run")
    assert loaded.get_params() == model.get_params()
    assert loaded.transform_ == model.transform_
    # swag divides by its number of draws again: the last bit of a float32
    for again in (loaded, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        pd.testing.assert_frame_equal(again.predict_interval(frame), said, rtol=1e-6)
    assert list(loaded.feature_names_in_) == ["age", "sex"]
    assert loaded.n_features_in_ == 2
    loaded.save(tmp_path / "again")  # and over
    loaded.save(tmp_path / "again")
    pd.testing.assert_frame_equal(PosterityRegressor.load(tmp_path / "again").predict_interval(frame), said, rtol=1e-6)


def test_a_new_process_says_the_same_bits(tmp_path: Path) -> None:
    frame, y = visits()
    model = PosterityClassifier(**FAST).fit(frame, y)
    model.save(tmp_path / "run")
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    frame.to_parquet(tmp_path / "frame.parquet")
    code = (
        "import pandas, pickle, sys; from posterity.interfaces.sklearn import PosterityClassifier as C\n"
        "frame = pandas.read_parquet('frame.parquet')\n"
        "for model in (C.load('run'), pickle.load(open('model.pickle', 'rb'))):\n"
        "    assert model.classes_.tolist() == ['old', 'young'] and model.predict(frame).dtype == model.classes_.dtype\n"
        "    sys.stdout.write(model.predict_proba(frame).tobytes().hex() + '\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == [model.predict_proba(frame).tobytes().hex()] * 2


@pytest.mark.parametrize(
    "make", [lambda y: y, lambda y: (y == "old").astype(np.int8), lambda y: y == "old", lambda y: (y == "old") + 1.0]
)
def test_labels_come_back_in_their_type(make: Any, tmp_path: Path) -> None:
    frame, y = visits()
    model = PosterityClassifier(**FAST).fit(frame, make(y))
    model.save(tmp_path)
    loaded = PosterityClassifier.load(tmp_path)
    assert loaded.classes_.dtype == model.classes_.dtype
    assert (loaded.predict(frame) == model.predict(frame)).all()


@pytest.mark.parametrize("name", METHODS)
def test_parameters_that_are_objects_of_this_library_are_kept(name: str) -> None:
    method = METHODS[name]()
    stored = _stored(method)
    assert _restored(json.loads(json.dumps(stored))) == method
    for value in (po.Laplace(0.3), {"a": 2.0, 1: 3.0}, (1, None, "x"), np.float64(0.5), True):
        assert _restored(json.loads(json.dumps(_stored(value)))) == value


class Own(po.MAP):
    """An algorithm of somebody else."""


def test_what_is_code_is_given_again(tmp_path: Path) -> None:
    frame, y = visits()
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    model = PosterityClassifier(**{**FAST, "network": module, "method": Own()}).fit(frame, y)
    model.save(tmp_path)
    with pytest.raises(
        po.CompatibilityError, match=r"was an object of your own: load\(folder, method=\.\.\., network=\.\.\.\)"
    ):
        PosterityClassifier.load(tmp_path)
    other = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    loaded = PosterityClassifier.load(tmp_path, network=other, method=Own())
    assert (loaded.predict_proba(frame) == model.predict_proba(frame)).all()
    assert not torch.equal(other[0].weight, model.model_.posterior.mean()["0.weight"])  # it brings the code only
    with pytest.raises(po.CompatibilityError, match="the network is not the one that was fitted"):
        PosterityClassifier.load(tmp_path, network=nn.Linear, method=Own())
    assert (pickle.loads(pickle.dumps(model)).predict_proba(frame) == model.predict_proba(frame)).all()


def test_a_folder_names_no_code(tmp_path: Path) -> None:
    frame, y = visits()
    PosterityClassifier(**FAST).fit(frame, y).save(tmp_path)
    for path, value, error, told in (
        (["params", "network"], "os.system", po.CompatibilityError, "no network is called 'os.system'"),
        (
            ["params", "method"],
            {"posterity": "Popen", "fields": {"args": "ls"}},
            po.StorageError,
            "no algorithm or prior",
        ),
        (["params", "method"], {"posterity": "subprocess.Popen"}, po.StorageError, "no algorithm or prior"),
        (["params", "method"], {"posterity": "BayesianModel", "fields": {}}, po.StorageError, "no algorithm or prior"),
        (["params", "nothing"], 1, po.StorageError, "is not what save writes"),
        (["columns"], {}, po.StorageError, "is not what save writes"),
        (["estimator"], "PosterityRegressor", po.StorageError, "holds a PosterityRegressor, not a PosterityClassifier"),
        (["run"], "0" * 64, po.StorageError, "its save was interrupted"),
        (["format_version"], 99, po.StorageError, "newer"),
    ):
        before = (tmp_path / ESTIMATOR).read_text()
        with_path(tmp_path, path, value)
        with pytest.raises(error, match=told):
            PosterityClassifier.load(tmp_path)
        (tmp_path / ESTIMATOR).write_text(before)
    (tmp_path / ESTIMATOR).write_text("{")
    with pytest.raises(po.StorageError, match="truncated or corrupt"):
        PosterityClassifier.load(tmp_path)
    (tmp_path / ESTIMATOR).unlink()
    with pytest.raises(po.StorageError, match=r"no estimator was saved there; use po\.load"):
        PosterityClassifier.load(tmp_path)
    with pytest.raises(po.StorageError, match="is not there"):
        PosterityClassifier.load(tmp_path / "none")


def test_only_fitted_estimators_are_saved(tmp_path: Path) -> None:
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        PosterityClassifier().save(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    unfitted = pickle.loads(pickle.dumps(PosterityClassifier(**FAST)))
    assert unfitted.get_params()["network"] == "linear"
