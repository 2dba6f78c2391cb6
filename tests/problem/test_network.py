"""A network as a pure function: what goes in and out, which modes, what is put back, how members are reset."""

from __future__ import annotations

import warnings
from collections import OrderedDict, UserDict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.problem.network import Network
from posterity.tree import BUFFER

ROWS, FEATURES, CLASSES = 7, 3, 5


def _x() -> Tensor:
    return torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(0))


class Does(nn.Module):
    def __init__(self, forward: Any, **parts: Any) -> None:
        super().__init__()
        self.does = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.does(self, *args)


# --- what it reads -----------------------------------------------------------------------------------------------------


def test_names_and_counts_tied_frozen_and_buffer_tensors() -> None:
    net = Does(None, a=nn.Linear(3, 3), b=nn.Linear(3, 3, bias=False), c=nn.BatchNorm1d(3), d=nn.Linear(3, 2))
    net.b.weight = net.a.weight
    net.d.requires_grad_(False)
    network = Network(net)
    assert sorted(network.trainable) == ["a.bias", "a.weight", "c.bias", "c.weight"]
    assert sorted(network.buffers) == ["c.num_batches_tracked", "c.running_mean", "c.running_var"]
    assert network.constants.keys() == network.buffers.keys() | {"d.weight", "d.bias"}
    assert network.changing == network.buffers.keys()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (torch.relu, "torch.nn.Module is needed"),
        (nn.Linear(3, 2).requires_grad_(False), "every parameter of this network is frozen"),
        (nn.ReLU(), "every parameter of this network is frozen"),
        (nn.Linear(3, 2, dtype=torch.complex64), "only real floating point"),
    ],
)
def test_refuses(module: Any, words: str) -> None:
    with pytest.raises(po.CompatibilityError, match=words):
        Network(module)


def test_refuses_a_lazy_module_before_its_first_call() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = nn.LazyLinear(2)
    with pytest.raises(po.CompatibilityError, match="'weight' has no shape yet"):
        Network(net)


def test_refuses_parameters_that_the_first_forward_makes() -> None:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        if not hasattr(m, "late"):
            m.late = nn.Linear(FEATURES, 2)
        return m.late(m.first(x))

    net = Does(forward, first=nn.Linear(FEATURES, FEATURES))
    network = Network(net)
    with pytest.raises(po.CompatibilityError, match=r"makes the parameters \['late.bias', 'late.weight'\]"):
        network.call(network.trainable, {}, (_x(),), {}, train=True)
    assert not hasattr(net, "late")


# --- weights and buffers go in -----------------------------------------------------------------------------------------


def test_the_given_weights_are_used_and_the_own_ones_are_not() -> None:
    net = Does(lambda m, x: m.b(m.a(x)), a=nn.Linear(3, 3, bias=False), b=nn.Linear(3, 3, bias=False))
    net.b.weight = net.a.weight
    network = Network(net)
    given = {"a.weight": 2.0 * torch.eye(3)}
    outputs, changed = network.call(given, {}, (_x(),), {})
    assert torch.equal(outputs, 4.0 * _x())  # the tied layer follows
    assert changed == {}


def test_two_members_keep_different_running_statistics() -> None:
    net = nn.BatchNorm1d(FEATURES)
    network = Network(net)
    weights, buffers = network.trainable, network.buffers
    _, one = network.call(weights, buffers, (_x(),), {}, train=True)
    _, two = network.call(weights, buffers, (_x() + 3.0,), {}, train=True)
    # momentum 0.1 from a mean of 0
    assert torch.allclose(one["running_mean"], 0.1 * _x().mean(0), atol=1e-6)
    assert torch.allclose(two["running_mean"], 0.1 * (_x().mean(0) + 3.0), atol=1e-6)
    assert int(one["num_batches_tracked"]) == 1
    for changed in (one, two):
        outputs, _ = network.call(weights, changed, (_x(),), {})
        wanted = (_x() - changed["running_mean"]) / (changed["running_var"] + net.eps).sqrt()
        assert torch.allclose(outputs, wanted, atol=1e-5)
    assert torch.equal(net.running_mean, torch.zeros(FEATURES))


