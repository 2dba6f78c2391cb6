"""Sets of classified rows, or of texts, as the benches of Bayesian deep ensembles read them draw after draw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.bench.bde_task import LOG
from posterity.evaluation.calibration import ece
from posterity.evaluation.detection import auroc
from posterity.problem.likelihoods.base import ClassLikelihood
from posterity.problem.problem import NetworkProblem
from posterity.problem.targets import IGNORE
from posterity.tree import Tree

__all__ = ["Classes"]

BLOCK = 500  # rows of a pass


@dataclass(frozen=True)
class Classes:
    """What is said about the classes of some sets: of rows, or of the positions of texts.

    Args:
        problem: with a likelihood of classes or of tokens.
        sets: inputs and targets of "validation", "test" and foreign sets; None as the targets of those without.
        tokens: report perplexities; else the calibration of the top class.
    """

    problem: NetworkProblem
    sets: Mapping[str, tuple[Tensor, Tensor | None]]
    tokens: bool = False

    def look(self, theta: Tree) -> dict[str, Tensor]:
        """Of one draw: log p of the targets of every set, and all probabilities of every set but validation."""
        columns: dict[str, Tensor] = {}
        for name, (x, y) in self.sets.items():
            parts = [self.problem.outputs(theta, block) for block in x.split(BLOCK)]
            log_probs = self._likelihood.log_probs(torch.cat(parts))
            if y is not None:
                where = self._likelihood.aligned(y, log_probs)
                there = where != IGNORE
                columns[LOG + name] = log_probs[there].gather(1, where[there][:, None])[:, 0]
            if name != "validation":
                columns[name] = log_probs.exp()
        return columns

    @property
    def _likelihood(self) -> ClassLikelihood:
        assert isinstance(self.problem.likelihood, ClassLikelihood)
        return self.problem.likelihood

    def measure(self, found: Mapping[str, Tensor]) -> dict[str, float]:
        """LPPD, accuracy, ECE, AUROC by the mixture's entropy; of tokens the perplexities instead of the ECE.

        A perplexity is exp(-mean over tokens of log mean over draws of p(token)): of the mixture.
        """
        probs = found["test"].double()
        target = self.sets["test"][1]
        assert target is not None
        where = self._likelihood.aligned(target, probs)
        there = where != IGNORE
        confidence, top = probs[there].max(-1)
        correct = top == where[there]
        told = {"lppd": float(found["log_test"].mean()), "accuracy": float(correct.double().mean())}
        if self.tokens:
            told |= {
                f"perplexity_{key.removeprefix(LOG)}": math.exp(-float(value.mean()))
                for key, value in found.items()
                if key.startswith(LOG) and key != "log_validation"
            }
        else:
            told["ece"] = ece(confidence, correct).value
        familiar = _entropy(probs)
        for name in self.sets:
            if name not in ("validation", "test"):
                told[f"ood_auroc_{name}"] = auroc(familiar, _entropy(found[name].double())).value
        return told


def _entropy(probs: Tensor) -> Tensor:
    """[rows] in nats; of a text the mean over its positions but the last, which nothing follows."""
    each = torch.special.entr(probs).sum(-1)
    return each if each.ndim == 1 else each[:, :-1].mean(1)
