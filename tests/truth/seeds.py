"""The streams of the statistical tests: fixed, unless POSTERITY_TEST_SEED rotates them (`make test-nightly`).

A failure under another seed than 0 is one in as many runs as the test says of its false alarms; run it again before a hunt.
"""

import os

import posterity as po

__all__ = ["ROTATION", "stream"]

ROTATION = 1000 * int(os.environ.get("POSTERITY_TEST_SEED", "0"))


def stream(number: int) -> po.Random:
    return po.Random(number + ROTATION)
