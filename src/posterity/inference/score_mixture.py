"""Score-based variational inference over mixtures of independent normals.

    q = sum over k of pi_k N(m_k, diag s_k^2)
    minimise  sum over k of pi_k E_{theta ~ N(m_k, diag s_k^2)} |s_k (grad log q - s(theta))|^2        (score_autograd.py)

by Adam on m_k in units of s_k and on log s_k, from as many draws of each component. The score does not see the weights
between modes that lie apart: grad log q changes only where two components overlap. Where the density itself can be asked,
the weights move up the evidence lower bound instead, which for them alone is

    log pi_k <- log pi_k + h ( E_k[log p - log q] - sum over j of pi_j E_j[log p - log q] )            (at most 0.5 a step)

with E_k by the draws of all components, weighed: mirror ascent, whose fixed point has log p - log q alike in all components.
A network says its density with the noise of a batch, and the weights stay equal. Kim (2026), arXiv 2602.05873, is the
objective's; stratified draws, units and weights are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.inference.adam import Adam
from posterity.inference.algorithm import Algorithm, Plan, Start, keep_buffers, stacked_start
from posterity.inference.gaussian import prior_where_idle
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.inference.score_autograd import (
    Rows,
    adam_steps,
    check_temper,
    clip_,
    score_loss,
    scored,
    slope,
    tempered,
)
from posterity.inference.score_matching import (
    alpha_at,
    check_positive,
    check_proximal,
    drawn,
    joined,
    joined_info,
    normal_rows,
    put_back_,
    refresh_,
    start_stds,
    varied,
)
from posterity.posterior.mixture import mixture
from posterity.posterior.normal_mixture import NormalMixture, normal_mixture_log_prob
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.densities import Density
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import Tree, clone, count, first, member, weights

__all__ = ["ScoreMixture", "ScoreMixtureState", "mirror_step"]

LEARNED = ("logits", "centers", "log_stds")
MOST = 0.5  # largest step of log pi
SHARE = 1e-4  # smallest pi_k: a component that is not drawn from cannot come back
COPIES = 6  # of [draws, components, d] that the graph of a step holds


class ScoreMixtureState(NamedTuple):
    theta: Tree  # [members, ...] the start, with the changed buffers
    q: Tree  # {"logits": [members, K], "centers": [members, K, d], "log_stds": [members, K, d]}
    first: Tree  # [members, ...] Adam's moments of these
    second: Tree
    old: Tree  # q_t; {} at lag 1
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class ScoreMixture(Algorithm):
    """Score-based variational inference over a mixture of independent normals.

    Args:
        components: K >= 1.
        draws: a step, >= 1, all on the member's one batch; raised to a multiple of K.
        learning_rate: of m_k (in units of s_k) and of log s_k, a number or a schedule; None for Cosine(0.03) on a bare
            density and Cosine(0.3) on a network, whose weights travel far in units of a posterior's std.
        init_std: of every component at the start, > 0, at most the prior's; None for 1 on a bare density, 0.1 on a network.
        spread: std of the components' centres around the start, in units of their stds, >= 0.
        temper: share of the run over which the target p^beta rises to p, in [0, 1]; None for 0.5 on a bare density, whose
            modes it finds from afar, and 0 on a network.
        temper_start: beta before the first step, in (0, 1].
        reweight: on a bare density, move the weights by its values; else by the score, which is blind between modes.
        weight_learning_rate: h of log pi_k by values, a number or a schedule.
        lag: q_t is refreshed every `lag` steps; the draws of the steps between are its own.
        inner_steps: updates on the same draws.
        alpha: weight of the proximal term, in [0, 1]. Without effect where lag = inner_steps = 1.
        alpha_warmup: share of the run over which the weight rises to `alpha`, in [0, 1].
        max_grad: largest norm of the gradient that Adam is given.
        snapshot_scale: factor on stds that are read off a `Snapshot`.
        max_memory: bytes that the draws' distances to all components may take.

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is not normal.
        CompatibilityError: more weights than `max_memory` holds.
    """

    name: ClassVar[str] = "score-vi-mixture"
    own_draws: ClassVar[bool] = True
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Flat)

    components: int = 8
    draws: int = 32
    learning_rate: Schedule | None = None
    init_std: float | None = None
    spread: float = 1.0
    temper: float | None = None
    temper_start: float = 0.05
    reweight: bool = True
    weight_learning_rate: Schedule = Cosine(0.1)
    lag: int = 1
    inner_steps: int = 1
    alpha: float = 1.0
    alpha_warmup: float = 0.5
    max_grad: float = 10.0
    snapshot_scale: float = 1.0
    max_memory: int = 2 * 2**30

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        if self.components < 1 or self.draws < 1 or not self.spread >= 0:
            raise ValueError(
                f"components and draws must be at least 1 and spread >= 0, got {self.components}, {self.draws} and "
                f"{self.spread}"
            )
        check_positive(init_std=1.0 if self.init_std is None else self.init_std, snapshot_scale=self.snapshot_scale)
        check_temper(self.temper, self.temper_start, self.max_grad)
        check_proximal(self.alpha, self.alpha_warmup, self.lag, self.inner_steps)

    @property
    def each(self) -> int:
        """Draws of each component in a step."""
        return -(-self.draws // self.components)

    def check(self, problem: Problem, batch: Any) -> None:
        super().check(problem, batch)
        self._check_size(weights(problem.start()))

    def _check_size(self, theta: Tree) -> None:
        d = count(theta)
        needed = COPIES * self.each * self.components**2 * d * first(theta).element_size()
        if needed > self.max_memory:
            raise CompatibilityError(
                f"{self.components} components over all {d:,} weights would take {needed / 2**30:.1f} GiB a step, more than "
                f"max_memory ({self.max_memory / 2**30:.1f} GiB): use fewer components or draws, or Ensemble(ScoreVI(), "
                f"{self.components})"
            )

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> ScoreMixtureState:
        self.check_prior(problem)
        stacked = stacked_start(problem, start, self.members)
        self._check_size(member(weights(stacked), 0))
        init_std = (1.0 if isinstance(problem, Density) else 0.1) if self.init_std is None else self.init_std
        theta, idle_std = prior_where_idle(problem, stacked, init_std)
        stds = start_stds(problem, start, theta, init_std, self.snapshot_scale)
        names = list(stds)
        centers, log_stds = [], []
        for k in range(self.members):
            own = {name: stds[name][k].expand(self.components, *stds[name].shape[1:]) for name in names}
            shifts = {
                n: random.fold("centers").fold(n).fold(k).normal(tuple(s.shape), like=s) * s for n, s in own.items()
            }
            flat = torch.cat([shifts[name].reshape(self.components, -1) for name in names], dim=1)
            centers.append(joined(theta, names, k) + self.spread * flat)
            log_stds.append(joined(stds, names, k).log().expand_as(flat))
        like = torch.stack(centers)
        q = {
            "logits": like.new_zeros(self.members, self.components),
            "centers": like,
            "log_stds": torch.stack(log_stds),
        }
        return ScoreMixtureState(
            theta=theta,
            q=q,
            first={name: torch.zeros_like(leaf) for name, leaf in q.items()},
            second={name: torch.zeros_like(leaf) for name, leaf in q.items()},
            old={} if self.lag == 1 else clone(q),
            idle_std=idle_std,
            step=torch.tensor(0),
            steps=torch.tensor(plan.steps),
        )

    def step(
        self, problem: Problem, state: ScoreMixtureState, batches: Sequence[Batch], random: Random
    ) -> tuple[ScoreMixtureState, Info]:
        t = int(state.step)
        names = varied(state.theta, state.idle_std)
        refresh_(state.old, state.q, self.lag, t)
        infos = []
        for k, batch in enumerate(batches):
            frozen = member(state.old, k) if state.old else clone(member(state.q, k))
            each = drawn(problem, self.each)
            scales = frozen["log_stds"].exp().repeat_interleave(each, dim=0)
            z = normal_rows(state.theta, names, len(scales), random, k, t)
            x = frozen["centers"].repeat_interleave(each, dim=0) + scales * z
            rows = scored(problem, state.theta, names, x, _same, _same, batch, random, k, t)
            if bool(rows.info.finite):
                rows = rows._replace(info=self._update(problem, state, frozen, x, scales, rows, k, t))
            infos.append(rows.info)
        info = joined_info(infos)
        keep_buffers(state.theta, info)
        return state._replace(step=state.step + 1), info

    def _update(
        self, problem: Problem, state: ScoreMixtureState, frozen: Tree, x: Tensor, scales: Tensor, rows: Rows, k: int, t: int
    ) -> Info:  # fmt: skip
        """Move member k's q in place; the Info of its step, not finite where nothing was moved."""
        steps = int(state.steps)
        beta = tempered(problem, self.temper, self.temper_start, t, steps)
        each = drawn(problem, self.each)
        share = frozen["logits"].softmax(-1).repeat_interleave(each) / each
        alpha = alpha_at(self.alpha, self.alpha_warmup, t, steps)
        proximal = alpha > 0 and (self.lag > 1 or self.inner_steps > 1)
        old = slope(partial(_log_q, frozen), x) if proximal else None
        own, m, v = (member(tree, k) for tree in (state.q, state.first, state.second))
        rate = (
            Cosine(0.03 if isinstance(problem, Density) else 0.3) if self.learning_rate is None else self.learning_rate
        )
        for j in range(self.inner_steps):
            leaves = {name: own[name].detach().clone().requires_grad_() for name in LEARNED}
            with torch.enable_grad():
                gradient = slope(partial(_log_q, leaves), x, graph=True)
                loss = score_loss(gradient, beta * rows.score, share, scales, old, alpha)
                found = torch.autograd.grad(loss, list(leaves.values()))
            gradients = {name: one.clone() for name, one in zip(LEARNED, found)}
            stds = own["log_stds"].exp()
            gradients["centers"].mul_(stds)
            if rows.log_p is None or self.reweight:
                del gradients["logits"]
            norm = clip_(gradients, self.max_grad)
            if not norm < torch.inf:
                if j > 0:
                    break
                return rows.info._replace(finite=torch.zeros_like(rows.info.finite))
            moves = adam_steps(Adam(at(rate, t, steps), t * self.inner_steps + j + 1), gradients, m, v)
            moves["centers"].mul_(stds)
            for name, move in moves.items():
                own[name].sub_(move)
        if rows.log_p is not None and self.reweight:
            weight_rate = at(self.weight_learning_rate, t, steps)
            own["logits"].copy_(mirror_step(own, frozen, x, beta * rows.log_p, weight_rate))
        return rows.info

    def watch(self, problem: Problem, state: ScoreMixtureState) -> dict[str, float]:
        pi = state.q["logits"].double().softmax(-1)
        used = float((-(pi * pi.clamp(min=1e-300).log()).sum(-1)).exp().mean())
        return {"std": float(state.q["log_stds"].double().mean().exp()), "components": used}

    def point(self, state: ScoreMixtureState) -> Tree:
        names = varied(state.theta, state.idle_std)
        point = {name: leaf.clone() if name in names else leaf for name, leaf in state.theta.items()}
        for k in range(self.members):
            put_back_(point, names, k, state.q["logits"][k].softmax(-1) @ state.q["centers"][k])
        return point

    def posterior(self, state: ScoreMixtureState, shards: Posterior | None = None) -> Posterior:
        names = tuple(varied(state.theta, state.idle_std))
        parts = []
        for k in range(self.members):
            q = clone(member(state.q, k))
            theta, idle = clone(member(state.theta, k)), clone(member(state.idle_std, k))
            parts.append(NormalMixture(theta, names, q["logits"], q["centers"], q["log_stds"].exp(), idle))
        return mixture(parts)


