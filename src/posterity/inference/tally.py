"""How chains go: what is counted of each on the way, which are lost, and what is told of them.

A chain is lost, and left out of the posterior from its first draw on,

    when its gradient is not finite 5 steps in a row: it stays where it last was;
    when its mean training NLL after the warm-up lies above the first step's by more than 1 + d / (w N) nats: twice what
    equipartition allows d weights, d / (2 w N), and one nat for the noise of a batch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Tally", "Trace", "allowance"]

FATAL = 5


def allowance(weights: int, size: float) -> float:
    """Nats a row that the training NLL of a chain of so many weights may rise, where w N is `size`."""
    return 1.0 + weights / size


class Tally(NamedTuple):
    """What is counted of each chain, [members]."""

    failures: Tensor  # int64, steps in a row that were not finite
    dead: Tensor  # bool
    taken: Tensor  # int64, finite steps
    start_nll: Tensor  # float64, of the first of them
    counted: Tensor  # int64, finite steps after the warm-up; the next two are sums over them
    nll: Tensor  # float64
    kinetic: Tensor  # float64

    @classmethod
    def none(cls, members: int) -> Tally:
        failures, taken, counted = (torch.zeros(members, dtype=torch.int64) for _ in range(3))
        start, nll, kinetic = (torch.zeros(members, dtype=torch.float64) for _ in range(3))
        return cls(failures, torch.zeros(members, dtype=torch.bool), taken, start, counted, nll, kinetic)

    def add_(self, nll: Tensor, kinetic: Tensor, finite: Tensor, warm: bool) -> None:
        """Count a step: [members] NLL, kinetic temperature, and whether both they and the gradient are finite."""
        if not warm and bool(finite.all()) and int(self.taken.min()) > 0:  # most steps: nothing to sort out
            self.failures.zero_()
            self.taken.add_(1)
            return
        self.failures.add_(1).mul_(~(finite | self.dead))
        self.dead.logical_or_(self.failures >= FATAL)
        self.start_nll.copy_(torch.where(finite & (self.taken == 0), nll, self.start_nll))
        self.taken.add_(finite)
        if warm:
            self.counted.add_(finite)
            self.nll.add_(torch.where(finite, nll, 0.0))
            self.kinetic.add_(torch.where(finite & kinetic.isfinite(), kinetic, 0.0))

    def lost(self, allowance: float) -> dict[int, str]:
        """Member -> why its chain is left out, where the NLL may rise by `allowance` nats."""
        found = {}
        for k, (dead, taken) in enumerate(zip(self.dead.tolist(), self.taken.tolist())):
            rise = self._mean(self.nll, k) - float(self.start_nll[k])
            if dead:
                found[k] = f"its gradient was not finite from step {taken} on"
            elif rise > allowance:
                found[k] = f"its training NLL rose by {rise:.3g} nats a row, where {allowance:.3g} is what a chain may"
        return found

    def told(self) -> dict[str, list[float | None]]:
        """Means over the steps after the warm-up; NaN where there was none."""
        each = range(len(self.dead))
        return {
            "start_nll": self.start_nll.tolist(),
            "chain_nll": [self._mean(self.nll, k) for k in each],
            "kinetic_temperature": [self._mean(self.kinetic, k) if self.kinetic[k] else None for k in each],
        }

    def _mean(self, total: Tensor, k: int) -> float:
        return float(total[k]) / int(self.counted[k]) if self.counted[k] else math.nan


class Trace(NamedTuple):
    """A thinned record of all chains."""

    values: Tensor  # [members, points, 2] float64: NLL and kinetic temperature; 0 where they were not finite
    recorded: Tensor  # () int64, how many of the points

    @classmethod
    def none(cls, members: int, points: int = 200) -> Trace:
        return cls(torch.zeros(members, points, 2, dtype=torch.float64), torch.tensor(0))

    def add_(self, nll: Tensor, kinetic: Tensor, t: int, steps: int) -> None:
        at = int(self.recorded)
        if t % self._every(steps) or at >= self.values.shape[1]:
            return
        self.values[:, at] = torch.stack([nll, kinetic], dim=1).nan_to_num(0.0, 0.0, 0.0)
        self.recorded.add_(1)

    def _every(self, steps: int) -> int:
        return -(-steps // self.values.shape[1])

    def told(self, steps: int) -> dict[str, Any]:
        """Step, and per step the members' NLL and kinetic temperature, JSON."""
        values = self.values[:, : int(self.recorded)].transpose(0, 1)
        nll, kinetic = ([[value or None for value in row] for row in values[..., i].tolist()] for i in (0, 1))
        return {"step": [i * self._every(steps) for i in range(len(values))], "nll": nll, "kinetic": kinetic}
