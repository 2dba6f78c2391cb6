"""Prediction by draws of the weights, by their mean, or by propagating means and variances.

    p(y | x) = 1/S sum over s of p(y | x, theta_s)

The S draws are shared by all rows. Rows are taken in blocks whose inputs, and what is kept of their outputs, fit
`max_memory`; within a block every draw is made once, passed over the block's batches, and reduced at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from posterity.errors import CompatibilityError, DataError, PosterityWarning
from posterity.posterior.posterior import DRAWS, Posterior
from posterity.prediction.noisy import Noisy, drawn, rounds
from posterity.prediction.predictive import Predictive, Reducer, reducer
from posterity.prediction.propagation.settings import Propagation
from posterity.problem.batches import Batch, Reader, check_finite, rows_of, tensors_in
from posterity.problem.data import Source, as_inputs, pick_rows, source, take
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.tree import LIKELIHOOD, Tree, pick

__all__ = ["batches_of", "default_via", "predict_blocks", "recorded_outputs"]

BATCH_SIZE = 1024


def batches_of(x: Any, reader: Reader, batch_size: int | None, targets: bool = False) -> Iterator[Batch]:
    """Inputs (with `targets`, labelled data) as batches, in order; checked for NaN and infinity.

    Raises:
        DataError: no rows; NaN or infinity; no targets where they are needed.
    """
    if targets and not isinstance(x, DataLoader | Dataset) and isinstance(x, tuple | list) and len(x) == 2:
        yield from source(tuple(x), reader, "evaluation", batch_size=batch_size or BATCH_SIZE).epoch(Random(0))
        return
    if _whole(x):
        # A mapping may hold its target, as the batches of the fit did.
        whole = reader(x, targets) if isinstance(x, Mapping) else Batch(x)
        if targets and whole.targets is None:
            raise DataError("there are no targets: give (inputs, targets), a data set or a loader with both")
        inputs = as_inputs(whole.inputs)
        counts = {rows_of(tensor) for _, tensor in tensors_in(inputs)}
        if len(counts) != 1:
            raise DataError(f"the parts of the inputs have different lengths: {sorted(counts)}")
        rows = counts.pop()
        if rows == 0:
            raise DataError("there are no rows to predict")
        step = batch_size or BATCH_SIZE
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            given = None if whole.targets is None else pick_rows(whole.targets, torch.arange(start, stop))
            yield _checked(Batch(take(inputs, slice(start, stop)), given, rows=stop - start), start // step)
        return
    loader = DataLoader(x, batch_size=batch_size or BATCH_SIZE) if isinstance(x, Dataset) else x
    if not targets and isinstance(getattr(loader, "sampler", None), RandomSampler):
        warnings.warn(
            "the loader shuffles: the predictions come in its order, not in that of its data set",
            PosterityWarning,
            stacklevel=4,
        )
    if not isinstance(loader, Iterable):
        raise DataError(f"inputs must be a tensor, array, frame, dict, data set or loader; got {type(x).__name__}")
    for i, raw in enumerate(Source(loader, reader, "prediction").raw(Random(0).fold("prediction"))):
        yield _checked(reader(raw, targets=targets), i)


def _whole(x: Any) -> bool:
    if isinstance(x, torch.Tensor | Mapping | tuple) or hasattr(x, "to_numpy") or hasattr(x, "__array__"):
        return True
    return isinstance(x, list) and len(x) > 0 and _plain(x[0])  # other lists hold batches


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str) or (isinstance(value, list) and len(value) > 0 and _plain(value[0]))


def _checked(batch: Batch, index: int) -> Batch:
    check_finite(batch, f"batch {index}")
    return batch


def predict_blocks(
    problem: NetworkProblem,
    posterior: Posterior,
    batches: Iterable[Batch],
    *,
    via: str | None = None,
    draws: int | None = None,
    random: Random,
    temperature: float = 1.0,
    max_memory: int = 256 * 2**20,
    keep: str | None = None,
    settings: Propagation | None = None,
    noisy: bool = False,
) -> Iterator[tuple[Predictive, Any]]:
    """(Predictive, raw targets) for batch after batch, every draw made once per block of them.

    Args:
        settings: of propagation.
        noisy: whether the batches' inputs are `Noisy`.

    Raises:
        CompatibilityError: an unknown `via` or `keep`; the mean of an ensemble, or of noisy inputs; an operation that cannot
            be propagated.
    """
    if keep not in (None, "draws"):
        raise CompatibilityError(f"keep must be 'draws' or nothing, got {keep!r}")
    via, ways = _ways(problem, posterior, via, draws, random, settings, noisy)
    made = partial(reducer, problem.likelihood, temperature, keep_draws=keep == "draws")
    count = 1 if via == "mean" else draws or posterior.finite or DRAWS
    for block in _blocks(batches, max_memory):
        while block:
            with torch.inference_mode(), problem.network.session(train=False):
                reducers = _reduced(block, ways(), made, random.fold("forward"), count, max_memory)
            while reducers:
                yield reducers.pop(0).result(via=via), block.pop(0).targets


def _reduced(
    block: list[Batch], ways: Iterable[Way], made: Callable[[], Reducer], random: Random, count: int, max_memory: int
) -> list[Reducer]:
    """All draws of the block's first batches: of one, and of as many as `max_memory` holds after `count` draws."""
    reducers: list[Reducer] = []
    held = 0
    for i, way in enumerate(ways):
        for j, batch in enumerate(block if i == 0 else block[: len(reducers)]):
            if i == 0:
                if reducers and held + reducers[-1].held(count) > max_memory:
                    break
                reducers.append(made())
            for outputs, parameters in way(batch, random.fold(i)):
                reducers[j].add(outputs, parameters)
            if i == 0:
                held += reducers[j].held(count)
    return reducers


