"""Labels only: the floor that every semi-supervised algorithm has to beat."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from semigpc.addons import AddOn, Step
from semigpc.refiners import Refiner
from semigpc.types import Batch, Clock, HeadSpec, Networks, StepOutput, Task


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig:
    """Nothing to choose."""

    heads: ClassVar[dict[str, HeadSpec]] = {}


class Supervised(nn.Module):
    """L = mean H(z_x, y), on weak views of the labelled images alone.

    A refiner changes nothing in training, but fills its memory, so that a GP on the learnt features
    can be evaluated.
    """

    views = ()
    sites = ("semantic",)
    takes_addons = True

    def __init__(
        self, config: SupervisedConfig, refiner: Refiner, task: Task, addon: AddOn | None = None
    ) -> None:
        super().__init__()
        self.refiner, self.addon = refiner, addon or AddOn.none(task)

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        (x,) = networks.forward(batch.x)
        self.refiner.observe("before", x, batch)
        loss = self.addon.labeled_loss(
            Step(networks, batch, clock), self.refiner.classify(x, batch.index).logits, batch.y
        )
        self.refiner.observe("after", x, batch)
        return StepOutput(loss, {"loss_x": loss})
