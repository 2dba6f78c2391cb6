"""Prediction by draws: what may be predicted, in which portions, with which draws."""

from __future__ import annotations

import warnings
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import posterity as po
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.draws import Draws
from posterity.posterior.point import Point
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Reader
from posterity.tree import weights

ROWS, FEATURES, CLASSES, DRAWS = 7, 3, 5, 11


def _x(rows: int = ROWS) -> Tensor:
    return torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    """A linear map that insists on evaluation mode."""

    def __init__(self, *between: nn.Module) -> None:
        super().__init__()
        with po.Random(0).forked():
            self.body, self.between = nn.Linear(FEATURES, CLASSES), nn.Sequential(*between)

    def forward(self, x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        assert not self.training
        return self.between(self.body(x))


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, CLASSES)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.body(a + b)


class Watched(Posterior):
    """Counts the draws that are made."""

    kind = "watched"

    def __init__(self, inner: Posterior) -> None:
        self.inner, self.made = inner, 0

    @property
    def finite(self) -> int | None:
        return self.inner.finite

    def draws(self, n: int | None, random: po.Random) -> Iterator[dict[str, Tensor]]:
        for theta in self.inner.draws(n, random):
            self.made += 1
            yield theta

    def mean(self) -> dict[str, Tensor]:
        return self.inner.mean()

    def moments(self) -> Any:
        return self.inner.moments()

    def tensors(self) -> Any:
        return self.inner.tensors()

    @classmethod
    def from_tensors(cls, tensors: Any, meta: Any) -> Any:
        raise NotImplementedError


def _model(kind: str = "diagonal", net: nn.Module | None = None, **options: Any) -> po.BayesianModel:
    problem = po.NetworkProblem(net or Plain(), "categorical", data_size=ROWS, **options)
    theta = problem.start()
    if kind == "diagonal":
        posterior: Posterior = Diagonal(
            theta, {name: torch.full_like(leaf, 0.3) for name, leaf in weights(theta).items()}
        )
    elif kind == "point":
        posterior = Point(theta)
    else:
        members = [problem.network.reset(theta, po.Random(k)) for k in range(3)]
        posterior = Draws({name: torch.stack([member[name] for member in members]) for name in theta})
    return po.BayesianModel(problem, Watched(posterior), settings={"seed": 4})


def _by_hand(model: po.BayesianModel, x: Tensor, draws: int | None = None, seed: int = 4) -> Tensor:
    """The mean of softmax over the draws, in plain torch."""
    body, total = model.problem.network.module.body, []
    for theta in model.posterior.inner.draws(draws, po.Random(seed).fold("draw")):
        total.append(torch.softmax(x @ theta["body.weight"].T + theta["body.bias"], -1))
    assert isinstance(body, nn.Linear)
    return torch.stack(total).mean(0)


# float32 softmax: a few units of 2^-24
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


# --- draws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draws", [1, 2, DRAWS])
def test_the_prediction_is_the_mean_over_the_draws(draws: int) -> None:
    model = _model()
    pred = model.predict(_x(), draws=draws)
    assert torch.allclose(pred.probs.float(), _by_hand(model, _x(), draws), **CLOSE)
    assert pred.draws == model.posterior.made == draws


def test_a_continuous_posterior_gives_32_draws_unless_told() -> None:
    assert _model().predict(_x()).draws == 32


def test_a_finite_posterior_gives_all_that_it_has_and_no_more() -> None:
    model = _model("ensemble")
    pred = model.predict(_x())
    assert pred.draws == 3
    assert torch.allclose(pred.probs.float(), _by_hand(model, _x()), **CLOSE)
    assert model.predict(_x(), draws=2).draws == 2
    with pytest.warns(po.PosterityWarning, match="11 draws were asked for and this posterior has 3"):
        capped = model.predict(_x(), draws=DRAWS)
    assert capped.draws == 3
    assert torch.equal(capped.probs, pred.probs)


