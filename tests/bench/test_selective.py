"""The bench of selective answers: what its claims are made of, and one task of it from end to end."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest

from posterity.bench import selective


def row(task: str, seed: int, method: str, **values: Any) -> dict[str, Any]:
    fields = (*selective._SHOWN, "nll_minus_temperature", "aurc_minus_temperature")
    return {"task": task, "seed": seed, "method": method, **dict.fromkeys(fields, 0.5), **values}


def test_the_worst_ratio_of_gaps_is_over_networks_that_are_far_from_their_draws() -> None:
    gaps = {"far": (0.5, 1.0), "farther": (0.25, 2.0), "near": (0.3, 0.3)}  # 3 floors are 0.3
    rows = [
        row(task, seed, method, mean_gap=gap, mean_gap_network=network, floor=0.1)
        for task, (gap, network) in gaps.items()
        for seed in (0, 1)
        for method in selective.METHODS
    ]
    found = selective.claims(rows)
    assert found["mean_gap_ratio_worst"] == pytest.approx(math.sqrt((0.5**2 - 0.01) / (1 - 0.01)))
    assert "near_mean_gap_ratio" not in found


def test_differences_are_averages_over_tasks_of_the_calibrated_pass() -> None:
    differences = {("a", 0): 0.1, ("a", 1): 0.3, ("b", 0): -0.4}
    rows = [
        row(task, seed, method, nll_minus_temperature=value if method == selective.OURS else 7.0)
        for (task, seed), value in differences.items()
        for method in selective.METHODS
    ]
    assert selective.claims(rows)["nll_minus_temperature"] == pytest.approx((0.2 - 0.4) / 2)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("POSTERITY_DATA"), reason="POSTERITY_DATA names no folder")
def test_a_task_has_a_row_for_every_method() -> None:
    (name,) = [name for name in selective.cells(True, False) if name.startswith("mnist-cnn")]
    rows = selective.cells(True, False)[name]()
    assert [one["method"] for one in rows] == list(selective.METHODS)
    assert all(math.isfinite(one["nll"]) for one in rows)
    baseline = next(one for one in rows if one["method"] == selective.BASELINE)
    assert baseline["nll_minus_temperature"] == 0