@pytest.mark.parametrize("write", ["in place", "replaced", "data", "in evaluation only"])
def test_a_users_buffer_is_found_and_carried(write: str) -> None:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        if write == "in place" and m.training:
            m.count.add_(1)
        elif write == "replaced" and m.training:
            m.count = m.count + 1
        elif write == "data" and m.training:
            m.count.data.add_(1)
        elif write == "in evaluation only" and not m.training:
            m.count.add_(1)
        return m.head(x) * m.count

    net = Does(forward, head=nn.Linear(FEATURES, 1))
    net.register_buffer("count", torch.tensor(2.0))
    net.register_buffer("still", torch.tensor(3.0))
    network = Network(net)
    problem = po.NetworkProblem(network, po.Gaussian(std=1.0), data_size=ROWS)
    problem.probe((_x(), torch.zeros(ROWS)), po.Random(0))
    assert network.changing == {"count"}
    theta = problem.start()
    _, _, info = problem.nll(theta, (_x(), torch.zeros(ROWS)), po.Random(0))
    assert float(info.buffers["buffer.count"]) == (2.0 if write == "in evaluation only" else 3.0)
    first = problem.outputs(theta, _x())
    assert torch.equal(first, problem.outputs(theta, _x()))  # what evaluation writes is forgotten
    assert float(theta["buffer.count"]) == float(net.count) == 2.0


def test_a_buffer_that_no_probe_found_is_an_error_not_a_loss() -> None:
    net = Does(lambda m, x: m.head(x) * m.count.add_(1), head=nn.Linear(FEATURES, 1))
    net.register_buffer("count", torch.tensor(0.0))
    problem = po.NetworkProblem(net, po.Gaussian(std=1.0), data_size=ROWS)
    with pytest.raises(po.CompatibilityError, match=r"changes the buffers \['count'\].*problem.probe"):
        problem.nll(problem.start(), (_x(), torch.zeros(ROWS)), po.Random(0))


@pytest.mark.parametrize("train", [False, True])
def test_a_forward_that_writes_into_its_inputs_leaves_the_callers_alone(train: bool) -> None:
    network = Network(Does(lambda m, x, y: m.head(x.mul_(2.0)) + y["z"].add_(1.0), head=nn.Linear(FEATURES, 1)))
    x, z = _x(), torch.zeros(1)
    first, _ = network.call(network.trainable, {}, (x, {"z": z}), {}, train=train)
    second, _ = network.call(network.trainable, {}, (x, {"z": z}), {}, train=train)
    assert torch.equal(x, _x())
    assert torch.equal(z, torch.zeros(1))
    assert torch.equal(first, second)
    assert network.spares_inputs is False


def test_inputs_that_are_only_read_are_not_copied() -> None:
    seen: list[Tensor] = []
    network = Network(Does(lambda m, x: seen.append(x) or m.head(x), head=nn.Linear(FEATURES, 1)))
    seen.clear()
    x = _x()
    for _ in range(2):
        network.call(network.trainable, {}, (x,), {})
    assert network.spares_inputs is True
    assert seen[1] is x


def test_then_runs_while_the_weights_are_in_place() -> None:
    net = nn.Linear(FEATURES, 1)
    network = Network(net)
    given = {"weight": torch.ones(1, FEATURES), "bias": torch.zeros(1)}

    def then(outputs: Tensor) -> tuple[Tensor, Tensor, bool]:
        return outputs, net.weight.clone(), net.training

    (outputs, inside, training), _ = network.call(given, {}, (_x(),), {}, train=True, then=then)
    assert torch.equal(outputs, _x() @ torch.ones(FEATURES, 1))
    assert torch.equal(inside, torch.ones(1, FEATURES))
    assert training
    assert not torch.equal(net.weight, inside)


