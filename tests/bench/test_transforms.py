"""Transforms against autograd of themselves, and the scans against loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from posterity.bench.scans import linear_recursion, log_matrix_product
from posterity.bench.transforms import (
    Bounded,
    Ordered,
    Positive,
    PositiveOrdered,
    Real,
    Simplex,
    Stick,
    Transform,
    forward,
    inverse,
)
from posterity.random import Random

ALL: list[Transform] = [
    Real(3),
    Positive(2),
    Bounded(3, -1.5, 4.0),
    Ordered(4),
    PositiveOrdered(3),
    Stick(2),
    Stick(5),
    Simplex(2),
    Simplex(5),
]
LIKE = torch.empty(0, dtype=torch.float64)


def numbers(*shape: int) -> Tensor:
    return 1.5 * Random(0).fold("u").normal(shape, LIKE)


@pytest.mark.parametrize("transform", ALL, ids=str)
def test_inverse_undoes_forward(transform: Transform) -> None:
    u = numbers(7, transform.size)
    x, log_det = transform.forward(u)
    assert x.shape == (7, transform.width)
    assert log_det.shape == (7,)
    # a dozen roundings of 1e-16, over the smallest piece or gap, some exp(-1.5 * 3 - 3)
    torch.testing.assert_close(transform.inverse(x), u, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("transform", ALL, ids=str)
def test_log_determinant_is_that_of_autograd(transform: Transform) -> None:
    u = numbers(5, transform.size)
    _, found = transform.forward(u)

    def free(v: Tensor) -> Tensor:  # the remainder of a simplex is not free
        return transform.forward(v)[0][: transform.size]

    wanted = [torch.linalg.slogdet(torch.autograd.functional.jacobian(free, row)).logabsdet for row in u]
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-11, atol=1e-11)


def test_values_keep_their_constraints() -> None:
    u = numbers(501, 4)
    assert bool((Positive(4).forward(u)[0] > 0).all())
    bounded = Bounded(4, -2.0, 0.5).forward(u)[0]
    assert bool(((bounded > -2) & (bounded < 0.5)).all())
    assert bool((Ordered(4).forward(u)[0].diff() > 0).all())
    assert Ordered(4).forward(u)[0].min() < 0
    rising = PositiveOrdered(4).forward(u)[0]
    assert bool((rising[:, 0] > 0).all() and (rising.diff() > 0).all())
    stick = Stick(4).forward(u)[0]
    assert bool((stick > 0).all() and (stick.sum(-1) < 1).all())
    simplex = Simplex(5).forward(u)[0]
    assert bool((simplex > 0).all())
    torch.testing.assert_close(simplex[:, :4], stick)
    torch.testing.assert_close(simplex.sum(-1), torch.ones(501, dtype=torch.float64))


def test_zero_is_the_centre_of_a_simplex() -> None:
    found = Simplex(5).forward(torch.zeros(4, dtype=torch.float64))[0]
    torch.testing.assert_close(found, torch.full_like(found, 0.2))


def test_a_simplex_stays_differentiable_far_out() -> None:
    u = torch.tensor([60.0, -60.0], dtype=torch.float64, requires_grad=True)
    x, log_det = Simplex(3).forward(u)
    (gradient,) = torch.autograd.grad(x.log().sum() + log_det, u)
    assert bool(torch.isfinite(gradient).all())
    assert x.detach().min() > 0


def test_a_layout_puts_groups_side_by_side() -> None:
    layout: dict[str, Transform] = {"a": Real(2), "w": Simplex(3), "s": Positive(1)}
    u = numbers(7, 5)
    values, log_det = forward(layout, u)
    assert {name: value.shape for name, value in values.items()} == {"a": (7, 2), "w": (7, 3), "s": (7, 1)}
    torch.testing.assert_close(log_det, Simplex(3).forward(u[:, 2:4])[1] + u[:, 4])
    torch.testing.assert_close(inverse(layout, values), u)


@pytest.mark.parametrize("length", [1, 2, 7, 64, 65])
def test_linear_recursion_is_the_loop(length: int) -> None:
    a, b = 0.9 * numbers(3, 1), numbers(3, length)
    x = [b[:, 0]]
    for t in range(1, length):
        x.append(a[:, 0] * x[-1] + b[:, t])
    torch.testing.assert_close(linear_recursion(a, b), torch.stack(x, -1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 7, 64, 65])
def test_log_matrix_product_is_the_product(length: int) -> None:
    logs = numbers(5, 3, 3, length)  # no symmetry: a wrong order shows
    product = torch.eye(3, dtype=torch.float64).expand(5, 3, 3)
    for t in range(length):
        product = product @ logs[..., t].exp()
    torch.testing.assert_close(log_matrix_product(logs), product.log(), rtol=1e-12, atol=1e-12)
