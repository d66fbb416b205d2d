"""No refinement: the base algorithm."""

from dataclasses import dataclass

from torch import Tensor, nn

from semigpc.refiners.confidence import largest_probability
from semigpc.refiners.placement import Moment, Site
from semigpc.types import Batch, ModelOutput, Networks


@dataclass(frozen=True, kw_only=True)
class NoRefinerConfig:
    """Nothing to choose."""


class NoRefiner(nn.Module):
    """Hands everything back untouched."""

    observes = False

    def classify(self, output: ModelOutput, index: Tensor | None = None) -> ModelOutput:  # noqa: ARG002
        """The network's own logits."""
        return output

    def refine(self, site: Site, output: ModelOutput, probs: Tensor) -> Tensor:  # noqa: ARG002
        """The algorithm's own probabilities."""
        return probs

    def confidence(self, output: ModelOutput, probs: Tensor) -> Tensor:  # noqa: ARG002
        """The largest probability."""
        return largest_probability(probs)

    def observe(self, moment: Moment, networks: Networks, x: ModelOutput, batch: Batch) -> None:
        """Remembers nothing."""
