"""Labels only: the baseline of every semi-supervised algorithm."""

from dataclasses import dataclass

from semigpc.addons import Step
from semigpc.algorithms.base import Algorithm, AlgorithmConfig
from semigpc.types import Batch, Clock, Networks, StepOutput


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig(AlgorithmConfig):
    """There are no options."""


class Supervised(Algorithm):
    """L = mean H(z_x, y), on weak views of the labelled images.

    A refiner does not change the training; its memory is filled, so that a GP on the learnt
    features can be evaluated.
    """

    takes_addons = True

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        (x,) = networks.forward(batch.x)
        self.refiner.observe("before", x, batch)
        logits = self.refiner.classify(x, batch.index).logits
        loss = self.addon.labeled_loss(Step(networks, batch, clock), logits, batch.y)
        self.refiner.observe("after", x, batch)
        return StepOutput(loss, {"loss_x": loss})
