"""An algorithm driven by a loop that is not ours.

    driven.begin(plan, data_size)         once, before the first batch
    driven.draw()                         the weights at which the next gradient is wanted go into the module
    driven.loss(outputs, targets)         the loss to call backward on; several of them a step accumulate
    driven.optimizer.step()               the algorithm's update; its mean weights go into the module
    driven.end_epoch()                    a line of the history
    driven.model()                        what is known, as a `BayesianModel`

Between `step` and `draw` the module holds the mean weights: that is when to evaluate and save it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posterity.errors import CompatibilityError, DataError, StorageError
from posterity.history import History
from posterity.inference.algorithm import Algorithm, Plan
from posterity.inference.map import MAP
from posterity.inference.schedule import at
from posterity.interfaces.driven.checks import check_drivable, check_known
from posterity.interfaces.driven.gathered import Gathered
from posterity.interfaces.driven.optimizer import DrivenOptimizer
from posterity.interfaces.driven.parameters import Parameters
from posterity.interfaces.driven.question import answered, asked
from posterity.model import BayesianModel
from posterity.posterior.files import strict_json
from posterity.problem.batches import Reader
from posterity.problem.info import Info
from posterity.problem.likelihoods import Likelihood, likelihood_from
from posterity.problem.measured import norms
from posterity.problem.network import Network
from posterity.problem.priors import Prior, prior_from
from posterity.problem.problem import NetworkProblem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.training.checkpoint import flatten, restore
from posterity.training.loop import account, check_settings, end_epoch
from posterity.training.position import Position
from posterity.training.settings import settings_of
from posterity.tree import BUFFER, Tree, clone

__all__ = ["Driven"]

MAX_FAILURES = 10  # non-finite steps in a row that end a run, as in `fit`


class Driven:
    """A network, an algorithm, and what a loop needs to run it.

    Args:
        network: trained in place; freeze what is not to be inferred before.
        method: an algorithm that wants one gradient a step; `po.MAP()` unless given.
        likelihood: a name or a `Likelihood`. One of numbers that is scaled to the targets must know them:
            `po.Gaussian().surveyed([targets])`.
        prior: a `Prior`, or the std of a normal one.
        data_size: N; the rows of an epoch of the loop unless given.
        data_weight: w > 0; every row counts w times.
        target: the key of the targets in dict batches, or their position, for `predict` and `evaluate` afterwards.
        output: which output is meant where the network returns several.
        seed: addresses the noise in the weights, and the draws of `predict`.
        clip: largest Euclidean norm of the gradient of the mean loss, or None.

    Raises:
        CompatibilityError: a method that cannot be driven, parts that do not go together.
        PriorError, DataError: as in `po.fit`.
    """

    divided_outside = 1  # what the loop divides each loss by before backward
    divided_inside = 1  # what `loss` divides by, so that a loop that adds up losses shows their mean

    def __init__(
        self,
        network: nn.Module,
        method: Algorithm | None = None,
        *,
        likelihood: Likelihood | str = "categorical",
        prior: Prior | str | float = 1.0,
        data_size: int | None = None,
        data_weight: float = 1.0,
        target: str | int | None = None,
        output: Any = None,
        seed: int = 0,
        clip: float | None = None,
    ) -> None:
        self.network, self.method = network, method or MAP()
        if not isinstance(self.method, Algorithm):
            raise CompatibilityError(f"method must be an algorithm such as po.MAP(), got {method!r}")
        if seed < 0:
            raise CompatibilityError(f"seed must be a whole number of at least 0, got {seed}")
        self.likelihood, self.prior = likelihood_from(likelihood), prior_from(prior)
        check_known(self.likelihood)
        self.data_size, self.data_weight, self.clip = data_size, data_weight, clip
        self.reader, self.output, self.seed = Reader(target), output, seed
        self.stream = Random(seed).fold(f"stage 0 {self.method.name}")
        self.problem = self._problem(data_size or 1, "float32")
        check_drivable(self.method, self.problem)
        self._parameters = Parameters.of(network, self.likelihood.parameters())
        self.optimizer = DrivenOptimizer(self, list(self._parameters.values()))
        self.state: Any = None
        self.plan = Plan(1, 0, 0)
        self._position, self._gathered, self._drawn = Position(), Gathered(), False
        self._start: Tree = {}  # until the first step tells which weights are idle
        self._saved: dict[str, Any] | None = None

    def _problem(self, data_size: int, precision: str) -> NetworkProblem:
        return NetworkProblem(
            Network(self.network, output=self.output), self.likelihood, self.prior, data_size=data_size,
            data_weight=self.data_weight, reader=self.reader, precision=precision, clip=self.clip,
        )  # fmt: skip

    # --- what a loop calls -----------------------------------------------------------------------------------------

    def begin(self, plan: Plan, rows: int | None, precision: str = "float32", resume: bool = True) -> None:
        """Start from the module's weights, or go on from a state that the optimizer loaded.

        Args:
            rows: of an epoch, where the loop knows.
            precision: "bf16" where the loop casts the forward to it.
            resume: go on from a loaded state, if there is one; else it is dropped.

        Raises:
            DataError: neither `data_size` nor `rows`, or two that differ.
            CompatibilityError: other trainable parameters than at the start.
            StorageError: a loaded state of another fit.
        """
        if rows is None and self.data_size is None:
            raise DataError("the training data has no length: give data_size=, the number of its rows")
        if rows is not None and self.data_size not in (None, rows):
            raise DataError(
                f"data_size={self.data_size}, and an epoch of this loop has {rows} rows: leave data_size out to count them, "
                "and give data_weight= for rows that are to count more or less"
            )
        self.problem = self._problem(self.data_size or rows or 1, precision)
        self.plan, self._gathered, self._drawn = plan, Gathered(), False
        self._start = self.problem.start()
        self._parameters.follow(self._start)
        self._parameters.clear()
        self._position, saved = Position(failures=[0], consumed=[0]), self._saved if resume else None
        self._saved = None
        if saved is not None:
            self.problem.idle = frozenset(saved["idle"])
            if saved["centers"]:  # where the first run started, not this one
                prior: Any = self.problem.prior
                self.problem.prior = dataclasses.replace(prior, centers=saved["centers"])
        self.state = self.method.init(self.problem, [self._start], self.stream.fold("init"), plan)
        if saved is not None:
            check_settings(saved["settings"], self.settings(), Path("the checkpoint"))
            self.state = restore(self.state, clone(saved["tensors"]))
            self._position = Position.from_json(saved["position"])
            if self._position.rows == rows:  # a loop may save the last step of an epoch before it ends the epoch
                self.end_epoch()

    def draw(self) -> None:
        """Put the weights at which the next gradient is wanted into the module; they stay until `step` or `settle`."""
        if self.state is None:
            raise CompatibilityError("begin(plan, rows) comes before the first batch: pass the callback to the trainer")
        if not self._drawn:
            self._tell_rate()
            self._parameters.put(asked(self.method, self.problem, self.state, self.stream))
            self._drawn = True

    def settle(self) -> None:
        """Put the mean weights into the module; the next `draw` goes on with the same step."""
        if self.state is not None:
            self._parameters.put(self.method.point(self.state))
            self._drawn = False

    def give_up(self) -> None:
        """After an error in a loop of one's own: forget the step that was begun, and put the mean weights back."""
        self._gathered = Gathered()
        self._parameters.clear()
        self.settle()

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """() the mean NLL per row of one batch, to call backward on; in evaluation (without gradients) to look at only.

        Raises:
            DataError: no targets.
            CompatibilityError: gradients without a draw in the weights.
        """
        if targets is None:
            raise DataError("the loop hands over no targets: name the column of the labels 'labels'")
        with torch.autocast(self.problem.network.device.type, enabled=False):
            nlls = -self.problem.row_log_probs(self._parameters.own, self.problem.network.choose(outputs), targets)
            if not torch.is_grad_enabled():
                return nlls.mean()
            if not self._drawn:
                raise CompatibilityError("no draw is in the weights: pass the callback to the trainer, or call draw()")
            return self._gathered.loss(nlls, int((~self.likelihood.void(targets)).sum())) / self.divided_inside

    def step(self, scale: float = 1.0) -> None:
        """The algorithm's update from the gradients of losses times `scale`; what `optimizer.step()` calls."""
        gathered, self._gathered = self._gathered, Gathered()
        if not gathered.rows:
            raise CompatibilityError("no loss came from driven.loss since the last step: the trainer must use it")
        self._position.consumed[0] += 1
        self._position.rows += gathered.rows
        if gathered.counted:
            self._update(gathered, scale)
        else:
            self._position.left_out += 1
        self._parameters.clear()
        self.settle()

    def _update(self, gathered: Gathered, scale: float) -> None:
        if self._start:  # the first step
            self._find_idle()
        factor = gathered.factor(self.divided_inside * self.divided_outside) / scale
        gradient = self._parameters.gradient(factor, self.problem.idle)
        nll, norm = gathered.nll(), norms(list(gradient.values()))[0]
        finite = torch.isfinite(nll + norm)
        if self.clip is not None and bool(norm > self.clip):
            gradient = {name: leaf.mul_(self.clip / norm) for name, leaf in gradient.items()}
        every = dict(self.network.named_buffers())
        buffers = {BUFFER + name: every[name] for name in sorted(self.problem.network.changing)}
        info = Info(nll[None], norm[None], finite[None], {name: value.clone()[None] for name, value in buffers.items()})
        self.state, info = answered(self.method, self.problem, self.state, self.stream, gradient, info, gathered.rows)
        if not bool(finite):  # what a skipped forward left in the module goes too
            kept = self.method.point(self.state)
            for name, value in buffers.items():
                value.copy_(kept[name][0])
        self._position.step += 1
        account(self._position, info, MAX_FAILURES)

    def _find_idle(self) -> None:
        """Weights that the first step's forward did not reach keep their prior from the start on."""
        idle = self._parameters.unreached()
        if idle and not self._position.step:
            self.problem.idle = idle
            self.state = self.method.init(self.problem, [self._start], self.stream.fold("init"), self.plan)
        self._start = {}

    def end_epoch(self) -> None:
        """Close a line of the history."""
        if self._position.step and self._position.consumed[0]:
            self.state, row = end_epoch(self.problem, self.method, self.state, self._position, None, self.stream)
            self._position.history.append(row)
            self._position.consumed = [0]

    def _tell_rate(self) -> None:
        """The learning rate of the step to come, for those who watch the optimizer."""
        rate = getattr(self.method, "learning_rate", None)
        if rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = at(rate, self._position.step, self.plan.steps)

    # --- what is known, and what is kept ---------------------------------------------------------------------------

    def model(self) -> BayesianModel:
        """What is known after the last step. Its network is this one: predictions put their own weights in.

        Raises:
            CompatibilityError: nothing was trained yet.
        """
        if self.state is None or not self._position.step:
            raise CompatibilityError("nothing was trained yet: run the loop first")
        self.settle()
        return BayesianModel(
            self.problem,
            self.method.posterior(self.state),
            settings=self.settings(),
            history=History(self._position.history),
            snapshots=[one for one in self.method.snapshots(self.state) if isinstance(one, Snapshot)],
        )

    def settings(self) -> dict[str, Any]:
        """As those of `po.fit`."""
        parts = self.divided_inside * self.divided_outside
        found = settings_of(self.problem, self.method, self.plan, None, self.plan.steps, self.seed, parts, None)
        return {**found, "output": self.output if isinstance(self.output, str | int) else None}

    def position(self) -> dict[str, Any]:
        """Where the run is, in tensors and plain values: what a checkpoint needs to go on to the bit."""
        if self.state is None:
            return {}
        return {
            "tensors": clone(flatten(self.state)),
            "centers": dict(getattr(self.problem.prior, "centers", {})),
            "idle": sorted(self.problem.idle),
            "position": json.loads(json.dumps(strict_json(vars(self._position), null=True))),
            "settings": self.settings(),
        }

    def resume(self, position: dict[str, Any] | None) -> None:
        """Go on from `position()` of an earlier run at the next `begin`.

        Raises:
            StorageError: it is none.
        """
        if position is None:
            raise StorageError("the checkpoint holds the state of another optimizer: this training did not write it")
        self._saved = position or None
