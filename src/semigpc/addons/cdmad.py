"""CDMAD (Lee and Kim, 2024): logits less those of an image without content."""

from dataclasses import dataclass

import torch
from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, Step
from semigpc.types import ModelOutput, Task, check_ranges


@dataclass(frozen=True, kw_only=True)
class CDMADConfig(AddOnConfig):
    """Options of CDMAD.

    Args:
        warmup: share of training before pseudo-labels are debiased; 100 of 500 epochs in the
            authors' code. Predictions are debiased at any time.
        pixel: every pixel of I after normalisation; 1 in the authors' code.
    """

    warmup: float = 0.2
    pixel: float = 0.0

    def __post_init__(self) -> None:
        check_ranges(self, fractions=("warmup",))

    @property
    def blank_pixel(self) -> float:
        """The same."""
        return self.pixel


class CDMAD(AddOn):
    """z*(u) = z(u) - z(I) for weak views after the warm-up, and for every prediction.

    I is an image without content, whose logits show which classes the network prefers whatever it
    sees. As in the authors' code, its pixels are 1 after normalisation; with cached features it is
    the frozen network's row of that image. z(I) (C,) is computed in every step by the network that
    the weak views went through, and before an evaluation or a checkpoint by the evaluated one: a
    checkpoint and an exported file have it as numbers. Here that network is in evaluation mode; in
    the authors' code it normalises I in training by I's own statistics, and counts these among the
    running ones.

    Threshold, alignment and kind of target stay the algorithm's. The authors train FixMatch with
    all soft labels: ``algorithm.threshold=0``, ``algorithm.hard_labels=false``,
    ``algorithm.temperature=1``. A step costs one more pass over one image, without gradient.
    """

    answers = True
    config: CDMADConfig
    bias: Tensor

    def __init__(self, config: CDMADConfig, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer("bias", torch.zeros(task.n_classes))

    def see_blank(self, output: ModelOutput) -> None:
        self.bias.copy_(output.logits[0])

    def weak(self, step: Step, output: ModelOutput) -> ModelOutput:
        """Return the output with z* (U, C) in place of z, after the warm-up."""
        if self.blank is None:
            raise ValueError("CDMAD needs an image without content; Task.blank is None.")
        if step.clock.progress < self.config.warmup:
            return output
        return output._replace(logits=self.answer(output))

    def answer(self, output: ModelOutput) -> Tensor:
        return output.logits - self.bias.to(output.logits)
