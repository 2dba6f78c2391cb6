"""Reference posteriors that are regressions, y ~ N(X beta, sigma): constants dropped."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posterity.bench.reference_parts import Data, Model, cauchy, normal, tensor
from posterity.bench.transforms import Positive, Real
from posterity.tree import Tree

__all__ = ["REGRESSIONS"]


def _flat(*_: Tensor) -> Tensor | float:
    return 0.0


def _regression(
    columns: Tensor,
    y: Tensor,
    sigma_prior: Callable[[Tensor], Tensor | float] = _flat,
    beta_prior: Callable[[Tensor], Tensor | float] = _flat,
) -> Model:
    """y ~ N(columns @ beta, sigma)."""

    def log_prob(p: Tree) -> Tensor:
        beta, sigma = p["beta"], p["sigma"]
        return normal(y, beta @ columns.mT, sigma) + sigma_prior(sigma) + beta_prior(beta)

    return Model({"beta": Real(columns.shape[1]), "sigma": Positive()}, log_prob)


def _design(*columns: Tensor) -> Tensor:
    return torch.stack([torch.ones_like(columns[0]), *columns], 1)


def _kidscore_momiq(data: Data) -> Model:
    columns = _design(tensor(data["mom_iq"]))
    return _regression(columns, tensor(data["kid_score"]), lambda sigma: cauchy(sigma, 2.5))


def _kidscore_interaction(data: Data) -> Model:
    school, iq = tensor(data["mom_hs"]), tensor(data["mom_iq"])
    columns = _design(school, iq, school * iq)
    return _regression(columns, tensor(data["kid_score"]), lambda sigma: cauchy(sigma, 2.5))


def _logearn_interaction(data: Data) -> Model:
    height, male = tensor(data["height"]), tensor(data["male"])
    return _regression(_design(height, male, height * male), tensor(data["earn"]).log())


def _logmesquite(data: Data) -> Model:
    logged = [tensor(data[name]).log() for name in ("diam1", "diam2", "canopy_height", "total_height", "density")]
    return _regression(_design(*logged, tensor(data["group"])), tensor(data["weight"]).log())


def _nes(data: Data) -> Model:
    age = tensor(data["age_discrete"])
    ages = [(age == group).double() for group in (2, 3, 4)]
    before, after = ("real_ideo", "race_adj"), ("educ1", "gender", "income")
    columns = _design(*(tensor(data[n]) for n in before), *ages, *(tensor(data[n]) for n in after))
    return _regression(columns, tensor(data["partyid7"]))


def _blr(data: Data) -> Model:
    def prior(x: Tensor) -> Tensor:
        return normal(x, 0.0, 10.0)

    return _regression(tensor(data["X"]), tensor(data["y"]), prior, prior)


def _kilpisjarvi(data: Data) -> Model:
    mean = tensor([data["pmualpha"], data["pmubeta"]])
    std = tensor([data["psalpha"], data["psbeta"]])
    columns, y = _design(tensor(data["x"])), tensor(data["y"])
    return _regression(columns, y, beta_prior=lambda beta: -0.5 * ((beta - mean) / std).square().sum(-1))


def _ark(data: Data) -> Model:
    """y_t ~ N(alpha + sum over k of beta_k y_(t-k), sigma) for t > K."""
    y, lags = tensor(data["y"]), data["K"]
    columns = _design(*(y[lags - k : len(y) - k] for k in range(1, lags + 1)))
    return _regression(columns, y[lags:], lambda s: cauchy(s, 2.5), lambda beta: normal(beta, 0.0, 10.0))


REGRESSIONS: dict[str, Callable[[Data], Model]] = {
    "arK-arK": _ark,
    "earnings-logearn_interaction": _logearn_interaction,
    "kidiq-kidscore_interaction": _kidscore_interaction,
    "kidiq-kidscore_momiq": _kidscore_momiq,
    "kilpisjarvi_mod-kilpisjarvi": _kilpisjarvi,
    "mesquite-logmesquite": _logmesquite,
    "nes2000-nes": _nes,
    "sblrc-blr": _blr,
}
