"""Every odd image is read as what it shows, or is an error that names it."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from semigpc.io import images
from semigpc.io.errors import ImageError
from semigpc.io.images import RangeNote, read_image
from tests.io.odd_images import BAD, GOOD, GREY, PHOTO, Odd, in_sixteen, saved


def named(odd: Odd) -> str:
    return odd.name


@pytest.mark.filterwarnings("ignore::semigpc.io.images.RangeNote")
@pytest.mark.parametrize("odd", GOOD, ids=named)
def test_an_odd_image_is_read_as_what_it_shows(tmp_path: Path, odd: Odd) -> None:
    (tmp_path / odd.name).write_bytes(odd.content)
    assert odd.expected is not None
    image = read_image(tmp_path / odd.name)
    assert image.mode == "RGB"
    expected = np.asarray(odd.expected.convert("RGB")).astype(int)
    difference = np.abs(np.asarray(image) - expected)
    assert difference.max() <= odd.tolerance
    assert difference.mean() <= max(odd.tolerance / 5, 0)


@pytest.mark.parametrize("odd", BAD, ids=named)
def test_what_is_no_image_of_a_known_format_is_an_error_by_name(tmp_path: Path, odd: Odd) -> None:
    (tmp_path / odd.name).write_bytes(odd.content)
    with pytest.raises(ImageError, match=f"{odd.name} cannot be read.* replace it, or remove it"):
        read_image(tmp_path / odd.name)


def test_an_eps_file_called_jpg_starts_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: started.append(1))
    (tmp_path / "a.jpg").write_bytes(next(odd.content for odd in BAD if odd.name == "eps.jpg"))
    with pytest.raises(ImageError, match="not one of BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP"):
        read_image(tmp_path / "a.jpg")
    assert not started


def test_fewer_bits_than_sixteen_are_noted_once(tmp_path: Path) -> None:
    images._note_range.cache_clear()
    for name, bits in (("a.png", 12), ("b.png", 12), ("c.png", 10), ("d.png", 16)):
        Image.fromarray(in_sixteen(bits)).save(tmp_path / name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("a.png", "b.png", "c.png", "d.png"):
            read_image(tmp_path / name)
    assert [each.category for each in caught] == [RangeNote]
    assert "4095" in str(caught[0].message)
    assert "save them with 8 bits" in str(caught[0].message)


def test_a_dark_image_of_sixteen_bits_stays_dark(tmp_path: Path) -> None:
    values = in_sixteen(16) // 3  # at most 21 845: more than 14 bits
    Image.fromarray(values).save(tmp_path / "a.png")
    read = np.asarray(read_image(tmp_path / "a.png"))[..., 0]
    assert read.tolist() == (values >> 8).tolist()
    Image.fromarray(np.zeros_like(values)).save(tmp_path / "black.png")
    assert not np.asarray(read_image(tmp_path / "black.png")).any()


@pytest.mark.filterwarnings("ignore::semigpc.io.images.RangeNote")
def test_twelve_bits_look_like_the_image_of_eight(tmp_path: Path) -> None:
    dark = GREY.point(lambda value: value // 2 + 60)
    (tmp_path / "8.png").write_bytes(saved(dark, "PNG"))
    Image.fromarray(in_sixteen(12, dark)).save(tmp_path / "12.png")
    eight, twelve = (np.asarray(read_image(tmp_path / f"{bits}.png")) for bits in (8, 12))
    assert np.abs(eight.astype(int) - twelve).max() <= 1
    assert PHOTO.size == (eight.shape[1], eight.shape[0])
