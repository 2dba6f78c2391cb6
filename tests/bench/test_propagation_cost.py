"""The bench of what a pass costs: its rows, its claims, how it counts bytes."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from posterity.bench import propagation_cost as bench
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.prediction.propagation.run import Pass


def test_the_peak_is_the_most_that_is_held_at_once() -> None:
    def three_held_two_returned() -> list[torch.Tensor]:
        kept = [torch.zeros(1024) for _ in range(2)]
        torch.zeros(1024)  # 4096 bytes more, freed at once
        torch.zeros(512)
        return kept

    assert bench.peak(three_held_two_returned) == 3 * 4096
    assert bench.peak(lambda: None) == 0


def test_ratios_are_medians_within_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    # of three rounds, in turns: (mean, ours), (ours, mean), (mean, ours); began and ended
    spent = iter([1, 2, 6, 3, 4, 8])
    clock = [0.0]

    def now() -> float:
        return clock[0]

    def work() -> None:
        clock[0] += next(spent)

    monkeypatch.setattr(time, "process_time", now)
    monkeypatch.setattr(bench, "peak", lambda function: 8)
    rows = {row["method"]: row for row in bench.measured({"mean": work, "ours": work}, 3)}
    assert rows["ours"]["times_mean"] == 2.0  # of 2 / 1, 6 / 3, 8 / 4
    assert (rows["mean"]["milliseconds"], rows["ours"]["milliseconds"]) == (3e3, 6e3)
    assert rows["ours"]["peak_times_mean"] == 1.0


def test_every_contestant_of_a_small_network_has_a_row() -> None:
    whole = bench.cells(True, False)
    assert whole.keys() == {"vit, batch 1", "vit, batch 4", "resnet, batch 1", "resnet, batch 4"}
    assert {"vit, batch 16", "resnet, batch 1", "vit, compiled"} < bench.cells(False, False).keys()
    rows = whole["vit, batch 1"]()
    by = {row["method"]: row for row in rows}
    assert by.keys() == {
        *("mean", "full", "rank-one", "exact", "last-layer", "mean-as-predicted", "draws-4", "draws-4-with-drawing")
    }
    assert by["mean"]["times_mean"] == by["mean"]["peak_times_mean"] == 1.0
    assert all(row["network"] == "vit" and row["rows"] == 1 for row in rows)
    # variances double what is held at least; a posterior over ten logits does not
    assert by["full"]["peak_times_mean"] > 2.0
    assert by["last-layer"]["peak_times_mean"] < 1.5
    found = bench.claims(rows)
    assert "compiled_time" not in found
    assert {"eager_time", "last_layer_time", "draws_4_time", "peak_memory_eager"} <= found.keys()


def _row(method: str, ratio: float | None, network: str = "vit", rows: int = 1) -> dict[str, Any]:
    return {"network": network, "rows": rows, "method": method, "times_mean": ratio, "peak_times_mean": ratio}


def test_claims_name_the_network_and_the_batch_that_is_not_the_usual_one() -> None:
    found = bench.claims([
        _row("full", 3.0), _row("compiled-rank-one", 1.8), _row("compiled-full", 2.5), _row("last-layer", 1.0),
        _row("full", 3.2, "resnet", 16), _row("mean", 1.0),
    ])  # fmt: skip
    assert found == {
        "eager_time": 3.0, "peak_memory_eager": 3.0, "compiled_time": 1.8, "peak_memory": 1.8,
        "compiled_general_time": 2.5, "peak_memory_general": 2.5, "last_layer_time": 1.0,
        "eager_time_resnet_batch_16": 3.2, "peak_memory_eager_resnet_batch_16": 3.2,
    }  # fmt: skip
    assert found.keys() >= bench.LIMITS.keys()
    assert bench.claims([_row("compiled-rank-one", None)]) == {}


def test_without_a_compiler_the_row_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no working C++ compiler found")

    monkeypatch.setattr(torch, "compile", absent)
    small = bench.vit(True)
    rows = bench._compiled_cell("vit", lambda quick: small, torch.zeros(1, 3, 32, 32), 1)
    reasons = {row["method"]: row["reason"] for row in rows}
    assert reasons["compiled-rank-one"] == "RuntimeError: no working C++ compiler found"
    assert len({frozenset(row) for row in rows}) == 1
    assert not {"compiled_time", "peak_memory"} & bench.claims(rows).keys()


def test_the_written_network_says_what_the_eager_one_says() -> None:
    problem, posterior, _ = bench.setting(bench.vit(True))
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), problem.network.session(train=False):
        module = bench._written(problem, posterior, bench.RANK_ONE, x)
        mean, var = module(x)
        whole = propagate(problem, weight_values(posterior, "rank-one"), x, Pass(bench.RANK_ONE))
    torch.testing.assert_close(mean, whole.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(var, whole.var, rtol=1e-4, atol=1e-8)
