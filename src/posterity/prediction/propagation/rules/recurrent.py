"""LSTM, GRU and plain recurrent layers, step by step; the same weights at every step count as independent of the state.

LSTM   i, f, g, o = W x + U h;   c = s(f) c + s(i) tanh(g),   h = s(o) tanh(c)
GRU    r, z, n = W x, U h;       n = tanh(n_x + r n_h),       h = n + z (h - n)         h and n as if independent
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.prediction.propagation import activations
from posterity.prediction.propagation.rules.arithmetic import add, mul, rsub
from posterity.prediction.propagation.rules.attention import each
from posterity.prediction.propagation.rules.linear import linear
from posterity.prediction.propagation.rules.shape import joined
from posterity.prediction.propagation.run import current
from posterity.prediction.propagation.table import rule
from posterity.prediction.propagation.value import MeanVar, Value, join, split

State = tuple[Value, ...]
Cell = Callable[[Value, Value, State], State]

_cat, _stack = joined(torch.cat), joined(torch.stack)


def _sigmoid(x: Value) -> Value:
    return _activated(activations.sigmoid, torch.sigmoid, x)


def _tanh(x: Value) -> Value:
    return _activated(activations.tanh, torch.tanh, x)


def _activated(moments: Callable[..., Any], plain: Callable[[Tensor], Tensor], x: Value) -> Value:
    return MeanVar(*moments(x.mean, x.var, accuracy=current().rules.accuracy)) if isinstance(x, MeanVar) else plain(x)


def _parts(x: Value, count: int) -> list[Value]:
    mean, var = split(x)
    variances = [None] * count if var is None else var.chunk(count, -1)
    return [join(*pair) for pair in zip(mean.chunk(count, -1), variances)]


def _at(x: Value, index: int) -> Value:
    mean, var = split(x)
    return join(mean[index], None if var is None else var[index])


def _lstm_cell(own: Value, fed: Value, state: State) -> State:
    whole = add(own, fed)
    i, f, _, o = _parts(_sigmoid(whole), 4)  # g's too: one call on all is a third of the operations of three
    c = add(mul(f, state[1]), mul(i, _tanh(_parts(whole, 4)[2])))
    return mul(o, _tanh(c)), c


def _gru_cell(own: Value, fed: Value, state: State) -> State:
    n, n_h = _parts(own, 3)[2], _parts(fed, 3)[2]
    r, z, _ = _parts(_sigmoid(add(own, fed)), 3)
    n = _tanh(add(n, mul(r, n_h)))
    return (add(mul(z, state[0]), mul(rsub(z, 1.0), n)),)


def _tanh_cell(own: Value, fed: Value, state: State) -> State:
    return (_tanh(add(own, fed)),)


def _layers(
    cell: Cell, input: Value, states: State, weights: Sequence[Value], biases: bool, layers: int, both: bool,
    batch_first: bool,
) -> tuple[Value, list[Value]]:  # fmt: skip
    """Outputs and the last states, each [layers x directions, rows, hidden]."""
    x = each(input, lambda leaf: leaf.transpose(0, 1)) if batch_first else input
    steps = split(x)[0].shape[0]
    per, last = 4 if biases else 2, []
    for layer in range(layers):
        found = []
        for direction in range(2 if both else 1):
            k = layer * (2 if both else 1) + direction
            w, u, *b = weights[k * per : (k + 1) * per]
            b_x, b_h = b or (None, None)
            own = linear_of(x, w, b_x)
            state = tuple(_at(one, k) for one in states)
            outputs: list[Value] = []
            for t in reversed(range(steps)) if direction else range(steps):
                state = cell(_at(own, t), linear_of(state[0], u, b_h), state)
                outputs.append(state[0])
            found.append(_stack(outputs[::-1] if direction else outputs))
            last.append(state)
        x = found[0] if len(found) == 1 else _cat(found, -1)
    ends = [_stack([state[i] for state in last]) for i in range(len(states))]
    return each(x, lambda leaf: leaf.transpose(0, 1)) if batch_first else x, ends


def linear_of(x: Value, weight: Value, bias: Value | None) -> Value:
    """A linear map, also where nothing varies."""
    if any(isinstance(one, MeanVar) for one in (x, weight, bias)):
        return linear(x, weight, bias)
    return torch.nn.functional.linear(x, weight, bias)  # type: ignore[arg-type]


@rule("lstm")
def lstm(
    input: Value, hx: Any, params: Any, has_biases: Any, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool = False,
) -> Any:  # fmt: skip
    if isinstance(hx, Tensor) or (train and dropout) or split(input)[0].ndim != 3:  # the first: a packed sequence
        return NotImplemented
    found, (h, c) = _layers(_lstm_cell, input, tuple(hx), params, has_biases, num_layers, bidirectional, batch_first)
    return found, h, c


def _one_state(cell: Cell) -> Callable[..., Any]:
    def apply(
        input: Value, hx: Any, params: Any, has_biases: Any, num_layers: Any, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool = False,
    ) -> Any:  # fmt: skip
        if not isinstance(has_biases, bool) or (train and dropout) or split(input)[0].ndim != 3:
            return NotImplemented
        found, (h,) = _layers(cell, input, (hx,), params, has_biases, num_layers, bidirectional, batch_first)
        return found, h

    return apply


gru = rule("gru")(_one_state(_gru_cell))
rnn_tanh = rule("rnn_tanh")(_one_state(_tanh_cell))


@rule("lstm_cell")
def lstm_cell(
    input: Value, hx: Any, w_ih: Value, w_hh: Value, b_ih: Value | None = None, b_hh: Value | None = None
) -> State:
    h, c = hx
    return _lstm_cell(linear_of(input, w_ih, b_ih), linear_of(h, w_hh, b_hh), (h, c))


@rule("gru_cell")
def gru_cell(
    input: Value, hx: Value, w_ih: Value, w_hh: Value, b_ih: Value | None = None, b_hh: Value | None = None
) -> Value:
    return _gru_cell(linear_of(input, w_ih, b_ih), linear_of(hx, w_hh, b_hh), (hx,))[0]
