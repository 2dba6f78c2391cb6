"""The loss and its gradient against plain torch, and what a probe finds."""

from __future__ import annotations

import random as python_random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posterity as po
from posterity.problem.batches import Batch, Reader
from posterity.problem.factored import Factored
from posterity.problem.problem import batch_rows
from posterity.tree import BUFFER, LIKELIHOOD, Tree

ROWS, FEATURES, CLASSES, HIDDEN = 7, 3, 5, 6


def _rows(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(rows) % CLASSES


def _net(seed: int = 0, *between: nn.Module) -> nn.Sequential:
    with po.Random(seed).forked():
        return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), *between, nn.Linear(HIDDEN, CLASSES))


def _problem(net: nn.Module | None = None, **options: Any) -> po.NetworkProblem:
    return po.NetworkProblem(net or _net(), "categorical", data_size=ROWS, **options)


def _plain(net: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Tree:
    net.zero_grad()
    loss(net).backward()
    return {name: parameter.grad for name, parameter in net.named_parameters()}


def _close(one: Tree, other: Tree, **tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, leaf in other.items():
        assert torch.allclose(one[name], leaf, **tolerance), name


# --- the loss ----------------------------------------------------------------------------------------------------------


def test_categorical_is_the_mean_cross_entropy() -> None:
    (x, y), net = _rows(), _net()
    nll, gradient, info = _problem(net).nll(_problem(net).start(), (x, y), po.Random(0))
    wanted = F.cross_entropy(net(x), y).detach()
    assert float(nll) == pytest.approx(float(wanted), rel=1e-6)
    # sums of 7 products in another order: a few units of 2^-24 of numbers below 1
    _close(gradient, _plain(net, lambda m: F.cross_entropy(m(x), y)), rtol=1e-5, atol=1e-7)
    assert info.nll.shape == info.gradient_norm.shape == info.finite.shape == (1,)
    assert float(info.nll) == float(nll)
    norm = torch.cat([leaf.flatten() for leaf in gradient.values()]).norm()
    assert float(info.gradient_norm) == pytest.approx(float(norm), rel=1e-5)
    assert info.finite.tolist() == [True]
    assert info.buffers == info.extra == {}


def test_gaussian_has_a_gradient_for_its_own_noise() -> None:
    x, _ = _rows()
    y = torch.randn(ROWS, generator=torch.Generator().manual_seed(1)) * 3 + 2
    net = nn.Linear(FEATURES, 1)
    problem = po.NetworkProblem(net, po.Gaussian().surveyed([y]), data_size=ROWS)
    theta = problem.start()
    theta[LIKELIHOOD + "log_std"].fill_(0.3)
    nll, gradient, _ = problem.nll(theta, (x, y), po.Random(0))

    z = (y - y.mean()) / y.std(correction=0)
    log_std = torch.tensor([0.3], requires_grad=True)
    normal = torch.distributions.Normal(net(x)[:, 0], log_std.exp())
    loss = -normal.log_prob(z).mean()
    assert float(nll) == pytest.approx(float(loss.detach()), rel=1e-5)
    wanted = torch.autograd.grad(loss, [net.weight, net.bias, log_std])
    found = [gradient["weight"], gradient["bias"], gradient[LIKELIHOOD + "log_std"]]
    for one, other in zip(found, wanted):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_weights_multiply_rows_and_the_mean_stays_over_rows() -> None:
    (x, y), net = _rows(), _net()
    weight = torch.tensor([0.0, 1.0, 2.0, 0.5, 3.0, 1.0, 0.25])
    problem = _problem(net, reader=Reader(weight=-1))
    nll, gradient, _ = problem.nll(problem.start(), (x, y, weight), po.Random(0))
    loss = lambda m: (weight * F.cross_entropy(m(x), y, reduction="none")).sum() / ROWS  # noqa: E731
    assert float(nll) == pytest.approx(float(loss(net).detach()), rel=1e-6)
    _close(gradient, _plain(net, loss), rtol=1e-5, atol=1e-7)


def test_a_weight_of_two_is_the_row_twice() -> None:
    x, y = _rows()
    problem = _problem(reader=Reader(weight=-1))
    weight = torch.ones(ROWS)
    weight[2] = 2.0
    _, once, _ = problem.nll(problem.start(), (x, y, weight), po.Random(0))
    twice = torch.tensor([*range(ROWS), 2])
    _, again, _ = problem.nll(problem.start(), (x[twice], y[twice], torch.ones(ROWS + 1)), po.Random(0))
    _close({n: leaf * ROWS for n, leaf in once.items()}, {n: leaf * (ROWS + 1) for n, leaf in again.items()}, atol=1e-6)


def test_accumulated_parts_are_one_batch() -> None:
    x, y = _rows()
    problem = _problem()
    theta = problem.start()
    nll, gradient, info = problem.nll(theta, (x, y), po.Random(0))
    parts = [(x[:4], y[:4]), (x[4:6], y[4:6]), (x[6:], y[6:])]
    summed, accumulated, of_parts = problem.nll(theta, parts, po.Random(0))
    assert float(summed) == pytest.approx(float(nll), rel=1e-6)
    _close(accumulated, gradient, rtol=1e-5, atol=1e-7)
    assert float(of_parts.gradient_norm) == pytest.approx(float(info.gradient_norm), rel=1e-5)


def test_accumulated_parts_hand_their_running_statistics_on_and_have_noise_of_their_own() -> None:
    x, y = _rows()
    problem = _problem(_net(0, nn.BatchNorm1d(HIDDEN), nn.Dropout(0.5)))
    _, _, info = problem.nll(problem.start(), [(x, y), (x, y)], po.Random(0))
    assert int(info.buffers[BUFFER + "2.num_batches_tracked"]) == 2
    one, _, _ = problem.nll(problem.start(), [(x, y)], po.Random(0))
    two, _, _ = problem.nll(problem.start(), [(x, y), (x, y)], po.Random(0))
    assert float(one) != float(two)  # equal if both parts had the same mask


def test_batch_rows() -> None:
    x, y = _rows()
    batch = Batch(x, y, None, ROWS)
    assert batch_rows(batch) == ROWS
    assert batch_rows([batch, batch]) == 2 * ROWS
    assert batch_rows(None) == 1  # of a density


def test_noise_is_a_function_of_the_address() -> None:
    x, y = _rows()
    problem = _problem(_net(0, nn.Dropout(0.5)))
    theta, random = problem.start(), po.Random(0)
    one, two = (problem.nll(theta, (x, y), random)[0] for _ in range(2))
    assert float(one) == float(two)
    assert float(one) != float(problem.nll(theta, (x, y), random.fold(1))[0])


def test_noise_of_pythons_generator_too() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(FEATURES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x) * python_random.random()

    x, y = _rows()
    problem = _problem(Noisy())
    problem.probe((x, y), po.Random(0))
    state = python_random.getstate()
    losses = {float(problem.nll(problem.start(), (x, y), po.Random(3))[0]) for _ in range(3)}
    outputs = {float(problem.outputs(problem.start(), x).sum()) for _ in range(3)}
    assert len(losses) == len(outputs) == 1
    assert python_random.getstate() == state


def test_nlls_are_a_loop() -> None:
    x, y = _rows()
    problem = _problem(_net(0, nn.BatchNorm1d(HIDDEN), nn.Dropout(0.2)))
    starts = problem.starts(3, "reset", po.Random(0))
    batches = [(x, y), (x[:5], y[:5]), (2 * x, y)]
    randoms = [po.Random(k) for k in range(3)]
    stacked = {name: torch.stack([tree[name] for tree in starts]) for name in starts[0]}
    nll, gradient, info = problem.nlls(stacked, batches, randoms)
    assert nll.shape == (3,)
    for k in range(3):
        one, own, single = problem.nll(starts[k], batches[k], randoms[k])
        assert float(nll[k]) == float(one) == float(info.nll[k])
        assert float(info.gradient_norm[k]) == float(single.gradient_norm)
        for name, leaf in own.items():
            assert torch.equal(gradient[name][k], leaf)
        for name, leaf in single.buffers.items():
            assert torch.equal(info.buffers[name][k], leaf[0])


def test_every_gradient_may_be_written_over() -> None:
    """Two weights with one gradient, one that comes expanded and one that comes transposed."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.zeros(CLASSES, FEATURES)) for _ in range(2))
            self.turned = nn.Parameter(torch.zeros(CLASSES, ROWS))
            self.summed = nn.Parameter(torch.zeros(CLASSES, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.a + self.b).T + self.turned.T + self.summed.sum(1)

    x, y = _rows()
    problem = _problem(Bare())
    _, gradient, _ = problem.nll(problem.start(), (x, y), po.Random(0))
    wanted = gradient["b"].clone()
    for name, leaf in gradient.items():
        assert leaf.is_contiguous(), name
    gradient["a"].mul_(3.0)
    assert torch.equal(gradient["b"], wanted)


def test_clip_scales_the_gradient_once_and_tells_the_norm_before() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.zeros(CLASSES, FEATURES)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.a + self.b).T  # one gradient for both: clipped twice if they shared memory

    x, y = _rows()
    free, clipped = _problem(Sum()), _problem(Sum(), clip=0.01)
    _, gradient, info = free.nll(free.start(), (x, y), po.Random(0))
    _, small, told = clipped.nll(clipped.start(), (x, y), po.Random(0))
    assert float(told.gradient_norm) == float(info.gradient_norm) > 0.01
    _close(small, {name: leaf * 0.01 / info.gradient_norm for name, leaf in gradient.items()}, rtol=1e-5)
    wide = _problem(Sum(), clip=100.0)
    _close(wide.nll(wide.start(), (x, y), po.Random(0))[1], gradient, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite_is_told(bad: float) -> None:
    x, y = _rows()
    problem = _problem()
    theta = problem.start()
    theta["2.weight"][0, 0] = bad
    _, _, info = problem.nll(theta, (x, y), po.Random(0))
    assert info.finite.tolist() == [False]


def test_bf16_is_a_matter_of_the_forward_only() -> None:
    (x, y), net = _rows(), _net()
    seen: list[torch.dtype] = []
    net[2].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    exact, half = _problem(net), _problem(net, precision="bf16")
    nll, gradient, _ = exact.nll(exact.start(), (x, y), po.Random(0))
    rough, rounded, _ = half.nll(half.start(), (x, y), po.Random(0))
    assert seen == [torch.float32, torch.bfloat16]
    assert rough.dtype == torch.float32
    assert all(leaf.dtype == torch.float32 for leaf in rounded.values())
    assert half.outputs(half.start(), x).dtype == torch.bfloat16
    # bfloat16 keeps 8 bits: 0.4 % for each of the three roundings on the way
    assert 0.0 < abs(float(rough - nll)) < 0.02 * float(nll)
    scale = max(float(leaf.abs().max()) for leaf in gradient.values())
    _close(rounded, gradient, atol=0.03 * scale)


def test_the_likelihood_and_the_backward_pass_are_outside_of_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, seen = _problem(precision="bf16"), []
    inner = problem.row_log_probs

    def row_log_probs(*args: Any) -> Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return inner(*args)

    monkeypatch.setattr(problem, "row_log_probs", row_log_probs)
    problem.nll(problem.start(), _rows(), po.Random(0))
    assert seen == [False]


def test_factored_weights_have_gradients_by_their_parts() -> None:
    (x, y), net = _rows(), _net()
    problem = _problem(net)
    theta = problem.start()
    left, right = torch.randn(CLASSES, 2), torch.randn(HIDDEN, 2)
    made = Factored(left, right)
    dense = {**theta, "2.weight": left @ right.T}
    _, gradient, _ = problem.nll({**theta, "2.weight": made}, (x, y), po.Random(0))
    _, wanted, _ = problem.nll(dense, (x, y), po.Random(0))
    found = gradient["2.weight"]
    assert isinstance(found, Factored)
    parts = [getattr(found, part) for part in found.parts]
    assert torch.allclose(parts[0], wanted["2.weight"] @ right, rtol=1e-4, atol=1e-6)
    assert torch.allclose(parts[1], wanted["2.weight"].T @ left, rtol=1e-4, atol=1e-6)


# --- the Hessian -------------------------------------------------------------------------------------------------------


def test_hvp_is_the_hessian_times_the_vector() -> None:
    (x, y), net = _rows(), _net()
    problem = _problem(net)
    theta = problem.start()
    vector = po.Random(1).normals(theta)
    found = problem.hvp(theta, (x, y), po.Random(0), vector)

    def loss(*leaves: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, dict(zip(theta, leaves)), (x,)), y)

    _, wanted = torch.autograd.functional.hvp(loss, tuple(theta.values()), tuple(vector.values()))
    _close(found, dict(zip(theta, wanted)), rtol=1e-4, atol=1e-6)


def test_hvp_of_a_loss_linear_in_the_weights_is_zero() -> None:
    net = nn.Linear(FEATURES, 1, bias=False)
    net.unused = nn.Parameter(torch.ones(2))
    problem = po.NetworkProblem(net, "poisson", data_size=ROWS)
    theta = {**problem.start(), "weight": torch.zeros(1, FEATURES)}
    x = torch.zeros(ROWS, FEATURES)
    found = problem.hvp(theta, (x, torch.zeros(ROWS)), po.Random(0), po.Random(1).normals(theta))
    assert {name: float(leaf.abs().sum()) for name, leaf in found.items()} == {"weight": 0.0, "unused": 0.0}


def test_hvp_has_the_noise_of_the_gradient() -> None:
    x, y = _rows()
    problem = _problem(_net(0, nn.Dropout(0.5)))
    theta, random, step = problem.start(), po.Random(4), 1e-3
    vector = po.Random(1).normals(theta)
    found = problem.hvp(theta, (x, y), random, vector)
    up, down = (
        problem.nll({n: leaf + sign * step * vector[n] for n, leaf in theta.items()}, (x, y), random)[1]
        for sign in (1.0, -1.0)
    )
    # central differences of float32 gradients: 1e-7 / 1e-3 by rounding, step^2 by the third derivative
    _close(found, {name: (up[name] - down[name]) / (2 * step) for name in found}, rtol=0.02, atol=1e-3)


# --- the probe ---------------------------------------------------------------------------------------------------------


class _Routed(nn.Module):
    """Rows with a positive sum go one way, the others another; a third layer is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.unused = (nn.Linear(FEATURES, CLASSES) for _ in range(3))
        self.unused_frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_zeros(len(x), CLASSES)
        for layer, rows in ((self.up, x.sum(1) > 0), (self.down, x.sum(1) <= 0)):
            if bool(rows.any()):
                out[rows] = layer(x[rows])
        return out


UNUSED = {"unused.weight", "unused.bias"}


def test_the_probe_finds_weights_that_no_batch_reaches() -> None:
    _, y = _rows()
    x = torch.ones(ROWS, FEATURES)
    problem = _problem(_Routed())
    problem.probe((x, y), po.Random(0), more=[(x, y), (-x, y)])
    assert problem.idle == UNUSED
    _, gradient, _ = problem.nll(problem.start(), (-x, y), po.Random(0))
    assert float(gradient["up.weight"].abs().sum()) == 0.0
    assert float(gradient["down.weight"].abs().sum()) > 0.0


def test_a_weight_that_is_reached_later_after_all_is_an_error() -> None:
    _, y = _rows()
    x = torch.ones(ROWS, FEATURES)
    problem = _problem(_Routed())
    problem.probe((x, y), po.Random(0))
    assert problem.idle == UNUSED | {"down.weight", "down.bias"}
    with pytest.raises(po.CompatibilityError, match="'down.weight' was taken for unused: none of the first batches"):
        problem.nll(problem.start(), (-x, y), po.Random(0))


def test_the_probe_reads_no_more_than_it_needs() -> None:
    x, y = _rows()

    def more() -> Any:
        raise AssertionError("every weight is reached by the first batch")
        yield

    _problem().probe((x, y), po.Random(0), more=more())


def test_the_probe_passes_over_single_rows_where_a_normalisation_needs_several() -> None:
    x, y = _rows()
    problem = _problem(nn.Sequential(nn.BatchNorm1d(FEATURES), _Routed()))
    problem.probe((x, y), po.Random(0), more=[(x[:1], y[:1]), (x, y)])
    assert problem.idle == {f"1.{name}" for name in UNUSED}


def test_the_probe_starts_nothing() -> None:
    x, y = _rows()
    net = _net(0, nn.BatchNorm1d(HIDDEN), nn.Dropout())
    problem = _problem(net)
    before = {name: leaf.clone() for name, leaf in problem.start().items()}
    state = torch.get_rng_state()
    problem.probe((x, y), po.Random(0))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(leaf, before[name]) for name, leaf in problem.start().items())
    assert net.training


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda m, x: m.head(x).detach(), "does not depend on any trainable weight: is the forward under no_grad"),
        (lambda m, x: (m.head(x), x), "returned a tuple of 2; categorical wants one tensor"),
        (lambda m, x: m.head(x)[:, :1], r"logits \[rows, classes >= 2, ...\], got \(7, 1\)"),
    ],
)
def test_the_probe_lets_misfits_speak_up(forward: Callable, words: str) -> None:
    class Misfit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(FEATURES, CLASSES)

        def forward(self, x: Tensor) -> Any:
            return forward(self, x)

    with pytest.raises(po.PosterityError, match=words):
        _problem(Misfit()).probe(_rows(), po.Random(0))


