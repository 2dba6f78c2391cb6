"""An unchanged `transformers.Trainer` trains an algorithm: its optimizers, a callback and its loss come from here."""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from posterity.errors import CompatibilityError, PosterityWarning
from posterity.inference.algorithm import Algorithm, Plan
from posterity.interfaces.driven.clipping import agree_on_clipping
from posterity.interfaces.driven.driven import Driven
from posterity.interfaces.driven.folder import save
from posterity.interfaces.driven.optimizer import DrivenOptimizer, OwnSchedule
from posterity.problem.likelihoods import Likelihood
from posterity.problem.priors import Prior

try:
    import accelerate  # noqa: F401
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "the Trainer needs transformers and accelerate: pip install 'posterity[huggingface]' (or an update of it)"
    ) from error

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

__all__ = ["TrainerDriven", "bayesian"]

# arguments of an optimizer, a schedule or a loss that the Trainer does not use here
_UNUSED = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "lr_scheduler_type",
           "warmup_steps", "label_smoothing_factor")  # fmt: skip


class TrainerDriven(Driven):
    """What `bayesian` returns: `optimizers`, `callback` and `loss` go to the Trainer, `model()` is what comes of it.

    Attributes:
        optimizers: the pair for `Trainer(optimizers=...)`. The learning rate is the algorithm's; the schedule tells it.
        callback: for `Trainer(callbacks=[...])`: puts draws in before a step. Evaluations and checkpoints of the Trainer
            see the mean weights.
    """

    def __init__(self, network: nn.Module, method: Algorithm | None = None, **options: Any) -> None:
        super().__init__(network, method, **options)
        self.optimizers: tuple[DrivenOptimizer, OwnSchedule] = (self.optimizer, OwnSchedule(self.optimizer))
        self.callback: TrainerCallback = _Callback(self)

    def loss(self, outputs: Any, targets: Any, num_items_in_batch: Any = None) -> Tensor:
        """For `Trainer(compute_loss_func=...)`; a row counts once, however many of its tokens count."""
        return super().loss(outputs, targets)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """`posterity.huggingface.save` of `model()`."""
        save(self.model(), folder)


def bayesian(
    network: nn.Module,
    method: Algorithm | None = None,
    *,
    likelihood: Likelihood | str = "categorical",
    prior: Prior | str | float = 1.0,
    data_size: int | None = None,
    data_weight: float = 1.0,
    target: str = "labels",
    output: Any = "logits",
    seed: int = 0,
    clip: float | None = None,
) -> TrainerDriven:
    """Make a network ready for a `transformers.Trainer` that infers a posterior over its weights.

        driven = bayesian(network, po.IVON())
        trainer = Trainer(network, args, train_dataset=rows, optimizers=driven.optimizers, callbacks=[driven.callback],
                          compute_loss_func=driven.loss)
        trainer.train()
        model = driven.model()

    Args:
        network: trained in place; freeze what is not to be inferred before.
        method: `po.MAP()` unless given; `po.IVON()`, `po.MeanFieldVI()`, `po.ScoreVI()`, or one of yours that wants one
            gradient a step.
        likelihood: "categorical", "tokens", ... or a `Likelihood`.
        prior: a `Prior`, or the std of a normal one.
        data_size: N; counted from the Trainer's data unless given, and checked against it.
        data_weight: w > 0; every row counts w times.
        target: the key of the targets in the batches that `predict` and `evaluate` get; the Trainer's is "labels".
        output: which of the network's outputs is meant.
        seed: of the noise in the weights and the draws of `predict`; the order of rows and dropout are the Trainer's.
        clip: largest Euclidean norm of the gradient of the mean loss. The Trainer clips by `max_grad_norm` (1 unless set
            to 0); set `clip` to the same to say that you want it.

    Raises:
        CompatibilityError: a method that needs passes, batches or members of its own.
        PriorError: a prior that it cannot use.
    """
    return TrainerDriven(
        network, method, likelihood=likelihood, prior=prior, data_size=data_size, data_weight=data_weight, target=target,
        output=output, seed=seed, clip=clip,
    )  # fmt: skip


class _Callback(TrainerCallback):
    """Where the Trainer stands, told to the driven algorithm."""

    def __init__(self, driven: TrainerDriven) -> None:
        self._driven = driven

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **found: Any
    ) -> None:
        driven = self._driven
        if found["model"] is not driven.network:
            raise CompatibilityError("the Trainer trains another network than the one that bayesian() was given")
        if getattr(found["optimizer"], "optimizer", found["optimizer"]) is not driven.optimizer:
            raise CompatibilityError("the Trainer has another optimizer: pass optimizers=driven.optimizers")
        _refuse(args)
        _warn_of_unused(args)
        agree_on_clipping(driven, args.max_grad_norm, "max_grad_norm")
        loader = found["train_dataloader"]
        driven.divided_inside = args.gradient_accumulation_steps
        batch = args.train_batch_size * args.gradient_accumulation_steps
        per_epoch = -(-_length(loader, state.max_steps) // args.gradient_accumulation_steps)
        driven.begin(
            Plan(batch, state.max_steps, per_epoch),
            _rows(loader, args),
            "bf16" if args.bf16 else "float32",
            resume=state.global_step > 0,
        )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **found: Any
    ) -> None:
        self._driven.draw()

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **found: Any) -> None:
        self._driven.end_epoch()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **found: Any) -> None:
        self._driven.settle()


def _length(loader: Any, steps: int) -> int:
    try:
        return len(loader)
    except TypeError:
        return steps


def _rows(loader: Any, args: TrainingArguments) -> int | None:
    """Rows of an epoch, with `dataloader_drop_last`; None of a stream."""
    dataset = getattr(loader, "dataset", None)
    if not isinstance(loader, DataLoader) or not hasattr(dataset, "__len__"):
        return None
    return len(loader) * args.train_batch_size if args.dataloader_drop_last else len(dataset)  # type: ignore[arg-type]


def _refuse(args: TrainingArguments) -> None:
    several = args.world_size > 1 or args.n_gpu > 1
    reasons = {
        "several processes or devices: each would draw weights of its own; use one": several,
        "DeepSpeed or FSDP, which take the weights apart": bool(args.deepspeed or args.fsdp),
        "fp16=True, whose loss is scaled: use bf16=True": args.fp16,
        "load_best_model_at_end=True, which puts back weights and not a posterior": args.load_best_model_at_end,
    }
    if found := [reason for reason, given in reasons.items() if given]:
        raise CompatibilityError(f"a driven Trainer does not work with {found[0]}")


def _warn_of_unused(args: TrainingArguments) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    if given := [n for n in _UNUSED if n in defaults and (getattr(args, n) or 0) != (defaults[n] or 0)]:
        warnings.warn(
            f"TrainingArguments({given[0]}={getattr(args, given[0])!r}) is not used{_more(given)}: the learning rate and "
            "its schedule are the method's, po.IVON(learning_rate=...), and what holds weights small is the prior",
            PosterityWarning,
            stacklevel=2,
        )


def _more(given: list[str]) -> str:
    return f", nor {', '.join(given[1:])}" if len(given) > 1 else ""
