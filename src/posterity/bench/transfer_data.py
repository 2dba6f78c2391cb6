"""Four small sets as what a pretrained network says of them: features [rows, width], computed once.

    hymenoptera    245 photos of ants and bees, its own 153 for the test; foreign: flowers
    flowers        five kinds of flowers in 32 x 32 pixels, 300 and 200 for the test; foreign: hymenoptera
    cifar          CIFAR-10 as JPEG, 1500 and 1000 for the test; foreign: flowers
    clinc          CLINC150, 25 texts and 10 for the test of each intent; foreign: its own requests of no intent

Pictures go through EfficientNet-Lite0 (`interfaces/pretrained`), texts through all-MiniLM-L6-v2 (`minilm.py`). A fifth of
the rows that are not the test is for validation, drawn by seed; the others are for training.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posterity.bench.data import data_folder
from posterity.bench.minilm import embedded
from posterity.interfaces.pretrained.backbones import Trunk, backbone
from posterity.interfaces.pretrained.pixels import Pixels

__all__ = ["SETS", "Parts", "parts"]

SETS = ("hymenoptera", "flowers", "cifar", "clinc")
CHUNK = 32

Labelled = tuple[Tensor, Tensor]  # [rows, width] float32, [rows] int64


class Parts(NamedTuple):
    train: Labelled
    validation: Labelled
    test: Labelled
    foreign: Tensor
    classes: int


class _Whole(NamedTuple):
    known: Labelled
    test: Labelled
    foreign: Tensor


def parts(name: str, seed: int, few: int | None = None) -> Parts:
    """A set; with `few` so many rows of each part. Raises DataError: POSTERITY_DATA or a package is missing."""
    whole = _WHOLE[name](few)
    x, y = whole.known
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    held, rest = order[: len(y) // 5], order[len(y) // 5 :]
    return Parts((x[rest], y[rest]), (x[held], y[held]), whole.test, whole.foreign, int(whole.test[1].max()) + 1)


@cache
def _trunk() -> tuple[Trunk, Pixels]:
    found = backbone("image")
    assert isinstance(found.reader, Pixels)
    return Trunk(found), found.reader


def _seen(pictures: Sequence[Any]) -> Tensor:
    trunk, pixels = _trunk()
    with torch.inference_mode():
        said = [trunk(pixels.of(pictures[i : i + CHUNK]))[0] for i in range(0, len(pictures), CHUNK)]
    return torch.cat(said).clone()


def _photos(name: str, few: int | None) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Pictures of a set, and its other columns, of as many rows; `few` are spread over them."""
    from PIL import Image

    file = f"{name}.npz"
    with np.load(data_folder("unclear", file) / file, allow_pickle=False) as content:
        columns = {key: content[key] for key in content.files}
    rows = np.arange(len(columns["y"]))
    if few is not None and few < len(rows):
        rows = np.linspace(0, len(rows) - 1, few).astype(int)
    if "x" in columns:
        found = [Image.fromarray(picture) for picture in columns.pop("x")[rows]]
    else:
        bytes_, offset = columns.pop("jpeg"), columns.pop("offset")
        files = [bytes_[offset[row] : offset[row + 1]].tobytes() for row in rows]
        found = [Image.open(io.BytesIO(file)).convert("RGB") for file in files]
    return found, {key: column[rows] for key, column in columns.items() if len(column) > rows.max()}


@cache
def _hymenoptera(few: int | None) -> _Whole:
    pictures, columns = _photos("hymenoptera_jpeg128", few)
    x, y = _seen(pictures), torch.from_numpy(columns["y"].astype(np.int64))
    test = torch.from_numpy(columns["split"] == 1)
    return _Whole((x[~test], y[~test]), (x[test], y[test]), _seen(_photos("flowers5_32x32", few)[0]))


@cache
def _flowers(few: int | None) -> _Whole:
    pictures, columns = _photos("flowers5_32x32", few)
    x, y = _seen(pictures), torch.from_numpy(columns["y"].astype(np.int64))
    known = 3 * len(y) // 5  # the classes take turns
    return _Whole((x[:known], y[:known]), (x[known:], y[known:]), _seen(_photos("hymenoptera_jpeg128", few)[0]))


@cache
def _cifar(few: int | None) -> _Whole:
    def part(name: str, count: int) -> Labelled:
        pictures, columns = _photos(name, None)  # the classes take turns
        return _seen(pictures[:count]), torch.from_numpy(columns["y"][:count].astype(np.int64))

    known, test = part("cifar10_jpeg_train20k", few or 1500), part("cifar10_jpeg_test10k", few or 1000)
    return _Whole(known, test, _seen(_photos("flowers5_32x32", few)[0]))


@cache
def _clinc(few: int | None) -> _Whole:
    name = "clinc150_full.json.gz"
    with gzip.open(data_folder("open/text", name) / name, "rt", encoding="utf-8") as file:
        content = json.load(file)
    intents = sorted({intent for _, intent in content["train"]})[: few and 5]

    def part(key: str, each: int) -> Labelled:
        by: dict[str, list[str]] = {intent: [] for intent in intents}
        for text, intent in content[key]:
            if intent in by and len(by[intent]) < each:
                by[intent].append(text)
        texts = [text for intent in intents for text in by[intent]]
        return embedded(texts), torch.tensor([i for i, intent in enumerate(intents) for _ in by[intent]])

    outside = [text for text, _ in content["oos_test"]][: few or 500]
    return _Whole(part("train", 25), part("test", 10), embedded(outside))


_WHOLE = {"hymenoptera": _hymenoptera, "flowers": _flowers, "cifar": _cifar, "clinc": _clinc}
