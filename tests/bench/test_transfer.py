"""The bench of heads on pretrained features: what its claims are made of, and one method from end to end."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from posterity.bench import transfer
from posterity.bench.transfer_data import Parts


def row(method: str, seed: int, **values: Any) -> dict[str, Any]:
    return {"data": "cifar", "method": method, "seed": seed, **dict.fromkeys(transfer.FIELDS, 0.5), **values}


def test_gains_are_paired_by_seed_and_better_above_0() -> None:
    own, other = {0: 1.0, 1: 1.2, 2: 1.7}, {0: 1.3, 1: 1.3, 2: 1.9}
    rows = [row("ivon", seed, nll=nll) for seed, nll in own.items()]
    rows += [row("map", seed, nll=nll, ood_auroc_mi=None) for seed, nll in other.items()]
    found = transfer.claims(rows)
    assert found["cifar_ivon_nll"] == pytest.approx(1.3)
    assert found["cifar_ivon_nll_gain_over_map"] == pytest.approx(0.2)
    assert found["cifar_ivon_nll_gain_over_map_error"] == pytest.approx(0.1 / math.sqrt(3))
    assert "cifar_map_ood_auroc_mi" not in found
    assert "cifar_ivon_nll_gain_over_ensemble" not in found


@pytest.mark.parametrize("method", transfer.METHODS)
def test_every_method_has_a_row_with_the_same_figures(method: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(60, 40), torch.arange(60) % 8
    x[:, 0] += 2 * y
    data = Parts((x, y), (x[:20], y[:20]), (x[20:], y[20:]), 3 * torch.randn(30, 40), 8)
    found = transfer._row("cifar", data, method, 0, quick=True)
    assert set(transfer.FIELDS) <= set(found)
    assert 0 <= found["error"] <= 1
    assert found["ood_auroc_entropy"] is not None
    assert (found["ood_auroc_mi"] is None) == (method == "map")
