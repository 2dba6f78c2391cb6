"""A picture as numbers: turned as its camera says, resized, cut to size, standardised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.errors import DataError
from posterity.random import Random

__all__ = ["Pixels", "opened"]

_INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by Pillow's number


@dataclass(frozen=True)
class Pixels:
    """Files to [rows, 3, height, width] float32.

    Args:
        size: (height, width).
        short: what the shorter side is resized to before the middle is cut out; None stretches the whole picture to `size`.
        mean, std: of each colour, of values in [0, 1].
        interpolation: nearest, lanczos, bilinear, bicubic, box or hamming.
    """

    size: tuple[int, int]
    short: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if self.interpolation not in _INTERPOLATIONS:
            raise DataError(f"interpolation is one of {', '.join(_INTERPOLATIONS)}, got {self.interpolation!r}")

    def __call__(self, rows: Sequence[str]) -> tuple[Tensor, ...]:
        """Raises DataError: a file that holds no picture, named."""
        return (self.of(opened(path) for path in rows),)

    def of(self, pictures: Iterable[Any]) -> Tensor:
        """[rows, 3, height, width] of Pillow's pictures in three colours."""
        mean, std = (np.array(values, dtype=np.float32) for values in (self.mean, self.std))
        made = [(np.asarray(self._cut(picture), dtype=np.float32) / 255 - mean) / std for picture in pictures]
        return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).contiguous()

    def _cut(self, picture: Any) -> Any:
        height, width = self.size
        how = _INTERPOLATIONS.index(self.interpolation)
        if self.short is None:
            return picture.resize((width, height), how)
        scale = self.short / min(picture.size)
        picture = picture.resize(tuple(max(round(side * scale), self.short) for side in picture.size), how)
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        return picture.crop((left, top, left + width, top + height))

    def example(self) -> tuple[Tensor, ...]:
        return (Random(0).fold("pixels").normal((2, 3, *self.size)),)

    def takes(self) -> str:
        height, width = self.size
        return f"x, float32 [rows, 3, {height}, {width}]: (value / 255 - mean) / std, as `reader` in its metadata says"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Pixels:
        """What `to_json` gave."""
        lists = {name: tuple(content[name]) for name in ("size", "mean", "std")}
        return cls(**{**content, **lists})

    @classmethod
    def from_processor(cls, content: Mapping[str, Any]) -> Pixels:
        """From the preprocessor_config.json of an image processor of Hugging Face."""
        size = content.get("size") or {}
        size = {"shortest_edge": size} if isinstance(size, int) else size
        crop = content.get("crop_size")
        crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
        mean, std = (tuple(content.get(f"image_{name}") or (0.5,) * 3) for name in ("mean", "std"))
        how = _INTERPOLATIONS[int(content.get("resample", 2))]
        if "height" in size and not content.get("do_center_crop"):
            return cls((int(size["height"]), int(size["width"])), None, mean, std, how)
        edge = int(size.get("shortest_edge") or size.get("height") or 224)
        if crop:
            return cls((int(crop["height"]), int(crop["width"])), edge, mean, std, how)
        if edge >= 384:
            return cls((edge, edge), None, mean, std, how)
        return cls((edge, edge), int(edge / content.get("crop_pct", 0.875)), mean, std, how)


def opened(path: str) -> Any:
    """A picture in three colours, upright, what is transparent in it white; the first frame of several.

    Raises DataError: absent, no picture, or cut short.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            file.load()
            picture = ImageOps.exif_transpose(file)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as a picture ({error}): mend it or take it out") from error
    if picture.mode.startswith("I"):  # 16 bits of grey
        picture = Image.fromarray((np.asarray(picture).clip(0, 65535) // 256).astype(np.uint8))
    if "A" in picture.getbands() or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    return picture.convert("RGB")
