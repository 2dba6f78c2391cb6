"""What cannot be right is refused by a named error, in one sentence that says where and what to do; nothing half done is
left in the run's folder.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

import posterity as po
from posterity.testing.worlds import CLASSES, FEATURES, ROWS, inputs, labels, plain_network

X, Y = inputs(), labels(inputs())
Z = X[:, 0] - X[:, 1]


def with_value(tensor: Tensor, value: float, row: int = 9) -> Tensor:
    changed = tensor.clone()
    changed[row] = value
    return changed


class Unsized(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y))


class Lying(Sampler):
    """Announces another number of rows than it gives."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(ROWS))

    def __len__(self) -> int:
        return ROWS + 5


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = plain_network()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.body(x), x


def frozen() -> nn.Module:
    return plain_network().requires_grad_(False)


@dataclasses.dataclass(frozen=True)
class Mine:
    """No algorithm."""


def loader(x: Tensor = X, y: Tensor = Y, **options: Any) -> DataLoader:
    return DataLoader(TensorDataset(x, y), **{"batch_size": 7, **options})


# name: (what `fit` is given beside a plain network and its data, the error, words of its message)
BAD_FITS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    # inputs
    "nan in inputs": (
        {"data": (with_value(X, torch.nan), Y)}, po.DataError,
        r"training data: input holds NaN or infinity in 1 of 23 rows \(9\)",
    ),
    "infinity in inputs": ({"data": (with_value(X, torch.inf), Y)}, po.DataError, r"NaN or infinity in 1 of"),
    "nan in one of two inputs": (
        {"data": ({"input": with_value(X, torch.nan)}, Y)}, po.DataError, r"input\['input'\] holds NaN",
    ),
    "nan in the inputs of a loader": ({"data": loader(with_value(X, torch.nan))}, po.DataError, r"batch 1: input holds"),
    "nan in validation inputs": (
        {"validation": (with_value(X, torch.nan), Y)}, po.DataError, r"validation data: input holds NaN .* \(9\)",
    ),
    "no rows": ({"data": (X[:0], Y[:0])}, po.DataError, "has no rows"),
    "no rows in validation": ({"validation": (X[:0], Y[:0])}, po.DataError, "validation data has no rows"),
    "an empty loader": ({"data": loader(X[:5], Y[:5], drop_last=True)}, po.DataError, "has no batches"),
    "parts of different lengths": ({"data": (X, Y[:-1])}, po.DataError, r"different lengths: \[22, 23\]"),
    "three parts": ({"data": (X, X, Y)}, po.DataError, r"must be \(inputs, targets\)"),
    "no data": ({"data": 3}, po.DataError, "must be a loader, a data set or"),
    "strings as inputs": ({"data": (np.array([["a"]] * ROWS), Y)}, po.DataError, "cannot be read as numbers"),
    "no target in a dict": (
        {"data": [{"input": X[:7], "label": Y[:7]}], "data_size": 7}, po.DataError, "must be|name the target",
    ),
    "a key that is not there": (
        {"data": DataLoader([{"input": X[0], "label": Y[0]}] * 7), "target": "labels"}, po.DataError, "no key 'labels'",
    ),
    "no length": ({"data": DataLoader(Unsized(), batch_size=7)}, po.DataError, "give data_size="),
    "another length than announced": ({"data": loader(sampler=Lying())}, po.DataError, "announces 28 .* gave 23"),
    # targets
    "nan in targets": ({"likelihood": "gaussian", "data": (X, with_value(Z, torch.nan))}, po.DataError, r"\(rows 9\)"),
    "infinity in targets": ({"likelihood": "gaussian", "data": (X, with_value(Z, torch.inf))}, po.DataError, r"\(rows 9\)"),
    "all targets ignored": ({"data": (X, torch.full_like(Y, -100))}, po.DataError, "ignore"),
    "one class": ({"data": (X, torch.zeros_like(Y))}, po.DataError, "class"),
    "more classes than logits": ({"data": (X, torch.arange(ROWS) % 7)}, po.PosterityError, r"7.*5|5.*7"),
    "an unknown class in validation": ({"validation": (X, Y + 3)}, po.DataError, r"[567]"),
    "numbers for classes": ({"data": (X, Z)}, po.DataError, "class|whole|integer"),
    "strings for numbers": (
        {"likelihood": "gaussian", "data": (X, ["a"] * ROWS)}, po.PosterityError, "strings: ",
    ),
    "targets to broadcast": (
        {"likelihood": "gaussian", "data": (X, Z)}, po.ShapeError, r"\(7, 5\)|\(23, 5\)|5",
    ),
    "too many targets": (
        {"likelihood": "gaussian", "network": plain_network(1), "data": (X, X[:, :2])}, po.ShapeError, "2",
    ),
    "negative counts": (
        {"likelihood": "poisson", "network": plain_network(1), "data": (X, Y - 1)}, po.DataError, "negative|>= 0|counts",
    ),
    # weights
    "negative sample weights": ({"sample_weight": with_value(torch.ones(ROWS), -1.0)}, po.DataError, ">= 0"),
    "sample weights of another length": ({"sample_weight": torch.ones(5)}, po.DataError, "different lengths"),
    "sample weights beside a loader": ({"data": loader(), "sample_weight": torch.ones(ROWS)}, po.DataError, "name their"),
    "class weights of another number": ({"class_weight": [1.0, 2.0]}, po.PosterityError, "2.*5|5.*2"),
    "class weights for numbers": (
        {"likelihood": "gaussian", "network": plain_network(1), "data": (X, Z), "class_weight": "balanced"},
        po.CompatibilityError, "class_weight= does not go with",
    ),
    "no rows in N": ({"data_size": 0}, po.DataError, "data_size must be at least 1"),
    "a weight of nothing": ({"data_weight": 0.0}, po.DataError, "data_weight must be finite and > 0"),
    # the network
    "a frozen network": ({"network": frozen()}, po.CompatibilityError, "requires_grad_"),
    "no network": ({"network": 3}, po.CompatibilityError, "must be a torch.nn.Module"),
    "a lazy network": ({"network": nn.LazyLinear(CLASSES)}, po.CompatibilityError, "call the network once"),
    "several outputs": ({"network": Two()}, po.CompatibilityError, "tuple"),
    "an output that is not there": ({"network": Two(), "output": 2}, po.CompatibilityError, "no 2"),
    # words
    "an unknown likelihood": ({"likelihood": "normal"}, po.CompatibilityError, "unknown likelihood 'normal'.*gaussian"),
    "an unknown prior": ({"prior": "horseshoe"}, po.PriorError, "unknown prior 'horseshoe'"),
    "a prior std of nothing": ({"prior": 0.0}, po.PriorError, "finite and > 0"),
    "a string for a method": ({"method": "map"}, po.CompatibilityError, r"po\.MAP\(\)"),
    "a class for a method": ({"method": po.MAP}, po.CompatibilityError, r"po\.MAP\(\)"),
    "another thing for a method": ({"method": Mine()}, po.CompatibilityError, r"po\.MAP\(\)"),
    "a prior that the method cannot use": (
        {"method": po.MeanFieldVI(), "prior": po.Laplace()}, po.PriorError, "needs a normal.*got laplace",
    ),
    "another prior that the method cannot use": (
        {"method": po.LastLayerLaplace(), "prior": po.ScaleMixture()}, po.PriorError, "needs a normal",
    ),
    "epochs and steps": ({"epochs": 1, "steps": 1}, po.CompatibilityError, "epochs= or steps=, not both"),
    "no epochs": ({"epochs": 0}, po.CompatibilityError, "epochs must be at least 1"),
    "no accumulation": ({"accumulation": 0}, po.CompatibilityError, "accumulation must be at least 1"),
    "patience without validation": ({"patience": 2}, po.CompatibilityError, "needs validation="),
    "a batch size for a loader": ({"data": loader(), "batch_size": 3}, po.DataError, "leave batch_size out"),
    "an unknown precision": ({"precision": "half"}, po.CompatibilityError, "'float32' or 'bf16'"),
    "a clip of nothing": ({"clip": 0.0}, po.CompatibilityError, "clip must be > 0"),
    "all rows held out": ({"validation": 1.0}, po.DataError, r"\(0, 1\)"),
    "a start of another network": ({"start": nn.Linear(2, 2).state_dict()}, po.CompatibilityError, "another network"),
    "a start of another shape": ({"start": plain_network(3).state_dict()}, po.CompatibilityError, "shape"),
    "too many starts": (
        {"start": [plain_network().state_dict()] * 2, "method": po.DeepEnsemble(3)}, po.CompatibilityError, "2 .*3 members",
    ),
    "a start of no kind": ({"start": 3}, po.CompatibilityError, "start= takes"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_FITS)
