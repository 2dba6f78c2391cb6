"""The promises that every algorithm keeps, as a table of checks: a new algorithm is one more `Case`, one call away.

    from posterity.testing import check_algorithm
    check_algorithm(Mine())

Each check is a function of a `Case` that raises AssertionError with what differs and where. The test suite of the library
runs the same table over its own algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from posterity.inference.algorithm import Algorithm
from posterity.testing.case import Case
from posterity.testing.gaussian import conjugate_regression, correlated_density
from posterity.testing.predictions import predictions_are_invariant, same_seed_twice, saved_and_loaded
from posterity.testing.resume import killed_and_resumed
from posterity.testing.scale import data_size_is_what_was_seen, same_rows_same_posterior
from posterity.testing.steps import (
    members_are_independent,
    non_finite_runs_stop,
    non_finite_steps_are_skipped,
    pure_is_in_place,
)
from posterity.testing.tensors import frozen_unused_tied, members_keep_their_statistics
from posterity.testing.untouched import untouched, untouched_after_faults

__all__ = ["CHECKS", "Check", "check_algorithm"]

Check = Callable[[Case], None]

CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        untouched,
        untouched_after_faults,
        pure_is_in_place,
        members_are_independent,
        members_keep_their_statistics,
        same_seed_twice,
        killed_and_resumed,
        saved_and_loaded,
        frozen_unused_tied,
        same_rows_same_posterior,
        data_size_is_what_was_seen,
        predictions_are_invariant,
        non_finite_steps_are_skipped,
        non_finite_runs_stop,
        correlated_density,
        conjugate_regression,
    )
}


def check_algorithm(
    algorithm: Algorithm,
    *,
    precise: Algorithm | None = None,
    steps: int = 2000,
    spread: str = "exact",
    tolerance: float = 0.1,
    skip: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Run every check of the contract on an algorithm; a minute or so.

    Args:
        algorithm: with the settings that most checks run, a few steps each.
        precise: the same method set for the two checks against a known normal, if those need other settings.
        steps: how many steps these two take.
        spread: what the family can say of a correlated normal: "exact", "diagonal" or "point", as in `Case`.
        tolerance: of these two, as in `Case`.
        skip: check -> why it cannot apply to this algorithm.

    Returns:
        Check -> "passed", or "skipped: " and the reason.

    Raises:
        AssertionError: a promise that is not kept; it begins with the name of the check.
        ValueError: an unknown check in `skip`, or one without a reason; an unknown spread.
    """
    skip = dict(skip or {})
    for name, reason in skip.items():
        if name not in CHECKS or not reason:
            raise ValueError(f"skip takes a reason for each check that cannot apply, of {list(CHECKS)}; got {name!r}")
    case = Case(algorithm, precise, steps, spread, tolerance, skip)
    report = {}
    for name, check in CHECKS.items():
        if name in skip:
            report[name] = f"skipped: {skip[name]}"
            continue
        try:
            check(case)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        report[name] = "passed"
    return report
