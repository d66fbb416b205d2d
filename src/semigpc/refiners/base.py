"""What refiners have in common: the interface, the place where one acts in an algorithm, and the
one that does nothing.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.types import Batch, HostState, ModelOutput

Site = Literal["semantic", "aggregate", "final"]
Moment = Literal["before", "after"]


class Refiner(Protocol):
    """The interface of a refiner. Each is an ``nn.Module`` too, so that its memory is part of
    ``state_dict``.
    """

    @property
    def observes(self) -> bool:
        """Whether it uses labelled features at all."""

    def classify(self, output: ModelOutput, index: Tensor | None = None) -> ModelOutput:
        """Replace the logits of a view; ``index`` (M,) are positions in the labelled set, for
        labelled images.
        """

    def refine(self, site: Site, output: ModelOutput, probs: Tensor) -> Tensor:
        """Replace the probabilities (U, C) of the weak view at a site."""

    def confidence(self, output: ModelOutput, probs: Tensor) -> Tensor:
        """Return the confidence (U,), in [0, 1], of the finished pseudo-labels ``probs`` (U, C); no
        gradient.
        """

    def observe(self, moment: Moment, x: ModelOutput, batch: Batch) -> None:
        """Take in the labelled batch; called before the first and after the last other call of a
        step.

        ``x`` (B rows) must be of the network whose weak views are refined: a kernel between
        features of two networks, such as a student and its average, is no likeness of images.
        """


@dataclass(frozen=True, kw_only=True)
class PlacementConfig:
    """Where and when a refiner acts in an algorithm.

    Args:
        site: what is replaced: the weak probabilities (``semantic``), the memory's label inside the
            smoothing of SimMatch and CoMatch (``aggregate``), or SimMatch's finished pseudo-label
            (``final``).
        blend: b in (1 - b) p + b p_refined.
        feature: the backbone's feature h, or the projection e where the algorithm has one.
        l2norm: whether features are put on the unit sphere.
        push: whether a batch enters the memory after the step has read it, or before.
        warmup_steps: steps during which the memory fills but the algorithm keeps its own
            probabilities.
    """

    site: Site = "semantic"
    blend: float = 1.0
    feature: Literal["backbone", "projection"] = "backbone"
    l2norm: bool = True
    push: Moment = "after"
    warmup_steps: int = 1024

    def __post_init__(self) -> None:
        if not 0 <= self.blend <= 1:
            raise ValueError(f"blend must lie in [0, 1]; got {self.blend}.")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative; got {self.warmup_steps}.")


class Placement(HostState):
    """Applies a :class:`PlacementConfig`; its only state is the number of steps so far."""

    on_host = ("steps",)
    steps: Tensor

    def __init__(self, config: PlacementConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("steps", torch.tensor(0))

    @property
    def warm(self) -> bool:
        """Whether the warm-up is over."""
        return int(self.steps) >= self.config.warmup_steps

    def acts_at(self, site: Site) -> bool:
        """Whether the probabilities at this site are to be refined now."""
        return self.warm and site == self.config.site

    def mix(self, probs: Tensor, refined: Tensor) -> Tensor:
        """(1 - b) p + b p_refined, in the type of p."""
        b = self.config.blend
        return refined.to(probs) if b == 1 else (1 - b) * probs + b * refined.to(probs)

    def features(self, output: ModelOutput) -> Tensor:
        """Return features (M, D), float32 or float64, on the unit sphere if so configured."""
        raw = output.features if self.config.feature == "backbone" else output.heads["projection"]
        raw = raw if raw.dtype == torch.float64 else raw.float()
        return F.normalize(raw, dim=1) if self.config.l2norm else raw


@dataclass(frozen=True, kw_only=True)
class NoRefinerConfig:
    """No refinement: the base algorithm."""


class NoRefiner(nn.Module):
    """Leaves everything unchanged: the base algorithm."""

    observes = False

    def classify(self, output: ModelOutput, index: Tensor | None = None) -> ModelOutput:
        """Return the network's own logits."""
        return output

    def refine(self, site: Site, output: ModelOutput, probs: Tensor) -> Tensor:
        """Return the algorithm's own probabilities."""
        return probs

    def confidence(self, output: ModelOutput, probs: Tensor) -> Tensor:
        """Return the largest probability, (U,)."""
        return probs.amax(dim=1)

    def observe(self, moment: Moment, x: ModelOutput, batch: Batch) -> None:
        """Do nothing."""
