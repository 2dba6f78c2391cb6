"""Every network of the zoo, with every method: it fits, it predicts, and it is left as it was."""

from __future__ import annotations

import random as python_random
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

import posterity as po
from posterity.problem.batches import Batch, copied
from posterity.problem.likelihoods import likelihood_from
from posterity.problem.network import Network
from posterity.tree import BUFFER, LIKELIHOOD

from .zoo import ROWS, ZOO, Animal

with suppress(ImportError):
    from . import zoo_transformers  # noqa: F401

METHODS = {
    "map": po.MAP(),
    "ensemble": po.DeepEnsemble(members=2),
    "mean-field": po.MeanFieldVI(),
    "ivon": po.IVON(),
    "laplace": po.LastLayerLaplace(),
}
DRAWS = 3


class The:
    """An object itself: equal to nothing else, and kept alive, so that its address is not given away."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, The) and self.value is other.value

    __hash__ = None


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().clone().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _parts(value: Any, place: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Every object in `value` by place: what it is, and what it holds."""
    if isinstance(value, int | float | str | bool | None):
        yield place, value
        return
    yield place, The(value)
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        grad = value.grad if value.is_leaf else None
        yield f"{place}: content", (value.dtype, tuple(value.shape), value.requires_grad, id(grad), _bytes(value))
    elif isinstance(value, np.ndarray):
        yield f"{place}: content", value.tobytes()
    elif isinstance(value, nn.Module):
        for name, part in vars(value).items():
            yield from _parts(part, f"{place}.{name}", seen)
    elif isinstance(value, Mapping):
        yield f"{place}: keys", list(value)
        for key, part in value.items():
            yield from _parts(part, f"{place}[{key!r}]", seen)
    elif isinstance(value, list | tuple | set | deque):
        for i, part in enumerate(value):
            yield from _parts(part, f"{place}[{i}]", seen)


def photograph(module: nn.Module, *others: Any) -> dict[str, Any]:
    """The module with all that hangs on it, other values, and the global generators."""
    seen: set[int] = set()
    parts = [_parts(value, f"{i}", seen) for i, value in enumerate((module, *others))]
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        **{place: part for found in parts for place, part in found},
        "torch": torch.get_rng_state().numpy().tobytes(),
        "python": python_random.getstate(),
        "numpy": (kind, keys.tobytes(), *rest),
    }


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [place for place in before | after if before.get(place, "absent") != after.get(place, "absent")]


def test_the_photograph_sees_what_a_forward_may_change() -> None:
    for change in (
        lambda net: net.register_buffer("late", torch.zeros(1)),
        lambda net: net.seen.append(1),
        lambda net: net.book["means"].append(1.0),
        lambda net: net.calls.add_(1),
        lambda net: net.tally.__iadd__(1),
        lambda net: net.head.eval(),
        lambda net: net.head.weight.data.neg_(),
        lambda net: net.head.weight.requires_grad_(False),
        lambda net: net.head.register_forward_hook(print),
        lambda net: setattr(net, "hidden", 1),
        lambda net: torch.rand(1),
        lambda net: python_random.random(),
    ):
        torch.manual_seed(0)
        net, x, y = ZOO["remembers"].build()
        before = photograph(net, x, y)
        assert not _differences(before, photograph(net, x, y))
        change(net)
        assert _differences(before, photograph(net, x, y))


def _data(animal: Animal, x: Any, y: Any) -> Any:
    if animal.target is None:
        return x, y
    rows = [{**{name: part[i] for name, part in x.items()}, animal.target: y[i]} for i in range(ROWS)]

    def collate(parts: list) -> Any:
        return type(x)(default_collate(parts))

    return DataLoader(rows, batch_size=4, collate_fn=collate)


def _fit(animal: Animal, net: nn.Module, x: Any, y: Any, method: po.Algorithm, **options: Any) -> po.BayesianModel:
    options = {"target": animal.target, "output": animal.output, "steps": 2, "progress": False, **options}
    if animal.target is None:
        options["batch_size"] = 4
    return po.fit(net, _data(animal, x, y), animal.likelihood, method, **options)


def _build(animal: Animal) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(1)
    python_random.seed(1)
    return animal.build()


