"""Whether an exported file says what the run says: a thousand images through both."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from semigpc.data import Augment, DataError
from semigpc.data.images import Pixels
from semigpc.export.formats import Answer
from semigpc.refiners import GaussianProcessRefiner
from semigpc.training.evaluate import predict
from semigpc.training.inference import LoadedRun
from semigpc.training.run_folder import RunError

ROWS = 1024  # images of a check
TOLERANCE = 1e-4  # of a probability
SMALL_BATCHES = (1, 7)
LARGE_BATCH = 256


class DifferenceError(RuntimeError):
    """What was written does not say what the run says."""


class Rows(NamedTuple):
    """Images to check by, ``pixels`` (ROWS, s, s, 3) bytes: ``own`` test images of the run, and then random ones.

    ``note`` says why there are none of its own.
    """

    pixels: Pixels
    own: int
    note: str = ""


def rows_of(run: LoadedRun) -> Rows:
    """Up to ROWS of the run's test images, taken evenly since such sets are often sorted; its data need not be there."""
    augment, size = Augment(run.experiment.augment), run.experiment.augment.image_size
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, size, size, 3), dtype=np.uint8)
    if not run.has("test"):
        return Rows(pixels, 0, "the run had no test images")
    try:
        _, images = replace(run, gp=None).part("test")  # without a GP that would be filled anew
        own = min(ROWS, len(images))
        for row in range(own):
            pixels[row] = augment.evaluation_pixels(images[row * len(images) // own])
    except (RunError, DataError, OSError) as error:
        return Rows(pixels, 0, f"the test images could not be loaded ({' '.join(str(error).split())})")
    return Rows(pixels, own)


def differences(
    answer: Answer,
    network: nn.Module,
    gp: GaussianProcessRefiner | None,
    *,
    augment: Augment,
    outputs: Mapping[str, str],
    pixels: Pixels,
    largest_batch: int = LARGE_BATCH,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """The largest absolute difference of a probability in each output, over batches of 1, 7 and ``largest_batch`` images.

    Args:
        answer: the file, asked with images in [0, 1].
        network, gp: what it was made from, asked with the images as evaluation normalises them.
        outputs: the head of each output.
        pixels: (n, s, s, 3) bytes.
        progress: hears how many images are done, of how many.
    """
    found = dict.fromkeys(outputs, 0.0)
    start, sizes = 0, cycle((*SMALL_BATCHES, largest_batch))
    while start < len(pixels):
        batch = pixels[start : start + next(sizes)]
        rows = torch.arange(len(batch))
        expected = predict(network, gp, [(augment.normalise(batch), rows, rows)], torch.device("cpu")).probs
        given = answer(np.ascontiguousarray(batch.transpose(0, 3, 1, 2), dtype=np.float32) / np.float32(255))
        for name, head in outputs.items():
            if given[name].shape != expected[head].shape:
                raise DifferenceError(f"{name} came as {given[name].shape}, and should be {expected[head].shape}.")
            found[name] = float(np.maximum(found[name], np.abs(given[name] - expected[head]).max()))  # keeps what is no number
        start += len(batch)
        if progress is not None:
            progress(start, len(pixels))
    return found
