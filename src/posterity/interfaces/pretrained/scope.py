"""Whether a row is out of scope: where the entropy of what is said of it is above that of all but a few known rows.

The threshold is a conformal quantile: of validation rows that are like those to come, a row that belongs is called out of
scope with a probability of at most the false alarm rate, whatever the model. How many foreign rows it finds is another
matter: `posterity evaluate --ood` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from posterity.errors import DataError
from posterity.evaluation.conformal_scores import conformal_quantile

__all__ = ["Scope", "scope_of"]


@dataclass(frozen=True)
class Scope:
    """A threshold on the entropy, in nats.

    Args:
        threshold: a row above it is out of scope.
        false_alarms: the rate at which rows that belong are above it, at most.
        rows: that it was chosen on.
    """

    threshold: float
    false_alarms: float
    rows: int

    def __call__(self, entropy: Tensor) -> Tensor:
        """[rows] bool: out of scope."""
        return entropy.double() > self.threshold

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def scope_of(entropy: Tensor, false_alarms: float, tell: Callable[[str], None]) -> Scope | None:
    """The threshold that the entropies of validation rows, [rows], give; None, said, where they are too few.

    >>> import torch
    >>> scope_of(torch.arange(19.0), 0.05, print)
    Scope(threshold=18.0, false_alarms=0.05, rows=19)
    >>> scope_of(torch.arange(9.0), 0.05, print)
    no threshold for what is out of scope: level 0.95 needs at least 19 rows, got 9 of validation
    """
    try:
        return Scope(conformal_quantile(entropy, 1 - false_alarms), false_alarms, len(entropy))
    except DataError as error:
        tell(f"no threshold for what is out of scope: {error} of validation")
        return None
