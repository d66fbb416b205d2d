"""ACR (Wei and Gan, 2023): labels adjusted by how far the rest is from three anchors; two heads."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, ExtraLoss, Step
from semigpc.addons.rebalancing import known_counts
from semigpc.losses import masked_cross_entropy
from semigpc.pseudo_labels import count_classes
from semigpc.types import HeadSpec, ModelOutput, Task, check_ranges

HEAD = "acr"


@dataclass(frozen=True, kw_only=True)
class ACRConfig(AddOnConfig):
    """Options of ACR.

    A class without labels counts as if it had one; a note in the run says so.

    Args:
        strength: T, of all adjustments: the largest of pseudo-labels, and that of the balanced
            head's labels and margin.
        threshold: of the balanced head's labels, by its own confidence or that of its labels.
        share_momentum: m of the estimated shares; 0.99 in the authors' commands.
        warmup: share of training before shares are estimated; 5 of 500 epochs in their code.
        branch_weight: of the balanced head's loss.
    """

    strength: float = 2.0
    threshold: float = 0.95
    share_momentum: float = 0.99
    warmup: float = 0.01
    branch_weight: float = 1.0

    def __post_init__(self) -> None:
        check_ranges(
            self,
            fractions=("threshold", "warmup"),
            not_negative=("strength",),
            below_one=("share_momentum",),
        )

    def heads(self, n_classes: int) -> dict[str, HeadSpec]:
        return {HEAD: HeadSpec("linear", n_classes)}


class ACR(AddOn):
    """z_w - tau log q labels; L + w ( H(b_x + T log q, y) + mean_b m_b H(b_s, argmax v) ).

    q (C,) are the class shares of the labels, b the logits of a second linear head, which predicts,
    and v = softmax(z_w - T log q) without gradient; m = 1[max v or max softmax(b_w) is at least the
    threshold]. r (C,) are the estimated shares of unlabelled images, uniform at first: r <- m r +
    (1 - m) n, n the shares of the batch's rows by argmax b_w where that is confident. With the
    symmetric divergence d(a) = (KL(r | a) + KL(a | r)) / 2 from the anchors q, uniform and q
    reversed (the most frequent class with the share of the rarest),

        tau = T e^d(q) / ( e^d(q) + e^d(uniform) + e^d(reversed) ),

    which is T until r is estimated: little where the rest is distributed as the labels are, nearly
    T where it is the other way round. The authors average d over 500 of 250 000 steps and count a
    class once in a batch; here d is that of r as it is, and every row counts. They also train on
    rows that z_w accepts without adjustment, and on two strong views.

    A step costs one more linear layer, forward and backward, and in ReMixMatch a pass over the
    un-mixed labelled batch too.
    """

    learns = True
    answers = True
    config: ACRConfig
    log_anchors: Tensor
    shares: Tensor
    strength: Tensor

    def __init__(self, config: ACRConfig, task: Task) -> None:
        super().__init__(config, task)
        counts = known_counts(self, task)
        labels = counts / counts.sum()
        by_rank = labels.argsort(descending=True, stable=True)
        opposite = torch.empty_like(labels)
        opposite[by_rank] = labels[by_rank.flip(0)]
        uniform = torch.full_like(labels, 1 / task.n_classes)
        anchors = torch.stack([labels, uniform, opposite])  # (3, C)
        self.register_buffer("log_anchors", anchors.log().float())
        self.register_buffer("shares", uniform.float())  # r
        self.register_buffer("strength", torch.tensor(config.strength))  # tau

    def weak(self, step: Step, output: ModelOutput) -> ModelOutput:
        """Return the output with z_w - tau log q (U, C) in place of z_w."""
        adjustment = self.strength * self.log_anchors[0]
        return output._replace(logits=output.logits - adjustment.to(output.logits))

    def extra_loss(
        self, step: Step, x: ModelOutput, weak: ModelOutput, strong: ModelOutput
    ) -> ExtraLoss:
        config = self.config
        margin = (config.strength * self.log_anchors[0]).to(x.logits)
        v = torch.softmax(weak.logits.detach() - margin, dim=1)  # (U, C)
        confidence, targets = v.max(dim=1)
        own, classes = torch.softmax(weak.heads[HEAD].detach(), dim=1).max(dim=1)
        mask = (confidence >= config.threshold) | (own >= config.threshold)  # (U,)

        loss_x = F.cross_entropy(x.heads[HEAD] + margin, step.batch.y)
        loss_u = masked_cross_entropy(strong.heads[HEAD], targets, mask)
        if step.clock.progress >= config.warmup:
            self._estimate(classes, own >= config.threshold)
        return ExtraLoss(
            config.branch_weight * (loss_x + loss_u),
            {
                "loss_acr_x": loss_x,
                "loss_acr_u": loss_u,
                "mask_rate_acr": mask.float().mean(),
                "strength_acr": self.strength.clone(),
            },
        )

    def answer(self, output: ModelOutput) -> Tensor:
        return output.heads[HEAD]

    def _estimate(self, classes: Tensor, mask: Tensor) -> None:
        """Move r towards the classes (U,) in the mask (U,), and set tau."""
        counts = count_classes(classes, len(self.shares), mask).to(self.shares)
        total = counts.sum()
        found = torch.where(total > 0, counts / total.clamp_min(1), self.shares)
        self.shares.lerp_(found, 1 - self.config.share_momentum)
        log_shares = self.shares.clamp_min(torch.finfo(self.shares.dtype).tiny).log()
        gaps = (self.shares - self.log_anchors.exp()) * (log_shares - self.log_anchors)  # (3, C)
        distances = gaps.sum(dim=1) / 2  # both KLs together
        self.strength.copy_(self.config.strength * torch.softmax(distances, dim=0)[0])
