"""What every step promises: it is a function of its arguments, also where it works in place; members are independent; a
step that is not finite is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posterity.errors import DataError, NonFiniteError
from posterity.inference.algorithm import Algorithm
from posterity.problem.batches import Batch
from posterity.testing.case import Case
from posterity.testing.expect import expect, near, same
from posterity.testing.resume import all_draws
from posterity.testing.runs import cloned, network_problem, rows_for, walk
from posterity.testing.worlds import CLASSES, FAR, Overflowing, batch_norm_network, inputs, labels, plain_network
from posterity.training.checkpoint import flatten
from posterity.training.fit import fit
from posterity.tree import Tree, clone

__all__ = [
    "members_are_independent",
    "non_finite_runs_stop",
    "non_finite_steps_are_skipped",
    "pure_is_in_place",
]

STEPS = 20
ROUNDING = 1e-5  # of a few steps in float32, where weights of about 1 move by some 1e-2 a step


def pure_is_in_place(case: Case) -> None:
    """20 steps of each stage that pass their states on equal, bit for bit, 20 steps from a copy of each state; and
    neither start, batch nor a posterior taken on the way is written to.
    """
    x = inputs()
    batch = rows_for(x, labels(x))
    problem, other = (network_problem(batch_norm_network(), x, labels(x), "categorical") for _ in range(2))
    kept: dict[tuple[int, int], Batch] = {}

    def remembered(step: int, k: int) -> Batch:
        made = batch(step, k)
        return kept.setdefault((step, k), made)

    in_place = walk(case.algorithm, problem, remembered, STEPS, validate_every=7)
    pure = walk(case.algorithm, other, batch, STEPS, validate_every=7, before=cloned)
    taken: tuple[Tree, Tree] | None = None
    for t, (one, two) in enumerate(zip(in_place, pure, strict=True)):
        where = f"after step {t} of {one.stage.name}"
        same(flatten(one.state), flatten(two.state), f"state {where}, in place and pure,")
        same(one.info, two.info, f"info {where}, in place and pure,")
        same(one.stage.emit(one.state), two.stage.emit(two.state), f"emitted {where}, in place and pure,")
        if taken is not None:
            same(taken[0], taken[1], f"a posterior taken before, {where}")
        if taken is None and t == STEPS // 2 and not case.emits and _is_last(case, one.stage):
            tensors = one.stage.posterior(one.state).tensors()
            taken = tensors, clone(tensors)
    for (step, k), made in kept.items():
        again = batch(step, k)
        same((made.inputs, made.targets), (again.inputs, again.targets), f"batch {step} of member {k}")


def _is_last(case: Case, stage: Algorithm) -> bool:
    return type(stage) is type(case.algorithm)


def members_are_independent(case: Case) -> None:
    """Member 0 of an ensemble is the single run. The others start elsewhere and end elsewhere, each with running statistics
    of its own. Another batch for one member changes that member and no other. Where all start at the same weights and see
    the same batches, what is random about a step (a draw, a dropped unit) is another one for each.
    """
    x = inputs()
    batch = rows_for(x, labels(x))

    def end(
        algorithm: Algorithm, batch: Callable[[int, int], Batch], seed: int = 0, network: Any = batch_norm_network
    ) -> Tree:
        problem = network_problem(network(), x, labels(x), "categorical")
        *_, last = walk(algorithm, problem, batch, 7, seed=seed)
        return last.stage.point(last.state)

    ensemble = case.of(3)
    points = end(ensemble, batch)
    for name, leaf in end(case.of(1), batch).items():
        # a few steps of rounding, as an element may stand in a vector register here and not there
        near(points[name][0], leaf[0], ROUNDING, f"{name} of member 0 of an ensemble")
    for name, leaf in points.items():
        expect(_distinct(leaf) == 3 or "num_batches" in name, f"{name} is the same in members of an ensemble")
    statistics = [name for name in points if name.endswith("running_mean")]
    expect(bool(statistics), "the running statistics are not part of the state: they belong to their member")

    for name, leaf in end(ensemble, lambda t, k: batch(t + 100 * (k == 1), k)).items():
        for k in (0, 2):
            near(leaf[k], points[name][k], ROUNDING, f"{name} of member {k}, where another one's batches changed,")
        fresh = not torch.equal(leaf[1], points[name][1])
        expect(fresh or "num_batches" in name, f"{name} of member 1 does not depend on its own batches")

    alike = replace(ensemble, member_init="same")
    for network in (batch_norm_network, plain_network):  # with dropout, and with the algorithm's own noise alone
        together, other_seed = (end(alike, lambda t, k: batch(t, 0), seed, network) for seed in (0, 1))
        for name, leaf in together.items():
            random = not torch.equal(leaf[0], other_seed[name][0])
            expect(_distinct(leaf) == 3 or not random, f"members share the random numbers that move {name}")


def _distinct(members: Tensor) -> int:
    return len({tuple(one.flatten().tolist()) for one in members})


def non_finite_steps_are_skipped(case: Case) -> None:
    """A member whose loss is infinite or NaN is left as it was and said in `info.finite`; the others go on as if nothing
    had been; nothing that is not finite gets into the state or the posterior.
    """
    x = inputs()
    for likelihood, y in {"gaussian": x[:, 0], "categorical": labels(x)}.items():  # an infinite loss, and NaN
        fine = rows_for(x, y)

        def poisoned(step: int, k: int, fine: Callable[[int, int], Batch] = fine) -> Batch:
            batch = fine(step, k)
            return batch._replace(inputs=batch.inputs + FAR) if (step, k) == (3, 1) else batch

        outputs = CLASSES if likelihood == "categorical" else 1
        problems = [network_problem(Overflowing(outputs), x, y, likelihood) for _ in range(2)]
        walks = [walk(case.of(3), problem, batch, 5) for problem, batch in zip(problems, (poisoned, fine))]
        last: Tree = {}
        for one, clean in zip(*walks, strict=True):
            step, point = int(one.state.step) - 1, one.stage.point(one.state)
            where = f"{one.stage.name}, {likelihood}, step {step}"
            wanted = [True, step != 3, True]
            expect(one.info.finite.tolist() == wanted, f"{where}: info.finite is {one.info.finite.tolist()}")
            for name, leaf in clean.stage.point(clean.state).items():
                for k in (0, 2):
                    near(point[name][k], leaf[k], ROUNDING, f"{where}: {name} of member {k}, beside one not finite,")
                if step == 3:
                    same(point[name][1], last[name][1], f"{where}: {name} of the member that was not finite")
            for path, leaf in flatten(one.state).items():
                if leaf.is_floating_point() and not path.endswith("best_nll"):
                    expect(bool(torch.isfinite(leaf).all()), f"{where}: {path} is not finite")
            last = clone(point)


def non_finite_runs_stop(case: Case) -> None:
    """`fit` counts what it skipped in the history, keeps the posterior finite, and after 10 such steps in a row raises a
    NonFiniteError that names the member, the epoch and the batch; NaN in the inputs is a DataError before any step.
    """
    x = inputs()
    y = labels(x)
    one_bad, all_bad, missing = x.clone(), x + FAR, x.clone()
    one_bad[0], missing[9, 1] = FAR, torch.nan
    options: dict[str, Any] = {"method": case.algorithm, "batch_size": 2}

    try:
        model = fit(case.network(Overflowing(CLASSES)), (one_bad, y), epochs=2, **options)
    except NonFiniteError as error:
        raise AssertionError(f"one row that overflows spoils all later steps: {error}") from error
    skipped = [row["skipped"] for row in model.history]
    most = case.algorithm.members
    expect(all(1 <= count <= most for count in skipped), f"the history counts {skipped} skipped steps in its epochs")
    for path, leaf in model.posterior.tensors().items():
        expect(bool(torch.isfinite(leaf).all()), f"{path} of the posterior is not finite after a skipped step")
    for draw in all_draws(model.posterior):
        for name, leaf in draw.items():
            expect(bool(torch.isfinite(leaf).all()), f"a draw of {name} is not finite after a skipped step")

    try:
        fit(case.network(Overflowing(CLASSES)), (all_bad, y), epochs=2, **options)
    except NonFiniteError as error:
        named = all(word in str(error) for word in ("member 0", "epoch 0", "batch 9"))
        expect(named, f"a NonFiniteError names the member, epoch and batch; it says: {error}")
    else:
        expect(False, "10 steps in a row without a finite loss did not stop the fit")
    try:
        fit(case.network(Overflowing(CLASSES)), (missing, y), epochs=1, **options)
    except DataError as error:
        expect("NaN" in str(error), f"a DataError names NaN; it says: {error}")
    else:
        expect(False, "NaN in the inputs was not refused")
