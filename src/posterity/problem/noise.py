"""The global generators that a forward moves, put on an addressed stream and put back.

torch's generator always. Python's and numpy's (layer drop, say) cost thirty times as much to save, so they are looked
after from a mode's first forward on, and left alone once that was seen not to move them.
"""

from __future__ import annotations

import random as python_random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from posterity.random import Random

__all__ = ["ForwardNoise"]


class ForwardNoise:
    """What is known of one network's forwards, by mode."""

    def __init__(self) -> None:
        self._moves_others: dict[bool, bool] = {}

    @contextmanager
    def on(self, random: Random, train: bool) -> Iterator[None]:
        """Run a forward of this mode on `random`."""
        if self._moves_others.get(train) is False:
            with random.forked():
                yield
            return
        with random.forked(data=True):
            before = _others()
            yield
            self._moves_others[train] = self._moves_others.get(train, False) or _others() != before


def _others() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    state = None if numpy is None else numpy.random.get_state()
    return python_random.getstate(), state and (state[1].tobytes(), *state[2:])
