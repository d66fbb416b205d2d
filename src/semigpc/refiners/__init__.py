"""Refiners: what stands between the classifier's opinion of an unlabelled image and its pseudo-label.

An algorithm calls ``classify`` on what the network said, ``refine`` at each site where probabilities become targets,
``confidence`` where it asks how far to trust them, and ``observe`` at the beginning and at the end of a step. To add a refiner,
write a file with a config and a class that has these four and ``observes``, and list it in ``REFINERS``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from semigpc.gp.certainty import auto_logit_scale
from semigpc.refiners.engines import AutoOptions, EnsembleOptions, ExactOptions, LowRankOptions, MatrixFreeOptions
from semigpc.refiners.gaussian_process import GaussianProcessRefiner
from semigpc.refiners.gp_config import GPConfig
from semigpc.refiners.none import NoRefiner, NoRefinerConfig
from semigpc.refiners.placement import Moment, PlacementConfig, Site
from semigpc.refiners.similarity import SimilarityConfig, SimilarityRefiner
from semigpc.types import Batch, ModelOutput, Networks


class Refiner(Protocol):
    """What an algorithm asks of a refiner. Each is an ``nn.Module`` too, so that its memory is part of ``state_dict``."""

    @property
    def observes(self) -> bool:
        """Whether it wants to see labelled features at all."""

    def classify(self, output: ModelOutput, index: Tensor | None = None) -> ModelOutput:
        """Replace the logits of a view; ``index`` (M,) says which labelled images these are, where they are."""

    def refine(self, site: Site, output: ModelOutput, probs: Tensor) -> Tensor:
        """Replace the probabilities (U, C) of the weak view at a site."""

    def confidence(self, output: ModelOutput, probs: Tensor) -> Tensor:
        """How sure the finished pseudo-labels ``probs`` (U, C) of these images are, (U,) in [0, 1]; no gradient."""

    def observe(self, moment: Moment, networks: Networks, x: ModelOutput, batch: Batch) -> None:
        """Take in the labelled batch; called before anything is asked, and after everything is."""


class RefinerEntry(NamedTuple):
    """A refiner's config, and how it is made from (config, n_features, n_classes, device=None)."""

    config: type[Any]
    build: Callable[..., Refiner]


REFINERS: dict[str, RefinerEntry] = {
    "none": RefinerEntry(NoRefinerConfig, lambda *_sizes, **_device: NoRefiner()),
    "similarity": RefinerEntry(SimilarityConfig, SimilarityRefiner),
    "gp": RefinerEntry(GPConfig, GaussianProcessRefiner),
}

__all__ = [
    "REFINERS",
    "AutoOptions",
    "EnsembleOptions",
    "ExactOptions",
    "GPConfig",
    "GaussianProcessRefiner",
    "LowRankOptions",
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