# --- starts and settings -----------------------------------------------------------------------------------------------


def test_start_is_a_copy_with_everything_that_changes() -> None:
    net = _net(0, nn.BatchNorm1d(HIDDEN))
    problem = po.NetworkProblem(net, po.Gaussian().surveyed([torch.randn(ROWS, CLASSES)]), data_size=ROWS)
    theta = problem.start()
    norm = {f"{BUFFER}2.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert theta.keys() == {name for name, _ in net.named_parameters()} | norm | {LIKELIHOOD + "log_std"}
    theta["0.weight"].zero_()
    theta[BUFFER + "2.running_var"].zero_()
    assert float(net[0].weight.detach().abs().sum()) > 0
    assert float(net[2].running_var.sum()) == HIDDEN


def test_starts() -> None:
    problem, random = _problem(), po.Random(0)
    own, one, two = problem.starts(3, "reset", random)
    assert torch.equal(own["0.weight"], problem.network.module[0].weight)
    assert not torch.equal(one["0.weight"], two["0.weight"])
    assert torch.equal(one["0.weight"], problem.starts(2, "reset", random)[1]["0.weight"])
    same = problem.starts(2, "same", random)
    assert torch.equal(same[1]["0.weight"], own["0.weight"])
    assert same[1]["0.weight"].data_ptr() != same[0]["0.weight"].data_ptr()
    with pytest.raises(po.CompatibilityError, match="'reset' or at the 'same' weights, got 'fresh'"):
        problem.starts(2, "fresh", random)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"data_size": 0}, po.DataError, "data_size must be at least 1 row, got 0"),
        ({"data_weight": 0.0}, po.DataError, "data_weight must be finite and > 0, got 0.0"),
        ({"data_weight": float("inf")}, po.DataError, "data_weight must be finite"),
        ({"precision": "fp16"}, po.CompatibilityError, "'float32' or 'bf16', got 'fp16'"),
        ({"clip": 0.0}, po.CompatibilityError, "clip must be > 0, got 0.0"),
        ({"prior": "cauchy"}, po.PriorError, "unknown prior 'cauchy'"),
    ],
)
def test_refuses(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        po.NetworkProblem(_net(), "categorical", **{"data_size": ROWS, **options})


def test_a_batch_without_rows_is_an_error() -> None:
    with pytest.raises(po.DataError, match="a batch has no rows"):
        _problem().nll(_problem().start(), (torch.zeros(0, FEATURES), torch.zeros(0)), po.Random(0))


class _Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x).unsqueeze(1)
        return self.head(nn.functional.scaled_dot_product_attention(h, h, h).squeeze(1).mean(1))


def test_attention_has_a_hessian() -> None:
    """Its fused kernels have no second derivative; the plain one has."""
    with po.Random(0).forked():
        net = _Attending()
    problem = po.NetworkProblem(net, po.Categorical(classes=(0, 1)), data_size=7)
    batch = Batch(po.Random(1).normal((7, 5, 3)), torch.arange(7) % 2, rows=7)
    problem.probe(batch, po.Random(2))
    theta = problem.start()
    vector = {name: torch.ones_like(leaf) for name, leaf in theta.items()}
    found = problem.hvp(theta, batch, po.Random(2), vector)
    h = 1e-3
    up, down = ({n: leaf + s * h for n, leaf in theta.items()} for s in (1, -1))
    grads = [problem.nll(one, batch, po.Random(2))[1] for one in (up, down)]
    for name, leaf in found.items():
        # central differences in float32: rounding of 1e-7 / 1e-3
        assert torch.allclose(leaf, (grads[0][name] - grads[1][name]) / (2 * h), atol=2e-3)
