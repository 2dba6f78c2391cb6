"""What all samplers share: chains from the members of a deep ensemble, a mass, a step size, draws that are kept.

A chain starts at its member's weights and belongs to its member: mass, gradient noise and step size are the member's own,
and so are its batches and its random numbers. A sampler says where a step takes its gradient and how it moves.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, NonFiniteError, PosterityWarning
from posterity.inference.account import account
from posterity.inference.algorithm import Algorithm, Plan, Start, gradients, keep_buffers, stacked_start, varying
from posterity.inference.map import MAP
from posterity.inference.mass import Adapting, Mass
from posterity.inference.step_size import gradient_noise, largest_curvature
from posterity.inference.tally import Tally, Trace, allowance
from posterity.posterior.chains import Chains
from posterity.posterior.draws import Draws, Streamed
from posterity.posterior.posterior import Posterior
from posterity.problem.priors import Flat, Laplace, Normal, Prior, ScaleMixture
from posterity.problem.problem import Info, NetworkProblem, Problem, batch_rows
from posterity.random import Random
from posterity.tree import Tree, member, rows, split

__all__ = ["Move", "Sampler", "SamplerState"]


class SamplerState(NamedTuple):
    theta: Tree  # [members, ...] positions, with the changed buffers
    momentum: Tensor  # [members, d]; d = 0 where a sampler has none
    mass: Tensor  # [members, d], of mean 1
    noise: Tensor  # [members, d] variance of grad U on a batch of `batch_size` rows; d = 0 where it is not known
    adapting: Adapting
    step_size: Tensor  # [members] float64; 0 before the first step
    curvature: Tensor  # [members] float64, the largest; 0 where it was not asked for
    tally: Tally
    trace: Trace
    batch_size: Tensor  # () int64
    size: Tensor  # () float64, w N
    step: Tensor  # () int64
    steps: Tensor  # () int64


class Move(NamedTuple):
    """What a step of the living chains works on: [chains, d] each, `h` [chains, 1]."""

    theta: Tensor  # where the gradient was taken; to become the new position
    momentum: Tensor  # to be updated
    mass: Tensor
    gradient: Tensor  # of U
    noise: Tensor | None  # the gradient's variance, where it is to be taken off
    normal: Tensor  # standard normal
    h: Tensor


@dataclass(frozen=True)
class Sampler(Algorithm):
    """Base of the samplers.

    Args:
        members: chains, one from each member of an ensemble.
        mass: a kind (see `Mass`) or a `Mass`: the optimizer's statistic that scales the weights.
        ensemble: the maximum a posteriori training that runs first, and that the `epochs` or `steps` of a fit count;
            left out where a fit is given `start=`.
        warmup: steps of each chain before those that count, >= 0.
        draws_per_chain, thin: draws that each chain keeps, and steps from one to the next, >= 1.
        step_size: h > 0 (masses have mean 1), or one for each member; or "auto": a fifth of the limit of stability at the
            largest curvature met at the start and at the powers of two of the warm-up, or less where the noise of batches
            would heat the median weight by more than half.
        temperature: T > 0 of the whole potential: the draws target exp(-U / T).
        noise_correction: inject that much less noise as the batches bring, by Adam's moments at the snapshot.
        check_stability: refuse a given step size beyond the stable limit of a member.
        frozen_statistics: let the chains run through batch normalisation with the running statistics of their member, held
            fixed, instead of refusing it.

    Raises:
        ValueError: a hyperparameter out of range.
        CompatibilityError: batch normalisation; a start without the statistics that are needed; an unstable step size.
        NonFiniteError: every chain was lost.
    """

    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Laplace, ScaleMixture, Flat)

    members: int = 8
    mass: str | Mass = "second-moment"
    ensemble: MAP = field(default_factory=MAP)
    warmup: int = 1000
    draws_per_chain: int = 20
    thin: int = 50
    step_size: float | str | tuple[float, ...] = "auto"
    temperature: float = 1.0
    noise_correction: bool = True
    check_stability: bool = True
    frozen_statistics: bool = False

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        if self.ensemble.members not in (1, self.members):
            raise ValueError(f"ensemble has {self.ensemble.members} members and members={self.members}: give the same")
        if self.warmup < 0 or self.draws_per_chain < 1 or self.thin < 1:
            raise ValueError(
                "warmup must be >= 0, draws_per_chain and thin at least 1, got "
                f"{self.warmup}, {self.draws_per_chain} and {self.thin}"
            )
        if not all(0.0 < size < math.inf for size in self._given()) or len(self._given()) not in (0, self.members):
            raise ValueError(
                f"step_size must be 'auto', or finite and > 0, or that for each member; got {self.step_size!r}"
            )
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be finite and > 0, got {self.temperature}")
        if self.geometry.kind == "adaptive" and self.warmup == 0:
            raise ValueError("an adaptive mass adapts during the warm-up: give warmup > 0")

    @property
    def geometry(self) -> Mass:
        """The mass as a `Mass`."""
        return Mass(self.mass) if isinstance(self.mass, str) else self.mass

    def _given(self) -> tuple[float, ...]:
        """[members] step sizes that were given; empty for "auto"."""
        if isinstance(self.step_size, str):
            return () if self.step_size == "auto" else (math.nan,)
        one = isinstance(self.step_size, int | float)
        return (float(self.step_size),) * self.members if one else tuple(self.step_size)  # type: ignore[arg-type]

    # --- what a sampler says of itself -----------------------------------------------------------------------------

    def momentum(self, mass: Tensor, random: Random) -> Tensor:
        """[members, d] to start with; d = 0 unless a sampler has one."""
        return mass[:, :0].clone()

    @abstractmethod
    def before(self, theta: Tensor, momentum: Tensor, mass: Tensor, h: Tensor) -> Tensor:
        """[members, d] where the gradient of a step is taken; may be `theta`, which is a copy."""

    @abstractmethod
    def move_(self, move: Move) -> Tensor | None:
        """Finish the step in place; [chains] kinetic temperatures, where there is a momentum."""

    @abstractmethod
    def stable_limit(self, curvature: float) -> float:
        """The largest stable h where the largest eigenvalue of M^-1/2 (grad^2 U) M^-1/2 is `curvature`."""

    @abstractmethod
    def noise_ratio(self, h: float, noise: Tensor, mass: Tensor) -> Tensor:
        """r: the variance that gradient noise brings, as a share of what a step injects: weights are at T (1 + r)."""

    @abstractmethod
    def noise_limit(self, ratio: float, noise: Tensor, mass: Tensor) -> float:
        """The h at which the median of r is `ratio`; infinity where there is no noise."""

    # --- the algorithm ---------------------------------------------------------------------------------------------

    def stages(self, plan: Plan) -> list[tuple[Algorithm, Plan]]:
        base = replace(self.ensemble, members=self.members, member_init=self.member_init)
        return [(base, plan), *self.stages_from_start(plan)]

    def stages_from_start(self, plan: Plan) -> list[tuple[Algorithm, Plan]]:
        return [(self, plan._replace(steps=self.warmup + self.draws_per_chain * self.thin))]

    def check(self, problem: Problem, batch: Any) -> None:
        super().check(problem, batch)
        if self.frozen_statistics or not isinstance(problem, NetworkProblem):
            return
        if problem.network.running_statistics_in_training():
            raise CompatibilityError(
                f"{type(self).__name__} cannot run through batch normalisation, which makes the potential depend on the "
                "batch and on earlier steps: use GroupNorm or LayerNorm, freeze a trained one with .eval(), or run with the "
                "statistics of each member (frozen_statistics=True)"
            )

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> SamplerState:
        self.check_prior(problem)
        if isinstance(problem, NetworkProblem) and (silenced := problem.network.evaluate()):
            warnings.warn(
                f"the chains run without the dropout of {silenced}: a posterior over weights has none",
                PosterityWarning,
                stacklevel=2,
            )
        theta = stacked_start(problem, start, self.members)
        names = list(varying(problem, theta))
        flat = rows(theta, names)
        mass = self.geometry.of(problem, start, theta, names)
        noise = gradient_noise(problem, start, theta, names) if self.noise_correction else flat[:, :0].clone()
        return SamplerState(
            theta=theta,
            momentum=self.momentum(mass, random.fold("momentum")),
            mass=mass,
            noise=noise.div_(plan.batch_size),
            adapting=Adapting.fresh(flat, self.geometry.kind == "adaptive"),
            step_size=torch.zeros(self.members, dtype=torch.float64),
            curvature=torch.zeros(self.members, dtype=torch.float64),
            tally=Tally.none(self.members),
            trace=Trace.none(self.members),
            batch_size=torch.tensor(plan.batch_size),
            size=torch.tensor(problem.data_weight * problem.data_size, dtype=torch.float64),
            step=torch.tensor(0),
            steps=torch.tensor(plan.steps),
        )

    def step(
        self, problem: Problem, state: SamplerState, batches: Sequence[Any], random: Random
    ) -> tuple[SamplerState, Info]:
        t, names = int(state.step), list(varying(problem, state.theta))
        if self._looks(t) or not bool(state.step_size.all()):
            self._size_(problem, state, names, batches, random.fold("curvature"))
        h = state.step_size.to(state.mass).unsqueeze(1)
        position = self.before(rows(state.theta, names), state.momentum, state.mass, h)
        at = {**state.theta, **split(position, state.theta, names)}
        nll, gradient, info = gradients(problem, at, batches, random, t)
        g = rows(gradient, names).mul_(problem.data_weight * problem.data_size)
        _add_prior_(g, problem, position, at, names)

        alive = info.finite.cpu() & ~state.tally.dead
        if self.geometry.kind == "adaptive" and t < self.warmup:
            self._adapt_(state, g, alive, names, t)
        kinetic = self._move_(state, position, g, alive, names, batch_rows(batches[0]), random.fold("noise"))
        keep_buffers(state.theta, info._replace(finite=alive))
        if self._keeps(t + 1):
            self._redraw_idle_(problem, state.theta, random.fold("idle"), t)

        numbers = nll.double().cpu(), kinetic.double().cpu()
        state.tally.add_(*numbers, alive, t >= self.warmup)
        state.trace.add_(*numbers, t, int(state.steps))
        if bool(state.tally.dead.all()):
            raise NonFiniteError(
                f"{self.name}: the gradient of every chain was not finite several steps in a row, the last at step {t}; "
                f"lower step_size, which was {float(state.step_size.max()):.3g}"
            )
        info = info._replace(finite=alive.to(info.finite.device), lost=state.tally.dead.clone())
        return state._replace(step=state.step + 1), info

    def _size_(
        self, problem: Problem, state: SamplerState, names: list[str], batches: Sequence[Any], random: Random
    ) -> None:
        """The step size of every chain: given, or from the largest curvature that it has met and its gradient noise."""
        given = self._given()
        for k in (~state.tally.dead).nonzero().flatten().tolist():
            if not given or self.check_stability:
                stream = random.fold(k).fold(int(state.step))
                found = largest_curvature(problem, member(state.theta, k), names, state.mass[k], batches[k], stream)
                if not given and not math.isfinite(found):
                    continue  # a batch without a finite loss: there will be another
                state.curvature[k] = max(float(state.curvature[k]), found)
            stable, quiet = self.limits(state, k)
            size = given[k] if given else min(0.2 * stable, quiet)
            if not math.isfinite(size):
                raise CompatibilityError(
                    f"step_size='auto' finds neither curvature nor gradient noise at member {k}: give a number"
                )
            if self.check_stability and size > stable:
                raise CompatibilityError(
                    f"step_size={size:.3g} is not stable at member {k}, where the limit is {stable:.3g}: take less than "
                    "half of that, or 'auto' (check_stability=False runs it all the same)"
                )
            state.step_size[k] = size

    def _looks(self, t: int) -> bool:
        """Whether curvature is measured at step t: the first and, to find a step size, the powers of two of the warm-up."""
        # most of it is met as a chain leaves its mode
        return t == 0 or (self.step_size == "auto" and t < self.warmup and t & (t - 1) == 0)

    def limits(self, state: SamplerState, k: int) -> tuple[float, float]:
        """The limit of stability of member k, and the h at which gradient noise heats its median weight by half."""
        curvature, quiet = float(state.curvature[k]), math.inf
        if state.noise.numel():
            quiet = self.noise_limit(0.5, state.noise[k], state.mass[k])
            # B V / (w N) is the Fisher information, whose diagonal bounds the largest eigenvalue from below
            fisher = float((state.noise[k] / state.mass[k]).max()) * int(state.batch_size) / float(state.size)
            curvature = max(curvature, fisher)
        return self.stable_limit(curvature) if curvature > 0.0 else math.inf, quiet

    def _adapt_(self, state: SamplerState, g: Tensor, alive: Tensor, names: list[str], t: int) -> None:
        state.adapting.update_(g, alive, t == 0)
        mass = self.geometry.normalised(state.adapting.square.sqrt(), state.theta, names)
        for k in alive.nonzero().flatten().tolist():
            if state.momentum.numel():  # its temperature stays
                state.momentum[k].mul_((mass[k] / state.mass[k]).sqrt_())
            state.mass[k].copy_(mass[k])

    def _move_(
        self,
        state: SamplerState,
        position: Tensor,
        g: Tensor,
        alive: Tensor,
        names: list[str],
        batch: int,
        random: Random,
    ) -> Tensor:
        """Move the living chains from `position`, where their gradient was taken; [members] kinetic temperatures."""
        t, living = int(state.step), alive.nonzero().flatten().tolist()
        kinetic = position.new_full((self.members,), math.nan)
        if not living:
            return kinetic
        # a slice while all live: views, and the step is in place
        chosen: Any = slice(None) if len(living) == self.members else alive.to(position.device)
        normal = torch.empty_like(position)
        for k in living:
            normal[k].normal_(generator=random.fold(k).fold(t).generator(position.device))
        noise = None
        if state.noise.numel():
            noise = state.noise[chosen]
            noise = noise if batch == int(state.batch_size) else noise * (int(state.batch_size) / batch)
        h = state.step_size.to(position).unsqueeze(1)
        momentum, mass = state.momentum[chosen], state.mass[chosen]
        move = Move(position[chosen], momentum, mass, g[chosen], noise, normal[chosen], h[chosen])
        heat = self.move_(move)
        if heat is not None:
            kinetic[chosen] = heat
            state.momentum[chosen] = move.momentum
        for name, leaf in split(move.theta, state.theta, names).items():
            state.theta[name][chosen] = leaf
        return kinetic

    def _keeps(self, done: int) -> bool:
        return done > self.warmup and (done - self.warmup) % self.thin == 0

    def _redraw_idle_(self, problem: Problem, theta: Tree, random: Random, t: int) -> None:
        """Weights that no forward reaches are drawn anew: their posterior is their prior."""
        for name in sorted(problem.idle & theta.keys()):
            for k in range(self.members):
                theta[name][k].copy_(problem.prior.draw(name, theta[name][k], random.fold(name).fold(k).fold(t)))

    # --- what comes of it ------------------------------------------------------------------------------------------

    def point(self, state: SamplerState) -> Tree:
        return state.theta

    def emit(self, state: SamplerState) -> Tree | None:
        return state.theta if self._keeps(int(state.step)) else None

    def told(self, state: SamplerState) -> str:
        stable, quiet = zip(*(self.limits(state, k) for k in range(self.members)))
        return (
            f"step size {float(state.step_size.median()):.3g}, {self.geometry.kind} mass: stable below "
            f"{sorted(stable)[len(stable) // 2]:.3g}, gradient noise heats by half at {sorted(quiet)[len(quiet) // 2]:.3g} "
            "(medians of the chains)"
        )

    def watch(self, problem: Problem, state: SamplerState) -> dict[str, float]:
        return {"step_size": float(state.step_size.median()), "dead": float(state.tally.dead.sum())}

    def posterior(self, state: SamplerState, shards: Posterior | None = None) -> Posterior:
        if not isinstance(shards, Draws | Streamed) or not shards.finite:
            raise CompatibilityError(f"{type(self).__name__} kept no draw: it runs for at least warmup + thin steps")
        lost = state.tally.lost(allowance(state.mass.shape[1], float(state.size)))
        for k, reason in lost.items():
            warnings.warn(f"chain {k} of {self.members} is left out: {reason}", PosterityWarning, stacklevel=2)
        if len(lost) == self.members:
            raise NonFiniteError(
                f"every chain was lost ({next(iter(lost.values()))}): lower step_size, which was "
                f"{float(state.step_size.max()):.3g}, or start from a better ensemble"
            )
        kept = [k for k in range(self.members) if k not in lost]
        return Chains(shards, self.members, kept, account(self, state, lost))

    def hyperparameters(self) -> dict[str, Any]:
        return {**super().hyperparameters(), "ensemble": self.ensemble.hyperparameters()}


def _add_prior_(g: Tensor, problem: Problem, position: Tensor, at: Tree, names: list[str]) -> None:
    """Add the gradient of -log p to g, [members, d]; in one call where it is one number times the position."""
    if isinstance(problem.prior, Normal) and not problem.prior.centers:
        precisions = {problem.prior.precision(name) for name in names}
        if len(precisions) == 1:
            g.add_(position, alpha=precisions.pop())
            return
    if not isinstance(problem.prior, Flat):
        g.sub_(rows(problem.prior.gradient({name: at[name] for name in names}), names))
