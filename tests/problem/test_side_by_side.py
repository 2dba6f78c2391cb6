"""Members side by side against the loop: every network, likelihood and batch by every path that takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import posterity as po
from posterity.problem.batches import Batch, Reader
from posterity.problem.likelihoods import Likelihood
from posterity.problem.likelihoods.regression import LocationScale
from posterity.problem.scaling import Scaling
from posterity.tree import BUFFER, LIKELIHOOD, Tree, stack

MEMBERS, ROWS, FEATURES, CLASSES, HIDDEN = 4, 7, 3, 5, 11

# products of at most 66 terms in another order: some units of 2^-24 (2^-53) of numbers of order 1
CLOSE = {torch.float32: 1e-6, torch.float64: 1e-12}


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _built(make: Callable[[], nn.Module]) -> nn.Module:
    with po.Random(5).forked():
        return make()


def _perceptron(*between: nn.Module, outputs: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), *between, nn.Linear(HIDDEN, outputs))


def _problem(net: nn.Module, likelihood: Likelihood | str, batch: Any, how: str, **options: Any) -> po.NetworkProblem:
    problem = po.NetworkProblem(net, likelihood, data_size=ROWS, side_by_side=how, **options)
    problem.probe(batch[0] if isinstance(batch, list) else batch, po.Random(0))
    return problem


def _members(problem: po.NetworkProblem, members: int = MEMBERS) -> Tree:
    """Weights of members that differ."""
    start = problem.start()
    fixed = [name for name in start if name.startswith(BUFFER)]
    return {
        name: torch.stack([leaf if name in fixed else leaf + 0.3 * po.Random(k).fold(name).normal(tuple(leaf.shape), leaf)
                           for k in range(members)])
        for name, leaf in start.items()
    }  # fmt: skip


def _randoms(members: int = MEMBERS) -> list[po.Random]:
    return [po.Random(7).fold(k).fold(1) for k in range(members)]


def _paths(problem: po.NetworkProblem, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which every later `nlls` adds the path that gave its answer: "loop" for one member of it."""
    taken: list[str] = []
    together, alone = problem._side_by_side._measured, problem._own

    def _measured(thetas: Tree, joints: Any, path: str) -> Any:
        found = together(thetas, joints, path)
        taken.append(path)
        return found

    def _own(*args: Any) -> Any:
        taken.append("loop")
        return alone(*args)

    monkeypatch.setattr(problem._side_by_side, "_measured", _measured)
    monkeypatch.setattr(problem, "_own", _own)
    return taken


def _agree(one: Any, other: Any, dtype: torch.dtype = torch.float32) -> None:
    """Losses, gradients (relative to the largest of a tensor, or 1), norms and flags of two answers."""
    near = CLOSE[dtype]
    assert one[2].finite.tolist() == other[2].finite.tolist()
    assert torch.allclose(one[0], other[0], rtol=1e-6, atol=1e-6, equal_nan=True)  # float32 in any case
    assert torch.equal(one[0], one[2].nll) or bool(one[0].isnan().any())
    assert torch.allclose(one[2].gradient_norm, other[2].gradient_norm, rtol=4 * near, atol=near, equal_nan=True)
    assert one[1].keys() == other[1].keys()
    for name, leaf in other[1].items():
        assert one[1][name].dtype == leaf.dtype
        assert one[1][name].shape == leaf.shape
        scale = max(1.0, float(leaf.nan_to_num().abs().max()))
        assert torch.allclose(one[1][name], leaf, rtol=0, atol=near * scale, equal_nan=True), name


def _compare(
    net: nn.Module, likelihood: Likelihood | str, batches: list[Any], path: str, monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype = torch.float32, **options: Any,
) -> Any:  # fmt: skip
    """The answer by `path`, which is what "auto" takes, after it was held against the loop's."""
    auto, loop = (_problem(net, likelihood, batches[0], how, **options) for how in ("auto", "loop"))
    thetas = _members(loop, len(batches))
    taken = _paths(auto, monkeypatch)
    found, wanted = (p.nlls(thetas, batches, _randoms(len(batches))) for p in (auto, loop))
    assert taken == ([path] if path != "loop" else ["loop"] * len(batches))
    _agree(found, wanted, dtype)
    return found


