"""Pictures of the shared data: archives of arrays, and JPEG files in a row."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.bench.data import data_folder

__all__ = ["archive", "jpegs", "pixels"]


def archive(under: str, name: str) -> dict[str, np.ndarray]:
    """The arrays of `name`.npz in the folder `under` of POSTERITY_DATA.

    Raises:
        DataError: it is not there.
    """
    with np.load(data_folder(under, f"{name}.npz") / f"{name}.npz", allow_pickle=False) as content:
        return {key: content[key] for key in content.files}


def pixels(images: np.ndarray) -> Tensor:
    """[n, h, w] or [n, h, w, channels] uint8 to [n, channels, h, w] in [0, 1]."""
    wide = images[..., None] if images.ndim == 3 else images
    return torch.from_numpy(np.ascontiguousarray(wide.transpose(0, 3, 1, 2))).float() / 255


def jpegs(content: Mapping[str, Any], rows: int) -> Tensor:
    """The first rows of concatenated JPEG files, as `pixels`.

    Raises:
        ImportError: no Pillow.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("the CIFAR rows are JPEG files: pip install 'posterity[report]' brings Pillow") from error
    offset, data = content["offset"], content["jpeg"]
    files = (io.BytesIO(data[offset[i] : offset[i + 1]].tobytes()) for i in range(rows))
    return pixels(np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files]))
