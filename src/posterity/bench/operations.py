"""Where the time of a piece of work goes, operation of torch by operation: products, noise, functions, the rest."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Kind", "OperationClock"]

Kind = Literal["product", "noise", "function", "elementwise"]

# those that others are written with too: under `inference_mode` they arrive as they are
PRODUCTS = {
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear", "matmul", "einsum", "conv1d", "conv2d", "conv3d",
    "convolution", "convolution_backward", "mkldnn_convolution", "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "linalg_cholesky_ex", "linalg_cholesky", "cholesky_inverse",
    "linalg_solve_triangular", "linalg_solve", "_linalg_solve_ex", "_linalg_eigh", "linalg_qr", "_linalg_svd",
}  # fmt: skip
NOISE = {
    "normal_", "normal", "randn", "rand", "uniform_", "bernoulli", "bernoulli_", "randint", "randperm", "native_dropout",
}  # fmt: skip
FUNCTIONS = {
    "exp", "expm1", "log", "log1p", "erf", "erfc", "tanh", "sigmoid", "sin", "cos", "atan", "gelu", "silu", "softplus",
    "softmax", "_softmax", "_log_softmax", "logsumexp", "special_ndtr", "special_log_ndtr", "special_erfcx",
}  # fmt: skip
OVERWRITES = {"aten::copy_", "aten::fill_", "aten::zero_"}


def kind_of(name: str) -> Kind:
    """The kind of an operation of ATen; in place and out of place are one.

    >>> kind_of("addmm"), kind_of("normal_"), kind_of("exp_"), kind_of("addcmul_")
    ('product', 'noise', 'function', 'elementwise')
    """
    if name in NOISE:
        return "noise"
    bare = name.rstrip("_")
    if bare in PRODUCTS:
        return "product"
    return "function" if bare in FUNCTIONS else "elementwise"


class OperationClock(TorchDispatchMode):
    """Adds up, while it is entered, what torch is asked for; `running=False` lets a part pass unseen.

    seconds   of CPU time by kind; views are free, and what lies between operations is not in it
    bytes     that the element-wise operations read and write
    drawn     numbers of noise
    calls     operations, views among them
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[Kind, float] = defaultdict(float)
        self.bytes = self.drawn = self.calls = 0
        self.running = True
        self._own = statistics.median(_elapsed() for _ in range(25))

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.running:
            return operation(*args, **(kwargs or {}))
        return self._seen(operation, args, kwargs or {})

    def _seen(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        began = time.process_time()
        found = operation(*args, **kwargs)
        seconds = max(0.0, time.process_time() - began - self._own)
        self.calls += 1
        schema = operation._schema
        name = schema.name.partition("::")[2]
        if operation.is_view or name.startswith(("empty", "new_empty")):
            return found
        kind = kind_of(name)
        self.seconds[kind] += seconds
        if kind == "noise":
            self.drawn += sum(leaf.numel() for leaf in _tensors(found))
        elif kind != "product":
            self.bytes += _traffic(schema, args, kwargs, found)
        return found


def _elapsed() -> float:
    """What the clock itself says of nothing."""
    began = time.process_time()
    return time.process_time() - began


def _traffic(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any) -> int:
    """Bytes read and written: an argument is read unless it is only written to, a result written where it is new."""
    total = 0
    given = {**{argument.name: value for argument, value in zip(schema.arguments, args)}, **kwargs}
    for argument in schema.arguments:
        tensors = _tensors(given.get(argument.name))
        written = argument.alias_info is not None and argument.alias_info.is_write
        read = not (argument.is_out or (written and schema.name in OVERWRITES))
        total += (written + read) * sum(map(_bytes, tensors))
    new = all(result.alias_info is None for result in schema.returns)
    return total + new * sum(map(_bytes, _tensors(found)))


def _bytes(leaf: Tensor) -> int:
    """Of the elements that there are: an expanded tensor has those of its storage."""
    return min(leaf.numel() * leaf.element_size(), leaf.untyped_storage().nbytes())


def _tensors(nest: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, Tensor)]
