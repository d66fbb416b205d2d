"""The kernel average over a memory, as in SimMatch and CoMatch, as a refiner for any algorithm."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from semigpc.pseudo_labels import one_hot
from semigpc.refiners.base import Device, Moment, Placement, PlacementConfig, Refiner, Site
from semigpc.refiners.buffers import build_buffer
from semigpc.types import Batch, ModelOutput, check_ranges


@dataclass(frozen=True, kw_only=True)
class SimilarityConfig(PlacementConfig):
    """The similarity refiner.

    Args:
        temperature: T.
    """

    temperature: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, positive=("temperature",))

    def in_paper(self, *, temperature: float, n_classes: int, balanced: bool) -> Self:
        """Return these options with SimMatch's temperature, and a balanced buffer or not."""
        return replace(self, temperature=temperature, balanced=balanced)


class SimilarityRefiner(Refiner):
    """p(x) = softmax_j( h(x) . h_j / T ) Y_Q: every labelled entry votes for its class.

    So a larger class has more votes. This is what the GP replaces, and what it tends to as
    sigma^2 / eta grows. A query costs O(M N (D + C)), a write O(B D).

    Args:
        config: the options.
        n_features: D.
        n_classes: C.
        device: where the features are stored.
    """

    observes = True
    features: Tensor

    def __init__(
        self, config: SimilarityConfig, n_features: int, n_classes: int, *, device: Device = None
    ) -> None:
        super().__init__()
        self.config = config
        self.n_classes = n_classes
        self.placement = Placement(config)
        self.buffer = build_buffer(config.buffer_size, n_classes, balanced=config.balanced)
        self.register_buffer("features", torch.zeros(config.buffer_size, n_features, device=device))

    @property
    def entries_per_class(self) -> int:
        """Rows of each class in a balanced buffer, which training fills; 0 otherwise."""
        return self.buffer.entries_per_class

    @torch.no_grad()
    def probs(self, output: ModelOutput) -> Tensor:
        """Return the votes of the memory, (M, C); 1/C each while it is empty."""
        slots = self.buffer.entries.occupied.nonzero().squeeze(1)
        queries = self.placement.features(output)
        if not len(slots):
            return queries.new_full((len(queries), self.n_classes), 1 / self.n_classes)
        labels = self.buffer.entries.labels[slots].to(queries.device, non_blocking=True)
        slots = slots.to(queries.device, non_blocking=True)
        products = queries @ self.features[slots].to(queries).mT
        votes = torch.softmax(products / self.config.temperature, dim=1)
        return votes @ one_hot(labels, self.n_classes).to(votes)

    def refine(self, site: Site, output: ModelOutput, probs: Tensor) -> Tensor:
        """Return the memory's votes in place of ``probs`` (U, C), at the configured site."""
        if not self.placement.acts_at(site):
            return probs
        return self.placement.mix(probs, self.probs(output))

    @torch.no_grad()
    def observe(self, moment: Moment, x: ModelOutput, batch: Batch) -> None:
        """Write the labelled batch, at the configured moment."""
        if moment == self.config.push:
            self.store(x, batch.y, batch.index)
        if moment == "after":
            self.placement.steps += 1

    @torch.no_grad()
    def store(self, output: ModelOutput, labels: Tensor, index: Tensor | None = None) -> None:
        """Write labelled images (B rows) into the memory. O(B D)."""
        features = self.placement.features(output)
        written = self.buffer.write(labels, index)
        slots, rows = (part.to(features.device, non_blocking=True) for part in written)
        self.features[slots] = features[rows].to(self.features)