# --- networks ----------------------------------------------------------------------------------------------------------


class Mean(nn.Module):
    """Tokens in, the mean of their vectors, scores out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(13, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        kept = mask[..., None].to(self.table.weight.dtype)
        return self.head((self.table(tokens) * kept).sum(1) / kept.sum(1))


def _frozen(*names: str) -> nn.Module:
    net = _perceptron(nn.Linear(HIDDEN, HIDDEN), nn.GELU())
    for name in names:
        net.get_parameter(name).requires_grad_(False)
    return net


def _head() -> nn.Module:
    return nn.Linear(HIDDEN, CLASSES)


def _silent() -> nn.Module:
    net = _perceptron(nn.Dropout(0.5), nn.Dropout(0.0), nn.Identity())
    net[2].eval()
    return net


PICTURE = (2, FEATURES)

FLAT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (_perceptron, (FEATURES,)),
    "linear": (lambda: nn.Linear(FEATURES, CLASSES), (FEATURES,)),
    "no bias": (lambda: nn.Sequential(nn.Linear(FEATURES, HIDDEN, bias=False), nn.SiLU(), _head()), (FEATURES,)),
    "nested": (lambda: nn.Sequential(nn.Sequential(_perceptron(nn.Softplus())), nn.ReLU(inplace=True)), (FEATURES,)),
    "silent dropout": (_silent, (FEATURES,)),
    "flattened": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(2 * FEATURES, HIDDEN), nn.ELU(), _head()), PICTURE),
    "by position": (lambda: nn.Sequential(_perceptron(), nn.Flatten(1, 2), nn.Linear(2 * CLASSES, CLASSES)), PICTURE),
    "first frozen": (lambda: _frozen("0.weight", "0.bias"), (FEATURES,)),
    "middle frozen": (lambda: _frozen("2.weight", "2.bias"), (FEATURES,)),
    "weight frozen": (lambda: _frozen("2.weight"), (FEATURES,)),
    "bias frozen": (lambda: _frozen("2.bias", "0.bias"), (FEATURES,)),
    "weights frozen, by position": (
        lambda: nn.Sequential(_frozen("0.weight", "2.weight"), nn.Flatten(1, 2), nn.Linear(2 * CLASSES, CLASSES)), PICTURE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", FLAT)
def test_perceptrons(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = FLAT[name]
    batches = [(_draw(ROWS, *shape, seed=k).to(dtype), (torch.arange(ROWS) + k) % CLASSES) for k in range(MEMBERS)]
    _compare(_built(make).to(dtype), "categorical", batches, "flat", monkeypatch, dtype)
    _compare(
        _built(make).to(dtype), "categorical", [batches[0]] * MEMBERS, "flat", monkeypatch, dtype
    )  # a shared batch


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("frozen", [(), ("2.weight", "0.bias")])
def test_networks_by_vmap(dtype: torch.dtype, frozen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    net = _built(lambda: _perceptron(nn.LayerNorm(HIDDEN))).to(dtype)
    for name in frozen:
        net.get_parameter(name).requires_grad_(False)
    batches = [(_draw(ROWS, FEATURES, seed=k).to(dtype), (torch.arange(ROWS) + k) % CLASSES) for k in range(MEMBERS)]
    _compare(net, "categorical", batches, "vmap", monkeypatch, dtype)
    _compare(net, "categorical", [batches[0]] * MEMBERS, "vmap", monkeypatch, dtype)


@pytest.mark.parametrize("as_tuple", [True, False])
def test_several_inputs(as_tuple: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Any] = []
    for k in range(MEMBERS):
        tokens = torch.randint(13, (ROWS, FEATURES), generator=torch.Generator().manual_seed(k))
        mask = torch.ones(ROWS, FEATURES, dtype=torch.bool)
        mask[k, 1:] = False
        labels = (torch.arange(ROWS) + k) % CLASSES
        batches.append((tokens, mask, labels) if as_tuple else {"tokens": tokens, "mask": mask, "labels": labels})
    reader = Reader() if as_tuple else Reader(target="labels")
    _compare(_built(Mean), "categorical", batches, "vmap", monkeypatch, reader=reader)


def test_a_constant_buffer_and_one_output_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(FEATURES, CLASSES)
            self.register_buffer("shift", torch.full((FEATURES,), 0.5))

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"hidden": x, "logits": self.head(x - self.shift)}

    _compare(_built(Several), "categorical", _batches(), "vmap", monkeypatch)


def _batches(members: int = MEMBERS) -> list[Any]:
    return [(_draw(ROWS, FEATURES, seed=k), (torch.arange(ROWS) + k) % CLASSES) for k in range(members)]


# --- likelihoods -------------------------------------------------------------------------------------------------------

SCALING = Scaling(torch.tensor([2.0, -1.0]), torch.tensor([3.0, 0.5]))
NUMBERS = [_draw(ROWS, 2, seed=50 + k) for k in range(MEMBERS)]
LABELS = [(torch.arange(ROWS) + k) % CLASSES for k in range(MEMBERS)]
SOFT = _draw(ROWS, CLASSES).softmax(1)
NAMES = np.array(["ant", "bee", "cat", "dog", "eel"])

LIKELIHOODS: dict[str, tuple[Likelihood | str, int, list[Any]]] = {
    "gaussian": (po.Gaussian(scaling=SCALING), 2, NUMBERS),
    "known gaussian": (po.Gaussian(scaling=SCALING, std=0.7), 2, NUMBERS),
    "heteroscedastic": (po.Heteroscedastic(scaling=SCALING), 4, NUMBERS),
    "student-t": (po.StudentT(scaling=SCALING), 2, NUMBERS),
    "poisson": ("poisson", 2, [(3 * values.abs()).round() for values in NUMBERS]),
    "bernoulli": ("bernoulli", 1, [labels % 2 for labels in LABELS]),
    "multilabel": ("multilabel", 2, [(values > 0).float() for values in NUMBERS]),
    "strings": (po.Categorical(classes=tuple(NAMES.tolist())), CLASSES, [NAMES[labels] for labels in LABELS]),
    "lists": ("categorical", CLASSES, [labels.tolist() for labels in LABELS]),
    "soft": ("categorical", CLASSES, [_draw(ROWS, CLASSES, seed=k).softmax(1) for k in range(MEMBERS)]),
    "hard and soft": ("categorical", CLASSES, [F.one_hot(LABELS[0], CLASSES).float(), *[SOFT] * 3]),
    "ignored": ("categorical", CLASSES, [labels.masked_fill(labels == k, -100) for k, labels in enumerate(LABELS)]),
    "class weights": (po.Categorical(class_weight=(1.0, 2.0, 0.5, 3.0, 1.0)), CLASSES, LABELS),
}  # fmt: skip


@pytest.mark.parametrize("path", ["flat", "vmap"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods(name: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood, outputs, targets = LIKELIHOODS[name]
    between = [] if path == "flat" else [nn.LayerNorm(HIDDEN)]
    net = _built(lambda: _perceptron(*between, outputs=outputs))
    batches: list[Any] = [(_draw(ROWS, FEATURES, seed=k), y) for k, y in enumerate(targets)]
    found = _compare(net, likelihood, batches, path, monkeypatch)
    own = [leaf for name, leaf in found[1].items() if name.startswith(LIKELIHOOD)]
    assert all(bool((leaf != 0).all()) for leaf in own)
    assert bool(own) == (name in ("gaussian", "student-t"))
    _compare(net, likelihood, [batches[1]] * 3, path, monkeypatch)


def test_a_pair_of_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.log_std = nn.Linear(FEATURES, 2), nn.Linear(FEATURES, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.mean(x), self.log_std(x)

    batches = [(_draw(ROWS, FEATURES, seed=k), NUMBERS[k]) for k in range(MEMBERS)]
    _compare(_built(Two), po.Heteroscedastic(scaling=SCALING), batches, "vmap", monkeypatch)
    _compare(_built(Two), po.Heteroscedastic(scaling=SCALING), [batches[0]] * 3, "vmap", monkeypatch)


def test_a_likelihood_that_vmap_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own parameters want vmap also on the flat path; both are given up, once."""

    @dataclass(frozen=True)
    class Careful(LocationScale):
        name = "careful"

        def parameters(self) -> Tree:
            return {"log_scale": torch.zeros(())}

        def location_and_log_scale(self, outputs: Any, parameters: Any) -> tuple[Tensor, Tensor]:
            assert float(parameters["log_scale"].detach()) < 9.0
            return outputs, parameters["log_scale"].expand(outputs.shape)

    batches = [(_draw(ROWS, FEATURES, seed=k), NUMBERS[k]) for k in range(MEMBERS)]
    auto, loop = (
        _problem(_built(lambda: _perceptron(outputs=2)), Careful(scaling=SCALING), batches[0], how)
        for how in ("auto", "loop")
    )
    thetas, taken = _members(loop), _paths(auto, monkeypatch)
    wanted = loop.nlls(thetas, batches, _randoms())
    for _ in range(3):
        _agree(auto.nlls(thetas, batches, _randoms()), wanted)
    assert taken == ["loop"] * 3 * MEMBERS