def _numbers(pred: po.Predictive) -> Tensor:
    return pred.probs if hasattr(pred, "probs") else pred.mean


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_fits_predicts_and_is_left_as_it_was(name: str, method: str, tmp_path: Path) -> None:
    animal, algorithm = ZOO[name], METHODS[method]
    net, x, y = _build(animal)
    before = photograph(net, x, y)
    if method == "laplace" and animal.laplace is not None:
        epochs: list = []
        with pytest.raises(po.CompatibilityError, match=animal.laplace):
            _fit(animal, net, x, y, algorithm, callbacks=[epochs.append])
        assert epochs == []  # said before anything was trained
        assert _differences(before, photograph(net, x, y)) == []
        return
    if method == "ensemble" and animal.no_reset:
        with pytest.warns(po.PosterityWarning, match="no module resets") as warned:
            model = _fit(animal, net, x, y, algorithm)
        assert all(repr(parameter) in str(warned[0].message) for parameter in animal.no_reset)
    else:
        model = _fit(animal, net, x, y, algorithm)
    assert _differences(before, photograph(net, x, y)) == []

    finite = model.posterior.finite
    pred = model.predict(x, draws=DRAWS if finite is None else finite)
    assert _differences(before, photograph(net, x, y)) == []
    assert tuple(_numbers(pred).shape) == animal.shape
    assert bool(torch.isfinite(_numbers(pred)).all())
    assert torch.equal(_numbers(pred), _numbers(model.predict(x, draws=DRAWS if finite is None else finite)))

    assert model.problem.idle == set(animal.idle)
    start = model.problem.start()
    theta = next(model.posterior.draws(1, po.Random(0)))
    for leaf in (leaf for leaf in start if not leaf.startswith((BUFFER, LIKELIHOOD)) and leaf not in animal.idle):
        moved = not torch.equal(theta[leaf], start[leaf])
        assert moved, f"{leaf} was not trained"

    if method == "mean-field":
        model.save(tmp_path)
        other, _, _ = _build(animal)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1.0)  # the run brings all numbers, frozen ones too
        loaded = po.load(tmp_path, other, output=animal.output)
        assert torch.equal(_numbers(pred), _numbers(loaded.predict(x, draws=DRAWS)))


@pytest.mark.parametrize("name", ZOO)
def test_members_start_apart(name: str) -> None:
    """Every trainable tensor that its own initialiser makes random differs between members; frozen ones do not."""
    animal = ZOO[name]
    net, x, y = _build(animal)
    before = photograph(net)
    network = Network(net)
    start = {leaf: value.clone() for leaf, value in network.trainable.items()}
    fresh = network.reset(start, po.Random(0).fold(1))
    again = network.reset(start, po.Random(0).fold(1))
    assert _differences(before, photograph(net)) == []
    for leaf, value in start.items():
        assert torch.equal(fresh[leaf], again[leaf])
        constant = value.numel() < 2 or bool((value == value.flatten()[0]).all())
        assert constant or not torch.equal(fresh[leaf], value), f"{leaf} is the same in both members"
        # The stds of 16 numbers differ by a factor of 2 once in 10^2, by 4 once in 10^7.
        assert constant or value.numel() < 16 or 0.25 < float(fresh[leaf].std() / value.std()) < 4.0, leaf


def _problem(animal: Animal, net: nn.Module, x: Any, y: Any, **options: Any) -> tuple[po.NetworkProblem, Batch]:
    likelihood = likelihood_from(animal.likelihood)
    batch = Batch(dict(x) if isinstance(x, Mapping) else x, y, None, ROWS)
    likelihood = likelihood.surveyed([y]) if likelihood.needs_survey else likelihood
    problem = po.NetworkProblem(Network(net, animal.output), likelihood, data_size=ROWS, **options)
    problem.probe(batch, po.Random(0))
    return problem, batch


@pytest.mark.parametrize("name", ZOO)
def test_the_gradient_is_that_of_plain_torch(name: str) -> None:
    """`backward` on a twin of the network, under the same randomness."""
    animal = ZOO[name]
    problem, batch = _problem(animal, *_build(animal))
    theta = problem.start()
    random = po.Random(3)
    nll, gradient, info = problem.nll(theta, batch, random)

    twin, _, _ = _build(animal)
    with random.fold("forward").forked(data=True):
        args, kwargs = problem.network.arguments(copied(batch.inputs))
        outputs = problem.network.choose(twin(*args, **kwargs))
        loss = -problem.row_log_probs(theta, outputs, batch.targets).sum() / ROWS
        loss.backward()
    assert torch.equal(nll, loss.detach().float())
    for leaf, parameter in twin.named_parameters():
        if parameter.requires_grad:
            wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            assert torch.equal(gradient[leaf], wanted.to_dense()), leaf
    state = dict(twin.named_buffers())
    for leaf, value in info.buffers.items():
        assert torch.equal(value[0], state[leaf.removeprefix(BUFFER)]), leaf


