"""Have chains settled, and what is a draw worth: split R-hat and the effective sample size.

    W = mean of the variances within the pieces,  B/n = variance of their means,  n draws in a piece
    R-hat = sqrt( ((n - 1)/n W + B/n) / W )
    ESS = n / tau,  tau = -1 + 2 sum_k Gamma_k,  Gamma_k = rho_{2k} + rho_{2k+1}

Gelman and Rubin (1992); Gelman et al. (2013), section 11.4; Geyer (1992), section 3.3, for where the sum ends. Not
rank-normalised. All in float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posterity.errors import ShapeError

__all__ = ["MIN_DRAWS", "between_rhat", "ess", "split_rhat"]

MIN_DRAWS = 8  # of a chain: below it a piece of a quarter has one draw, and no variance


def split_rhat(x: Tensor, splits: int = 4) -> Tensor:
    """[...] R-hat within each chain, cut into `splits` pieces: has this chain settled?

    1 is settled, 1.1 the usual limit. Draws that do not fill the pieces are left out, the oldest first.

    Args:
        x: [..., draw], e.g. [chain, draw].
        splits: pieces of a chain, at least 2.

    NaN for fewer than max(8, 2 splits) draws and for a constant series; infinite where the pieces are constant and differ.
    Raises ShapeError without an axis of draws or with splits < 2.
    """
    if splits < 2:
        raise ShapeError(f"a chain is cut into at least 2 pieces, got splits={splits}")
    values = _series(x)
    if values.shape[-1] < max(MIN_DRAWS, 2 * splits):
        return torch.full(values.shape[:-1], math.nan, dtype=torch.float64)
    return _rhat(_pieces(values, splits), values)


def between_rhat(x: Tensor) -> Tensor:
    """[...] the ordinary R-hat over all chains, each cut in half: do they see one distribution?

    Chains from the members of a deep ensemble stay in different modes by design: 2 to 3 is usual, a value to know and
    never one to reject by. `split_rhat` is the one that says whether they settled.

    Args:
        x: [..., chain, draw].

    NaN for one chain, fewer than 8 draws, or a constant. Raises ShapeError without axes of chains and draws.
    """
    values = _series(x)
    if values.ndim < 2:
        raise ShapeError(f"R-hat between chains needs [..., chain, draw], got {list(values.shape)}")
    if values.shape[-2] < 2 or values.shape[-1] < MIN_DRAWS:
        return torch.full(values.shape[:-2], math.nan, dtype=torch.float64)
    return _rhat(_pieces(values, 2).flatten(-3, -2), values.flatten(-2))


def ess(x: Tensor) -> Tensor:
    """[...] the number of independent draws that know the mean of a series as well as it does.

    The autocorrelations are summed in pairs while these are positive (Geyer's initial positive sequence), each no larger
    than the one before (his monotone one); tau is at least 1 / log10(n), so that ESS stays below n log10(n).
    It says how fast a chain moves, not whether it is right: a chain that runs hot has many effective draws.

    Args:
        x: [..., draw].

    NaN for fewer than 8 draws and for a constant series. Raises ShapeError without an axis of draws.
    """
    values = _series(x)
    n = values.shape[-1]
    if n < MIN_DRAWS:
        return torch.full(values.shape[:-1], math.nan, dtype=torch.float64)
    centred = values - values.mean(-1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * n)  # padded: the covariances do not wrap around
    covariance = torch.fft.irfft(spectrum.abs().square(), n=2 * n)[..., :n]
    rho = covariance / covariance[..., :1]
    pairs = rho[..., : n // 2 * 2].unflatten(-1, (-1, 2)).sum(-1)
    positive = (pairs > 0).double().cumprod(-1)
    tau = -1 + 2 * (pairs.cummin(-1).values * positive).sum(-1)
    found = n / tau.clamp_min(1 / math.log10(n))
    return torch.where(_constant(values) | ~values.isfinite().all(-1), math.nan, found)


def _series(x: Tensor) -> Tensor:
    values = torch.as_tensor(x).detach().cpu().double()
    if values.ndim == 0:
        raise ShapeError("a single number has no axis of draws")
    return values


def _pieces(values: Tensor, splits: int) -> Tensor:
    """[..., splits, n] the newest n splits draws."""
    n = values.shape[-1] // splits
    return values[..., values.shape[-1] - n * splits :].unflatten(-1, (splits, n))


def _rhat(pieces: Tensor, values: Tensor) -> Tensor:
    """R-hat over [..., piece, draw]; NaN where the whole series is constant."""
    n = pieces.shape[-1]
    within = pieces.var(-1).mean(-1)
    total = (n - 1) / n * within + pieces.mean(-1).var(-1)
    return torch.where(_constant(values), math.nan, (total / within).sqrt())


def _constant(values: Tensor) -> Tensor:
    return values.amax(-1) == values.amin(-1)
