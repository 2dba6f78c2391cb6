"""From means and variances of the outputs to a prediction: fixed low-discrepancy points stand for draws.

    f_s = m + sqrt(v) z_s,  z_s = Phi^-1(u_s),  u_s a scrambled Sobol sequence; mean 0 and variance 1 in each output

The same points for all rows: deterministic, differentiable, exportable as a constant, and seven times closer to the truth
than as many random draws (10 classes, std 1: total variation 0.006). Outputs count as
independent, unless their covariance is known: then f_s = m + L z_s, with L L^T the covariance. `Rules.head` takes a closed
form of the mean probabilities instead (`closed.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from posterity.errors import CompatibilityError
from posterity.prediction.closed import Closed, NormalLogits
from posterity.prediction.propagation.joint import Joint, root
from posterity.prediction.propagation.value import MeanVar, split
from posterity.problem.likelihoods import Categorical
from posterity.problem.likelihoods.base import Likelihood
from posterity.random import Random

__all__ = ["POINTS", "axis_of", "check_head", "normal_points", "outputs_at_points", "said_by"]

POINTS = 64


@lru_cache(maxsize=16)
def normal_points(points: int, outputs: int) -> Tensor:
    """[points, outputs] float64, of mean 0 and variance 1 in every output; one point is the mean."""
    if points == 1:
        return torch.zeros(1, outputs, dtype=torch.float64)
    if outputs <= SobolEngine.MAXDIM:
        u = SobolEngine(outputs, scramble=True, seed=5).draw(points, dtype=torch.float64)
        z = torch.special.ndtri(u.clamp(1e-6, 1 - 1e-6))
    else:  # of more outputs the sequence does not exist
        z = Random(0).fold("points").normal((points, outputs)).double()
    z = z - z.mean(0)
    return z / z.square().mean(0).sqrt()


def check_head(likelihood: Likelihood, head: Literal["points"] | Closed) -> None:
    """Refuse a head that a likelihood cannot have.

    Raises:
        CompatibilityError: a closed form of anything but the probabilities of a softmax.
    """
    if head != "points" and not isinstance(likelihood, Categorical):
        raise CompatibilityError(
            f"Rules(head={head!r}) gives the probabilities of a softmax (categorical), not what {likelihood.name} wants: "
            'predict with Rules(head="points")'
        )


def said_by(
    output: Any, likelihood: Likelihood, points: int = POINTS, head: Literal["points"] | Closed = "points"
) -> Iterator[Any]:
    """What a reducer takes of an output: one after the other what stands for its draws, or its moments for a closed head.

    Raises:
        CompatibilityError: as `check_head`.
    """
    check_head(likelihood, head)
    at = partial(outputs_at_points, output, likelihood, points)
    if head == "points" or not isinstance(output, MeanVar | Joint):
        return at()
    if isinstance(output, MeanVar):
        return iter([NormalLogits(output.mean, output.var, None, head, at)])
    (mean,) = output.parts
    classes = mean.shape[1]
    blocks = output.cov.reshape(len(mean), classes, -1, classes, output.cov.shape[-1] // classes)
    return iter([NormalLogits(mean, output.var.reshape(mean.shape), blocks.diagonal(dim1=2, dim2=4), head, at)])


def axis_of(likelihood: Likelihood) -> int:
    """Of outputs [rows, ...], that along which the coordinates of a point are laid."""
    return 1 if isinstance(likelihood, Categorical) else -1


def outputs_at_points(output: Any, likelihood: Likelihood, points: int = POINTS) -> Iterator[Any]:
    """What stands for the draws of an output; only itself where it has no variance.

    Args:
        output: a value, or the tuple of them that the likelihood reads, or a `Joint`.
    """
    if isinstance(output, Joint):
        factor = root(output.cov)
        yield from (output.at(factor, z) for z in normal_points(points, factor.shape[-1]))
        return
    parts = output if isinstance(output, tuple) else (output,)
    if not any(isinstance(part, MeanVar) for part in parts):
        yield output
        return
    axis = axis_of(likelihood)
    ends = [0]
    shifts = []
    for part in parts:
        mean, var = split(part)
        size = mean.shape[axis] if mean.ndim > 1 else 1
        ends.append(ends[-1] + size)
        shifts.append((mean, None if var is None else var.sqrt(), axis if mean.ndim > 1 else None))
    z = normal_points(points, ends[-1])
    for row in z:
        found = []
        for (mean, std, dim), start, end in zip(shifts, ends, ends[1:]):
            if std is None:
                found.append(mean)
                continue
            own = row[start:end].to(std)
            if dim is not None:
                own = own.reshape([-1 if d == dim % mean.ndim else 1 for d in range(mean.ndim)])
            found.append(mean + std * own)
        yield tuple(found) if isinstance(output, tuple) else found[0]
