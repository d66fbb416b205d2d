"""Pools of images: arrays in memory, files, and members of a zip file."""

import functools
import io
import os
import re
import shutil
import struct
import sys
import tempfile
import warnings
import weakref
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import context, reduction
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from semigpc.io.atomic import trouble
from semigpc.io.content import content_mark, file_mark
from semigpc.io.errors import DataError, ImageError
from semigpc.io.paths import Bad, checked, is_image_name
from semigpc.io.text import printable

Pixels = NDArray[np.uint8]
GIGABYTE = 2**30
# A JPEG is decoded at a fraction of its size while this many pixels a side are left for each that
# the network sees.
DRAFT_FACTOR = 2
# Formats that are decoded, by Pillow's names, and by the content of a file, not by its name. Others
# may start programs of this machine, as EPS starts Ghostscript.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
BIT_DEPTHS = (8, 10, 12, 14, 16)  # of sensors whose values are stored in 16 bits
FULL_RANGE = 2 ** (BIT_DEPTHS[-2] - 8)  # high byte of 16 from which all 16 bits are in use
# Pillow's names for colours of 16 bits, by the order of their bytes (N: that of this machine). It
# keeps the high byte of each, and with the name of the other order the low one.
DEEP_COLOURS = re.compile(r"((?:RGB|RGBA|RGBX);16)([BLN])")
OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
MOST_PIXELS = 178_000_000  # of one image: 700 MB decoded; Pillow's own limit is a little higher
MOST_BYTES = 8 * MOST_PIXELS  # of one image in a zip file: four channels of 16 bits, not compressed
DECODING_ERRORS = (  # of Pillow
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    MemoryError,
    OverflowError,
    struct.error,
)
ZIP_ERRORS = (  # of the standard library
    OSError,
    EOFError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


class Images(ABC):
    """A pool of images by position, as RGB; the defaults fit images that are held in memory.

    Attributes:
        cache_bytes: largest temporary file for decoded images of a set; 0 for none.
        is_encoded: whether images are compressed, so that reading one takes time.
    """

    cache_bytes = 0
    is_encoded = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, position: int, /) -> Image.Image: ...

    def read(self, position: int, *, at_least: int | None = None) -> Image.Image:  # noqa: ARG002
        """Return an image, smaller if that is faster, but not below ``at_least`` pixels a side."""
        return self[position]

    def mark(self, position: int) -> bytes:
        """Return the mark of an image's content: here of its size and pixels."""
        image = self[position]
        return content_mark(f"{image.size} ".encode() + image.tobytes())


class ArrayImages(Images):
    """Images held as (P, H, W, 3) bytes, or (P, H, W) if grey; grey is repeated three times."""

    def __init__(self, pixels: NDArray[Any]) -> None:
        is_image = pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] == 3)
        if pixels.dtype != np.uint8 or not is_image:
            raise DataError(
                "Images given as an array must be uint8 of shape (count, height, width, 3), or "
                f"(count, height, width) if grey; got {pixels.dtype} of shape {pixels.shape}. "
                "Scale values to 0..255 and put channels last."
            )
        height, width = pixels.shape[1:3]
        if width * height > MOST_PIXELS:
            sides = f" ({width} x {height})"
            raise DataError(f"An image of the array {_too_large(width * height, sides)}")
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, position: int) -> Image.Image:
        pixels = self.pixels[position]
        if pixels.ndim == 3:
            return to_image(pixels)
        height, width = pixels.shape
        return Image.frombytes("L", (width, height), pixels.tobytes()).convert("RGB")


