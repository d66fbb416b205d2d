"""Weak, strong and plain views of an image, as in the published recipes.

The operations of RandAugment are Pillow's, which torchvision calls for Pillow images and which the
published recipes were run with; called directly, they save every loading process the seconds that
importing torchvision takes. Five of them fill tables of 256 to 768 Python numbers in each call,
which on an image of 8 x 8 or 32 x 32 pixels is nearly all of their cost: 60 to 200 microseconds.
Small images are computed with NumPy in 1 to 50, to the same bytes; on larger images Pillow's C code
is faster. Images for random views are resized by torch, which takes a quarter of Pillow's time and
differs from it by 1 of 255 at most. The plain view is Pillow's: a program that has an exported run
and no torch can make the same pixels.

Views are bytes until they are on the device, which normalises them: a quarter of the memory, of the
traffic between processes and of the copy to a GPU.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from semigpc.data.dataset import ImageSet, Integers
from semigpc.io.errors import SettingsError
from semigpc.io.images import PixelFile, Pixels, to_image, to_pixels

Triple = tuple[float, float, float]

IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)
CIFAR10_MEAN: Triple = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR10_STD: Triple = (63.0 / 255, 62.1 / 255, 66.7 / 255)
CIFAR100_MEAN: Triple = (129.3 / 255, 124.1 / 255, 112.4 / 255)
CIFAR100_STD: Triple = (68.2 / 255, 65.4 / 255, 70.4 / 255)

VIEWS = ("weak", "strong", "strong2")
AREA = (0.08, 1.0)  # of a strong crop, as a share of the whole
LOG_ASPECT = (math.log(3 / 4), math.log(4 / 3))  # of a strong crop
CROP_TRIES = 10  # boxes drawn before the whole image is taken
CUTOUT_COLOUR = (125, 123, 114)
LARGEST_CUTOUT = 0.5  # of the width
SMALL_PIXELS = 64 * 64  # of an image, up to which NumPy is faster than Pillow
VALUES = np.arange(256)
# Pixels of a decoded JPEG for each that is needed, at the least. Where half of the size leaves that
# many, an image is decoded at half of its size, in a quarter to two thirds of the time; on five
# photographs that moved views by 0.3 to 2.7 of 255 on average, about as much as another way of
# resizing does (bicubic: 0.9 to 3.3). At one pixel for each it would be 0.8 to 8.
DRAFT_FACTOR = 2


class ViewSource(Protocol):
    """Turns images into the input of a network: views cut from pixels, or cached features.

    ``fetch`` returns the data from which all random views of some images are made. ``cut`` and
    ``plain`` return a compact tensor of n rows, one per image; ``normalise`` turns it into the
    network's input.
    """

    def keep(self, image_set: ImageSet, /, *, plain: bool) -> None:
        """Prepare to cache decoded images of a set, for plain or for random views.

        Called before worker processes start, which then share the cache.
        """

    def fetch(self, image_set: ImageSet, indices: Integers, /) -> Any:
        """Return what :meth:`cut` needs of images (n,) of a set."""

    def cut(self, name: str, fetched: Any, rng: Generator, /) -> Tensor:
        """Return a random view of the kind ``name`` of each image."""

    def plain(self, image_set: ImageSet, indices: Integers, /) -> Tensor:
        """Return the views of images (n,) for evaluation, without randomness."""

    def normalise(self, views: Tensor, /) -> Tensor:
        """Return the input of a network, on the device of the views."""


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """How images become views of s x s pixels, with s = image_size and r = crop_ratio.

    * ``pad`` (small images): resized to s x s unless they are that already, padded by int(s (1 -
      r)) reflected pixels on every side, cropped to s at random. Evaluation: resized to s x s.
    * ``resize`` (photographs): resized to floor(s / r) squared, whatever their shape; weak views
      crop s at random, strong ones a random area and aspect which is then resized to s. Evaluation:
      shorter side to floor(s / r), central crop of s.

    Random flips follow, and in strong views RandAugment and a cutout.

    Args:
        image_size: s, in pixels.
        style: "pad" or "resize".
        crop_ratio: r.
        flip: mirror every other view left to right. Not for digits or letters.
        operations: of RandAugment.
        mean: per channel, on a scale of 0..1; ImageNet's by default.
        std: the same.
    """

    image_size: int
    style: Literal["pad", "resize"] = "pad"
    crop_ratio: float = 0.875
    flip: bool = True
    operations: int = 3
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD

    def __post_init__(self) -> None:
        if self.image_size < 2:
            raise SettingsError(f"image_size must be at least 2 pixels; got {self.image_size}.")
        if self.style not in ("pad", "resize"):
            raise SettingsError(f"style must be 'pad' or 'resize'; got {self.style!r}.")
        if not 0.5 <= self.crop_ratio <= 1:
            raise SettingsError(f"crop_ratio must lie in [0.5, 1]; got {self.crop_ratio}.")
        if self.operations < 0:
            raise SettingsError(f"operations must be 0 or more; got {self.operations}.")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise SettingsError(
                f"mean and std must be three numbers each, std above 0; got {self.mean} and "
                f"{self.std}."
            )


class Preparation(NamedTuple):
    """How an image becomes a plain view of ``size`` x ``size`` pixels.

    A JPEG is decoded at a fraction of its size where both sides keep ``decode`` pixels. The shorter
    side is resized to ``shorter_side``, and the middle cut out; if that is None, the whole image is
    resized to a square.
    """

    decode: int
    shorter_side: int | None
    size: int


class Augment:
    """A :class:`ViewSource` of pixels; equal generators give equal views."""

    def __init__(self, config: AugmentConfig) -> None:
        self.config = config
        size = config.image_size
        ratio = config.crop_ratio
        self._large = math.floor(size / ratio)
        shorter_side = None if config.style == "pad" else self._large
        self.preparation = Preparation(DRAFT_FACTOR * self._large, shorter_side, size)
        pad = int(size * (1 - ratio))
        # Columns (s + 2 pad,) reflected about the first and the last, which are not repeated.
        within = np.abs(np.arange(-pad, size + pad))
        self._reflected = np.minimum(within, 2 * (size - 1) - within)
        # The largest offset of a crop.
        self._slack = 2 * pad if config.style == "pad" else self._large - size
        self._statistics: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Send only the config to another process, and no tensor on a device."""
        return Augment, (self.config,)

    def keep(self, image_set: ImageSet, *, plain: bool) -> None:
        """Keep squares, or plain views, in a :class:`PixelFile` if the pool has ``cache_bytes``."""
        limit = image_set.images.cache_bytes
        if limit and self._key(plain) not in image_set.kept:
            image_set.kept[self._key(plain)] = PixelFile(len(image_set), self._side(plain), limit)

    def fetch(self, image_set: ImageSet, indices: Integers) -> Pixels:
        """Return the squares of the images, (n, S, S, 3), made once for all their views."""
        return self._prepared(image_set, indices, plain=False)

    def cut(self, name: str, squares: Sequence[Pixels] | Pixels, rng: Generator) -> Tensor:
        """Return a random view of each image as bytes, (n, s, s, 3)."""
        size = self.config.image_size
        views = np.empty((len(squares), size, size, 3), np.uint8)
        for view, square in zip(views, squares, strict=True):
            view[...] = self.pixels(name, square, rng)
        return torch.from_numpy(views)

    def plain(self, image_set: ImageSet, indices: Integers) -> Tensor:
        """Return the plain view of each image as bytes, (n, s, s, 3)."""
        return torch.from_numpy(self._prepared(image_set, indices, plain=True))

    def normalise(self, views: Tensor) -> Tensor:
        """Turn bytes v (..., s, s, 3) into (v / 255 - mean) / std as float32 (..., 3, s, s)."""
        if views.device not in self._statistics:
            both = torch.tensor([self.config.mean, self.config.std], dtype=torch.float64)
            mean, std = both[:, :, None, None]
            scale = (1 / (255 * std)).float().to(views.device)
            self._statistics[views.device] = scale, (-mean / std).float().to(views.device)
        scale, shift = self._statistics[views.device]
        # Reordered as bytes, since floats would take four times the memory traffic.
        return views.movedim(-1, -3).contiguous().float().mul_(scale).add_(shift)

    def decode(self, image_set: ImageSet, index: int) -> Image.Image:
        """Return an image of a set, no larger than its views need where that saves time."""
        return image_set.read(index, self.preparation.decode)

    def pixels(self, name: str, square: Pixels, rng: Generator) -> Pixels:
        """Return a view (s, s, 3) of an image's :meth:`square`."""
        check_views((name,))
        if name == "weak" or self.config.style == "pad":
            cropped = self._weak(square, rng)
        else:
            top, left, height, width = crop_box(len(square), rng)
            size = self.config.image_size
            cropped = resized(square[top : top + height, left : left + width], size, size)
            if self.config.flip and rng.random() < 0.5:
                cropped = mirrored(cropped)
        if name == "weak":
            return cropped
        return to_pixels(rand_augment(to_image(cropped), rng, self.config.operations))

    def square(self, image: Image.Image) -> Pixels:
        """Return the image at the size from which random views are cut, (S, S, 3)."""
        return resized(to_pixels(image), self._side(plain=False), self._side(plain=False))

    def evaluation_pixels(self, image: Image.Image) -> Pixels:
        """Return the plain view, (s, s, 3), as docs/train.md does for an exported run."""
        _, shorter_side, size = self.preparation
        sides = (size, size)
        if shorter_side is not None:
            width, height = image.size
            short = min(image.size)
            sides = (int(shorter_side * width / short), int(shorter_side * height / short))
        left, top = (round((side - size) / 2) for side in sides)
        whole = image.resize(sides, Image.Resampling.BILINEAR)
        return to_pixels(whole.crop((left, top, left + size, top + size)))

    def _side(self, plain: bool) -> int:
        return self.config.image_size if plain or self.config.style == "pad" else self._large

    def _key(self, plain: bool) -> str:
        kind = "plain" if plain else "square"
        return f"{kind} {self.config.style} {self.config.image_size} {self._large}"

    def _prepared(self, image_set: ImageSet, indices: Integers, *, plain: bool) -> Pixels:
        make = self.evaluation_pixels if plain else self.square
        side = self._side(plain)
        file: PixelFile | None = image_set.kept.get(self._key(plain))
        prepared = np.empty((len(indices), side, side, 3), np.uint8)
        for pixels, index in zip(prepared, indices.tolist(), strict=True):
            if file is None or not file.read(index, pixels):
                pixels[...] = make(self.decode(image_set, index))
                if file is not None:
                    file.write(index, pixels)
        return prepared

    def _weak(self, square: Pixels, rng: Generator) -> Pixels:
        """Crop and flip by choosing rows and columns, so that no padded image is made."""
        size = self.config.image_size
        u, v, mirror = rng.random(3).tolist()
        top = int(u * (self._slack + 1))
        left = int(v * (self._slack + 1))
        if self.config.style == "pad":
            rows = self._reflected[top : top + size]
            columns = self._reflected[left : left + size]
            cropped: Pixels = square.take(rows, axis=0).take(columns, axis=1)
        else:
            cropped = square[top : top + size, left : left + size]
        return mirrored(cropped) if self.config.flip and mirror < 0.5 else cropped


