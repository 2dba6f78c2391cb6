"""Masks with an address: every dropout of torch in evaluation mode, the same for all rows, however they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from posterity.problem.dropout import Dropouts, kept, masks
from posterity.problem.network import Network
from posterity.random import Random

ROWS, TIMES, UNITS = 5, 7, 6
X = Random(0).normal((ROWS, TIMES, UNITS))


def dropped(module: nn.Module, *inputs: Any, seed: int = 3) -> Any:
    """What the module says in evaluation mode under the masks of a seed."""
    network = Network(nn.Sequential(module, nn.Linear(1, 1)))  # a network has something to train
    with torch.inference_mode(), masks(network, torch.tensor(seed)):
        return module(*inputs)


class Functional(nn.Module):
    def __init__(self, function: Callable[..., Tensor], **options: Any) -> None:
        super().__init__()
        self.function, self.options = function, options

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs, **self.options)


# --- the masks -----------------------------------------------------------------------------------------------------


def test_masks_keep_the_right_share_everywhere() -> None:
    p, rows, columns = 0.3, 2000, 500
    mask = kept(5, 2, (rows, columns), p).double()
    std = (p * (1 - p)) ** 0.5
    # one mean, 500 and 2000 of them: within 4, 4.5 and 5 of their stds
    assert abs(mask.mean() - 0.7) < 4 * std / (rows * columns) ** 0.5
    assert (mask.mean(0) - 0.7).abs().max() < 4.5 * std / rows**0.5
    assert (mask.mean(1) - 0.7).abs().max() < 5 * std / columns**0.5


def test_masks_of_places_calls_and_seeds_are_independent() -> None:
    wanted = kept(0, 1, (1, 61), 0.5)[0]
    ways = [kept(seed, 1, (1, 61), 0.5)[0] for seed in range(2000)]
    by_seed = torch.corrcoef(torch.stack(ways).double().T).fill_diagonal_(0.0)
    ways = [kept(0, call, (1, 61), 0.5)[0] for call in range(2000)]
    by_call = torch.corrcoef(torch.stack(ways).double().T).fill_diagonal_(0.0)
    # 1830 correlations of 2000 pairs each, of std 1 / sqrt(2000) = 0.022: the largest is 3.5 of them, 5 once in 1000
    assert max(by_seed.abs().max(), by_call.abs().max()) < 5 / 2000**0.5
    assert torch.equal(wanted, kept(0, 1, (1, 61), 0.5)[0])


def test_a_place_does_not_know_the_shape_around_it() -> None:
    assert kept(1, 4, (3, 11, 7), 0.4)[:, :5, :3].equal(kept(1, 4, (3, 5, 3), 0.4))
    assert not kept(1, 4, (3, 5), 1.0).any()


# --- what is done with them ----------------------------------------------------------------------------------------

SIMPLE = {
    "dropout": (nn.Dropout(0.4), (ROWS, TIMES, UNITS), (TIMES, UNITS)),
    "functional": (Functional(F.dropout, p=0.4, training=False), (ROWS, UNITS), (UNITS,)),
    "torch": (Functional(lambda x: torch.dropout(x, 0.4, False)), (ROWS, UNITS), (UNITS,)),
    "dropout1d": (nn.Dropout1d(0.4), (ROWS, 19, 4), (19, 1)),
    "dropout2d": (nn.Dropout2d(0.4), (ROWS, 19, 4, 3), (19, 1, 1)),
    "dropout3d": (nn.Dropout3d(0.4), (ROWS, 19, 2, 4, 3), (19, 1, 1, 1)),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_one_mask_for_all_rows(name: str) -> None:
    module, shape, row = SIMPLE[name]
    x = 1.0 + Random(1).normal(shape).square()
    factor = dropped(module, x) / x
    wanted = kept(3, 1, (1, *row), 0.4).float() / 0.6
    torch.testing.assert_close(factor, wanted.expand(shape))
    assert 0 < wanted.count_nonzero() < wanted.numel()
    assert not torch.equal(dropped(module, x, seed=4), dropped(module, x))
    assert torch.equal(module.eval()(x), x)  # as torch alone has it


def test_a_rate_of_one_and_of_zero() -> None:
    x = X.clone()
    assert not dropped(Functional(F.dropout, p=1.0), x).any()
    assert not dropped(Functional(F.alpha_dropout, p=1.0), x).any()
    assert torch.equal(dropped(nn.Dropout(0.0), x), x)


def test_in_place() -> None:
    x = X.clone()
    out = dropped(nn.Dropout(0.4, inplace=True), x)
    assert out.data_ptr() == x.data_ptr()
    assert torch.equal(x, dropped(nn.Dropout(0.4), X))


@pytest.mark.parametrize("module", [nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3)])
def test_alpha_dropout_keeps_mean_and_variance(module: nn.Module) -> None:
    x = Random(2).normal((11, 20011))
    x = x if isinstance(module, nn.AlphaDropout) else x.unsqueeze(-1)
    out = dropped(module, x)
    # 20011 masked places: a mean of std 1 / sqrt(20011) = 0.7 %, a variance of at most twice that
    assert abs(out.mean()) < 0.03
    assert abs(out.var() - 1.0) < 0.06
    low = out.min(0).values == out.max(0).values  # a dropped place says the same at every row
    assert abs(low.double().mean() - 0.3) < 4 * (0.21 / 20011) ** 0.5


def test_an_input_without_rows() -> None:
    """Torch takes [channels, length] for one row of Dropout1d."""
    x = Random(3).normal((19, 4))
    assert torch.equal(dropped(nn.Dropout1d(0.4), x), dropped(nn.Dropout1d(0.4), x[None])[0])


# --- recurrent networks --------------------------------------------------------------------------------------------

KINDS: list[tuple[type[nn.RNNBase], dict[str, Any]]] = [
    (nn.LSTM, {}),
    (nn.LSTM, {"bidirectional": True}),
    (nn.GRU, {"bias": False}),
    (nn.RNN, {"nonlinearity": "relu"}),
]


def recurrent(kind: type[nn.RNNBase], **options: Any) -> nn.RNNBase:
    with Random(4).forked():
        return kind(UNITS, 4, 2, dropout=0.4, **options)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_recurrent_layers_by_hand(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    net = recurrent(kind, batch_first=True, **options)
    lower = kind(UNITS, 4, 1, batch_first=True, **options)
    upper = kind(4 * (1 + net.bidirectional), 4, 1, batch_first=True, **options)
    lower.load_state_dict({n: v for n, v in net.state_dict().items() if "_l0" in n})
    upper.load_state_dict({n.replace("_l1", "_l0"): v for n, v in net.state_dict().items() if "_l1" in n})
    with torch.no_grad():
        middle, below = lower(X)
        mask = kept(3, 1, middle.shape[1:], 0.4).float() / 0.6
        wanted, above = upper(middle * mask)
    found, state = dropped(net, X)
    torch.testing.assert_close(found, wanted)
    for one, low, high in zip(*((s if isinstance(s, tuple) else (s,)) for s in (state, below, above)), strict=True):
        torch.testing.assert_close(one, torch.cat([low, high]))


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_recurrent_layouts_agree(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    net, timely = recurrent(kind, batch_first=True, **options), recurrent(kind, **options)
    wanted, state = dropped(net, X)
    torch.testing.assert_close(dropped(timely, X.transpose(0, 1))[0].transpose(0, 1), wanted)
    lengths = [7, 5, 5, 3, 2]
    packed, last = dropped(net, pack_padded_sequence(X, lengths, batch_first=True))
    padded, _ = pad_packed_sequence(packed, batch_first=True)
    for k, length in enumerate(lengths):
        alone, _ = dropped(net, X[k : k + 1, :length])
        torch.testing.assert_close(padded[k, :length], alone[0])
    first = state[0] if isinstance(state, tuple) else state
    assert first.shape == (last[0] if isinstance(last, tuple) else last).shape


# --- attention -----------------------------------------------------------------------------------------------------


def attention(dropout: float = 0.3) -> nn.MultiheadAttention:
    with Random(5).forked():
        return nn.MultiheadAttention(UNITS, 2, dropout, batch_first=True)


def test_the_two_ways_of_attention_agree() -> None:
    """With weights wanted torch forms them itself, without it calls the fused kernel: the same masks in both."""
    net = attention()
    wanted, _ = dropped(net, X, X, X)
    found = dropped(Functional(lambda x: net(x, x, x, need_weights=False)[0]), X)
    torch.testing.assert_close(found, wanted)
    assert (net.eval()(X, X, X)[0] - wanted).abs().max() > 0.01


@pytest.mark.parametrize("weights", [True, False])
def test_attention_does_not_feel_rows_or_padding(weights: bool) -> None:
    net = attention()

    def forward(x: Tensor, hidden: Tensor | None = None) -> Tensor:
        return net(x, x, x, key_padding_mask=hidden, need_weights=weights)[0]

    wanted = dropped(Functional(forward), X)
    torch.testing.assert_close(dropped(Functional(forward), X[2:3]), wanted[2:3])
    longer = torch.cat([X, Random(6).normal((ROWS, 4, UNITS))], 1)
    hidden = (torch.arange(TIMES + 4) >= TIMES).expand(ROWS, -1)
    torch.testing.assert_close(dropped(Functional(forward), longer, hidden)[:, :TIMES], wanted)


def test_the_fast_path_of_encoders_is_left() -> None:
    with Random(7).forked():
        net = nn.TransformerEncoder(nn.TransformerEncoderLayer(UNITS, 2, 8, 0.2, batch_first=True), 2)
    wanted = dropped(net, X)
    assert not torch.allclose(wanted, dropped(net, X, seed=4), atol=0.01)
    torch.testing.assert_close(dropped(net, X[3:]), wanted[3:])


def test_fused_attention_is_torchs_own_where_nothing_falls_out() -> None:
    """At a rate of 1e-9 four of 2^32 hashes drop: none here, and what is left is the formula."""
    q, k, v = (Random(8).fold(name).normal((ROWS, 4, TIMES, 3)) for name in "qkv")
    seen = torch.rand((TIMES, TIMES), generator=torch.Generator().manual_seed(0)) < 0.6
    seen[2] = False  # a query that sees nothing
    for options in (
        {"is_causal": True},
        {"attn_mask": seen},
        {"attn_mask": Random(9).normal((ROWS, 1, TIMES, TIMES)), "scale": 0.2},
        {},
    ):
        wanted = F.scaled_dot_product_attention(q, k, v, **options)  # type: ignore[arg-type]
        found = dropped(Functional(F.scaled_dot_product_attention, dropout_p=1e-9, **options), q, k, v)
        torch.testing.assert_close(found, wanted)
    wanted = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    grouped = Functional(F.scaled_dot_product_attention, dropout_p=1e-9, enable_gqa=True)
    torch.testing.assert_close(dropped(grouped, q, k[:, :2], v[:, :2]), wanted)


# --- what stays off, and what is put back --------------------------------------------------------------------------


def test_what_the_user_left_in_evaluation_mode_stays_off() -> None:
    net = nn.Sequential(nn.Linear(UNITS, UNITS), nn.Dropout(0.4), nn.LSTM(UNITS, 4, 2, dropout=0.4, batch_first=True))
    for silent in (net[1], net[2]):
        silent.eval()
    network = Network(net)
    with torch.inference_mode(), masks(network, torch.tensor(0)) as mode:
        found = net(X)[0]
    assert mode is not None
    assert not mode.found
    assert (net[1].p, net[2].dropout) == (0.4, 0.4)
    with torch.no_grad():
        torch.testing.assert_close(found, net.eval()(X)[0])


def test_a_fault_leaves_nothing_behind() -> None:
    net = nn.Sequential(nn.Linear(UNITS, UNITS), nn.Dropout(0.4))
    net[1].eval()
    seen = []

    def fails() -> None:
        seen.append(net[1].p)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"), masks(Network(net), torch.tensor(0)):
        fails()
    assert (seen, net[1].p) == ([0.0], 0.4)
    assert (net.training, net[1].training) == (True, False)
    assert torch.equal(F.dropout(X, 0.4, False), X)


def test_counting_draws_nothing_else() -> None:
    net = nn.Sequential(nn.Linear(UNITS, UNITS), nn.Dropout(0.4), nn.Dropout(0.0), nn.LSTM(UNITS, 4, 2, dropout=0.4))
    net.append(Functional(lambda x: attention().train()(x[0][..., :1].repeat(1, 1, 6), X, X)[0]))
    with Random(1).forked():
        wanted = net(X)
    with Random(1).forked(), Dropouts(None) as mode:
        found = net(X)
    assert torch.equal(found, wanted)
    assert mode.found == {"dropout": 2, "lstm": 1}
    with Dropouts(None) as mode:
        net.eval()(X)
    assert mode.found == {"dropout": 1}  # attention made anew in training mode
