"""A fitted model as an ONNX file that says what `predict` says, checked in ONNX Runtime before it appears."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posterity.errors import CompatibilityError
from posterity.posterior.posterior import Posterior
from posterity.prediction.propagation.graph import Graph, graph_of
from posterity.prediction.propagation.head import axis_of, check_head, normal_points
from posterity.prediction.propagation.joint import root_by_columns
from posterity.prediction.propagation.propagate import likelihood_parameters, points_of_each, values_of
from posterity.prediction.propagation.run import pass_of
from posterity.prediction.propagation.settings import Propagation
from posterity.prediction.propagation.value import Value
from posterity.prediction.said import SaidClasses, SaidClosed, SaidNumbers, said
from posterity.problem.problem import NetworkProblem
from posterity.random import Random

__all__ = ["BATCHES", "TOLERANCE", "exported", "write_onnx"]

BATCHES = (1, 5, 17)  # rows at which the file is compared with the module
TOLERANCE = 1e-5  # of every output, relative to the largest where that is above 1


class Exported(nn.Module):
    """Inputs, tensors in a row, to the named tensors of `said`.

    Args:
        axis: of outputs [rows, ...], that which the points are laid along; None where a row has one number.
    """

    def __init__(
        self, graphs: list[Graph], points: Tensor | None, axis: int | None, head: SaidClasses | SaidClosed | SaidNumbers
    ) -> None:
        super().__init__()
        self.axis = axis
        self.graphs, self.head = nn.ModuleList(graphs), head
        self.names = list(head.names)
        self.points: Tensor | None
        self.register_buffer("points", points)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        moments = [graph.moments(*inputs) for graph in self.graphs]  # type: ignore[operator]
        drawn = [self._drawn(*one) for one in moments]
        return self.head(moments, drawn) if isinstance(self.head, SaidClosed) else self.head(torch.cat(drawn))

    def _drawn(self, mean: Tensor, var: Tensor | None, cov: Tensor | None) -> Tensor:
        """[draws, rows, ...]"""
        if var is None or self.points is None:
            return mean.unsqueeze(0)
        if cov is not None:
            shifts = root_by_columns(cov) @ self.points.double().mT
            return mean + shifts.permute(2, 0, 1).to(mean.dtype)
        sizes = [self.points.shape[1] if axis == self.axis else 1 for axis in range(mean.ndim)]
        return mean + var.sqrt() * self.points.reshape(-1, *sizes)


def exported(
    problem: NetworkProblem,
    posterior: Posterior,
    example: Any,
    *,
    via: str,
    draws: int | None,
    temperature: float,
    seed: int,
    settings: Propagation,
) -> tuple[Exported, tuple[Tensor, ...], list[str]]:
    """The module, its inputs in a row, and their names.

    Args:
        settings: of propagation.
    """
    network = problem.network
    values: list[dict[str, Value]]
    head = settings.rules.head if via == "propagation" else "points"
    check_head(problem.likelihood, head)
    if via == "propagation":
        values = values_of(posterior, settings)
    elif via == "mean":
        values = [dict(posterior.mean())]
    elif via == "draws":
        values = [dict(theta) for theta in posterior.draws(draws, Random(seed).fold("draw"))]
    else:
        raise CompatibilityError(f"via must be 'propagation', 'mean' or 'draws', got {via!r}")
    args, kwargs = network.arguments(example)
    inputs = (*args, *kwargs.values())
    names = [*(f"x{i}" if len(args) > 1 else "x" for i in range(len(args))), *kwargs]
    graphs = [graph_of(network, one, example, pass_of(settings)) for one in values]
    parameters = [likelihood_parameters(one) for one in values]
    points = axis = None
    if via == "propagation":
        with torch.no_grad():
            shape = graphs[0](*inputs)[0].shape
        axis = None if len(shape) == 1 else axis_of(problem.likelihood) % len(shape)
        points = normal_points(points_of_each(draws, len(graphs)), 1 if axis is None else shape[axis]).float()
    return Exported(graphs, points, axis, said(problem.likelihood, parameters, temperature, head)), inputs, names


def write_onnx(
    module: Exported, inputs: tuple[Tensor, ...], names: list[str], path: Path, about: Mapping[str, Any]
) -> float:
    """Write the file and return the largest difference from the module that ONNX Runtime showed.

    Raises:
        ImportError: no onnx extra.
        CompatibilityError: an operation that ONNX does not know, or a file that says something else; no file is left.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("an ONNX file needs pip install 'posterity[onnx]'") from error
    rows = torch.export.Dim("rows", min=1)
    shapes = tuple({0: rows} for _ in inputs)
    module = module.eval()
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                module, inputs, dynamo=True, verbose=False, dynamic_shapes=(shapes,), input_names=names,
                output_names=[_FINAL + name for name in module.names],
            )  # fmt: skip
    except Exception as error:
        raise CompatibilityError(f"this network cannot be an ONNX file ({type(error).__name__}): {error}") from error
    assert program is not None
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        draft = Path(folder) / path.name
        program.save(str(draft))
        file = _shared(_renamed(onnx.load(str(draft)), module.names))
        onnx.save(file, str(draft))
        session = onnxruntime.InferenceSession(str(draft), providers=["CPUExecutionProvider"])
        worst = max(_difference(module, session, inputs, count) for count in BATCHES)
        if not worst <= TOLERANCE:
            raise CompatibilityError(
                f"ONNX Runtime says something else than the network, by up to {worst:.2g}: no file was written"
            )
        onnx.helper.set_model_props(
            file,
            {"posterity": json.dumps({**about, "outputs": module.names, "difference": worst, "rows": BATCHES})},
        )
        onnx.save(file, str(draft))
        os.replace(draft, path)
    return worst


_FINAL = "said."


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporter says of itself: deprecations, and operators of libraries that are not there."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _renamed(file: Any, names: Sequence[str]) -> Any:
    """The file with its outputs under their own names, which values inside may have had."""
    new = {name: f"inner.{name}" for name in names} | {_FINAL + name: name for name in names}
    for node in file.graph.node:
        for values in (node.input, node.output):
            values[:] = [new.get(value, value) for value in values]
    for spec in (*file.graph.output, *file.graph.value_info, *file.graph.initializer):
        spec.name = new.get(spec.name, spec.name)
    return file


def _shared(file: Any) -> Any:
    """The file with equal tensors once: what members have in common, such as a frozen trunk."""
    first: dict[tuple[Any, ...], str] = {}
    same: dict[str, str] = {}
    for tensor in file.graph.initializer:
        content = (tensor.data_type, tuple(tensor.dims), hashlib.sha256(tensor.raw_data).digest())
        if tensor.raw_data:
            same[tensor.name] = first.setdefault(content, tensor.name)
    for node in file.graph.node:
        node.input[:] = [same.get(value, value) for value in node.input]
    for index in reversed(range(len(file.graph.initializer))):
        name = file.graph.initializer[index].name
        if same.get(name, name) != name:
            del file.graph.initializer[index]
    return file


def _difference(module: Exported, session: Any, inputs: tuple[Tensor, ...], count: int) -> float:
    """The largest of all outputs on so many rows, which repeat those of the example; relative to what is above 1."""
    rows = [one[torch.arange(count) % len(one)] for one in inputs]
    given = {spec.name: row.numpy() for spec, row in zip(session.get_inputs(), rows, strict=True)}
    with torch.no_grad():
        own = module(*rows)
    said = map(torch.from_numpy, session.run(None, given))
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1.0)) for a, b in zip(said, own, strict=True))