def test_fit_refuses(what: str, tmp_path: Path) -> None:
    given, error, words = BAD_FITS[what]
    network, data = (given.get(key, default) for key, default in (("network", plain_network()), ("data", (X, Y))))
    options = {key: value for key, value in given.items() if key not in ("network", "data")}
    out = tmp_path / "run"
    with pytest.raises(error, match=words) as caught:
        po.fit(network, data, out=out, **options)
    assert isinstance(caught.value, po.PosterityError)
    assert "\n" not in str(caught.value)
    assert not out.exists() or not os.listdir(out), f"{os.listdir(out)} are left of a fit that was refused"


BAD_ASKS: dict[str, tuple[Callable[[po.BayesianModel], Any], type[Exception], str]] = {
    "nan": (lambda m: m.predict(with_value(X, torch.nan)), po.DataError, "batch 0: input holds NaN"),
    "nan in an array": (lambda m: m.predict(with_value(X, torch.nan).numpy()), po.DataError, "NaN"),
    "no rows": (lambda m: m.predict(X[:0]), po.DataError, "no rows"),
    "no inputs": (lambda m: m.predict(3), po.DataError, "inputs must be"),
    "a way that is not there": (lambda m: m.predict(X, via="propagate"), po.CompatibilityError, "via must be"),
    "no draws": (lambda m: m.predict(X, draws=0), po.CompatibilityError, "draws must be at least 1"),
    "something to keep": (lambda m: m.predict(X, keep="all"), po.CompatibilityError, "keep must be"),
    "no targets": (lambda m: po.evaluate(m, X), po.DataError, "target|inputs"),
    "no rows to evaluate": (lambda m: po.evaluate(m, (X[:0], Y[:0])), po.DataError, "no rows"),
    "unknown labels": (lambda m: po.evaluate(m, (X, Y + 9)), po.DataError, "9|1[0-3]"),
    "all ignored": (lambda m: m.calibrate((X, torch.full_like(Y, -100))), po.DataError, "ignore|target|row"),
    "targets of another length": (lambda m: po.evaluate(m, (X, Y[:-1])), po.DataError, "different lengths"),
    "its own network": (lambda m: m.to_module(m.problem.network.module), po.CompatibilityError, "fresh network"),
    "another network": (lambda m: m.to_module(plain_network(3)), po.CompatibilityError, "not the one that was fitted"),
}


