"""Padded tokens of torch's transformer: training and every way of predicting give them the same values, in any batch."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest
import torch
from torch import Tensor, nn
from torch.backends import mha

import posterity as po
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.point import Point
from posterity.prediction.propagation.compare import compared
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.prediction.propagation.settings import Propagation
from posterity.prediction.propagation.value import MeanVar
from posterity.problem.fused import unfused
from posterity.random import Random
from posterity.tree import Tree

ROWS, TOKENS, WIDTH = 5, 7, 6
LENGTHS = torch.tensor([3, 7, 5, 6, 4])
PADDED = torch.arange(TOKENS) >= LENGTHS[:, None]


class Averaged(nn.Module):
    """The average over all tokens, padded ones too."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 11, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        return self.head(self.encoder(x, src_key_padding_mask=padded).mean(1))


def problem() -> po.NetworkProblem:
    with Random(0).fold("network").forked():
        return po.NetworkProblem(Averaged(), "categorical", data_size=ROWS)


def inputs() -> tuple[Tensor, Tensor]:
    return Random(0).fold("x").normal((ROWS, TOKENS, WIDTH)), PADDED


def means(own: po.NetworkProblem) -> Tree:
    return {name: leaf.detach() for name, leaf in own.network.trainable.items()}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_torch_itself_does_not() -> None:
    net = problem().network.module
    with torch.no_grad():
        trained, evaluated = net.train()(*inputs()), net.eval()(*inputs())
    assert (trained - evaluated).abs().max() > 0.01  # what the others would fail by


def test_every_way_takes_the_values_of_training() -> None:
    own = problem()
    weights, x = means(own), inputs()
    with torch.no_grad():
        trained = own.outputs(weights, x, train=True).softmax(-1)
        propagated = propagate(own, weight_values(Diagonal(weights, {"head.bias": torch.zeros(3)})), x)
    tolerance = {"rtol": 0, "atol": 1e-6}  # of float32 probabilities
    torch.testing.assert_close(propagated.mean.softmax(-1), trained, **tolerance)
    model = po.BayesianModel(own, Point(weights))
    for via in ("mean", "draws", "propagation"):
        torch.testing.assert_close(model.predict(x, via=via).probs.float(), trained, **tolerance)


def test_a_row_does_not_depend_on_where_others_are_padded() -> None:
    own = problem()
    model, (x, padded) = po.BayesianModel(own, Point(means(own))), inputs()
    elsewhere = padded.clone()
    elsewhere[0] = torch.arange(TOKENS) < 2  # at its front: torch takes another path for such a batch
    with_front = model.predict((x, elsewhere), via="mean").probs
    torch.testing.assert_close(with_front[1:], model.predict((x, padded), via="mean").probs[1:], rtol=0, atol=1e-6)


def test_a_posterior_over_the_last_layer_alone() -> None:
    own = problem()
    weights, x = means(own), inputs()
    posterior = Diagonal(weights, {"encoder.layers.1.linear2.weight": torch.full((WIDTH, 11), 0.05)})
    found = propagate(own, weight_values(posterior), x)
    assert isinstance(found, MeanVar)
    assert (found.var > 0).all()
    kinds = [row.kind for row in compared(own, posterior, x, Propagation(), draws=16)]
    assert kinds == ["Linear", "Dropout", "LayerNorm", "Linear", "Averaged"]


def test_the_setting_is_put_back() -> None:
    own, seen = problem(), []
    handle = own.network.module.head.register_forward_pre_hook(lambda *call: seen.append(mha.get_fastpath_enabled()))
    for before in (True, False):
        mha.set_fastpath_enabled(before)
        try:
            own.outputs(means(own), inputs())
            with pytest.raises(ZeroDivisionError), own.network.session(train=False):
                raise ZeroDivisionError
            after = mha.get_fastpath_enabled()
        finally:
            mha.set_fastpath_enabled(True)
        assert after is before
    handle.remove()
    assert seen == [False, False]


def test_threads_leave_in_any_order() -> None:
    entered, left = Barrier(2), Barrier(2)
    seen = []

    def first() -> None:
        with unfused():
            entered.wait(5)
        seen.append(mha.get_fastpath_enabled())  # the other still needs it
        left.wait(5)

    thread = Thread(target=first)
    thread.start()
    with unfused():
        entered.wait(5)
        left.wait(5)
    thread.join(5)
    assert seen == [False]
    assert mha.get_fastpath_enabled()
