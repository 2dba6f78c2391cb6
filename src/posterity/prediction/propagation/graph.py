"""The graph front end: a network as a plain module of means and variances, to compile, to export, to run elsewhere.

`torch.export` writes the network down as a graph of operations; a `Graph` runs that graph with the same rules as the eager
front end, and is itself an ordinary module of ordinary tensors, so that `torch.compile` and `torch.export` take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind

from posterity.errors import CompatibilityError
from posterity.posterior.factor_moments import FactoredNormal
from posterity.posterior.layer_moments import Layer
from posterity.prediction.propagation import rules  # noqa: F401  (fills the table)
from posterity.prediction.propagation.correlated import CorrelatedOutput, CorrelatedWeight
from posterity.prediction.propagation.factored import FactoredWeight
from posterity.prediction.propagation.joint import Joint
from posterity.prediction.propagation.rank_one import RankOneWeight
from posterity.prediction.propagation.run import Pass, inside, outputs_scaled, running
from posterity.prediction.propagation.table import IN_PLACE, RULES
from posterity.prediction.propagation.value import MeanVar, Value, split
from posterity.problem.network import Network
from posterity.tree import BUFFER

__all__ = ["Graph", "graph_of"]


class Graph(nn.Module):
    """(mean, var) of the network's outputs; var is None where nothing varies.

    Args:
        program: the network's graph.
        values: of its parameters and buffers, by name.
        settings: of the pass.
    """

    def __init__(self, program: torch.export.ExportedProgram, values: Mapping[str, Value], settings: Pass) -> None:
        super().__init__()
        self._graph, self._settings = program.graph_module, settings
        self._own: set[str] = set()  # names of the graph's inputs that are not the user's
        self._layers: dict[
            str, tuple[str, type[Layer]]
        ] = {}  # of each correlated one, the name that its layer is kept by
        keepers: dict[int, str] = {}
        held = {**program.state_dict, **program.constants}
        multiplied = {node.name for node in program.graph.nodes if any(_multiplies(user) for user in node.users)}
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                continue
            name, target = spec.arg.name, spec.target or ""
            self._own.add(name)
            value = values.get(target, held.get(target))
            if isinstance(value, MeanVar | Tensor):
                for part, leaf in _parts(value, multiplied=name in multiplied).items():
                    self.register_buffer(_buffer(name, part), leaf.detach().contiguous())
            if isinstance(value, CorrelatedWeight):
                keeper = keepers.setdefault(id(value.layer), name)
                self._layers[name] = keeper, type(value.layer)
                for part, leaf in value.layer._asdict().items() if keeper == name else ():
                    self.register_buffer(_buffer(name, f"layer_{part}"), leaf)

    def _layer(self, name: str) -> Layer:
        keeper, kind = self._layers[name]
        return kind(*(getattr(self, _buffer(keeper, f"layer_{part}")) for part in kind._fields))

    def _value(self, name: str, layers: dict[str, Layer]) -> Value:
        if name in self._layers:
            layer = layers.setdefault(self._layers[name][0], self._layer(name))
            return CorrelatedWeight(getattr(self, _buffer(name, "mean")), getattr(self, _buffer(name, "std")), layer)
        held = {part: leaf for part in _PARTS if (leaf := getattr(self, _buffer(name, part), None)) is not None}
        if "row" in held:
            return RankOneWeight(**held)
        if "left_mean" in held:
            mean = held.pop("mean")
            return FactoredWeight(FactoredNormal(**held, shape=tuple(mean.shape)), mean)
        return MeanVar(**held) if "var" in held else held["mean"]

    def forward(self, *inputs: Any) -> Any:
        """Means and variances, [rows, ...] each, of what the network says of `inputs`."""
        return self.moments(*inputs)[:2]

    def moments(self, *inputs: Any) -> Any:
        """Also the covariance of its outputs, [rows, outputs, outputs], where it is known."""
        given = iter(inputs)
        names = [node.name for node in self._graph.graph.nodes if node.op == "placeholder"]
        layers: dict[str, Layer] = {}
        leaves = [self._value(name, layers) if name in self._own else next(given) for name in names]
        with running(self._settings.again()):
            found = _Run(self._graph).run(*leaves)
            value = outputs_scaled(found[0] if isinstance(found, tuple | list) and len(found) == 1 else found)
            joint = value.joint() if isinstance(value, CorrelatedOutput) else None
        if isinstance(joint, Joint):
            return value.mean, value.var, joint.cov
        return (value.mean, value.var, None) if isinstance(value, MeanVar) else (value, None, None)


_FACTORS = ("left_mean", "left_std", "right_mean", "right_std", "base")
_PARTS = ("mean", "var", "second", "row", "column", "square", *_FACTORS)


def _buffer(name: str, part: str) -> str:
    return f"{name}_{part}".replace(".", "_")


def _parts(value: Value, multiplied: bool) -> dict[str, Tensor]:
    """What is held of a value; squares too where a product asks for them in every pass."""
    if isinstance(value, FactoredWeight):
        factors = {part: getattr(value.moment, part) for part in _FACTORS}
        return {"mean": value.mean, **{part: leaf for part, leaf in factors.items() if leaf is not None}}
    if isinstance(value, CorrelatedWeight):
        return {"mean": value.mean, "std": value.std}
    if isinstance(value, RankOneWeight):
        found = {"mean": value.mean, "row": value.row, "column": value.column}
        return {**found, "square": value.square} if multiplied else found
    mean, var = split(value)
    found = {"mean": mean} if var is None else {"mean": mean, "var": var}
    if multiplied and isinstance(value, MeanVar) and mean.ndim > 1:
        found["second"] = value.second
    return found


_PRODUCTS = {"linear", "matmul", "mm", "addmm", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"}


def _multiplies(node: fx.Node) -> bool:
    return str(node.target).removeprefix("aten.").partition(".")[0] in _PRODUCTS


_OF_SHAPES = {"sym_size.int", "sym_numel.default", "_assert_tensor_metadata.default"}


class _Run(fx.Interpreter):
    """One pass over the graph."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=True)
        self._path = ""

    def run_node(self, n: fx.Node) -> Any:
        stack = n.meta.get("nn_module_stack") or {}
        self._path = next(reversed(stack.values()))[0].removeprefix("module").removeprefix(".") if stack else ""
        with inside(self._path):
            return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _varies((args, kwargs)):
            return super().call_function(target, args, kwargs)
        name = getattr(target, "__name__", str(target))
        if name == "getitem":
            return target(*args)
        if name in _OF_SHAPES:
            return target(args[0].mean, *args[1:], **kwargs)
        found = RULES.get(target)
        result = NotImplemented if found is None else found(*args, **kwargs)
        if result is NotImplemented:
            where = f" in the module {self._path!r}" if self._path else ""
            raise CompatibilityError(
                f"no rule says what {target} does to means and variances{where}; predict with via='draws', or register a "
                "rule for it with posterity.prediction.propagation.table.rule"
            )
        if target in IN_PLACE and isinstance(args[0], MeanVar) and isinstance(result, MeanVar):
            args[0].write(result)
            return args[0]
        return result


