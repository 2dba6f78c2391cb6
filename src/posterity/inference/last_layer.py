"""The last Linear of a network: which it is, what goes in, and how the outputs depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posterity.errors import CompatibilityError
from posterity.problem.problem import NetworkProblem
from posterity.tree import Tree

__all__ = ["LastLayer", "last_layer"]


class LastLayer(NamedTuple):
    """One evaluation pass seen from the last Linear.

    With inner positions t (tokens; one where the layer sees a row once), output j of row r depends on it by
    d out_rj / d W = sum over t of jacobian[r, j, t, :] outer features[r, t, :].
    """

    weight: str  # the weight's name
    bias: str | None
    features: Tensor  # [rows, t, h]; a last column of ones stands for the bias
    jacobian: Tensor | None  # [rows, k, t, units]; None: the outputs are the layer's own
    outputs: Any  # as the network gave them


class _Call(NamedTuple):
    name: str
    inputs: Tensor
    outputs: Tensor


@contextmanager
def _recorded(module: nn.Module, calls: list[_Call]) -> Iterator[None]:
    def hook(name: str) -> Any:
        def record(layer: nn.Module, args: tuple, output: Tensor) -> None:
            calls.append(_Call(name, args[0], output))

        return record

    linears = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    handles = [m.register_forward_hook(hook(name)) for name, m in linears]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def last_layer(problem: NetworkProblem, theta: Tree, inputs: Any) -> LastLayer:
    """Run the network in evaluation mode and look at its last Linear.

    Raises:
        CompatibilityError: there is none, it is frozen, tied or called more than once, or the outputs do not depend on it.
    """
    calls: list[_Call] = []
    module = problem.network.module
    probe = {name: leaf.detach().requires_grad_(leaf.is_floating_point()) for name, leaf in theta.items()}
    with torch.enable_grad(), problem.network.session(train=False), _recorded(module, calls):
        outputs = problem.outputs(probe, inputs)
    if not isinstance(outputs, Tensor):
        raise CompatibilityError(_SORRY + "the network returns several tensors; choose one with output=")
    if not calls:
        raise CompatibilityError(_SORRY + "the network calls no nn.Linear")
    call = calls[-1]
    weight, bias = _names(problem, call.name, [c.name for c in calls])
    jacobian = None if outputs is call.outputs and outputs.dim() == 2 else _jacobian(outputs, call)
    features = _inner(call.inputs.detach())
    if bias is not None:
        features = torch.cat([features, features.new_ones((*features.shape[:2], 1))], dim=-1)
    return LastLayer(weight, bias, features, jacobian, outputs.detach())


_SORRY = "LastLayerLaplace cannot be used here: "


def _names(problem: NetworkProblem, layer: str, called: list[str]) -> tuple[str, str | None]:
    weight, bias = (f"{layer}.{part}" if layer else part for part in ("weight", "bias"))
    if called.count(layer) > 1:
        raise CompatibilityError(_SORRY + f"the last Linear, {layer!r}, is called {called.count(layer)} times a pass")
    if weight not in problem.network.trainable:
        raise CompatibilityError(_SORRY + f"{weight!r} is frozen, tied to an earlier layer or parametrised")
    return weight, bias if bias in problem.network.trainable else None


def _inner(tensor: Tensor) -> Tensor:
    """[rows, ..., n] as [rows, t, n]."""
    return tensor.reshape(tensor.shape[0], -1, tensor.shape[-1])


def _jacobian(outputs: Tensor, call: _Call) -> Tensor:
    """[rows, k, t, units] by one backward pass per output: rows do not mix in evaluation mode."""
    flat = outputs.reshape(outputs.shape[0], -1)
    if call.outputs.shape[0] != flat.shape[0]:
        raise CompatibilityError(
            _SORRY + f"the last Linear sees {call.outputs.shape[0]} rows of a batch of {flat.shape[0]}"
        )
    columns = []
    for j in range(flat.shape[1]):
        (found,) = torch.autograd.grad(flat[:, j].sum(), call.outputs, retain_graph=True, allow_unused=True)
        if found is None:
            raise CompatibilityError(_SORRY + f"the outputs do not depend on the last Linear called, {call.name!r}")
        columns.append(_inner(found))
    return torch.stack(columns, dim=1)
