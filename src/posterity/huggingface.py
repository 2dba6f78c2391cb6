"""transformers: `from posterity.huggingface import bayesian, load, save`."""

from posterity.interfaces.driven.folder import load, save
from posterity.interfaces.driven.trainer import TrainerDriven, bayesian

__all__ = ["TrainerDriven", "bayesian", "load", "save"]