def _varies(value: Any) -> bool:
    if isinstance(value, MeanVar):
        return True
    if isinstance(value, dict):
        return any(map(_varies, value.values()))
    return isinstance(value, tuple | list) and any(map(_varies, value))


class _Positional(nn.Module):
    """What a network says that the likelihood reads, of tensors in a row."""

    def __init__(self, network: Network, names: list[str], count: int) -> None:
        super().__init__()
        self.module, self._choose, self._names, self._count = network.module, network.choose, names, count

    def forward(self, *inputs: Any) -> Any:
        named = dict(zip(self._names, inputs[self._count :]))
        return self._choose(self.module(*inputs[: self._count], **named))


def graph_of(network: Network, values: Mapping[str, Value], example: Any, settings: Pass | None = None) -> Graph:
    """The network as a module of means and variances that takes its inputs as tensors in a row, of any number of rows.

    Args:
        values: of its weights, as `weight_values` gives them.
        example: inputs of at least two rows: a tensor, or a tuple or dict of them.

    Raises:
        CompatibilityError: a network that `torch.export` cannot write down (eager propagation still works), or an operation
            without a rule; `Rules(covariance=True)`.
    """
    if settings is not None and settings.rules.covariance:
        raise CompatibilityError(
            "a covariance takes slopes of the network, which its graph has not: export with Rules(covariance=False), or "
            "predict with via='propagation'"
        )
    args, kwargs = network.arguments(example)
    whole = _Positional(network, list(kwargs), len(args))
    inputs = (*args, *kwargs.values())
    rows = torch.export.Dim("rows", min=1)
    shapes = tuple({0: rows} if isinstance(one, Tensor) and one.ndim else None for one in inputs)
    try:
        with network.session(train=False), torch.no_grad():
            program = torch.export.export(whole, inputs, dynamic_shapes=(shapes,), strict=False)
    except Exception as error:
        raise CompatibilityError(
            f"torch.export cannot write this network down ({type(error).__name__}: {error}): predict with "
            "via='propagation', which needs no graph"
        ) from error
    values = {name.removeprefix(BUFFER): value for name, value in values.items()}
    named = {f"module.{name}": value for name, value in _under_all_names(network.module, values).items()}
    return Graph(program, named, settings or Pass())


def _under_all_names(module: nn.Module, values: Mapping[str, Value]) -> dict[str, Value]:
    """Also under the other names that tied weights have."""
    own = {id(leaf): name for name, leaf in module.named_parameters() if name in values}
    shared = module.named_parameters(remove_duplicate=False)
    return {**values, **{name: values[own[id(leaf)]] for name, leaf in shared if id(leaf) in own}}
