"""The contract of an add-on: one method per point where an algorithm or training calls it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.losses import masked_cross_entropy, soft_cross_entropy
from semigpc.types import Batch, Clock, HeadSpec, ModelOutput, Networks, StepOutput, Task


class Step(NamedTuple):
    """The networks, the batch and the clock of a step, which add-ons receive."""

    networks: Networks
    batch: Batch
    clock: Clock


class Survey(NamedTuple):
    """The evaluated network's outputs for all training images, without augmentation.

    Shapes: ``labeled`` n rows with labels ``y`` (n,); ``unlabeled`` u rows, in the order of the
    unlabelled set. No gradients.
    """

    labeled: ModelOutput
    y: Tensor
    unlabeled: ModelOutput


@dataclass(frozen=True)
class ExtraLoss:
    """A loss of the add-on, already weighted, and its named parts (scalars)."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AddOnConfig:
    """Options of an add-on, and its requirements, which are checked before anything is built."""

    needs_unlabeled: ClassVar[bool] = True  # an algorithm that learns from unlabelled images
    needs_average: ClassVar[bool] = False  # a moving average of the network
    needs_balanced_batch: ClassVar[bool] = False  # ``Batch.balanced``

    @property
    def blank_pixel(self) -> float | None:
        """Every pixel, after normalisation, of the image for ``see_blank``; None: it needs none."""
        return None

    @property
    def generations(self) -> int:
        """How often training starts over, with more labels each time."""
        return 1

    def heads(self, n_classes: int) -> dict[str, HeadSpec]:
        """Extra heads of the network, which the optimiser trains and the moving average follows."""
        return {}

    def sampling_power(self, progress: float) -> float:
        """Return p in P(class c) ~ n_c^p of a labelled draw: 1 as they come, 0 balanced.

        Args:
            progress: share of training done.
        """
        return 1.0


class AddOn(nn.Module):
    """Changes pseudo-labels and losses at fixed points of a step; this base class changes nothing.

    In the order of a step: ``see_blank``, ``weak``, then the refiner, ``opinion``, then the
    algorithm's own alignment and smoothing, ``targets``, then mask and sharpening,
    ``labeled_loss``, ``unlabeled_loss``, ``extra_loss``. The first four are called without
    gradient. State lives in registered buffers, so that it is part of a checkpoint; random numbers
    come from torch's generator.

    Args:
        config: options. task: what is known of the data.
    """

    learns: bool = False  # whether extra_loss is called
    answers: bool = False  # whether evaluation uses answer() instead of the network's logits
    config: AddOnConfig
    blank: Tensor | None

    def __init__(self, config: AddOnConfig, task: Task) -> None:
        super().__init__()
        self.config = config
        self.task = task
        self._notes: list[str] = []
        # Not saved: what it makes of a network is.
        wanted = task.blank if config.blank_pixel is not None else None
        self.register_buffer("blank", wanted, persistent=False)

    @classmethod
    def none(cls, task: Task) -> "AddOn":
        """Return the add-on that changes nothing."""
        return AddOn(AddOnConfig(), task)

    # Pseudo-labels --------------------------------------------------------------------------------

    def see_blank(self, output: ModelOutput) -> None:
        """Receive a network's output for an image without content (1 row), in evaluation mode.

        Called if the config has a ``blank_pixel``: before ``weak`` with the network that the weak
        views went through, and before an evaluation and a checkpoint with the evaluated network.
        Its logits are the algorithm's, so that ``answer`` and exported files need no image.
        """

    def weak(self, step: Step, output: ModelOutput) -> ModelOutput:
        """Return the network's output for the weak views (U rows), before it is refined."""
        return output

    def opinion(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        """Return p_w (U, C), the weak view's refined probabilities, before any alignment."""
        return probs

    def targets(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        """Return the finished pseudo-labels (U, C), for mask and loss; only sharpening follows."""
        return probs

    # Losses ---------------------------------------------------------------------------------------

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        """Return H(z_x, y), a scalar.

        Args:
            logits: (B, C). targets: (B,) classes, or (B, C) probabilities of mixed images.
        """
        if targets.ndim == 1:
            return F.cross_entropy(logits, targets)
        return soft_cross_entropy(logits, targets)

    def unlabeled_loss(
        self, step: Step, logits: Tensor, targets: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Return mean_b m_b H(z_s, t), a scalar.

        M is U, or more where an algorithm mixes its views; rows of soft targets are zero then where
        they are masked.

        Args:
            logits: (M, C). targets: (M,) or (M, C). mask: (M,), or none.
        """
        if mask is None:
            return soft_cross_entropy(logits, targets)
        return masked_cross_entropy(logits, targets, mask)

    def extra_loss(
        self, step: Step, x: ModelOutput, weak: ModelOutput, strong: ModelOutput
    ) -> ExtraLoss | None:
        """Return a loss beside the algorithm's; called only if ``learns`` is true.

        Args:
            x, weak, strong: the student's outputs for un-mixed labelled (B rows), weak and strong
                views (U rows). The gradient may flow into ``x`` and ``strong``.
        """
        return None

    def with_extra_loss(
        self, output: StepOutput, step: Step, x: ModelOutput, weak: ModelOutput, strong: ModelOutput
    ) -> StepOutput:
        """Return the algorithm's output with ``extra_loss`` and its parts added, if any."""
        extra = self.extra_loss(step, x, weak, strong) if self.learns else None
        if extra is None:
            return output
        metrics = {**output.metrics, **extra.metrics}
        return replace(output, loss=output.loss + extra.loss, metrics=metrics)

    # Evaluation -----------------------------------------------------------------------------------

    def answer(self, output: ModelOutput) -> Tensor:
        """Return the logits (M, C) for evaluation, by plain tensor operations that export supports.

        Called only if ``answers`` is true.
        """
        return output.logits

    # Between steps --------------------------------------------------------------------------------

    def surveys(self, clock: Clock) -> bool:
        """Return whether ``survey`` is called before this step."""
        return False

    def survey(self, survey: Survey) -> None:
        """Receive the network's output for all training images."""

    def relabel(self, survey: Survey) -> Tensor:
        """Return the classes (u,) with which images join the next generation's labels; -1: none."""
        return torch.full((len(survey.unlabeled.logits),), -1)

    # Notes ----------------------------------------------------------------------------------------

    def note(self, message: str) -> None:
        """Add a note to the run: a fallback that was used, and why."""
        self._notes.append(message)

    def take_notes(self) -> list[str]:
        """Return the notes since the last call."""
        notes = self._notes
        self._notes = []
        return notes
