"""Dropout in evaluation mode, with masks that have an address: those of one draw are the same for all rows and batches.

    y[r, j] = x[r, j] m_j / (1 - p),    m_j = [ hash(seed, call, j) >= 2^32 p ]

`call` counts the dropouts of one forward and j are the places within a row, so that a mask depends neither on the row nor on
how long a sequence is padded. Every dropout that a forward calls is on, whatever its module's mode: functional ones, those
inside of `nn.MultiheadAttention`, and those between the layers of a recurrent network. Off are modules with a rate of 0 and
those left in evaluation mode under a training root. Out of reach is attention that is given a rate of 0 in evaluation mode
(`dropout_p=p if self.training else 0`): it never hears of p. The hash is MurmurHash3's finaliser, once for every axis.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from posterity.problem.network import Network

__all__ = ["Dropouts", "kept", "masks"]

_WORD = 0xFFFFFFFF
_ALPHA = 1.7580993408473766  # SELU's lower limit is -_ALPHA: Klambauer et al. (2017)


@contextmanager
def masks(network: Network, seed: Tensor | None) -> Iterator[Dropouts | None]:
    """Evaluate `network` with the dropout masks of a seed, () int64; without a seed, nothing is done."""
    if seed is None:
        yield None
        return
    flags = zip(network._modules, network._train_flags)
    silent = [(m, name, getattr(m, name)) for m, trains in flags if not trains and (name := _rate(m))]
    try:
        for m, name, _ in silent:
            object.__setattr__(m, name, 0.0)
        with network.session(train=False), Dropouts(int(seed)) as mode:
            yield mode
    finally:
        for m, name, rate in silent:
            object.__setattr__(m, name, rate)


def _rate(module: nn.Module) -> str:
    """Where torch's own modules keep their rate; empty for those that drop nothing."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return "p"
    return "dropout" if isinstance(module, nn.RNNBase | nn.MultiheadAttention) else ""


def kept(seed: int, call: int, shape: Sequence[int], p: float, device: torch.device | str = "cpu") -> Tensor:
    """Bool of `shape`, true with probability 1 - p; an entry depends on its place, not on the shape around it.

    >>> long, short = kept(0, 3, (7, 5), 0.5), kept(0, 3, (4, 2), 0.5)
    >>> bool(long[:4, :2].equal(short))
    True
    """
    key = _mixed(_mixed(torch.tensor(seed & _WORD, device=device)) ^ (call & _WORD))
    for size in shape:
        key = _mixed(key.unsqueeze(-1) ^ (torch.arange(size, device=device).mul_(0x9E3779B1).bitwise_and_(_WORD)))
    return key >= round(p * 2**32)


def _mixed(x: Tensor) -> Tensor:
    """MurmurHash3's finaliser: a bijection of 32 bits, here in int64."""
    x = x ^ (x >> 16)
    x = x.mul_(0x85EBCA6B).bitwise_and_(_WORD)
    x ^= x >> 13
    x = x.mul_(0xC2B2AE35).bitwise_and_(_WORD)
    return x ^ (x >> 16)


class Dropouts(TorchFunctionMode):
    """Sees every dropout that is called under it and counts those with a rate above 0, by function, in `found`.

    Args:
        seed: of the masks that take the place of what torch would draw; None to let torch do as it does, and count what it
            drops.
    """

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self.seed = seed
        self.found: Counter[str] = Counter()
        self._calls = 0
        self._heads = 1  # of the attention that is running

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        rule = _RULES.get(func)
        return func(*args, **(kwargs or {})) if rule is None else rule(self, func, args, dict(kwargs or {}))

    def counts(self, func: Any, p: float, draws: bool) -> bool:
        """Count a call; whether it is to be masked. `draws`: torch would drop."""
        if not 0.0 < p <= 1.0 or (self.seed is None and not draws):
            return False
        self.found[getattr(func, "__name__", str(func))] += 1
        return self.seed is not None

    def mask(self, x: Tensor, shape: Sequence[int], p: float) -> Tensor:
        """0 and 1, of `shape`, in the type of `x`; the next call's."""
        assert self.seed is not None
        self._calls += 1
        return kept(self.seed, self._calls, shape, p, x.device).to(x.dtype)

    def drop(self, x: Tensor, p: float, channels: bool = False, alpha: bool = False) -> Tensor:
        """`x` [rows, ...] with single entries dropped, or whole channels (axis 1)."""
        if self._heads > 1 and x.dim() == 3:  # attention's [rows * heads, ...]
            return self.drop(x.unflatten(0, (-1, self._heads)), p).flatten(0, 1)
        row = [size if axis == 0 or not channels else 1 for axis, size in enumerate(x.shape[1:])]
        mask = self.mask(x, [1, *row][: x.dim()], p)
        if not alpha:
            return x * mask * (1.0 / (1.0 - p) if p < 1.0 else 0.0)
        if p == 1.0:
            return torch.zeros_like(x)
        scale = 1.0 / math.sqrt((_ALPHA**2 * p + 1.0) * (1.0 - p))  # keeps mean and variance of a standard normal
        return (x * mask + (mask - 1.0) * _ALPHA + _ALPHA * p) * scale


