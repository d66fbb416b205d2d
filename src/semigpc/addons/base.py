"""The interface of add-ons: one method per point where an algorithm calls them; the base class
changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.losses import masked_cross_entropy, soft_cross_entropy
from semigpc.types import Batch, Clock, HeadSpec, ModelOutput, Networks, StepOutput, Task


class Step(NamedTuple):
    """The networks, the batch and the clock of a step, as every method of an add-on receives them."""

    networks: Networks
    batch: Batch
    clock: Clock


class Survey(NamedTuple):
    """All training images as the evaluated network sees them now, in evaluation mode and without
    augmentation.

    Shapes: ``labeled`` n rows with labels ``y`` (n,); ``unlabeled`` u rows, in the order of the
    unlabelled set. No gradients.
    """

    labeled: ModelOutput
    y: Tensor
    unlabeled: ModelOutput


@dataclass(frozen=True)
class ExtraLoss:
    """A loss of the add-on's own, with its weight in it, and its named parts (scalars)."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AddOnConfig:
    """Options of an add-on, and what it needs, so that a combination that cannot work is an error
    before anything is built.

    ``needs_unlabeled``: an algorithm that learns from unlabelled images. ``needs_average``: a
    moving average of the network.
    ``needs_balanced_batch``: ``Batch.balanced``. ``generations``: how often training starts over,
    with more labels each time.
    """

    needs_unlabeled: ClassVar[bool] = True
    needs_average: ClassVar[bool] = False
    needs_balanced_batch: ClassVar[bool] = False
    generations: ClassVar[int] = 1

    def heads(self, n_classes: int) -> dict[str, HeadSpec]:
        """Extra heads of the network, which the optimiser trains and the moving average follows."""
        return {}

    def sampling_power(self, progress: float) -> float:
        """p in P(class c) ~ n_c^p of a labelled draw, by the share of training behind: 1 as they
        come, 0 every class alike.
        """
        return 1.0


class AddOn(nn.Module):
    """Called by every algorithm at the same points of its step; this one changes nothing, in value
    or in cost.

    In the order of a step: ``weak``, then the refiner, ``opinion``, then the algorithm's own
    alignment and smoothing, ``targets``, then mask and sharpening, ``labeled_loss``,
    ``unlabeled_loss``, ``extra_loss``. The first three are called without gradient. State lives in
    registered buffers, so that it is part of a checkpoint; random numbers come from torch's
    generator.

    Args:
        config: options. task: what is known of the data.
    """

    # whether extra_loss is called, with the student's output for un-mixed labelled images
    learns: bool = False
    answers: bool = False  # whether evaluation uses answer() instead of the network's logits

    def __init__(self, config: AddOnConfig, task: Task) -> None:
        super().__init__()
        self._notes: list[str] = []

    @classmethod
    def none(cls, task: Task) -> "AddOn":
        """Return the add-on that changes nothing."""
        return AddOn(AddOnConfig(), task)

    # Pseudo-labels --------------------------------------------------------------------------------

    def weak(self, step: Step, output: ModelOutput) -> ModelOutput:
        """Return the network's output for the weak views (U rows), before the refiner receives it."""
        return output

    def opinion(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        """Return p_w (U, C), the weak view's probabilities, after the refiner and before the
        algorithm's own alignment.
        """
        return probs

    def targets(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        """Return the finished pseudo-labels (U, C), from which mask and loss are computed; only
        sharpening follows.
        """
        return probs

    # Losses ---------------------------------------------------------------------------------------

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        """H(z_x, y), a scalar: logits (B, C), targets (B,) classes or (B, C) probabilities where
        images were mixed.
        """
        return (
            F.cross_entropy(logits, targets)
            if targets.ndim == 1
            else soft_cross_entropy(logits, targets)
        )

    def unlabeled_loss(
        self, step: Step, logits: Tensor, targets: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """mean_b m_b H(z_s, t), a scalar: logits (M, C), targets (M,) or (M, C), mask (M,) or none.

        M is U, or more where an algorithm mixes its views; rows of soft targets may then be zero,
        where a mask is in them.
        """
        return (
            soft_cross_entropy(logits, targets)
            if mask is None
            else masked_cross_entropy(logits, targets, mask)
        )

    def extra_loss(
        self, step: Step, x: ModelOutput, weak: ModelOutput, strong: ModelOutput
    ) -> ExtraLoss | None:
        """Return a loss beside the algorithm's, from the student's output for un-mixed labelled
        (B), weak and strong views (U).

        The gradient may flow into ``x`` and ``strong``. Called only if ``learns`` is true.
        """
        return None

    def with_extra_loss(
        self, output: StepOutput, step: Step, x: ModelOutput, weak: ModelOutput, strong: ModelOutput
    ) -> StepOutput:
        """Return the algorithm's output with ``extra_loss`` and its parts added; the same object if
        there is none.
        """
        extra = self.extra_loss(step, x, weak, strong) if self.learns else None
        if extra is None:
            return output
        return replace(
            output, loss=output.loss + extra.loss, metrics={**output.metrics, **extra.metrics}
        )

    # Evaluation -----------------------------------------------------------------------------------

    def answer(self, output: ModelOutput) -> Tensor:
        """Return the logits (M, C) for evaluation and prediction; plain tensor operations only, as
        they are exported too.
        """
        return output.logits

    # Between steps --------------------------------------------------------------------------------

    def surveys(self, clock: Clock) -> bool:
        """Return whether ``survey`` is called before this step."""
        return False

    def survey(self, survey: Survey) -> None:
        """Receive the network's output for all training images."""

    def relabel(self, survey: Survey) -> Tensor:
        """Return the classes (u,) of unlabelled images that join the labels of the next generation;
        -1 for the others.
        """
        return torch.full((len(survey.unlabeled.logits),), -1)

    # Notes ----------------------------------------------------------------------------------------

    def note(self, message: str) -> None:
        """Add a note to the run's journal: a fallback that was used, and why."""
        self._notes.append(message)

    def take_notes(self) -> list[str]:
        """Return the notes since the last call."""
        notes, self._notes = self._notes, []
        return notes
