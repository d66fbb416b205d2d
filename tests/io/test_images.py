"""Decoding: upright, RGB, or an error with the path."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from semigpc.data import Augment, AugmentConfig, Images, ImageSet
from semigpc.io import images
from semigpc.io.errors import DataError, ImageError
from semigpc.io.images import ArrayImages, FileImages, PixelFile, Pixels, ZipImages, read_image
from tests.data.samples import random_image

ORIENTATION = 0x0112  # the EXIF tag


def save(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)  # type: ignore[arg-type]
    return path


def test_exif_orientation_is_honoured(tmp_path: Path) -> None:
    image = random_image(6, 4, np.random.default_rng(0))
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # a quarter turn clockwise to be upright
    turned = read_image(save(tmp_path / "a.png", image, exif=exif))
    assert turned.size == (4, 6)
    assert turned.tobytes() == image.transpose(Image.Transpose.ROTATE_270).tobytes()
    large = save(tmp_path / "a.jpg", image.resize((60, 40)), exif=exif)
    assert read_image(large, at_least=10).size == (10, 15)  # decoded at a quarter of its size


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_other_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    image = random_image(6, 4, np.random.default_rng(0)).convert(mode)
    path = save(tmp_path / ("a.tif" if mode == "CMYK" else "a.png"), image)
    assert read_image(path).mode == "RGB"
    if mode in ("L", "P", "1"):
        assert read_image(path).tobytes() == image.convert("RGB").tobytes()


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path: Path) -> None:
    image = random_image(6, 4, np.random.default_rng(0)).convert("P")
    path = save(tmp_path / "a.png", image, transparency=bytes(range(256)))
    assert read_image(path).tobytes() == image.convert("RGB").tobytes()


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path) -> None:
    values = np.array([[0, 255, 256], [40000, 65535, 1000]], dtype=np.uint16)
    pixels = np.asarray(read_image(save(tmp_path / "a.png", Image.fromarray(values))))
    assert pixels[..., 0].tolist() == [[0, 0, 1], [156, 255, 3]]


def test_pixels_of_unknown_range_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a.tif", Image.fromarray(np.ones((3, 3), np.float32)))
    with pytest.raises(DataError, match=r"a.tif cannot be read: its pixels are 32-bit"):
        read_image(path)


@pytest.mark.parametrize("ending", ["png", "jpg", "gif"])
def test_a_truncated_or_foreign_file_is_an_error_with_its_path(tmp_path: Path, ending: str) -> None:
    path = save(tmp_path / f"a.{ending}", random_image(60, 40, np.random.default_rng(0)))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:20], b"", b"no image"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"The image .*a.{ending} cannot be read"):
            read_image(path)
    path.unlink()
    with pytest.raises(DataError, match=f"a.{ending} no longer exists"):
        read_image(path)


def test_a_large_jpeg_is_decoded_at_half_of_its_size_and_views_stay_near(tmp_path: Path) -> None:
    photograph = Image.fromarray(load_sample_image("china.jpg"))  # 640 x 427
    save(tmp_path / "a.jpg", photograph, quality=95)
    pool = FileImages([tmp_path / "a.jpg"])
    assert pool[0].size == pool.read(0, at_least=214).size == (640, 427)
    assert pool.read(0, at_least=213).size == (320, 214)
    augment = Augment(AugmentConfig(image_size=92, style="resize"))
    image_set = ImageSet(pool, np.zeros(1, int), ["a"])
    whole, square = augment.square(pool[0]).astype(int), augment.fetch(image_set, np.array([0]))[0]
    assert 0 < np.abs(whole - square).mean() < 3  # of 255
    plain = augment.plain(image_set, np.array([0]))[0].numpy().astype(int)
    assert np.abs(augment.evaluation_pixels(pool[0]) - plain).mean() < 3


def pixels_of(number: int) -> Pixels:
    return np.full((4, 4, 3), number, np.uint8)


def test_a_pixel_file_has_what_was_written_and_no_more_than_its_limit() -> None:
    file, found = PixelFile(5, 4, limit=3 * 49), pixels_of(0)
    assert not file.read(1, found)
    for number in (1, 4):
        file.write(number, pixels_of(number))
    assert file.read(1, found)
    assert (found == 1).all()
    assert not file.read(0, found), "a hole in the file is no image"
    assert not file.read(4, found), "three images fit"
    assert not PixelFile(5, 4, limit=48).read(0, found), "and here none"


def test_a_pixel_file_does_without_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    file, found = PixelFile(5, 4, limit=1000), pixels_of(0)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("semigpc.io.images.os.pwrite", full)
        file.write(0, pixels_of(9))
    assert not file.read(0, found)
    file.write(0, pixels_of(9))
    assert file.read(0, found)


def test_half_an_image_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    file, found, write = PixelFile(5, 4, limit=1000), pixels_of(0), os.pwrite
    with monkeypatch.context() as patch:  # interrupted by a signal, or a disk that is nearly full
        patch.setattr(
            "semigpc.io.images.os.pwrite",
            lambda file, data, offset: write(file, bytes(data)[:20], offset),
        )
        file.write(0, pixels_of(9))
    assert not file.read(0, found)


def test_a_copy_of_a_pixel_file_that_no_worker_gets_is_empty() -> None:
    file, found = PixelFile(5, 4, limit=1000), pixels_of(0)
    file.write(0, pixels_of(9))
    copy = pickle.loads(pickle.dumps(file))
    assert not copy.read(0, found)
    copy.write(0, pixels_of(9))
    assert not copy.read(0, found)


def test_too_many_pixels_are_refused_by_name_size_and_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wide.png"
    Image.new("L", (300, 40)).save(path)
    with zipfile.ZipFile(tmp_path / "pool.zip", "w") as packed:
        packed.write(path, "wide.png")
    monkeypatch.setattr(images, "MOST_PIXELS", 10_000)
    sources: list[Images] = [FileImages([path]), ZipImages(tmp_path / "pool.zip", ["wide.png"])]
    for source in sources:
        with pytest.raises(ImageError, match=r"wide.png has 12000 pixels \(300 x.*Make it smaller"):
            source[0]
    with pytest.raises(DataError, match=r"An image of the array has.*40\), and 10000 is the most"):
        ArrayImages(np.zeros((2, 40, 300), np.uint8))


def test_pillow_has_no_say_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "wide.png"
    Image.new("L", (300, 40)).save(path)
    # it warns of more, and warnings are errors here
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 7000)
    assert read_image(path).size == (300, 40)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5000)  # it refuses more than twice as many
    with pytest.raises(ImageError, match=r"wide.png has 12000 pixels, and 10000 is the most"):
        read_image(path)


def test_a_member_of_a_zip_file_that_unpacks_to_gigabytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "pool.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("bomb.png", bytes(100_000))
    monkeypatch.setattr(images, "MOST_BYTES", 50_000)
    with pytest.raises(ImageError, match=r"bomb.png cannot.*bytes unpacked, and 50000 is the most"):
        ZipImages(tmp_path / "pool.zip", ["bomb.png"])[0]
