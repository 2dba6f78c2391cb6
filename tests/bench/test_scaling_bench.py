"""The bench of scaling: what is measured on two ranks, and the arithmetic of its plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posterity.bench import scaling, scaling_plan
from posterity.bench.scaling_plan import Device
from posterity.errors import PosterityError

COMMITTED = Path(__file__).parents[2] / "benchmarks" / "results" / "scaling.json"


def test_two_ranks_measure_alone_together_and_shared() -> None:
    options: dict[str, Any] = {"network": "8-16-10", "batch": 16, "steps": 1, "repeats": 2, "methods": ["mean-field"]}
    (row,) = scaling.launched("rows", **options)
    assert row["weights"] == 8 * 16 + 16 + 16 * 10 + 10
    assert row["efficiency"] == row["speedup"] / 2
    assert min(row[field] for field in scaling.FIGURES) > 0
    assert row["one_reduce_ms"] == 0.0 < row["two_reduce_ms"]
    assert row["two_compute_ms"] + row["two_reduce_ms"] + row["two_update_ms"] < 2 * row["two_ms"] + 50


def test_a_rank_that_fails_is_heard() -> None:
    with pytest.raises(PosterityError, match="KeyError: 'nonsense'"):
        scaling.launched("rows", network="8-16-10", batch=16, steps=1, repeats=1, methods=["nonsense"])


METHODS = [*scaling_plan.METHODS, "change"]
COUNTED = {"trees": 6.0, "update_bytes": 100.0, "normals": 0.0, "launches": 10.0}
TIMED = {"copies": 8.0, "times_sgd": 2.0, "sgd_nanoseconds": 8.8, "copy_nanoseconds": 0.8, "normal_nanoseconds": 1.5}
ROWS = [{"cell": "methods", "contestant": name, **COUNTED, **TIMED} for name in METHODS]


def test_the_plan_of_305_million_weights_is_its_formulas() -> None:
    found = scaling_plan.claims(ROWS)
    weights = 305_520_650
    assert found["plan_map_state_gb"] == pytest.approx(6 * 4 * weights / 1e9)
    assert found["plan_map_memory_gb"] == pytest.approx(9 * 4 * weights / 1e9)
    assert found["plan_map_products_ms"] == pytest.approx(6 * weights * 256 * 50 / (0.4 * 989e12) * 1e3)
    assert found["plan_map_rows_ms"] == pytest.approx(2 * 7 / 8 * 4 * weights / (0.4 * 450e9) * 1e3)
    assert found["plan_ivon_draws_ms"] == pytest.approx(2 * found["plan_ivon_rows_ms"])
    assert "plan_map_draws_ms" not in found
    assert found["plan_sghmc_rows_ms"] == 0.0
    assert found["plan_map_launches_ms"] == pytest.approx(10 * weights / 65536 * 5e-3)
    parts = ("products_ms", "rows_ms", "launches_ms")
    assert found["plan_map_step_ms"] == pytest.approx(sum(found[f"plan_map_{part}"] for part in parts))
    assert found["plan_map_predicted_times_sgd"] == pytest.approx(2.0)  # 88 bytes, 0.8 ns for 8, beside 8.8 ns


def test_the_plan_of_7_billion_weights_is_a_known_network() -> None:
    """Llama 7B: 6,738,415,616 weights; rank 16 of its seven matrices a layer learns 39,976,960 entries."""
    found = scaling_plan.claims(ROWS)
    assert found["plan_change_weights_b"] == pytest.approx(6.738415616)
    assert found["plan_change_learnt_m"] == pytest.approx(2 * 39.976960)
    assert found["plan_change_dense_means_ms"] > 100 * found["plan_change_means_ms"]
    assert found["plan_change_once_gb"] < 80 < found["plan_change_float32_start_gb"]


def test_a_faster_device_takes_less() -> None:
    products, traffic, link, network, _, reached = scaling_plan.GPU
    twice = Device(2 * products, 2 * traffic, 2 * link, 2 * network, launch=0.0, reached=reached)
    row = ROWS[0]
    slow, fast = (scaling_plan._large("map", row, gpu) for gpu in (scaling_plan.GPU, twice))
    assert fast["step_whole_ms"] == pytest.approx(slow["step_whole_ms"] / 2)


def test_an_update_is_counted_operation_by_operation() -> None:
    counts = scaling_plan._counts(scaling_plan.METHODS["mean_field"], width=512)
    assert counts["trees"] == pytest.approx(6, abs=0.01)
    assert counts["normals"] == pytest.approx(1, abs=0.01)
    assert counts["update_bytes"] > 2 * 4 * 5  # each of five trees is read and written


def test_the_committed_plans_follow_from_the_committed_measurements() -> None:
    record = json.loads(COMMITTED.read_text("utf-8"))
    assert scaling.claims(record["rows"]) == pytest.approx(record["claims"])
