"""Numbers in words."""

from __future__ import annotations

__all__ = ["readable_bytes"]


def readable_bytes(size: float) -> str:
    """A number of bytes in the unit that suits it.

    >>> readable_bytes(0), readable_bytes(3_500_000), readable_bytes(7.3e9)
    ('0 B', '3 MiB', '6.8 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
