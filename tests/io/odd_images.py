"""Image files as users have them, each with the pixels that it must give, or None for an error."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.data.samples import random_image

SIZE = (24, 20)
PHOTO = random_image(*SIZE, np.random.default_rng(0))
OTHER = PHOTO.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
GREY = PHOTO.convert("L")
ORIENTATION = 0x0112  # the EXIF tag


class Odd(NamedTuple):
    """A file.

    Attributes:
        name: with a number in it where several are made. content: of the file.
        expected: what it shows; None if it must be an error.
        tolerance: largest difference of a pixel, of 255.
    """

    name: str
    content: bytes
    expected: Image.Image | None
    tolerance: int = 0


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def in_sixteen(bits: int, image: Image.Image = GREY) -> NDArray[np.uint16]:
    """Return values of ``bits`` bits in 16: white is 2^bits - 1."""
    values = np.asarray(image, np.uint32) * (2**bits - 1) // 255
    return np.asarray(values, np.uint16)


def sixteen_bit_png(values: NDArray[np.uint16]) -> bytes:
    """Return colours (H, W, 3), or (H, W, 4) with alpha, as PNG, which Pillow cannot write."""
    height, width, channels = values.shape
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)

    def chunk(name: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 16, {3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def sixteen_bit_tiff(values: NDArray[np.uint16], order: str) -> bytes:
    """Return colours (H, W, 3) as TIFF without compression; ``order`` is < or >."""
    height, width, _ = values.shape
    pixels = values.astype(f"{order}u2").tobytes()
    end = 8 + len(pixels)
    tags = [  # tag, type (3: 16 bits, 4: 32 bits), count, value
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 3, end + 2 + 9 * 12 + 4),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (273, 4, 1, 8),
        (277, 3, 1, 3),
        (278, 4, 1, height),
        (279, 4, 1, len(pixels)),
    ]
    entries = b""
    for tag, kind, count, value in tags:
        short = kind == 3 and count == 1
        entries += struct.pack(f"{order}HHI", tag, kind, count)
        entries += struct.pack(
            f"{order}HH" if short else f"{order}I", *([value, 0] if short else [value])
        )
    magic = b"II*\0" if order == "<" else b"MM\0*"
    directory = struct.pack(f"{order}H", len(tags)) + entries + bytes(4)
    return (
        magic
        + struct.pack(f"{order}I", end)
        + pixels
        + directory
        + struct.pack(f"{order}3H", 16, 16, 16)
    )


def rotated() -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    return saved(PHOTO.transpose(Image.Transpose.ROTATE_90), "JPEG", quality=100, exif=exif)


def with_alpha() -> Image.Image:
    image = PHOTO.convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(SIZE))
    return image


ANIMATED: dict[str, Any] = {"save_all": True, "append_images": [OTHER]}
PALETTE = PHOTO.quantize(256)
WHOLE_PNG = saved(PHOTO, "PNG")
WHOLE_JPEG = saved(PHOTO, "JPEG")
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 24 20\n%%EndComments\nshowpage\n%%EOF\n"
DEEP = in_sixteen(12, PHOTO)
OPAQUE = np.dstack([DEEP, np.full(DEEP.shape[:2], 65535, np.uint16)])

ODD = (
    Odd("1.png", saved(PHOTO.convert("1"), "PNG"), PHOTO.convert("1")),
    Odd("8.png", WHOLE_PNG, PHOTO),
    Odd("8_grey.png", saved(GREY, "PNG"), GREY),
    *(
        Odd(f"{bits}_in_16.{kind}", saved(Image.fromarray(in_sixteen(bits)), pillow), GREY, 1)
        for bits in (8, 10, 12, 14, 16)
        for kind, pillow in (("png", "PNG"), ("tif", "TIFF"))
    ),
    Odd("12_in_16_colour.png", sixteen_bit_png(DEEP), PHOTO, 1),
    Odd("12_in_16_alpha.png", sixteen_bit_png(OPAQUE), PHOTO, 1),
    Odd("12_in_16_colour.tif", sixteen_bit_tiff(DEEP, "<"), PHOTO, 1),
    Odd("12_in_16_big_endian.tif", sixteen_bit_tiff(DEEP, ">"), PHOTO, 1),
    Odd("16_colour.png", sixteen_bit_png(in_sixteen(16, PHOTO)), PHOTO),
    Odd("16_colour.tif", sixteen_bit_tiff(in_sixteen(16, PHOTO), "<"), PHOTO),
    Odd("palette.png", saved(PALETTE, "PNG"), PALETTE),
    Odd("palette_alpha.png", saved(PALETTE, "PNG", transparency=bytes(range(256))), PALETTE),
    Odd("alpha.png", saved(with_alpha(), "PNG"), PHOTO),
    Odd("alpha.webp", saved(with_alpha(), "WEBP", lossless=True, exact=True), PHOTO),
    Odd("cmyk.jpg", saved(PHOTO.convert("CMYK"), "JPEG", quality=100), PHOTO, 60),
    Odd("cmyk.tif", saved(PHOTO.convert("CMYK"), "TIFF"), PHOTO, 1),
    Odd("rotated.jpg", rotated(), PHOTO, 60),
    Odd("animated.gif", saved(PALETTE, "GIF", save_all=True, append_images=[OTHER]), PALETTE),
    Odd("animated.webp", saved(PHOTO, "WEBP", lossless=True, **ANIMATED), PHOTO),
    Odd("animated.png", saved(PHOTO, "PNG", **ANIMATED), PHOTO),
    Odd("a.bmp", saved(PHOTO, "BMP"), PHOTO),
    Odd("a.ppm", saved(PHOTO, "PPM"), PHOTO),
    Odd("wrong_ending.jpg", WHOLE_PNG, PHOTO),
    Odd("truncated.png", WHOLE_PNG[: len(WHOLE_PNG) // 2], None),
    Odd("truncated.jpg", WHOLE_JPEG[: len(WHOLE_JPEG) // 2], None),
    Odd("empty.png", b"", None),
    Odd("eps.jpg", EPS, None),
    Odd("svg.png", b'<svg xmlns="http://www.w3.org/2000/svg" width="24" height="20"/>', None),
    Odd("heic.jpg", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200), None),
    Odd("icon.png", saved(PHOTO, "ICO"), None),
    Odd("numbers.tif", saved(Image.fromarray(np.ones((20, 24), np.float32)), "TIFF"), None),
)
GOOD = tuple(odd for odd in ODD if odd.expected is not None)
BAD = tuple(odd for odd in ODD if odd.expected is None)


def write_odd(folder: Path, keep: Callable[[Odd], bool] = lambda _: True) -> Path:
    """Write the files into a folder that does not exist yet, and return it."""
    folder.mkdir()
    for odd in ODD:
        if keep(odd):
            (folder / odd.name).write_bytes(odd.content)
    return folder
