"""Where, when and how much a refiner speaks: what the similarity and the GP refiner have in common."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from semigpc.types import Batch, HostState, ModelOutput, Networks

Site = Literal["semantic", "aggregate", "final"]
Moment = Literal["before", "after"]


@dataclass(frozen=True, kw_only=True)
class PlacementConfig:
    """How a refiner is put into an algorithm (algorithms section 3.6).

    Args:
        site: what is replaced: the weak probabilities (``semantic``), the memory's answer inside the smoothing of SimMatch and
            CoMatch (``aggregate``), or SimMatch's finished pseudo-label (``final``).
        blend: b in (1 - b) p + b p_refined.
        feature: the backbone's feature h, or the projection e where the algorithm has one.
        l2norm: whether features are put on the unit sphere.
        source: which network sees the labelled batch for the memory: the student's own pass, or its moving average.
        push: whether a batch enters the memory after the step has asked it, or before.
        warmup_steps: steps during which the memory fills but the algorithm keeps its own probabilities.
    """

    site: Site = "semantic"
    blend: float = 1.0
    feature: Literal["backbone", "projection"] = "backbone"
    l2norm: bool = True
    source: Literal["student", "ema"] = "student"
    push: Moment = "after"
    warmup_steps: int = 1024

    def __post_init__(self) -> None:
        if not 0 <= self.blend <= 1:
            raise ValueError(f"blend must lie in [0, 1]; got {self.blend}.")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative; got {self.warmup_steps}.")


class Placement(HostState):
    """Carries out a :class:`PlacementConfig`; its only state is the number of steps seen."""

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

    def speaks_at(self, site: Site) -> bool:
        """Whether the probabilities at this site are to be refined now."""
        return self.warm and site == self.config.site

    def mix(self, probs: Tensor, refined: Tensor) -> Tensor:
        """(1 - b) p + b p_refined, in the type of p."""
        b = self.config.blend
        return refined.to(probs) if b == 1 else (1 - b) * probs + b * refined.to(probs)

    def features(self, output: ModelOutput) -> Tensor:
        """(M, D) in float32 at least, on the unit sphere if so configured."""
        raw = output.features if self.config.feature == "backbone" else output.heads["projection"]
        raw = raw if raw.dtype == torch.float64 else raw.float()
        return F.normalize(raw, dim=1) if self.config.l2norm else raw

    @torch.no_grad()
    def memorable(self, networks: Networks, x: ModelOutput, batch: Batch) -> Tensor:
        """(B, D) features of the labelled batch as the memory should hold them."""
        output = x if self.config.source == "student" else networks.ask_teacher(batch.x)
        return self.features(output).detach()
