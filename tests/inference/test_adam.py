"""The fused update against the formula, in float64: they differ by the rounding of a handful of operations, 1e-12."""

import torch

from posterity.inference.adam import Adam
from posterity.tree import Tree, clone

MEMBERS = 3
STEP = Adam(step_size=0.05, t=7, beta1=0.8, beta2=0.95, eps=1e-3)


def trees() -> tuple[Tree, Tree, Tree, Tree]:
    generator = torch.Generator().manual_seed(0)

    def draw() -> Tree:
        shapes = {"w": (MEMBERS, 5, 11), "b": (MEMBERS, 7)}
        return {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}

    return draw(), draw(), draw(), {name: leaf.square() for name, leaf in draw().items()}


def expected(x: Tree, gradient: Tree, m: Tree, v: Tree) -> tuple[Tree, Tree, Tree]:
    m = {name: 0.8 * leaf + 0.2 * gradient[name] for name, leaf in m.items()}
    v = {name: 0.95 * leaf + 0.05 * gradient[name] ** 2 for name, leaf in v.items()}
    corrected = {n: (m[n] / (1 - 0.8**7), v[n] / (1 - 0.95**7)) for n in m}
    return {n: x[n] - 0.05 * a / (b.sqrt() + 1e-3) for n, (a, b) in corrected.items()}, m, v


def test_update_is_the_formula_and_leaves_without_moments_stay() -> None:
    x, gradient, m, v = trees()
    wanted = expected(x, gradient, m, v)
    for tree in (x, gradient):
        tree["idle"] = torch.ones(MEMBERS, 2, dtype=torch.float64)
    STEP.update_(x, gradient, m, v)
    assert x.pop("idle").eq(1).all()
    for found, tree in zip((x, m, v), wanted, strict=True):
        for name, leaf in tree.items():
            torch.testing.assert_close(found[name], leaf, rtol=1e-12, atol=1e-14)


def test_dead_members_are_left_as_they_are() -> None:
    x, gradient, m, v = trees()
    wanted = expected(x, gradient, m, v)
    before = [clone(tree) for tree in (x, m, v)]
    gradient["w"][1] = torch.nan
    STEP.update_(x, gradient, m, v, alive=torch.tensor([True, False, True]))
    for found, old, new in zip((x, m, v), before, wanted, strict=True):
        for name in found:
            assert found[name][1].equal(old[name][1])
            torch.testing.assert_close(found[name][[0, 2]], new[name][[0, 2]], rtol=1e-12, atol=1e-14)


def test_a_step_without_survivors_changes_nothing() -> None:
    x, gradient, m, v = trees()
    before = [clone(tree) for tree in (x, m, v)]
    STEP.update_(x, gradient, m, v, alive=torch.zeros(MEMBERS, dtype=torch.bool))
    assert all(found[name].equal(old[name]) for found, old in zip((x, m, v), before, strict=True) for name in found)
