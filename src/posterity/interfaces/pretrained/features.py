"""What a backbone makes of rows, computed once and chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posterity.interfaces.pretrained.backbones import Reader
from posterity.training.progress import watching

__all__ = ["states_of"]

CHUNK = 32  # rows at once


def states_of(
    body: nn.Module, reader: Reader, rows: Sequence[str], what: str, progress: bool | None = None
) -> tuple[Tensor, ...]:
    """What a part of a backbone says of rows, [rows, ...] each, float32.

    Args:
        body: inputs to a tuple of states.
        reader: files or texts to inputs.
        what: the title of the progress line, which a terminal shows.

    Raises DataError: a row that cannot be read.
    """
    parts: list[tuple[Tensor, ...]] = []
    with watching(progress) as watch, torch.inference_mode():
        watch.stage(what, len(rows), 0)
        for start in range(0, len(rows), CHUNK):
            parts.append(body(*reader(list(rows[start : start + CHUNK]))))
            watch.step(min(start + CHUNK, len(rows)))
    return tuple(torch.cat(part).clone() for part in zip(*parts, strict=True))