def recorded_outputs(
    problem: NetworkProblem,
    posterior: Posterior,
    batches: Iterable[Batch],
    *,
    via: str | None = None,
    draws: int | None = None,
    random: Random,
    settings: Propagation | None = None,
) -> list[tuple[list[tuple[Any, Tree]], Any]]:
    """For each batch: the network's outputs under every draw with that draw's likelihood parameters, and raw targets.

    All of it is held: rows x draws x outputs. For fits on predictions, which read them many times.
    """
    _, ways = _ways(problem, posterior, via, draws, random, settings)
    held = list(batches)
    recorded: list[tuple[list[tuple[Any, Tree]], Any]] = [([], batch.targets) for batch in held]
    for way in ways():
        with torch.inference_mode(), problem.network.session(train=False):
            for batch, (outputs, _) in zip(held, recorded):
                outputs.extend(way(batch, None))
    return recorded


Way = Callable[[Batch, Random | None], Iterable[tuple[Any, Tree]]]  # outputs of a batch and the likelihood's parameters


def default_via(posterior: Posterior) -> str:
    """How a posterior predicts unless told: by draws, and a point by its mean."""
    return "mean" if posterior.finite == 1 else "draws"


def _ways(
    problem: NetworkProblem,
    posterior: Posterior,
    via: str | None,
    draws: int | None,
    random: Random,
    settings: Propagation | None,
    noisy: bool = False,
) -> tuple[str, Callable[[], Iterator[Way]]]:
    """The name of what was chosen, and a function that gives its ways to say something from the first on."""
    via = via or ("draws" if noisy else default_via(posterior))
    if via not in ("draws", "mean", "propagation"):
        raise CompatibilityError(f"via must be 'draws', 'mean' or 'propagation', got {via!r}")
    if draws is not None and draws < 1:
        raise CompatibilityError(f"draws must be at least 1, got {draws}")
    if via == "propagation":
        from posterity.prediction.propagation.propagate import ways

        found = ways(problem, posterior, draws, settings or Propagation())
        return via, lambda: iter(found)
    if via == "mean" and noisy:
        raise CompatibilityError(
            "one pass at the mean says nothing of noise in the inputs: give input_std with via='propagation' or via='draws'"
        )
    if via == "mean":
        mean = posterior.mean()
        return via, lambda: iter([partial(_said, problem, mean)])
    made = rounds if noisy else type(posterior).draws
    return via, lambda: (partial(_said, problem, theta) for theta in made(posterior, draws, random.fold("draw")))


def _said(problem: NetworkProblem, theta: Tree, batch: Batch, random: Random | None) -> list[tuple[Any, Tree]]:
    if isinstance(batch.inputs, Noisy):
        batch = batch._replace(inputs=drawn(batch.inputs, random or Random(0)))
    return [(problem.outputs(theta, batch, random), pick(theta, LIKELIHOOD))]


def _blocks(batches: Iterable[Batch], max_memory: int) -> Iterator[list[Batch]]:
    block: list[Batch] = []
    held = 0
    for batch in batches:
        size = sum(tensor.nbytes for _, tensor in tensors_in(batch.inputs))
        if block and held + size > max_memory:
            yield block
            block, held = [], 0
        block.append(batch)
        held += size
    if block:
        yield block