def test_draws_are_shared_by_the_rows() -> None:
    """A row's answer does not depend on the rows beside it: not on their number, their order or the batch size."""
    model, x = _model(), _x(23)
    whole = model.predict(x, draws=DRAWS).probs
    order = torch.arange(22, -1, -1)
    assert torch.allclose(model.predict(x[order], draws=DRAWS).probs[order], whole, **CLOSE)
    for size in (1, 4, 23, 100):
        assert torch.allclose(model.predict(x, draws=DRAWS, batch_size=size).probs, whole, **CLOSE)
    assert torch.allclose(model.predict(x[5:6], draws=DRAWS).probs[0], whole[5], **CLOSE)


def test_draws_come_from_the_seed() -> None:
    model = _model()
    one, two = model.predict(_x(), draws=DRAWS), model.predict(_x(), draws=DRAWS)
    assert torch.equal(one.probs, two.probs)
    other = model.predict(_x(), draws=DRAWS, seed=5)
    assert not torch.equal(one.probs, other.probs)
    assert torch.allclose(other.probs.float(), _by_hand(model, _x(), DRAWS, seed=5), **CLOSE)


def test_nothing_global_moves_and_nothing_is_left_behind() -> None:
    net = Plain(nn.Dropout(0.5), nn.BatchNorm1d(CLASSES))
    model, state = _model(net=net), torch.get_rng_state()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        one = model.predict(_x(), draws=2)
    assert torch.equal(model.predict(_x(), draws=2).probs, one.probs)
    assert torch.equal(torch.get_rng_state(), state)
    assert net.training
    assert int(net.between[1].num_batches_tracked) == 0


def test_the_results_are_ordinary_tensors() -> None:
    """Made in inference mode they could neither be written to nor enter a graph."""
    for kind, options in (("diagonal", {"keep": "draws"}), ("point", {})):
        pred = _model(kind).predict(_x(), **options)
        found = [value for value in vars(pred).values() if isinstance(value, Tensor)]
        assert len(found) >= 4
        assert not any(value.is_inference() for value in found)


# --- ways --------------------------------------------------------------------------------------------------------------


def test_via_mean_is_one_pass_with_the_mean_weights() -> None:
    model = _model()
    pred = model.predict(_x(), via="mean")
    theta = model.posterior.mean()
    wanted = torch.softmax(_x() @ theta["body.weight"].T + theta["body.bias"], -1)
    assert torch.allclose(pred.probs.float(), wanted, **CLOSE)
    assert model.posterior.made == 0
    assert pred.via == "mean"
    assert float(pred.epistemic.abs().max()) == 0.0


def test_a_point_goes_by_its_mean_and_knows_no_epistemic_uncertainty() -> None:
    pred = _model("point").predict(_x())
    assert (pred.via, pred.draws) == ("mean", 1)
    assert float(pred.epistemic.abs().max()) == 0.0
    assert torch.equal(_model("point").predict(_x(), via="draws").probs, pred.probs)


def test_the_mean_of_an_ensemble_is_no_network() -> None:
    with pytest.raises(po.CompatibilityError, match="average of an ensemble's weights is no network: use via='draws'"):
        _model("ensemble").predict(_x(), via="mean")


def test_kept_draws_average_to_the_prediction() -> None:
    pred = _model().predict(_x(), draws=DRAWS, keep="draws")
    assert pred.per_draw.shape == (DRAWS, ROWS, CLASSES)
    assert torch.allclose(pred.per_draw.mean(0), pred.probs.float(), **CLOSE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"via": "median"}, "via must be 'draws', 'mean' or 'propagation', got 'median'"),
        ({"keep": "all"}, "keep must be 'draws' or nothing, got 'all'"),
        ({"draws": 0}, "draws must be at least 1, got 0"),
    ],
)
def test_refuses_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(po.CompatibilityError, match=words):
        _model().predict(_x(), **options)


