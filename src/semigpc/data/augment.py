"""Weak, strong and plain views of an image, as the recipe has them (its section 5)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.random import Generator
from PIL import Image
from torch import Tensor

from semigpc.data.dataset import DataError, ImageSet, Integers
from semigpc.data.images import Pixels, to_image, to_pixels
from semigpc.data.operations import RandAugment

Triple = tuple[float, float, float]

IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)
CIFAR10_MEAN: Triple = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR10_STD: Triple = (63.0 / 255, 62.1 / 255, 66.7 / 255)
CIFAR100_MEAN: Triple = (129.3 / 255, 124.1 / 255, 112.4 / 255)
CIFAR100_STD: Triple = (68.2 / 255, 65.4 / 255, 70.4 / 255)

VIEWS = ("weak", "strong", "strong2")
AREA = (0.08, 1.0)  # of a strong crop, as a part of the whole
LOG_ASPECT = (math.log(3 / 4), math.log(4 / 3))
CROP_TRIES = 10


class ViewSource(Protocol):
    """What turns images into the tensors a network sees: views cut from pixels, or features computed ahead of time.

    ``fetch`` gets whatever the views of some images are made from, once for all of them; the other two answer with a tensor
    of n rows, one an image.
    """

    def fetch(self, image_set: ImageSet, indices: Integers, /) -> Any:
        """Images (n,) of a set."""

    def cut(self, name: str, fetched: Any, rng: Generator, /) -> Tensor:
        """The view an algorithm calls ``name`` of each, at random."""

    def plain(self, fetched: Any, /) -> Tensor:
        """The view to judge by, without randomness."""


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """How images become views of ``image_size`` x ``image_size``, with s = image_size and r = crop_ratio.

    * ``pad`` (small images): resized to s x s unless they are that already, padded by int(s (1 - r)) reflected pixels on
      every side, cropped to s at random. Evaluation: resized to s x s.
    * ``resize`` (photographs): resized to floor(s / r) squared, whatever their shape; weak views crop s at random, strong ones
      a random area and aspect which is then resized to s. Evaluation: shorter side to floor(s / r), central crop of s.

    Random flips follow, and in strong views RandAugment and a cutout.

    Args:
        image_size: s, in pixels.
        style: "pad" or "resize".
        crop_ratio: r.
        flip: mirror every other view left to right. Not for digits or letters.
        operations: of RandAugment.
        mean: per channel, on a scale of 0..1; ImageNet's unless told.
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
            raise DataError(f"image_size must be at least 2 pixels; got {self.image_size}.")
        if self.style not in ("pad", "resize"):
            raise DataError(f"style must be 'pad' or 'resize'; got {self.style!r}.")
        if not 0.5 <= self.crop_ratio <= 1:
            raise DataError(f"crop_ratio must lie in [0.5, 1]; got {self.crop_ratio}.")
        if self.operations < 0:
            raise DataError(f"operations must be 0 or more; got {self.operations}.")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise DataError(f"mean and std must be three numbers each, std above 0; got {self.mean} and {self.std}.")


