"""The benches of low-rank networks: who is fitted and picked how, what is measured, and how data become inputs."""

import math
import os
from typing import Any

import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.bench import air, low_rank_air, low_rank_icu, low_rank_methods, low_rank_text, text
from posterity.bench.low_rank_classes import classes, foreign
from posterity.bench.low_rank_methods import METHODS, Figures, Task, Trial, compared, grid
from posterity.errors import DataError
from posterity.models.tabular import mlp
from posterity.prediction.classes import CategoricalPredictive
from posterity.prediction.predictive import GaussianMixture

needs_data = pytest.mark.skipif("POSTERITY_DATA" not in os.environ, reason="POSTERITY_DATA is not set")


# --- a comparison -----------------------------------------------------------------------------------------------------


def _task(**changes: Any) -> Task:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(45, 7, generator=random)
    y = (x[:, 0] > 0).long()

    def measure(predict: low_rank_methods.Predict) -> dict[str, float | None]:
        pred = predict(x[29:])
        assert isinstance(pred, CategoricalPredictive)
        return {"draws": pred.draws, "mi": pred.epistemic.max().item()}

    task = Task(
        data="toy",
        seed=3,
        network=lambda rate: mlp(7, 2, width=16, depth=2, dropout=rate),
        likelihood="categorical",
        train=(x[:23], y[:23]),
        validation=(x[23:29], y[23:29]),
        measure=measure,
        trials=grid((1.0, 10.0), (1e-3, 1e-2)),
        rank=2,
        epochs=2,
        batch_size=8,
        draws=5,
    )
    return task._replace(**changes)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return compared(_task())


def test_every_method_has_a_row_in_either_block(rows: list[dict[str, Any]]) -> None:
    assert [(row["method"], row["block"]) for row in rows] == [(m, b) for m in METHODS for b in ("equal", "tuned")]
    assert len({frozenset(row) for row in rows}) == 1  # the fields of a record are the same in all rows
    assert {(row["data_weight"], row["rate"]) for row in rows if row["block"] == "equal"} == {(1.0, 1e-3)}


def test_the_tuned_pair_is_the_best_on_validation(rows: list[dict[str, Any]]) -> None:
    tuned = {row["method"]: row for row in rows if row["block"] == "tuned"}
    for name, row in tuned.items():
        sweep = row["sweep"]
        at = list(zip(sweep["data_weight"], sweep["rate"])).index((row["data_weight"], row["rate"]))
        assert row["validation_nll"] == sweep["validation_nll"][at]
        if single := METHODS[name].single:
            assert (row["data_weight"], row["rate"]) == (tuned[single]["data_weight"], tuned[single]["rate"])
        else:
            assert len(sweep["rate"]) == 4
            assert row["validation_nll"] == min(sweep["validation_nll"])
    assert any(row["rate"] != 1e-3 for row in tuned.values())  # else the pick was not tried


def test_draws_and_numbers_are_those_of_each_kind(rows: list[dict[str, Any]]) -> None:
    equal = {row["method"]: row for row in rows if row["block"] == "equal"}
    dense = (7 * 16 + 16) + (16 * 16 + 16) + (16 * 2 + 2)
    assert equal["deterministic"]["parameters"] == equal["mc-dropout"]["parameters"] == dense
    assert equal["mean-field"]["parameters"] == 2 * dense
    assert equal["deep-ensemble"]["parameters"] == 5 * dense
    # rank 2 pays for the first two matrices; the head is mean-field: means and stds, and the points of three biases
    factors = 2 * 2 * ((7 + 16) + (16 + 16))
    assert equal["low-rank"]["parameters"] == factors + 2 * 16 * 2 + (16 + 16 + 2)
    assert equal["low-rank-ensemble"]["parameters"] == 5 * equal["low-rank"]["parameters"]
    points = {name for name, method in METHODS.items() if method.point}
    assert {name for name, row in equal.items() if row["mi"] == 0.0} == points
    assert {row["draws"] for name, row in equal.items() if name not in points} == {5}


