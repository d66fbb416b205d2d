"""Pools of images: arrays in memory, files and members of a zip file that are decoded when they are used."""

import io
import os
import re
import struct
import warnings
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from semigpc.data.dataset import DataError
from semigpc.data.paths import checked, is_image_name
from semigpc.files import trouble
from semigpc.text import printable

Pixels = NDArray[np.uint8]
MEGABYTE = 2**20
MOST_PIXELS = 178_000_000  # of one image: 700 MB decoded; Pillow's own limit is a little higher
MOST_BYTES = 8 * MOST_PIXELS  # of one image in a zip file: four channels of 16 bits, not compressed
BROKEN = (OSError, SyntaxError, ValueError, EOFError, MemoryError, OverflowError, struct.error)  # what Pillow may raise


class ImageError(DataError):
    """An image that cannot be read; the message has its path."""


class ArrayImages:
    """Images held as (P, H, W, 3) bytes, or (P, H, W) if grey, which is repeated in all three channels."""

    def __init__(self, pixels: NDArray[Any]) -> None:
        if pixels.dtype != np.uint8 or not (pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] == 3)):
            raise DataError(
                "Images given as an array must be uint8 of shape (count, height, width, 3), or (count, height, width) if "
                f"grey; got {pixels.dtype} of shape {pixels.shape}. Scale values to 0..255 and put channels last."
            )
        height, width = pixels.shape[1:3]
        if width * height > MOST_PIXELS:
            raise DataError(f"An image of the array {_too_large(width * height, f' ({width} x {height})')}")
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, position: int) -> Image.Image:
        pixels = self.pixels[position]
        if pixels.ndim == 3:
            return to_image(pixels)
        height, width = pixels.shape
        return Image.frombytes("L", (width, height), pixels.tobytes()).convert("RGB")


class KeptImages(ABC):
    """Images that are decoded by ``read`` when they are first used, and then kept.

    Decoded images are kept up to ``cache_bytes``, and none is replaced by another: the order of images is random, so the first
    ones are worth as much as the last. Each worker process of a loader keeps its own.
    """

    def __init__(self, cache_bytes: int) -> None:
        self.cache_bytes = self._free_bytes = cache_bytes
        self._cache: dict[int, Image.Image] = {}

    @abstractmethod
    def read(self, position: int) -> Image.Image:
        """Decode an image, whether it is in the cache or not."""

    def __getitem__(self, position: int) -> Image.Image:
        image = self._cache.get(position)
        if image is None:
            image = self.read(position)
            size = 4 * image.width * image.height  # Pillow holds RGB in four bytes
            if size <= self._free_bytes:
                self._free_bytes -= size
                self._cache[position] = image
        return image

    def __getstate__(self) -> dict[str, Any]:
        """Send a worker process where the images are, and not those decoded so far."""
        return self.__dict__ | {"_cache": {}, "_free_bytes": self.cache_bytes}


class FileImages(KeptImages):
    """Images in files, upright and RGB, decoded and kept. One that cannot be read is an error with its path, never skipped.

    Args:
        paths: P files.
        cache_bytes: at most this much is kept; 0 keeps nothing.
    """

    def __init__(self, paths: Sequence[Path], *, cache_bytes: int = 512 * MEGABYTE) -> None:
        super().__init__(cache_bytes)
        self.paths = tuple(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, position: int) -> Image.Image:
        return read_image(self.paths[position])

    def fingerprint(self, position: int) -> bytes:
        """Return path, size and time of the file, which change when the image does, without reading it."""
        path = self.paths[position]
        try:
            facts = path.stat()
        except OSError as error:
            raise ImageError(
                f"The image {printable(path)} cannot be found: {error}. Put it back, or take it out of the data."
            ) from error
        return f"{path.absolute()} {facts.st_size} {facts.st_mtime_ns}".encode()


def read_image(path: Path, content: IO[bytes] | None = None, *, at_least: int | None = None) -> Image.Image:
    """Decode one file, or ``content`` that was read from ``path``; rotate it by its EXIF orientation; convert it to RGB.

    Args:
        at_least: pixels. A JPEG is decoded at a half, a quarter or an eighth of its size where both sides keep this many,
            in a fraction of the time.
    """
    with opened_image(path, content) as opened:
        if at_least is not None:
            opened.draft(None, (at_least, at_least))
        opened.load()
        return _to_rgb(ImageOps.exif_transpose(opened))