class Augment:
    """Makes views. Everything random comes from the generator passed in, so equal generators give equal views.

    ``weak``, ``strong``, ``view`` and ``evaluate`` give (3, s, s) normalised floats of one image. As a :class:`ViewSource` it
    normalises many at once, which saves several calls an image.
    """

    def __init__(self, config: AugmentConfig) -> None:
        size, ratio = config.image_size, config.crop_ratio
        self.config = config
        self.policy = RandAugment(config.operations)
        self._large = math.floor(size / ratio)
        pad = int(size * (1 - ratio))
        within = np.abs(np.arange(-pad, size + pad))  # reflected about the first pixel, which is not repeated
        self._reflected = np.minimum(within, 2 * (size - 1) - within)  # and about the last; (s + 2 pad,)
        self._slack = 2 * pad if config.style == "pad" else self._large - size  # places a crop may start at, less one
        mean, std = np.array(config.mean), np.array(config.std)
        self._scale = (1 / (255 * std)).astype(np.float32)[:, None, None]
        self._shift = (-mean / std).astype(np.float32)[:, None, None]

    def weak(self, image: Image.Image, rng: Generator) -> Tensor:
        """Random crop and flip."""
        return self.normalise(self.pixels("weak", image, rng))

    def strong(self, image: Image.Image, rng: Generator) -> Tensor:
        """Random crop and flip, RandAugment, cutout."""
        return self.normalise(self.pixels("strong", image, rng))

    def view(self, name: str, image: Image.Image, rng: Generator) -> Tensor:
        """The view an algorithm calls ``name``; "strong2" is one more strong view."""
        return self.normalise(self.pixels(name, image, rng))

    def evaluate(self, image: Image.Image) -> Tensor:
        """No randomness."""
        return self.normalise(self.evaluation_pixels(image))

    def fetch(self, image_set: ImageSet, indices: Integers) -> list[Image.Image]:
        """The images, decoded once for all their views."""
        return [image_set[int(i)] for i in indices]

    def cut(self, name: str, images: Sequence[Image.Image], rng: Generator) -> Tensor:
        """A random view of each image, (n, 3, s, s)."""
        return self.normalise(np.stack([self.pixels(name, image, rng) for image in images]))

    def plain(self, images: Sequence[Image.Image]) -> Tensor:
        """The plain view of each image, (n, 3, s, s)."""
        return self.normalise(np.stack([self.evaluation_pixels(image) for image in images]))

    def pixels(self, name: str, image: Image.Image, rng: Generator) -> Pixels:
        """A view before normalisation, (s, s, 3)."""
        check_views((name,))
        if name == "weak":
            return self._weak(image, rng)
        if self.config.style == "pad":
            cropped = to_image(self._weak(image, rng))
        else:
            cropped = self._random_resized_crop(self._resized(image, self._large), rng)
            if self.config.flip and rng.random() < 0.5:
                cropped = cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return to_pixels(self.policy(cropped, rng))

    def evaluation_pixels(self, image: Image.Image) -> Pixels:
        """The plain view before normalisation, (s, s, 3)."""
        size = self.config.image_size
        if self.config.style == "pad":
            return to_pixels(self._resized(image, size))
        short = min(image.size)
        width, height = (self._large if side == short else int(self._large * side / short) for side in image.size)
        left, top = round((width - size) / 2), round((height - size) / 2)
        resized = image.resize((width, height), Image.Resampling.BILINEAR)
        return to_pixels(resized.crop((left, top, left + size, top + size)))

    def normalise(self, pixels: Pixels) -> Tensor:
        """Bytes (..., s, s, 3) to (v / 255 - mean) / std as float32 (..., 3, s, s)."""
        channels_first = pixels.swapaxes(-1, -3).swapaxes(-1, -2)
        scaled = np.empty(channels_first.shape, dtype=np.float32)
        np.multiply(channels_first, self._scale, out=scaled)
        scaled += self._shift
        return torch.from_numpy(scaled)

    def _weak(self, image: Image.Image, rng: Generator) -> Pixels:
        """Crop and flip are a choice of rows and columns, so padding is never carried out."""
        size = self.config.image_size
        padded = self.config.style == "pad"
        pixels = to_pixels(self._resized(image, size if padded else self._large))
        u, v, mirror = rng.random(3).tolist()
        top, left = int(u * (self._slack + 1)), int(v * (self._slack + 1))
        if padded:
            rows, columns = self._reflected[top : top + size], self._reflected[left : left + size]
            cropped: Pixels = pixels.take(rows, axis=0).take(columns, axis=1)
        else:
            cropped = pixels[top : top + size, left : left + size]
        return cropped[:, ::-1] if self.config.flip and mirror < 0.5 else cropped

    def _random_resized_crop(self, image: Image.Image, rng: Generator) -> Image.Image:
        """A box of random area and log-uniform aspect that fits, or after ten tries the whole (square) image."""
        size, whole = self.config.image_size, image.width
        for _ in range(CROP_TRIES):
            area = rng.uniform(*AREA) * whole * whole
            aspect = math.exp(rng.uniform(*LOG_ASPECT))
            width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < width <= whole and 0 < height <= whole:
                left, top = int(rng.integers(whole - width + 1)), int(rng.integers(whole - height + 1))
                image = image.crop((left, top, left + width, top + height))
                break
        return image.resize((size, size), Image.Resampling.BILINEAR)

    def _resized(self, image: Image.Image, size: int) -> Image.Image:
        return image if image.size == (size, size) else image.resize((size, size), Image.Resampling.BILINEAR)


def check_views(names: tuple[str, ...]) -> None:
    """Refuse names of views that nobody can make."""
    for name in names:
        if name not in VIEWS:
            raise ValueError(f"unknown view {name!r}; known: {', '.join(VIEWS)}.")
