"""`fit`: whatever form the data come in, the same rows give the same posterior; and what it leaves on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from posterity.testing.expect import near, same
from posterity.testing.worlds import batch_norm_network, inputs, labels, plain_network

X = inputs()
Y = labels(X)
WEIGHT = torch.linspace(0.5, 2.0, 23)


class Named(nn.Module):
    """Takes its input by name, and says more than one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.body = plain_network()

    def forward(self, values: Tensor, scale: Tensor | None = None) -> dict[str, Tensor]:
        return {"hidden": values, "answer": self.body(values if scale is None else values * scale)}


def in_order(rows: Any) -> DataLoader:
    return DataLoader(rows, batch_size=7)


def dicts(**more: Tensor) -> list[dict[str, Tensor]]:
    return [{"values": X[i], "labels": Y[i], **{name: leaf[i] for name, leaf in more.items()}} for i in range(23)]


FORMS: dict[str, tuple[Any, dict[str, Any], bool]] = {
    "tensors": ((X, Y), {}, False),
    "arrays": ((X.numpy(), Y.numpy()), {}, False),
    "a frame and a list": ((pd.DataFrame(X.numpy()), Y.tolist()), {}, False),
    "strings": ((X, [f"class {y}" for y in Y.tolist()]), {}, False),
    "one-hot": ((X, nn.functional.one_hot(Y, 5)), {}, False),
    "a column": ((X, Y[:, None]), {}, False),
    "a data set": (TensorDataset(X, Y), {}, False),
    "a loader": (in_order(TensorDataset(X, Y)), {}, False),
    "target first": (in_order(TensorDataset(Y, X)), {"target": 0}, False),
    "dicts": (in_order(dicts()), {"target": "labels", "output": "answer"}, True),
    "dicts of one tensor more": (
        in_order(dicts(scale=torch.ones(23, 1))), {"target": "labels", "output": "answer"}, True,
    ),
    "two inputs": (in_order(TensorDataset(X, torch.ones(23, 1), Y)), {"output": "answer"}, True),
    "an output by function": (in_order(dicts()), {"target": "labels", "output": lambda out: out["answer"]}, True),
}  # fmt: skip


def fitted(data: Any, named: bool = False, **options: Any) -> po.BayesianModel:
    whole = isinstance(data, tuple | TensorDataset)
    options = {"method": po.MAP(learning_rate=0.01), "steps": 3, **({"batch_size": 23} if whole else {}), **options}
    return po.fit(Named() if named else plain_network(), data, options.pop("likelihood", "categorical"), **options)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_in_any_form(form: str) -> None:
    data, options, named = FORMS[form]
    whole = isinstance(data, tuple | TensorDataset)
    wanted = fitted((X, Y)) if whole else fitted(in_order(TensorDataset(X, Y)))
    found = fitted(data, named, **options)
    assert found.problem.data_size == 23
    for name, leaf in wanted.posterior.mean().items():
        # a full batch in another order: sums of 23 rows, three steps of 0.01
        near(found.posterior.mean()["body." * named + name], leaf, 1e-5, f"{name} from {form}")


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_sample_weights_multiply_the_log_likelihood_of_a_row(likelihood: str) -> None:
    """Whole, by their key and by their position: the gradient of sum w log p, N being the rows."""
    y = Y if likelihood == "categorical" else X[:, 0]
    net = plain_network(5 if likelihood == "categorical" else 1)
    options: dict[str, Any] = {"epochs": 1, "method": po.MAP(learning_rate=0.01)}
    forms = {
        "whole": po.fit(net, (X, y), likelihood, sample_weight=WEIGHT, batch_size=23, **options),
        "an array": po.fit(net, (X, y), likelihood, sample_weight=WEIGHT.numpy(), batch_size=23, **options),
        "by position": po.fit(
            net, DataLoader(TensorDataset(X, WEIGHT, y), batch_size=23), likelihood, sample_weight=1, **options
        ),
        "by key": po.fit(
            net,
            DataLoader([{"input": X[i], "w": WEIGHT[i], "y": y[i]} for i in range(23)], batch_size=23),
            likelihood, sample_weight="w", target="y", **options,
        ),
    }  # fmt: skip
    problem = forms["whole"].problem
    theta = {name: leaf.requires_grad_() for name, leaf in problem.start().items()}
    loss = -(WEIGHT * problem.row_log_probs(theta, problem.outputs(theta, X), y)).sum() / 23
    for (name, leaf), gradient in zip(theta.items(), torch.autograd.grad(loss, list(theta.values()))):
        del leaf
        for form, model in forms.items():
            near(model.snapshots[0].gradient[name], gradient, 1e-6, f"the gradient by {name}, weights {form},")


