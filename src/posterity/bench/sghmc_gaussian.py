"""Hamiltonian chains on normal targets: are the draws where they should be?

    one step    the implemented step as a linear map of (theta, p), and its stationary variance by the discrete Lyapunov
                equation, against theory; the h at which its spectral radius passes 1, against the limit
    masses      512 chains: the eigenvalues of (covariance of the draws) x (Hessian), all 1 where they are right
    noise       gradient noise of r times the injected variance, left alone and taken off

In float64 by the map and by Monte Carlo in float32. Optimizer statistics are simulated: nu is the average of 2000 squared
gradients whose noise has the Hessian as its covariance, as at the optimum of a well-specified likelihood.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from posterity.bench.bench import Cell, Limit, Row
from posterity.inference.algorithm import Plan
from posterity.inference.mass import Mass
from posterity.inference.sampler import Move, Sampler
from posterity.inference.sghmc import SGHMC
from posterity.inference.sgld import SGLD
from posterity.problem.densities import Density
from posterity.problem.reference import Gaussian, gaussian
from posterity.problem.scores import noisy
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.tree import Tree

__all__ = ["LIMITS", "cells", "claims", "stationary_variance"]

LIMITS = {
    "lyapunov_error": Limit(high=1e-6),
    "stability_error": Limit(high=1e-6),
    "fisher_eig_low": Limit(low=0.93),
    "fisher_eig_high": Limit(high=1.08),
    "masses_eig_low": Limit(low=0.88),
    "masses_eig_high": Limit(high=1.16),
    "noisy_variance": Limit(1.45, 1.55),
    "corrected_variance": Limit(0.95, 1.05),
    "condition_of_hessian_mass": Limit(high=1.0 + 1e-8),
    "invariance_error": Limit(high=1e-5),
}

SAMPLERS: dict[str, Callable[[float], Sampler]] = {
    "sghmc": lambda friction: SGHMC(friction=friction),
    "sghmc, euler": lambda friction: SGHMC(friction=friction, integrator="euler"),
    "sgld": lambda friction: SGLD(),
}


# --- one step ------------------------------------------------------------------------------------------------------


def one_step(sampler: Sampler, h: float, curvature: float, noise: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """(A, b, n) of the step as implemented: A (theta, p) + b xi + n e, where e is added to the gradient."""

    def step(theta: float, p: float, normal: float, error: float) -> Tensor:
        t, m, one = (torch.full((1, 1), value, dtype=torch.float64) for value in (theta, p, 1.0))
        at = sampler.before(t.clone(), m.clone(), one, one * h)
        taken_off = None if noise is None else one * noise
        move = Move(at, m, one, curvature * at + error, taken_off, one * normal, one * h)
        sampler.move_(move)
        return torch.cat([move.theta, move.momentum])[:, 0]

    columns = [step(1, 0, 0, 0), step(0, 1, 0, 0)]
    return torch.stack(columns, dim=1), step(0, 0, 1, 0), step(0, 0, 0, 1)


def stationary_variance(
    sampler: Sampler, h: float, curvature: float, noise: float = 0.0, corrected: bool = False
) -> float:
    """The variance of theta under the implemented step, from S = A S A^T + b b^T + noise n n^T."""
    a, b, n = one_step(sampler, h, curvature, noise if corrected else None)
    if isinstance(sampler, SGLD):  # its momentum is a bystander
        a, b, n = a[:1, :1], b[:1], n[:1]
    source = torch.outer(b, b) + noise * torch.outer(n, n)
    size = len(a)
    flat = torch.linalg.solve(torch.eye(size**2, dtype=a.dtype) - torch.kron(a, a), source.reshape(-1))
    return float(flat[0])


def theory(sampler: Sampler, h: float, curvature: float, ratio: float = 0.0) -> float:
    """T (1 + r) / lambda times what the discretisation adds."""
    if isinstance(sampler, SGLD):
        bias = 1.0 - h * curvature / 2.0
    elif isinstance(sampler, SGHMC) and sampler.integrator == "euler":
        bias = 1.0 - h * h * curvature / (4.0 - 2.0 * sampler.friction)
    else:
        bias = 1.0
    return sampler.temperature * (1.0 + ratio) / (curvature * bias)


def _flip(sampler: Sampler) -> float:
    """The h at which the spectral radius of the step at unit curvature passes 1, by bisection."""
    low, high = 0.1, 4.0
    for _ in range(60):
        h = 0.5 * (low + high)
        a, _, _ = one_step(sampler, h, 1.0, None)
        radius = float(torch.linalg.eigvals(a).abs().max()) if not isinstance(sampler, SGLD) else abs(float(a[0, 0]))
        low, high = (h, high) if radius < 1.0 else (low, h)
    return low


def _lyapunov(frictions: tuple[float, ...], steps: tuple[float, ...]) -> list[Row]:
    rows = []
    for name, make in SAMPLERS.items():
        for friction in frictions[: 1 if name == "sgld" else None]:
            sampler = make(friction)
            flip, limit = _flip(sampler), sampler.stable_limit(1.0)
            for s in steps:
                one = torch.ones((), dtype=torch.float64)
                noise = 0.5 / float(sampler.noise_ratio(s, one, one))  # r = 1/2
                found = {
                    "exact": stationary_variance(sampler, s, 1.0),
                    "noisy": stationary_variance(sampler, s, 1.0, noise),
                    "corrected": stationary_variance(sampler, s, 1.0, noise, corrected=True),
                }
                wanted = {name: theory(sampler, s, 1.0, 0.5 * (name == "noisy")) for name in found}
                rows.append(
                    {
                        "sampler": name,
                        "friction": friction,
                        "step": s,
                        **{f"variance_{key}": value for key, value in found.items()},
                        "error": max(abs(found[key] / wanted[key] - 1.0) for key in found),
                        "limit": limit,
                        "limit_error": abs(flip / limit - 1.0),
                    }
                )
    return rows


# --- many chains ---------------------------------------------------------------------------------------------------


def hessian_of(target: Gaussian) -> Tensor:
    """[d, d] the Hessian of -log p."""
    basis = torch.eye(target.dim, dtype=torch.float64) if target.basis is None else target.basis
    return basis / target.variances @ basis.mT


def simulated(target: Gaussian, members: int, seed: int) -> list[Snapshot]:
    """Members at the mean with statistics whose noise has the Hessian as its covariance; float32."""
    root = torch.linalg.cholesky(hessian_of(target))
    draws = [Random(seed).fold("gradient").fold(k).normal((2000, len(root))).double() @ root.T for k in range(members)]
    mean = target.mean.float()

    def tree(leaf: Tensor) -> Tree:
        return {"x": leaf.float()}

    return [
        Snapshot(
            theta=tree(mean + 0.0),
            first=tree(g[:10].mean(0) / 10**0.5),  # Adam's mean remembers ten steps
            second=tree(g.square().mean(0)),
            gradient=tree(g[0]),
            batch_size=torch.tensor(1),
            step=torch.tensor(2000),
        )
        for g in draws
    ]


def eigenvalues(sampler: Sampler, target: Gaussian, problem: Density, starts: list[Snapshot], steps: int) -> Tensor:
    """[d] of (second moment of the draws around the mean) x (Hessian); every fifth state of the last three quarters."""
    random = Random(7)
    state = sampler.init(problem, starts, random.fold("init"), Plan(1, steps, steps))
    hessian = hessian_of(target)
    total, count = torch.zeros_like(hessian), 0
    for t in range(steps):
        state, _ = sampler.step(problem, state, [None] * sampler.members, random)
        if t >= steps // 4 and t % 5 == 0:
            away = state.theta["x"].double() - target.mean
            total += away.T @ away
            count += len(away)
    root = torch.linalg.cholesky(hessian)
    return torch.linalg.eigvalsh(root.T @ (total / count) @ root)


def _plain(target: Gaussian) -> Density:
    """The target in float32, for all chains at once."""
    mean, precision = target.mean.float(), hessian_of(target).float()

    def log_density(tree: Tree) -> Tensor:
        away = tree["x"] - mean
        return -0.5 * (away @ precision * away).sum(-1)

    return Density(log_density, {"x": mean}, batched=True)


def _steepest(target: Gaussian, mass: Mass, starts: list[Snapshot], problem: Density) -> list[float]:
    """The largest eigenvalue of M^-1/2 H M^-1/2 of each member."""
    theta = {"x": torch.stack([one.theta["x"] for one in starts])}
    roots = mass.of(problem, starts, theta, ["x"]).double().rsqrt()
    hessian = hessian_of(target)
    return [float(torch.linalg.eigvalsh(root[:, None] * hessian * root).max()) for root in roots]


def _chains(
    mass: Mass, condition: float, rotated: bool, integrator: str, chains: int, steps: int, ratio: float = 0.0,
    corrected: bool = False,
) -> list[Row]:  # fmt: skip
    began = time.process_time()
    target = gaussian(20, condition, 3 if rotated else None, mean_seed=1)
    problem, starts = _plain(target), simulated(target, chains, seed=5)
    sizes = tuple(0.2 / value**0.5 for value in _steepest(target, mass, starts, problem))
    sampler = SGHMC(
        members=chains, mass=mass, friction=0.1, integrator=integrator, step_size=sizes, noise_correction=False,
        check_stability=False, warmup=0, draws_per_chain=steps, thin=1,
    )  # fmt: skip
    if ratio:
        one = torch.ones(())
        variance = ratio / float(sampler.noise_ratio(sizes[0], one, one))
        problem = noisy(problem, variance**0.5, scale=1.0)
        flat = {"x": torch.full((20,), variance)}
        still = {"x": torch.zeros(20)}
        starts = [one._replace(first=still, second=flat) for one in starts]
        sampler = replace(sampler, noise_correction=corrected)
    found = eigenvalues(sampler, target, problem, starts, steps)
    return [
        {
            "mass": mass.kind,
            "condition": condition,
            "rotated": rotated,
            "integrator": integrator,
            "chains": chains,
            "steps": steps,
            "noise_ratio": ratio,
            "corrected": corrected,
            "eig_low": float(found.min()),
            "eig_high": float(found.max()),
            "eig_mean": float(found.mean()),
            "seconds": time.process_time() - began,
        }
    ]


def _geometry() -> list[Row]:
    """The condition number that M = grad^2 U leaves, and a path under (M, h) -> (c M, sqrt(c) h)."""
    target = gaussian(20, 1e4, None, mean_seed=1)
    hessian = hessian_of(target)
    root = hessian.diagonal().rsqrt()
    values = torch.linalg.eigvalsh(root[:, None] * hessian * root)
    sampler, h, scale = SGHMC(), 0.2 / float(hessian.diagonal().max()) ** 0.5, 7.0
    paths = []
    for c in (1.0, scale):
        mass = torch.full((1, 20), c, dtype=torch.float64)
        theta, p = target.mean.clone()[None], Random(1).normal((1, 20)).double() * mass.sqrt()
        step = torch.full((1, 1), h * c**0.5, dtype=torch.float64)
        for t in range(1000):
            at = sampler.before(theta, p, mass, step)
            g = (at - target.mean) @ hessian
            sampler.move_(Move(at, p, mass, g, None, Random(2).fold(t).normal((1, 20)).double(), step))
            theta = at
        paths.append(theta)
    gap = float((paths[0] - paths[1]).abs().max() / paths[0].abs().max())
    return [{"condition_left": float(values.max() / values.min()), "invariance_gap": gap, "steps": 1000}]


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """The one-step maps, and one cell per mass, target and integrator."""
    chains, steps = (64, 60) if quick else (512, 3000)
    work: dict[str, Cell] = {
        "one step": partial(_lyapunov, (0.05, 0.1, 0.3), (0.1, 0.2, 0.5, 1.0, 1.5)),
        "geometry": _geometry,
        "mass fisher, kappa 1e4": partial(
            _chains, Mass("fisher", floor=0.0), 1e4, False, "aboba", chains, 60 if quick else 1500
        ),
    }
    for kind in ("identity", "second-moment", "gradient"):
        for rotated in (False, True):
            for integrator in ("aboba", "euler"):
                name = f"mass {kind}, kappa 100, {'rotated' if rotated else 'axis-aligned'}, {integrator}"
                work[name] = partial(_chains, Mass(kind), 100.0, rotated, integrator, chains, steps)
    for integrator in ("aboba", "euler"):
        for corrected in (False, True):
            name = f"noise, {integrator}, {'corrected' if corrected else 'left alone'}"
            short = 60 if quick else 1000
            work[name] = partial(_chains, Mass("identity"), 1.0, False, integrator, chains, short, 0.5, corrected)
    return dict(list(work.items())[:4]) | dict(list(work.items())[-2:]) if quick else work


def claims(rows: list[Row]) -> dict[str, float]:
    """The worst of each."""
    maps = [row for row in rows if "limit_error" in row]
    exact = [row for row in rows if "eig_low" in row and not row["noise_ratio"]]
    fisher = [row for row in exact if row["mass"] == "fisher"]
    masses = [row for row in exact if row["mass"] != "fisher"]
    noise = {
        flag: [row["eig_mean"] for row in rows if row.get("noise_ratio") and row["corrected"] is flag]
        for flag in (True, False)
    }
    (geometry,) = [row for row in rows if "condition_left" in row]
    return {
        "lyapunov_error": max(row["error"] for row in maps),
        "stability_error": max(row["limit_error"] for row in maps),
        "fisher_eig_low": min(row["eig_low"] for row in fisher),
        "fisher_eig_high": max(row["eig_high"] for row in fisher),
        "masses_eig_low": min(row["eig_low"] for row in masses),
        "masses_eig_high": max(row["eig_high"] for row in masses),
        "noisy_variance": max(noise[False], key=lambda value: abs(value - 1.5)),
        "corrected_variance": max(noise[True], key=lambda value: abs(value - 1.0)),
        "condition_of_hessian_mass": geometry["condition_left"],
        "invariance_error": geometry["invariance_gap"],
    }