def test_constants_of_a_saved_run_replace_the_own_ones() -> None:
    net = Does(lambda m, x: m.head(x) + m.shift, head=nn.Linear(FEATURES, 1))
    net.register_buffer("shift", torch.tensor(1.0))
    net.frozen = nn.Linear(1, 1).requires_grad_(False)
    network = Network(net)
    with torch.no_grad():
        before, _ = network.call(network.trainable, {}, (_x(),), {})
        network.replace_constants({**network.constants, "shift": torch.tensor(3.0)})
        after, _ = network.call(network.trainable, {}, (_x(),), {})
    assert torch.allclose(after, before + 2.0)
    assert float(net.shift) == 1.0


# --- modes and attributes ----------------------------------------------------------------------------------------------


def _flags(net: nn.Module) -> list[bool]:
    return [m.training for m in net.modules()]


def test_training_keeps_in_evaluation_what_the_user_left_there() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()))
    net[1].eval()
    network, before = Network(net), _flags(net)
    with network.session(train=True):
        assert _flags(net) == [True, True, False, False, False]
        with network.session(train=False):
            assert _flags(net) == [False] * 5
        assert _flags(net) == [True, True, False, False, False]
        with network.session(train=True):
            assert _flags(net) == [True, True, False, False, False]
    assert _flags(net) == before


def test_a_network_handed_over_in_evaluation_mode_is_trained() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).eval()
    network = Network(net)
    with network.session(train=True):
        assert _flags(net) == [True] * 3
    assert _flags(net) == [False] * 3


def test_statistics_of_a_normalisation_left_in_evaluation_do_not_change() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    net[1].eval()
    network = Network(net)
    assert network.changing == frozenset()
    assert not network.running_statistics_in_training()
    assert Network(nn.Sequential(nn.BatchNorm1d(3))).running_statistics_in_training()


def test_attributes_are_put_back_also_after_an_error() -> None:
    net = Does(None, head=nn.Linear(FEATURES, 1))
    inner = [0]
    net.number, net.items, net.table, net.names = 1, [1, inner], {"a": {"b": [2]}}, {"x"}
    net.queue, net.array, net.tensor, net.pair = deque([1], maxlen=3), np.ones(2), torch.ones(2), ([1],)
    net.ordered = OrderedDict(a=1, b=2)
    net.register_buffer("absent", None)
    parts = dict(vars(net))
    network = Network(net)

    def spoil() -> None:
        net.number, net.fresh = 2, torch.ones(1)
        net.items.append(3)
        inner[0] = 9
        net.table["a"]["b"].append(4)
        net.table["c"] = 1
        net.names.add("y")
        net.queue.append(5)
        net.array += 1.0
        net.tensor.mul_(0.0)
        net.pair[0].append(2)
        net.ordered.move_to_end("a")
        net.absent = torch.zeros(1)
        net.register_buffer("late", torch.zeros(1))
        net.extra = nn.Linear(1, 1)
        net.bare = nn.Parameter(torch.zeros(1))
        del net.head.out_features
        net.head.register_forward_hook(lambda *_: None)
        net.tensor = None
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), network.session(train=True):
        spoil()
    assert vars(net).keys() == parts.keys()
    assert all(vars(net)[name] is value for name, value in parts.items())
    assert net.number == 1
    assert net.items == [1, [0]]
    assert net.items[1] is inner
    assert net.table == {"a": {"b": [2]}}
    assert net.names == {"x"}
    assert net.queue == deque([1], maxlen=3)
    assert net.array.tolist() == [1.0, 1.0]
    assert net.tensor.tolist() == [1.0, 1.0]
    assert net.pair == ([1],)
    assert list(net.ordered) == ["a", "b"]
    assert net._buffers == {"absent": None}
    assert list(net._modules) == ["head"]
    assert dict(net.named_parameters()).keys() == {"head.weight", "head.bias"}
    assert net.head.out_features == 1
    assert not net.head._forward_hooks


def test_a_session_costs_nothing_inside_of_one() -> None:
    net = Does(lambda m, x: (m.seen.append(1), m.head(x))[1], head=nn.Linear(FEATURES, 1))
    net.seen = []
    network = Network(net)
    with network.session(train=True):
        for expected in (1, 2):
            network.call(network.trainable, {}, (_x(),), {}, train=True)
            assert len(net.seen) == expected  # put back once, by the outermost
    assert net.seen == []