def test_what_starts_at_a_fit_starts_there_and_is_charged_for_it() -> None:
    """At a step size that moves nothing, factors of full rank of the first matrix are the deterministic one."""
    task, trial = _task(), Trial(1.0, 1e-3)
    first = low_rank_methods._fitted(task, METHODS["deterministic"], trial, None)
    full = po.LowRankVI({"0.weight": 7}, learning_rate=1e-9, std_learning_rate=1e-9)
    method = METHODS["low-rank-svd"]._replace(make=lambda rate, task: full)
    with pytest.warns(po.PosterityWarning, match="does not pay"):
        then = low_rank_methods._fitted(task, method, trial, first)
    wanted = first.model.posterior.mean()["0.weight"]
    torch.testing.assert_close(then.model.posterior.mean()["0.weight"], wanted, rtol=1e-4, atol=1e-5)
    assert then.seconds > first.seconds


def test_the_grid_begins_with_the_equal_block() -> None:
    assert grid((1.0, 3.0), (0.1, 0.2)) == ((1.0, 0.1), (1.0, 0.2), (3.0, 0.1), (3.0, 0.2))
    with pytest.raises(ValueError, match="data_weight 1"):
        grid((3.0, 1.0), (0.1,))


def test_a_fit_that_says_nothing_is_not_picked() -> None:
    assert low_rank_methods._smallest([math.nan, 2.0, math.inf, 1.5]) == 3
    assert low_rank_methods._smallest([math.nan, math.inf]) == 0


def test_figures_are_paired_by_seed() -> None:
    def row(method: str, seed: int, value: float | None, block: str = "tuned") -> dict[str, Any]:
        return {"data": "toy", "block": block, "method": method, "seed": seed, "nll": value}

    figures = Figures(
        [
            row("low-rank", 0, 1.0),
            row("low-rank", 1, 3.0),
            row("low-rank", 2, 8.0),
            row("mean-field", 0, 0.5),
            row("mean-field", 1, 1.0),
            row("mean-field", 2, None),
            row("low-rank", 0, 100.0, "equal"),
        ]
    )
    assert figures.mean("toy", "low-rank", "nll") == 4.0
    assert figures.mean("toy", "low-rank", "nll", "equal") == 100.0
    assert figures.difference("toy", "low-rank", "mean-field", "nll") == [0.5, 2.0]
    found = figures.against("toy", "it", "mean-field", ("nll",))
    assert found == {"it_nll_minus_mean_field": 1.25, "it_nll_minus_mean_field_error": pytest.approx(0.75)}


# --- what is measured -------------------------------------------------------------------------------------------------


def _categorical(log_odds: list[float], mi: float = 0.0) -> CategoricalPredictive:
    """Probabilities of class 1; `mi` of the first row, less in those behind."""
    p = torch.tensor(log_odds).double().sigmoid()
    log_probs = torch.stack([1 - p, p], 1).log()
    entropy = torch.special.entr(log_probs.exp()).sum(1)
    inside = entropy - mi / torch.arange(1, len(p) + 1)
    return CategoricalPredictive.of(po.Categorical(classes=(0, 1)), log_probs, inside, draws=1, via="draws")


def test_metrics_of_two_classes() -> None:
    y = torch.tensor([1, 0, 1, 0, 0])
    told = classes(_categorical([3.0, -2.0, -1.0, 0.5, -4.0]), y)
    # class 1: 3 beats all of -2, .5, -4, and -1 beats -2 and -4
    assert told["auroc"] == pytest.approx(5 / 6)
    assert told["accuracy"] == pytest.approx(3 / 5)
    # wrong are -1 and .5, the two of the largest entropy
    assert told["aupr_errors"] == 1.0
    assert told["risk_80"] == pytest.approx(1 / 4)
    assert told["aurc"] == pytest.approx((0 + 0 + 0 + 1 / 4 + 2 / 5) / 5)
    nll = [math.log1p(math.exp(-s)) for s in (3.0, 2.0, -1.0, -0.5, 4.0)]
    assert told["nll"] == pytest.approx(sum(nll) / 5, rel=1e-6)


