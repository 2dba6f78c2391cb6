"""Randomness as a value: every draw has an address, nothing reads or moves a global generator.

`Random(seed).fold("noise").fold(member).fold(step)` names a stream. Words are mixed into a 64-bit key; up to two
integers (a member below 2**10, a step below 2**22) are packed bijectively, because torch's CPU generator keeps only the
low 32 bits of a seed: under one key no two (member, step) share a stream. Tensors are drawn name by name, so that a
layer more does not move the draws of the others.
"""

from __future__ import annotations

import random as python_random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from posterity.tree import Tree

__all__ = ["Random"]

_STEP_BITS = 22
_MEMBER_BITS = 10
_WORD = 0xFFFFFFFF


def _mix(x: int) -> int:
    """The 32-bit finaliser of MurmurHash3: a bijection whose output bits each depend on all input bits."""
    x ^= x >> 16
    x = (x * 0x85EBCA6B) & _WORD
    x ^= x >> 13
    x = (x * 0xC2B2AE35) & _WORD
    return x ^ (x >> 16)


@dataclass(frozen=True)
class Random:
    """An address in the space of random streams.

    Args:
        key: any non-negative integer, usually the seed of a run.

    >>> a = Random(0).fold("noise").fold(3)
    >>> bool(a.normal((2,)).equal(a.normal((2,)))), bool(a.normal((2,)).equal(a.fold("w").normal((2,))))
    (True, False)
    """

    key: int
    indices: tuple[int, ...] = ()
    offset: int = 0  # of the first index

    def beside(self, first: int) -> Random:
        """The streams of members `first`, `first` + 1, ..., for an algorithm that counts its own from 0.

        >>> Random(0).beside(3).fold("noise").fold(1) == Random(0).fold("noise").fold(4)
        True
        """
        return Random(self.key, self.indices, first)

    def fold(self, word: str | int) -> Random:
        """The stream below this one named `word`: a purpose or tensor name, or a member, step, draw or epoch >= 0."""
        if isinstance(word, str):
            return Random(_digest(self.key, word), self.indices, self.offset)
        if word < 0:
            raise ValueError(f"a stream index must be >= 0, got {word}")
        word += self.offset
        fits = not self.indices or (len(self.indices) == 1 and self.indices[0] < 2**_MEMBER_BITS)
        if fits and word < 2**_STEP_BITS:
            return Random(self.key, (*self.indices, word))
        return Random(_digest(self.key, f"{self.indices}, {word >> _STEP_BITS}"), (word % 2**_STEP_BITS,))

    @property
    def seed(self) -> int:
        """The 32-bit seed of this address: for one key a bijection of the packed indices."""
        packed = 0
        for index in self.indices:
            packed = (packed << _STEP_BITS) | index
        packed = (packed ^ len(self.indices) << 31) & _WORD
        return _mix(_mix(packed ^ (self.key & _WORD)) ^ ((self.key >> 32) & _WORD))

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh generator at the start of this stream."""
        generator = torch.Generator(device=device)
        generator.manual_seed(self.seed)
        return generator

    def normal(self, shape: tuple[int, ...], like: Tensor | None = None) -> Tensor:
        """Standard normal draws of `shape`, float32 on the CPU or as `like` says."""
        device = like.device if like is not None else torch.device("cpu")
        dtype = like.dtype if like is not None else torch.float32
        return torch.randn(shape, generator=self.generator(device), device=device, dtype=dtype)

    def normals(self, tree: Tree) -> Tree:
        """Standard normal draws shaped like `tree`, each leaf from the stream of its own name."""
        return {name: self.fold(name).normal(tuple(leaf.shape), like=leaf) for name, leaf in tree.items()}

    @contextmanager
    def forked(self, data: bool = False) -> Iterator[None]:
        """Run code that uses torch's global generator (dropout, initialisers) on this stream; it is put back after.

        With `data`, Python's and numpy's global generators too: loaders and augmentations use all three.
        """
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        state = torch.get_rng_state()
        cuda = [torch.cuda.get_rng_state(device) for device in devices]
        others = _save_others() if data else None
        try:
            torch.default_generator.manual_seed(self.seed)
            for device in devices:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(self.seed)
            if data:
                _seed_others(self.seed)
            yield
        finally:
            torch.set_rng_state(state)
            for device, saved in zip(devices, cuda):
                torch.cuda.set_rng_state(saved, device)
            if others is not None:
                _restore_others(others)


@lru_cache(maxsize=4096)  # purposes and tensor names come back every step
def _digest(key: int, word: str) -> int:
    content = key.to_bytes(16, "little") + word.encode()
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def _save_others() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    return python_random.getstate(), None if numpy is None else numpy.random.get_state()


def _seed_others(seed: int) -> None:
    python_random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


def _restore_others(saved: tuple[Any, Any]) -> None:
    python_random.setstate(saved[0])
    if (numpy := sys.modules.get("numpy")) is not None and saved[1] is not None:
        numpy.random.set_state(saved[1])
