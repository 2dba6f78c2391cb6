"""The densities of sixteen reference posteriors of posteriordb, constants dropped.

Parameters are named groups [..., width] on their own scale. N(m, s) has standard deviation s, the prior of a positive
number is restricted to where it is positive, and where no prior is named it is flat.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posterity.bench.reference_parts import Data, Model, cauchy, cholesky, normal, tensor
from posterity.bench.reference_regressions import REGRESSIONS
from posterity.bench.scans import linear_recursion, log_matrix_product
from posterity.bench.transforms import Bounded, Ordered, Positive, PositiveOrdered, Real, Simplex, Stick
from posterity.tree import Tree

__all__ = ["MODELS"]

# --- time series -------------------------------------------------------------------------------------------------------


def _arma11(data: Data) -> Model:
    """y_t = mu + phi y_(t-1) + theta e_(t-1) + e_t, e ~ N(0, sigma); before the first time y is mu and e is 0."""
    y = tensor(data["y"])

    def log_prob(p: Tree) -> Tensor:
        mu, phi, theta, sigma = p["mu"], p["phi"], p["theta"], p["sigma"]
        before = torch.cat([mu, y[:-1].expand(*mu.shape[:-1], -1)], -1)
        errors = linear_recursion(-theta, y - mu - phi * before)
        priors = normal(mu, 0.0, 10.0) + normal(phi, 0.0, 2.0) + normal(theta, 0.0, 2.0) + cauchy(sigma, 2.5)
        return normal(errors, 0.0, sigma) + priors

    return Model({"mu": Real(), "phi": Real(), "theta": Real(), "sigma": Positive()}, log_prob)


def _garch11(data: Data) -> Model:
    """y_t ~ N(mu, s_t), s_t^2 = alpha0 + alpha1 (y_(t-1) - mu)^2 + beta1 s_(t-1)^2, alpha1 + beta1 < 1."""
    y, first = tensor(data["y"]), tensor([data["sigma1"]]).square()

    def log_prob(p: Tree) -> Tensor:
        mu, alpha0, (alpha1, beta1) = p["mu"], p["alpha0"], p["alpha1_beta1"].split(1, -1)
        gaps = (y - mu).square()
        fed = alpha0 + alpha1 * gaps[..., :-1]
        variances = linear_recursion(beta1, torch.cat([first.expand_as(mu), fed], -1))
        return -0.5 * (variances.log() + gaps / variances).sum(-1)

    return Model({"mu": Real(), "alpha0": Positive(), "alpha1_beta1": Stick(2)}, log_prob)


def _markov(p: Tree, emissions: Tensor) -> Tensor:
    """log p(y) of a hidden Markov chain, emissions [..., K, T]; both states start with weight one."""
    transitions = torch.stack([p["theta1"], p["theta2"]], -2).log()  # row: from
    chain = log_matrix_product(transitions.unsqueeze(-1) + emissions[..., None, :, 1:])
    return (emissions[..., :, :1] + chain).logsumexp((-2, -1))


def _hmm_example(data: Data) -> Model:
    """y | k ~ N(mu_k, 1), mu_1 ~ N(3, 1), mu_2 ~ N(10, 1), 0 < mu_1 < mu_2."""
    y, centers = tensor(data["y"]), tensor([3.0, 10.0])

    def log_prob(p: Tree) -> Tensor:
        emissions = -0.5 * (y - p["mu"].unsqueeze(-1)).square()
        return _markov(p, emissions) + normal(p["mu"], centers, 1.0)

    return Model({"theta1": Simplex(2), "theta2": Simplex(2), "mu": PositiveOrdered(2)}, log_prob)


def _hmm_drive(data: Data) -> Model:
    """u | k ~ Exp(phi_k), v | k ~ Exp(lambda_k), phi and lambda ~ N((0, 3), 1), transitions ~ Dirichlet(alpha) by rows."""
    u, v, alpha, centers = tensor(data["u"]), tensor(data["v"]), tensor(data["alpha"]), tensor([0.0, 3.0])

    def log_prob(p: Tree) -> Tensor:
        phi, rate = p["phi"].unsqueeze(-1), p["lambda"].unsqueeze(-1)
        emissions = (phi * rate).log() - phi * u - rate * v
        rows = ((alpha[0] - 1) * p["theta1"].log() + (alpha[1] - 1) * p["theta2"].log()).sum(-1)
        return _markov(p, emissions) + rows + normal(p["phi"], centers, 1.0) + normal(p["lambda"], centers, 1.0)

    ordered = PositiveOrdered(2)
    return Model({"theta1": Simplex(2), "theta2": Simplex(2), "phi": ordered, "lambda": ordered}, log_prob)


# --- hierarchies, mixtures, processes ----------------------------------------------------------------------------------


def _eight_schools(data: Data) -> Model:
    """y_j ~ N(theta_j, sigma_j), theta_j = mu + tau z_j, z ~ N(0, 1), mu ~ N(0, 5), tau ~ Cauchy+(0, 5)."""
    y, errors = tensor(data["y"]), tensor(data["sigma"])
    schools = len(y)

    def log_prob(p: Tree) -> Tensor:
        misfit = (y - p["mu"] - p["tau"] * p["z"]) / errors
        return normal(misfit, 0.0, 1.0) + normal(p["z"], 0.0, 1.0) + normal(p["mu"], 0.0, 5.0) + cauchy(p["tau"], 5.0)

    def columns(p: Tree) -> Tensor:
        return torch.cat([p["mu"] + p["tau"] * p["z"], p["mu"], p["tau"]], -1)

    def parameters(x: Tensor) -> Tree:
        theta, mu, tau = x.split([schools, 1, 1], -1)
        return {"z": (theta - mu) / tau, "mu": mu, "tau": tau}

    return Model({"z": Real(schools), "mu": Real(), "tau": Positive()}, log_prob, columns, parameters)


def _low_dim_gauss_mix(data: Data) -> Model:
    """y ~ theta N(mu_1, s_1) + (1 - theta) N(mu_2, s_2), mu_1 < mu_2, mu, s ~ N(0, 2), theta ~ Beta(5, 5)."""
    y = tensor(data["y"])

    def log_prob(p: Tree) -> Tensor:
        weights = torch.cat([p["theta"].log(), (-p["theta"]).log1p()], -1)
        gaps = (y - p["mu"].unsqueeze(-1)) / p["sigma"].unsqueeze(-1)
        parts = (weights - p["sigma"].log()).unsqueeze(-1) - 0.5 * gaps.square()
        priors = normal(p["mu"], 0.0, 2.0) + normal(p["sigma"], 0.0, 2.0) + 4 * weights.sum(-1)
        return torch.logaddexp(parts[..., 0, :], parts[..., 1, :]).sum(-1) + priors

    return Model({"mu": Ordered(2), "sigma": Positive(2), "theta": Bounded()}, log_prob)


def _kernel(x: Tensor, p: Tree) -> Tensor:
    """[..., N, N] alpha^2 exp(-(x - x')^2 / (2 rho^2))."""
    rho, alpha = p["rho"].unsqueeze(-1), p["alpha"].unsqueeze(-1)
    return alpha.square() * (-0.5 * ((x.unsqueeze(-1) - x) / rho).square()).exp()


def _kernel_prior(p: Tree) -> Tensor:
    """rho ~ Gamma(25, rate 4), alpha ~ N+(0, 2)."""
    return (24 * p["rho"].log() - 4 * p["rho"]).sum(-1) + normal(p["alpha"], 0.0, 2.0)


def _gp_regr(data: Data) -> Model:
    """y ~ N(0, kernel + sigma I): sigma is a variance, ~ N+(0, 1)."""
    x, y = tensor(data["x"]), tensor(data["y"])

    def log_prob(p: Tree) -> Tensor:
        noise = p["sigma"].unsqueeze(-1) * torch.eye(len(x), dtype=x.dtype)
        factor = cholesky(_kernel(x, p) + noise)
        white = torch.linalg.solve_triangular(factor, y.unsqueeze(-1), upper=False)
        half_log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * white.square().sum((-2, -1)) - half_log_det + _kernel_prior(p) + normal(p["sigma"], 0.0, 1.0)

    return Model({"rho": Positive(), "alpha": Positive(), "sigma": Positive()}, log_prob)


def _gp_pois_regr(data: Data) -> Model:
    """k ~ Poisson(exp f), f = L z, L L^T = kernel + 1e-10 I, z ~ N(0, 1)."""
    x, k = tensor(data["x"]), tensor(data["k"])

    def factor(p: Tree) -> Tensor:
        return cholesky(_kernel(x, p) + 1e-10 * torch.eye(len(x), dtype=x.dtype))

    def values(p: Tree) -> Tensor:
        return (factor(p) @ p["z"].unsqueeze(-1)).squeeze(-1)

    def log_prob(p: Tree) -> Tensor:
        f = values(p)
        return (k * f - f.exp()).sum(-1) + normal(p["z"], 0.0, 1.0) + _kernel_prior(p)

    def parameters(columns: Tensor) -> Tree:
        rho, alpha, f = columns.split([1, 1, len(x)], -1)
        p = {"rho": rho, "alpha": alpha}
        return {**p, "z": torch.linalg.solve_triangular(factor(p), f.unsqueeze(-1), upper=False).squeeze(-1)}

    def columns(p: Tree) -> Tensor:
        return torch.cat([p["rho"], p["alpha"], values(p)], -1)

    return Model({"rho": Positive(), "alpha": Positive(), "z": Real(len(x))}, log_prob, columns, parameters)


_OTHERS: dict[str, Callable[[Data], Model]] = {
    "arma-arma11": _arma11,
    "bball_drive_event_0-hmm_drive_0": _hmm_drive,
    "eight_schools-eight_schools_noncentered": _eight_schools,
    "garch-garch11": _garch11,
    "gp_pois_regr-gp_pois_regr": _gp_pois_regr,
    "gp_pois_regr-gp_regr": _gp_regr,
    "hmm_example-hmm_example": _hmm_example,
    "low_dim_gauss_mix-low_dim_gauss_mix": _low_dim_gauss_mix,
}

MODELS = dict(sorted({**REGRESSIONS, **_OTHERS}.items()))