# --- what is done with each function ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plain:
    """One of torch's dropouts: (input, p, training, inplace)."""

    channels: bool = False
    alpha: bool = False
    training: bool = True  # unless given
    batched: int = 0  # dimensions of an input with rows, where torch also takes one without

    def __call__(self, mode: Dropouts, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(("input", "p", "training", "inplace"), args)) | kwargs
        x, p = given["input"], given.get("p", 0.5)
        if not mode.counts(func, p, given.get("training", given.get("train", self.training))):
            return func(*args, **kwargs)
        alone = x.dim() == self.batched - 1
        dropped = mode.drop(x.unsqueeze(0) if alone else x, p, self.channels, self.alpha)
        dropped = dropped.squeeze(0) if alone else dropped
        written = given.get("inplace", False) or func.__name__.endswith("_")
        return x.copy_(dropped) if written else dropped


def _attention(mode: Dropouts, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """softmax(Q K^T / sqrt(d) + mask) with dropped weights, times V."""
    given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args)) | kwargs
    p = given.get("dropout_p", 0.0)
    if not mode.counts(func, p, True):
        return func(*args, **kwargs)
    query, key, value, attn_mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    if given.get("enable_gqa") and key.shape[-3] != query.shape[-3]:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scale = given.get("scale")
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if given.get("is_causal"):
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~causal, -torch.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype is torch.bool else scores + attn_mask
    nothing = scores.isneginf().all(-1, keepdim=True)  # a query that sees no key
    return mode.drop(scores.softmax(-1).masked_fill(nothing, 0.0), p) @ value


def _multi_head(mode: Dropouts, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Attention's own dropouts are inside of this function: it is run so that they meet the mode."""
    if mode.seed is not None:
        if len(args) > _TRAINING:
            args = (*args[:_TRAINING], True, *args[_TRAINING + 1 :])
        else:
            kwargs["training"] = True
    before = mode._heads
    mode._heads = int(kwargs["num_heads"] if "num_heads" in kwargs else args[_HEADS])
    try:
        with mode:
            return _opened(func)(*args, **kwargs)
    finally:
        mode._heads = before


_HEADS, _TRAINING = 4, 13  # places among the arguments of multi_head_attention_forward


@cache
def _opened(function: FunctionType) -> Callable[..., Any]:
    """A composite torch function that does not ask for overrides itself; the functions that it calls do."""
    names = {**function.__globals__, "has_torch_function": lambda arguments: False}
    opened = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened


def _recurrent(mode: Dropouts, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One layer after the other, with what goes from one to the next dropped at the same places at every row."""
    packed = isinstance(args[3], list | tuple)
    if packed:
        x, sizes, hidden, weights, bias, layers, p, train, both = args
        batch_first = False
    else:
        (x, hidden, weights, bias, layers, p, train, both, batch_first), sizes = args, None
    if layers < 2 or not mode.counts(func, p, train):
        return func(*args, **kwargs)
    single, each, ways = isinstance(hidden, Tensor), len(weights) // layers, 2 if both else 1
    states: list[Sequence[Tensor]] = []
    for layer in range(layers):
        own = slice(layer * ways, (layer + 1) * ways)
        start = hidden[own].contiguous() if single else tuple(h[own].contiguous() for h in hidden)
        parts = (start, weights[layer * each : (layer + 1) * each], bias, 1, 0.0, False, both)
        x, *state = func(x, sizes, *parts) if packed else func(x, *parts, batch_first)
        states.append(state)
        if layer + 1 < layers:
            times = len(sizes) if sizes is not None else x.shape[1 if batch_first else 0]
            mask = mode.mask(x, (times, x.shape[-1]), p) * (1.0 / (1.0 - p) if p < 1.0 else 0.0)
            if sizes is not None:
                mask = mask.repeat_interleave(sizes.to(mask.device), 0)
            x = x * (mask if packed else mask.unsqueeze(0 if batch_first else 1))
    return (x, *(torch.cat(layer) for layer in zip(*states)))


_CHANNELS, _SELU = _Plain(channels=True), _Plain(alpha=True, training=False)
_RULES: dict[Any, Callable[..., Any]] = {
    F.dropout: _Plain(),
    F.dropout1d: _Plain(channels=True, batched=3),
    F.dropout2d: _CHANNELS,
    F.dropout3d: _Plain(channels=True, batched=5),
    F.alpha_dropout: _SELU,
    F.feature_alpha_dropout: _Plain(channels=True, alpha=True, training=False),
    torch.dropout: _Plain(),
    torch.dropout_: _Plain(),
    torch.feature_dropout: _CHANNELS,
    torch.alpha_dropout: _SELU,
    torch.feature_alpha_dropout: _Plain(channels=True, alpha=True),
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent),
}
