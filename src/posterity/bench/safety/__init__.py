"""What happens to runs on a disk: kills, full disks, damaged files, folders made to do harm. All counted, most must be 0.

kills     SIGKILL at random moments of fits and saves (`kills.py`)
disk      a disk that is full (`disk.py`)
damage    files that were cut, flipped, replaced (`damage.py`): by accident, so hashes are wrong
hostile   folders whose hashes are right (`hostile.py`)

`lost` is a run or a checkpoint that was there before and is not, or cannot be read; `different` and `wrong` a result that
is not equal to the bit to that of a run to which nothing happened.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import partial

from posterity.bench.bench import Cell, Limit, Row
from posterity.bench.safety.cases import GROUPS
from posterity.bench.safety.child import in_child
from posterity.bench.safety.damage import INTERRUPTED, damaged
from posterity.bench.safety.disk import WORK, full_disks
from posterity.bench.safety.hostile import RUNS, hostile_folders
from posterity.bench.safety.kills import FITS, killed_fits, killed_saves
from posterity.bench.safety.runs import KINDS
from posterity.errors import DataError

__all__ = ["LIMITS", "cells", "claims"]

KILLS, LEVELS, CUTS, FLIPS = 50, 20, 8, 16
DAMAGES = ("cut", "flipped", "gone", "foreign")
# of each part: what is tried in it, and what is counted
PARTS: dict[str, tuple[Collection[str], str]] = {
    "killed": ((*FITS, "saves"), "tries before writing between after runs lost different"),
    "full": (WORK, "tries refused fitted_in unclear lost different temporaries left_over"),
    "damaged": (DAMAGES, "tries refused named harmless wrong failed"),
    "hostile": (GROUPS, "tries refused loaded failed escaped ran hung"),
}

LIMITS = {
    **{f"killed_{what}_tries": Limit(low=KILLS) for what in PARTS["killed"][0]},
    "killed_writing": Limit(low=1),
    "full_refused": Limit(low=1),
    "damaged_tries": Limit(low=2500),
    "hostile_tries": Limit(low=2000),
    **{f"killed_{count}": Limit(high=0) for count in ("lost", "different")},
    **{f"full_{count}": Limit(high=0) for count in ("unclear", "lost", "different", "temporaries", "left_over")},
    **{f"damaged_{count}": Limit(high=0) for count in ("wrong", "failed")},
    **{f"hostile_{count}": Limit(high=0) for count in ("failed", "escaped", "ran", "hung")},
    "hostile_most_mebibytes": Limit(high=64),
}


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """A cell per work that is killed, one of the full disk, one per kind of run.

    Raises:
        DataError: not on Linux, where processes are forked, disks mounted and memory is measured.
    """
    if not os.path.exists("/proc/self/clear_refs"):
        raise DataError("the safety bench forks, kills and measures processes as Linux does: run it there")
    kills = 2 if quick else KILLS
    found: dict[str, Cell] = {f"kill {name}": partial(in_child, killed_fits, name, kills) for name in FITS}
    found["kill saves"] = partial(in_child, killed_saves, kills)
    found["full disk"] = partial(full_disks, 3 if quick else LEVELS)
    cuts, flips = (2, 2) if quick else (CUTS, FLIPS)
    kinds = [*INTERRUPTED, "score-vi-flow"] if quick else KINDS
    found |= {f"damage {kind}": partial(damaged, kind, False, cuts, flips) for kind in kinds}
    found |= {f"damage {kind}, interrupted": partial(damaged, kind, True, cuts, flips) for kind in INTERRUPTED}
    for kind, every in RUNS.items():
        found[f"hostile {kind}"] = partial(in_child, hostile_folders, kind, 40 * every if quick else every)
    return found


def claims(rows: list[Row]) -> dict[str, float]:
    """Sums of the counts of each part, then by what was tried; the slowest and the largest hostile case."""
    sums: dict[str, float] = {}
    parts: dict[str, float] = {}
    for part, (values, counts) in PARTS.items():
        own = [row for row in rows if row["what"] in values]
        for count in counts.split():
            sums[f"{part}_{count}"] = sum(row[count] for row in own)
            parts |= {
                f"{part}_{value}_{count}": sum(row[count] for row in own if row["what"] == value) for value in values
            }
    for extreme in ("slowest_seconds", "most_mebibytes"):
        sums[f"hostile_{extreme}"] = max(row[extreme] for row in rows if extreme in row)
    return sums | parts
