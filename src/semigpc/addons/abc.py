"""ABC (Lee et al., 2021): a second classifier, trained on fewer examples of frequent classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, ExtraLoss, Step
from semigpc.losses import masked_cross_entropy
from semigpc.types import HeadSpec, ModelOutput, Task, check_ranges

HEAD = "abc"


@dataclass(frozen=True, kw_only=True)
class ABCConfig(AddOnConfig):
    """Options of ABC.

    A class without labels is treated as the rarest class that has some, as a smallest count of 0
    would remove every example; a note in the run says so.

    Args:
        threshold: tau, of the second head's own confidence.
        hard_labels: its argmax as target, as in USB; otherwise its probabilities, as in the
            original.
        abc_weight: of its loss.
    """

    threshold: float = 0.95
    hard_labels: bool = False
    abc_weight: float = 1.0

    def __post_init__(self) -> None:
        check_ranges(self, fractions=("threshold",))

    def heads(self, n_classes: int) -> dict[str, HeadSpec]:
        return {HEAD: HeadSpec("linear", n_classes)}


class ABC(AddOn):
    """L = ... + w ( mean_b m_b H(a_x, y) + mean_b 1[max q >= tau] m'_b H(a_s, q) ).

    a are the logits of a second linear head on h, and q = softmax(a_w) without gradient.
    m ~ Bernoulli(n_min / n_y), and m' ~ Bernoulli(1 - e (1 - n_min / n_c)), c = argmax q and e the
    share of training done: pseudo-labels are balanced gradually. Both means divide by the whole
    batch; the gradient reaches the features too. Evaluation uses this head. The original adds the
    same loss on a second strong view; here there is one, as in USB. Draws from torch's generator: a
    uniform number for each labelled row, then for each unlabelled one.

    A step costs one more linear layer, forward and backward, and in ReMixMatch a pass over the
    un-mixed labelled batch too.
    """

    learns = True
    answers = True
    config: ABCConfig
    keep: Tensor

    def __init__(self, config: ABCConfig, task: Task) -> None:
        super().__init__(config, task)
        counts = task.class_counts.float()
        if missing := (counts == 0).nonzero().flatten().tolist():
            self.note(
                f"ABC: no labels of class {', '.join(map(str, missing))}; "
                "treated as one of the rarest class."
            )
        rarest = counts[counts > 0].min()
        self.register_buffer("keep", rarest / counts.clamp_min(rarest))  # (C,) n_min / n_c

    def extra_loss(
        self, step: Step, x: ModelOutput, weak: ModelOutput, strong: ModelOutput
    ) -> ExtraLoss:
        config = self.config
        y = step.batch.y
        kept_x = self._draw(self.keep[y])  # (B,)
        probs = torch.softmax(weak.heads[HEAD].detach(), dim=1)  # (U, C)
        confidence, classes = probs.max(dim=1)
        kept_u = self._draw(1 - step.clock.progress * (1 - self.keep[classes]))  # (U,)
        kept_u = kept_u & (confidence >= config.threshold)

        targets = classes if config.hard_labels else probs
        loss_x = masked_cross_entropy(x.heads[HEAD], y, kept_x)
        loss_u = masked_cross_entropy(strong.heads[HEAD], targets, kept_u)
        return ExtraLoss(
            config.abc_weight * (loss_x + loss_u),
            {"loss_abc_x": loss_x, "loss_abc_u": loss_u, "mask_rate_abc": kept_u.float().mean()},
        )

    def answer(self, output: ModelOutput) -> Tensor:
        return output.heads[HEAD]

    @staticmethod
    def _draw(probs: Tensor) -> Tensor:
        return torch.rand(len(probs), device=probs.device) < probs