def test_class_weights_are_part_of_the_likelihood() -> None:
    balanced = fitted((X, Y), class_weight="balanced")
    counts = torch.bincount(Y).double()
    wanted = 23 / (5 * counts)
    assert dict(balanced.problem.likelihood.class_weight) == pytest.approx(dict(enumerate(wanted.tolist())))
    for given in (wanted.tolist(), wanted, {k: float(w) for k, w in enumerate(wanted)}):
        same(fitted((X, Y), class_weight=given).posterior.tensors(), balanced.posterior.tensors(), "balanced by hand")


@pytest.mark.parametrize("data", [(X, Y), (X.numpy(), Y.tolist())], ids=["tensors", "arrays"])
def test_a_share_is_held_out(data: Any) -> None:
    """Never trained on, another share with another seed; its weights go with it."""
    models = [fitted(data, validation=0.3, seed=seed, sample_weight=WEIGHT) for seed in (0, 0, 1)]
    assert [model.problem.data_size for model in models] == [16, 16, 16]
    assert models[0].history[0]["val_nll"] == models[1].history[0]["val_nll"] != models[2].history[0]["val_nll"]


@pytest.mark.parametrize("method", [po.MAP(), po.DeepEnsemble(2), po.MeanFieldVI(), po.LastLayerLaplace()])
def test_a_run_is_complete(method: po.Algorithm, tmp_path: Path) -> None:
    model = po.fit(
        batch_norm_network(), (X, Y), method=method, epochs=1, out=tmp_path, seed=3, data_weight=1.5, prior=0.7
    )
    manifest = json.loads((tmp_path / "posterity.json").read_text())
    assert {"posterity.json", "posterior.safetensors", "network.safetensors", "calibration.json"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".", "checkpoint"))]
    for key, wanted in {
        "method": method.title, "seed": 3, "data_size": 23, "data_weight": 1.5, "temperature": 1.0, "format_version": 1,
    }.items():  # fmt: skip
        assert manifest[key] == wanted, key
    assert manifest["prior"]["std"] == 0.7
    assert manifest["likelihood"]["classes"] == [0, 1, 2, 3, 4]
    assert manifest["hyperparameters"]["members"] == method.members
    assert manifest["network"] == {name: list(leaf.shape) for name, leaf in model.problem.network.trainable.items()}
    assert manifest["history"] == list(model.history)


def test_units_are_the_users() -> None:
    """std(a y + b) = |a| std(y): the network sees standardised targets, whatever their units."""
    y = X[:, 0] + 0.1 * X[:, 1]
    x = inputs(11, seed=9)
    one, two = (
        po.fit(plain_network(1), (X, a * y + b), "gaussian", po.MeanFieldVI(), epochs=3).predict(x)
        for a, b in ((1.0, 0.0), (200.0, 3e4))
    )
    # float32 targets of 3e4 are rounded to 2e-3, which is 1e-5 of their std of 200
    near(two.mean, 200 * one.mean + 3e4, 200 * 1e-4, "the mean")
    near(two.std, 200 * one.std, 200 * 1e-4, "the std")


def test_precision_and_clip() -> None:
    """bfloat16 stays near float32, with a float32 posterior; a clipped gradient has the norm it was clipped to."""
    full, half = fitted((X, Y)), fitted((X, Y), precision="bf16")
    for name, leaf in full.posterior.mean().items():
        assert half.posterior.mean()[name].dtype == torch.float32
        near(half.posterior.mean()[name], leaf, 0.06, name)  # three steps of 0.01, each in either direction
    clipped = fitted((X, Y), clip=0.01, steps=1)
    norm = float(np.sqrt(sum(float(leaf.square().sum()) for leaf in clipped.snapshots[0].gradient.values())))
    assert norm == pytest.approx(0.01, rel=1e-5)
    assert clipped.history[0]["gradient_norm"] > 0.1, "the history tells the norm before clipping"


def test_a_prior_centred_at_the_start_means_the_weights_given() -> None:
    module = plain_network()
    given = {name: leaf + 1.0 for name, leaf in module.state_dict().items()}
    model = po.fit(module, (X, Y), prior=po.Normal(1.0, center="start"), steps=1, start=given)
    assert isinstance(model.problem.prior, po.Normal)
    for name, leaf in given.items():
        assert torch.equal(model.problem.prior.centers[name], leaf), name
