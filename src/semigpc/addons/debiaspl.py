"""DebiasPL (Wang et al., 2022): the running shares of the classes are taken out of pseudo-labels
and put into the loss.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, Step
from semigpc.types import ModelOutput, Task, check_ranges


@dataclass(frozen=True, kw_only=True)
class DebiasPLConfig(AddOnConfig):
    """Options of DebiasPL.

    Args:
        strength: lambda, of the debiasing and of the margin alike; 0 leaves the algorithm as it is.
        share_momentum: m of the running shares r, below 1, at which they would stay uniform; it has
            nothing to do with that of the network's moving average.
    """

    strength: float = 0.4
    share_momentum: float = 0.999

    def __post_init__(self) -> None:
        check_ranges(self, not_negative=("strength",), below_one=("share_momentum",))


class DebiasPL(AddOn):
    """p' = softmax(log p - lambda log r) is the opinion, H(z_s + lambda log r, t) the unlabelled
    loss.

    p (U, C) is the weak view's, as a refiner leaves it; of a network alone p' = softmax(z_w -
    lambda log r). r (C,) starts uniform and follows the opinion as it was before debiasing, r <- m
    r + (1 - m) mean_b p. As in the original, pseudo-labels are made with r as the last step left
    it, then r takes the batch in, then the loss uses the new r. Alignment, mask and targets are
    taken from p'. The optional CLD loss of the original is not part of this.

    Shares are floored at the smallest normal number before their logarithm is taken, for runs so
    long that a class nobody predicts would reach 0. A step costs a few operations on (U, C).
    """

    shares: Tensor

    def __init__(self, config: DebiasPLConfig, task: Task) -> None:
        super().__init__(config, task)
        self.config = config
        self.register_buffer("shares", torch.full((task.n_classes,), 1 / task.n_classes))

    def opinion(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        debiased = torch.softmax(probs.log() - self._bias(probs), dim=1)
        self.shares.lerp_(probs.mean(dim=0).to(self.shares), 1 - self.config.share_momentum)
        return debiased

    def unlabeled_loss(
        self, step: Step, logits: Tensor, targets: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        return super().unlabeled_loss(step, logits + self._bias(logits), targets, mask)

    def _bias(self, like: Tensor) -> Tensor:
        """lambda log r, (C,)."""
        floor = torch.finfo(self.shares.dtype).tiny
        return self.config.strength * self.shares.clamp_min(floor).log().to(like)