# --- outputs and arguments ---------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "first second")


class _Rich(OrderedDict):
    """As the outputs of Hugging Face: a mapping with attributes."""

    @property
    def logits(self) -> Any:
        return self.get("logits")


@pytest.mark.parametrize(
    ("output", "given", "wanted"),
    [
        (None, 1, 1),
        (0, (1, 2), 1),
        (-1, [1, 2], 2),
        ("b", {"a": 1, "b": 2}, 2),
        ("second", Pair(1, 2), 2),
        (lambda outputs: outputs[0] + 1, (1, 2), 2),
    ],
)
def test_chooses(output: Any, given: Any, wanted: Any) -> None:
    assert Network(nn.Linear(1, 1), output=output).choose(given) == wanted


def test_chooses_logits_by_itself() -> None:
    network, logits = Network(nn.Linear(1, 1)), torch.ones(1)
    for outputs in ({"loss": 1, "logits": logits}, _Rich(logits=logits), type("Out", (), {"logits": logits})()):
        assert network.choose(outputs) is logits


@pytest.mark.parametrize(
    ("output", "given", "words"),
    [
        (2, (1, 2), "no 2: a tuple of 2"),
        ("c", {"b": 1, "a": 2}, r"no 'c': a mapping with \['a', 'b'\]"),
        ("c", Pair(1, 2), "no 'c': a Pair of 2"),
        (0, torch.tensor(1.0), "no 0: a Tensor"),
        (None, {"a": torch.ones(1)}, r"a mapping with \['a'\]: say which with output='name'"),
        (None, _Rich(a=1), "say which with output="),
    ],
)
def test_says_what_the_outputs_are(output: Any, given: Any, words: str) -> None:
    with pytest.raises(po.CompatibilityError, match=words):
        Network(nn.Linear(1, 1), output=output).choose(given)


