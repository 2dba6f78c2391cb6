"""Monte Carlo dropout: training as by MAP, draws that are the network with fixed masks, and networks that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import posterity as po
from posterity.errors import CompatibilityError, PosterityWarning
from posterity.problem.dropout import kept
from posterity.random import Random
from posterity.testing.runs import network_problem, rows_for, walk
from posterity.tree import BUFFER, MASKS

ROWS, FEATURES, CLASSES, RATE = 41, 3, 5, 0.3
X = Random(1).normal((ROWS, FEATURES))
Y = torch.arange(ROWS).remainder(CLASSES)


class Odd(nn.Module):
    """Batch normalisation, a frozen layer, one that nothing uses, and two dropouts."""

    def __init__(self) -> None:
        super().__init__()
        with Random(0).forked():
            self.first, self.norm, self.frozen = nn.Linear(FEATURES, 7), nn.BatchNorm1d(7), nn.Linear(7, 7)
            self.unused, self.head = nn.Linear(2, 3), nn.Linear(7, CLASSES)
        self.drop = nn.Dropout(RATE)
        self.frozen.requires_grad_(False)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.first(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(torch.tanh(self.frozen(self.drop(self.hidden(x)))), RATE, self.training))


def test_training_is_maximum_a_posteriori() -> None:
    def end(method: po.MAP) -> dict[str, Tensor]:
        problem = network_problem(Odd(), X, Y, "categorical")
        *_, last = walk(method, problem, rows_for(X, Y), 7)
        return last.stage.posterior(last.state).tensors()

    found, wanted = end(po.MCDropout()), end(po.MAP())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(leaf, wanted[name]) for name, leaf in found.items())


@pytest.mark.parametrize("members", [1, 2])
def test_a_draw_is_the_network_with_its_masks(members: int) -> None:
    """Written out with torch alone: each member has its own weights and running statistics, frozen weights stay."""
    net = Odd()
    model = po.fit(net, (X, Y), "categorical", po.MCDropout(members=members), epochs=3, batch_size=11)
    said = model.predict(X, draws=4, keep="draws").per_draw  # type: ignore[attr-defined]
    drawn = list(model.posterior.draws(4, Random(0).fold("draw")))
    assert len({float(draw["first.bias"][0]) for draw in drawn}) == members
    for draw, found in zip(drawn, said, strict=True):
        plain = Odd().eval()
        state = {name.removeprefix(BUFFER): leaf for name, leaf in draw.items() if name != MASKS}
        frozen = {f"frozen.{name}": leaf for name, leaf in net.frozen.named_parameters()}
        plain.load_state_dict({**state, **frozen})
        masks = [kept(int(draw[MASKS]), call, (1, 7), RATE).float() / (1 - RATE) for call in (1, 2)]
        with torch.no_grad():
            wanted = plain.head(torch.tanh(plain.frozen(plain.hidden(X) * masks[0])) * masks[1]).softmax(-1)
        torch.testing.assert_close(found, wanted)
        assert torch.equal(draw["unused.weight"], net.unused.weight) or members == 2
    assert not torch.allclose(said[0], said[members], atol=0.01)  # the same weights, other masks


def test_the_mean_predicts_without_masks() -> None:
    net = Odd()
    model = po.fit(net, (X, Y), "categorical", po.MCDropout(), epochs=3)
    plain = model.to_module(Odd()).eval()
    with torch.no_grad():
        torch.testing.assert_close(model.predict(X, via="mean").probs, plain(X).softmax(-1))  # type: ignore[attr-defined]
    assert model.predict(X, via="mean").epistemic.abs().max() < 1e-6  # type: ignore[attr-defined]
    assert model.predict(X).epistemic.min() > 1e-4  # type: ignore[attr-defined]


def test_it_is_kept(tmp_path: Path) -> None:
    model = po.fit(Odd(), (X, Y), "categorical", po.Ensemble(po.MCDropout(), 2), epochs=2, out=tmp_path)
    again = po.load(tmp_path, Odd())
    assert again.settings["method"] == "mc-dropout-ensemble"
    assert torch.equal(again.predict(X).probs, model.predict(X).probs)  # type: ignore[attr-defined]
    further = po.fit(Odd(), (X, Y), "categorical", po.MCDropout(members=2), epochs=1, start=model)
    assert further.predict(X[:3]).probs.shape == (3, CLASSES)  # type: ignore[attr-defined]


def test_masks_are_the_same_however_long_a_sequence_is_padded() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with Random(2).forked():
                self.embedding = nn.Embedding(11, 6)
                layer = nn.TransformerEncoderLayer(6, 2, 8, 0.2, batch_first=True)
                self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
                self.head = nn.Linear(6, CLASSES)

        def forward(self, tokens: Tensor) -> Tensor:
            seen = (tokens > 0).unsqueeze(-1)
            states = self.body(self.embedding(tokens), src_key_padding_mask=tokens == 0)
            return self.head((states * seen).sum(1) / seen.sum(1))

    tokens = torch.randint(1, 11, (ROWS, 7), generator=torch.Generator().manual_seed(0))
    model = po.fit(Reader(), (tokens, Y), "categorical", po.MCDropout(), epochs=1)
    wanted = model.predict(tokens, draws=3).probs  # type: ignore[attr-defined]
    longer = torch.cat([tokens, torch.zeros(ROWS, 4, dtype=torch.int64)], 1)
    torch.testing.assert_close(model.predict(longer, draws=3).probs, wanted)  # type: ignore[attr-defined]


# --- what it refuses -----------------------------------------------------------------------------------------------


class Body(nn.Module):
    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.own = forward
        for name, module in modules.items():
            self.add_module(name, module)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.own(self, x))


def fitted(net: nn.Module) -> po.BayesianModel:
    return po.fit(net, (X, Y), "categorical", po.MCDropout(), epochs=1)


def test_networks_without_dropout_are_refused() -> None:
    silent = nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Dropout(0.3))
    silent[1].eval()
    for net in (nn.Linear(FEATURES, CLASSES), nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Dropout(0.0)), silent):
        with pytest.raises(CompatibilityError, match="nn.Dropout"):
            fitted(net)
    target = po.Density(lambda theta: -theta["x"].square().sum(), {"x": torch.zeros(1)})
    with pytest.raises(CompatibilityError, match="bare density"):
        po.infer(target, po.MCDropout(), 1)


def test_rows_on_another_axis_are_refused() -> None:
    net = Body(lambda self, x: self.drop(x[None].repeat(2, 1, 1)).mean(0), drop=nn.Dropout(0.3))
    with pytest.raises(CompatibilityError, match="batch_first"):
        fitted(net)


def attending(net: nn.Module, x: Tensor) -> Tensor:
    q = x[:, None, :, None]
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3 if net.training else 0.0)[:, 0, :, 0]


def test_dropout_out_of_reach_is_said() -> None:
    with pytest.raises(CompatibilityError, match="cannot reach any dropout"):
        fitted(Body(attending))
    with pytest.warns(PosterityWarning, match="without 1 x scaled_dot_product_attention"):
        fitted(Body(lambda self, x: self.drop(attending(self, x)), drop=nn.Dropout(0.3)))


def test_dropout_that_training_leaves_off_is_said() -> None:
    trunk = Body(lambda self, x: F.dropout(x, 0.3, self.training)).eval()
    with pytest.warns(PosterityWarning, match="also drop by 1 x dropout"):
        fitted(nn.Sequential(trunk, nn.Dropout(0.3)))


def test_epistemic_uncertainty_grows_off_the_data() -> None:
    y = X[:, 0] - X[:, 1] + 0.5 * Random(2).normal((ROWS,))
    with Random(0).forked():
        network = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    method = po.MCDropout(learning_rate=po.Cosine(1e-2))
    model = po.fit(network, (X, y), "gaussian", method, epochs=30, batch_size=8)
    on, off = (model.predict(at, draws=64).epistemic.mean() for at in (X, 4.0 * X))  # type: ignore[attr-defined]
    assert off > 2.0 * on > 0.0
