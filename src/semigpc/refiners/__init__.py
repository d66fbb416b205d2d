"""Refiners: they turn the classifier's probabilities for an unlabelled image into its pseudo-label.

An algorithm calls ``classify`` on the network's output, ``refine`` at each site where probabilities
become targets, ``confidence`` to compare with its threshold, and ``observe`` at the beginning and
at the end of a step. To add a refiner, write a file with a config and a class with these four
methods and the attribute ``observes``, and add a line to ``REFINERS``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from semigpc.gp.certainty import auto_logit_scale
from semigpc.refiners.base import NoRefiner, NoRefinerConfig, PlacementConfig, Refiner
from semigpc.refiners.engines import (
    AutoOptions,
    EnsembleOptions,
    ExactOptions,
    GPConfig,
    MatrixFreeOptions,
)
from semigpc.refiners.gaussian_process import GaussianProcessRefiner
from semigpc.refiners.similarity import SimilarityConfig, SimilarityRefiner


class RefinerEntry(NamedTuple):
    """A refiner's config, how it is made from (config, n_features, n_classes, device=None), and its
    name in tables.
    """

    config: type[Any]
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
    "RefinerEntry",
    "SimilarityConfig",
    "SimilarityRefiner",
    "auto_logit_scale",
]