def test_without_errors_there_is_nothing_to_find() -> None:
    told = classes(_categorical([3.0, 2.0]), torch.tensor([1, 1]))
    assert told["aupr_errors"] is None
    assert told["auroc"] is None
    assert told["risk_80"] == 0.0


def test_foreign_rows_by_both_measures() -> None:
    """The foreign set is less sure, and the draws disagree less on it."""
    familiar, strange = _categorical([3.0, -3.0], mi=0.1), _categorical([0.1, 0.2, 0.3], mi=0.01)
    told = foreign(familiar, lambda x: strange, {"moon": None})
    assert told == {"ood_auroc_mi_moon": 0.0, "ood_auroc_entropy_moon": 1.0}
    points = foreign(_categorical([3.0]), lambda x: _categorical([0.1, 0.2]), {"moon": None})
    assert points["ood_auroc_mi_moon"] is None


def _gaussian(means: Tensor, std: float) -> GaussianMixture:
    """[draws, rows]; std of the noise."""
    return GaussianMixture(po.Heteroscedastic(), len(means), "draws", means, torch.full_like(means, std))


def test_metrics_of_a_regression() -> None:
    """Two draws at +-d: epistemic d, by the row; the noise is far smaller or far larger."""
    spread = torch.tensor([0.1, 0.4, 0.2, 0.3, 0.5])
    pred = _gaussian(torch.stack([-spread, spread]), 1e-3)
    y = torch.tensor([0.15, 1.0, 0.5, 0.1, 0.0])
    told = low_rank_air.regression(pred, y)
    assert told["rmse"] == pytest.approx(math.sqrt((0.15**2 + 1 + 0.25 + 0.01) / 5), rel=1e-5)
    assert told["mae"] == pytest.approx(1.75 / 5, rel=1e-5)
    # within 1.96 d of 0: rows 0, 3 and 4; the rows of a mixture of two points are all but covered up to d
    assert told["coverage_95_epistemic"] == pytest.approx(3 / 5)
    assert told["width_95_epistemic"] == pytest.approx(2 * 1.96 * 0.3, rel=1e-3)
    assert told["coverage_95"] == pytest.approx(2 / 5)
    assert told["mae_80"] == pytest.approx(1.75 / 4, rel=1e-5)  # the row of the largest spread has no error
    assert told["mae_90"] == told["mae"]  # of five rows 90 % is five
    point = low_rank_air.regression(_gaussian(torch.zeros(1, 5), 1.0), y)
    assert point["coverage_95"] == 1.0
    assert point["width_95"] == pytest.approx(2 * 1.96, rel=1e-3)
    assert point["mae_80"] is point["coverage_95_epistemic"] is None
    assert point["mae_80_total"] is not None


# --- the benches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bench", [low_rank_icu, low_rank_air, low_rank_text])
def test_without_the_folder_a_bench_says_what_is_missing(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTERITY_DATA", raising=False)
    for cached in (air._stations, air.air, text.sentences):
        cached.cache_clear()
    monkeypatch.setattr(low_rank_icu, "DATA", {"physionet": lambda seed: low_rank_icu.icu._physionet.__wrapped__()})
    cell = next(iter(bench.cells(True, False).values()))
    with pytest.raises(DataError, match="POSTERITY_DATA"):
        cell()


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("bench", [low_rank_icu, low_rank_air, low_rank_text])
def test_a_quick_run_answers_every_claim_with_a_limit(bench: Any) -> None:
    rows = [row for cell in bench.cells(True, False).values() for row in cell()]
    found = bench.claims(rows)
    assert found.keys() >= bench.LIMITS.keys()
    assert all(math.isfinite(value) for value in found.values())
