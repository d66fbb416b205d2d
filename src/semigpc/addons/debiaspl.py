"""DebiasPL (Wang et al., 2022): pseudo-labels and loss are corrected by running class shares."""

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
        share_momentum: m of the running shares r, below 1, at which they would stay uniform; not
            that of the network's moving average.
    """

    strength: float = 0.4
    share_momentum: float = 0.999

    def __post_init__(self) -> None:
        check_ranges(self, not_negative=("strength",), below_one=("share_momentum",))


class DebiasPL(AddOn):
    """The label is p' = softmax(log p - lambda log r), the loss H(z_s + lambda log r, t).

    p (U, C) is the weak view's, as a refiner leaves it; of a network alone p' = softmax(z_w -
    lambda log r). r (C,) starts uniform and follows p, r <- m r + (1 - m) mean_b p. As in the
    original, pseudo-labels use the r of the last step, then r is updated with the batch, then the
    loss uses the new r. Alignment, mask and targets follow from p'. The optional CLD loss of the
    original is left out.

    Shares are floored at the smallest normal number before their logarithm, since in a long run
    that of a class which is never predicted would reach 0. A step costs a few operations on (U, C).
    """

    config: DebiasPLConfig
    shares: Tensor

    def __init__(self, config: DebiasPLConfig, task: Task) -> None:
        super().__init__(config, task)
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