def thumbnail(path: Path, size: int, quality: int = 85) -> bytes:
    """Return an image as JPEG of some quality (of 100), upright and no larger than ``size`` pixels either way.

    Raises:
        ImageError: see :func:`opened_image`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd images that it can read
        image = read_image(path, at_least=size)
    image.thumbnail((size, size), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=quality)
    return content.getvalue()


@contextmanager
def opened_image(path: Path, content: IO[bytes] | None = None) -> Iterator[Image.Image]:
    """Open an image and read its header; an error within the block, such as one of decoding, becomes an ImageError.

    Raises:
        ImageError: it is not there, is no regular file, has more than MOST_PIXELS, or cannot be decoded.
    """
    shown = printable(path)
    if content is None and (reason := trouble(path)) is not None:
        raise ImageError(f"The image {shown} cannot be read: {reason}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is checked below
            opened = Image.open(path if content is None else content)
        with opened:
            width, height = opened.size
            if width * height > MOST_PIXELS:
                raise ImageError(f"The image {shown} {_too_large(width * height, f' ({width} x {height})')}")
            yield opened
    except ImageError:
        raise
    except FileNotFoundError as error:
        raise ImageError(f"The image {shown} is no longer there. Put it back, or take it out of the data.") from error
    except Image.DecompressionBombError as error:
        count = re.search(r"\d+", str(error))
        raise ImageError(f"The image {shown} {_too_large(int(count[0]) if count else 0)}") from None
    except BROKEN as error:
        raise ImageError(
            f"The image {shown} cannot be read: {error}. It may be truncated or not an image; "
            "replace it, or take it out of the data."
        ) from error


def _too_large(pixels: int, sides: str = "") -> str:
    """Describe an image of too many pixels; Pillow, whose limit is somewhat higher, may have been set to a lower one."""
    most = min(MOST_PIXELS, 2 * (Image.MAX_IMAGE_PIXELS or MOST_PIXELS))
    return f"has {pixels} pixels{sides}, and {most} is the most. Make it smaller, or take it out of the data."


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are 32-bit numbers (mode {image.mode}), of unknown range; save it with 8 or 16 bits")
    if image.mode.startswith("I;16"):  # Pillow would clip at 255 and turn nearly everything white
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def to_pixels(image: Image.Image) -> Pixels:
    """Return (H, W, 3) bytes, read-only, from the raw buffer, which takes half the time of ``numpy.asarray``."""
    return np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, 3)


def to_image(pixels: Pixels) -> Image.Image:
    """Return the image of (H, W, 3) bytes, in half the time of ``Image.fromarray``."""
    height, width, _ = pixels.shape
    return Image.frombytes("RGB", (width, height), pixels.tobytes())


UNREADABLE = (OSError, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)


class ZipImages(KeptImages):
    """Images that are members of a zip file, upright and RGB, decoded and kept.

    Each process opens the zip file for itself when it first reads an image, whether the pool was sent or forked, since two
    processes must not share the position in an open file.

    Args:
        archive: the zip file.
        members: P names in it.
        cache_bytes: at most this much is kept; 0 keeps nothing.
    """

    def __init__(self, archive: Path, members: Sequence[str], *, cache_bytes: int = 512 * MEGABYTE) -> None:
        super().__init__(cache_bytes)
        self.archive = archive
        self.members = tuple(members)
        self._opened: tuple[int, zipfile.ZipFile] | None = None  # by which process

    def __len__(self) -> int:
        return len(self.members)

    def read(self, position: int) -> Image.Image:
        with self._member(position) as (opened, facts):
            if facts.file_size > MOST_BYTES:
                raise OSError(f"it has {facts.file_size} bytes unpacked, and the largest image that is read has {MOST_BYTES}")
            content = opened.read(facts)
        return read_image(self.archive / self.members[position], io.BytesIO(content))

    def fingerprint(self, position: int) -> bytes:
        """Return name, size and checksum from the zip file, which change when the image does, without reading it."""
        with self._member(position) as (_, facts):
            return f"{facts.filename} {facts.file_size} {facts.CRC}".encode()

    @contextmanager
    def _member(self, position: int) -> Iterator[tuple[zipfile.ZipFile, zipfile.ZipInfo]]:
        try:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = os.getpid(), zipfile.ZipFile(self.archive)
            yield self._opened[1], self._opened[1].getinfo(self.members[position])
        except UNREADABLE as error:
            raise ImageError(
                f"The image {self.archive / self.members[position]} cannot be read: {error}. The zip file may have been "
                "replaced, cut short or encrypted; restore it."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        """Send a worker process names alone, neither images nor the open file."""
        return super().__getstate__() | {"_opened": None}


def zipped_images(archive: Path) -> list[str]:
    """Return the names of all images in a zip file, sorted, without hidden ones."""
    try:
        with zipfile.ZipFile(checked(archive)) as opened:
            names = opened.namelist()
    except FileNotFoundError as error:
        raise DataError(f"There is no zip file {archive}. Check the path.") from error
    except (OSError, NotImplementedError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{archive} cannot be read as a zip file: {error}. It may be cut short; fetch it again, or give a folder."
        ) from error
    return sorted({name for name in names if is_image_name(name) and not name.startswith(".") and "/." not in name})
