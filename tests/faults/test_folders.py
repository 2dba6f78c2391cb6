"""A run's folder: whole, free of pickles and of the device it was made on, and readable wherever it is opened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import posterity as po
from posterity.random import Random

X = Random(0).fold("x").normal((21, 3))
Y = torch.arange(21) % 3


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def fit(folder: Path, **options: object) -> po.BayesianModel:
    given = {"epochs": 1, "batch_size": 7, "seed": 0, "progress": False, "out": folder, **options}
    return po.fit(network, (X, Y), "categorical", po.MeanFieldVI(), **given)  # type: ignore[arg-type]


NEW_PROCESS = """
import sys, torch, posterity as po
from torch import nn
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
x = torch.tensor(eval(sys.argv[2]))
print(po.load(sys.argv[1], net).predict(x).probs.flatten().tolist())
"""


def test_a_new_process_predicts_the_same_bits(tmp_path: Path) -> None:
    """Laplace #45, #140, #236"""
    model = fit(tmp_path / "run")
    command = [sys.executable, "-c", NEW_PROCESS, str(tmp_path / "run"), repr(X[:2].tolist())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == model.predict(X[:2]).probs.flatten().tolist()


def test_settings_of_numpy_are_stored_as_numbers(tmp_path: Path) -> None:
    """pomegranate #1142, pytorch-forecasting #1998"""
    given = po.fit(
        network, (X, Y), method=po.MAP(learning_rate=np.float64(0.01)), prior=np.float32(2.0),
        data_weight=np.float64(0.5), epochs=1, seed=np.int64(3), progress=False, out=tmp_path / "run",
    )  # fmt: skip
    method = po.MAP(learning_rate=0.01)
    plain = po.fit(network, (X, Y), method=method, prior=2.0, data_weight=0.5, epochs=1, seed=3, progress=False)
    loaded = po.load(tmp_path / "run", network())
    assert loaded.settings["seed"] == 3
    assert loaded.predict(X).probs.equal(plain.predict(X).probs)
    assert given.predict(X).probs.equal(plain.predict(X).probs)


@pytest.mark.parametrize("seed", [-1, 1.5, "one", np.float64(2.0)])
def test_a_seed_that_is_no_whole_number_is_named(seed: object) -> None:
    with pytest.raises(po.CompatibilityError, match="seed must be a whole number of at least 0"):
        po.fit(network, (X, Y), epochs=1, seed=seed)  # type: ignore[arg-type]


def test_a_folder_holds_json_and_safetensors_and_nothing_else(tmp_path: Path) -> None:
    """pytorch-tabular #548, captum #1765"""
    fit(tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        if path.suffix == ".json":
            json.loads(path.read_text())
        else:
            assert path.suffix == ".safetensors"
            load_file(path)


def test_the_device_is_that_of_the_network_it_is_loaded_into(tmp_path: Path) -> None:
    """Laplace #158, sbi #1954"""
    model = fit(tmp_path / "run")
    assert '"device"' not in (tmp_path / "run" / "posterity.json").read_text()
    other = network().double()  # the weights of the run take the place of those that are there
    loaded = po.load(tmp_path / "run", other)
    assert loaded.problem.network.device == next(other.parameters()).device
    assert loaded.predict(X).probs.equal(model.predict(X).probs)


def test_everything_that_a_fit_makes_is_like_the_network() -> None:
    """blitz #118: what a layer makes for itself has the network's dtype and device."""
    model = po.fit(
        lambda: network().double(), (X.double(), Y), "categorical", po.MeanFieldVI(), epochs=1, seed=0, progress=False
    )
    assert {leaf.dtype for leaf in model.posterior.tensors().values()} == {torch.float64}
    draw = next(iter(model.posterior.draws(1, Random(0))))
    assert {leaf.dtype for leaf in draw.values()} == {torch.float64}
    assert model.predict(X.double()).probs.isfinite().all()


class Tied(nn.Module):
    """Two names, one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 3)
        self.out = nn.Linear(3, 3, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)


def test_one_step_is_enough_to_save_whatever_the_network(tmp_path: Path) -> None:
    """tensorflow/probability #742: training went well and saving did not."""
    model = po.fit(Tied, (X, Y), steps=1, seed=0, progress=False)
    model.save(tmp_path / "run")
    fresh = Tied()
    assert po.load(tmp_path / "run", fresh).predict(X).probs.equal(model.predict(X).probs)
