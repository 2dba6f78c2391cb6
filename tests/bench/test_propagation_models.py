"""The bench of networks that others wrote: a row of each, what its claims count, and what it leaves out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posterity.bench import propagation_models as bench
from posterity.bench.zoo import FRESH, Specimen
from posterity.bench.zoo_trained import TRAINED, CifarResNet
from posterity.errors import DataError, PosterityWarning
from posterity.random import Random


def specimen(module: nn.Module) -> Specimen:
    return Specimen(module, Random(0).normal((7, 5)))


def test_a_linear_network_has_the_mean_and_the_variance_of_its_draws() -> None:
    torch.manual_seed(0)
    row = bench.measured("linear", specimen(nn.Linear(5, 3)), draws=256, files=False)
    assert (row["eager"], row["graph"], row["onnx"], row["reason"]) == (True, True, None, "")
    # exact rules: gap = noise, whose root mean square of 3 independent outputs (rows share weights) is within a factor of 3
    assert row["mean_gap"] == pytest.approx(row["mean_gap_network"], rel=1e-3)
    assert row["floor"] / 3 < row["mean_gap"] < 3 * row["floor"]
    # about 6 independent squares of 256 draws: std sqrt(2 / 256 / 6) = 0.036, four of them
    assert row["var_ratio"] == pytest.approx(1.0, abs=0.15)
    assert row["var_ratio_pooled"] == row["var_ratio"]


def test_positions_that_share_weights_are_nearer_to_wholly_correlated() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 8, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    row = bench.measured("convolution", Specimen(net, Random(0).normal((4, 2, 9, 9)) + 1.0), draws=64, files=False)
    assert row["var_ratio"] < row["var_ratio_pooled"]


def test_a_network_that_no_rule_knows_says_so() -> None:
    class Sorting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sort().values

    row = bench.measured("sorting", specimen(nn.Sequential(nn.Linear(5, 3), Sorting())), draws=3, files=False)
    assert not row["eager"]
    assert row["reason"].startswith("eager: no rule says what sort does")
    assert row.keys() == bench.measured("linear", specimen(nn.Linear(5, 3)), draws=3, files=False).keys()


def test_a_network_without_a_graph_is_still_measured() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if float(x.detach().sum()) > 0 else x

    row = bench.measured("branching", specimen(nn.Sequential(Branching(), nn.Linear(5, 3))), draws=3)
    assert (row["eager"], row["graph"], row["onnx"]) == (True, False, False)
    assert row["reason"].startswith("graph: torch.export cannot write")
    assert row["mean_gap"] is not None


def test_weights_that_are_not_there_are_left_out_with_a_word() -> None:
    def absent() -> Specimen:
        raise DataError("set POSTERITY_DATA")

    with pytest.warns(PosterityWarning, match="ours is left out: set POSTERITY_DATA"):
        assert bench._cell("ours", absent, 3, False) == []


def _row(network: float, own: float, ratio: float, **changes: Any) -> dict[str, Any]:
    known = {"eager": True, "graph": True, "onnx": True, "floor": 0.1, "log_var_correlation": 0.5}
    gaps = {"mean_gap": own, "mean_gap_network": network, "var_ratio": ratio, "var_ratio_pooled": ratio}
    return known | gaps | changes


def test_claims() -> None:
    noise = 0.1**2
    rows = [
        _row((1.0 + noise) ** 0.5, (0.25 + noise) ** 0.5, 0.5),  # 1 and 0.5 beyond the draws' own noise
        _row((1.0 + noise) ** 0.5, 0.05, 0.75, onnx=False),  # nothing beyond it
        _row(0.29, 0.5, 2.0, graph=False, onnx=None, log_var_correlation=None),  # within three floors: no ratio
        {"eager": False, "graph": False, "onnx": None},
    ]
    found = bench.claims(rows)
    counts = {name: found[f"models_{name}"] for name in ("total", "eager", "not_eager", "graph", "onnx")}
    assert counts == {"total": 4, "eager": 3, "not_eager": 1, "graph": 2, "onnx": 1}
    assert found["mean_gap_models"] == 2
    assert found["mean_gap_ratio_worst"] == pytest.approx(0.5)
    assert found["mean_gap_ratio_median"] == pytest.approx(0.25)
    assert (found["var_ratio_lowest"], found["var_ratio_median"], found["var_ratio_highest"]) == (0.5, 0.75, 2.0)
    assert found.keys() == bench.claims([]).keys()
    assert found.keys() >= bench.LIMITS.keys()


def test_every_model_of_the_issue_has_a_cell() -> None:
    whole = bench.cells(False, False)
    assert whole.keys() == {*FRESH, *TRAINED}
    assert len(whole) == 21
    assert bench.cells(True, False).keys() < whole.keys()
    assert bench.QUICK_ONNX in bench.cells(True, False)


def test_the_residual_network_has_the_size_of_its_paper() -> None:
    net = CifarResNet()
    assert sum(leaf.numel() for leaf in net.parameters()) == 269_722
    assert net.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
