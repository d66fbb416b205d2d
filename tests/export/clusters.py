"""Runs without training: tiny images that are their own features, and a GP that has seen some of
them.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from semigpc.data import Augment, AugmentConfig
from semigpc.io.images import Pixels
from semigpc.models import Classifier
from semigpc.refiners import GaussianProcessRefiner, GPConfig
from semigpc.types import HeadSpec

CLASSES, SIDE = 4, 4
AUGMENT = AugmentConfig(image_size=SIDE)


class Flat(nn.Module):
    """Features (M, 48): the pixels."""

    num_features = 3 * SIDE**2

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def images(count: int, seed: int) -> tuple[Pixels, Tensor]:
    """Bytes (count, 4, 4, 3) about one point a class, with overlap, and labels (count,); class 0
    has most.
    """
    rng = np.random.default_rng([7, seed])
    centres = np.random.default_rng(7).integers(60, 196, (CLASSES, SIDE, SIDE, 3))
    labels = rng.choice(CLASSES, count, p=(0.55, 0.25, 0.15, 0.05))
    pixels = centres[labels] + 30 * rng.standard_normal((count, SIDE, SIDE, 3))
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8), torch.from_numpy(labels)


def network() -> Classifier:
    """A linear classifier and a projection on the pixels."""
    torch.manual_seed(0)
    built = Classifier(Flat(), CLASSES, {"projection": HeadSpec("projection", 8)})
    return built.eval().requires_grad_(False)


def gp(classifier: Classifier, rows: int = 160, **options: Any) -> GaussianProcessRefiner:
    """A GP over so many images as the classifier sees them."""
    config = GPConfig(**{"buffer_size": 128, **options})
    width = 8 if config.feature == "projection" else Flat.num_features
    refiner = GaussianProcessRefiner(config, width, CLASSES)
    pixels, labels = images(rows, seed=1)
    for some in torch.arange(rows).split(16):
        output = classifier(Augment(AUGMENT).normalise(torch.from_numpy(pixels[some.numpy()])))
        refiner.write(refiner.placement.features(output), labels[some])
    return refiner
