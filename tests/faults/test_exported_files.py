"""An ONNX file says the same thing twice, says of itself what it is, and does not appear where it would be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import posterity as po
from posterity.prediction import export
from posterity.random import Random

onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

X = Random(0).normal((24, 2, 5, 5))
Y = torch.arange(24) % 3
WAYS = ("propagation", "draws", "mean")
# Operators whose answers change from run to run.
RANDOM = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
}


@pytest.fixture(scope="module")
def model() -> po.BayesianModel:
    """Convolution, batch normalisation and dropout."""

    def network() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(36, 3)
        )

    return po.fit(network, (X, Y), "categorical", po.MeanFieldVI(), epochs=2, batch_size=8, seed=0, progress=False)


@pytest.fixture(scope="module")
def files(model: po.BayesianModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """way -> (path, what is in it)"""
    folder = tmp_path_factory.mktemp("files")
    paths = {
        way: model.export(folder / f"{way}.onnx", example=X[:3], via=way, draws=4 if way == "draws" else None)
        for way in WAYS
    }
    return {way: (path, onnx.load(str(path))) for way, path in paths.items()}


@pytest.mark.parametrize("way", WAYS)
def test_two_runs_of_a_file_agree_and_nothing_in_it_is_random(way: str, files: dict[str, Any]) -> None:
    """pytorch #61208, #112512, #156811; onnxruntime #5549"""
    path, file = files[way]
    session = onnxruntime.InferenceSession(str(path))
    first, second = (session.run(None, {"x": X[:3].numpy()}) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second))
    assert {node.op_type for node in file.graph.node}.isdisjoint(RANDOM)


@pytest.mark.parametrize("way", WAYS)
def test_a_file_says_what_it_is_and_how_far_it_is_from_the_network(way: str, files: dict[str, Any]) -> None:
    """onnx #4855, pytorch #168224"""
    (told,) = [json.loads(one.value) for one in files[way][1].metadata_props if one.key == "posterity"]
    assert told["via"] == way
    assert told["difference"] <= export.TOLERANCE


@pytest.mark.parametrize("way", WAYS)
def test_convolution_and_batch_norm_say_what_predict_says(
    way: str, files: dict[str, Any], model: po.BayesianModel
) -> None:
    """pytorch #168224, #166797"""
    session = onnxruntime.InferenceSession(str(files[way][0]))
    probs = torch.from_numpy(session.run(["probs"], {"x": X[:3].numpy()})[0])
    wanted = model.predict(X[:3], via=way, draws=4 if way == "draws" else None).probs
    torch.testing.assert_close(probs, wanted, rtol=0, atol=2e-5)


def test_a_file_that_would_say_something_else_is_not_written(
    model: po.BayesianModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytorch #168224"""
    monkeypatch.setattr(export, "_difference", lambda *given: 0.5)
    with pytest.raises(po.CompatibilityError, match="says something else than the network, by up to 0.5: no file"):
        model.export(tmp_path / "m.onnx", example=X[:3], via="mean")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("way", WAYS)
def test_a_file_asks_for_no_operator_beyond_those_of_onnx(way: str, files: dict[str, Any]) -> None:
    assert {node.domain for node in files[way][1].graph.node} <= {"", "ai.onnx"}