# --- blocks ------------------------------------------------------------------------------------------------------------


def test_blocks_bound_the_rows_held_and_change_nothing() -> None:
    model, x = _model(), _x(23)
    whole = model.predict(x, draws=DRAWS)
    assert model.posterior.made == DRAWS
    model.posterior.made = 0
    row = (CLASSES + 1) * 8  # bytes that are kept: log-probabilities and an entropy; of inputs there are fewer
    blocks = model.predict(x, draws=DRAWS, batch_size=2, max_memory=4 * row)  # two batches of two rows
    assert model.posterior.made == 6 * DRAWS  # 23 rows in blocks of 4
    assert torch.allclose(blocks.probs, whole.probs, **CLOSE)
    model.posterior.made = 0
    model.predict(x, draws=DRAWS, batch_size=2, max_memory=1)  # a block holds one batch at least
    assert model.posterior.made == 12 * DRAWS


def test_blocks_are_read_as_they_are_needed() -> None:
    read: list[int] = []

    def batches() -> Iterator[Tensor]:
        for i in range(5):
            read.append(i)
            yield _x(2)

    stream = _model().predict_blocks(batches(), draws=2, max_memory=1)
    assert next(stream).probs.shape == (2, CLASSES)
    assert read == [0, 1]  # the second did not fit any more
    assert len(list(stream)) == 4


def test_a_row_of_a_stateful_network_does_not_see_the_draw_before() -> None:
    """In-place forwards write into copies of the batch, which every draw reads again."""

    class Spoils(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mul_(2.0))

    x = _x()
    pred = _model(net=Spoils()).predict(x, draws=DRAWS)
    assert torch.equal(x, _x())
    assert torch.allclose(pred.probs, _model().predict(2.0 * x, draws=DRAWS).probs, **CLOSE)


# --- inputs ------------------------------------------------------------------------------------------------------------


class Rows(Dataset):
    def __init__(self, named: bool) -> None:
        self.named = named

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        x = _x()[index]
        return {"x": x, "labels": index % CLASSES} if self.named else (x, index % CLASSES)


FORMS: dict[str, Any] = {
    "array": lambda: _x().numpy(),
    "float64 array": lambda: _x().double().numpy(),
    "list": lambda: _x().tolist(),
    "data set": lambda: TensorDataset(_x()),
    "labelled data set": lambda: Rows(named=False),
    "loader": lambda: DataLoader(TensorDataset(_x()), batch_size=4),
    "labelled loader": lambda: DataLoader(Rows(named=False), batch_size=4),
    "batches": lambda: [_x()[:4], _x()[4:]],
    "labelled batches": lambda: [(_x()[:4], torch.zeros(4)), (_x()[4:], torch.zeros(3))],
    "iterator": lambda: iter([_x()[:4], _x()[4:]]),
}


@pytest.mark.parametrize("form", FORMS)
def test_inputs_of_every_form(form: str) -> None:
    model = _model()
    assert torch.allclose(model.predict(FORMS[form](), draws=2).probs, model.predict(_x(), draws=2).probs, **CLOSE)


def test_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    model = _model()
    frame = pandas.DataFrame(_x().numpy(), columns=["a", "b", "c"], index=range(10, 17))
    assert torch.equal(model.predict(frame, draws=2).probs, model.predict(_x(), draws=2).probs)
    mixed = frame.assign(count=np.arange(ROWS), flag=True)[["count", "flag", "a"]]
    assert model.predict(mixed, draws=2).probs.shape == (ROWS, CLASSES)
    with pytest.raises(po.DataError, match=r"columns \['city'\] are not numbers; encode or drop them"):
        model.predict(frame.assign(city="p"))


