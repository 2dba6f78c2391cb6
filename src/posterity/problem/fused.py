"""torch's fused transformer kernels, off while a network is called.

In evaluation mode without gradients `nn.TransformerEncoder` turns padded batches into nested tensors: padded tokens are 0
after it, where training, gradients and propagation give them values, and only where the padding of all rows of the batch
stands at their end. A network that reads padded tokens (an average over all of them) would then say something else than it
was trained to, of the same row in another batch too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from torch.backends import mha

__all__ = ["unfused"]


class _Held:
    """How many hold the setting, and what it was before the first: sessions of several threads end in any order."""

    def __init__(self) -> None:
        self.lock, self.count, self.before = Lock(), 0, True


_HELD = _Held()


@contextmanager
def unfused() -> Iterator[None]:
    """Without the kernels; the setting, which is the process's, is put back when the last one leaves."""
    with _HELD.lock:
        if _HELD.count == 0:
            _HELD.before = mha.get_fastpath_enabled()
            mha.set_fastpath_enabled(False)
        _HELD.count += 1
    try:
        yield
    finally:
        with _HELD.lock:
            _HELD.count -= 1
            if _HELD.count == 0:
                mha.set_fastpath_enabled(_HELD.before)