class _Named(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.forward = getattr(self, kind)

    def two(self, a: Any, b: Any = None) -> Any: ...

    def anything(self, **inputs: Any) -> Any: ...

    def some(self, a: Any, **rest: Any) -> Any: ...

    def whole(self, batch: Any) -> Any: ...


@pytest.mark.parametrize(
    ("kind", "inputs", "by_name"),
    [
        ("two", {"a": 1}, True),
        ("two", {"a": 1, "b": 2}, True),
        ("two", {"a": 1, "c": 2}, False),
        ("anything", {"c": 1}, True),
        ("some", {"a": 1, "c": 2}, True),
        ("some", {"c": 2}, False),
        ("whole", {"a": 1}, False),
        ("whole", {"batch": 1}, True),
    ],
)
@pytest.mark.parametrize("mapping", [dict, UserDict])
def test_a_mapping_goes_by_name_where_the_forward_takes_its_keys(
    kind: str, inputs: dict, by_name: bool, mapping: type
) -> None:
    wanted = ((), inputs) if by_name else ((inputs,), {})
    assert Network(_Named(kind)).arguments(mapping(inputs)) == wanted


def test_a_tuple_goes_by_position() -> None:
    network = Network(nn.Bilinear(1, 1, 1))
    assert network.arguments((1, 2)) == ((1, 2), {})
    assert network.arguments(1) == ((1,), {})


# --- fresh weights -----------------------------------------------------------------------------------------------------


def _reset(net: nn.Module, key: int = 1, warn: bool = False) -> dict[str, Tensor]:
    network = Network(net)
    buffers = {BUFFER + name: network.buffers[name] for name in network.changing}
    return network.reset({**network.trainable, **buffers}, po.Random(key), warn=warn)


def test_reset_draws_as_the_constructor_does_and_touches_nothing() -> None:
    net = nn.Linear(97, 101)
    before, state = net.weight.clone(), torch.get_rng_state()
    fresh = _reset(net, warn=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(net.weight, before)
    # uniform in +-1/sqrt(97), std 1/sqrt(3 * 97); the std of 9797 numbers is known to 1/sqrt(2 * 9797) = 0.7 %
    assert float(fresh["weight"].std()) == pytest.approx(1 / (3 * 97) ** 0.5, rel=0.03)
    assert float(fresh["weight"].abs().max()) <= 97**-0.5
    assert torch.equal(fresh["weight"], _reset(net)["weight"])
    assert not torch.equal(fresh["weight"], _reset(net, key=2)["weight"])


def test_reset_keeps_what_is_frozen_and_its_statistics() -> None:
    trunk = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).requires_grad_(False)
    own = nn.BatchNorm1d(3)
    net = nn.Sequential(trunk, own, nn.Linear(3, 3))
    for norm in (trunk[1], own):
        norm.running_mean.fill_(0.7)
    fresh = _reset(net, warn=True)
    assert "0.0.weight" not in fresh
    assert fresh["buffer.0.1.running_mean"].tolist() == pytest.approx([0.7] * 3)
    assert fresh["buffer.1.running_mean"].tolist() == [0.0] * 3


class _OldStyle(nn.Module):
    """Initialises by `.data`, which leaves no trace in the version of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(5, 3)), nn.Parameter(torch.zeros(5))

    def reset_parameters(self) -> None:
        self.weight.data.normal_()
        self.bias.data.zero_()


def test_reset_sees_initialisers_that_leave_no_trace() -> None:
    fresh = _reset(_OldStyle(), warn=True)  # a warning would name the zeros that were written over zeros
    assert not torch.equal(fresh["weight"], torch.ones(5, 3))
    assert torch.equal(fresh["bias"], torch.zeros(5))


def test_reset_redraws_and_names_what_no_module_initialises() -> None:
    net = nn.Linear(3, 2)
    net.token = nn.Parameter(3.0 + 2.0 * torch.randn(10007, generator=torch.Generator().manual_seed(1)))
    net.scale = nn.Parameter(torch.tensor(4.0))
    with pytest.warns(po.PosterityWarning, match=r"no module resets \['token', 'scale'\]"):
        fresh = _reset(net, warn=True)
    # standard errors 2 / sqrt(10007) = 0.02 and 0.014, twice over: two samples are compared
    assert float(fresh["token"].mean()) == pytest.approx(3.0, abs=0.12)
    assert float(fresh["token"].std()) == pytest.approx(2.0, abs=0.1)
    assert not torch.equal(fresh["token"], net.token)
    assert float(fresh["scale"]) == 4.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _reset(net, warn=False)


class _Shared(nn.Module):
    """One initialiser for all parts, as nanoGPT and Hugging Face have; the normalisation is left to its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(11, 13), nn.LayerNorm(13)
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, mean=5.0, std=0.01)
            nn.init.constant_(module.bias, 7.0)


class _Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(11, 13)
        self._init_weights()

    def _init_weights(self) -> None:
        for part in self.children():
            nn.init.normal_(part.weight, mean=5.0, std=0.01)


@pytest.mark.parametrize("build", [_Shared, _Whole, lambda: nn.Sequential(_Shared()), lambda: nn.Sequential(_Whole())])
def test_reset_uses_the_initialiser_of_whoever_holds_the_part(build: Any) -> None:
    fresh = _reset(build(), warn=True)
    weight = next(value for name, value in fresh.items() if name.endswith("body.weight"))
    assert float(weight.mean()) == pytest.approx(5.0, abs=0.01)  # 143 draws of std 0.01: a standard error of 0.001


def test_reset_leaves_attributes_alone() -> None:
    class Counting(nn.Linear):
        resets = 0
        log: tuple | list = ()

        def reset_parameters(self) -> None:
            super().reset_parameters()
            self.resets += 1
            self.cache = torch.zeros(1)
            if isinstance(self.log, list):
                self.log.append(1)

    net = Counting(3, 2)
    del net.resets, net.cache
    net.log = []
    _reset(net, warn=True)
    assert "resets" not in vars(net)
    assert "cache" not in vars(net)
    assert net.log == []
