"""A loop that clips gradients and a method that is told so."""

from __future__ import annotations

import warnings

from posterity.errors import CompatibilityError, PosterityWarning
from posterity.interfaces.driven.driven import Driven

__all__ = ["agree_on_clipping"]


def agree_on_clipping(driven: Driven, most: float | None, argument: str) -> None:
    """Take over what the loop's `argument` clips at, so that the settings say it; warn where nobody asked for it.

    Raises:
        CompatibilityError: `clip` says something else.
    """
    if not most or driven.clip == most:
        return
    if driven.clip is not None:
        raise CompatibilityError(f"bayesian(clip={driven.clip}) and {argument}={most} differ")
    driven.clip = most
    warnings.warn(
        f"this loop clips gradients at {argument}={most}, which biases the stds: {argument}=0 leaves them as they are, and "
        f"bayesian(clip={most}) says that you want it",
        PosterityWarning,
        stacklevel=3,
    )
