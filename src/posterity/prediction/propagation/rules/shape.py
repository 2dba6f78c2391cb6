"""Operations that move elements, copy them or leave some out: the same is done to the variance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.prediction.propagation.rules.attention import Attention
from posterity.prediction.propagation.rules.logits import carried
from posterity.prediction.propagation.table import RULES, mirrored, rule
from posterity.prediction.propagation.value import Later, MeanVar, Value, dense, join, split, spread

_MOVES = (
    *("alias", "clone", "contiguous", "detach", "to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu"),
    *("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze"),
    *("t", "transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "adjoint"),
    *("expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave"),
    *("narrow", "select", "slice", "index_select", "gather", "take_along_dim", "index", "masked_select", "take"),
    *("chunk", "split", "tensor_split", "unbind", "split_with_sizes", "hsplit", "vsplit", "unfold", "diagonal"),
    *("flip", "fliplr", "flipud", "roll", "rot90", "tril", "triu", "pixel_shuffle", "pixel_unshuffle", "__getitem__"),
    *("channel_shuffle", "atleast_1d", "atleast_2d", "atleast_3d"),
)

_KEEPS = {
    "alias",
    "clone",
    "contiguous",
    "to",
    "type",
    "type_as",
    "float",
    "half",
    "bfloat16",
    "double",
    "view",
    "reshape",
}


@mirrored(*_MOVES)
def moved(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(x: Value, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, MeanVar):
            return NotImplemented
        args = tuple(split(one)[0] if isinstance(one, MeanVar) else one for one in args)  # view_as and its like
        mean = function(x.mean, *args, **kwargs)
        if mean is x.mean:  # a type that it has already
            return x
        if not isinstance(mean, Tensor):
            return tuple(join(m, v) for m, v in zip(mean, function(x.var, *args, **kwargs)))
        if isinstance(x, Attention) and _keeps_rows(function, x.mean, mean):
            logit_var = x.logit_var
            return Attention(mean, Later(lambda: function(logit_var(), *args, **kwargs)))
        var = x.later
        found = MeanVar(mean, Later(lambda: function(var(), *args, **kwargs)))
        return carried(found, x) if _keeps(function) and mean.shape == x.mean.shape else found

    return apply


for _name in ("T", "mT", "H", "mH"):
    _getter = getattr(Tensor, _name).__get__
    RULES[_getter] = moved(_getter)
for _overload in (torch.ops.aten.numpy_T.default, torch.ops.aten.mT.default, torch.ops.aten.mH.default):
    RULES[_overload] = moved(_overload)


def _keeps_rows(function: Any, before: Tensor, after: Tensor) -> bool:
    """Whether the last axis is still what it was."""
    return _keeps(function) and before.shape[-1] == after.shape[-1]


def _keeps(function: Any) -> bool:
    """Whether the elements stay in their order."""
    return str(getattr(function, "__name__", function)).partition(".")[0].removeprefix("aten::") in _KEEPS


@mirrored("cat", "concat", "concatenate", "stack", "hstack", "vstack")
def joined(function: Callable[..., Tensor]) -> Callable[..., Value]:
    def apply(tensors: Sequence[Value], *args: Any, **kwargs: Any) -> Value:
        parts = [dense(one) for one in tensors]
        return join(*(function([part[i] for part in parts], *args, **kwargs) for i in (0, 1)))

    return apply


@rule("pad")
def pad(input: Value, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Value:
    mean, var = split(input)
    mean = F.pad(mean, tuple(pad), mode, value)
    return join(mean, None if var is None else F.pad(var, tuple(pad), mode, 0.0 if mode == "constant" else None))


RULES[torch.ops.aten.constant_pad_nd.default] = lambda input, pad_, value=0.0: pad(input, pad_, "constant", value)


@rule("where")
def where(condition: Tensor, input: Any, other: Any) -> Value:
    if spread(condition):
        return NotImplemented
    values = [one if isinstance(one, MeanVar | Tensor) else torch.as_tensor(one) for one in (input, other)]
    (first, var), (second, other_var) = map(split, values)
    zero = torch.zeros((), dtype=first.dtype if var is not None else second.dtype, device=condition.device)
    return join(
        torch.where(condition, first, second),
        torch.where(condition, zero if var is None else var, zero if other_var is None else other_var),
    )


@rule("masked_fill")
def masked_fill(input: Value, mask: Tensor, value: Any) -> Value:
    mean, var = dense(input)
    if isinstance(value, MeanVar):
        return NotImplemented
    return carried(join(mean.masked_fill(mask, value), var.masked_fill(mask, 0.0)), input)


@rule("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout")
def dropout(input: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    return input if not training or p == 0.0 else NotImplemented


@rule(
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"
)
def like(input: Value, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented


for _function in [function for function, one in RULES.items() if one is like]:

    def _made(input: Value, *args: Any, _function: Any = _function, **kwargs: Any) -> Any:
        return _function(split(input)[0], *args, **kwargs)

    RULES[_function] = _made
