"""Lightning: `from posterity.lightning import bayesian`."""

from posterity.interfaces.driven.lightning import LightningDriven, bayesian

__all__ = ["LightningDriven", "bayesian"]
