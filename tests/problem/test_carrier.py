"""The dispatch of carriers, shown by a toy one: a centre and a spread that only a Linear knows how to carry."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from posterity.errors import CompatibilityError
from posterity.problem.carrier import Carrier, handles, leaves, rebuild
from posterity.problem.factored import Factored
from posterity.random import Random


class Ball(Carrier, parts=("centre", "spread")):
    """A tensor known up to +- spread, element by element. It answers before a Factored weight does."""

    precedence = 1
    centre: Tensor
    spread: Tensor

    @staticmethod
    def __new__(cls, centre: Tensor, spread: Tensor) -> Ball:
        ball = Tensor._make_wrapper_subclass(cls, centre.shape, dtype=centre.dtype, device=centre.device)
        ball.centre, ball.spread = centre, spread
        return ball


@handles(Ball, F.linear)
def _linear(input, weight, bias=None):
    if not isinstance(input, Ball):
        return NotImplemented
    weight = weight.dense() if isinstance(weight, Factored) else weight
    return Ball(F.linear(input.centre, weight, bias), F.linear(input.spread, weight.abs()))


@handles(Ball, torch.matmul, Tensor.matmul, Tensor.__matmul__)
def _matmul(input, other):
    return "ball"


class Bubble(Ball):
    """Sees the rules of Ball."""


@pytest.fixture
def ball():
    random = Random(3)
    return Ball(random.fold("centre").normal((7, 3)), random.fold("spread").normal((7, 3)).abs())


def test_an_unmodified_module_passes_it_on(ball):
    layer = nn.Linear(3, 5)
    out = layer(ball)
    assert type(out) is Ball
    assert out.shape == (7, 5)
    assert out.centre.equal(layer(ball.centre))
    assert out.spread.equal(ball.spread @ layer.weight.abs().t())


def test_a_function_without_a_rule_raises_and_names_it(ball):
    with pytest.raises(CompatibilityError, match=r"Ball has no rule for relu.*@handles\(Ball, <function>\)"):
        nn.Sequential(nn.Linear(3, 5), nn.ReLU())(ball)
    with pytest.raises(CompatibilityError, match=r"no rule for Tensor\.T;"):
        _ = ball.T


def test_a_rule_that_declines_leaves_the_arguments_to_the_fallback(ball):
    with pytest.raises(CompatibilityError, match="no rule for linear"):
        F.linear(torch.ones(2, 3), ball)


def test_the_greater_precedence_answers_wherever_it_stands(ball):
    weight = Factored(torch.ones(5, 2), torch.ones(3, 2))
    out = functional_call(nn.Linear(3, 5), {"weight": weight}, (ball,))
    assert type(out) is Ball
    assert torch.allclose(out.spread, ball.spread @ weight.dense().t())
    assert ball @ weight.t() == "ball"
    assert weight @ ball == "ball"


def test_tables_belong_to_classes_and_are_inherited(ball):
    bubble = Bubble(ball.centre, ball.spread)
    assert nn.Linear(3, 5)(bubble).shape == (7, 5)
    handles(Bubble, torch.relu, F.relu)(lambda input, inplace=False: "popped")
    assert F.relu(bubble) == "popped"
    assert Ball.rule(F.relu) is None
    handles(Bubble, F.linear)(lambda input, weight, bias=None: "shadowed")
    assert nn.Linear(3, 5)(bubble) == "shadowed"
    assert type(nn.Linear(3, 5)(ball)) is Ball


def test_a_second_rule_and_a_second_class_of_the_same_parts_are_refused():
    with pytest.raises(ValueError, match="Ball already has a rule for linear"):
        handles(Ball, F.linear)(lambda *args: None)
    with pytest.raises(ValueError, match="Ball already has the parts spread, centre"):
        type(Carrier)("Other", (Carrier,), {}, parts=("spread", "centre"))


def test_its_metadata_need_no_rule(ball):
    assert (ball.shape, ball.size(0), ball.dim(), ball.ndim, ball.numel(), len(ball)) == ((7, 3), 7, 2, 2, 21, 7)
    assert (ball.dtype, ball.device, ball.is_cuda, ball.grad) == (torch.float32, torch.device("cpu"), False, None)
    assert torch.is_floating_point(ball)
    assert {ball: 1}[ball] == 1
    assert not ball.requires_grad
    ball.spread.requires_grad_()
    assert ball.requires_grad
    assert (repr(ball), f"{ball:>12}") == ("Ball(7x3)", "   Ball(7x3)")


def test_copies_and_pickles_carry_the_parts(ball):
    for again in (copy.copy(ball), copy.deepcopy(ball), pickle.loads(pickle.dumps(ball))):
        assert type(again) is Ball
        assert again.centre.equal(ball.centre)
        assert again.spread.equal(ball.spread)
    assert copy.copy(ball).centre is ball.centre
    assert copy.deepcopy(ball).centre is not ball.centre
    tied = copy.deepcopy([ball, ball])
    assert tied[0] is tied[1]


def test_below_torch_functions_it_raises(ball):
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(CompatibilityError, match="met a Ball below the level"):
        torch.sin(ball)
    with pytest.raises(CompatibilityError, match=r"an input of torch\.vmap"):
        torch.vmap(torch.sin)(ball)


def test_leaves_and_rebuild_are_inverse(ball):
    weight = Factored(torch.ones(5, 2), torch.ones(3, 2))
    kernel = Factored(torch.ones(5, 2), torch.ones(3, 7, 2, 2))
    tree = {"a.weight": weight, "a.bias": torch.zeros(5), "noise": ball, "kernel": kernel}
    flat = leaves(tree)
    assert list(flat) == [
        *("a.weight::left", "a.weight::right", "a.bias", "noise::centre", "noise::spread"),
        *("kernel::left", "kernel::right"),
    ]
    assert flat["a.weight::left"] is weight.left
    assert all(type(leaf) is Tensor for leaf in flat.values())
    again = rebuild(dict(sorted(flat.items(), reverse=True)))  # the order of the parts does not matter
    assert set(again) == set(tree)
    assert again["a.bias"] is tree["a.bias"]
    assert type(again["noise"]) is Ball
    assert again["noise"].centre is ball.centre
    assert again["a.weight"].right is weight.right
    assert again["kernel"].shape == (5, 3, 7, 2)
    assert list(rebuild(flat)) == list(tree)


@pytest.mark.parametrize(
    ("flat", "message"),
    [
        ({"w::left": torch.ones(2, 1)}, r"'w' has the parts \['left'\], which are not those of any carrier"),
        ({"w::left": torch.ones(2, 1), "w::wrong": torch.ones(2, 1)}, r"\['left', 'wrong'\]"),
        ({"w": torch.ones(2), "w::left": torch.ones(2, 1), "w::right": torch.ones(2, 1)}, r"'w' has the parts"),
    ],
)
def test_parts_that_make_no_carrier_are_refused(flat, message):
    with pytest.raises(CompatibilityError, match=message):
        rebuild(flat)


def test_a_plain_name_that_reads_like_a_part_is_refused():
    with pytest.raises(CompatibilityError, match="'w::left' reads like the part of a carrier"):
        leaves({"w::left": torch.ones(2, 1)})
