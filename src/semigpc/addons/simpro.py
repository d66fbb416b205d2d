"""SimPro (Du et al., 2024): class shares of unlabelled images by expectation-maximisation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, Step
from semigpc.addons.rebalancing import known_counts
from semigpc.pseudo_labels import count_classes
from semigpc.types import ModelOutput, Task, check_ranges


@dataclass(frozen=True, kw_only=True)
class SimProConfig(AddOnConfig):
    """Options of SimPro.

    A class without labels counts at first as if it had one; a note in the run says so.

    Args:
        strength: tau, of the label and of the margin alike; 1 is Bayes' rule. The authors use 2 for
            CIFAR-10 and STL-10.
        threshold: labels of this confidence are counted; 0 counts all of them, as the M-step has
            it. The authors' code has 0.95, for CIFAR-100 and ImageNet 0.2.
        share_momentum: m of both running shares, below 1.
        every: share of training between two M-steps; 500 of 43 000 steps in the authors' CIFAR
            runs.
        labeled_weight: a, of the labelled loss. The authors take U N / (B u) for N labelled and u
            unlabelled images, about 1 where both have a long tail on CIFAR-10; with 4 labels of
            each class it would be next to 0, which costs accuracy in short runs.
    """

    strength: float = 1.0
    threshold: float = 0.0
    share_momentum: float = 0.9
    every: float = 0.012
    labeled_weight: float = 1.0

    def __post_init__(self) -> None:
        check_ranges(
            self,
            fractions=("threshold", "every"),
            not_negative=("strength",),
            below_one=("share_momentum",),
        )


class SimPro(AddOn):
    """E: p' = softmax(log p + tau log r); M: r, s <- m . + (1 - m) counts; L = a L_x + w_u L_u.

    Both losses use z + tau log s, so that z itself is balanced and predicts. p (U, C) is the weak
    view's, as a refiner leaves it; of a network alone p' = softmax(z_w + tau log r). r (C,) are the
    shares of unlabelled images, uniform at first, s those of all images together, at first those of
    the labels; nothing is assumed about r. Each M-step counts labels over ``every``: r follows the
    sums of finished labels that reach the threshold, divided by their total plus 1, and s these
    plus the labelled rows, divided by their total. Alignment, mask and targets follow from p'; an
    alignment to fixed shares, as in SimMatch or ReMixMatch, takes r out of the labels again. w_u is
    the algorithm's. The original also trains on strong labelled views and on two strong views of
    the others.

    Shares are floored at the smallest normal number before their logarithm. A step costs a few
    operations on (U, C).
    """

    config: SimProConfig
    shares: Tensor
    all_shares: Tensor
    counted: Tensor
    counted_labels: Tensor

    def __init__(self, config: SimProConfig, task: Task) -> None:
        super().__init__(config, task)
        n = task.n_classes
        self.register_buffer("shares", torch.full((n,), 1 / n))  # r
        labels = known_counts(self, task)
        self.register_buffer("all_shares", (labels / labels.sum()).float())  # s
        self.register_buffer("counted", torch.zeros(n))  # sums of labels since the last M-step
        self.register_buffer("counted_labels", torch.zeros(n))

    def opinion(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        return torch.softmax(probs.log() + self._margin(self.shares, probs), dim=1)

    def targets(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        """Count the labels (U, C); after the last step of a count, update the shares."""
        accepted = probs.amax(dim=1, keepdim=True) >= self.config.threshold
        self.counted += (probs * accepted).sum(dim=0).to(self.counted)
        self.counted_labels += count_classes(step.batch.y, len(self.counted))
        every = max(1, round(self.config.every * step.clock.total_steps))
        if (step.clock.step + 1) % every == 0:
            self._maximise()
        return probs

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        adjusted = logits + self._margin(self.all_shares, logits)
        return self.config.labeled_weight * super().labeled_loss(step, adjusted, targets)

    def unlabeled_loss(
        self, step: Step, logits: Tensor, targets: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        adjusted = logits + self._margin(self.all_shares, logits)
        return super().unlabeled_loss(step, adjusted, targets, mask)

    def _maximise(self) -> None:
        """Move r and s towards what was counted, and start counting again."""
        rate = 1 - self.config.share_momentum
        self.shares.lerp_(self.counted / (self.counted.sum() + 1), rate)
        together = self.counted + self.counted_labels
        self.all_shares.lerp_(together / together.sum(), rate)
        self.counted.zero_()
        self.counted_labels.zero_()

    def _margin(self, shares: Tensor, like: Tensor) -> Tensor:
        """tau log of shares (C,)."""
        floor = torch.finfo(shares.dtype).tiny
        return self.config.strength * shares.clamp_min(floor).log().to(like)
