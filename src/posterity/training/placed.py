"""Which placement `fit(distribute=)` asks for."""

from __future__ import annotations

import os

from posterity.errors import CompatibilityError
from posterity.group import Group
from posterity.inference.algorithm import Algorithm
from posterity.training.by_members import ByMembers
from posterity.training.by_shards import ByShards
from posterity.training.placement import HERE, Placement

__all__ = ["DISTRIBUTE", "placed"]

DISTRIBUTE = ("rows", "draws", "members", "shards")
CHECK = "POSTERITY_CHECK_RANKS"  # steps between two comparisons of the ranks' states; a debugging aid


def placed(distribute: str | None, method: Algorithm) -> Placement:
    """The placement by a word.

    Raises:
        CompatibilityError: another word; no ranks; fewer members than ranks; draws of a method that has none to share;
            shards of a method that mixes weights, or of several members.
    """
    if distribute is None:
        return HERE
    if distribute not in DISTRIBUTE:
        raise CompatibilityError(f"distribute must be one of {', '.join(DISTRIBUTE)} or None, got {distribute!r}")
    group = Group.current()
    if distribute == "members":
        _check_members(method, group)
        return ByMembers(group)
    if distribute == "shards":
        _check_shards(method)
        return ByShards(group)
    if distribute == "draws" and not method.own_draws:
        raise CompatibilityError(
            f"distribute='draws' is for variational methods, whose steps draw weights, and {method.title} is none: use "
            "distribute='rows'"
        )
    return Placement(group, own_draws=distribute == "draws", check_every=int(os.environ.get(CHECK, "0")))


def _check_members(method: Algorithm, group: Group) -> None:
    if method.members < group.size:
        raise CompatibilityError(
            f"distribute='members' over {group.size} ranks needs as many members, and {method.title} has {method.members}: "
            "use distribute='rows'"
        )


def _check_shards(method: Algorithm) -> None:
    if method.members > 1:
        raise CompatibilityError(
            f"distribute='shards' has one member, and {method.title} has {method.members}: fit them one after the other, or "
            "use distribute='members'"
        )
    if not method.elementwise:
        raise CompatibilityError(
            "distribute='shards' is for methods that treat every weight apart (MAP, MeanFieldVI, IVON, and ScoreVI and ADVI "
            f"over independent normals), and this {method.title} does not: use distribute='rows'"
        )
