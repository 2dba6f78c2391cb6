"""The last Linear of a network: which it is, what goes in, and how the outputs depend on it.

    d output[r, j] / d W = sum over t of jacobian[r, j, t, :] outer features[r, t, :]

t counts what the layer sees of a row: its tokens, or its calls in one pass. Two checks in every pass hold this true, with
random coefficients c: the rows do not mix behind the layer, d (w . c . outputs) = w d (c . outputs) for row weights w; and
nothing else uses the weight, so that the sum above, applied to c, is what autograd says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posterity.errors import CompatibilityError
from posterity.problem.likelihoods.base import exact
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.tree import BUFFER, Tree, weights

__all__ = ["LastLayer", "last_layer"]


class LastLayer(NamedTuple):
    """One evaluation pass seen from the last Linear."""

    weight: str  # the weight's name
    bias: str | None
    features: Tensor  # [rows, t, h]; a last column of ones stands for the bias
    jacobian: Tensor | None  # [rows, k, t, units]; None: the outputs are the layer's own
    outputs: Any  # as the network gave them


def last_layer(problem: NetworkProblem, theta: Tree, inputs: Any) -> LastLayer:
    """Run the network in evaluation mode and look at the last Linear that its outputs depend on.

    Raises:
        CompatibilityError: there is none; it is frozen, tied or parametrised; some output does not depend on it; or the
            rows of a batch mix behind it.
    """
    calls: list[_Call] = []
    leaves = {name: leaf.detach().requires_grad_(not name.startswith(BUFFER)) for name, leaf in theta.items()}
    with torch.enable_grad(), problem.network.session(train=False), _recorded(problem.network.module, calls):
        outputs = problem.outputs(leaves, inputs)
    parts = outputs if isinstance(outputs, tuple | list) else (outputs,)
    if not all(isinstance(part, Tensor) for part in parts):
        raise _refused("the network returns several outputs; choose one with output=")
    flat = torch.cat([part.reshape(part.shape[0], -1) for part in parts], dim=1)
    half = problem.precision != "float32" or min(leaf.element_size() for leaf in weights(leaves).values()) < 4
    tolerance = 5e-2 if half else 1e-3  # rounding is 4e-3 in bfloat16, 1e-6 in float32
    coefficients = Random(0).fold("outputs").normal((flat.shape[1],), like=exact(flat[:0]).cpu()).to(flat.device)
    per_row = exact(flat) @ coefficients
    calls = _last(calls, per_row)
    weight, bias = _names(problem, calls[-1].name)
    by_row = _Rows(calls, per_row, tolerance)
    features = by_row([call.inputs for call in calls])
    _check_weight(per_row, leaves[weight], by_row, features, tolerance)
    direct = len(calls) == 1 and outputs is calls[0].handed and outputs._version == 0 and outputs.dim() == 2
    jacobian = None if direct else _jacobian(flat, calls, by_row)
    if bias is not None:
        features = torch.cat([features, features.new_ones((*features.shape[:2], 1))], dim=-1)
    given = tuple(part.detach() for part in parts)
    return LastLayer(weight, bias, features, jacobian, given if len(given) > 1 else given[0])


def _refused(why: str) -> CompatibilityError:
    return CompatibilityError(f"LastLayerLaplace cannot be used here: {why}")


class _Call(NamedTuple):
    name: str
    inputs: Tensor
    outputs: Tensor
    handed: Tensor  # a copy of the outputs: what the network goes on with, and may write over


@contextmanager
def _recorded(module: nn.Module, calls: list[_Call]) -> Iterator[None]:
    def hook(name: str) -> Any:
        def record(layer: nn.Module, args: tuple, kwargs: dict[str, Tensor], output: Tensor) -> Tensor:
            inputs = args[0] if args else kwargs["input"]
            calls.append(_Call(name, inputs.detach(), output, output.clone()))
            return calls[-1].handed

        return record

    linears = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    handles = [m.register_forward_hook(hook(name), with_kwargs=True) for name, m in linears]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _last(calls: list[_Call], per_row: Tensor) -> list[_Call]:
    """All calls of the layer whose call is the last that the outputs depend on."""
    for call in reversed(calls):
        if call.outputs.requires_grad and _gradients(per_row.sum(), [call.outputs])[0] is not None:
            return [one for one in calls if one.name == call.name and one.outputs.requires_grad]
    if calls:
        raise _refused(f"the outputs do not depend on the last Linear called, {calls[-1].name!r}")
    raise _refused("the network calls no nn.Linear; use a method that takes gradients only")


def _gradients(value: Tensor, at: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    if not value.requires_grad:
        return (None,) * len(at)
    return torch.autograd.grad(value, list(at), retain_graph=True, allow_unused=True)


def _names(problem: NetworkProblem, name: str) -> tuple[str, str | None]:
    layer = problem.network.module.get_submodule(name)
    weight, bias = (f"{name}.{part}" if name else part for part in ("weight", "bias"))
    own = layer._parameters.get("weight")
    if own is None:
        raise _refused(f"the weight of the last Linear, {name!r}, is made from others by a parametrisation")
    if not own.requires_grad:
        raise _refused(f"the last Linear, {name!r}, is frozen")
    owners = [m for m in problem.network.module.modules() if any(p is own for p in m._parameters.values())]
    if len(owners) > 1:
        raise _refused(f"the weight of the last Linear, {name!r}, is tied to another layer's")
    return weight, bias if bias in problem.network.trainable else None


class _Rows:
    """Arranges what the calls of a layer hold, [..., n] each, as [rows, t, n]."""

    def __init__(self, calls: Sequence[_Call], per_row: Tensor, tolerance: float) -> None:
        self.rows = per_row.shape[0]
        self.sums = _dense(_gradients(per_row.sum(), [call.outputs for call in calls]), calls)
        mix = Random(0).fold("rows").normal((self.rows,), like=per_row.detach().cpu()).to(per_row.device)
        weighted = _dense(_gradients(per_row @ mix, [call.outputs for call in calls]), calls)
        self.ways = [self._way(s, w, mix, tolerance, c.name) for s, w, c in zip(self.sums, weighted, calls)]

    def _way(self, summed: Tensor, weighted: Tensor, mix: Tensor, tolerance: float, name: str) -> Callable:
        for way in (_rows_first, _rows_last):
            if (one := way(summed, self.rows)) is not None and (other := way(weighted, self.rows)) is not None:
                error = torch.linalg.vector_norm(other - mix[:, None, None] * one)
                # A batch whose outputs are not finite says nothing here (NaN): its curvature is not finite, and is skipped.
                if not bool(error > tolerance * torch.linalg.vector_norm(other)):
                    return way
        raise _refused(
            f"the rows of a batch mix behind the last Linear, {name!r}, which sees {tuple(summed.shape[:-1])} "
            f"for {self.rows} rows"
        )

    def __call__(self, values: Sequence[Tensor]) -> Tensor:
        return exact(torch.cat([way(value, self.rows) for way, value in zip(self.ways, values)], dim=1))


def _rows_first(value: Tensor, rows: int) -> Tensor | None:
    """[rows, ..., n] or [rows * t, n] as [rows, t, n]."""
    flat = value.reshape(-1, value.shape[-1])
    return None if len(flat) % rows else flat.reshape(rows, -1, value.shape[-1])


def _rows_last(value: Tensor, rows: int) -> Tensor | None:
    """[t, rows, n] or [t * rows, n] as [rows, t, n]: sequences with time first."""
    flat = value.reshape(-1, value.shape[-1])
    return None if len(flat) % rows else flat.reshape(-1, rows, value.shape[-1]).transpose(0, 1)


def _dense(found: Sequence[Tensor | None], calls: Sequence[_Call]) -> list[Tensor]:
    return [torch.zeros_like(call.outputs) if one is None else one for one, call in zip(found, calls)]


def _check_weight(per_row: Tensor, weight: Tensor, by_row: _Rows, features: Tensor, tolerance: float) -> None:
    (whole,) = _gradients(per_row.sum(), [weight])
    own = torch.einsum("rtu,rth->uh", by_row(by_row.sums), features)
    scale = torch.linalg.vector_norm(own)
    if whole is None or bool(torch.linalg.vector_norm(whole - own) > tolerance * scale):
        raise _refused("the weight of the last Linear is also used elsewhere in the forward")


def _jacobian(flat: Tensor, calls: Sequence[_Call], by_row: _Rows) -> Tensor:
    """[rows, k, t, units] by one backward pass per output."""
    columns = []
    for j in range(flat.shape[1]):
        column = by_row(_dense(_gradients(flat[:, j].sum(), [call.outputs for call in calls]), calls))
        # One row may stand where a clamp or a rectifier is flat; all rows of a batch do not.
        if flat.shape[0] > 1 and not bool(column.any()):
            raise _refused(
                f"output {j} of {flat.shape[1]} does not depend on the last Linear, {calls[-1].name!r}, and would be given "
                "no uncertainty: let one Linear give all outputs"
            )
        columns.append(column)
    return torch.stack(columns, dim=1)
