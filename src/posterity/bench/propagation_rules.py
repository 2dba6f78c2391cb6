"""How far the rules of variance propagation are from the truth.

activations    of X ~ N(mean, std^2), mean in [-6, 6], std 0.03 to 4, in float32 against a sum in float64 over 8001 points;
               mean_error / std,  var_error / (true var + 1e-3 std^2), the largest over the grid
extremes       |mean| up to 1000, var up to 100: NaN and negative variances are counted
products       linear and convolution: the relative error of all variances together, over that which the draws leave
norms          64 and 384 features, the inputs' spread 0.1 to 2 of the features' own: the relative error of all variances
head           total variation from the truth of the mean probabilities of 10 classes, std 1; random draws and the closed
               forms beside
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.bench.bench import Cell, Limit, Row
from posterity.prediction.closed import probit, second_order
from posterity.prediction.propagation import activations, rules
from posterity.prediction.propagation.head import POINTS, normal_points
from posterity.prediction.propagation.value import MeanVar
from posterity.random import Random

__all__ = ["LIMITS", "cells", "claims"]

LIMITS = {
    "gelu_var_error": Limit(high=1e-4),
    "relu_var_error": Limit(high=1e-4),
    "silu_var_error": Limit(high=1e-2),
    "tanh_var_error": Limit(high=1e-2),
    "sigmoid_var_error": Limit(high=1e-2),
    "gelu_mean_error": Limit(high=2e-5),
    "relu_mean_error": Limit(high=2e-5),
    "silu_mean_error": Limit(high=1e-3),
    "tanh_mean_error": Limit(high=1e-3),
    "sigmoid_mean_error": Limit(high=1e-3),
    "extremes_wrong": Limit(high=0.0),
    "product_var_error": Limit(high=2.0),
    "norm_var_error": Limit(high=0.05),
    "head_total_variation": Limit(high=0.01),
}

STDS = (0.03, 0.1, 0.3, 1.0, 2.0, 4.0)
Function = Callable[[Tensor], Tensor]
Moments = Callable[[Tensor, Tensor], activations.Moments]


def _by_accuracy(name: str, accuracy: str) -> Moments:
    return partial(getattr(activations, name), accuracy=accuracy)


FUNCTIONS: dict[str, Function] = {
    "gelu": F.gelu, "relu": F.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "silu": F.silu, "softplus": F.softplus,
    "elu": F.elu, "leaky_relu": F.leaky_relu, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "abs": torch.abs,
}  # fmt: skip
TWO = ("gelu", "sigmoid", "tanh", "silu", "softplus")  # with a fast form


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """A cell per kind of rule."""
    draws = 2_000 if quick else 100_000
    return {
        "activations": partial(_activations, quick),
        "extremes": _extremes,
        "products": partial(_products, draws),
        "norms": partial(_norms, draws),
        "head": partial(_head, draws),
    }


def _activations(quick: bool) -> list[Row]:
    rows: list[Row] = []
    mean = torch.linspace(-6.0, 6.0, 25 if quick else 241)
    for name, function in FUNCTIONS.items():
        for accuracy in ("exact", "fast") if name in TWO else ("exact",):
            moments: Moments = _by_accuracy(name, accuracy) if name in TWO else getattr(activations, name)
            for std in STDS:
                found = moments(mean, torch.full_like(mean, std**2))
                true_mean, true_var = truth(function, mean, std)
                var_error = ((found.var.double() - true_var).abs() / (true_var + 1e-3 * std**2)).max()
                mean_error = ((found.mean.double() - true_mean).abs() / std).max()
                own = {"rule": name, "accuracy": accuracy, "std": std}
                rows.append({**own, "mean_error": float(mean_error), "var_error": float(var_error)})
    return rows


def truth(function: Function, mean: Tensor, std: float) -> tuple[Tensor, Tensor]:
    """E f and Var f in float64, by a sum over 8001 points of +-10 std."""
    z = torch.linspace(-10.0, 10.0, 8001, dtype=torch.float64)
    weights = torch.exp(-z.square() / 2)
    weights = weights / weights.sum()
    values = function(mean.double().unsqueeze(-1) + std * z)
    average = (values * weights).sum(-1)
    return average, ((values - average.unsqueeze(-1)).square() * weights).sum(-1)


def _extremes() -> list[Row]:
    mean = torch.cat([sign * torch.logspace(-3, 3, 61) for sign in (-1.0, 1.0)]).repeat(9)
    var = torch.cat([torch.zeros(1), torch.logspace(-6, 2, 8)]).repeat_interleave(len(mean) // 9)
    rows: list[Row] = []
    for name in FUNCTIONS:
        for accuracy in ("exact", "fast") if name in TWO else ("exact",):
            moments: Moments = _by_accuracy(name, accuracy) if name in TWO else getattr(activations, name)
            found = moments(mean, var)
            wrong = ~found.mean.isfinite() | ~found.var.isfinite() | (found.var < 0)
            rows.append({"rule": name, "accuracy": accuracy, "wrong": int(wrong.sum())})
    return rows


def _products(draws: int) -> list[Row]:
    cases: dict[
        str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[..., object], tuple[int, ...], tuple[int, ...]]
    ] = {
        "linear": (F.linear, rules.linear.linear, (4, 32), (8, 32)),
        "conv2d": (F.conv2d, rules.linear.convolution(F.conv2d), (1, 4, 6, 6), (8, 4, 3, 3)),
    }
    return [_drawn(name, *case, draws) for name, case in cases.items()]


def _drawn(
    name: str,
    function: Callable[[Tensor, Tensor], Tensor],
    rule: Callable[..., object],
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    draws: int,
) -> Row:
    random = Random(0).fold(name)
    (x, w), (x_std, w_std) = (
        [random.fold(kind).fold(i).normal(shape) for i, shape in enumerate((x_shape, w_shape))]
        for kind in ("mean", "std")
    )
    found = rule(MeanVar(x, x_std.square()), MeanVar(w, w_std.square()))
    assert isinstance(found, MeanVar)
    total, squares = (
        torch.zeros_like(found.mean, dtype=torch.float64),
        torch.zeros_like(found.mean, dtype=torch.float64),
    )
    for i in range(draws // 1000):
        noise = random.fold("noise").fold(i)
        a = x + x_std * noise.fold(0).normal((1000, *x_shape))
        b = w + w_std * noise.fold(1).normal((1000, *w_shape))
        gap = (torch.vmap(function)(a, b) - found.mean).double()
        total, squares = total + gap.sum(0), squares + gap.square().sum(0)
    var = squares / draws - (total / draws).square()
    error, noise_error = float((found.var - var).norm() / var.norm()), math.sqrt(2 / draws)
    return {"rule": name, "var_error": error, "noise": noise_error, "var_error_in_noise": error / noise_error}


def _norms(draws: int) -> list[Row]:
    cases: dict[str, tuple[Function, Callable[[MeanVar, int], object]]] = {
        "layer_norm": (lambda x: F.layer_norm(x, x.shape[-1:]), lambda x, n: rules.norm.layer_norm(x, (n,))),
        "rms_norm": (lambda x: F.rms_norm(x, x.shape[-1:]), lambda x, n: rules.norm.rms_norm(x, (n,))),
        "group_norm": (lambda x: F.group_norm(x, 1), lambda x, n: rules.norm.group_norm(x, 1)),
    }
    rows: list[Row] = []
    for features in (64, 384):
        for share in (0.1, 0.3, 1.0, 2.0):
            random = Random(1).fold(features)
            mean = random.fold("mean").normal((1, features))
            std = share * (0.5 + torch.arange(features) % 3 / 2).expand(1, features)
            noise = [random.fold("noise").fold(i).normal((1000, features)) for i in range(draws // 1000)]
            for name, (function, rule) in cases.items():
                values = torch.cat([function(mean + std * one) for one in noise]).double()
                found = rule(MeanVar(mean, std.square()), features)
                assert isinstance(found, MeanVar)
                var_error = float((found.var[0] - values.var(0)).norm() / values.var(0).norm())
                gap = (found.mean[0] - values.mean(0)).norm() / values.var(0).sum().sqrt()
                own = {"rule": name, "features": features, "share": share}
                rows.append({**own, "mean_error": float(gap), "var_error": var_error})
    return rows


def _head(draws: int) -> list[Row]:
    mean = 2 * Random(2).fold("logits").normal((200, 10)).double()
    noise = [Random(2).fold("truth").fold(i).normal((1000, 1, 10)).double() for i in range(draws // 1000)]
    true = torch.stack([(mean + one).softmax(-1).mean(0) for one in noise]).mean(0)

    def from_truth(probs: Tensor) -> float:
        return float((probs - true).abs().sum(-1).mean() / 2)

    def variation(points: Tensor) -> float:
        return from_truth((mean + points[:, None]).softmax(-1).mean(0))

    random = [variation(Random(3).fold(k).normal((POINTS, 10)).double()) for k in range(5)]
    return [
        {"rule": "head", "points": POINTS, "total_variation": variation(normal_points(POINTS, 10))},
        {"rule": "head, random draws", "points": POINTS, "total_variation": sum(random) / len(random)},
        *(
            {
                "rule": f"head, {name}",
                "points": 0,
                "total_variation": from_truth(form(mean, torch.ones_like(mean)).softmax(-1)),
            }
            for name, form in (("probit", probit), ("second order", second_order))
        ),
        {"rule": "head, at the mean", "points": 0, "total_variation": from_truth(mean.softmax(-1))},
    ]


def claims(rows: list[Row]) -> dict[str, float]:
    """The largest errors over the grid, of the exact rules and, `fast_` before them, of the fast ones up to a std of 0.3."""
    found: dict[str, float] = {}
    measured = [row for row in rows if "std" in row]
    for name in FUNCTIONS:
        own = [row for row in measured if row["rule"] == name and row["accuracy"] == "exact"]
        found |= {f"{name}_{error}": max(row[error] for row in own) for error in ("var_error", "mean_error")}
    for name in TWO:
        own = [row for row in measured if row["rule"] == name and row["accuracy"] == "fast"]
        found[f"fast_{name}_var_error"] = max(row["var_error"] for row in own)
        found[f"fast_{name}_var_error_to_0.3"] = max(row["var_error"] for row in own if row["std"] <= 0.3)
    found["extremes_wrong"] = float(sum(row["wrong"] for row in rows if "wrong" in row))
    found["product_var_error"] = max(row["var_error_in_noise"] for row in rows if "noise" in row)
    norms = [row for row in rows if "features" in row]
    found["norm_var_error"] = max(row["var_error"] for row in norms)
    found["norm_mean_error"] = max(row["mean_error"] for row in norms)
    heads = {row["rule"]: row["total_variation"] for row in rows if "total_variation" in row}
    names = {
        "head": "head", "draws": "head, random draws", "probit": "head, probit", "second_order": "head, second order",
        "mean": "head, at the mean",
    }  # fmt: skip
    return {**found, **{f"{name}_total_variation": heads[rule] for name, rule in names.items() if rule in heads}}
