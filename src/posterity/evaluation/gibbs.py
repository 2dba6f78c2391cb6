"""The Gibbs error: how often the top class is wrong when each row is judged by one draw of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, DataError
from posterity.evaluation.metric import name_rows
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch, tensors_in
from posterity.problem.likelihoods import ClassLikelihood
from posterity.problem.problem import NetworkProblem
from posterity.random import Random

__all__ = ["gibbs_errors"]

_HELD = 256 * 2**20  # bytes of inputs; the draws are made again for every such block


def gibbs_errors(
    problem: NetworkProblem, posterior: Posterior, batches: Iterable[Batch], draws: int, random: Random
) -> tuple[Tensor, Tensor]:
    """How many rows each draw gets wrong, in one pass over the rows a draw: memory grows with neither.

    Args:
        problem: its likelihood is a `ClassLikelihood`.
        batches: with targets.
        draws: n; random: the address of the draws.

    Returns:
        [draws] int64 wrong top classes, [classes] int64 rows of each class.

    Raises:
        CompatibilityError: several labels per row, or soft ones.
        DataError: a row without a label, or one that is unknown.
    """
    likelihood = problem.likelihood
    assert isinstance(likelihood, ClassLikelihood)
    wrong = torch.zeros(draws, dtype=torch.int64)
    classes = torch.zeros(0, dtype=torch.int64)
    seen = 0
    for block in _blocks(batches):
        targets: list[Tensor] = []
        with torch.inference_mode(), problem.network.session(train=False):
            for i, theta in enumerate(posterior.draws(draws, random.fold("draw"))):
                for k, batch in enumerate(block):
                    outputs = problem.outputs(theta, batch, random.fold("forward").fold(i))
                    if i == 0:
                        likelihood.check(outputs)
                    log_probs = likelihood.log_probs(outputs)
                    if i == 0:
                        targets.append(_labels(likelihood, batch.targets, log_probs, seen))
                        seen += len(log_probs)
                        here = torch.bincount(targets[k].cpu(), minlength=log_probs.shape[-1])
                        classes = here if not len(classes) else classes + here
                    wrong[i] += int((log_probs.argmax(-1) != targets[k]).sum())
    return wrong, classes


def _labels(likelihood: ClassLikelihood, targets: Any, log_probs: Tensor, first: int) -> Tensor:
    """[rows] int64 classes."""
    if log_probs.ndim != 2:
        raise CompatibilityError(
            f"the Gibbs error counts wrong rows, one label each; {likelihood.name} outputs here have several per row"
        )
    found = likelihood.aligned(targets, log_probs)
    if found.is_floating_point():
        raise CompatibilityError("the Gibbs error counts wrong rows, and soft labels are neither right nor wrong")
    if bool((ignored := found < 0).any()):
        named = name_rows(torch.cat([ignored.new_zeros(first), ignored]))
        raise DataError(f"every row needs a label; {named} of the data so far have none that counts")
    return found


def _blocks(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Batches whose inputs fit in memory together."""
    block: list[Batch] = []
    held = 0
    for batch in batches:
        block.append(batch)
        held += sum(tensor.nbytes for _, tensor in tensors_in(batch.inputs))
        if held > _HELD:
            yield block
            block, held = [], 0
    if block:
        yield block
