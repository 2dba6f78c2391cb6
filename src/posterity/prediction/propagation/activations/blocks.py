"""Large inputs piece by piece: some 40 intermediate tensors of a piece stay in the cache, those of the whole do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

from posterity.prediction.propagation.activations.moments import Moments

__all__ = ["in_blocks"]

P = ParamSpec("P")

# torch gives a thread no fewer elements than twice this; alone, half of that is faster.
_ELEMENTS = 16384


def in_blocks(
    moments: Callable[Concatenate[Tensor, Tensor, P], Moments],
) -> Callable[Concatenate[Tensor, Tensor, P], Moments]:
    """The same moments, of large tensors on the CPU in blocks; whole where a graph is recorded, which blocks would fill."""

    @wraps(moments)
    def blocked(mean: Tensor, var: Tensor, *args: P.args, **kwargs: P.kwargs) -> Moments:
        threads = torch.get_num_threads()
        size = _ELEMENTS if threads == 1 else 2 * _ELEMENTS * threads
        recorded = torch.is_grad_enabled() and (mean.requires_grad or var.requires_grad)
        if torch.compiler.is_compiling() or mean.device.type != "cpu" or recorded or mean.numel() < 2 * size:
            return moments(mean, var, *args, **kwargs)
        pieces = zip(mean.reshape(-1).split(size), var.reshape(-1).split(size))
        means, variances = zip(*(moments(m, v, *args, **kwargs) for m, v in pieces))
        return Moments(torch.cat(means).reshape(mean.shape), torch.cat(variances).reshape(mean.shape))

    return blocked
