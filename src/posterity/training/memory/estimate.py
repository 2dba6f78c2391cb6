"""`estimate_memory`: what a fit would hold at its peak, without holding it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from posterity.errors import PosterityWarning
from posterity.evaluation.readable import readable_bytes
from posterity.inference.algorithm import Algorithm
from posterity.problem.likelihoods import Likelihood
from posterity.problem.priors import Prior
from posterity.training.fit import fit
from posterity.training.memory.imagined_fit import ImaginedFit

__all__ = ["MemoryEstimate", "estimate_memory"]

# glibc gives freed blocks of up to 32 MiB back late: fits take 1 to 1.3 times what they hold (`posterity bench memory`)
ALLOCATOR = 0.1


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a fit, beside its data; `str` says them in words.

    All but `peak` are bytes of tensors.

    Args:
        network: of the network as it is given.
        state: of what is held from one step to the next, where a step takes most.
        step: of the most that such a step takes above it, its batches among it.
        between: of the most that is held outside of steps, above the network: at the start, from stage to stage, at
            validation, and when the posterior is made.
        fitted: of what the fitted model keeps beside the network: its posterior, and the snapshots that others start from.
        disk: of draws on the disk.
    """

    network: int
    state: int
    step: int
    between: int
    fitted: int
    disk: int

    @property
    def peak(self) -> int:
        """The most that the process takes: all that is held at once, and a tenth for what the allocator keeps besides."""
        return self.network + round((1.0 + ALLOCATOR) * max(self.state + self.step, self.between))

    def __str__(self) -> str:
        disk = f" and {readable_bytes(self.disk)} on the disk" if self.disk else ""
        return (
            f"{readable_bytes(self.peak)} at the peak: network {readable_bytes(self.network)}, state "
            f"{readable_bytes(self.state)}, a step {readable_bytes(self.step)}, between steps up to "
            f"{readable_bytes(self.between)}; the fitted model keeps {readable_bytes(self.fitted)}{disk}"
        )


def estimate_memory(
    network: nn.Module | Callable[[], nn.Module],
    data: Any,
    likelihood: Likelihood | str = "categorical",
    method: Algorithm | None = None,
    prior: Prior | str | float = 1.0,
    **options: Any,
) -> MemoryEstimate:
    """The memory that `fit` with the same arguments takes, found in seconds and without taking it.

    The fit's own code runs, two steps of each stage, on tensors that have a shape and no numbers; it is estimated as it
    runs in one process.

    Args:
        network: a module; or a function that builds one, which then is not made either.
        data, likelihood, method, prior: as in `fit`. The data are surveyed, and count with one batch per member.
        options: the others of `fit`. How long it runs, and where it is written, makes no difference.

    Raises:
        PosterityError: what `fit` raises before its first step, a posterior that is too large among it.
        NotImplementedError: a forward that decides by the numbers of a large tensor.

    >>> import torch
    >>> net = torch.nn.Linear(1024, 1024)
    >>> found = estimate_memory(net, (torch.randn(64, 1024), torch.arange(64)))
    >>> found.network, found.fitted // found.network
    (4198400, 5)
    """
    given = inspect.signature(fit).bind(network, data, likelihood, method, prior, **options)
    given.apply_defaults()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosterityWarning)  # the fit will say it
        # what torch does itself to make a FakeTensor, or a deep copy of one
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        return MemoryEstimate(**ImaginedFit(given.arguments).measured())
