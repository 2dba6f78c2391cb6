"""Score-based variational inference over independent normals, in closed form.

    q = N(m, diag s^2),    theta = m_t + s_t z,    e = (theta - m) / s,    grad log q = -e / s
    R = grad log q - s(theta) + alpha (grad log q - grad log q_t)                        (score_matching.py)
    gradient of the objective:    by m:  2 R / s^2        by log s:  4 R (theta - m) / s^2

One step at q = q_t is, draw by draw, (2 / s^2, 4 / s^2) times the sticking-the-landing gradient of the evidence lower bound
(Roeder et al., 2017): the fixed point is the bound's, s_i^2 = 1 / P_ii for a normal with precision P. What differs is the
path. The raw gradient spans 1 / s^4, so the steps are taken in units of s, u = s R:

    "whitened"    m <- m - s clip(a u_bar, 1)                     s <- s (1 + x + x^2 / 2),   x = clip(-(b / 2) e u, 0.2)
    "hybrid"      m by Adam on R                                  s the same
    "literal"     m and log s by Adam on the raw gradient, as the objective is written

u_bar is clip(a u, 1) / a with momentum, so that one draw in a steep tail moves m by no more than s. Kim (2026), arXiv
2602.05873, whose iteration this is at `lag` or `inner_steps` above 1; at 1 the proximal term is exactly zero and no copy of
q is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.group import Group
from posterity.inference.adam import Adam
from posterity.inference.algorithm import (
    Algorithm,
    Plan,
    Start,
    gaussian_prior,
    gradients,
    keep_buffers,
    own_stream,
    stacked_start,
    survivors,
)
from posterity.inference.gaussian import diagonal_posterior, noisy, prior_where_idle, typical_std
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.inference.score_matching import (
    alpha_at,
    check_positive,
    check_proximal,
    noise_limit,
    refresh_,
    start_stds,
)
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.densities import Density
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem, batch_rows
from posterity.random import Random
from posterity.tree import CHUNK, Tree, chunks, clone, tree_map

__all__ = ["ScoreDiagonal", "ScoreDiagonalState", "whitened_"]

UPDATES = ("whitened", "hybrid", "literal")
MOST = 0.1  # default rates of whitened steps
LOG_STEP = 0.2  # largest step of log std


class ScoreDiagonalState(NamedTuple):
    mean: Tree  # [members, ...], with the changed buffers
    std: Tree  # [members, ...]
    mean_first: Tree  # momentum of u, or Adam's first moment
    mean_second: Tree  # Adam's second moment; {} where the update is whitened
    std_first: Tree  # Adam's moments of log std; {} where the update is not literal
    std_second: Tree
    old_mean: Tree  # q_t; {} at lag = inner_steps = 1
    old_std: Tree
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


_COLUMNS = ("mean_first", "mean_second", "std_first", "std_second", "old_mean", "old_std")


@dataclass(frozen=True)
class ScoreDiagonal(Algorithm):
    """Score-based variational inference over independent normals.

    Args:
        update: "whitened", "hybrid" or "literal" (for study: it does not recover from a std far too small); None for
            "hybrid" on a network and "whitened" on a bare density.
        learning_rate: of the means, a number or a schedule; None for Cosine(1e-2) on Adam's, and for whitened steps a
            cosine from 2 B / (w N), at most 0.1: more than that the noise of a batch of B rows does not allow.
        std_learning_rate: b, the same for the stds; None for the same, and at least 10 / steps (at most 0.1): a std can then
            travel from `init_std` to the prior's within a run.
        init_std: the std of every weight at the start, > 0; at most the prior's.
        snapshot_scale: factor on stds that are read off a `Snapshot`: 1 / sqrt(w N B nu + prior precision).
        beta1, beta2: decay rates of the momentum and of Adam, in [0, 1).
        lag: q_t is refreshed every `lag` steps; the draws of the steps between are its own.
        inner_steps: updates on the same draw and batch.
        alpha: weight of the proximal term, in [0, 1]. Without effect where lag = inner_steps = 1.
        alpha_warmup: share of the run over which the weight rises to `alpha`, in [0, 1].

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is not normal.
    """

    name: ClassVar[str] = "score-vi"
    own_draws: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Flat)

    update: str | None = None
    learning_rate: Schedule | None = None
    std_learning_rate: Schedule | None = None
    init_std: float = 1e-2
    snapshot_scale: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    lag: int = 1
    inner_steps: int = 1
    alpha: float = 1.0
    alpha_warmup: float = 0.5

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        if self.update not in (None, *UPDATES):
            raise ValueError(f"update must be one of {UPDATES} or None, got {self.update!r}")
        check_positive(init_std=self.init_std, snapshot_scale=self.snapshot_scale)
        check_proximal(self.alpha, self.alpha_warmup, self.lag, self.inner_steps)
        if not (0.0 <= self.beta1 < 1.0 and 0.0 <= self.beta2 < 1.0):
            raise ValueError(f"beta1 and beta2 must lie in [0, 1), got {self.beta1} and {self.beta2}")

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> ScoreDiagonalState:
        self.check_prior(problem)
        mean, idle_std = prior_where_idle(problem, stacked_start(problem, start, self.members), self.init_std)
        std = start_stds(problem, start, mean, self.init_std, self.snapshot_scale)
        update = self._update(problem)
        lagging = self.lag > 1 or self.inner_steps > 1

        def zeros(wanted: bool) -> Tree:
            return tree_map(torch.zeros_like, std) if wanted else {}

        return ScoreDiagonalState(
            mean=mean,
            std=std,
            mean_first=zeros(True),
            mean_second=zeros(update != "whitened"),
            std_first=zeros(update == "literal"),
            std_second=zeros(update == "literal"),
            old_mean=clone({name: mean[name] for name in std}) if lagging else {},
            old_std=clone(std) if lagging else {},
            idle_std=idle_std,
            step=torch.tensor(0),
            steps=torch.tensor(plan.steps),
        )

    def _update(self, problem: Problem) -> str:
        return self.update or ("whitened" if isinstance(problem, Density) else "hybrid")

    def _rates(self, problem: Problem, rows: int, t: int, steps: int) -> tuple[float, float]:
        whitened = self._update(problem) == "whitened"
        peak = noise_limit(problem, rows, MOST) if whitened else 1e-2
        mean = Cosine(peak) if self.learning_rate is None else self.learning_rate
        std = Cosine(max(peak, min(10.0 / steps, MOST))) if self.std_learning_rate is None else self.std_learning_rate
        return at(mean, t, steps), at(std, t, steps)

    def step(
        self, problem: Problem, state: ScoreDiagonalState, batches: Sequence[Batch], random: Random
    ) -> tuple[ScoreDiagonalState, Info]:
        t, steps, random = int(state.step), int(state.steps), own_stream(problem, random)
        refresh_(state.old_mean, state.mean, self.lag, t)
        refresh_(state.old_std, state.std, self.lag, t)
        thetas = noisy({**state.mean, **state.old_mean}, state.old_std or state.std, _as_it_is, random, t)
        _, gradient, info = gradients(problem, thetas, batches, random, t)
        moves = _Moves(
            self._update(problem),
            *self._rates(problem, batch_rows(batches[0]), t, steps),
            alpha=alpha_at(self.alpha, self.alpha_warmup, t, steps),
            size=problem.data_weight * problem.data_size,
            betas=(self.beta1, self.beta2),
            group=problem.drawing,
        )
        alive = survivors(info)
        columns = [part for part in _COLUMNS if getattr(state, part)]
        for name, std in state.std.items():
            precision, center = gaussian_prior(problem, name)
            views = [state.mean[name], std, thetas[name], gradient[name]]
            views += [getattr(state, part)[name] for part in columns]
            if isinstance(center, Tensor):
                views.append(center.expand_as(std).contiguous())
            scratch = std.new_empty((5 if state.old_std else 1, min(std.numel(), CHUNK)))
            for m, s, theta, h, *rest in chunks(*views, alive=alive):
                # -s(theta) / (w N), over the gradient
                if precision > 0:
                    h.add_(theta, alpha=precision / moves.size)
                if len(rest) > len(columns):
                    h.sub_(rest[-1], alpha=precision / moves.size)
                moves.update_(m, s, theta, h, dict(zip(columns, rest)), scratch[:, : m.numel()], t, self.inner_steps)
        if moves.update == "hybrid" and self.inner_steps == 1:
            moves.adam(t + 1).update_(state.mean, gradient, state.mean_first, state.mean_second, alive)
        keep_buffers(state.mean, info)
        return state._replace(step=state.step + 1), info

    def watch(self, problem: Problem, state: ScoreDiagonalState) -> dict[str, float]:
        return {"std": typical_std(state.std)}

    def point(self, state: ScoreDiagonalState) -> Tree:
        return state.mean

    def posterior(self, state: ScoreDiagonalState, shards: Posterior | None = None) -> Posterior:
        return diagonal_posterior(state.mean, {**state.std, **state.idle_std}, self.members)


def _as_it_is(std: Tensor, out: Tensor) -> Tensor:
    return std


def whitened_(theta: Tensor, h: Tensor, m: Tensor, s: Tensor, share: float, e: Tensor, u: Tensor) -> None:
    """e <- (theta - m) / s and u <- s (grad log q + h / share) share, where h is -s(theta) share.

    e may be written over theta, and u over h.
    """
    torch.sub(theta, m, out=e).div_(s)
    torch.mul(h, s, out=u).sub_(e, alpha=share)


class _Moves(NamedTuple):
    """One step's scalars, and the update of one chunk; everything divided by w N."""

    update: str
    rate: float
    std_rate: float
    alpha: float
    size: float  # w N
    betas: tuple[float, float]
    group: Group  # of ranks with draws of their own, whose moves are averaged

    def update_(
        self, m: Tensor, s: Tensor, theta: Tensor, h: Tensor, own: Tree, scratch: Tensor, t: int, inner_steps: int
    ) -> None:
        share, spare = 1.0 / self.size, scratch[0]
        old = own.get("old_std")
        if old is not None:
            z = torch.sub(theta, own["old_mean"], out=scratch[1]).div_(old)
        for j in range(inner_steps):
            e, u = (theta, h) if j == inner_steps - 1 else (scratch[2], scratch[3])
            whitened_(theta, h, m, s, share, e, u)
            if old is not None:
                # alpha s (grad log q - grad log q_t): exactly 0 at q = q_t
                u.add_(torch.div(s, old, out=spare).mul_(z).sub_(e), alpha=self.alpha * share)
            self._move_(m, s, e, u, own, spare, t * inner_steps + j + 1)
            if self.update == "hybrid" and inner_steps > 1:
                m.sub_(self.adam(t * inner_steps + j + 1).step_(u, own["mean_first"], own["mean_second"], spare))

    def adam(self, count: int) -> Adam:
        """Of the means, at its update number `count` from 1."""
        return Adam(self.rate, count, *self.betas)

    def _move_(self, m: Tensor, s: Tensor, e: Tensor, u: Tensor, own: Tree, spare: Tensor, count: int) -> None:
        """The std's step by e u, and the mean's by u; where the mean is left to Adam (hybrid), its gradient R over u."""
        first, mean_adam = own["mean_first"], self.adam(count)
        e.mul_(u)
        if self.group.size > 1:
            self.group.mean_([e.unsqueeze(0), u.unsqueeze(0)], torch.ones(1, dtype=torch.float64, device=u.device))
        if self.update == "literal":
            variance = torch.mul(s, s, out=spare)
            e.div_(variance).mul_(4.0)
            u.div_(variance).div_(s).mul_(2.0)
            m.sub_(mean_adam.step_(u, first, own["mean_second"], spare))
            std_adam = Adam(self.std_rate, count, *self.betas)
            s.mul_(std_adam.step_(e, own["std_first"], own["std_second"], spare).neg_().exp_())
            return
        x = e.mul_(-0.5 * self.std_rate * self.size).clamp_(-LOG_STEP, LOG_STEP)
        if self.update == "hybrid":
            u.div_(s)
        else:
            most = 1.0 / max(self.rate * self.size, 1e-30)
            first.lerp_(u.clamp_(-most, most), 1.0 - mean_adam.beta1)
            torch.mul(first, self.rate * self.size / mean_adam.first_correction, out=spare).clamp_(-1.0, 1.0)
            m.addcmul_(spare, s, value=-1.0)
        # the growth is >= 1/2: s stays positive
        s.addcmul_(s, x.addcmul_(x, x, value=0.5))
