"""Perceptrons of K members at once: one batched product per layer.

    h_k <- h_k W_k^T + b_k    for all k,    h [K, rows, units],  W [K, outputs, inputs],  b [K, outputs]

Read from the module once. What is not exactly one of torch's own layers is not taken: a subclass may have a forward of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posterity.problem.network import Network
from posterity.tree import Tree

__all__ = ["Perceptron", "untouched"]

ELEMENTWISE = frozenset(
    {
        nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid,
        nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh,
        nn.Tanhshrink, nn.Threshold,
    }
)  # fmt: skip
DROPOUT = frozenset({nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout})


@dataclass(frozen=True)
class Linear:
    """The names of one layer's tensors; no bias: None."""

    weight: str
    bias: str | None


@dataclass(frozen=True)
class Perceptron:
    """Linear layers, and what is done element by element between them."""

    layers: tuple[Linear | Callable[[Tensor], Tensor], ...]
    modules: tuple[nn.Module, ...]

    @classmethod
    def of(cls, network: Network) -> Perceptron | str:
        """The perceptron that a network is, or why it is none."""
        if network.output is not None:
            return "output= chooses among its outputs"
        if network._tied:
            return "it uses one tensor in two places"
        names = {module: name for name, module in network.module.named_modules()}
        trains = dict(zip(network._modules, network._train_flags))
        layers: list[Linear | Callable[[Tensor], Tensor]] = []
        for module in _leaves(network.module):
            found = _layer(module, names[module], trains[module], bool(layers))
            if isinstance(found, str):
                return found
            if found is not None:
                layers.append(found)
        if not any(isinstance(layer, Linear) for layer in layers):
            return "it has no nn.Linear"
        modules = tuple(network.module.modules())
        return cls(tuple(layers), modules) if untouched(modules) else "it has hooks, or a forward put on an instance"

    def __call__(self, weights: Mapping[str, Tensor], constants: Tree, inputs: Tensor) -> Tensor:
        """[K, rows, ...] outputs of K members.

        Args:
            weights: [K, ...] each.
            constants: frozen tensors, the same for all members.
            inputs: [K, rows, ...].
        """
        h, turned = inputs, False  # turned: [K, units, rows], so that the gradient of a weight comes in its own layout
        for layer in self.layers:
            weight = weights.get(layer.weight) if isinstance(layer, Linear) else None
            if isinstance(layer, Linear) and weight is not None and h.dim() == 3:
                h, turned = _product(layer, weight, weights, constants, h if turned else h.mT), True
                continue
            if turned and isinstance(layer, Linear | _Flatten):
                h, turned = h.mT, False
            if not isinstance(layer, Linear):
                h = layer(h)
            elif weight is not None:
                flat = h.flatten(1, -2)
                h = _product(layer, weight, weights, constants, flat.mT).mT.unflatten(1, h.shape[1:-1])
            else:
                h = _fixed_product(layer, weights, constants, h)
        return h.mT if turned else h


def _product(layer: Linear, weight: Tensor, weights: Mapping[str, Tensor], constants: Tree, turned: Tensor) -> Tensor:
    """[K, outputs, rows] of [K, inputs, rows]."""
    if layer.bias is None:
        return torch.bmm(weight, turned)
    bias = weights.get(layer.bias)
    return torch.baddbmm((constants[layer.bias] if bias is None else bias).unsqueeze(-1), weight, turned)


def _fixed_product(layer: Linear, weights: Mapping[str, Tensor], constants: Tree, h: Tensor) -> Tensor:
    """[K, rows, ..., outputs] of [K, rows, ..., inputs] with a frozen weight."""
    bias = None if layer.bias is None else weights.get(layer.bias)
    same = None if layer.bias is None or bias is not None else constants[layer.bias]
    h = nn.functional.linear(h, constants[layer.weight], same)
    return h if bias is None else h + bias.reshape(bias.shape[0], *[1] * (h.dim() - 2), -1)


def untouched(modules: tuple[nn.Module, ...]) -> bool:
    """No hook is registered on these modules, and no instance has a forward of its own."""
    return not nn.modules.module._has_any_global_hook() and not any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        for module in modules
    )


def _leaves(module: nn.Module) -> list[nn.Module]:
    if type(module) is not nn.Sequential:
        return [module]
    return [leaf for child in module for leaf in _leaves(child)]


def _layer(module: nn.Module, name: str, trains: bool, later: bool) -> Linear | Callable[[Tensor], Tensor] | str | None:
    """What a module does to all members, None for nothing at all, or why it cannot be said."""
    kind = type(module)
    place = f"{name!r} is {kind.__name__}"
    if kind is nn.Linear:
        inside = f"{name}." if name else ""
        own = dict(module.named_parameters())
        if own.keys() - {"weight", "bias"} or "weight" not in own or any(True for _ in module.buffers()):
            return f"{place} with tensors of its own"
        return Linear(f"{inside}weight", f"{inside}bias" if "bias" in own else None)
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
        return f"{place}, which holds tensors"
    if kind in DROPOUT:
        return f"{place}, which draws" if trains and module.p > 0 else None  # type: ignore[operator]
    if kind is nn.Identity:
        return None
    if kind in ELEMENTWISE:
        if getattr(module, "inplace", False) and not later:
            return f"{place}, which writes into its input"
        return module.forward
    if kind is nn.Flatten:
        start, end = int(module.start_dim), int(module.end_dim)  # type: ignore[arg-type]
        if start < 1 or (end < 1 and end != -1):
            return f"{place}, which joins rows"
        return _Flatten(start + 1, end + 1 if end > 0 else end)
    return place


@dataclass(frozen=True)
class _Flatten:
    start: int
    end: int

    def __call__(self, h: Tensor) -> Tensor:
        return h.flatten(self.start, self.end)
