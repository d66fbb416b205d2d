"""Logit adjustment (Menon et al., 2021): a margin by class shares, in the labelled loss or at the end."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, Step
from semigpc.addons.class_weights import known_counts
from semigpc.types import ModelOutput, Task


@dataclass(frozen=True, kw_only=True)
class LogitAdjustmentConfig(AddOnConfig):
    """Options of logit adjustment.

    Args:
        strength: tau; 1 is consistent for balanced error.
        place: ``loss`` trains with z + tau log pi and judges by z; ``answer`` trains as ever and judges by z - tau log pi.
    """

    needs_unlabeled: ClassVar[bool] = False
    strength: float = 1.0
    place: Literal["loss", "answer"] = "loss"

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise ValueError(f"strength must not be negative, which would favour frequent classes; got {self.strength}.")


class LogitAdjustment(AddOn):
    """L_x = H(z_x + tau log pi, y) with pi the labelled class shares, or argmax_c z_c - tau log pi_c of a plain network.

    Pseudo-labels come from z. It costs nothing to speak of.
    """

    margin: Tensor

    def __init__(self, config: LogitAdjustmentConfig, task: Task) -> None:
        super().__init__(config, task)
        self.in_loss, self.answers = config.place == "loss", config.place == "answer"
        counts = known_counts(self, task)
        self.register_buffer("margin", (config.strength * (counts / counts.sum()).log()).float())

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy of shifted logits (B, C)."""
        return super().labeled_loss(step, logits + self.margin.to(logits) if self.in_loss else logits, targets)

    def answer(self, output: ModelOutput) -> Tensor:
        """z - tau log pi, (M, C)."""
        return output.logits - self.margin.to(output.logits)
