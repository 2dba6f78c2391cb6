"""Inputs of a size that networks do not start for."""

from __future__ import annotations

import warnings
from typing import Any

from posterity.errors import PosterityWarning
from posterity.problem.batches import tensors_in

__all__ = ["warn_of_magnitude"]

FAR = 1e4  # times the size of about 1 that initialisers suppose


def warn_of_magnitude(inputs: Any) -> None:
    """Warn where the root mean square of a floating tensor of a batch is above 1e4, or below 1e-4 and not 0."""
    for name, tensor in tensors_in(inputs):
        size = tensor.double().square().mean().sqrt().item() if tensor.is_floating_point() else 1.0
        if size > FAR or 0.0 < size < 1.0 / FAR:
            warnings.warn(
                f"the {name} of the first batch has a root mean square of {size:.3g}, and networks start for about 1: "
                "give (x - mean) / std of the training rows, as tables and estimators do, or begin with a BatchNorm",
                PosterityWarning,
                stacklevel=4,
            )
