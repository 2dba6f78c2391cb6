"""Lightning trains an algorithm: `configure_optimizers` returns its optimizer; the callback and the loss come from here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import nn

from posterity.errors import CompatibilityError
from posterity.inference.algorithm import Algorithm, Plan
from posterity.interfaces.driven.clipping import agree_on_clipping
from posterity.interfaces.driven.driven import Driven
from posterity.problem.data import Source
from posterity.problem.likelihoods import Likelihood
from posterity.problem.priors import Prior

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback  # type: ignore[assignment]
    except ImportError as error:
        raise ImportError(
            "posterity.lightning needs lightning (or pytorch_lightning): pip install 'posterity[lightning]'"
        ) from error

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ["LightningDriven", "bayesian"]

_PRECISIONS = {"32-true": "float32", "bf16-mixed": "bf16"}


class LightningDriven(Driven):
    """What `bayesian` returns: `optimizer`, `callback` and `loss` go into a LightningModule, `model()` is what comes of it.

    Attributes:
        optimizer: for `configure_optimizers`. Its learning rate and schedule are the algorithm's.
        callback: for `configure_callbacks`, or the Trainer: puts draws in before a step. Validations and checkpoints see the
            mean weights.
    """

    def __init__(self, network: nn.Module, method: Algorithm | None = None, **options: Any) -> None:
        super().__init__(network, method, **options)
        self.callback: Callback = _Callback(self)


def bayesian(
    network: nn.Module,
    method: Algorithm | None = None,
    *,
    likelihood: Likelihood | str = "categorical",
    prior: Prior | str | float = 1.0,
    data_size: int | None = None,
    data_weight: float = 1.0,
    target: str | int | None = None,
    output: Any = None,
    seed: int = 0,
    clip: float | None = None,
) -> LightningDriven:
    """Make a network of a LightningModule ready for a Trainer that infers a posterior over its weights.

        class Classifier(LightningModule):
            def __init__(self):
                super().__init__()
                self.network = Net()
                self.driven = bayesian(self.network, po.IVON())

            def training_step(self, batch, index):
                x, y = batch
                return self.driven.loss(self.network(x), y)

            def configure_optimizers(self):
                return self.driven.optimizer

            def configure_callbacks(self):
                return [self.driven.callback]

    Arguments and errors are those of `posterity.huggingface.bayesian`; `clip` must be the Trainer's `gradient_clip_val`,
    where that is set.
    """
    return LightningDriven(
        network, method, likelihood=likelihood, prior=prior, data_size=data_size, data_weight=data_weight, target=target,
        output=output, seed=seed, clip=clip,
    )  # fmt: skip


class _Callback(Callback):
    """Where the Trainer stands, told to the driven algorithm."""

    def __init__(self, driven: LightningDriven) -> None:
        self._driven = driven

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        driven, parts = self._driven, trainer.accumulate_grad_batches
        if not any(optimizer is driven.optimizer for optimizer in trainer.optimizers):
            raise CompatibilityError("the Trainer has another optimizer: configure_optimizers returns driven.optimizer")
        if trainer.world_size > 1:
            raise CompatibilityError("several processes would each draw weights of their own: use devices=1")
        if str(trainer.precision) not in _PRECISIONS:
            known = " or ".join(map(repr, _PRECISIONS))
            raise CompatibilityError(f"precision={trainer.precision!r} is not known to work here: use {known}")
        if math.isinf(steps := trainer.estimated_stepping_batches):
            raise CompatibilityError(
                "the Trainer runs without end: give it max_epochs= or max_steps=, which schedules need"
            )
        agree_on_clipping(driven, trainer.gradient_clip_val, "gradient_clip_val")
        driven.divided_outside = parts
        batches, loader = trainer.num_training_batches, trainer.train_dataloader
        batch = getattr(loader, "batch_size", None) or 1
        rows = Source(loader, driven.reader, "training").rows
        whole = None if rows is None else min(rows, int(batches) * batch)
        per_epoch = int(steps) if math.isinf(batches) else -(-int(batches) // parts)
        plan = Plan(batch * parts, int(steps), per_epoch)
        driven.begin(plan, whole, _PRECISIONS[str(trainer.precision)], resume=trainer.global_step > 0)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._driven.draw()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._driven.settle()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._driven.end_epoch()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._driven.settle()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._driven.settle()
