"""RandAugment: the pool of picture operations, how they are drawn, and the cutout that follows.

Every operation gives what Pillow's own function gives, byte for byte, which is what the published recipes were run with. Five
of them are written out here, because Pillow fills their tables with 256 to 768 Python numbers a call and on small pictures that
is nearly all of their cost.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from semigpc.data.pictures import to_image, to_pixels

CUTOUT_COLOUR = (125, 123, 114)
LARGEST_CUTOUT = 0.5  # of the width
VALUES = np.arange(256)
CHANNELS = np.arange(3)
FIRST_ENTRY = 256 * CHANNELS  # of each channel, in a table of all three


class Operation(NamedTuple):
    """One entry of the pool: its magnitude is uniform in [low, high)."""

    name: str
    low: float
    high: float
    apply: Callable[[Image.Image, float], Image.Image]


def autocontrast(image: Image.Image, _: float) -> Image.Image:
    """Stretch each channel to 0..255; a channel of a single value stays as it is."""
    scale, offset = [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]
    for channel, (low, high) in enumerate(_extrema(image)):
        if high > low:
            scale[channel] = 255.0 / (high - low)
            offset[channel] = -low * scale[channel]
    return to_image((to_pixels(image) * scale + offset).astype(np.uint8))


def _extrema(image: Image.Image) -> list[tuple[int, int]]:
    """Smallest and largest value of each channel."""
    return list(image.getextrema())  # type: ignore[arg-type]  # one pair a channel, as an RGB picture has three


def equalize(image: Image.Image, _: float) -> Image.Image:
    """Make each channel's histogram as flat as a table allows, counting in steps of (pixels - those of the top value) / 255."""
    if image.width * image.height < 256:  # the step is 0: nothing to spread
        return image
    entries = to_pixels(image) + FIRST_ENTRY  # (H, W, 3) places in a table of all channels
    histogram = np.bincount(entries.ravel(), minlength=3 * 256).reshape(3, 256)
    up_to = histogram.cumsum(axis=1)
    below = up_to - histogram
    last = (histogram > 0)[:, ::-1].argmax(axis=1)  # of the top value, from the end
    step = below[CHANNELS, 255 - last] // 255
    spread = (step[:, None] // 2 + below) // np.maximum(step, 1)[:, None]
    table = np.where(step[:, None] > 0, np.minimum(spread, 255), VALUES).astype(np.uint8)
    return to_image(table.ravel().take(entries))


def contrast(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the picture's mean grey, which is rounded to a whole number."""
    grey = np.frombuffer(image.convert("L").tobytes(), np.uint8)
    mean = int(int(grey.sum(dtype=np.int64)) / len(grey) + 0.5)
    return Image.blend(Image.new("RGB", image.size, (mean, mean, mean)), image, factor)


def posterize(image: Image.Image, bits: float) -> Image.Image:
    """Keep the upper int(bits) bits, at least one."""
    dropped = 8 - max(1, int(bits))
    return _look_up(image, VALUES >> dropped << dropped)


def solarize(image: Image.Image, threshold: float) -> Image.Image:
    """Invert the values that are not below the threshold."""
    return _look_up(image, np.where(threshold > VALUES, VALUES, 255 - VALUES))


def _look_up(image: Image.Image, table: NDArray[np.int64]) -> Image.Image:
    """Replace every value v by ``table[v]``; table (256,)."""
    return Image.frombytes("RGB", image.size, image.tobytes().translate(table.astype(np.uint8).tobytes()))


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
    Operation("rotate", -30, 30, lambda image, v: image.rotate(v, Image.Resampling.NEAREST)),
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
    rectangle. A fraction of 0 leaves the picture as it is.
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
        """A new picture; the one given is not changed."""
        draws: list[float] = rng.random(2 * self.operations + 3).tolist()  # one call: a scalar draw costs as much as a vector
        for _ in range(self.operations):
            operation = POOL[int(draws.pop() * len(POOL))]
            image = operation.apply(image, operation.low + (operation.high - operation.low) * draws.pop())
        fraction, x, y = draws
        return cutout(image, LARGEST_CUTOUT * fraction, (x * image.width, y * image.height))
