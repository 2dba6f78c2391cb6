"""The protocol of every algorithm: a frozen dataclass of hyperparameters with init, step and posterior.

    state = algorithm.init(problem, start, random, plan)
    state, info = algorithm.step(problem, state, batches, random)       # once per batch and member
    posterior = algorithm.posterior(state)

A State is a NamedTuple of trees and scalar tensors: what the next step needs, and nothing else. Every weight-like leaf has
a leading member axis, so an ensemble is an algorithm with `members` set. A step may reuse the buffers of the state that
it is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, PriorError
from posterity.posterior.posterior import Posterior
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.tree import Tree, clone, stack, weights

__all__ = [
    "Algorithm",
    "Plan",
    "Start",
    "average_",
    "each_start",
    "gaussian_prior",
    "gradients",
    "keep_buffers",
    "optimizer_statistics",
    "own_stream",
    "potentials",
    "stacked_start",
    "survivors",
    "varying",
]

Start = Tree | Snapshot | Sequence[Tree | Snapshot]


class Plan(NamedTuple):
    """What the loop will do."""

    batch_size: int
    steps: int
    steps_per_epoch: int


@dataclass(frozen=True)
class Algorithm(ABC):
    """Base of all algorithms; each sets `name` and `priors` and says what `step` does and targets."""

    name: ClassVar[str]
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal,)  # those that it can use
    own_draws: ClassVar[bool] = False  # whether ranks that share a step may each draw weights of their own
    elementwise: ClassVar[bool] = False  # whether every weight is treated apart: ranks may have some rows each

    ensemble_name: ClassVar[str] = ""  # what several members are called; "<name>-ensemble" unless set

    members: int = 1
    member_init: str = "reset"  # how members after the first start: "reset" or "same"

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError(f"members must be at least 1, got {self.members}")

    @property
    def title(self) -> str:
        """What runs and tables call this: its name, or its ensemble's."""
        return self.name if self.members == 1 else self.ensemble_name or f"{self.name}-ensemble"

    def stages(self, plan: Plan) -> list[tuple[Algorithm, Plan]]:
        """The algorithms to run one after the other, each from the last one's snapshots."""
        return [(self, plan)]

    def stages_from_start(self, plan: Plan) -> list[tuple[Algorithm, Plan]]:
        """The same for a fit that is given `start=`: without the stage that would train it."""
        return self.stages(plan)

    def check(self, problem: Problem, batch: Any) -> None:
        """Raise where this algorithm cannot work on the problem; asked with a first batch, before any stage is run."""
        self.check_prior(problem)

    @abstractmethod
    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> Any:
        """The state before the first step."""

    @abstractmethod
    def step(self, problem: Problem, state: Any, batches: Sequence[Any], random: Random) -> tuple[Any, Info]:
        """One update from one independent batch per member; folds `state.step` into `random` itself."""

    @abstractmethod
    def point(self, state: Any) -> Tree:
        """[members, ...] the weights that the loop validates: current ones, or the mean of a family."""

    @abstractmethod
    def posterior(self, state: Any, shards: Posterior | None = None) -> Posterior:
        """What is known after the last step."""

    def validated(self, state: Any, nll: Tensor) -> Any:
        """Told the [members] validation NLL of `point(state)`: where best snapshots are kept."""
        return state

    def watch(self, problem: Problem, state: Any) -> dict[str, float]:
        """Numbers worth an epoch's line in the history (a KL, a typical std); too dear for every step."""
        return {}

    def told(self, state: Any) -> str | None:
        """A line for the person who waits, after the first step."""
        return None

    def snapshots(self, state: Any) -> list[Tree | Snapshot]:
        """Where the next stage starts, one per member."""
        point = self.point(state)
        return [{name: leaf[k] for name, leaf in point.items()} for k in range(self.members)]

    def emit(self, state: Any) -> Tree | None:
        """Draws (leading axis: member) that the loop streams to shards, or None."""
        return None

    def hyperparameters(self) -> dict[str, Any]:
        """JSON of the fields, for the run's manifest."""
        return asdict(self)

    def check_prior(self, problem: Problem) -> None:
        """Raise where the problem's prior is of no class that this algorithm takes."""
        prior = problem.prior
        if not isinstance(prior, self.priors):
            names = " or ".join(each.name for each in self.priors if each is not Flat)  # flat is a bare density's
            if isinstance(prior, Flat):
                raise PriorError(f"{type(self).__name__} needs a {names} prior, and a bare density has a flat one")
            raise PriorError(
                f"{type(self).__name__} needs a {names} prior, got {prior.name}; pass prior=po.Normal(1.0)"
            )