# --- batches -----------------------------------------------------------------------------------------------------------


def _net(path: str) -> nn.Module:
    return _built(lambda: _perceptron(*([] if path == "flat" else [nn.LayerNorm(HIDDEN)])))


both = pytest.mark.parametrize("path", ["flat", "vmap"])


@both
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_row_weights(path: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    net = _net(path).to(dtype)
    batches = [(x.to(dtype), y, torch.arange(ROWS) * 0.3 + k) for k, (x, y) in enumerate(_batches())]
    _compare(net, "categorical", batches, path, monkeypatch, dtype, reader=Reader(weight=-1))
    _compare(net, "categorical", [batches[1]] * 3, path, monkeypatch, dtype, reader=Reader(weight=-1))


@both
def test_accumulated_parts(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Any] = [[(x[:2], y[:2]), (x[2:], y[2:])] for x, y in _batches()]
    taken = _compare(_net(path), "categorical", batches, path, monkeypatch)
    _agree(taken, _compare(_net(path), "categorical", _batches(), path, monkeypatch))
    unlike = [*batches[1:], [batches[0][0]]]  # another number of parts
    _compare(_net(path), "categorical", unlike, "loop", monkeypatch)


@both
@pytest.mark.parametrize("change", ["rows", "dtype", "weights"])
def test_batches_that_do_not_stack_go_one_by_one(path: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _batches()[0]
    weight = torch.ones(ROWS)
    other = {"rows": (x[:2], y[:2]), "dtype": (x, y.int()), "weights": (x, y)}[change]
    batches = [(x, y)] * 3 + [other]
    auto, loop = (_problem(_net(path), "categorical", (x, y), how) for how in (path, "loop"))
    if change == "weights":
        batches = [problem_batch._replace(weight=weight) for problem_batch in map(loop.read, batches)]
        batches[1] = batches[1]._replace(weight=None)
    taken, thetas = _paths(auto, monkeypatch), _members(loop)
    _agree(auto.nlls(thetas, batches, _randoms()), loop.nlls(thetas, batches, _randoms()))
    _agree(auto.nlls(thetas, _batches(), _randoms()), loop.nlls(thetas, _batches(), _randoms()))
    assert taken == ["loop"] * MEMBERS + [path]


@both
def test_a_member_alone_is_the_first_of_eight(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem(_net(path), "categorical", _batches()[0], "auto")
    forced = _problem(_net(path), "categorical", _batches()[0], path)
    thetas, taken = _members(problem, 8), _paths(problem, monkeypatch)
    eight = problem.nlls(thetas, _batches(8), _randoms(8))
    first = (
        eight[0][:1],
        {name: leaf[:1] for name, leaf in eight[1].items()},
        po.Info(*(v[:1] for v in eight[2][:3]), {}),
    )
    alone = {name: leaf[:1] for name, leaf in thetas.items()}
    _agree(problem.nlls(alone, _batches(1), _randoms(1)), first)
    assert taken == [path, "loop"]
    _agree(forced.nlls(alone, _batches(1), _randoms(1)), first)


@both
def test_the_same_bits_again(path: str) -> None:
    thetas = _members(_problem(_net(path), "categorical", _batches()[0], "loop"))
    one, two = (
        _problem(_net(path), "categorical", _batches()[0], "auto").nlls(thetas, _batches(), _randoms())
        for _ in range(2)
    )
    assert torch.equal(one[0], two[0])
    assert all(torch.equal(leaf, two[1][name]) for name, leaf in one[1].items())


@both
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_member_that_is_not_finite_leaves_the_others_alone(
    path: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, loop = (_problem(_net(path), "categorical", _batches()[0], how) for how in ("auto", "loop"))
    thetas = _members(problem)
    good = problem.nlls(thetas, _batches(), _randoms())
    broken = {name: leaf.clone() for name, leaf in thetas.items()}
    broken["0.weight"][2, 0, 0] = bad
    taken = _paths(problem, monkeypatch)
    found, wanted = (each.nlls(broken, _batches(), _randoms()) for each in (problem, loop))
    assert taken == [path]
    finite = found[2].finite.tolist()
    assert finite == wanted[2].finite.tolist()
    assert all(finite[k] for k in (0, 1, 3))
    assert not (np.isnan(bad) and finite[2])
    for k in (0, 1, 3):
        assert float(found[0][k]) == float(good[0][k])
        assert all(torch.equal(leaf[k], good[1][name][k]) for name, leaf in found[1].items())


@both
def test_clipping_is_a_members_own(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    free = _problem(_net(path), "categorical", _batches()[0], "auto")
    norms = free.nlls(_members(free), _batches(), _randoms())[2].gradient_norm
    clip = float(norms.sort().values[1:3].mean())  # two above, two below
    _, gradient, info = _compare(_net(path), "categorical", _batches(), path, monkeypatch, clip=clip)
    assert torch.equal(info.gradient_norm, norms)
    lengths = torch.stack([leaf.flatten(1).norm(dim=1) for leaf in gradient.values()]).norm(dim=0)
    assert torch.allclose(lengths, norms.clamp(max=clip), rtol=1e-5)


@both
def test_gradients_may_be_written_over(path: str) -> None:
    class Bare(nn.Module):
        """Two weights with one gradient, one that comes expanded and one that comes transposed."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(_draw(CLASSES, FEATURES, seed=i)) for i in range(2))
            self.turned = nn.Parameter(torch.zeros(CLASSES, ROWS))
            self.summed = nn.Parameter(torch.zeros(CLASSES, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.a + self.b).T + self.turned.T + self.summed.sum(1)

    net = _net("flat") if path == "flat" else Bare()
    problem = _problem(net, "categorical", _batches()[0], path)
    thetas = _members(problem)
    _, gradient, _ = problem.nlls(thetas, _batches(), _randoms())
    others = [*thetas.values(), *problem.network.trainable.values()]
    memory = [leaf.untyped_storage().data_ptr() for leaf in [*gradient.values(), *others]]
    assert len(set(memory)) == len(memory)
    assert all(leaf.is_contiguous() and not leaf.requires_grad for leaf in gradient.values())


@both
def test_idle_weights_have_a_gradient_of_zero(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = _net(path)
    net.register_parameter("unused", nn.Parameter(torch.ones(2)))
    problem = _problem(net, "categorical", _batches()[0], "auto")
    assert problem.idle == {"unused"}
    taken = _paths(problem, monkeypatch)
    _, gradient, _ = problem.nlls(_members(problem), _batches(), _randoms())
    assert taken == [path]
    assert torch.equal(gradient["unused"], torch.zeros(MEMBERS, 2))


def test_an_idle_weight_that_is_reached_after_all_is_told() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.late, self.use = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES), False

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x) + self.late(x) if self.use else self.head(x)

    net = _built(Late)
    problem = _problem(net, "categorical", _batches()[0], "auto")
    assert problem.idle == {"late.weight", "late.bias"}
    net.use = True
    with pytest.raises(po.CompatibilityError, match="was taken for unused"):
        problem.nlls(_members(problem), _batches(), _randoms())


@both
def test_a_fault_of_the_batch_speaks_as_in_the_loop_and_is_not_remembered(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for how in ("auto", path):
        problem = _problem(_net(path), "categorical", _batches()[0], how)
        thetas, batches = _members(problem), _batches()
        x, y = batches[2]
        batches[2] = (x, y.masked_fill(y == 1, 99))
        with pytest.raises(po.DataError, match=r"unknown label 99 in 1 row \(rows 4\)"):
            problem.nlls(thetas, batches, _randoms())
        taken = _paths(problem, monkeypatch)
        problem.nlls(thetas, _batches(), _randoms())
        assert taken == [path]


# --- what takes turns --------------------------------------------------------------------------------------------------


class Own(nn.Module):
    """A perceptron with a forward of its own."""

    def __init__(self, change: Callable[[nn.Module, Tensor], Tensor] = lambda net, x: x) -> None:
        super().__init__()
        self.body, self.head, self.change = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES), change

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.change(self, torch.tanh(self.body(x))))


class Double(torch.autograd.Function):
    """x -> 2 x, in the old style that vmap cannot read."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Again(nn.Module):
    """A layer whose forward is repeated in the backward pass."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda h: torch.tanh(self.layer(h)), x, use_reentrant=False)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(1, HIDDEN, batch_first=True), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x[..., None])[0][:, -1])


class Subclass(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 3


def _hooked() -> nn.Module:
    net = _perceptron()
    net[1].register_forward_hook(lambda module, args, output: output * 2)
    return net


def _tied() -> nn.Module:
    net = nn.Sequential(
        nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)
    )
    net[2].weight = net[0].weight
    return net  # fmt: skip


def _convolution() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 2, FEATURES), nn.Flatten(), nn.Linear(2, CLASSES))


def _patched() -> nn.Module:
    net = _perceptron()
    net[1].forward = lambda x: torch.tanh(x) * 2
    return net


# what is not flat, and why; by which path it goes
NOT_FLAT: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "subclass": (lambda: nn.Sequential(Subclass(FEATURES, CLASSES)), "'0' is Subclass", "vmap"),
    "own forward": (Own, "'' is Own", "vmap"),
    "hook": (_hooked, "hooks", "vmap"),
    "patched": (_patched, "hooks, or a forward put on an instance", "vmap"),
    "tied": (_tied, "one tensor in two places", "vmap"),
    "parametrized": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(FEATURES, CLASSES))), "'0'", "vmap"),
    "layer norm": (lambda: _perceptron(nn.LayerNorm(HIDDEN)), "'2' is LayerNorm, which holds tensors", "vmap"),
    "prelu": (lambda: _perceptron(nn.PReLU()), "PReLU, which holds tensors", "vmap"),
    "softmax": (lambda: _perceptron(nn.Softmax(-1)), "'2' is Softmax", "vmap"),
    "convolution": (_convolution, "Unflatten", "vmap"),
    "dropout": (lambda: _perceptron(nn.Dropout(0.5)), "'2' is Dropout, which draws", "loop"),
    "batch norm": (lambda: _perceptron(nn.BatchNorm1d(HIDDEN)), "BatchNorm1d, which holds tensors", "loop"),
    "lstm": (Recurrent, "'' is Recurrent", "loop"),
    "noise": (lambda: Own(lambda net, x: x + torch.randn_like(x)), "'' is Own", "loop"),
    "numpy's noise": (lambda: Own(lambda net, x: x * np.random.rand()), "'' is Own", "loop"),  # noqa: NPY002
    "functional dropout": (lambda: Own(lambda net, x: F.dropout(x, 0.5, net.training)), "'' is Own", "loop"),
    "a branch on values": (lambda: Own(lambda net, x: x if bool(x.sum() > 0) else -x), "'' is Own", "loop"),
    "old function": (lambda: Own(lambda net, x: Double.apply(x)), "'' is Own", "loop"),
    "checkpoint": (lambda: Own(lambda net, x: checkpoint(torch.tanh, x, use_reentrant=False)), "'' is Own", "loop"),
    "checkpointed layer": (lambda: nn.Sequential(Own(), Again(nn.Linear(CLASSES, CLASSES))), "'0' is Own", "loop"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_FLAT)
def test_what_is_no_perceptron(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, reason, path = NOT_FLAT[name]
    net = _built(make)
    _compare(net, "categorical", _batches(), path, monkeypatch)
    forced = _problem(net, "categorical", _batches()[0], "flat")
    with pytest.raises(po.CompatibilityError, match="side_by_side='flat' cannot be used here: ") as caught:
        forced.nlls(_members(forced), _batches(), _randoms())
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dropout", "Dropout draws"),
        ("batch norm", r"changes the buffers \['2.num_batches_tracked', '2.running_mean'"),
        ("noise", "random"),
        ("numpy's noise", "its forward draws"),
        ("functional dropout", "random"),
        ("a branch on values", "vmap"),
        ("old function", "functorch"),
        ("checkpoint", "checkpointing"),
        ("checkpointed layer", "checkpointing"),
    ],
)
def test_what_vmap_cannot_do_is_said_where_it_is_asked_for(name: str, reason: str) -> None:
    problem = _problem(_built(NOT_FLAT[name][0]), "categorical", _batches()[0], "vmap")
    for _ in range(2):
        with pytest.raises(po.CompatibilityError, match=f"side_by_side='vmap' cannot be used here: .*{reason}"):
            problem.nlls(_members(problem), _batches(), _randoms())


def test_what_vmap_could_not_do_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def count(net: nn.Module, x: Tensor) -> Tensor:
        calls.append(1)
        return Double.apply(x)

    problem = _problem(_built(lambda: Own(count)), "categorical", _batches()[0], "auto")
    thetas = _members(problem)
    calls.clear()
    problem.nlls(thetas, _batches(), _randoms())
    assert len(calls) == 1 + MEMBERS
    problem.nlls(thetas, _batches(), _randoms())
    assert len(calls) == 1 + 2 * MEMBERS


def test_noise_stays_at_its_addresses() -> None:
    """Dropout side by side is the loop's, to the bit."""
    net = _built(NOT_FLAT["dropout"][0])
    auto, loop = (_problem(net, "categorical", _batches()[0], how) for how in ("auto", "loop"))
    one, two = (each.nlls(_members(loop), _batches(), _randoms()) for each in (auto, loop))
    assert torch.equal(one[0], two[0])
    other = auto.nlls(_members(loop), _batches(), [random.fold(1) for random in _randoms()])
    assert not torch.equal(one[0], other[0])


@both
def test_no_generator_is_moved(path: str) -> None:
    problem = _problem(_net(path), "categorical", _batches()[0], path)
    before = torch.get_rng_state()
    problem.nlls(_members(problem), _batches(), _randoms())
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_that_an_algorithm_silences(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem(_built(NOT_FLAT["dropout"][0]), "categorical", _batches()[0], "auto")
    taken = _paths(problem, monkeypatch)
    problem.nlls(_members(problem), _batches(), _randoms())
    problem.network.evaluate()
    problem.nlls(_members(problem), _batches(), _randoms())
    assert taken == ["loop"] * MEMBERS + ["flat"]


def test_a_hook_that_comes_later_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    net = _net("flat")
    problem = _problem(net, "categorical", _batches()[0], "auto")
    taken, thetas = _paths(problem, monkeypatch), _members(problem)
    before = problem.nlls(thetas, _batches(), _randoms())[0]
    net[2].register_forward_hook(lambda module, args, output: output * 2)
    after = problem.nlls(thetas, _batches(), _randoms())[0]
    assert taken == ["flat", "vmap"]
    assert bool((before != after).all())


def test_frozen_tensors_of_a_saved_run(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem(_frozen("0.weight"), "categorical", _batches()[0], "auto")
    loop = _problem(_frozen("0.weight"), "categorical", _batches()[0], "loop")
    for each in (problem, loop):
        each.network.replace_constants({"0.weight": torch.full((HIDDEN, FEATURES), 0.25)})
    taken = _paths(problem, monkeypatch)
    thetas = _members(problem)
    _agree(problem.nlls(thetas, _batches(), _randoms()), loop.nlls(thetas, _batches(), _randoms()))
    assert taken == ["flat"]


@pytest.mark.parametrize("how", ["flat", "vmap"])
def test_half_precision_takes_turns(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _compare(_net("flat"), "categorical", _batches(), "loop", monkeypatch, precision="bf16")
    problem = _problem(_net("flat"), "categorical", _batches()[0], how, precision="bf16")
    with pytest.raises(po.CompatibilityError, match="the precision is bf16"):
        problem.nlls(_members(problem), _batches(), _randoms())


def test_vmap_wants_a_probe_first(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = po.NetworkProblem(_net("vmap"), "categorical", data_size=ROWS, side_by_side="vmap")
    with pytest.raises(po.CompatibilityError, match="call problem.probe"):
        problem.nlls(_members(problem), _batches(), _randoms())


def test_large_networks_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 2^23 weights x rows by vmap, one row more by the loop."""
    net = _net("vmap")
    problem = _problem(net, "categorical", _batches()[0], "auto")
    weights = sum(p.numel() for p in net.parameters())
    limit = 2**23 // weights
    for rows, path in ((limit, ["vmap"]), (limit + 1, ["loop"] * 2)):
        x = torch.zeros(rows, FEATURES)
        batches = [(x, torch.zeros(rows, dtype=torch.int64)), (x + 1, torch.zeros(rows, dtype=torch.int64))]
        with monkeypatch.context() as patch:
            taken = _paths(problem, patch)
            problem.nlls(_members(problem, 2), batches, _randoms(2))
        assert taken == path


def test_positions_are_rows_tokens_or_the_numbers_in_pictures() -> None:
    plain, convolves = (
        po.NetworkProblem(_built(make), "categorical", data_size=ROWS)._side_by_side for make in (Mean, _convolution)
    )
    for inputs, positions in (
        (torch.zeros(7, 3), 7),
        (torch.zeros(7, 5, 3), 35),
        (torch.zeros(7, 5, dtype=torch.int64), 35),
        ({"a": torch.zeros(7, 3), "b": torch.zeros(7, 2, 3)}, 14),
    ):
        assert plain._positions(Batch(inputs, rows=7)) == positions
    assert convolves._positions(Batch(torch.zeros(7, 2, 3, 5), rows=7)) == 7 * 2 * 3 * 5


@pytest.mark.parametrize("how", ["fast", "", None])
def test_unknown_ways(how: Any) -> None:
    with pytest.raises(po.CompatibilityError, match="side_by_side must be one of auto, flat, vmap, loop"):
        po.NetworkProblem(_net("flat"), "categorical", data_size=ROWS, side_by_side=how)


# --- the whole road ----------------------------------------------------------------------------------------------------


def test_an_ensemble_by_each_way_is_one_ensemble() -> None:
    x, y = _draw(41, FEATURES), torch.arange(41) % CLASSES
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 9, "progress": False}
    found = {
        how: po.fit(_net("flat"), (x, y), method=po.DeepEnsemble(members=3), side_by_side=how, **settings)
        for how in ("auto", "flat", "vmap", "loop")
    }
    wanted = stack(list(found["loop"].posterior.draws(None, po.Random(0))))
    for how, model in found.items():
        drawn = stack(list(model.posterior.draws(None, po.Random(0))))
        for (
            name,
            leaf,
        ) in wanted.items():  # Adam divides by the gradient's size: rounding counts for more where that is small
            assert torch.allclose(drawn[name], leaf, rtol=0, atol=1e-4), (how, name)
    assert found["auto"].settings == found["loop"].settings
