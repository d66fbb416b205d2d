"""Images, folders and splits to test with."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from PIL import Image
from torch import Tensor

from semigpc.data import Augment, Splits, splits_from_arrays
from semigpc.types import Batch


def random_image(width: int, height: int, rng: Generator) -> Image.Image:
    """Noise over a ramp, so that neither histogram nor extrema are trivial."""
    ramp = np.linspace(20, 180, width * height * 3).reshape(height, width, 3)
    return Image.fromarray((ramp + rng.integers(0, 60, ramp.shape)).astype(np.uint8))


def write_images(folder: Path, counts: dict[str, int], size: tuple[int, int] = (6, 5)) -> None:
    """``counts[name]`` images in each sub-folder ``name``, all different."""
    rng = np.random.default_rng(0)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            random_image(*size, rng).save(folder / name / f"{i}.png")


def plain_view(augment: Augment, image: Image.Image) -> Tensor:
    """(3, s, s) as the network gets it."""
    return augment.normalise(torch.from_numpy(augment.evaluation_pixels(image)))


def small_splits(n: int = 20, u: int = 30, size: int = 8) -> Splits:
    """``n`` labelled images of four classes, ``u`` unlabelled ones, seven to test on."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n + u + 7, size, size, 3), dtype=np.uint8)
    return splits_from_arrays(
        x[:n], np.arange(n) % 4, x[n : n + u], x_test=x[n + u :], y_test=np.arange(7) % 4
    )


STREAM: dict[str, Any] = {
    "views": ("weak", "strong", "strong2"),
    "labeled_batch": 6,
    "unlabeled_batch": 9,
    "seed": 3,
    "epoch_steps": 7,
}


def same_batch(one: Batch, other: Batch) -> bool:
    """Whether two batches hold the same tensors."""
    tensors = [
        [batch.x, batch.y, batch.index, batch.view_index, *batch.views.values()]
        for batch in (one, other)
    ]
    return list(one.views) == list(other.views) and all(map(torch.equal, *tensors))
