"""Pictures of the record as PNG in the page."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["data_uri"]


def data_uri(picture: Mapping[str, Any] | None) -> str | None:
    """A PNG as a data URI, from {"shape": [height, width] or [height, width, 3], "data": base64 of uint8}.

    None for no picture, and for one whose bytes do not fill its shape.
    """
    if not picture:
        return None
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("pictures in the report need pillow: pip install 'posterity[report]'") from error
    shape = [int(size) for size in picture["shape"]]
    pixels = base64.b64decode(picture["data"])
    if len(shape) == 3 and shape[2] == 1:
        shape = shape[:2]
    if len(pixels) != math.prod(shape) or not pixels or len(shape) not in (2, 3) or shape[2:] not in ([], [3]):
        return None
    image = Image.frombytes("RGB" if len(shape) == 3 else "L", (shape[1], shape[0]), pixels)
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
