"""What the profiles of steps and passes count, and that no algorithm is left out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contract.test_contract import CASES
from torch import Tensor, nn

import posterity as po
from posterity.bench import propagation_profile, step_profile
from posterity.bench.operations import OperationClock
from posterity.bench.profiled_methods import LARGE, SMALL_ONLY
from posterity.bench.watched import NETWORKS, Watched
from posterity.random import Random

WIDE = 1000


@pytest.mark.parametrize(
    ("work", "numbers"),
    [
        (lambda x, y: x + y, 3),  # reads two and writes one
        (lambda x, y: x.add_(y), 3),
        (lambda x, y: torch.mul(x, y, out=torch.empty(WIDE)), 3),
        (lambda x, y: x.copy_(y), 2),
        (lambda x, y: x.zero_(), 1),
        (lambda x, y: x.addcmul_(x, y), 4),
        (lambda x, y: x[: WIDE // 2].neg_(), 1),  # of a half of it
        (lambda x, y: x.view(10, -1).t(), 0),
        (lambda x, y: torch.empty(WIDE), 0),
    ],
)
def test_bytes_are_those_that_operations_read_and_write(work: Callable[[Tensor, Tensor], Any], numbers: int) -> None:
    x, y = torch.ones(WIDE), torch.ones(WIDE)
    with OperationClock() as clock:
        work(x, y)
    assert clock.bytes == 4 * numbers * WIDE


def test_time_goes_to_the_kind_of_the_operation() -> None:
    x = torch.ones(300, 300)
    with OperationClock() as clock:
        x @ x
        x.exp()
        x.normal_()
        x + x
    assert {kind for kind, seconds in clock.seconds.items() if seconds > 0} == {
        "product", "function", "noise", "elementwise"
    }  # fmt: skip
    assert clock.drawn == 300 * 300


def test_what_passes_unseen_is_not_counted() -> None:
    x = torch.ones(WIDE)
    with OperationClock() as clock:
        clock.running = False
        x + x
        clock.running = True
        x * x
    assert clock.bytes == 4 * 3 * WIDE


def test_a_watched_problem_counts_gradients_once_and_hides_them_from_the_clock() -> None:
    problem = Watched(nn.Linear(3, 2), "categorical", data_size=10)
    batch, random = problem.read((torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))), Random(0)
    start = problem.start()
    thetas = {name: leaf.expand(5, *leaf.shape).clone() for name, leaf in start.items()}
    problem.clock = OperationClock()
    with problem.clock as clock:
        problem.nll(start, batch, random)
        problem.nlls(thetas, [batch] * 5, [random] * 5)
    assert problem.gradients == 6
    assert problem.seconds > 0
    assert sum(clock.seconds.values()) == 0.0


def test_every_algorithm_is_profiled() -> None:
    profiled = {type(method) for method in (*LARGE.values(), *SMALL_ONLY.values())}
    known = {type(case.algorithm) for name, case in CASES.items() if not name.startswith("toy")}
    assert not {one.__name__ for one in known - profiled}


@pytest.mark.parametrize("method", [po.IVON(), po.LastLayerLaplace(structure="kronecker")], ids=["ivon", "staged"])
def test_the_parts_of_a_step_are_the_whole(method: po.Algorithm) -> None:
    setting = NETWORKS["small"]
    row = step_profile.profiled(method, setting._replace(net=setting.narrow, row=setting.narrow_row), 2)
    assert sum(row[part] for part in step_profile.PARTS) == pytest.approx(1.0)
    assert all(row[part] >= 0 for part in step_profile.PARTS)
    assert row["times_sgd"] > 0
    assert row["narrow_calls_times_adamw"] > 1


def test_functions_that_python_calls_are_the_same_each_time() -> None:
    setting = NETWORKS["small"]
    tiny = setting._replace(net=setting.narrow, row=setting.narrow_row)
    first, second = (step_profile.profiled(po.MAP(), tiny, 1)["narrow_calls_times_adamw"] for _ in range(2))
    assert first == pytest.approx(second, rel=0.02)


@pytest.mark.parametrize("layer", ["linear", "relu", "attention"])
def test_the_parts_of_a_pass_are_the_whole(layer: str) -> None:
    rows = propagation_profile.cells(True, False)[layer]()
    assert [row["rules"] for row in rows] == ["fast", "exact"]
    for row in rows:
        assert sum(row[part] for part in propagation_profile.PARTS) == pytest.approx(1.0)
        assert row["times_mean"] > 1
    claims = propagation_profile.claims(rows)
    assert claims[f"{layer}_fast_times_mean"] == rows[0]["times_mean"]