def gaussian_prior(problem: Problem, name: str) -> tuple[float, Tensor | float]:
    """(precision, centre) of one tensor under a normal prior; (0, 0) where the prior is flat."""
    prior = problem.prior
    if isinstance(prior, Flat):
        return 0.0, 0.0
    assert isinstance(prior, Normal)
    return prior.precision(name), prior.centers.get(name, 0.0)


def each_start(start: Start, members: int) -> list[Tree | Snapshot]:
    """The start of every member: those given, or the one for all."""
    return list(start) if isinstance(start, Sequence) and not isinstance(start, Snapshot) else [start] * members


def stacked_start(problem: Problem, start: Start, members: int) -> Tree:
    """[members, ...] starting weights: one tree for all of them, or one each."""
    given = each_start(start, members)
    if len(given) != members:
        raise ValueError(f"{members} members need as many starts, got {len(given)}")
    trees = [one.theta if isinstance(one, Snapshot) else one for one in given]
    if members == 1:
        return {name: leaf.unsqueeze(0) for name, leaf in clone(trees[0]).items()}
    return stack(trees)


def optimizer_statistics(start: Start, members: int, what: str) -> list[Snapshot]:
    """The start as one `Snapshot` per member.

    Raises:
        CompatibilityError: weights without the optimizer's statistics, which `what` needs.
    """
    given = each_start(start, members)
    found = [one for one in given if isinstance(one, Snapshot)]
    if len(found) < len(given):
        raise CompatibilityError(
            f"{what} needs the optimizer's statistics, and start= brings bare weights: start from a fit that keeps "
            "snapshots (MAP, DeepEnsemble, or their run folder), or use mass='identity' and noise_correction=False"
        )
    return found


def gradients(
    problem: Problem, thetas: Tree, batches: Sequence[Any], random: Random, step: int
) -> tuple[Tensor, Tree, Info]:
    """[K] mean NLL and its gradient for K members, each on its own batch with its own address of randomness."""
    steps = random.fold("step")
    return problem.nlls(thetas, batches, [steps.fold(k).fold(step) for k in range(len(batches))])


def potentials(
    problem: Problem, thetas: Tree, batches: Sequence[Any], random: Random, step: int
) -> tuple[Tensor, Tree, Info]:
    """[K] U(theta) = -log p(theta) + w N * mean NLL, and its gradient: what samplers move on."""
    nll, gradient, info = gradients(problem, thetas, batches, random, step)
    scale = problem.data_weight * problem.data_size
    pull = problem.prior.gradient(thetas)
    log_prior = torch.stack(
        [problem.prior.log_density({n: leaf[k] for n, leaf in thetas.items()}) for k in range(nll.shape[0])]
    )
    energy = scale * nll - log_prior.to(nll)
    return energy, {name: leaf.mul_(scale).sub_(pull[name]) for name, leaf in gradient.items()}, info


def own_stream(problem: Problem, random: Random) -> Random:
    """The stream of this rank's draws, where every rank has its own."""
    rank = problem.drawing.rank
    return random if rank == 0 else random.fold(f"draw {rank}")


def average_(problem: Problem, *found: tuple[Tree, Iterable[str]]) -> None:
    """Where every rank drew weights of its own, the mean over the ranks of what they found, in place.

    Args:
        found: [members, ...] statistics, linear in what a draw and its rows say, with the names of those that count.
    """
    group = problem.drawing
    leaves = [tree[name] for tree, names in found for name in names] if group.size > 1 else []
    if leaves:
        group.mean_(leaves, torch.ones(len(leaves[0]), dtype=torch.float64, device=leaves[0].device))


def keep_buffers(theta: Tree, info: Info) -> None:
    """Write the buffers that a forward changed into the state, in place, for the members whose step was finite."""
    for name, value in info.buffers.items():
        for k in info.finite.nonzero().flatten().tolist():
            theta[name][k].copy_(value[k])


def survivors(info: Info) -> Tensor | None:
    """[members] bool, the members whose step was finite; None for all of them: asked once a step, not once a tensor."""
    return None if bool(info.finite.all()) else info.finite


def varying(problem: Problem, theta: Tree) -> Tree:
    """The leaves that an algorithm updates: trainable weights that a forward reaches, and the likelihood's own."""
    return {name: leaf for name, leaf in weights(theta).items() if name not in problem.idle}
