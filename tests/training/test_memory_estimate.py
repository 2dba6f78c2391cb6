"""What `estimate_memory` says, against real tensors counted one by one and against processes that are weighed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.test_contract import CASES
from torch import nn

import posterity as po
from posterity.bench import memory
from posterity.bench.worker import resident
from posterity.training.memory import imagined
from posterity.training.memory.estimate import MemoryEstimate, estimate_memory

WEIGHED = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux only")
WEIGHTS = 32 * 48 + 48 + 48 * 5 + 5
COPY = 4 * WEIGHTS  # bytes

QUICK = ("map, perceptron", "rank-one, perceptron")
FAST = {"mean-field", "laplace-full", "swag"}


def _net(dropout: float = 0.0) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 5)]
    return nn.Sequential(*layers[:2], nn.Dropout(dropout), layers[2]) if dropout else nn.Sequential(*layers)


def _data(rows: int = 14) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 32), torch.arange(rows) % 5


def _estimate(method: Any = None, **options: Any) -> MemoryEstimate:
    return estimate_memory(_net, _data(), method=method, **{"batch_size": 7, "epochs": 2, "seed": 0, **options})


# A flow makes masks by the numbers of tensors that are large where 64 is; it is weighed below.
COUNTED = [name for name in CASES if "flow" not in name]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in COUNTED]
)
def test_the_bytes_are_those_of_real_tensors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tensors of more than 64 elements imagined, and none: what the numbers decide moves a temporary or two."""
    found = []
    for small in (64, 10**9):
        monkeypatch.setattr(imagined, "SMALL", small)
        net = _net(0.1) if name == "mc-dropout" else _net()
        method = CASES[name].algorithm
        found.append(estimate_memory(net, _data(), method=method, batch_size=7, epochs=2, seed=0))
    told, real = map(asdict, found)
    assert told == pytest.approx(real, rel=0.02, abs=COPY)


@WEIGHED
@pytest.mark.parametrize(
    "pair",
    [pytest.param(pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in memory.PAIRS],
)
def test_it_is_within_a_quarter_of_what_a_process_takes(pair: str) -> None:
    method, network = memory.PAIRS[pair]
    assert memory.estimated(method, network).peak == pytest.approx(memory.measured(method, network), rel=0.25)


@WEIGHED
def test_it_takes_less_than_one_copy_of_the_weights() -> None:
    _estimate()  # loads its code

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(32, 2**17), nn.ReLU(), nn.Linear(2**17, 5))

    before = resident()
    found = estimate_memory(network, _data(), batch_size=7)
    assert found.peak > 9 * found.network > 9 * 19e6
    assert resident() - before < 0.5 * found.network


def test_network_data_and_generators_stay_as_they_are() -> None:
    net, (x, y) = _net(0.1), _data()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    rows, state = x.clone(), torch.get_rng_state()
    estimate_memory(net, (x, y), method=po.MeanFieldVI(), batch_size=7, validation=0.5)
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    assert net.training
    assert x.equal(rows)
    assert torch.get_rng_state().equal(state)


def test_members_batches_and_validation_are_counted() -> None:
    one = _estimate()
    assert one.network == COPY
    three = _estimate(po.DeepEnsemble(3))
    assert (three.network, three.fitted) == (one.network, pytest.approx(3 * one.fitted, rel=0.05))
    assert _estimate(validation=_data()).state >= one.state + 3 * COPY  # the best weights with their statistics
    wide = estimate_memory(_net, _data(4000), batch_size=2000)
    assert wide.step > one.step + 4 * 2000 * (32 + 48)


def test_draws_of_chains_are_on_the_disk() -> None:
    found = _estimate(po.SGHMC(members=2, warmup=3, draws_per_chain=4, thin=5, step_size=1e-4, check_stability=False))
    assert found.disk == 2 * 4 * COPY // 2
    assert "on the disk" in str(found)
    assert _estimate().disk == 0


def test_it_is_said_in_words() -> None:
    found = MemoryEstimate(network=2**20, state=5 * 2**20, step=2**19, between=2**30, fitted=3 * 2**20, disk=0)
    assert str(found) == (
        "1.1 GiB at the peak: network 1 MiB, state 5 MiB, a step 512 KiB, between steps up to 1.0 GiB; the fitted model "
        "keeps 3 MiB"
    )


def test_what_a_fit_would_refuse_is_refused() -> None:
    with pytest.raises(po.CompatibilityError, match="would take .* GiB, more than max_memory"):
        estimate_memory(lambda: nn.Linear(32, 4000), _data(), method=po.GSM())
    with pytest.raises(po.DataError, match="no rows"):
        estimate_memory(_net, (torch.zeros(0, 32), torch.zeros(0, dtype=torch.int64)))
    with pytest.raises(TypeError, match="epoch"):
        _estimate(epoch=3)


def test_a_forward_that_asks_for_many_numbers_is_refused() -> None:
    class Sorted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[:, : len(self.weight.unique())]

    with pytest.raises(NotImplementedError, match="_unique2.default needs the numbers of a large tensor"):
        estimate_memory(Sorted(784, 200), (torch.randn(14, 784), torch.arange(14) % 5))
