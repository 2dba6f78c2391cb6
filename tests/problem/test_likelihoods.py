"""Likelihoods against torch.distributions, hand values and autograd; every way of giving targets; every misfit."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import Tensor

from posterity.errors import CompatibilityError, DataError, ShapeError
from posterity.problem.likelihoods import (
    LIKELIHOODS,
    Bernoulli,
    Categorical,
    Gaussian,
    Heteroscedastic,
    Likelihood,
    Multilabel,
    Poisson,
    StudentT,
    Tokens,
    likelihood_from,
    likelihood_from_json,
)
from posterity.problem.scaling import Scaling

ROWS, OUTPUTS, CLASSES = 7, 3, 5


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labels(*shape: int, classes: int = CLASSES) -> Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(1))


SCALING = Scaling(torch.tensor([10.0, -4.0, 0.5]), torch.tensor([2.0, 0.1, 30.0]))
LOG_STD = torch.tensor([-0.5, 0.3, 0.1], dtype=torch.float64)

# name, likelihood, outputs, raw targets, own parameters: one of each kind, in float64
CASES: dict[str, tuple[Likelihood, Tensor, Tensor, dict[str, Tensor]]] = {
    "categorical": (Categorical(), normal(ROWS, CLASSES), labels(ROWS), {}),
    "weighted": (Categorical(class_weight=(1, 10, 0.5, 2, 3)), normal(ROWS, CLASSES), labels(ROWS), {}),
    "soft": (Categorical(), normal(ROWS, CLASSES), normal(ROWS, CLASSES, seed=3).softmax(1), {}),
    "dense": (Categorical(), normal(ROWS, CLASSES, 2, 3), labels(ROWS, 2, 3), {}),
    "bernoulli": (Bernoulli(), normal(ROWS), labels(ROWS, classes=2), {}),
    "bernoulli weighted": (Bernoulli(class_weight=(1, 10)), normal(ROWS, 1), labels(ROWS, classes=2), {}),
    "multilabel": (Multilabel(), normal(ROWS, CLASSES), labels(ROWS, CLASSES, classes=2), {}),
    "gaussian": (Gaussian(scaling=SCALING), normal(ROWS, OUTPUTS), normal(ROWS, OUTPUTS, seed=2), {"log_std": LOG_STD}),
    "gaussian known": (Gaussian(scaling=SCALING, std=0.3), normal(ROWS, OUTPUTS), normal(ROWS, OUTPUTS, seed=2), {}),
    "heteroscedastic": (Heteroscedastic(), normal(ROWS, 2 * OUTPUTS), normal(ROWS, OUTPUTS, seed=2), {}),
    "student-t": (StudentT(scaling=SCALING), normal(ROWS, OUTPUTS), normal(ROWS, OUTPUTS), {"log_scale": LOG_STD}),
    "poisson": (Poisson(), normal(ROWS, OUTPUTS), labels(ROWS, OUTPUTS), {}),
    "tokens": (Tokens(), normal(ROWS, 4, CLASSES), labels(ROWS, 4), {}),
}


def log_prob(likelihood: Likelihood, outputs: Tensor, targets: object, parameters: dict | None = None) -> Tensor:
    return likelihood.log_prob(outputs, likelihood.canonical(targets, outputs), parameters or {})


# --- values ----------------------------------------------------------------------------------------------------------


def reference(name: str) -> Tensor:
    """[rows] log-likelihoods by torch.distributions, in network units."""
    _, z, y, _ = CASES[name]
    if name in ("categorical", "weighted"):
        weight = torch.tensor([1, 10, 0.5, 2, 3]) if name == "weighted" else torch.ones(CLASSES)
        return D.Categorical(logits=z).log_prob(y) * weight[y]
    if name == "soft":
        return sum(y[:, c] * D.Categorical(logits=z).log_prob(torch.tensor(c)) for c in range(CLASSES))
    if name == "dense":
        return D.Categorical(logits=z.movedim(1, -1)).log_prob(y).sum((1, 2))
    if name == "bernoulli":
        return D.Bernoulli(logits=z).log_prob(y.double())
    if name == "bernoulli weighted":
        return D.Bernoulli(logits=z[:, 0]).log_prob(y.double()) * torch.where(y == 1, 10.0, 1.0)
    if name == "multilabel":
        return D.Bernoulli(logits=z).log_prob(y.double()).sum(1)
    if name == "poisson":
        return D.Poisson(z.exp()).log_prob(y.double()).sum(1)
    if name == "tokens":
        return D.Categorical(logits=z[:, :-1]).log_prob(y[:, 1:]).sum(1)
    if name == "heteroscedastic":
        return D.Normal(z[:, :OUTPUTS], z[:, OUTPUTS:].exp()).log_prob(y).sum(1)
    scaled = (y - SCALING.mean) / SCALING.std
    if name == "gaussian":
        return D.Normal(z, LOG_STD.exp()).log_prob(scaled).sum(1)
    if name == "gaussian known":
        return D.Normal(z, 0.3 / SCALING.std).log_prob(scaled).sum(1)
    return D.StudentT(4.0, z, LOG_STD.exp()).log_prob(scaled).sum(1)


@pytest.mark.parametrize("name", CASES)
def test_log_prob_is_that_of_torch_distributions(name: str) -> None:
    likelihood, outputs, targets, own = CASES[name]
    found = log_prob(likelihood, outputs, targets, own)
    assert found.shape == (ROWS,)
    # float64: a few ulp of the terms of a sum of at most 30; class weights make them up to 50
    torch.testing.assert_close(found, reference(name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_half_precision_outputs_are_computed_in_float32(name: str) -> None:
    likelihood, outputs, targets, own = CASES[name]
    half = outputs.bfloat16()
    found = log_prob(likelihood, half, targets, {key: leaf.float() for key, leaf in own.items()})
    assert found.dtype == torch.float32
    wanted = log_prob(likelihood, half.double(), targets, own)
    # float32 sums of 30 terms below 1e5 ulp-wise; computed in bfloat16 they would be off by 4e-3
    torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    likelihood, outputs, targets, own = CASES[name]
    canonical = likelihood.canonical(targets, outputs)
    leaves = [outputs.clone().requires_grad_(), *(leaf.clone().requires_grad_() for leaf in own.values())]

    def rows(z: Tensor, *parameters: Tensor) -> Tensor:
        return likelihood.log_prob(z, canonical, dict(zip(own, parameters)))

    # float64 central differences of step 1e-6: errors of about 1e-10 of values below 1e5
    assert torch.autograd.gradcheck(rows, leaves, eps=1e-6, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_log_prob_runs_under_vmap(name: str) -> None:
    likelihood, outputs, targets, own = CASES[name]
    canonical = likelihood.canonical(targets, outputs)
    stacked = torch.stack([outputs, 2 * outputs, -outputs])
    both = torch.func.vmap(lambda z: likelihood.log_prob(z, canonical, own))(stacked)
    torch.testing.assert_close(both[1], likelihood.log_prob(2 * outputs, canonical, own), rtol=1e-12, atol=1e-12)


def closed_fisher(name: str) -> Tensor:
    """E_y of the autograd Hessian of -log p, the expectation over y in closed form or by quadrature."""
    likelihood, outputs, _, own = CASES[name]
    outputs = outputs.reshape(ROWS, -1)
    k = outputs.shape[1]

    def hessians(y: Tensor) -> Tensor:
        shape = CASES[name][1].shape[1:]

        def row(z: Tensor, y: Tensor) -> Tensor:
            return -likelihood.log_prob(z.reshape(1, *shape), y[None], own)[0]

        return torch.stack([torch.autograd.functional.hessian(lambda z, y=y: row(z, y), z) for z, y in zip(outputs, y)])

    if name in ("categorical", "weighted"):
        p = outputs.softmax(1)
        return sum(p[:, c, None, None] * hessians(torch.full((ROWS,), c)) for c in range(k))
    p = outputs.sigmoid()[:, :, None]  # [rows, k, 1]; each output on its own, so one at a time is all that matters
    shape = CASES[name][1].shape
    if name in ("bernoulli", "bernoulli weighted", "multilabel"):
        at = [hessians(torch.full(shape, float(value), dtype=torch.float64)) for value in (0, 1)]
        return (1 - p) * at[0] + p * at[1]
    if name == "poisson" or name.startswith("gaussian"):
        return hessians(torch.zeros(shape, dtype=torch.float64))  # the curvature does not depend on y
    if name == "heteroscedastic":
        nodes, weights = np.polynomial.hermite_e.hermegauss(8)  # exact for the quadratic in y
        mean, std = outputs[:, :OUTPUTS], outputs[:, OUTPUTS:].exp()
        return sum(w / math.sqrt(2 * math.pi) * hessians(mean + std * x) for x, w in zip(nodes, weights))
    # outputs are independent and the curvature depends on the residual alone: a trapezoid rule over 2001 residuals
    grid = torch.linspace(-200, 200, 2001, dtype=torch.float64)
    standard = D.StudentT(torch.tensor(4.0, dtype=torch.float64))
    weight, scale = standard.log_prob(grid).exp() * 0.2, LOG_STD.exp()
    z = torch.zeros_like(grid).requires_grad_()
    density = standard.log_prob(grid - z)
    first = torch.autograd.grad(-density.sum(), z, create_graph=True)[0]
    curvature = torch.autograd.grad(first.sum(), z)[0]
    return torch.diag_embed(((weight * curvature).sum() / scale.square()).expand(ROWS, k))


FISHERS = [name for name in CASES if name not in ("soft", "dense", "tokens")]


@pytest.mark.parametrize("name", FISHERS)
def test_fisher_is_the_expected_hessian(name: str) -> None:
    likelihood, outputs, _, own = CASES[name]
    found = likelihood.fisher(outputs, own)
    # exact sums in float64; for Student-t what lies beyond 200 scales is 200^-6 and the rule's error is below 1e-9
    torch.testing.assert_close(found, closed_fisher(name), rtol=1e-8, atol=1e-10)


def test_fisher_is_the_variance_of_the_gradient() -> None:
    likelihood = Heteroscedastic()
    z = normal(1, 2)
    draws = 200_003
    y = z[:, :1] + z[:, 1:].exp() * normal(draws, 1, seed=5)
    many = z.repeat(draws, 1).requires_grad_()
    gradient = torch.autograd.grad(likelihood.log_prob(many, likelihood.canonical(y, many), {}).sum(), many)[0]
    found = gradient.T @ gradient / draws
    wanted = likelihood.fisher(z, {})[0]
    # entries are means of products of unit-like terms: std below sqrt(60 / draws) * wanted = 2 %; 4 of them
    torch.testing.assert_close(found, wanted, rtol=0.07, atol=0.02)


@pytest.mark.parametrize(("name", "wanted"), [("dense", "dense outputs"), ("tokens", "tokens")])
def test_fisher_of_many_positions_is_refused_with_a_way_out(name: str, wanted: str) -> None:
    likelihood, outputs, _, own = CASES[name]
    with pytest.raises(CompatibilityError, match=f"{wanted}.*use a method that takes gradients only"):
        likelihood.fisher(outputs, own)


def test_fisher_of_a_clamped_log_std_is_zero() -> None:
    fisher = Heteroscedastic().fisher(torch.tensor([[0.0, -7.0], [0.0, 1.0]]), {})
    assert fisher[:, 1, 1].tolist() == [0.0, 2.0]


# --- extremes --------------------------------------------------------------------------------------------------------


def test_a_logit_gap_of_a_thousand_is_exact() -> None:
    z = torch.tensor([[1000.0, 0.0], [1000.0, 0.0]])
    assert log_prob(Categorical(), z, [0, 1]).tolist() == [0.0, -1000.0]
    assert log_prob(Bernoulli(), torch.tensor([1000.0, 1000.0, -1000.0]), [1, 0, 0]).tolist() == [0.0, -1000.0, 0.0]
    assert log_prob(Multilabel(), torch.tensor([[1000.0, -1000.0]]), [[0, 1]]).tolist() == [-2000.0]


@pytest.mark.parametrize("log_std", [-120.0, 120.0, -6.0, 6.0])
def test_log_stds_are_clamped(log_std: float) -> None:
    bound = max(-6.0, min(6.0, log_std))
    wanted = D.Normal(0.0, math.exp(bound)).log_prob(torch.tensor([0.5])).tolist()
    y = torch.tensor([0.5])
    parameters = {"log_std": torch.tensor([log_std])}
    found = [
        log_prob(Gaussian(), torch.zeros(1), y, parameters),
        log_prob(Heteroscedastic(), torch.tensor([[0.0, log_std]]), y),
        log_prob(Heteroscedastic(), (torch.zeros(1), torch.tensor([log_std])), y),
    ]
    for value in found:
        assert value.tolist() == pytest.approx(wanted, rel=1e-6)  # float32: exp(12) / 8 to a few ulp
    heavy = log_prob(StudentT(), torch.zeros(1), y, {"log_scale": torch.tensor([log_std])})
    assert heavy.tolist() == pytest.approx(D.StudentT(4.0, 0.0, math.exp(bound)).log_prob(y).tolist(), rel=1e-5)


def test_a_million_counts_lose_nothing_in_float32() -> None:
    rate = torch.tensor([0.5, 1.0, 1e3, 1e6], dtype=torch.float64)
    y = torch.tensor([0.0, 2.0, 1030.0, 1e6 + 500])
    z = rate.log()
    wanted = D.Poisson(rate).log_prob(y.double())
    # the rounding of z to float32 moves it by 14 * 6e-8, the log-probability by that times y - rate = 500
    torch.testing.assert_close(log_prob(Poisson(), z.float(), y).double(), wanted, rtol=1e-6, atol=5e-4)


def test_gradients_of_counts_at_extreme_rates() -> None:
    z = torch.tensor([80.0, -200.0, 80.0, -200.0], requires_grad=True)
    log_prob(Poisson(), z, [3, 3, 0, 0]).sum().backward()
    # y - exp(z), in float32; exp(80) to 80 ulp
    assert z.grad.tolist() == pytest.approx([-math.exp(80), 3.0, -math.exp(80), 0.0], rel=1e-5)


def test_one_class_weight_does_not_divide_by_the_sum_of_weights() -> None:
    # two rows of each class, weights 1 and 10, every log-probability -log 2: the mean is 5.5 log 2, not log 2
    z, y = torch.zeros(4, 2), [0, 0, 1, 1]
    assert log_prob(Categorical(class_weight=(1.0, 10.0)), z, y).mean().item() == pytest.approx(-5.5 * math.log(2))
    assert log_prob(Bernoulli(class_weight=(1.0, 10.0)), z[:, 0], y).mean().item() == pytest.approx(-5.5 * math.log(2))


# --- targets of classes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "targets",
    [
        labels(ROWS).to(torch.uint8),
        labels(ROWS).to(torch.int32),
        labels(ROWS)[:, None],
        labels(ROWS).tolist(),
        labels(ROWS).numpy().astype(np.uint64),
        pd.Series(labels(ROWS).numpy()),
        pd.DataFrame({"y": labels(ROWS).numpy()}),
        F.one_hot(labels(ROWS), CLASSES),
        F.one_hot(labels(ROWS), CLASSES).float(),
        F.one_hot(labels(ROWS), CLASSES).bool().numpy(),
    ],
    ids=["uint8", "int32", "column", "list", "numpy", "series", "frame", "one-hot", "float one-hot", "bool one-hot"],
)
def test_every_way_to_give_labels_means_the_same(targets: object) -> None:
    outputs = normal(ROWS, CLASSES, dtype=torch.float32)
    assert Categorical().canonical(targets, outputs).equal(labels(ROWS))


def test_a_uint8_image_with_255_as_void() -> None:
    y = torch.tensor([[[0, 255], [1, 1]], [[255, 255], [255, 255]]], dtype=torch.uint8)
    z = normal(2, 3, 2, 2)
    wild = z.clone()
    wild[0, :, 0, 1] = 1e6  # a void pixel with a wild output changes nothing
    likelihood = Categorical(ignore_index=255)
    wanted = z.log_softmax(1)
    expected = wanted[0, 0, 0, 0] + wanted[0, 1, 1, 0] + wanted[0, 1, 1, 1]
    for outputs in (z, wild):
        found = log_prob(likelihood, outputs, y)
        torch.testing.assert_close(found, torch.stack([expected, torch.zeros(()).double()]), rtol=1e-12, atol=0)
    assert likelihood.void(y).tolist() == [False, True]
    assert log_prob(likelihood, z, y[:, None]).equal(log_prob(likelihood, z, y))  # masks with a channel axis


def test_a_batch_without_a_label_is_void_and_costs_nothing() -> None:
    z = normal(2, CLASSES).requires_grad_()
    found = log_prob(Categorical(), z, [-100, -100])
    assert found.tolist() == [0.0, 0.0]
    found.sum().backward()
    assert bool((z.grad == 0).all())
    assert Categorical().void([-100, 3]).tolist() == [True, False]


def test_soft_labels_of_a_masked_class_count_as_zero() -> None:
    z = torch.tensor([[0.0, 0.0, -torch.inf]])
    assert log_prob(Categorical(), z, torch.tensor([[0.5, 0.5, 0.0]])).item() == pytest.approx(-math.log(2))


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (["b", "a", "c"], ("a", "b", "c")),
        ([5, 0, 2], (0, 2, 5)),
        ([True, False, True], (False, True)),
        (np.array([2.0, 1.0, 2.0]), (1, 2)),
        (torch.tensor([[1], [0], [-100]]), (0, 1)),
        (torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), (0, 1, 2)),
        (torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]), (0, 1, 2)),
    ],
)
def test_the_survey_learns_sorted_labels(raw: object, wanted: tuple) -> None:
    likelihood = Categorical()
    assert likelihood.needs_survey
    found = likelihood.surveyed([raw, raw])
    assert found.classes == wanted
    assert [type(label) for label in found.classes] == [type(label) for label in wanted]
    assert not found.needs_survey
    assert likelihood.classes is None


def test_one_hot_by_accident_is_seen_through() -> None:
    # two positions per row, once with a single 1: labels, because another batch cannot be one-hot
    found = Categorical().surveyed([torch.tensor([[0, 1], [1, 0]]), torch.tensor([[2, 2], [1, 1]])])
    assert found.classes == (0, 1, 2)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "0 rows"),
        ([torch.zeros(0, dtype=torch.int64)], "0 rows"),
        ([["a", "a"], ["a"]], "only one class, 'a', in 3 rows"),
        ([torch.tensor([-100, -100])], r"every target of 2 rows is ignored \(-100\)"),
        ([["a"], [1]], "mix strings and numbers"),
        ([torch.tensor([0.0, 0.5])], "not whole numbers.*regression"),
        ([torch.tensor([0.0, 1.0]), torch.tensor([torch.nan])], r"\(rows 2\)"),
        ([torch.tensor([[0.5, 0.5]]), torch.tensor([0, 1])], "some batches hold soft labels"),
    ],
)
def test_streams_without_classes(batches: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Categorical().surveyed(batches)


@pytest.mark.parametrize(
    ("classes", "logits", "raw", "wanted"),
    [
        ((0, 2, 5), 6, [5, 0, 3], [5, 0, 3]),  # positions: the network has room for every label
        ((0, 2, 5), 3, [5, 0, 2], [2, 0, 1]),  # three labels for three logits
        ((1, 2, 3), 4, [1, 3], [1, 3]),
        ((1, 2, 3), 3, [1, 3], [0, 2]),
        (("a", "b"), 2, ["b", "a"], [1, 0]),
        ((False, True), 2, [True, False], [1, 0]),
        ((0, 1), 5, [4, 0], [4, 0]),  # classes that training never saw
        (None, 5, [4, 0], [4, 0]),
    ],
)
def test_labels_are_positions_where_they_can_be(classes: tuple, logits: int, raw: list, wanted: list) -> None:
    assert Categorical(classes=classes).canonical(raw, torch.zeros(len(raw), logits)).tolist() == wanted


def test_labels_that_fit_no_logits_are_explained() -> None:
    with pytest.raises(ShapeError, match=r"4 logits.*3 classes \(0, 2, 5\): give the network 3 logits"):
        Categorical(classes=(0, 2, 5)).canonical([0], torch.zeros(1, 4))
    with pytest.raises(ShapeError, match=r"3 logits.*2 classes"):
        Categorical(classes=("a", "b")).canonical(["a"], torch.zeros(1, 3))
    with pytest.raises(DataError, match=r"unknown label 'z'.*known ones are 'a', 'b'"):
        Categorical(classes=("a", "b")).canonical(["z"], torch.zeros(1, 2))
    with pytest.raises(DataError, match="unknown label 'z'"):
        Categorical(classes=("a", "b")).surveyed([["a", "z"]])


def test_given_classes_keep_their_order_through_the_survey() -> None:
    likelihood = Categorical(classes=("low", "high"), class_weight="balanced")
    assert likelihood.needs_survey
    found = likelihood.surveyed([["low", "low", "low", "high"]])
    assert found.classes == ("low", "high")
    assert found.class_weight == (("high", 2.0), ("low", 4 / 6))
    soft = likelihood.surveyed([torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.75, 0.25], [0.75, 0.25]])])
    assert dict(soft.class_weight) == {"low": 4 / 6, "high": 2.0}


def test_balanced_weights_give_every_class_the_same_total() -> None:
    raw = [0] * 6 + [2] * 3 + [5] * 1
    found = Categorical(class_weight="balanced").surveyed([raw[:4], raw[4:]])
    assert dict(found.class_weight) == pytest.approx({0: 10 / 18, 2: 10 / 9, 5: 10 / 3})
    for logits in (3, 6):  # as three classes or as positions among six
        weighted = log_prob(found, torch.zeros(10, logits), raw) / -math.log(logits)
        assert [weighted[:6].sum().item(), weighted[6:9].sum().item(), weighted[9:].sum().item()] == pytest.approx(
            [10 / 3] * 3, rel=1e-6
        )


def test_weights_by_label_by_position_and_by_tensor_agree() -> None:
    z, y = normal(4, 3), ["a", "b", "c", "b"]
    names = ("a", "b", "c")
    wanted = log_prob(Categorical(classes=names, class_weight=(1, 2, 4)), z, y)
    for weight in ({"b": 2, "c": 4}, torch.tensor([1.0, 2.0, 4.0]), np.array([1, 2, 4])):
        assert log_prob(Categorical(classes=names, class_weight=weight), z, y).equal(wanted)


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        ("even", DataError, "'even' is unknown"),
        ((1.0, -1.0), DataError, ">= 0"),
        ((1.0, math.nan), DataError, "finite"),
        ((1.0, 2.0, 3.0), ShapeError, "3 weights for 2 classes"),
        ({"z": 2.0}, DataError, "unknown label 'z'"),
        ("balanced", DataError, "surveyed"),
    ],
)
def test_weights_that_cannot_be(weight: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        log_prob(Categorical(classes=("a", "b"), class_weight=weight), torch.zeros(1, 2), ["a"])


@pytest.mark.parametrize("classes", [("a",), ("a", "a"), ("a", 1)])
def test_classes_that_cannot_be(classes: tuple) -> None:
    with pytest.raises(DataError, match="classes"):
        Categorical(classes=classes)


# --- two classes, labels, tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "classes"),
    [
        (["no", "yes", "yes"], ("no", "yes")),
        ([-1, 1, 1], (-1, 1)),
        ([1, 2, 2], (1, 2)),
        ([False, True, True], (False, True)),
        ([0.0, 1.0, 1.0], (0, 1)),
        ([[0], [1], [1]], (0, 1)),
    ],
)
def test_two_classes_of_any_kind(raw: list, classes: tuple) -> None:
    likelihood = Bernoulli().surveyed([raw])
    assert likelihood.classes == classes
    for outputs in (torch.zeros(3), torch.zeros(3, 1)):
        found = likelihood.canonical(raw, outputs)
        assert found.shape == outputs.shape
        assert found.flatten().tolist() == [0.0, 1.0, 1.0]


def test_two_classes_take_probabilities_and_ignored_rows() -> None:
    z, y = normal(4), torch.tensor([0.25, 1.0, -100.0, 0.0], dtype=torch.float64)
    found = log_prob(Bernoulli().surveyed([y]), z, y)
    wanted = -F.binary_cross_entropy_with_logits(z, y.clamp(0, 1), reduction="none")
    wanted[2] = 0
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    assert Bernoulli().void(y).tolist() == [False, False, True, False]
    with pytest.raises(DataError, match=r"1.5.*\[0, 1\]"):
        Bernoulli().canonical([0.5, 1.5], torch.zeros(2))


def test_two_classes_are_two() -> None:
    with pytest.raises(DataError, match=r"two classes apart.*'categorical'"):
        Bernoulli().surveyed([[0, 1, 2]])
    with pytest.raises(DataError, match="only one class"):
        Bernoulli().surveyed([[1, 1]])
    with pytest.raises(ShapeError, match=r"\(3, 2\).*'categorical'.*\(3, 1\)"):
        Bernoulli().canonical(torch.tensor([[0, 1], [1, 0], [0, 1]]), torch.zeros(3, 1))


def test_labels_side_by_side() -> None:
    y = torch.tensor([[1, 0, -100], [-100, -100, -100]])
    z = normal(2, 3)
    found = log_prob(Multilabel(), z, y)
    assert found.tolist() == pytest.approx([float(F.logsigmoid(z[0, 0]) + F.logsigmoid(-z[0, 1])), 0.0], rel=1e-12)
    assert Multilabel().void(y).tolist() == [False, True]
    assert not Multilabel().needs_survey
    with pytest.raises(DataError, match=r"out of range \(2\)"):
        Multilabel().surveyed([y, torch.tensor([[2, 0, 0]])])
    with pytest.raises(DataError, match="every target of 1 rows is ignored"):
        Multilabel().surveyed([y[1:]])


def test_tokens_are_shifted_as_in_hugging_face() -> None:
    z, y = normal(ROWS, 4, CLASSES), labels(ROWS, 4)
    y[0, 1], y[1, 1:] = -100, -100
    found = log_prob(Tokens(), z, y)
    losses = F.cross_entropy(z[:, :-1].reshape(-1, CLASSES), y[:, 1:].reshape(-1), reduction="none", ignore_index=-100)
    torch.testing.assert_close(found, -losses.reshape(ROWS, 3).sum(1), rtol=1e-12, atol=1e-12)
    assert Tokens().void(y).tolist() == [False, True] + [False] * 5
    assert not Tokens().needs_survey
    assert Tokens().surveyed([y]) == Tokens()
    with pytest.raises(DataError, match="unknown label 5"):
        Tokens().canonical(torch.full((ROWS, 4), 5), z)
    with pytest.raises(ShapeError, match=r"\(7, 3\).*\(7, 4\)"):
        Tokens().canonical(y[:, 1:], z)
    with pytest.raises(DataError, match="every target of 1 rows is ignored"):
        Tokens().surveyed([y[1:2]])


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [torch.zeros(3), torch.zeros(3, 1)])
@pytest.mark.parametrize("targets", [torch.tensor([1, 2, 3]), torch.tensor([[1.0], [2.0], [3.0]]), [1.0, 2.0, 3.0]])
def test_one_output_per_row_however_it_is_written(outputs: Tensor, targets: object) -> None:
    scaling = Scaling(torch.tensor([2.0]), torch.tensor([2.0]))
    for likelihood in (Gaussian(scaling=scaling), StudentT(scaling=scaling)):
        found = likelihood.canonical(targets, outputs)
        assert found.shape == outputs.shape
        assert found.dtype == torch.float32
        assert found.flatten().tolist() == [-0.5, 0.0, 0.5]


@pytest.mark.parametrize(
    ("targets", "outputs"),
    [
        ((3,), (3, 3)),
        ((3, 3), (3,)),
        ((3, 3), (3, 1)),
        ((3,), (4,)),
        ((3, 1), (4, 1)),
        ((4, 2), (4, 3)),
        ((20, 20), (20,)),
    ],
)
@pytest.mark.parametrize("likelihood", [Gaussian(), StudentT(), Poisson()], ids=lambda likelihood: likelihood.name)
def test_numbers_are_never_broadcast(likelihood: Likelihood, targets: tuple, outputs: tuple) -> None:
    with pytest.raises(ShapeError) as error:
        likelihood.canonical(torch.ones(targets), torch.zeros(outputs))
    assert str(targets) in str(error.value)
    assert str(outputs) in str(error.value)


def test_the_survey_learns_the_scale() -> None:
    y = 1000 + 10 * normal(101)
    for likelihood in (Gaussian(), Heteroscedastic(), StudentT()):
        assert likelihood.needs_survey
        found = likelihood.surveyed(y.split(7))
        assert not found.needs_survey
        assert found.scaling == Scaling.of(y.split(7))
        outputs = torch.zeros(101, 2 if isinstance(likelihood, Heteroscedastic) else 1)
        standard = found.canonical(y, outputs)
        assert standard.mean().abs() < 1e-6
        assert standard.std(correction=0).item() == pytest.approx(1, rel=1e-6)


def test_standardize_false_leaves_the_units_and_counts_the_outputs() -> None:
    y = 1000 + 10 * normal(7, 3)
    found = Gaussian(standardize=False).surveyed([y[:2], y[2:]])
    assert found.scaling == Scaling.identity(3)
    assert found.canonical(y, torch.zeros(7, 3, dtype=torch.float64)).equal(y)
    with pytest.raises(DataError, match="0 rows"):
        Gaussian(standardize=False).surveyed([])
    with pytest.raises(ShapeError, match=r"\(1,\).*\(3,\)"):
        Gaussian(standardize=False).surveyed([y, y[:, 0]])


def test_noise_starts_at_the_std_of_the_targets() -> None:
    assert Gaussian(scaling=SCALING).parameters()["log_std"].tolist() == [0.0, 0.0, 0.0]
    assert StudentT(scaling=Scaling.identity(1)).parameters()["log_scale"].tolist() == [0.0]
    assert Gaussian(std=0.3).parameters() == {}
    for name in ("categorical", "bernoulli", "multilabel", "heteroscedastic", "poisson", "tokens"):
        assert likelihood_from(name).parameters() == {}
    with pytest.raises(CompatibilityError, match=r"surveyed\(targets\).*Scaling.identity\(outputs\), or a known std="):
        Gaussian().parameters()


@pytest.mark.parametrize("outputs", [torch.zeros(3), torch.zeros(3, 1)])
def test_a_known_std_is_in_units_of_the_target(outputs: Tensor) -> None:
    y = [8.0, 10.0, 13.0]
    likelihood = Gaussian(std=4.0, scaling=Scaling(torch.tensor([10.0]), torch.tensor([2.0])))
    found = log_prob(likelihood, outputs, y) - likelihood.scaling.log_volume
    wanted = D.Normal(10.0, 4.0).log_prob(torch.tensor(y))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
    without = log_prob(Gaussian(std=4.0), outputs + 10, y)
    torch.testing.assert_close(without, wanted, rtol=1e-6, atol=0)
    assert likelihood.fisher(outputs, {}).flatten().tolist() == pytest.approx([0.25] * 3)


def test_a_known_std_per_output() -> None:
    y = normal(ROWS, 3)
    found = log_prob(Gaussian(std=(0.1, 1.0, 10.0)), torch.zeros(ROWS, 3).double(), y)
    wanted = D.Normal(0.0, torch.tensor([0.1, 1.0, 10.0])).log_prob(y).sum(1)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    with pytest.raises(ShapeError, match=r"\(1, 3\).*\(1, 2\)"):
        log_prob(Gaussian(std=(0.1, 1.0, 10.0)), torch.zeros(ROWS, 2), y[:, :2])


@pytest.mark.parametrize("std", [0.0, -1.0, math.inf, math.nan, (), (1.0, 0.0)])
def test_stds_that_cannot_be(std: object) -> None:
    with pytest.raises(DataError, match="known std"):
        Gaussian(std=std)


@pytest.mark.parametrize("df", [2, 2.5, 0, 101])
def test_degrees_of_freedom_that_cannot_be(df: float) -> None:
    with pytest.raises(DataError, match="3 to 100"):
        StudentT(df=df)


def test_means_and_log_stds_as_a_pair_or_side_by_side() -> None:
    outputs, y = normal(ROWS, 2 * OUTPUTS), normal(ROWS, OUTPUTS, seed=2)
    pair = outputs.chunk(2, -1)
    likelihood = Heteroscedastic(scaling=SCALING)
    assert log_prob(likelihood, pair, y).equal(log_prob(likelihood, outputs, y))
    assert likelihood.fisher(pair, {}).equal(likelihood.fisher(outputs, {}))
    one = (outputs[:, 0], outputs[:, 1])  # [rows] means and [rows] log stds
    assert log_prob(Heteroscedastic(), one, y[:, :1]).equal(log_prob(Heteroscedastic(), outputs[:, :2], y[:, 0]))
    assert Heteroscedastic().fisher(one, {}).equal(Heteroscedastic().fisher(outputs[:, :2], {}))


def test_forecasts_of_several_steps_and_channels() -> None:
    z, y = normal(ROWS, 3, 2), normal(ROWS, 3, 2, seed=2)
    likelihood = Gaussian().surveyed([y])
    parameters = likelihood.parameters()
    assert parameters["log_std"].shape == (3, 2)
    scaled = (y - y.mean(0)) / y.std(0, correction=0)
    torch.testing.assert_close(log_prob(likelihood, z, y, parameters), D.Normal(z, 1.0).log_prob(scaled).sum((1, 2)))
    assert likelihood.fisher(z, parameters).equal(torch.eye(6).double().expand(ROWS, 6, 6))


@pytest.mark.parametrize("bad", [[-1, 0], [0.5, 1.0], [math.nan, 1.0]])
def test_what_is_not_a_count(bad: list) -> None:
    with pytest.raises(DataError, match=r"rows 0"):
        Poisson().canonical(bad, torch.zeros(2))
    with pytest.raises(DataError):
        Poisson().surveyed([[1, 2], bad])
    assert Poisson().surveyed([[1, 2], [3.0, 4.0]]) == Poisson()


# --- outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "outputs", "error", "message"),
    [
        ("categorical", torch.zeros(7), ShapeError, r"\(7,\).*'bernoulli'"),
        ("categorical", torch.zeros(7, 1), ShapeError, r"\(7, 1\).*'bernoulli'"),
        ("categorical", torch.zeros(7, 5, dtype=torch.int64), CompatibilityError, "int64"),
        ("categorical", (torch.zeros(7, 5), torch.zeros(7, 2)), CompatibilityError, "a tuple of 2"),
        ("bernoulli", torch.tensor(0.0), ShapeError, "row axis"),
        ("tokens", torch.zeros(7, 5), ShapeError, r"\(7, 5\)"),
        ("heteroscedastic", torch.zeros(7, 3), ShapeError, r"two outputs for each target"),
        ("heteroscedastic", torch.zeros(7), ShapeError, r"\(7,\)"),
        ("heteroscedastic", (torch.zeros(7), torch.zeros(7, 1)), ShapeError, r"\(7,\).*\(7, 1\)"),
        ("heteroscedastic", (torch.zeros(7),) * 3, CompatibilityError, "a pair"),
        ("gaussian", {"mean": torch.zeros(7)}, CompatibilityError, "a dict"),
    ],
)
def test_outputs_that_cannot_be_read(name: str, outputs: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        likelihood_from(name).check(outputs)


# --- names and JSON --------------------------------------------------------------------------------------------------


def test_names() -> None:
    for name, kind in LIKELIHOODS.items():
        assert type(likelihood_from(name)) is kind
        assert kind.name == name
    likelihood = StudentT(df=7)
    assert likelihood_from(likelihood) is likelihood
    with pytest.raises(CompatibilityError, match=r"'normal'.*categorical, bernoulli, multilabel, gaussian"):
        likelihood_from("normal")
    with pytest.raises(CompatibilityError, match="'normal'"):
        likelihood_from_json({"name": "normal"})


@pytest.mark.parametrize(
    "likelihood",
    [
        *(kind() for kind in LIKELIHOODS.values()),
        Categorical(classes=("a", "b"), class_weight={"a": 2.0}, ignore_index=255),
        Categorical(classes=np.array([3, 5, 9]), class_weight=[1, 2, 3]),
        Bernoulli(classes=(False, True), class_weight="balanced"),
        Gaussian(std=(0.1, 0.2), scaling=Scaling.of([normal(7, 2)])),
        StudentT(df=9, standardize=False, scaling=Scaling.identity((3, 2))),
    ],
    ids=str,
)
def test_json_round_trip(likelihood: Likelihood) -> None:
    again = likelihood_from_json(json.loads(json.dumps(likelihood.to_json())))
    assert again == likelihood
    assert hash(again) == hash(likelihood)
    assert repr(again).replace("tensor", "") == repr(likelihood).replace("tensor", "")


def test_a_likelihood_of_ones_own() -> None:
    class Exponential(Poisson):
        name = "exponential"

    assert likelihood_from(Exponential()).name == "exponential"
    with pytest.raises(CompatibilityError, match="exponential has no closed Fisher information"):
        Likelihood.fisher(Exponential(), torch.zeros(1), {})
