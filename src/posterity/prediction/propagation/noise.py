"""The noise of a pass whose outputs get a covariance: what appears at single places, apart from the noise of the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Noise"]


@dataclass
class Noise:
    """Places where something independent of everything before it is added.

    Args:
        shifts: a zero for each place, in the order met, whose slope says what the place does to the outputs; None finds
            the places.
        alone: ids of the weights that one product with one position reads: independent noise of its outputs stands for
            theirs.
        variances: of what is added at each place; positions: of the inputs of the linear products that have met a weight,
            by its id.
    """

    shifts: Sequence[Tensor] | None = None
    alone: frozenset[int] = frozenset()
    variances: list[Tensor] = field(default_factory=list)
    positions: Counter[int] = field(default_factory=Counter)

    def added(self, mean: Tensor, variance: Tensor) -> Tensor:
        """The mean with this place's shift."""
        place = len(self.variances)
        self.variances.append(variance.detach().expand_as(mean))
        return mean if self.shifts is None else mean + self.shifts[place]

    def beyond_slope(
        self, moments: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], mean: Tensor, var: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Moments of f(X), element by element; Var f - (d E f / d mean)^2 var is this place's own."""
        at = mean.detach()
        found, pull, found_var = torch.func.vjp(lambda leaf: moments(leaf, var), at, has_aux=True)  # type: ignore[misc]
        slope = pull(torch.ones_like(found))[0]
        # the same value and slope in one step, where each output would go back through all of the formula
        found = found + slope * (mean - at)
        return self.added(found, (found_var - slope.square() * var).clamp_min(0.0)), found_var
