"""An exported file says what `predict` says; a network that cannot be one leaves no file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.random import Random

onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
pytestmark = [
    pytest.mark.slow,  # torch's exporter takes half a minute to load
]

X = Random(0).normal((60, 5))
CASES: dict[str, tuple[Any, Tensor, Any, int]] = {
    "classes": ("categorical", (X[:, 0] > 0).long() + (X[:, 1] > 0).long(), po.MeanFieldVI(), 3),
    "ensemble": ("categorical", (X[:, 0] > 0).long() + (X[:, 1] > 0).long(), po.DeepEnsemble(2), 3),
    "numbers": ("gaussian", 100 + 20 * X[:, 0], po.MeanFieldVI(), 1),
    "numbers of an ensemble": ("gaussian", 100 + 20 * X[:, 0], po.DeepEnsemble(3), 1),
    "noise": ("heteroscedastic", 100 + 20 * X[:, 0], po.IVON(), 2),
    "tails": ("student-t", 100 + 20 * X[:, :2], po.MeanFieldVI(), 2),
    "counts": (po.Poisson(), (5 * X[:, 0].abs()).round(), po.MeanFieldVI(), 1),
    "yes or no": ("bernoulli", X[:, 0] > 0, po.MeanFieldVI(), 1),
    "labels": ("multilabel", (X[:, :3] > 0).float(), po.MeanFieldVI(), 3),
}
NUMBERS = ("numbers", "numbers of an ensemble", "noise", "tails", "counts")


def fitted(name: str) -> po.BayesianModel:
    likelihood, y, method, outputs = CASES[name]
    net = nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.GELU(), nn.Linear(12, outputs))
    return po.fit(net, (X, y), likelihood, method, epochs=3, batch_size=20, seed=0, progress=False)


@pytest.mark.parametrize("via", ["propagation", "draws", "mean"])
@pytest.mark.parametrize("name", CASES)
def test_the_file_says_what_predict_says(name: str, via: str, tmp_path: Path) -> None:
    model = fitted(name)
    if "ensemble" in name and via == "mean":
        with pytest.raises(po.CompatibilityError, match="average"):
            model.export(tmp_path / "m.onnx", example=X[:4], via=via)
        return
    model.temperature = 1.0 if name == "counts" else 1.5
    path = model.export(
        tmp_path / "m.onnx", example=X[:4], via=via, draws=4 if via == "draws" and "ensemble" not in name else None
    )
    session = onnxruntime.InferenceSession(str(path))
    found = dict(zip([one.name for one in session.get_outputs()], session.run(None, {"x": X[:23].numpy()})))
    pred = model.predict(X[:23], via=via, draws=4 if via == "draws" and "ensemble" not in name else None)
    fields = ("mean", "std", "epistemic") if name in NUMBERS else ("probs", "entropy", "epistemic")
    assert list(found) == list(fields)
    for field in fields:
        wanted = getattr(pred, field).double()
        scale = max(1.0, float(wanted.abs().max()))
        torch.testing.assert_close(torch.from_numpy(found[field]).double(), wanted, rtol=0, atol=2e-5 * scale)
    (meta,) = [one.value for one in onnx.load(str(path)).metadata_props if one.key == "posterity"]
    told = json.loads(meta)
    assert told["difference"] <= 1e-5
    assert (told["via"], told["temperature"]) == (via, model.temperature)


def test_a_network_that_cannot_be_written_down_leaves_no_file(tmp_path: Path) -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if float(x.detach().sum()) > 0 else x

    net = nn.Sequential(nn.Linear(5, 3), Branching())
    y = (X[:, 0] > 0).long()
    model = po.fit(net, (X, y), "categorical", po.MeanFieldVI(), epochs=1, seed=0, progress=False)
    with pytest.raises(po.CompatibilityError, match="torch.export cannot write this network down"):
        model.export(tmp_path / "m.onnx", example=X[:4])
    assert not list(tmp_path.iterdir())


def test_images_have_points_along_their_classes(tmp_path: Path) -> None:
    """A class for every pixel; and the file takes pictures."""
    x = Random(1).normal((24, 2, 5, 5))
    net = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    model = po.fit(net, (x, (x[:, 0] > 0).long()), "categorical", po.MeanFieldVI(), epochs=1, seed=0, progress=False)
    path = model.export(tmp_path / "m.onnx", example=x[:4])
    probs, entropy, _ = onnxruntime.InferenceSession(str(path)).run(None, {"x": x[:7].numpy()})
    pred = model.predict(x[:7], via="propagation")
    torch.testing.assert_close(torch.from_numpy(probs), pred.probs, rtol=0, atol=2e-5)
    torch.testing.assert_close(torch.from_numpy(entropy), pred.entropy, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("method", "head"),
    [
        (po.MeanFieldVI(), "probit"),
        (po.Ensemble(po.MeanFieldVI(), 2), "second-order"),
        (po.LastLayerLaplace(), "points"),
        (po.LastLayerLaplace(structure="kronecker"), "second-order"),
    ],
)
def test_heads_in_closed_form_and_correlated_layers(method: Any, head: Any, tmp_path: Path) -> None:
    labels = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
    net = nn.Sequential(nn.Linear(5, 12), nn.GELU(), nn.Linear(12, 3))
    model = po.fit(net, (X, labels), "categorical", method, epochs=3, batch_size=20, seed=0, progress=False)
    model.temperature, model.propagation = 1.5, po.Propagation(po.Rules(head=head))
    path = model.export(tmp_path / "m.onnx", example=X[:4])
    session = onnxruntime.InferenceSession(str(path))
    found = dict(zip([one.name for one in session.get_outputs()], session.run(None, {"x": X[:23].numpy()})))
    pred = model.predict(X[:23], via="propagation")
    for field in ("probs", "entropy", "epistemic"):
        torch.testing.assert_close(torch.from_numpy(found[field]), getattr(pred, field), rtol=0, atol=2e-5)
    model.propagation = po.Propagation()
    plain = model.predict(X[:23], via="propagation")
    assert torch.equal(plain.probs, pred.probs) == (head == "points")


def test_what_members_share_is_in_the_file_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trunk = nn.Linear(5, 5000).requires_grad_(False)
    network = nn.Sequential(trunk, nn.AdaptiveAvgPool1d(4), nn.Linear(4, 2))
    method, y = po.DeepEnsemble(4, init="same"), (X[:, 0] > 0).long()
    model = po.fit(network, (X, y), "categorical", method, epochs=1, batch_size=20, progress=False)
    file = model.export(tmp_path / "m.onnx", example=X[:8], via="draws")
    assert file.stat().st_size < 1.5 * sum(4 * leaf.numel() for leaf in trunk.parameters())
