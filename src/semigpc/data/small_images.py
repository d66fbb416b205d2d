"""Five image operations, several times faster than Pillow's on small images and the same byte for byte.

Pillow fills tables of 256 to 768 Python numbers a call, which on an image of 8 x 8 or 32 x 32
pixels is nearly all of their cost: 60 to 200 microseconds, against 1 to 50 here. On larger images its C code wins.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semigpc.data.images import to_image, to_pixels

VALUES = np.arange(256)
CHANNELS = np.arange(3)
FIRST_ENTRY = 256 * CHANNELS  # of each channel, in a table of all three


def autocontrast(image: Image.Image) -> Image.Image:
    """Stretch each channel to 0..255; a channel of a single value stays as it is."""
    scale, offset = [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]
    for channel, (low, high) in enumerate(_extrema(image)):
        if high > low:
            scale[channel] = 255.0 / (high - low)
            offset[channel] = -low * scale[channel]
    return to_image((to_pixels(image) * scale + offset).astype(np.uint8))


def _extrema(image: Image.Image) -> list[tuple[int, int]]:
    """Smallest and largest value of each channel."""
    return list(image.getextrema())  # type: ignore[arg-type]  # one pair a channel, as an RGB image has three


def equalize(image: Image.Image) -> Image.Image:
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
    """Blend with the image's mean grey, which is rounded to a whole number."""
    grey = np.frombuffer(image.convert("L").tobytes(), np.uint8)
    mean = int(int(grey.sum(dtype=np.int64)) / len(grey) + 0.5)
    return Image.blend(Image.new("RGB", image.size, (mean, mean, mean)), image, factor)


def posterize(image: Image.Image, bits: int) -> Image.Image:
    """Keep the upper ``bits`` bits."""
    dropped = 8 - bits
    return _look_up(image, VALUES >> dropped << dropped)


def solarize(image: Image.Image, threshold: float) -> Image.Image:
    """Invert the values that are not below the threshold."""
    return _look_up(image, np.where(threshold > VALUES, VALUES, 255 - VALUES))


def _look_up(image: Image.Image, table: NDArray[np.int64]) -> Image.Image:
    """Replace every value v by ``table[v]``; table (256,)."""
    return Image.frombytes("RGB", image.size, image.tobytes().translate(table.astype(np.uint8).tobytes()))