@pytest.mark.parametrize("name", [name for name, animal in ZOO.items() if animal.laplace is None])
def test_the_last_layer_is_the_exact_gauss_newton_matrix(name: str) -> None:
    """J^T F J summed over the rows, with J by one backward pass for each output of each row."""
    animal = ZOO[name]
    problem, batch = _problem(animal, *_build(animal))
    method = po.LastLayerLaplace()
    state = method.init(problem, problem.start(), po.Random(0), po.Plan(ROWS, 1, 1))
    state, _ = method.step(problem, state, [batch], po.Random(0))
    (found,) = state.curvature.values()

    names = list(state.prior)
    theta = {leaf: value.requires_grad_(leaf in names) for leaf, value in problem.start().items()}
    outputs = problem.outputs(theta, batch)
    parts = outputs if isinstance(outputs, tuple) else (outputs,)
    flat = torch.cat([part.reshape(ROWS, -1) for part in parts], 1)
    fisher = problem.likelihood.fisher(outputs, {k.removeprefix(LIKELIHOOD): v for k, v in theta.items()}).detach()
    wanted = torch.zeros_like(found[0])
    for r in range(ROWS):
        rows = []
        for value in flat[r]:
            by = torch.autograd.grad(value, [theta[leaf] for leaf in names], retain_graph=True)
            columns = [part.reshape(part.shape[0], -1) for part in by]  # unit by unit, the bias last
            rows.append(torch.cat(columns, 1).reshape(-1))
        jacobian = torch.stack(rows).double()
        wanted += jacobian.T @ fisher[r].double() @ jacobian
    # float32 sums of at most 100 products, each rounded to 6e-8 of terms that are at most 10 times the result
    assert torch.allclose(found[0], wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    assert float(wanted.abs().max()) > 0


@pytest.mark.parametrize(
    "name", ["tokens_pooled", "transformer_encoder", "head_called_twice", "batch_norm_2d", "student_t"]
)
def test_the_last_layer_in_half_precision(name: str) -> None:
    """The checks of every pass allow for the rounding of bfloat16, and the curvature is that of float32 but for it."""
    curvatures = []
    for precision in ("float32", "bf16"):
        problem, batch = _problem(ZOO[name], *_build(ZOO[name]), precision=precision)
        method = po.LastLayerLaplace()
        state = method.init(problem, problem.start(), po.Random(0), po.Plan(ROWS, 1, 1))
        state, info = method.step(problem, state, [batch], po.Random(0))
        assert info.finite.tolist() == [True]
        curvatures += state.curvature.values()
    exact, rounded = curvatures
    # bfloat16 keeps 8 bits; features, Jacobian and Fisher information are rounded, each up to 0.4 % a factor
    assert float((rounded - exact).norm() / exact.norm()) < 0.03


def test_a_last_layer_that_changes_from_batch_to_batch_is_refused() -> None:
    problem, batch = _problem(ZOO["unused_layer"], *_build(ZOO["unused_layer"]))
    method = po.LastLayerLaplace()
    state = method.init(problem, problem.start(), po.Random(0), po.Plan(ROWS, 1, 1))
    state, _ = method.step(problem, state, [batch], po.Random(0))
    problem.network.module._does = lambda m, x: m.unused(x).sum(1, keepdim=True) * torch.ones(5)
    with pytest.raises(po.CompatibilityError, match=r"holds \['head.weight', 'head.bias'\] on one batch and \['unused"):
        method.step(problem, state, [batch], po.Random(0))


@pytest.mark.parametrize("pair", [False, True])
def test_the_fisher_information_goes_by_the_order_of_the_outputs(pair: bool) -> None:
    """The expected outer product of the score, by Gauss-Hermite quadrature over the target: exact for a normal."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(2, 3, 2, generator=generator, dtype=torch.float64)  # rows, positions, mean and log std
    parts = raw.unbind(-1)
    likelihood = po.Heteroscedastic(standardize=False)
    found = likelihood.fisher(parts if pair else raw, {})
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    for r, t in ((0, 0), (1, 2)):
        wanted = torch.zeros(2, 2, dtype=torch.float64)
        for node, weight in zip(nodes, weights / weights.sum()):
            leaf = raw[r, t].clone().requires_grad_()
            target = float((leaf[0] + node * leaf[1].exp()).detach())
            (score,) = torch.autograd.grad(
                likelihood.log_density(torch.tensor(target, dtype=torch.float64), leaf[0], leaf[1]), leaf
            )
            wanted += weight * torch.outer(score, score)
        places = [t, 3 + t] if pair else [2 * t, 2 * t + 1]
        assert torch.allclose(found[r][places][:, places], wanted, rtol=1e-10, atol=1e-10)