class PixelFile:
    """Images of one size, (side, side, 3) bytes each, in a temporary file shared with workers.

    The file has no name, so nothing is left of it after the last of these processes, however that
    ended. It is read and written rather than mapped: a full disk is then an error that can be
    caught, and the system caches what is read often all the same. An image counts as written once
    its byte at the beginning of the file is 1.

    Args:
        count: of images. side: in pixels.
        limit: bytes; no more than the first images that fit into it, or into half of the free
            space, are kept.
    """

    def __init__(self, count: int, side: int, limit: int) -> None:
        self._bytes = 3 * side * side
        self.count = 0
        if hasattr(os, "preadv"):  # not on Windows
            # Where nothing can be written, nothing is kept.
            with suppress(OSError), tempfile.TemporaryFile() as file:
                self._own(os.dup(file.fileno()))
                free = shutil.disk_usage(tempfile.gettempdir()).free
                self.count = min(count, min(limit, free // 2) // (self._bytes + 1))

    def _own(self, descriptor: int) -> None:
        self._file = descriptor
        weakref.finalize(self, os.close, descriptor)

    def read(self, number: int, pixels: Pixels) -> bool:
        """Copy an image into ``pixels`` (side, side, 3); return False if it was not written."""
        if number >= self.count or os.pread(self._file, 1, number) != b"\1":
            return False
        start = self.count + number * self._bytes
        return os.preadv(self._file, [pixels.data], start) == self._bytes

    def write(self, number: int, pixels: Pixels) -> None:
        """Keep an image, if there is a place for it and the disk is not full."""
        if number >= self.count:
            return
        start = self.count + number * self._bytes
        with suppress(OSError):  # the image is decoded again then
            if os.pwrite(self._file, pixels.data, start) == self._bytes:
                os.pwrite(self._file, b"\1", number)

    def __getstate__(self) -> dict[str, object]:
        """Send the open file to a process that is being started; other copies keep nothing."""
        if context.get_spawning_popen() is None or not self.count:
            return {"_bytes": self._bytes, "count": 0, "_file": None}
        return self.__dict__ | {"_file": reduction.DupFd(self._file)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.count:
            self._own(state["_file"].detach())


class FileImages(Images):
    """Images in files, upright and RGB. One that cannot be read is an error with its path.

    Args:
        paths: P files.
        cache_bytes: for what loaders make of the images of a set, see :class:`PixelFile`; 0 for
            none.
    """

    is_encoded = True

    def __init__(self, paths: Sequence[Path], *, cache_bytes: int = 2 * GIGABYTE) -> None:
        self.paths = tuple(paths)
        self.cache_bytes = cache_bytes

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: int) -> Image.Image:
        return self.read(position)

    def read(self, position: int, *, at_least: int | None = None) -> Image.Image:
        """Decode an image, see :func:`read_image`."""
        return read_image(self.paths[position], at_least=at_least)

    def mark(self, position: int) -> bytes:
        """Return the mark of the file's content, which is read."""
        path = self.paths[position]
        try:
            return file_mark(path)
        except OSError as error:
            raise ImageError(
                f"The image {printable(path)} cannot be read: {error}. "
                "Restore it, or remove it from the data."
            ) from error


def read_image(
    path: Path, content: IO[bytes] | None = None, *, at_least: int | None = None
) -> Image.Image:
    """Decode a file, or ``content`` read from ``path``, upright by its EXIF data and in RGB.

    Args:
        at_least: pixels. A JPEG is decoded at a half, a quarter or an eighth of its size where both
            sides keep this many, in a fraction of the time.
    """
    with opened_image(path, content) as opened:
        if at_least is not None:
            opened.draft(None, (at_least, at_least))
        low_bytes = _low_bytes(opened)
        image = _upright(opened)
        if not low_bytes or to_pixels(image).max(initial=0) >= FULL_RANGE:
            return image
    if content is not None:
        content.seek(0)
    with opened_image(path, content) as opened:
        opened.tile = low_bytes
        low = to_pixels(_upright(opened))
    return to_image(_eight_bits(to_pixels(image).astype(np.uint16) * np.uint16(256) + low))


def _upright(opened: ImageFile.ImageFile) -> Image.Image:
    opened.load()
    ImageOps.exif_transpose(opened, in_place=True)  # a copy would take a tenth of the time
    return _to_rgb(opened)


def thumbnail(path: Path, size: int, quality: int = 85) -> bytes:
    """Return an image as JPEG of some quality (of 100), with at most ``size`` pixels a side.

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
def opened_image(path: Path, content: IO[bytes] | None = None) -> Iterator[ImageFile.ImageFile]:
    """Open an image and read its header; errors within the block become ImageErrors.

    Raises:
        ImageError: it does not exist, is no regular file, has more than MOST_PIXELS, is in none of
            FORMATS, or cannot be decoded.
    """
    shown = printable(path)
    if content is None and (reason := trouble(path)) is not None:
        raise ImageError(f"The image {shown} cannot be read: {reason}.")
    try:
        with _opened(path if content is None else content) as opened:
            width, height = opened.size
            if width * height > MOST_PIXELS:
                sides = f" ({width} x {height})"
                raise ImageError(f"The image {shown} {_too_large(width * height, sides)}")
            yield opened
    except ImageError:
        raise
    except FileNotFoundError as error:
        raise ImageError(
            f"The image {shown} no longer exists. Restore it, or remove it from the data."
        ) from error
    except Image.DecompressionBombError as error:
        count = re.search(r"\d+", str(error))
        raise ImageError(f"The image {shown} {_too_large(int(count[0]) if count else 0)}") from None
    except DECODING_ERRORS as error:
        raise ImageError(
            f"The image {shown} cannot be read: {error}. It may be truncated or not an image; "
            "replace it, or remove it from the data."
        ) from error


def _opened(file: Path | IO[bytes]) -> ImageFile.ImageFile:
    with warnings.catch_warnings():
        # Our own limit is checked by the caller.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            return Image.open(file, formats=FORMATS)
        except UnidentifiedImageError:
            known = ", ".join(FORMATS)
            raise ValueError(f"its content is not one of {known}; convert it") from None


def _too_large(pixels: int, sides: str = "") -> str:
    """Describe an image with too many pixels; the limit is ours or, if lower, Pillow's."""
    most = min(MOST_PIXELS, 2 * (Image.MAX_IMAGE_PIXELS or MOST_PIXELS))
    advice = "Make it smaller, or remove it from the data."
    return f"has {pixels} pixels{sides}, and {most} is the most. {advice}"


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F"):
        raise ValueError(
            f"its pixels are 32-bit numbers (mode {image.mode}), of unknown range; "
            "save it with 8 or 16 bits"
        )
    if image.mode.startswith("I;16"):  # Pillow would clip at 255 and turn nearly everything white
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")


def _low_bytes(opened: ImageFile.ImageFile) -> "list[ImageFile._Tile]":
    """Return how to decode the low bytes of colours of 16 bits; nothing for other images."""
    tiles = []
    for tile in opened.tile:
        name, *others = (tile.args,) if isinstance(tile.args, str) else tile.args or ("",)
        deep = DEEP_COLOURS.fullmatch(str(name))
        if deep is None:
            return []
        low = deep[1] + OTHER_ORDER[deep[2]]
        tiles.append(tile._replace(args=low if isinstance(tile.args, str) else (low, *others)))
    return tiles


class RangeNote(UserWarning):
    """A note that images of 16 bits use fewer of them and were stretched."""


def _eight_bits(values: NDArray[np.uint16]) -> Pixels:
    """Return the 16-bit values of an image as bytes, by the bits that are in use.

    Sensors of 8, 10, 12 or 14 bits store their values in 16-bit files as they are, so that 4095 may
    be white. The smallest depth b of BIT_DEPTHS that holds the largest value of the image is taken
    for the one in use, and a value v becomes the upper 8 of its b bits: v >> (b - 8). An image of
    16 bits thus stays as it is, also a dark one, while its largest value is above a quarter of the
    range (16 383). A darker one cannot be told from an image of 14 bits or fewer; a note says once
    what was assumed.
    """
    largest = int(values.max(initial=0))
    depth = next(bits for bits in BIT_DEPTHS if largest < 2**bits)
    if largest and depth < BIT_DEPTHS[-1]:
        _note_range()
    return (values >> (depth - 8)).astype(np.uint8)


@functools.cache
def _note_range() -> None:
    """Warn once in this process."""
    warnings.warn(
        "Some images of 16 bits use 14, 12, 10 or 8 of them (no value is above 16383, 4095, 1023 "
        "or 255) and are read as such. If they are meant to be dark, save them with 8 bits.",
        RangeNote,
        stacklevel=2,
    )


def to_pixels(image: Image.Image) -> Pixels:
    """Return (H, W, 3) bytes from the raw buffer, which takes half the time of ``numpy.array``."""
    return np.frombuffer(bytearray(image.tobytes()), np.uint8).reshape(image.height, image.width, 3)


def to_image(pixels: Pixels) -> Image.Image:
    """Return the image of (H, W, 3) bytes, in half the time of ``Image.fromarray``."""
    height, width, _ = pixels.shape
    return Image.frombytes("RGB", (width, height), pixels.tobytes())


class ZipImages(Images):
    """Images that are members of a zip file, upright and RGB.

    Each process opens the zip file for itself when it first reads an image, whether the pool was
    sent or forked, since two processes must not share the position in an open file.

    Args:
        archive: the zip file.
        members: P names in it.
        cache_bytes: as of :class:`FileImages`.
    """

    is_encoded = True

    def __init__(
        self, archive: Path, members: Sequence[str], *, cache_bytes: int = 2 * GIGABYTE
    ) -> None:
        self.archive = archive
        self.members = tuple(members)
        self.cache_bytes = cache_bytes
        self._opened: tuple[int, zipfile.ZipFile] | None = None  # by which process

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, position: int) -> Image.Image:
        return self.read(position)

    def read(self, position: int, *, at_least: int | None = None) -> Image.Image:
        """Decode an image, see :func:`read_image`."""
        path = self.archive / self.members[position]
        return read_image(path, io.BytesIO(self._content(position)), at_least=at_least)

    def mark(self, position: int) -> bytes:
        """Return the mark of the unpacked file: that of the same file in a folder."""
        return content_mark(self._content(position))

    def _content(self, position: int) -> bytes:
        with self._member(position) as (opened, facts):
            if facts.file_size > MOST_BYTES:
                raise OSError(
                    f"it has {facts.file_size} bytes unpacked, and {MOST_BYTES} is the most"
                )
            return opened.read(facts)

    @contextmanager
    def _member(self, position: int) -> Iterator[tuple[zipfile.ZipFile, zipfile.ZipInfo]]:
        try:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = os.getpid(), zipfile.ZipFile(self.archive)
            yield self._opened[1], self._opened[1].getinfo(self.members[position])
        except ZIP_ERRORS as error:
            path = self.archive / self.members[position]
            raise ImageError(
                f"The image {path} cannot be read: {error}. The zip file may have been replaced, "
                "cut short or encrypted; restore it."
            ) from error

    def __getstate__(self) -> dict[str, object]:
        """Send a worker process the names, without the open file."""
        return self.__dict__ | {"_opened": None}


def zipped_images(archive: Path) -> list[str]:
    """Return the names of all images in a zip file, sorted, without hidden ones."""
    try:
        with zipfile.ZipFile(checked(archive)) as opened:
            names = opened.namelist()
    except FileNotFoundError as error:
        raise DataError(f"There is no zip file {archive}. Check the path.") from error
    except (OSError, NotImplementedError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{archive} cannot be read as a zip file: {error}. It may be cut short; fetch it "
            "again, or give a folder."
        ) from error
    visible = {name for name in names if not name.startswith(".") and "/." not in name}
    return sorted(name for name in visible if is_image_name(name))


# Squares for a network ----------------------------------------------------------------------------


def read_squares(
    root: Path, names: Sequence[str], size: int
) -> tuple[list[str], Pixels, list[Bad]]:
    """Return the largest square in the middle of each image, resized to s x s.

    Args:
        root: a folder. names: of images below it. size: s, in pixels.

    Returns:
        The n names that could be read, their pixels (n, s, s, 3), and the other names with the
        reasons.
    """
    good: list[str] = []
    squares: list[Pixels] = []
    bad: list[Bad] = []
    for name in names:
        try:
            squares.append(_square(root / name, size))
            good.append(name)
        except ImageError as error:
            bad.append((name, str(error)))
    return good, np.array(squares, np.uint8).reshape(-1, size, size, 3), bad


def pool_squares(
    images: Images, positions: Sequence[str], size: int
) -> tuple[list[str], Pixels, list[Bad]]:
    """Return what :func:`read_squares` does, for images of a pool, named by their positions.

    Raises:
        DataError: an image cannot be read.
    """
    squares = [
        square_of(images.read(int(position), at_least=DRAFT_FACTOR * size), size)
        for position in positions
    ]
    return list(positions), np.array(squares, np.uint8).reshape(-1, size, size, 3), []


def square_of(image: Image.Image, size: int) -> Pixels:
    """Return the largest square in the middle of an image, resized to (s, s, 3) bytes."""
    return to_pixels(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR))


def _square(path: Path, size: int) -> Pixels:
    try:
        return square_of(read_image(path, at_least=DRAFT_FACTOR * size), size)
    except ImageError as error:
        raise ImageError(_reason(error.__cause__ or error, path)) from error
    except Exception as error:  # a decoder may raise any error for a damaged file
        raise ImageError(f"{type(error).__name__}: {_reason(error, path)}") from error


def _reason(error: BaseException, path: Path) -> str:
    """Return the reason on one line, without the path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).replace(f" {str(path)!r}", "").removeprefix(f"The image {printable(path)} ")
    return " ".join(text.split())