def crop_box(whole: int, rng: Generator) -> tuple[int, int, int, int]:
    """Draw a box of random area and aspect inside a square; after ten tries the whole square.

    Returns:
        top, left, height and width.
    """
    for _ in range(CROP_TRIES):
        area = rng.uniform(*AREA) * whole * whole
        aspect = math.exp(rng.uniform(*LOG_ASPECT))
        width = round(math.sqrt(area * aspect))
        height = round(math.sqrt(area / aspect))
        if 0 < width <= whole and 0 < height <= whole:
            left = int(rng.integers(whole - width + 1))
            top = int(rng.integers(whole - height + 1))
            return top, left, height, width
    return 0, 0, whole, whole


def resized(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize (H, W, 3) bytes to (height, width, 3): bilinear and antialiased."""
    if pixels.shape[:2] == (height, width):
        return pixels
    # View and result have channels-last strides, for which torch is fast.
    channels_last = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    result = F.interpolate(channels_last, (height, width), mode="bilinear", antialias=True)
    return result[0].permute(1, 2, 0).numpy()


def mirrored(pixels: Pixels) -> Pixels:
    """Return (H, W, 3) bytes mirrored left to right, in a tenth of NumPy's time."""
    return torch.from_numpy(pixels).flip(1).numpy()


def check_views(names: tuple[str, ...]) -> None:
    """Raise if a name is not one of VIEWS."""
    for name in names:
        if name not in VIEWS:
            raise ValueError(f"unknown view {name!r}; known: {', '.join(VIEWS)}.")


class Operation(NamedTuple):
    """One entry of the pool: its magnitude is uniform in [low, high)."""

    name: str
    low: float
    high: float
    apply: Callable[[Image.Image, float], Image.Image]


def _is_small(image: Image.Image) -> bool:
    return image.width * image.height <= SMALL_PIXELS


def _autocontrast(image: Image.Image, _: float) -> Image.Image:
    """Stretch each channel to 0..255; a channel of a single value stays as it is."""
    if not _is_small(image):
        return ImageOps.autocontrast(image)
    scale = [1.0, 1.0, 1.0]
    offset = [0.0, 0.0, 0.0]
    extrema: list[tuple[int, int]] = list(image.getextrema())  # type: ignore[arg-type]  # one pair a channel of an RGB image
    for channel, (low, high) in enumerate(extrema):
        if high > low:
            scale[channel] = 255.0 / (high - low)
            offset[channel] = -low * scale[channel]
    return to_image((to_pixels(image) * scale + offset).astype(np.uint8))


def _equalize(image: Image.Image, _: float) -> Image.Image:
    """Flatten each channel's histogram, in steps of (pixels - those of the top value) / 255."""
    if not _is_small(image):
        return ImageOps.equalize(image)
    if image.width * image.height < 256:  # the step is 0: nothing to spread
        return image
    channels = np.arange(3)
    entries = to_pixels(image) + 256 * channels  # (H, W, 3) places in a table of all channels
    histogram = np.bincount(entries.ravel(), minlength=3 * 256).reshape(3, 256)
    below = histogram.cumsum(axis=1) - histogram
    last = (histogram > 0)[:, ::-1].argmax(axis=1)  # of the top value, from the end
    step = below[channels, 255 - last] // 255
    spread = (step[:, None] // 2 + below) // np.maximum(step, 1)[:, None]
    table = np.where(step[:, None] > 0, np.minimum(spread, 255), VALUES).astype(np.uint8)
    return to_image(table.ravel().take(entries))


def _contrast(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the image's mean grey, which is rounded to a whole number."""
    if not _is_small(image):
        return ImageEnhance.Contrast(image).enhance(factor)
    grey = np.frombuffer(image.convert("L").tobytes(), np.uint8)
    mean = int(int(grey.sum(dtype=np.int64)) / len(grey) + 0.5)
    return Image.blend(Image.new("RGB", image.size, (mean, mean, mean)), image, factor)


def _posterize(image: Image.Image, bits: float) -> Image.Image:
    """Keep the upper int(bits) bits, at least one."""
    kept = max(1, int(bits))
    dropped = 8 - kept
    if not _is_small(image):
        return ImageOps.posterize(image, kept)
    return _look_up(image, VALUES >> dropped << dropped)


def _solarize(image: Image.Image, threshold: float) -> Image.Image:
    """Invert the values that are not below the threshold."""
    if not _is_small(image):
        return ImageOps.solarize(image, threshold)  # type: ignore[arg-type] # fractions too
    return _look_up(image, np.where(threshold > VALUES, VALUES, 255 - VALUES))


def _look_up(image: Image.Image, table: NDArray[np.int64]) -> Image.Image:
    """Replace every value v by ``table[v]``; table (256,)."""
    content = image.tobytes().translate(table.astype(np.uint8).tobytes())
    return Image.frombytes("RGB", image.size, content)


def _affine(image: Image.Image, *coefficients: float) -> Image.Image:
    """Take pixel (x, y) from (a x + b y + c, d x + e y + f), nearest neighbour; black outside."""
    return image.transform(
        image.size, Image.Transform.AFFINE, coefficients, Image.Resampling.NEAREST
    )


POOL: tuple[Operation, ...] = (
    Operation("autocontrast", 0, 1, _autocontrast),
    Operation("brightness", 0.05, 0.95, lambda image, v: ImageEnhance.Brightness(image).enhance(v)),
    Operation("color", 0.05, 0.95, lambda image, v: ImageEnhance.Color(image).enhance(v)),
    Operation("contrast", 0.05, 0.95, _contrast),
    Operation("equalize", 0, 1, _equalize),
    Operation("identity", 0, 1, lambda image, _: image),
    Operation("posterize", 4, 8, _posterize),
    Operation("rotate", -30, 30, lambda image, v: image.rotate(v)),
    Operation("sharpness", 0.05, 0.95, lambda image, v: ImageEnhance.Sharpness(image).enhance(v)),
    Operation("shear_x", -0.3, 0.3, lambda image, v: _affine(image, 1, v, 0, 0, 1, 0)),
    Operation("shear_y", -0.3, 0.3, lambda image, v: _affine(image, 1, 0, 0, v, 1, 0)),
    Operation("solarize", 0, 256, _solarize),
    Operation(
        "translate_x", -0.3, 0.3, lambda image, v: _affine(image, 1, 0, v * image.width, 0, 1, 0)
    ),
    Operation(
        "translate_y", -0.3, 0.3, lambda image, v: _affine(image, 1, 0, 0, 0, 1, v * image.height)
    ),
)


def cutout(image: Image.Image, fraction: float, centre: tuple[float, float]) -> Image.Image:
    """Paint a square of side s = fraction * width in grey.

    It is moved inside at the top left and cut off at the bottom right. The corner is
    floor(max(0, centre - s / 2)), and both it and corner + s belong to the square, as when Pillow
    draws a rectangle. A fraction of 0 leaves the image unchanged.
    """
    if fraction <= 0:
        return image
    side = fraction * image.width
    left, top = (int(max(0.0, c - side / 2)) for c in centre)
    right, bottom = (
        min(limit, int(corner + side) + 1)
        for limit, corner in zip(image.size, (left, top), strict=True)
    )
    painted = image.copy()
    painted.paste(CUTOUT_COLOUR, (left, top, right, bottom))
    return painted


def rand_augment(image: Image.Image, rng: Generator, operations: int) -> Image.Image:
    """Apply ``operations`` random operations of the pool, then a cutout.

    Operations are drawn uniformly with replacement, each with a random magnitude. The published
    recipes have 3. The input is not changed.
    """
    # One call: a scalar draw costs as much as a vector.
    draws: list[float] = rng.random(2 * operations + 3).tolist()
    for _ in range(operations):
        operation = POOL[int(draws.pop() * len(POOL))]
        magnitude = operation.low + (operation.high - operation.low) * draws.pop()
        image = operation.apply(image, magnitude)
    fraction, x, y = draws
    return cutout(image, LARGEST_CUTOUT * fraction, (x * image.width, y * image.height))
