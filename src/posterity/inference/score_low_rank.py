"""Score-based variational inference over a normal with a low-rank plus diagonal covariance.

    q = N(m, Sigma),    Sigma = D + U U^T,    D = diag s^2,    U [d, r],    P = Sigma^-1
    P v = D^-1 (v - U K^-1 U^T D^-1 v),       K = I + U^T D^-1 U           (Woodbury: O(d r), and O(d r^2) a step for K)

    theta = m + s z + U x,    y = theta - m,    p = P y = -grad log q,    R = -p - s(theta);    averages over the draws:

    m     <- m - h <Sigma R>
    U     <- U - (h / 4) < Sigma R (U^T p)^T + y (U^T R)^T > (M + 0.1 I)^-1,    M = U^T P U = I - K^-1
    log s <- log s - (h / 2) <R p> / diag P

This is the gradient of the objective of `score_matching.py` at frozen draws with the residual in the norm of Sigma_t (by m:
2 R; by U: 2 G U and by log s: 2 s^2 diag G with G = <R p^T + p R^T>), preconditioned: by Sigma on the left and by the Fisher
information of U on the right. In that norm the fixed point is the one of the evidence lower bound, and the posterior itself
where its covariance is of this form. Here q = q_t at every step, so that the proximal term is zero: there is no alpha.
Under "hybrid", m moves by Adam on <R>.

Kim (2026), arXiv 2602.05873; family and preconditioner are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.inference.adam import Adam
from posterity.inference.algorithm import Algorithm, Plan, Start, keep_buffers, stacked_start
from posterity.inference.gaussian import prior_where_idle
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.inference.score_matching import (
    check_positive,
    drawn,
    joined,
    joined_info,
    noise_limit,
    normal_rows,
    put_back_,
    score_rows,
    start_stds,
    varied,
)
from posterity.posterior.low_rank import LowRankPlusDiagonal
from posterity.posterior.mixture import mixture
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.densities import Density
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem, batch_rows
from posterity.random import Random
from posterity.tree import Tree, clone, member, split

__all__ = ["LowRankMoves", "ScoreLowRank", "ScoreLowRankState", "low_rank_step"]

MOST = 0.3  # default rate
TRUST = 0.5  # largest relative change of the factor, and of the mean per sqrt(d)
LOG_STEP = 0.2  # largest step of log std
DAMPING = 0.1  # of the factor's Fisher information, which is singular at U = 0
START = 0.5  # length of a column of U in units of s, before the first step


class ScoreLowRankState(NamedTuple):
    mean: Tree  # [members, ...], with the changed buffers
    std: Tensor  # [members, d] s
    factor: Tensor  # [members, d, rank] U
    mean_first: Tree  # {"joined": [members, d]} Adam's moments of <R>; {} where the update is whitened
    mean_second: Tree
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class ScoreLowRank(Algorithm):
    """Score-based variational inference over a low-rank plus diagonal normal.

    Args:
        rank: r, columns of U, >= 1; the state takes (r + 2) times the memory of the weights, (r + 4) under "hybrid".
        draws: S, draws a step, >= 1, all on the member's one batch.
        update: "whitened" or "hybrid"; None for "hybrid" on a network and "whitened" on a bare density.
        learning_rate: of the mean, a number or a schedule; None for Cosine(1e-2) on Adam's, and for whitened steps a
            cosine from the smallest of 0.3, 4 S / d and 2 B / (w N).
        spread_learning_rate: h of U and s; None for the same, or under "hybrid" for a cosine from 0.01, or from 10 / steps
            where that is more (at most 0.1).
        init_std: s of every weight at the start, > 0; at most the prior's.
        snapshot_scale: factor on stds that are read off a `Snapshot`.

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is not normal.
    """

    name: ClassVar[str] = "score-vi-low-rank"
    own_draws: ClassVar[bool] = True
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Flat)

    rank: int = 8
    draws: int = 8
    update: str | None = None
    learning_rate: Schedule | None = None
    spread_learning_rate: Schedule | None = None
    init_std: float = 0.1
    snapshot_scale: float = 1.0

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        if self.update not in (None, "whitened", "hybrid"):
            raise ValueError(f"update must be 'whitened', 'hybrid' or None, got {self.update!r}")
        check_positive(rank=self.rank, draws=self.draws, init_std=self.init_std, snapshot_scale=self.snapshot_scale)

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> ScoreLowRankState:
        self.check_prior(problem)
        mean, idle_std = prior_where_idle(problem, stacked_start(problem, start, self.members), self.init_std)
        stds = start_stds(problem, start, mean, self.init_std, self.snapshot_scale)
        std = torch.stack([joined(stds, list(stds), k) for k in range(self.members)])
        noise = random.fold("factor")
        rows = torch.stack([noise.fold(k).normal((std.shape[1], self.rank), like=std) for k in range(self.members)])
        hybrid = self._hybrid(problem)
        return ScoreLowRankState(
            mean=mean,
            std=std,
            mean_first={"joined": torch.zeros_like(std)} if hybrid else {},
            mean_second={"joined": torch.zeros_like(std)} if hybrid else {},
            factor=rows.mul_(std.unsqueeze(-1)).mul_(START / std.shape[1] ** 0.5),
            idle_std=idle_std,
            step=torch.tensor(0),
            steps=torch.tensor(plan.steps),
        )

    def _hybrid(self, problem: Problem) -> bool:
        return self.update == "hybrid" or (self.update is None and not isinstance(problem, Density))

    def _rates(self, problem: Problem, rows: int, d: int, t: int, steps: int) -> tuple[float, float]:
        if self._hybrid(problem):
            peaks = 1e-2, max(1e-2, min(10.0 / steps, 0.1))
        else:
            peaks = (noise_limit(problem, rows, min(MOST, 4.0 * drawn(problem, self.draws) / d)),) * 2
        given = self.learning_rate, self.spread_learning_rate
        mean, spread = (Cosine(peak) if rate is None else rate for peak, rate in zip(peaks, given))
        return at(mean, t, steps), at(spread, t, steps)

    def step(
        self, problem: Problem, state: ScoreLowRankState, batches: Sequence[Batch], random: Random
    ) -> tuple[ScoreLowRankState, Info]:
        t, steps = int(state.step), int(state.steps)
        names = varied(state.mean, state.idle_std)
        size = problem.data_weight * problem.data_size
        infos = []
        for k, batch in enumerate(batches):
            s, factor, center = state.std[k], state.factor[k], joined(state.mean, names, k)
            draws = drawn(problem, self.draws)
            shifts = normal_rows(state.mean, names, draws, random, k, t).mul_(s)
            x = random.fold("low rank").fold(k).fold(t).normal((draws, self.rank), like=factor)
            shifts.addmm_(x, factor.T)
            h, info = score_rows(problem, state.mean, names, center + shifts, batch, random, k, t)
            infos.append(info)
            if bool(info.finite):
                rate, spread = self._rates(problem, batch_rows(batch), len(center), t, steps)
                moves = low_rank_step(s, factor, shifts, h.mul_(size), rate, spread)
                if state.mean_first:
                    moments = state.mean_first["joined"][k], state.mean_second["joined"][k]
                    center.sub_(Adam(rate, t + 1).step_(moves.residual.div_(size), *moments, torch.empty_like(s)))
                else:
                    center.add_(moves.mean)
                factor.add_(moves.factor)
                # the growth is >= 1/2: s stays positive
                s.mul_(1.0 + moves.log_std + 0.5 * moves.log_std.square())
                put_back_(state.mean, names, k, center)
        info = joined_info(infos)
        keep_buffers(state.mean, info)
        return state._replace(step=state.step + 1), info

    def watch(self, problem: Problem, state: ScoreLowRankState) -> dict[str, float]:
        stds = torch.hypot(state.std, torch.linalg.vector_norm(state.factor, dim=2))
        return {"std": float(stds.double().log().mean().exp())}

    def point(self, state: ScoreLowRankState) -> Tree:
        return state.mean

    def posterior(self, state: ScoreLowRankState, shards: Posterior | None = None) -> Posterior:
        names = varied(state.mean, state.idle_std)
        parts = []
        for k in range(self.members):
            stds = {**split(state.std[k], state.mean, names), **member(state.idle_std, k)}
            rows = split(state.factor[k].T, state.mean, names)
            factors = {name: part.movedim(0, -1) for name, part in rows.items()}
            parts.append(LowRankPlusDiagonal(clone(member(state.mean, k)), clone(stds), clone(factors)))
        return mixture(parts)


class LowRankMoves(NamedTuple):
    """What to add to the parameters, and <R>."""

    mean: Tensor  # [d] whitened
    factor: Tensor  # [d, r]
    log_std: Tensor  # [d]
    residual: Tensor  # [d]


def low_rank_step(
    s: Tensor, factor: Tensor, shifts: Tensor, h: Tensor, rate: float, spread_rate: float
) -> LowRankMoves:
    """One step's moves from s [d], U [d, r] and S draws: shifts = theta - m and h = -s(theta), both [S, d].

    Matrices of [S, d] are written over where they have served: new ones cost a page fault every 4 KiB.
    """
    d, rank = factor.shape
    scaled = factor / s.unsqueeze(-1)  # D^-1/2 U
    identity = torch.eye(rank, dtype=s.dtype, device=s.device)
    root = torch.linalg.cholesky(torch.addmm(identity, scaled.T, scaled))  # K = root root^T
    inverse = torch.cholesky_inverse(root)
    z = shifts / s
    p = z.sub_((z @ scaled @ inverse) @ scaled.T).div_(s)
    r = h - p
    by_u_p, by_u_r = p @ factor, r @ factor  # [S, rank] U^T p, U^T R
    forward = (by_u_r @ factor.T).add_(r * s.square())  # Sigma R
    # the mean: at most `TRUST` sqrt(d) long in units of q, |L^-1 Sigma R|^2 = R^T Sigma R
    mean_r, mean_forward = r.mean(0), forward.mean(0)
    length = rate * float((mean_r @ mean_forward).clamp(min=0.0)) ** 0.5
    by_mean = mean_forward * -(rate * min(1.0, TRUST * d**0.5 / max(length, 1e-30)))
    # U: at most `TRUST` in units of q, tr(dU^T P dU)
    fisher = identity * (1.0 + DAMPING) - inverse
    direction = torch.linalg.solve(fisher, (forward.T @ by_u_p).add_(shifts.T @ by_u_r).T).T.div_(len(h))
    inner = direction / s.unsqueeze(-1)
    beside = torch.linalg.solve_triangular(root, scaled.T @ inner, upper=False)
    length = 0.25 * spread_rate * float((inner.square().sum() - beside.square().sum()).clamp(min=0.0)) ** 0.5
    by_factor = direction.mul_(-(0.25 * spread_rate * min(1.0, TRUST / max(length, 1e-30))))
    # log s, in units of the std given all other weights
    share = 1.0 - torch.linalg.solve_triangular(root, scaled.T, upper=False).square_().sum(0)  # s^2 diag P
    by_log_std = p.mul_(r).mean(0) * s.square() / share.clamp(min=1e-3) * (-0.5 * spread_rate)
    return LowRankMoves(by_mean, by_factor, by_log_std.clamp(-LOG_STEP, LOG_STEP), mean_r)
