"""Labels only: the floor that every semi-supervised algorithm has to beat."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import nn

from semigpc.refiners import Refiner
from semigpc.types import Batch, Clock, HeadSpec, Networks, StepOutput, Task


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig:
    """Nothing to choose."""

    @property
    def heads(self) -> dict[str, HeadSpec]:
        """Extra heads of the network."""
        return {}


class Supervised(nn.Module):
    """L = mean H(z_x, y), on weak views of the labelled pictures alone.

    A refiner changes nothing in training, but fills its memory, so that a GP on the learnt features can be evaluated.
    """

    views = ()
    sites = ("semantic",)

    def __init__(self, config: SupervisedConfig, refiner: Refiner, task: Task) -> None:  # noqa: ARG002
        super().__init__()
        self.refiner = refiner

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:  # noqa: ARG002
        """The loss of one batch."""
        (x,) = networks.forward(batch.x)
        self.refiner.observe("before", networks, x, batch)
        loss = F.cross_entropy(self.refiner.classify(x, batch.index).logits, batch.y)
        self.refiner.observe("after", networks, x, batch)
        return StepOutput(loss, {"loss_x": loss})
