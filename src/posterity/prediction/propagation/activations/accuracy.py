"""How far "fast" can be trusted.

Largest error of the variance over means in [-6, 6], relative to the true variance + 1e-3 that of the input, at stds of the
input (float32 against a sum over 16001 points in float64):

    std        0.03   0.1    0.3    1      2      4
    gelu       7e-7   2e-6   3e-4   8e-2   2e-1   1e-1
    sigmoid    3e-5   9e-6   4e-6   6e-3   9e-2   3e-1
    tanh       1e-5   5e-6   3e-4   1e-1   6e-1   6e-1
    silu       2e-5   6e-6   7e-5   5e-2   4e-1   3e-1
    softplus   2e-5   5e-6   1e-6   3e-3   7e-2   1e-1

"exact" is below 2e-5 for gelu, 3e-5 for sigmoid, 4e-4 for tanh (at 0.3), 2e-4 for silu and softplus in all columns. The
others have one form: relu, leaky_relu, abs, clamp and hardsigmoid below 2e-5, hardswish below 4e-4, elu below 3e-3; exp and
square are exact.
"""

from __future__ import annotations

import math

__all__ = ["fast_within"]

_LARGEST_STD = {"gelu": 0.55, "sigmoid": 1.0, "tanh": 0.5, "silu": 0.7, "softplus": 1.0}


def fast_within(name: str, largest_std: float) -> bool:
    """Whether "fast" has the variance to 1 % up to this std of the input; True for what has one form only.

    Args:
        name: of a function here, e.g. "gelu". For softplus with a beta, multiply the std by it.
        largest_std: >= 0.
    """
    return largest_std <= _LARGEST_STD.get(name, math.inf)