@pytest.mark.parametrize("mapping", [dict, UserDict])
def test_a_mapping_with_or_without_its_target(mapping: type) -> None:
    model = _model(net=ByName(), reader=Reader(target="labels"))
    parts = {"a": _x().numpy(), "b": _x()}
    wanted = model.predict({"a": 2 * _x(), "b": 0 * _x()}, draws=2).probs
    assert torch.allclose(model.predict(mapping(parts), draws=2).probs, wanted, **CLOSE)
    labelled = mapping({**parts, "labels": ["p"] * ROWS})
    assert torch.allclose(model.predict(labelled, draws=2, batch_size=4).probs, wanted, **CLOSE)
    loader = DataLoader([{"a": row, "b": row, "labels": 0} for row in _x()], batch_size=4)
    assert torch.allclose(model.predict(loader, draws=2).probs, wanted, **CLOSE)


def test_a_tuple_is_several_inputs() -> None:
    model = _model(net=ByName())
    assert torch.equal(model.predict((_x(), _x()), draws=2).probs, model.predict({"a": _x(), "b": _x()}, draws=2).probs)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(0, FEATURES), "there are no rows to predict"),
        ([], "there are no rows to predict"),
        (torch.tensor(1.0), "tensor without axes"),
        (3, "inputs must be a tensor, array, frame, dict, data set or loader; got int"),
        (_x() * torch.nan, "batch 0: input holds NaN or infinity in 7 of 7 rows"),
        ((_x(), _x(5)), r"parts of the inputs have different lengths: \[5, 7\]"),
        ([["a", "b", "c"]], "cannot be read as numbers"),
    ],
)
def test_refuses_inputs(x: Any, words: str) -> None:
    with pytest.raises(po.DataError, match=words):
        _model().predict(x)


def test_nan_is_named_by_its_batch_and_row() -> None:
    x = _x()
    x[5, 1] = torch.nan
    with pytest.raises(po.DataError, match=r"batch 1: input holds NaN or infinity in 1 of 3 rows \(1\)"):
        _model().predict(x, batch_size=4)


def test_a_shuffled_loader_is_said_to_be_one() -> None:
    loader = DataLoader(TensorDataset(_x(), torch.zeros(ROWS)), batch_size=4, shuffle=True)
    model = _model()
    with pytest.warns(po.PosterityWarning, match="the loader shuffles: the predictions come in its order"):
        pred = model.predict(loader, draws=2)
    assert pred.probs.shape == (ROWS, CLASSES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sum(len(targets) for _, targets in model.predict_with_targets(loader, draws=2)) == ROWS


# --- targets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        lambda y: (_x(), y),
        lambda y: [_x().numpy(), y.numpy()],
        lambda y: TensorDataset(_x(), y),
        lambda y: DataLoader(TensorDataset(_x(), y), batch_size=4),
    ],
)
def test_targets_come_with_their_rows(data: Any) -> None:
    model, y = _model(), torch.arange(ROWS) % CLASSES
    parts = list(model.predict_with_targets(data(y), draws=2))
    found = torch.cat([torch.as_tensor(targets) for _, targets in parts])
    assert torch.equal(found, y)
    assert torch.equal(torch.cat([pred.probs for pred, _ in parts]), model.predict(_x(), draws=2).probs)


def test_targets_of_a_mapping() -> None:
    model = _model(net=ByName(), reader=Reader(target="labels"))
    data = {"a": _x(), "b": _x(), "labels": torch.arange(ROWS)}
    parts = list(model.predict_with_targets(data, draws=2, batch_size=4))
    assert torch.equal(torch.cat([targets for _, targets in parts]), torch.arange(ROWS))


def test_targets_are_missed() -> None:
    for data in (_x(), (_x(), _x(), _x())):
        with pytest.raises(po.DataError, match=r"no targets: give \(inputs, targets\)"):
            list(_model().predict_with_targets(data))
    with pytest.raises(po.DataError, match="cannot hold inputs and targets"):
        list(_model().predict_with_targets(TensorDataset(_x())))
