"""Pictures of all modes become the same numbers."""

import numpy as np
import pytest
from PIL import Image

from posterity.errors import DataError
from posterity.interfaces.pretrained.pixels import Pixels, opened

PLAIN = Pixels((8, 8), None, (0.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "CMYK", "I;16"])
def test_a_grey_picture_reads_alike_in_every_mode(tmp_path, mode):
    grey = Image.new("L", (10, 12), 128)
    if mode == "I;16":
        made = Image.fromarray(np.full((12, 10), 128 * 256, dtype=np.uint16))
    else:
        made = grey if mode in ("L", "P") else grey.convert("RGB")
        made = made.convert(mode)
    path = tmp_path / ("p.tif" if mode in ("CMYK", "I;16") else "p.png")
    made.save(path)
    (pixels,) = PLAIN([str(path)])
    assert pixels.shape == (1, 3, 8, 8)
    assert np.allclose(pixels, 128 / 255, atol=0.01)


def test_a_turned_picture_is_set_upright(tmp_path):
    picture = Image.new("RGB", (8, 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    picture.save(tmp_path / "p.jpg", exif=exif)
    assert opened(str(tmp_path / "p.jpg")).size == (4, 8)


def test_what_is_transparent_is_white(tmp_path):
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "p.png")
    (pixels,) = PLAIN([str(tmp_path / "p.png")])
    assert bool((pixels == 1).all())


def test_a_cut_short_file_is_named(tmp_path):
    Image.new("RGB", (64, 64)).save(tmp_path / "p.jpg")
    (tmp_path / "p.jpg").write_bytes((tmp_path / "p.jpg").read_bytes()[:300])
    with pytest.raises(DataError, match="p.jpg cannot be read as a picture"):
        opened(str(tmp_path / "p.jpg"))


@pytest.mark.parametrize(
    ("content", "size", "short"),
    [
        ({"size": {"height": 16, "width": 12}}, (16, 12), None),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, (224, 224), 256),
        ({"size": {"shortest_edge": 384}}, (384, 384), None),
        ({"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": True}, (224, 224), 256),
        ({"size": 224}, (224, 224), 256),
    ],
)  # fmt: skip
def test_a_processor_is_read(content, size, short):
    pixels = Pixels.from_processor(content)
    assert (pixels.size, pixels.short) == (size, short)
    assert Pixels.from_json(pixels.to_json()) == pixels
