"""Photographs to probabilities by a frozen network and the classifier on its rows, as one module.

It is exported for a labelled folder, and for a run whose head is the label head.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from semigpc.estimator.head import PROBABILITIES, ClassifierHead, head_facts
from semigpc.export.files import SMALL_BATCHES, TOLERANCE, Progress
from semigpc.export.network import Floats, Predictor
from semigpc.io.atomic import JsonObject
from semigpc.io.errors import DifferenceError
from semigpc.io.graphs import IMAGES
from semigpc.io.images import DRAFT_FACTOR
from semigpc.models.backbones import input_statistics
from semigpc.models.encoder import Encoder

# As :data:`semigpc.estimator.head.EQUAL_ROWS`, for rows that a network computes anew: stored ones
# were rounded to float16, by up to 5e-4 of each number.
SAME_IMAGE = 4e-6
BATCH = 64  # inputs, the largest of the check


class LabelingNetwork(nn.Module):
    """Images (M, 3, s, s), RGB in [0, 1], to the outputs of the classifier on their embeddings.

    Args:
        backbone: from images to rows. head: the classifier on these.
        rounded: whether rows are rounded to float16, as stored ones are: without it, probabilities
            of photographs differed by up to 2e-4.
    """

    def __init__(self, backbone: nn.Module, head: ClassifierHead, *, rounded: bool) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.rounded = rounded

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of the outputs, in their order."""
        return self.head.outputs

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return all outputs of the classifier."""
        rows: Tensor = self.backbone(images)
        found: dict[str, Tensor] = self.head(rows.half().float() if self.rounded else rows)
        return found


def network_facts(head: ClassifierHead, encoder: Encoder, class_names: list[str]) -> JsonObject:
    """Return what a user of the exported network must know, for JSON."""
    size = encoder.image_size
    mean, std = input_statistics(encoder.name)
    return head_facts(head, class_names) | {
        "network": {"name": encoder.name, "weights": encoder.weights},
        "preparation": {
            "decode": DRAFT_FACTOR * size,
            "shorter_side": None,
            "size": size,
            "square": True,
        },
        "input": {
            "name": IMAGES,
            "shape": ["M", 3, size, size],
            "dtype": "float32",
            "values": "RGB, a byte / 255, in [0, 1]; not normalised: that is done inside",
        },
        "normalised_inside_by": {"mean": list(mean), "std": list(std)},
    }


def as_input(pixels: NDArray[np.uint8]) -> Floats:
    """Return images (M, s, s, 3) of bytes as the network takes them."""
    channels_first = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32)
    return channels_first / np.float32(255)


def largest_difference(
    predictor: Predictor, inputs: Floats, expected: NDArray[np.floating[Any]], report: Progress
) -> float:
    """Return the largest difference of a probability, in batches of several sizes.

    Raises:
        DifferenceError: it is above TOLERANCE, or NaN.
    """
    largest = 0.0
    start = 0
    sizes = cycle((*SMALL_BATCHES, BATCH))
    while start < len(inputs):
        own = slice(start, start + next(sizes))
        probs = predictor(inputs[own])[PROBABILITIES]
        largest = float(np.maximum(largest, np.abs(probs - expected[own]).max()))  # keeps NaN
        start = own.stop
        report("Checking", min(start, len(inputs)), len(inputs))
    if not largest <= TOLERANCE:
        raise DifferenceError(
            f"the file differs from semigpc predict by {largest:.2g} in a probability, and "
            f"{TOLERANCE:g} is allowed; it was removed. Try the other kind=..."
        )
    return largest
