"""Loops that are not ours: transformers' Trainer, Lightning, a plain loop of torch.

The loop does forward and backward on the user's module; an optimizer hands the gradients that it finds there to an
algorithm.
"""

from posterity.interfaces.driven.driven import Driven
from posterity.interfaces.driven.optimizer import DrivenOptimizer, OwnSchedule

__all__ = ["Driven", "DrivenOptimizer", "OwnSchedule"]
