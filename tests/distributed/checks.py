"""How a rank runs the checks that it is asked for: `torchrun ... FILE WORK OUT [CHECK ...]`."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from posterity.group import Group, torchrun
from posterity.testing.worlds import Fuse

__all__ = ["Check", "Failing", "run"]

Check = Callable[[Group, Path], Any]


class Failing(TensorDataset):
    """Fails when so many rows were read; None: never."""

    def __init__(self, most: int | None, *tensors: Tensor) -> None:
        super().__init__(*tensors)
        self.fuse = Fuse(most)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        self.fuse.burn()
        return super().__getitem__(index)


def run(checks: Mapping[str, Check], of_warnings: str) -> None:
    """Each check in a folder of its own below WORK; rank 0 writes what they found to OUT, by name, as JSON."""
    torch.set_num_threads(1)
    warnings.simplefilter(of_warnings)  # type: ignore[arg-type]
    work, out, chosen = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or list(checks)
    with torchrun(timedelta(minutes=3)) as group:
        found = {name: checks[name](group, work / name) for name in chosen}
        if group.rank == 0:
            out.write_text(json.dumps(found))
        group.wait()
        sys.stderr.flush()
        os._exit(0)  # threads that torch leaves behind FSDP2 now and then abort an interpreter's end
