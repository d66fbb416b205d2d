"""Refiners: they turn the classifier's probabilities for an unlabelled image into its pseudo-label.

To add one, write a file with a frozen config (a subclass of :class:`RefinerConfig`, or of
:class:`PlacementConfig` if it has a memory) and a subclass of :class:`Refiner`, and add a line to
``REFINERS``.
"""

from collections.abc import Callable
from typing import NamedTuple

from semigpc.gp.certainty import auto_logit_scale
from semigpc.refiners.base import (
    NoRefiner,
    NoRefinerConfig,
    PlacementConfig,
    Refiner,
    RefinerConfig,
)
from semigpc.refiners.gaussian_process import GaussianProcessRefiner
from semigpc.refiners.gp_config import (
    AutoOptions,
    EnsembleOptions,
    ExactOptions,
    GPConfig,
    MatrixFreeOptions,
)
from semigpc.refiners.similarity import SimilarityConfig, SimilarityRefiner


class RefinerEntry(NamedTuple):
    """A refiner's config, how to build it, and its name in tables.

    ``build`` is called with (config, n_features, n_classes, device=None).
    """

    config: type[RefinerConfig]
    build: Callable[..., Refiner]
    label: str


REFINERS: dict[str, RefinerEntry] = {
    "none": RefinerEntry(NoRefinerConfig, lambda *_sizes, **_device: NoRefiner(), ""),
    "similarity": RefinerEntry(SimilarityConfig, SimilarityRefiner, "similarity"),
    "gp": RefinerEntry(GPConfig, GaussianProcessRefiner, "SemiGPC"),
}

__all__ = [
    "REFINERS",
    "AutoOptions",
    "EnsembleOptions",
    "ExactOptions",
    "GPConfig",
    "GaussianProcessRefiner",
    "MatrixFreeOptions",
    "NoRefiner",
    "NoRefinerConfig",
    "PlacementConfig",
    "Refiner",
    "RefinerConfig",
    "RefinerEntry",
    "SimilarityConfig",
    "SimilarityRefiner",
    "auto_logit_scale",
]
