"""Runs of older formats, read as if this version had written them; the files stay as they are.

Raising `FORMAT_VERSION` takes one row here, from the last format to the new one, and new golden folders: the old ones
then load through the chain of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posterity.posterior.files import FORMAT_VERSION

__all__ = ["STEPS", "migrated"]

Manifest = dict[str, Any]

STEPS: dict[int, Callable[[Manifest], Manifest]] = {}  # of format n: its manifest as that of n + 1


def migrated(manifest: Manifest) -> Manifest:
    """A manifest of any known format as one of today's."""
    for version in range(manifest["format_version"], FORMAT_VERSION):
        manifest = {**STEPS[version](manifest), "format_version": version + 1}
    return manifest
