"""Your model is not changed: nothing of the network, its loader or the process differs afterwards, also after a fault."""

from __future__ import annotations

import random as python_random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from posterity.errors import DataError
from posterity.evaluation.evaluate import evaluate
from posterity.model import BayesianModel
from posterity.problem.likelihoods import Categorical, Outputs
from posterity.testing.case import Case
from posterity.testing.expect import expect, same
from posterity.testing.worlds import Fuse, Injected, Witness, inputs, labels, loader
from posterity.training.fit import fit
from posterity.tree import Tree

__all__ = ["untouched", "untouched_after_faults"]


def untouched(case: Case) -> None:
    """`fit`, `predict`, `evaluate` and `calibrate` leave no trace in a network in training mode (a part of it left in
    evaluation mode) nor in one in evaluation mode: parameters and their gradients, buffers, attributes and their
    contents, modes, hooks, the loader's own generator, the global generators of torch, numpy and Python.
    """
    for training in (True, False):
        net, batches = Witness(), loader()
        if not training:
            net.eval()
        with observed(net, batches, f"fit (training={training})"):
            model = _fit(case, net, batches)
        _use(model, net, loader(shuffle=False))


def untouched_after_faults(case: Case) -> None:
    """The same where a forward fails in the probe, in training, in validation, in prediction, in an evaluation or in a
    calibration; where the likelihood or a callback fails; and where an evaluation meets a target that it does not know.
    """
    clean = Witness()
    model = _fit(case, clean, loader())

    def fails(what: str, net: Witness, **options: Any) -> None:
        batches = loader()
        _fails(net, batches, f"a fault in {what}", lambda: _fit(case, net, batches, **options))

    for at in (1, 2, clean.fuses[0].count):
        fails(f"training forward {at}", Witness(train_fuse=Fuse(at)))
    for at in (1, clean.fuses[1].count):
        fails(f"evaluation forward {at}", Witness(eval_fuse=Fuse(at)))
    fails("the likelihood", Witness(), likelihood=_Failing(fuse=Fuse(2)))
    fails("a callback", Witness(), callbacks=[_failing_callback])

    batches, fuse = loader(shuffle=False), clean.fuses[1]
    for name, action in {
        "predict": lambda: model.predict(batches),
        "evaluate": lambda: evaluate(model, batches),
        "calibrate": lambda: model.calibrate(batches),
    }.items():
        fuse.count, fuse.at = 0, 2
        _fails(clean, batches, f"a fault in {name}", action)
    fuse.at = None
    unknown = inputs(), labels(inputs()) + 99
    _fails(clean, batches, "an unknown target in evaluate", lambda: evaluate(model, unknown), DataError)


def _fit(case: Case, net: nn.Module, batches: DataLoader, **options: Any) -> BayesianModel:
    options = {"likelihood": "categorical", "validation": loader(shuffle=False), **options}
    return fit(net, batches, method=case.algorithm, epochs=2, **options)


def _use(model: BayesianModel, net: nn.Module, batches: DataLoader) -> None:
    known = model.posterior.tensors()
    before = {name: leaf.clone() for name, leaf in known.items()}
    few = _few(model)
    with observed(net, batches, "predict"):
        model.predict(inputs())
        model.predict(batches, draws=1)
    with observed(net, batches, "predict, in blocks"):
        for pred in model.predict_blocks(batches, draws=1, max_memory=1):
            with observed(net, batches, "between two blocks"):
                repr(pred)
    with observed(net, batches, "evaluate"):
        evaluate(model, batches, ood={"far": inputs() + 9.0}, draws=few)
    with observed(net, batches, "calibrate"):
        model.calibrate(batches, draws=few)
    same(known, before, "the posterior, after its use")


def _few(model: BayesianModel) -> int | None:
    """Two draws of a posterior without end, to save time."""
    return None if model.posterior.finite else 2


def _failing_callback(row: dict[str, Any]) -> None:
    raise Injected("a callback failed")


@dataclass(frozen=True)
class _Failing(Categorical):
    """Fails at a given forward."""

    fuse: Fuse | None = None

    def log_prob(self, outputs: Outputs, targets: Tensor, parameters: Tree) -> Tensor:  # type: ignore[override]
        assert self.fuse is not None
        self.fuse.burn()
        return super().log_prob(outputs, targets, parameters)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name}


def _fails(
    net: nn.Module, batches: DataLoader, what: str, action: Callable[[], Any], error: type[Exception] = Injected
) -> None:
    with observed(net, batches, what):
        try:
            action()
        except error:
            return
        expect(False, f"{what} was not raised")


@contextmanager
def observed(net: nn.Module, batches: DataLoader, what: str) -> Iterator[None]:
    """Raise AssertionError where anything that can be seen of the network or the process changed."""
    before = _seen(net, batches)
    yield
    same(_seen(net, batches), before, f"after {what}: state")


_COUNTED = "fuses"  # the faults' own counters


def _seen(net: nn.Module, batches: DataLoader) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name, module in net.named_modules():
        seen[f"{name}.attributes"] = {key: _frozen(v) for key, v in vars(module).items() if key != _COUNTED}
    for name, parameter in net.named_parameters():
        seen[name] = (id(parameter), parameter.detach().clone(), parameter.requires_grad, parameter.grad is None)
    generator = batches.generator
    seen["the loader's generator"] = None if generator is None else generator.get_state()
    seen["torch's generator"] = torch.get_rng_state()
    seen["numpy's generator"] = list(np.random.get_state())  # noqa: NPY002
    seen["Python's generator"] = python_random.getstate()
    return seen


def _frozen(value: Any) -> Any:
    """A copy of content, with the identity of what holds it."""
    if isinstance(value, Tensor):
        return id(value), value.detach().clone()
    if isinstance(value, dict):
        return id(value), {key: _frozen(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return id(value), [_frozen(part) for part in value]
    return value