def _same(x: Tensor) -> Tensor:
    return x


def _log_q(q: Tree, x: Tensor) -> Tensor:
    return normal_mixture_log_prob(q["logits"], q["centers"], q["log_stds"].exp(), x)


def mirror_step(q: Tree, frozen: Tree, x: Tensor, log_p: Tensor, rate: float) -> Tensor:
    """[K] the next logits, from draws x [n, d] with log p [n], as many of each component of `frozen`.

    E_k is the self-normalised mean under q_k(x) / (mean over j of the frozen q_j(x)), which all draws are from.
    """
    components = len(q["logits"])
    flat = torch.zeros_like(q["logits"])
    proposal = _log_q({**frozen, "logits": flat}, x)
    one = [q["centers"].unsqueeze(1), q["log_stds"].unsqueeze(1)]
    each = torch.stack(
        [normal_mixture_log_prob(flat[:1], center, log_std.exp(), x) for center, log_std in zip(*one)]
    )  # [K, n] log q_k
    ratio = log_p - ((q["logits"].log_softmax(-1)).unsqueeze(-1) + each).logsumexp(0)
    gain = (each - proposal).softmax(-1) @ ratio
    pi = q["logits"].softmax(-1)
    logits = q["logits"] + (rate * (gain - pi @ gain)).clamp_(-MOST, MOST)
    return logits.log_softmax(-1).clamp_(min=torch.log(pi.new_tensor(SHARE / components)))
