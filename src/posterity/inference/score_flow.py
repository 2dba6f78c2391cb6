"""Score-based variational inference over a normalizing flow, of all weights or of a part of them.

    theta = m + A x,    x ~ q = a flow over k numbers (posterior/flow.py),    s_x = A^T s(theta)
    "score"    minimise  E_{x ~ q_t} |grad log q(x) - s_x|^2,        x frozen: a double backward     (score_autograd.py)
    "elbo"     minimise  E_z [ log q(x(z)) - log p(x(z)) ]           reparameterised, the baseline

by Adam on the flow's parameters. m is the start (the mode, where only a part is inferred: `base` runs first) and A a
std per weight, or k random orthonormal columns over all weights times `init_std`, so that q starts near a normal. The score
does not see the weights of modes that lie apart. Where the density itself can be asked, "score" adds

    Var over the draws of [ log p(x) - log q(x) ]

whose gradient at q = q_t is twice that of the bound (Richter et al., 2020, the log-variance divergence), from values that
come with the scores. Kim (2026), arXiv 2602.05873; Rezende and Mohamed (2015) for the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.inference.adam import Adam
from posterity.inference.algorithm import Algorithm, Plan, Start, keep_buffers, stacked_start
from posterity.inference.flow_part import PARTS, part_spread
from posterity.inference.gaussian import prior_where_idle
from posterity.inference.map import MAP
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
    put_back_,
    refresh_,
)
from posterity.posterior.flow import (
    Flow,
    FlowShape,
    flow_base,
    flow_log_prob,
    flow_start,
    joined_spread,
    pulled,
    shifted,
)
from posterity.posterior.mixture import mixture
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.densities import Density
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import Tree, clone, count, member, stack

__all__ = ["ScoreFlow", "ScoreFlowState"]

POINT_DRAWS = 32  # whose mean is what the loop validates


class ScoreFlowState(NamedTuple):
    theta: Tree  # [members, ...] m, with the changed buffers
    spread: Tree  # [members, *shape] or [members, *shape, k] A by the tensors that q is over; {} before the first step
    q: Tree  # [members, ...] the flow's parameters; {} before the first step
    first: Tree  # [members, ...] Adam's moments of these
    second: Tree
    old: Tree  # q_t; {} at lag 1
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class ScoreFlow(Algorithm):
    """Score-based variational inference over a normalizing flow (extra `flows`).

    Args:
        flow: "nsf" (neural splines), "maf" (affine autoregressive) or "realnvp" (affine couplings; the one that draws
            fast in many dimensions).
        transforms, hidden, bins: layers, widths of their networks, bins of a spline.
        over: None for all weights; "last-layer"; "subspace" of all weights; or names of tensors. Other weights stay at the
            mode that `base` finds.
        subspace_dim: k, columns of a subspace, >= 1.
        base: the MAP training that runs first where only a part is inferred.
        objective: "score" or "elbo".
        draws: a step, >= 1, all on the member's one batch.
        learning_rate: of the flow's parameters, a number or a schedule.
        init_std: of every weight, or along every column of a subspace, at the start, > 0, at most the prior's; None for 1 on
            a bare density, 0.1 on a network. Splines reach 5 of these from the start.
        temper: share of the run over which the target p^beta rises to p, in [0, 1]; None for 0.5 on a bare density and 0 on
            a network.
        temper_start: beta before the first step, in (0, 1].
        reweight: on a bare density and for "score", add the variance of log p - log q over the draws to the objective.
        lag: q_t is refreshed every `lag` steps; the draws of the steps between are its own. 1 for "elbo".
        inner_steps: updates on the same draws; 1 for "elbo".
        alpha: weight of the proximal term, in [0, 1]. Without effect where lag = inner_steps = 1.
        alpha_warmup: share of the run over which the weight rises to `alpha`, in [0, 1].
        max_grad: largest norm of the gradient that Adam is given.
        max_dim: largest number of dimensions; an autoregressive flow takes as many passes for a draw.

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is not normal.
        CompatibilityError: more dimensions than `max_dim`, or a part that is not there.
        ImportError: without zuko.
    """

    name: ClassVar[str] = "score-vi-flow"
    own_draws: ClassVar[bool] = True
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Flat)

    flow: str = "nsf"
    transforms: int = 2
    hidden: tuple[int, ...] = (32, 32)
    bins: int = 8
    over: str | Sequence[str] | None = None
    subspace_dim: int = 20
    base: MAP = field(default_factory=MAP)
    objective: str = "score"
    draws: int = 32
    learning_rate: Schedule = Cosine(5e-3)
    init_std: float | None = None
    temper: float | None = None
    temper_start: float = 0.05
    reweight: bool = True
    lag: int = 1
    inner_steps: int = 1
    alpha: float = 1.0
    alpha_warmup: float = 0.5
    max_grad: float = 10.0
    max_dim: int = 256

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        FlowShape(self.flow, 1, self.transforms, tuple(self.hidden), self.bins)
        if self.objective not in ("score", "elbo"):
            raise ValueError(f"objective must be 'score' or 'elbo', got {self.objective!r}")
        if self.objective == "elbo" and (self.lag > 1 or self.inner_steps > 1):
            raise ValueError("the bound moves its draws with q: objective='elbo' takes lag=1 and inner_steps=1")
        if min(self.draws, self.subspace_dim, self.max_dim) < 1:
            raise ValueError("draws, subspace_dim and max_dim must be at least 1")
        if isinstance(self.over, str) and self.over not in PARTS:
            raise ValueError(f"over must be one of {PARTS}, a list of tensors' names or None, got {self.over!r}")
        check_positive(init_std=1.0 if self.init_std is None else self.init_std)
        check_temper(self.temper, self.temper_start, self.max_grad)
        check_proximal(self.alpha, self.alpha_warmup, self.lag, self.inner_steps)

    def stages(self, plan: Plan) -> list[tuple[Algorithm, Plan]]:
        if self.over is None:
            return [(self, plan)]
        return [(replace(self.base, members=self.members, member_init=self.member_init), plan), (self, plan)]

    def hyperparameters(self) -> dict[str, Any]:
        return {**super().hyperparameters(), "base": self.base.hyperparameters()}

    def check(self, problem: Problem, batch: Any) -> None:
        super().check(problem, batch)
        start = {name: leaf.unsqueeze(0) for name, leaf in problem.start().items()}
        self._shape(self._spread(problem, start, batch, Random(0)))
        flow_start(self._shape_of(1), Random(0), torch.zeros(()))  # says now that zuko is missing

    def _spread(self, problem: Problem, theta: Tree, batch: Any, random: Random) -> Tree:
        init_std = (1.0 if isinstance(problem, Density) else 0.1) if self.init_std is None else self.init_std
        return part_spread(problem, theta, self.over, self.subspace_dim, init_std, batch, random)

    def _shape_of(self, dim: int) -> FlowShape:
        return FlowShape(self.flow, dim, self.transforms, tuple(self.hidden), self.bins)

    def _shape(self, spread: Tree) -> FlowShape:
        """What the flow of a part is made of.

        Raises:
            CompatibilityError: more dimensions than `max_dim`.
        """
        one = member(spread, 0)
        dim = next(iter(one.values())).shape[-1] if self.over == "subspace" else count(one)
        if dim > self.max_dim:
            network = (
                "" if self.over == "subspace" else "; use over='subspace', a few tensors' names, or ScoreVI('diagonal')"
            )
            raise CompatibilityError(f"a flow over {dim:,} dimensions is more than max_dim ({self.max_dim:,}){network}")
        return self._shape_of(dim)

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> ScoreFlowState:
        self.check_prior(problem)
        init_std = 1.0 if self.init_std is None else self.init_std
        theta, idle_std = prior_where_idle(problem, stacked_start(problem, start, self.members), init_std)
        steps = torch.tensor(0), torch.tensor(plan.steps)
        state = ScoreFlowState(theta, {}, {}, {}, {}, {}, idle_std, *steps)
        return state if self.over == "last-layer" else self._begun(problem, state, None, random)

    def _begun(self, problem: Problem, state: ScoreFlowState, batch: Any, random: Random) -> ScoreFlowState:
        """The state with the part that q is over, and a flow for it; a last layer is found by running a batch."""
        spread = self._spread(problem, state.theta, batch, random)
        shape, like = self._shape(spread), next(iter(spread.values()))
        q = stack([flow_start(shape, random.fold("flow").fold(k), like) for k in range(self.members)])
        zeros = [{name: torch.zeros_like(leaf) for name, leaf in q.items()} for _ in range(2)]
        old = {} if self.lag == 1 else clone(q)
        return state._replace(spread=spread, q=q, first=zeros[0], second=zeros[1], old=old)

    def step(
        self, problem: Problem, state: ScoreFlowState, batches: Sequence[Batch], random: Random
    ) -> tuple[ScoreFlowState, Info]:
        if not state.q:
            state = self._begun(problem, state, batches[0], random.fold("init"))
        t, names, shape = int(state.step), list(state.spread), self._shape(state.spread)
        refresh_(state.old, state.q, self.lag, t)
        infos = []
        for k, batch in enumerate(batches):
            center, spread = _placed(state, k)
            frozen = member(state.old or state.q, k)
            z = random.fold("noise").fold(k).fold(t).normal((drawn(problem, self.draws), shape.dim), like=center)
            with torch.no_grad():
                x = flow_base(shape, frozen, z)
            to_theta, pull = partial(shifted, center=center, spread=spread), partial(pulled, spread=spread)
            rows = scored(problem, state.theta, names, x, to_theta, pull, batch, random, k, t)
            if bool(rows.info.finite):
                update = self._by_score if self.objective == "score" else self._by_bound
                moved = update(problem, state, shape, frozen, x if self.objective == "score" else z, rows, k, t)
                rows = rows._replace(info=rows.info._replace(finite=rows.info.finite & moved))
            infos.append(rows.info)
        info = joined_info(infos)
        keep_buffers(state.theta, info)
        return state._replace(step=state.step + 1), info

    def _beta(self, problem: Problem, state: ScoreFlowState, t: int) -> float:
        return tempered(problem, self.temper, self.temper_start, t, int(state.steps))

    def _by_score(
        self, problem: Problem, state: ScoreFlowState, shape: FlowShape, frozen: Tree, x: Tensor, rows: Rows, k: int, t: int
    ) -> bool:  # fmt: skip
        """Move member k's flow in place at frozen draws x; whether it could be."""
        beta, share = self._beta(problem, state, t), x.new_full((len(x),), 1.0 / len(x))
        score = beta * rows.score
        alpha = alpha_at(self.alpha, self.alpha_warmup, t, int(state.steps))
        proximal = alpha > 0 and (self.lag > 1 or self.inner_steps > 1)
        old = slope(partial(flow_log_prob, shape, frozen), x) if proximal else None
        for j in range(self.inner_steps):
            leaves = _leaves(state.q, k)
            with torch.enable_grad():
                gradient = slope(partial(flow_log_prob, shape, leaves), x, graph=True)
                loss = score_loss(gradient, score, share, 1.0, old, alpha)
                if self.reweight and rows.log_p is not None:
                    loss = loss + (beta * rows.log_p - flow_log_prob(shape, leaves, x)).var(correction=0)
            if not self._descend(state, leaves, loss, k, t, j):
                return j > 0
        return True

    def _by_bound(
        self, problem: Problem, state: ScoreFlowState, shape: FlowShape, frozen: Tree, z: Tensor, rows: Rows, k: int, t: int
    ) -> bool:  # fmt: skip
        """The same on the bound: log p enters by its gradient at x(z), which is the score."""
        leaves = _leaves(state.q, k)
        with torch.enable_grad():
            x = flow_base(shape, leaves, z)
            loss = (flow_log_prob(shape, leaves, x) - (x * rows.score).sum(-1) * self._beta(problem, state, t)).mean()
        return self._descend(state, leaves, loss, k, t, 0)

    def _descend(self, state: ScoreFlowState, leaves: Tree, loss: Tensor, k: int, t: int, j: int) -> bool:
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        gradients = {n: torch.zeros_like(leaves[n]) if g is None else g.clone() for n, g in zip(leaves, found)}
        if not clip_(gradients, self.max_grad) < torch.inf:
            return False
        adam = Adam(at(self.learning_rate, t, int(state.steps)), t * self.inner_steps + j + 1)
        for name, move in adam_steps(adam, gradients, member(state.first, k), member(state.second, k)).items():
            state.q[name][k].sub_(move)
        return True

    def point(self, state: ScoreFlowState) -> Tree:
        if not state.q:
            return state.theta
        names, shape = list(state.spread), self._shape(state.spread)
        point = {name: leaf.clone() if name in names else leaf for name, leaf in state.theta.items()}
        for k in range(self.members):
            z = Random(0).fold("point").normal((POINT_DRAWS, shape.dim), like=point[names[0]])
            with torch.no_grad():
                x = flow_base(shape, member(state.q, k), torch.cat([z, -z])).mean(0, keepdim=True)
            put_back_(point, names, k, shifted(x, *_placed(state, k))[0])
        return point

    def posterior(self, state: ScoreFlowState, shards: Posterior | None = None) -> Posterior:
        if not state.q:
            raise CompatibilityError("ScoreFlow saw no batch: run at least one step")
        shape = self._shape(state.spread)
        trees = (state.theta, state.spread, state.q, state.idle_std)
        parts = []
        for k in range(self.members):
            theta, spread, q, idle = (clone(member(tree, k)) for tree in trees)
            parts.append(Flow(theta, spread, q, shape, idle))
        return mixture(parts)


def _leaves(q: Tree, k: int) -> Tree:
    return {name: leaf[k].detach().clone().requires_grad_() for name, leaf in q.items()}


def _placed(state: ScoreFlowState, k: int) -> tuple[Tensor, Tensor]:
    """m and A of member k over the joined tensors."""
    theta, spread = member(state.theta, k), member(state.spread, k)
    return joined(state.theta, list(spread), k), joined_spread(spread, theta)
