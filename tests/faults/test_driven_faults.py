"""Optimizers in loops that are not ours, and what others leave behind in weights, files and memory."""

from __future__ import annotations

import gc
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.interfaces.driven import Driven
from posterity.random import Random
from posterity.tree import Tree

X = Random(0).fold("x").normal((24, 3))
Y = (X[:, 0] > 0).long()
PARTS = list(torch.arange(24).split(8))


def network() -> nn.Module:
    with Random(0).forked():
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def begun(net: nn.Module, **options: Any) -> Driven:
    driven = Driven(net, po.IVON(), seed=3, **options)
    driven.begin(po.Plan(8, 6, 3), rows=24)
    return driven


def backward(driven: Driven, rows: Tensor) -> Tensor:
    loss = driven.loss(driven.network(X[rows]), Y[rows])
    loss.backward()
    return loss


def weights_of(driven: Driven) -> Tree:
    return {name: one.detach().clone() for name, one in driven.network.named_parameters()}


def same(one: Tree, other: Tree) -> bool:
    return all(leaf.equal(other[name]) for name, leaf in one.items())


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_a_network_that_moves_after_its_optimizer_was_made_is_trained_where_it_is(likelihood: str) -> None:
    """team-approx-bayes/ivon #4: another dtype here, another device where there is one."""
    targets = Y if likelihood == "categorical" else 2.0 * X[:, :2].double()
    known = po.Categorical() if likelihood == "categorical" else po.Gaussian().surveyed([targets])
    driven = Driven(network(), po.IVON(), likelihood=known, seed=3)
    driven.network.double()
    driven.begin(po.Plan(8, 3, 3), rows=24)
    before = weights_of(driven)
    for rows in PARTS:
        driven.draw()
        driven.loss(driven.network(X[rows].double()), targets[rows]).backward()
        driven.optimizer.step()
    after, mean = weights_of(driven), driven.model().posterior.mean()
    assert {leaf.dtype for leaf in after.values()} == {torch.float64}
    assert not any(leaf.equal(before[name]) for name, leaf in after.items())
    assert same(after, mean)


@pytest.mark.parametrize("at", ["forward", "loss", "backward"])
@pytest.mark.parametrize("way", ["closure", "loop"])
def test_an_error_inside_of_a_step_leaves_the_mean_weights_and_nothing_of_the_step(way: str, at: str) -> None:
    """team-approx-bayes/ivon #4, #5"""

    def failing(driven: Driven, rows: Tensor) -> None:
        outputs = driven.network(X[rows])
        if at != "forward":
            loss = driven.loss(outputs, Y[rows])
            if at == "backward":
                loss.backward()
        raise ZeroDivisionError

    def fail(driven: Driven, rows: Tensor) -> None:
        if way == "closure":
            driven.optimizer.step(lambda: failing(driven, rows))
        try:
            driven.draw()
            failing(driven, rows)
        except ZeroDivisionError:
            driven.give_up()
            raise

    driven, reference = begun(network()), begun(network())
    for step, rows in enumerate(PARTS):
        if step == 1:
            before = weights_of(driven)
            with pytest.raises(ZeroDivisionError):
                fail(driven, rows)
            assert same(weights_of(driven), before)
        driven.optimizer.step(lambda rows=rows: backward(driven, rows))
        reference.draw()
        backward(reference, rows)
        reference.optimizer.step()
    assert same(driven.model().posterior.tensors(), reference.model().posterior.tensors())


def test_a_step_comes_after_a_loss() -> None:
    driven = begun(network())
    with pytest.raises(po.CompatibilityError, match=r"no loss came from driven\.loss since the last step"):
        driven.optimizer.step()


def scaled_loop(factor: float | None, broken: int | None = None) -> tuple[po.BayesianModel, Any]:
    """Six steps of four parts each under bfloat16, `factor` times the loss; one step whose loss is infinite."""
    driven = begun(network())
    scaler = torch.amp.GradScaler("cpu", init_scale=factor or 1.0, enabled=factor is not None)
    for step in range(6):
        driven.draw()
        for rows in PARTS[step % 3].split(2):
            with torch.autocast("cpu", torch.bfloat16):
                outputs = driven.network(X[rows])
            loss = driven.loss(outputs, Y[rows]) * (torch.inf if step == broken else 1.0)
            scaler.scale(loss).backward()
        scaler.step(driven.optimizer)
        scaler.update()
    driven.end_epoch()
    return driven.model(), scaler


