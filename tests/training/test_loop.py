"""The loop: what it counts, when it stops, saves and speaks, and what it leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.testing.worlds import Overflowing, batch_norm_network, inputs, labels, plain_network
from posterity.training import loop
from posterity.tree import member

X = inputs()
Y = labels(X)


def fit(net: nn.Module | None = None, **options: Any) -> po.BayesianModel:
    options = {"data": (X, Y), "batch_size": 7, "epochs": 3, **options}
    data = options.pop("data")
    if isinstance(data, DataLoader):
        options.pop("batch_size")
    return po.fit(net or plain_network(), data, **options)


def test_a_line_of_history_is_the_mean_over_an_epochs_steps() -> None:
    """In a full batch, the NLL before each step; by the network as it was."""
    rows: list[dict[str, Any]] = []
    model = fit(batch_size=23, callbacks=[rows.append], validation=(X[:7], Y[:7]))
    assert rows == list(model.history)
    assert [list(row) for row in rows] == [
        ["stage", "epoch", "step", "nll", "gradient_norm", "val_nll", "skipped", "left_out"]
    ] * 3
    assert [(row["stage"], row["epoch"], row["step"]) for row in rows] == [("map", 0, 1), ("map", 1, 2), ("map", 2, 3)]
    with torch.no_grad():
        before = nn.functional.cross_entropy(plain_network()(X), Y)
    assert rows[0]["nll"] == pytest.approx(float(before), rel=1e-5)
    log_probs = model.predict(X[:7]).log_probs
    assert rows[-1]["val_nll"] == pytest.approx(-float(log_probs[range(7), Y[:7]].mean()), rel=1e-5)
    rows[0]["nll"] = 0.0
    assert model.history[0]["nll"] > 0, "a callback is given a copy"


def test_the_bound_of_an_epoch_adds_up() -> None:
    model = fit(method=po.MeanFieldVI(), data_weight=1.7)
    for row in model.history:
        assert row["elbo"] == pytest.approx(-1.7 * 23 * row["nll"] - row["kl"], rel=1e-12)


def test_history_becomes_a_frame() -> None:
    frame = fit().history.to_frame()
    assert list(frame["epoch"]) == [0, 1, 2]
    assert frame["nll"].iloc[2] < frame["nll"].iloc[0]


@pytest.mark.parametrize(("options", "steps", "epochs"), [({"steps": 10}, 10, 3), ({"epochs": 2}, 8, 2), ({}, 40, 10)])
def test_how_long_a_fit_is(options: dict[str, Any], steps: int, epochs: int) -> None:
    """23 rows in batches of 7 are 4 steps an epoch; 10 epochs unless told otherwise."""
    model = fit(**{"epochs": None, **options})
    assert (model.history[-1]["step"], len(model.history)) == (steps, epochs)


def test_accumulated_batches_are_one_step() -> None:
    """4 batches are 3 + 1, hence two steps an epoch."""
    model = fit(accumulation=3)
    assert model.history[-1]["step"] == 6
    assert model.snapshots[0].batch_size == 2, "the last step of an epoch saw the 2 rows that were left"


def test_patience_counts_epochs_without_a_better_member() -> None:
    """Steps of 2 make the validation worse at once; a member that still gains keeps an ensemble going."""
    model = fit(method=po.MAP(learning_rate=2.0), validation=(X, Y), patience=2, epochs=50)
    nlls = [row["val_nll"] for row in model.history]
    best = nlls.index(min(nlls))
    assert len(nlls) == best + 3 < 50
    log_probs = model.predict(X).log_probs
    assert -float(log_probs[range(23), Y].mean()) == pytest.approx(min(nlls), rel=1e-5), "the best weights are returned"


def test_validation_is_in_evaluation_mode_and_changes_nothing() -> None:
    """The running statistics and the next steps are those of a fit without validation."""
    last = po.MAP(keep_best=False)
    alone = fit(batch_norm_network(), method=last)
    beside = fit(batch_norm_network(), method=last, validation=(5.0 + X, Y))
    one, two = alone.posterior.tensors(), beside.posterior.tensors()
    assert all(one[name].equal(two[name]) for name in two)


def test_the_nll_of_members_on_validation_data() -> None:
    problem = NetworkProblem(batch_norm_network(), po.Categorical(classes=(0, 1, 2, 3, 4)), data_size=23)
    thetas = [problem.start(), {name: leaf + 0.1 for name, leaf in problem.start().items()}]
    stacked = {name: torch.stack([theta[name] for theta in thetas]) for name in thetas[0]}
    stream = po.training.loop.Source(DataLoader(TensorDataset(X, Y), batch_size=5), problem.reader, "validation")
    found = loop.validation_nll(problem, stacked, stream, Random(0))
    for k in range(2):
        with torch.no_grad():
            wanted = -problem.row_log_probs(thetas[k], problem.outputs(member(stacked, k), X), Y).mean()
        assert float(found[k]) == pytest.approx(float(wanted), rel=1e-6)


def test_what_cannot_be_trained_on_is_left_out_and_counted() -> None:
    """Void targets; and a single row, where a layer normalises batches."""
    y = Y.clone()
    y[:7] = -100
    data = DataLoader(TensorDataset(X, y), batch_size=7)
    model = fit(data=data)
    assert [row["left_out"] for row in model.history] == [1, 1, 1]
    assert model.history[-1]["step"] == 9
    assert model.problem.data_size == 23, "N counts rows, also those without a target"
    one = DataLoader(TensorDataset(X[:22], Y[:22]), batch_size=7)
    assert [row["left_out"] for row in fit(batch_norm_network(), data=one).history] == [1, 1, 1]
    assert [row["left_out"] for row in fit(plain_network(), data=one).history] == [0, 0, 0]


def test_an_epoch_of_single_rows_says_so() -> None:
    with pytest.raises(po.DataError, match="every batch has one row"):
        fit(batch_norm_network(), batch_size=1)
    first = DataLoader(
        TensorDataset(X, Y), batch_sampler=[[0], [1, 2, 3], *([i, i + 1] for i in range(4, 22, 2)), [22]]
    )
    assert [row["left_out"] for row in fit(batch_norm_network(), data=first).history] == [2, 2, 2]


def test_failures_in_a_row_stop_and_others_are_counted() -> None:
    x = X.clone()
    x[10:20] += 100.0  # ten rows in a row, one by one
    data = DataLoader(TensorDataset(x, Y), batch_size=1)
    with pytest.raises(po.NonFiniteError, match=r"10 steps in a row \(member 0, epoch 0, batch 19\)"):
        fit(Overflowing(5), data=data)
    model = fit(Overflowing(5), data=data, max_failures=11, epochs=2)
    assert [row["skipped"] for row in model.history] == [10, 10]
    with pytest.raises(po.NonFiniteError, match=r"3 steps in a row \(member 0, epoch 0, batch 12\)"):
        fit(Overflowing(5), data=data, max_failures=3)


def test_an_epoch_without_a_finite_step_has_no_nll() -> None:
    model = fit(Overflowing(5), data=(X + 100.0, Y), max_failures=99, epochs=1)
    assert model.history[0]["nll"] != model.history[0]["nll"]
    assert model.history[0]["skipped"] == 4


def test_when_checkpoints_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At the start (a dry run of saving), every so many steps, and after each epoch but the last."""
    written: list[int] = []
    monkeypatch.setattr(loop, "save_checkpoint", lambda folder, tree, meta: written.append(meta["position"]["step"]))
    fit(out=tmp_path / "a", checkpoint_every=3)
    assert written == [0, 3, 4, 6, 8, 9, 12]
    written.clear()
    fit(out=tmp_path / "b")
    assert written == [0, 4, 8]
    written.clear()
    fit()
    assert written == []


def test_nothing_is_said_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    fit()
    assert capfd.readouterr() == ("", "")
    fit(progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "N = 23 rows" in err


class Mode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = batch_norm_network()
        self.seen: set[tuple[bool, bool]] = set()

    def forward(self, x: Tensor) -> Tensor:
        MODES.add((self.training, self.body[1].training))  # type: ignore[index]
        return self.body(x)


MODES: set[tuple[bool, bool]] = set()


def test_modes_in_fit_and_predict() -> None:
    """Training, but for what was left in evaluation mode under a root in training; a root in evaluation mode counts as
    one that was forgotten there; evaluation in validation and prediction.
    """
    for prepare, wanted in [
        (lambda net: net.train(), (True, True)),
        (lambda net: net.eval(), (True, True)),
        (lambda net: net.body[1].eval(), (True, False)),
    ]:
        net = Mode()
        prepare(net)
        MODES.clear()
        model = fit(net)
        assert MODES - {(False, False)} == {wanted}
        MODES.clear()
        model.predict(X)
        assert {(False, False)} == MODES
