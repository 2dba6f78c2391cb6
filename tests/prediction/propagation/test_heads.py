"""Probabilities of normal logits in closed form: against derivatives, sums and points; all the ways that say them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.posterior.diagonal import Diagonal
from posterity.prediction.closed import NormalLogits, probit, second_order
from posterity.prediction.propagation.head import outputs_at_points, said_by
from posterity.prediction.propagation.joint import Joint
from posterity.prediction.propagation.value import MeanVar
from posterity.prediction.reducer import Reducer
from posterity.prediction.tempered import tempered_log_prob
from posterity.random import Random

HEADS = ["probit", "second-order"]


def normal(*shape: int, at: str = "") -> Tensor:
    return Random(0).fold(f"{shape} {at}").normal(shape).double()


def test_the_second_order_is_half_the_trace_of_the_hessian() -> None:
    mean, half = normal(3, 5), normal(3, 5, 7, at="half") / 20
    cov = half @ half.mT
    wanted = []
    for m, c in zip(mean, cov):
        hessians = torch.stack(
            [torch.autograd.functional.hessian(lambda f, k=k: f.softmax(0)[k], m) for k in range(5)]  # type: ignore[misc]
        )
        wanted.append(m.softmax(0) + (hessians * c).sum((1, 2)) / 2)
    found = second_order(mean, cov.diagonal(dim1=1, dim2=2), cov.unsqueeze(-1))
    torch.testing.assert_close(found.softmax(1), torch.stack(wanted))
    var = cov.diagonal(dim1=1, dim2=2)
    apart = second_order(mean, var, torch.diag_embed(var).unsqueeze(-1))
    torch.testing.assert_close(second_order(mean, var).softmax(1), apart.softmax(1))


def test_its_error_falls_with_the_square_of_the_variance() -> None:
    mean, z = normal(4, 3), normal(40_000, 1, 3, at="z")
    z = torch.cat([z, -z])  # no odd moments
    errors = []
    for std in (0.2, 0.1):
        truth = (mean + std * z).softmax(-1).mean(0)
        # what the draws leave is that of their second moments, 1 / sqrt(80000) of a term of size std^2: 0.4 % of it
        errors.append(float((second_order(mean, torch.full_like(mean, std**2)).softmax(1) - truth).abs().sum()))
        assert errors[-1] < 0.1 * float((mean.softmax(1) - truth).abs().sum())
    assert errors[1] < errors[0] / 3


def test_probit_is_that_of_mackay_and_bounded() -> None:
    mean, var = normal(3, 5), normal(3, 5, at="v").square()
    torch.testing.assert_close(probit(mean, var), mean * (1 + torch.pi * var / 8) ** -0.5)
    torch.testing.assert_close(probit(mean, 1e20 * torch.ones_like(mean)).softmax(1), torch.full_like(mean, 0.2))


def test_a_position_has_the_probabilities_of_a_row() -> None:
    mean, half = normal(2, 3, 4, 5), normal(2, 12 * 5, 12 * 5, at="half") / 20
    joint = Joint((mean,), half @ half.mT, True)
    likelihood = po.Categorical()
    (found,) = said_by(joint, likelihood, 16, "second-order")
    (apart,) = said_by(MeanVar(mean, joint.var.reshape(mean.shape)), likelihood, 16, "second-order")
    for one in (found, apart):
        probs = one.at(1.0).softmax(1)
        i, j = 2, 3
        at = torch.arange(3) * 20 + i * 5 + j
        block = joint.cov[:, at][:, :, at]
        cov = block if one is found else torch.diag_embed(block.diagonal(dim1=1, dim2=2))
        wanted = second_order(mean[:, :, i, j], block.diagonal(dim1=1, dim2=2), cov.unsqueeze(-1)).softmax(1)
        torch.testing.assert_close(probs[:, :, i, j], wanted)


@pytest.mark.parametrize("head", HEADS)
def test_a_temperature_divides_the_logits_themselves(head: Any) -> None:
    likelihood, labels = po.Categorical(), torch.tensor([0, 2, 1, 2])
    mean, var, t = normal(4, 3), normal(4, 3, at="v").square(), 1.7

    def said(output: MeanVar, temperature: float) -> Any:
        reduced = Reducer(likelihood, temperature)
        for one in said_by(output, likelihood, 64, head):
            reduced.add(one)
        return reduced.result()

    found, wanted = said(MeanVar(mean, var), t), said(MeanVar(mean / t, var / t**2), 1.0)
    torch.testing.assert_close(found.probs, wanted.probs)
    torch.testing.assert_close(found.epistemic, wanted.epistemic)
    outputs = list(said_by(MeanVar(mean, var), likelihood, 64, head))
    temperature = torch.tensor(t, dtype=torch.float64, requires_grad=True)
    log_prob = tempered_log_prob(likelihood, outputs, {}, labels, temperature)
    torch.testing.assert_close(log_prob.float(), found.log_prob(labels))
    log_prob.sum().backward()
    assert temperature.grad is not None
    assert bool(temperature.grad.isfinite())


@pytest.mark.parametrize("head", HEADS)
def test_what_is_epistemic_is_that_of_the_points(head: Any) -> None:
    likelihood = po.Categorical()
    output = MeanVar(normal(9, 4), 3 * normal(9, 4, at="v").square())
    one, points = Reducer(likelihood), Reducer(likelihood)
    for said in said_by(output, likelihood, 64, head):
        one.add(said)
    for said in outputs_at_points(output, likelihood, 64):
        points.add(said)
    found, wanted = one.result(), points.result()
    assert (found.entropy > wanted.epistemic).all()  # else the aleatoric part were below 0
    torch.testing.assert_close(found.epistemic, wanted.epistemic)
    torch.testing.assert_close(found.aleatoric + found.epistemic, found.entropy)
    assert not torch.equal(found.probs, wanted.probs)


@pytest.mark.parametrize("head", HEADS)
def test_a_huge_variance_leaves_finite_log_probabilities(head: Any) -> None:
    output = MeanVar(20 * normal(30, 4), torch.full((30, 4), 1e4, dtype=torch.float64))
    reduced = Reducer(po.Categorical())
    for said in said_by(output, po.Categorical(), 64, head):
        reduced.add(said)
    pred = reduced.result()
    assert bool(pred.log_probs.isfinite().all())
    torch.testing.assert_close(pred.probs.sum(1), torch.ones(30))


def data(rows: int = 90) -> tuple[Tensor, Tensor]:
    x = Random(1).normal((rows, 5))
    return x, (x[:, 0] + 0.7 * Random(2).normal((rows,)) > 0).long() + (x[:, 1] > 0).long()


@cache
def point() -> po.BayesianModel:
    with Random(3).forked():
        net = nn.Sequential(nn.Linear(5, 12), nn.GELU(), nn.Linear(12, 3))
    return po.fit(net, data(), "categorical", po.MAP(), epochs=40, batch_size=16, seed=0, progress=False)


def fitted(std: float, head: str, **rules: Any) -> po.BayesianModel:
    model = point()
    mean = dict(model.posterior.mean())
    posterior = Diagonal(mean, {name: torch.full_like(leaf, std) for name, leaf in mean.items()})
    model = po.BayesianModel(model.problem, posterior, settings=model.settings)
    model.propagation = po.Propagation(po.Rules(head=head, **rules))  # type: ignore[arg-type]
    return model


@pytest.mark.parametrize("covariance", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_predictions_are_near_those_of_points(head: str, covariance: bool) -> None:
    x, _ = data()
    model = fitted(0.05, head, covariance=covariance)
    found = model.predict(x, via="propagation")
    model.propagation = po.Propagation(po.Rules(covariance=covariance))
    points, mean = model.predict(x, via="propagation"), model.predict(x, via="mean")
    distance, gap = ((one.probs - points.probs).abs().sum(1).mean() for one in (found, mean))
    assert distance < 0.7 * gap
    model.propagation = po.Propagation(po.Rules(head=head, covariance=covariance))  # type: ignore[arg-type]
    torch.testing.assert_close(model.predict(x[3:5], via="propagation").probs, found.probs[3:5])


@pytest.mark.parametrize("head", HEADS)
def test_calibration_lowers_the_nll_of_this_head_and_is_kept(head: str, tmp_path: Path) -> None:
    x, y = data(200)
    x[:70], y[:70] = 8 * x[:70], y[:70].roll(1)  # far rows are noise: their variance helps where a temperature cannot
    model = fitted(0.1, head)
    model.calibrate((x, y), via="propagation")
    assert model.propagation.helps
    told = model.calibration
    assert told is not None
    assert told["nll_after"] < told["nll_before"]
    pred = model.predict(x, via="propagation")
    assert -float(pred.log_prob(y).mean()) == pytest.approx(told["nll_after"], rel=1e-5)
    model.save(tmp_path / "run")
    net = nn.Sequential(nn.Linear(5, 12), nn.GELU(), nn.Linear(12, 3))
    again = po.load(tmp_path / "run", net)
    assert again.propagation.rules.head == head
    torch.testing.assert_close(again.predict(x, via="propagation").probs, pred.probs)


def test_a_mixture_averages_its_parts() -> None:
    x, y = data()
    net = nn.Sequential(nn.Linear(5, 12), nn.GELU(), nn.Linear(12, 3))
    method = po.Ensemble(po.MeanFieldVI(), 2)
    model = po.fit(net, (x, y), "categorical", method, epochs=5, seed=0, progress=False)
    model.propagation = po.Propagation(po.Rules(head="second-order"))
    whole = model.predict(x, via="propagation")
    parts = []
    for one in model.posterior.components:  # type: ignore[attr-defined]
        part = po.BayesianModel(model.problem, one, settings=model.settings)
        part.propagation = model.propagation
        parts.append(part.predict(x, via="propagation", draws=32))  # of 64 points each of two parts has 32
    torch.testing.assert_close(whole.probs, sum(part.probs for part in parts) / 2)
    torch.testing.assert_close(whole.aleatoric, sum(part.aleatoric for part in parts) / 2)


def test_what_has_no_such_head_says_so(tmp_path: Path) -> None:
    x, _ = data()
    model = po.fit(nn.Linear(5, 1), (x, x[:, 0]), "gaussian", po.MeanFieldVI(), epochs=1, seed=0, progress=False)
    model.propagation = po.Propagation(po.Rules(head="probit"))
    for call in (
        lambda: model.predict(x, via="propagation"),
        lambda: model.calibrate((x, x[:, 0]), via="propagation"),
        lambda: model.export(tmp_path / "m.onnx", example=x[:3]),
    ):
        with pytest.raises(po.CompatibilityError, match=r'softmax \(categorical\), not what gaussian.*head="points"'):
            call()
    with pytest.raises(ValueError, match="head must be one of"):
        po.Rules(head="none")  # type: ignore[arg-type]


def test_moments_are_given_where_there_is_a_variance_alone() -> None:
    mean = normal(2, 3)
    (plain,) = said_by(mean, po.Categorical(), 64, "probit")
    assert plain is mean
    (found,) = said_by(MeanVar(mean, torch.ones_like(mean)), po.Categorical(), 64, "probit")
    assert isinstance(found, NormalLogits)