def test_a_scaled_loss_and_accumulated_parts_change_nothing() -> None:
    """kohya-ss/sd-scripts #2129: autocast, GradScaler and four parts a step; a power of two scales exactly."""
    plain, _ = scaled_loop(None)
    scaled, scaler = scaled_loop(2.0**16)
    assert scaler.get_scale() == 2.0**16
    assert same(plain.posterior.tensors(), scaled.posterior.tensors())


def test_a_step_that_overflows_under_a_scaler_is_skipped_counted_and_forgotten() -> None:
    plain, _ = scaled_loop(None, broken=2)
    scaled, scaler = scaled_loop(2.0**16, broken=2)
    assert scaler.get_scale() == 2.0**15
    assert [line["skipped"] for line in scaled.history] == [1]
    assert same(plain.posterior.tensors(), scaled.posterior.tensors())


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.mean.expand(len(x), 1)


@pytest.mark.parametrize("rows", [25, 400])
def test_the_number_of_rows_needs_no_setting(rows: int) -> None:
    """team-approx-bayes/ivon #3: the std of a mean is 1 / sqrt(N), whatever N, and the Hessian is off its start of 0.3."""
    y = Random(1).normal((rows,)) + 0.5
    model = po.fit(
        Mean, (y[:, None], y), po.Gaussian(std=1.0, standardize=False), po.IVON(), prior=10.0, steps=600, batch_size=25,
        seed=0, progress=False,
    )  # fmt: skip
    assert model.posterior.moments()["mean"].std.item() == pytest.approx(rows**-0.5, rel=0.15)


def test_a_parameter_keeps_a_storage_of_its_own() -> None:
    driven = begun(network())
    driven.draw()
    backward(driven, PARTS[0])
    driven.optimizer.step()
    for parameter in driven.network.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.nbytes
    one, fresh = io.BytesIO(), io.BytesIO()
    torch.save(driven.network[2], one)
    torch.save(nn.Linear(8, 2), fresh)
    assert len(one.getvalue()) <= len(fresh.getvalue()) + 64


class Wide(nn.Module):
    """1000 classes of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(1, 1000)

    def forward(self, x: Tensor) -> Tensor:
        ROWS.append(len(x))
        return self.body(x)


ROWS: list[int] = []


@pytest.mark.parametrize(("keep", "bytes_of_a_row"), [(None, 8008), ("draws", 8008 + 50 * 4000)])
def test_memory_is_that_of_a_block_and_not_that_of_all_logits(keep: str | None, bytes_of_a_row: int) -> None:
    """transformers #8476, #12878, #15466, #10722: 50 draws of 1000 classes, though the inputs are one number a row."""
    x, y = torch.zeros(24, 1), torch.arange(24)
    model = po.fit(Wide, (x, y % 3), po.Categorical(classes=tuple(range(1000))), po.MeanFieldVI(), steps=1, seed=0,
                   progress=False)  # fmt: skip
    whole = model.predict(x, draws=50, batch_size=2)
    ROWS.clear()
    blocks = model.predict_blocks(x, draws=50, batch_size=2, max_memory=4 * bytes_of_a_row, keep=keep)
    first = next(blocks)
    assert sum(ROWS) == 4 * 50  # rows of the first block, draw by draw
    assert torch.cat([first.probs, *(pred.probs for pred in blocks)]).equal(whole.probs)


def live() -> int:
    gc.collect()
    return sum(type(one) is Tensor for one in gc.get_objects())


def test_predictions_keep_no_graph_and_leave_nothing_behind() -> None:
    """bayesiains/nflows #10: 200 predictions, of which none is held."""
    model = po.fit(lambda: nn.Linear(3, 2), (X, Y), "categorical", po.MeanFieldVI(), steps=1, seed=0, progress=False)
    pred = model.predict(X, draws=2, keep="draws")
    assert not any(leaf.requires_grad for leaf in (pred.probs, pred.epistemic, pred.per_draw))
    model.predict(X, via="propagation")
    del pred
    before = live()
    for _ in range(100):
        model.predict(X, draws=2)
        model.predict(X, via="propagation")
    assert live() == before
