"""Memory that stays where it is: draws stream, moments reduce, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import posterity as po
from posterity.bench.worker import resident

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux only")

MEGABYTE = 10**6

WIDE = """
import torch, posterity as po
from posterity.bench.worker import peak, resident

torch.set_num_threads(1)
net = torch.nn.Linear(8, 1000)
x, y = torch.randn(10_000, 8), torch.arange(10_000) % 1000
model = po.fit(net, (x[:1000], y[:1000]), method=po.MeanFieldVI(), steps=2)
model.predict(x[:8], draws=2)
before = resident()
pred = model.predict(x, draws=50)
assert pred.probs.shape == (10_000, 1000)
print(peak() - before)
"""


def _growth(call: Callable[[], object], times: int) -> int:
    """Bytes by which half of `times` calls raise what is resident: the lesser of both halves, as the heap grows by steps."""
    found = []
    for count in (max(5, times // 10), times // 2, times // 2):  # the first to warm up
        before = resident()
        for _ in range(count):
            call()
        gc.collect()
        found.append(resident() - before)
    return min(found[1:])


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 5))


@pytest.fixture(scope="module")
def model() -> po.BayesianModel:
    """100 predictions of 1000 rows would be 3 MB if they were kept, their draws 14 MB."""
    x, y = torch.randn(64, 64), torch.arange(64) % 5
    return po.fit(_net, (x, y), method=po.MeanFieldVI(), steps=2, seed=0)


@pytest.mark.parametrize("via", ["draws", "mean", "propagation"])
def test_two_hundred_predictions_leave_memory_as_it_was(model: po.BayesianModel, via: str) -> None:
    x = torch.randn(1000, 64)
    assert _growth(lambda: model.predict(x, via=via, draws=2), times=200) < 1.5 * MEGABYTE


def test_a_hundred_fits_leave_memory_as_it_was() -> None:
    """With its snapshots each of them holds 400 kB: 50 would be 20 MB."""
    x, y = torch.randn(8, 64), torch.arange(8) % 5
    assert _growth(lambda: po.fit(_net(), (x, y), steps=1, progress=False), times=100) < 5 * MEGABYTE


@pytest.mark.slow
def test_ten_thousand_rows_of_a_thousand_classes_by_fifty_draws_stay_under_400_megabytes_above_the_model() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WIDE],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    assert int(done.stdout) < 400 * MEGABYTE
