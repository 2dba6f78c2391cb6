"""Predicted classes: the mean probability over draws, and its entropy split in two (nats).

    p          = mean_s p_s                          log p kept, by a running mean in log space
    entropy    = H[p]                                total
    aleatoric  = mean_s H[p_s]                       expected entropy: noise that more data would not remove
    epistemic  = H[p] - mean_s H[p_s] >= 0           mutual information of label and weights: what the draws disagree on

Houlsby et al. (2011). Exactly 0 for one draw and for identical draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posterity.prediction.base import Predictive
from posterity.problem.likelihoods import ClassLikelihood
from posterity.problem.likelihoods.base import row_sum
from posterity.problem.likelihoods.labels import select
from posterity.problem.targets import IGNORE

__all__ = ["CategoricalPredictive", "MultilabelPredictive", "entropies"]


def entropies(log_probs: Tensor) -> Tensor:
    """[...] float64 entropy in nats of `log_probs` `[..., classes]`; p = 0 adds 0."""
    return torch.special.entr(log_probs.exp()).sum(-1, dtype=torch.float64)


@dataclass(frozen=True, eq=False, repr=False)
class CategoricalPredictive(Predictive):
    """One class per row, or per position: tensors `[rows, ...]`, and `[rows, ..., classes]` for probabilities.

    log_probs: the log of the MEAN probability. per_draw: probabilities `[draw, row, ..., class]`, if they were kept.
    Positions of tokens: t speaks about the token t + 1.
    """

    likelihood: ClassLikelihood
    log_probs: Tensor
    entropy: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    per_draw: Tensor | None = None

    row_axis: ClassVar[Mapping[str, int]] = {
        "log_probs": 0,
        "entropy": 0,
        "aleatoric": 0,
        "epistemic": 0,
        "per_draw": 1,
    }

    @classmethod
    def of(
        cls,
        likelihood: ClassLikelihood,
        log_probs: Tensor,
        aleatoric: Tensor,
        *,
        draws: int,
        via: str,
        per_draw: Tensor | None = None,
    ) -> Self:
        """From mean probabilities `[rows, ..., classes]` (as logs) and expected entropies `[rows, ...]` (nats)."""
        entropy = cls.total(entropies(log_probs))
        epistemic = (entropy - aleatoric).clamp_min(0)  # >= 0 but for rounding
        found = {"log_probs": log_probs, "entropy": entropy, "aleatoric": aleatoric, "epistemic": epistemic}
        tensors = {name: tensor.float().cpu() for name, tensor in found.items()}
        return cls(likelihood, draws, via, **tensors, per_draw=per_draw)

    @staticmethod
    def total(values: Tensor) -> Tensor:
        """Entropies as they are reported: one per position."""
        return values

    @staticmethod
    def shown(log_probs: Tensor) -> Tensor:
        """Log-probabilities as `probs` shows them: every class."""
        return log_probs.exp()

    def __len__(self) -> int:
        return self.log_probs.shape[0]

    def _sizes(self) -> dict[str, Any]:
        positions = tuple(self.log_probs.shape[1:-1])
        return {**({"positions": positions} if positions else {}), "classes": self.log_probs.shape[-1]}

    @property
    def probs(self) -> Tensor:
        """[rows, ..., classes] mean probabilities."""
        return self.shown(self.log_probs)

    @property
    def index(self) -> Tensor:
        """[rows, ...] int64 position of the most probable class."""
        return self.log_probs.argmax(-1)

    @property
    def label(self) -> Tensor | NDArray[Any]:
        """[rows, ...] the most probable class in the user's own labels: a numpy array of strings, else a tensor."""
        names = self.likelihood.names(self.log_probs.shape[-1])
        if isinstance(names, range):
            return self.index
        if isinstance(names[0], str):
            return np.array(names)[self.index.numpy()]
        return torch.tensor(names)[self.index]

    @property
    def confidence(self) -> Tensor:
        """[rows, ...] the probability of `label`."""
        return self.log_probs.amax(-1).exp()

    def canonical(self, targets: Any) -> Tensor:
        """Raw targets beside `index`: int64 class positions `[rows, ...]`, -100 ignored, or soft `[rows, ..., C]`."""
        return self.likelihood.aligned(targets, self.log_probs)

    def counted(self, targets: Any) -> Tensor:
        """[rows, ...] bool: where a target counts."""
        canonical = self.canonical(targets)
        return canonical.sum(-1) > 0 if canonical.is_floating_point() else canonical != IGNORE

    def log_prob(self, targets: Any) -> Tensor:
        """[rows] sum over positions of log mean_s p_s(target); class weights do not enter; 0 in a void row."""
        return row_sum(select(self.log_probs.double(), self.canonical(targets))).float()


@dataclass(frozen=True, eq=False, repr=False)
class MultilabelPredictive(CategoricalPredictive):
    """Any of L labels: `log_probs` `[rows, L, 2]` of absent and present; entropies `[rows]` are summed over labels."""

    @staticmethod
    def total(values: Tensor) -> Tensor:
        """Entropies as they are reported: summed over the labels of a row."""
        return row_sum(values)

    @staticmethod
    def shown(log_probs: Tensor) -> Tensor:
        """Log-probabilities as `probs` shows them: of the label being present."""
        return log_probs[..., 1].exp()

    def _sizes(self) -> dict[str, Any]:
        labels = tuple(self.log_probs.shape[1:-1])
        return {"labels": labels[0] if len(labels) == 1 else labels}

    @property
    def probs(self) -> Tensor:
        """[rows, L] mean probability of each label."""
        return self.shown(self.log_probs)
