"""Lightning finds the posterior that `po.fit` finds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from posterity.lightning import bayesian

FLAVOURS = ("lightning.pytorch", "pytorch_lightning")
GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(24, 3, generator=GENERATOR)
ROWS = TensorDataset(INPUTS, (INPUTS[:, 0] > 0).long())

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*log_every_n_steps"),
    pytest.mark.filterwarnings("ignore:.*but have no `val_dataloader`"),
]


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def module(flavour: str, method: Any, **options: Any) -> Any:
    base = importlib.import_module(flavour).LightningModule

    class Classifier(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.network = net()
            self.driven = bayesian(self.network, method, seed=3, **options)
            self.validated: list[torch.Tensor] = []

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            return self.driven.loss(self.network(x), y)

        def validation_step(self, batch: Any, index: int) -> None:
            x, y = batch
            self.driven.loss(self.network(x), y)
            self.validated.append(self.network[0].weight.detach().clone())

        def configure_optimizers(self) -> Any:
            return self.driven.optimizer

        def configure_callbacks(self) -> Any:
            return [self.driven.callback]

    return Classifier()


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Any]:
    def run(
        flavour: str, classifier: Any, batch_size: int = 8, validation: Any = None, **options: Any
    ) -> po.BayesianModel:
        settings = {
            "max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
            "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path,
        }  # fmt: skip
        checkpoint = options.pop("ckpt_path", None)
        trainer = importlib.import_module(flavour).Trainer(**{**settings, **options})
        trainer.fit(classifier, DataLoader(ROWS, batch_size), validation, ckpt_path=checkpoint)
        return classifier.driven.model()

    return run


def apart(model: po.BayesianModel, other: po.BayesianModel) -> float:
    one, two = model.posterior.tensors(), other.posterior.tensors()
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def fitted(method: Any, **options: Any) -> po.BayesianModel:
    loader = DataLoader(ROWS, options.pop("batch_size", 8))
    return po.fit(net(), loader, method=method, epochs=2, seed=3, **options)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("method", [po.IVON(), po.ScoreVI(), po.MeanFieldVI(), po.MAP()], ids=lambda m: m.name)
def test_lightning_agrees_with_fit_to_the_bit(train: Any, flavour: str, method: Any) -> None:
    model, reference = train(flavour, module(flavour, method)), fitted(method)
    assert apart(model, reference) == 0.0
    assert list(model.history) == list(reference.history)
    assert model.predict(INPUTS).probs.equal(reference.predict(INPUTS).probs)


@pytest.mark.parametrize("batch", [4, 5])
def test_accumulated_batches_of_lightning_count_as_one(train: Any, batch: int) -> None:
    model = train("lightning.pytorch", module("lightning.pytorch", po.IVON()), batch, accumulate_grad_batches=2)
    assert apart(model, fitted(po.IVON(), batch_size=batch, accumulation=2)) < 1e-5


def test_validations_see_the_mean_also_amid_an_accumulated_step(train: Any) -> None:
    classifier = module("lightning.pytorch", po.IVON())
    options = {"accumulate_grad_batches": 2, "val_check_interval": 1, "num_sanity_val_steps": 0}
    model = train("lightning.pytorch", classifier, 4, DataLoader(ROWS, 24), **options)
    assert len(classifier.validated) == 12
    assert classifier.validated[0].equal(net()[0].weight)
    assert classifier.validated[-1].equal(model.posterior.mean()["0.weight"])
    assert apart(model, fitted(po.IVON(), batch_size=4, accumulation=2)) < 1e-5


def test_a_checkpoint_of_lightning_goes_on_to_the_same_bits(train: Any, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    def saving() -> dict[str, Any]:
        callback = ModelCheckpoint(tmp_path / "saved", save_top_k=-1, every_n_train_steps=1, filename="{step}")
        return {"enable_checkpointing": True, "callbacks": [callback]}

    centred = {"prior": po.Normal(0.5, center="start")}
    whole = train("lightning.pytorch", module("lightning.pytorch", po.IVON(), **centred), max_epochs=3, **saving())
    for step in (3, 6):  # ends of epochs: amid one, Lightning begins a loader without a state anew
        again = module("lightning.pytorch", po.IVON(), **centred)
        path = tmp_path / "saved" / f"step={step}.ckpt"
        resumed = train("lightning.pytorch", again, max_epochs=3, ckpt_path=path, **saving())
        assert apart(whole, resumed) == 0.0, step
        assert list(whole.history) == list(resumed.history), step


def test_bf16_of_lightning(train: Any) -> None:
    model = train("lightning.pytorch", module("lightning.pytorch", po.IVON()), precision="bf16-mixed")
    assert model.problem.precision == "bf16"
    assert apart(model, fitted(po.IVON(), precision="bf16")) < 0.1


def test_regression_learns_its_noise(train: Any) -> None:
    classifier = module("lightning.pytorch", po.IVON())
    target = INPUTS[:, :1] * 3
    classifier.network[3] = nn.Linear(8, 1)
    likelihood = po.Gaussian().surveyed([target])
    driven = bayesian(classifier.network, po.MAP(learning_rate=0.05), likelihood=likelihood, seed=3)
    classifier.driven = driven
    classifier.training_step = lambda batch, batch_idx: driven.loss(classifier.network(batch[0]), batch[0][:, :1] * 3)
    model = train("lightning.pytorch", classifier, max_epochs=20)
    start = driven.likelihood.parameters()["log_std"]
    assert (model.posterior.mean()["likelihood.log_std"] < start).all()
    assert model.predict(INPUTS).std.shape == (24,)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"precision": "64-true"}, "precision"), ({"max_epochs": -1, "fast_dev_run": False}, "without end"),
        ({"gradient_clip_val": 0.5}, "differ"),
    ],
    ids=["precision", "endless", "clipping"],
)  # fmt: skip
def test_what_lightning_cannot_do(train: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(po.CompatibilityError, match=match):
        train("lightning.pytorch", module("lightning.pytorch", po.IVON(), clip=1.0), **options)


def test_a_module_with_another_optimizer(train: Any) -> None:
    classifier = module("lightning.pytorch", po.IVON())
    classifier.configure_optimizers = lambda: torch.optim.SGD(classifier.parameters(), 0.1)
    with pytest.raises(po.CompatibilityError, match="another optimizer"):
        train("lightning.pytorch", classifier)