@pytest.fixture(scope="module")
def model() -> po.BayesianModel:
    return po.fit(plain_network(), (X, Y), epochs=1)


@pytest.mark.parametrize("what", BAD_ASKS)
def test_a_model_refuses(what: str, model: po.BayesianModel) -> None:
    ask, error, words = BAD_ASKS[what]
    with pytest.raises(error, match=words) as caught:
        ask(model)
    assert "\n" not in str(caught.value)


def test_an_ensemble_has_no_mean() -> None:
    ensemble = po.fit(plain_network(), (X, Y), method=po.DeepEnsemble(2), epochs=1)
    with pytest.raises(po.CompatibilityError, match="via='draws'"):
        ensemble.predict(X, via="mean")


# --- run folders ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    po.fit(plain_network(), (X, Y), epochs=1, out=folder)
    return folder


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


SPOILED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no manifest": (lambda f: (f / "posterity.json").unlink(), "has no posterity.json"),
    "a truncated manifest": (lambda f: truncate(f / "posterity.json"), "posterity.json"),
    "an edited manifest": (lambda f: flip(f / "posterity.json"), "posterity.json"),
    "a foreign manifest": (
        lambda f: (f / "posterity.json").write_text('{"library": "other"}'),
        "not written by posterity",
    ),
    "no posterior": (lambda f: (f / "posterior.safetensors").unlink(), "posterior.safetensors is missing"),
    "a truncated posterior": (lambda f: truncate(f / "posterior.safetensors"), "posterior.safetensors is truncated"),
    "a flipped bit in the posterior": (lambda f: flip(f / "posterior.safetensors"), "posterior.safetensors is corrupt"),
    "a flipped bit in the network": (lambda f: flip(f / "network.safetensors"), "network.safetensors is corrupt"),
    "no folder": (shutil.rmtree, "is not there"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_load_refuses(how: str, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    spoil, words = SPOILED[how]
    spoil(folder)
    with pytest.raises(po.StorageError, match=re.escape(words)) as caught:
        po.load(folder, plain_network())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["a truncated manifest", "an edited manifest", "a foreign manifest"])
def test_out_refuses_to_write_over(how: str, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    SPOILED[how][0](folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(po.StorageError, match="is not written over"):
        po.fit(plain_network(), (X, Y), epochs=1, out=folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_load_refuses_another_network(run: Path) -> None:
    with pytest.raises(po.CompatibilityError, match=r"2\.bias: \(5,\) in the run, \(3,\) in the network"):
        po.load(run, plain_network(3))
    with pytest.raises(po.CompatibilityError, match=r"absent in the run"):
        po.load(run, nn.Sequential(*plain_network(), nn.Linear(5, 5)))


OTHER: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "epochs": {"epochs": 3},
    "hyperparameters": {"method": po.MAP(learning_rate=0.1)},
    "method": {"method": po.IVON()},
    "prior": {"prior": 0.5},
    "data_size": {"data": (X[:-1], Y[:-1])},
    "batch_size": {"batch_size": 5},
    "network": {"network": nn.Sequential(nn.Linear(FEATURES, CLASSES))},
}


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "killed"])
@pytest.mark.parametrize("what", OTHER)
def test_resume_refuses_another_fit(what: str, finished: bool, tmp_path: Path) -> None:
    def fit(**options: Any) -> Any:
        given = {"network": plain_network(), "data": (X, Y), "epochs": 2, "batch_size": 7, **options}
        return po.fit(given.pop("network"), given.pop("data"), out=tmp_path, **given)

    def stop(row: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    if finished:
        fit()
    else:
        with pytest.raises(KeyboardInterrupt):
            fit(callbacks=[stop])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(po.StorageError, match=rf"another fit.*{what}"):
        fit(**OTHER[what], resume=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_resume_needs_a_folder() -> None:
    with pytest.raises(po.CompatibilityError, match="resume=True needs out="):
        po.fit(plain_network(), (X, Y), resume=True)


def test_a_truncated_checkpoint_is_named(tmp_path: Path) -> None:
    def stop(row: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        po.fit(plain_network(), (X, Y), epochs=2, out=tmp_path, callbacks=[stop])
    truncate(tmp_path / "checkpoint.safetensors")
    with pytest.raises(po.StorageError, match=r"checkpoint\.safetensors"):
        po.fit(plain_network(), (X, Y), epochs=2, out=tmp_path, resume=True)
