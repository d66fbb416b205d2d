import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semigpc.io import images
from semigpc.io.errors import ImageError
from semigpc.review import thumbnails
from semigpc.review.thumbnails import Thumbnails


def of(path: Path) -> Thumbnails:
    project: Any = SimpleNamespace(image=lambda _: path)
    return Thumbnails(project)


def shown(path: Path, size: int = 384) -> Image.Image:
    return Image.open(io.BytesIO(of(path).get(0, size)))


def test_a_image_is_made_small_but_never_large(tmp_path: Path) -> None:
    Image.new("RGB", (1000, 500), "red").save(tmp_path / "a.jpg")
    Image.new("RGB", (20, 10), "red").save(tmp_path / "b.png")
    assert shown(tmp_path / "a.jpg").size == (384, 192)
    assert shown(tmp_path / "a.jpg", 96).size == (96, 48)
    assert shown(tmp_path / "b.png").size == (20, 10)


def test_a_image_stands_upright(tmp_path: Path) -> None:
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, :40] = (255, 0, 0)  # left half red; turned by 90 degrees, red is on top
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 6
    for name in ("a.jpg", "a.png"):
        image.save(tmp_path / name, exif=exif, quality=95)
        turned = shown(tmp_path / name)
        assert turned.size == (40, 80)
        assert turned.getpixel((20, 10))[0] > 200  # type: ignore[index]
        assert turned.getpixel((20, 70))[0] < 60  # type: ignore[index]


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "I;16", "1"])
def test_images_of_every_mode_can_be_shown(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new(mode, (30, 30)).save(path)
    assert shown(path).mode == "RGB"


def test_a_file_of_forty_megabytes_is_served_small(tmp_path: Path) -> None:
    path = tmp_path / "large.bmp"
    Image.frombytes("RGB", (3800, 3700), bytes(3800 * 3700 * 3)).save(path)
    assert path.stat().st_size > 40e6
    content = of(path).get(0, 384)
    assert len(content) < 200_000
    assert max(Image.open(io.BytesIO(content)).size) == 384


def test_a_bomb_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (1200, 1200)).save(path)
    monkeypatch.setattr(images, "MOST_PIXELS", 1_000_000)
    with pytest.raises(
        ImageError,
        match=r"The image bomb\.png has 1440000 pixels \(1200 x 1200\), and 1000000 is the most",
    ):
        of(path).get(0, 96)
    monkeypatch.setattr(
        Image, "MAX_IMAGE_PIXELS", 1000
    )  # Pillow's own refusal, of what is larger still
    with pytest.raises(
        ImageError, match=r"The image bomb\.png has 1440000 pixels, and 2000 is the most"
    ):
        of(path).get(0, 96)


@pytest.mark.parametrize(
    "content", [b"", b"I am no image.", b"\x89PNG\r\n\x1a\n broken", b"\xff\xd8\xff\xe0 broken"]
)
def test_what_is_no_image_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=r"This image cannot be read\."):
        of(path).get(0, 96)


def test_a_image_that_is_cut_off_is_told(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png"):
        path = tmp_path / name
        Image.effect_noise((200, 200), 50).save(path)
        path.write_bytes(path.read_bytes()[:1500])
        with pytest.raises(ImageError, match="cannot be read"):
            of(path).get(0, 96)


def test_what_was_made_is_kept_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    Image.effect_noise((200, 200), 50).save(path)
    monkeypatch.setattr(thumbnails, "KEPT_BYTES", 40_000)
    served = of(path)
    size = len(served.get(0, 384))
    for row in range(10):
        served.get(row, 384)
        assert 0 < sum(map(len, served._kept.values())) <= 40_000
    assert len(served._kept) == 40_000 // size
    path.unlink()
    assert served.get(9, 384), "from memory"
    with pytest.raises(ImageError, match="no longer there"):
        served.get(0, 96)
