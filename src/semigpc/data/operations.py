"""RandAugment: the pool of image operations, how they are drawn, and the cutout that follows.

The operations are Pillow's, which is what torchvision calls for Pillow images and what the published recipes were run with;
asked directly, they spare every loading process the seconds that importing torchvision takes. Small images take a faster way
to the same bytes.
"""

from collections.abc import Callable
from typing import NamedTuple

from numpy.random import Generator
from PIL import Image, ImageEnhance, ImageOps

from semigpc.data import small_images

CUTOUT_COLOUR = (125, 123, 114)
LARGEST_CUTOUT = 0.5  # of the width
SMALL = 64 * 64  # pixels, up to which :mod:`semigpc.data.small_images` is faster


class Operation(NamedTuple):
    """One entry of the pool: its magnitude is uniform in [low, high)."""

    name: str
    low: float
    high: float
    apply: Callable[[Image.Image, float], Image.Image]


def _small(image: Image.Image) -> bool:
    return image.width * image.height <= SMALL


def autocontrast(image: Image.Image, _: float) -> Image.Image:
    """Stretch each channel to 0..255; a channel of a single value stays as it is."""
    return small_images.autocontrast(image) if _small(image) else ImageOps.autocontrast(image)


def equalize(image: Image.Image, _: float) -> Image.Image:
    """Make each channel's histogram as flat as a table allows."""
    return small_images.equalize(image) if _small(image) else ImageOps.equalize(image)


def contrast(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the image's mean grey."""
    return small_images.contrast(image, factor) if _small(image) else ImageEnhance.Contrast(image).enhance(factor)


def posterize(image: Image.Image, bits: float) -> Image.Image:
    """Keep the upper int(bits) bits, at least one."""
    kept = max(1, int(bits))
    return small_images.posterize(image, kept) if _small(image) else ImageOps.posterize(image, kept)


def solarize(image: Image.Image, threshold: float) -> Image.Image:
    """Invert the values that are not below the threshold."""
    return small_images.solarize(image, threshold) if _small(image) else ImageOps.solarize(image, threshold)  # type: ignore[arg-type] # fractions too


def _affine(image: Image.Image, *coefficients: float) -> Image.Image:
    """Pixel (x, y) is taken from (a x + b y + c, d x + e y + f), nearest neighbour, black where that is outside."""
    return image.transform(image.size, Image.Transform.AFFINE, coefficients, Image.Resampling.NEAREST)


POOL: tuple[Operation, ...] = (
    Operation("autocontrast", 0, 1, autocontrast),
    Operation("brightness", 0.05, 0.95, lambda image, v: ImageEnhance.Brightness(image).enhance(v)),
    Operation("color", 0.05, 0.95, lambda image, v: ImageEnhance.Color(image).enhance(v)),
    Operation("contrast", 0.05, 0.95, contrast),
    Operation("equalize", 0, 1, equalize),
    Operation("identity", 0, 1, lambda image, _: image),
    Operation("posterize", 4, 8, posterize),
    Operation("rotate", -30, 30, lambda image, v: image.rotate(v)),
    Operation("sharpness", 0.05, 0.95, lambda image, v: ImageEnhance.Sharpness(image).enhance(v)),
    Operation("shear_x", -0.3, 0.3, lambda image, v: _affine(image, 1, v, 0, 0, 1, 0)),
    Operation("shear_y", -0.3, 0.3, lambda image, v: _affine(image, 1, 0, 0, v, 1, 0)),
    Operation("solarize", 0, 256, solarize),
    Operation("translate_x", -0.3, 0.3, lambda image, v: _affine(image, 1, 0, v * image.width, 0, 1, 0)),
    Operation("translate_y", -0.3, 0.3, lambda image, v: _affine(image, 1, 0, 0, 0, 1, v * image.height)),
)


def cutout(image: Image.Image, fraction: float, centre: tuple[float, float]) -> Image.Image:
    """Paint a square of side s = fraction * width, pushed inside at the top left and cut off at the bottom right.

    The corner is floor(max(0, centre - s / 2)), and both it and corner + s belong to the square, as when Pillow draws a
    rectangle. A fraction of 0 leaves the image as it is.
    """
    if fraction <= 0:
        return image
    side = fraction * image.width
    left, top = (int(max(0.0, c - side / 2)) for c in centre)
    right, bottom = (min(limit, int(corner + side) + 1) for limit, corner in zip(image.size, (left, top), strict=True))
    painted = image.copy()
    painted.paste(CUTOUT_COLOUR, (left, top, right, bottom))
    return painted


class RandAugment:
    """``operations`` draws from the pool, uniform and with replacement, each at a random magnitude; then a cutout.

    Args:
        operations: 3 in the recipe.
    """

    def __init__(self, operations: int = 3) -> None:
        if operations < 0:
            raise ValueError(f"operations must be 0 or more; got {operations}.")
        self.operations = operations

    def __call__(self, image: Image.Image, rng: Generator) -> Image.Image:
        """A new image; the one given is not changed."""
        draws: list[float] = rng.random(2 * self.operations + 3).tolist()  # one call: a scalar draw costs as much as a vector
        for _ in range(self.operations):
            operation = POOL[int(draws.pop() * len(POOL))]
            image = operation.apply(image, operation.low + (operation.high - operation.low) * draws.pop())
        fraction, x, y = draws
        return cutout(image, LARGEST_CUTOUT * fraction, (x * image.width, y * image.height))
