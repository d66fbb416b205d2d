"""The kernel average over a memory that SimMatch and CoMatch use, as a refiner for any algorithm."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semigpc.pseudo_labels import one_hot
from semigpc.refiners.base import Moment, Placement, PlacementConfig, Site
from semigpc.refiners.buffers import BalancedBuffer, FIFOBuffer
from semigpc.types import Batch, ModelOutput


@dataclass(frozen=True, kw_only=True)
class SimilarityConfig(PlacementConfig):
    """The similarity refiner.

    Args:
        buffer_size: N_Q, labelled entries remembered.
        balanced: one ring of N_Q / C entries for each class instead of one queue.
        temperature: T.
    """

    buffer_size: int = 16300
    balanced: bool = False
    temperature: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive; got {self.temperature}.")


class SimilarityRefiner(nn.Module):
    """p(x) = softmax_j( h(x) . h_j / T ) Y_Q: every labelled entry votes for its class, so a larger
    class has more votes.

    This is what the GP replaces, and what it tends to as sigma^2 / eta grows. A query costs O(M N
    (D + C)), a write O(B D).

    Args:
        config: the switches.
        n_features: D.
        n_classes: C.
        device: where the features are stored.
    """

    observes = True
    features: Tensor

    def __init__(
        self,
        config: SimilarityConfig,
        n_features: int,
        n_classes: int,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.config, self.n_classes = config, n_classes
        self.placement = Placement(config)
        self.buffer = (BalancedBuffer if config.balanced else FIFOBuffer)(
            config.buffer_size, n_classes
        )
        self.register_buffer("features", torch.zeros(config.buffer_size, n_features, device=device))

    def classify(self, output: ModelOutput, index: Tensor | None = None) -> ModelOutput:
        """The network's own logits."""
        return output

    @torch.no_grad()
    def probs(self, output: ModelOutput) -> Tensor:
        """(M, C) votes of the memory; 1/C each while it is empty."""
        slots = self.buffer.entries.occupied.nonzero().squeeze(1)
        queries = self.placement.features(output)
        if not len(slots):
            return queries.new_full((len(queries), self.n_classes), 1 / self.n_classes)
        labels = self.buffer.entries.labels[slots].to(queries.device, non_blocking=True)
        slots = slots.to(queries.device, non_blocking=True)
        votes = torch.softmax(
            queries @ self.features[slots].to(queries).mT / self.config.temperature, dim=1
        )
        return votes @ one_hot(labels, self.n_classes).to(votes)

    def refine(self, site: Site, output: ModelOutput, probs: Tensor) -> Tensor:
        """The memory's votes in place of ``probs`` (U, C), at the site and after the warm-up that
        are configured.
        """
        return (
            self.placement.mix(probs, self.probs(output)) if self.placement.acts_at(site) else probs
        )

    def confidence(self, output: ModelOutput, probs: Tensor) -> Tensor:
        """The largest probability."""
        return probs.amax(dim=1)

    @torch.no_grad()
    def observe(self, moment: Moment, x: ModelOutput, batch: Batch) -> None:
        """Write the labelled batch, at the moment that is configured."""
        if moment == self.config.push:
            self.write(self.placement.features(x), batch.y, batch.index)
        if moment == "after":
            self.placement.steps += 1

    @torch.no_grad()
    def write(self, features: Tensor, labels: Tensor, index: Tensor | None = None) -> None:
        """Put labelled features (B, D), normalised already, into the memory. O(B D)."""
        written = self.buffer.write(labels, index)
        slots, rows = (part.to(features.device, non_blocking=True) for part in written)
        self.features[slots] = features[rows].to(self.features)
