"""The types that data, models, refiners, algorithms and the training loop share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from semigpc.io.errors import SettingsError


class HostState(nn.Module):
    """A module whose buffers named in ``on_host`` stay on the CPU when it moves to another device.

    For counters and tables that the host reads at every step: reading them from a GPU would make it
    wait for all queued work.
    """

    on_host: ClassVar[tuple[str, ...]] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = {name: self._buffers[name] for name in self.on_host}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._buffers.update(kept)
        return self


class Labeled(NamedTuple):
    """Labelled images: weak views ``x`` (B, 3, H, W), labels ``y`` (B,), positions ``index`` (B,).

    Positions are those in the labelled set.
    """

    x: Tensor
    y: Tensor
    index: Tensor  # type: ignore[assignment] # hides tuple.index, which is not used for batches


class Batch(NamedTuple):
    """The input of one step; images are normalised floats, unlabelled ones have no label here.

    Shapes: ``x`` (B, 3, H, W) weak views of labelled images, ``y`` (B,) their labels, ``index``
    (B,) their positions in the labelled set; ``views`` maps "weak", "strong", "strong2" to (U, 3,
    H, W), row by row the same images, and ``view_index`` (U,) holds their positions in the
    unlabelled set. ``balanced`` are B more labelled images, of every class equally often on
    average, where an add-on needs them.
    """

    x: Tensor
    y: Tensor
    index: Tensor  # type: ignore[assignment] # as above
    views: dict[str, Tensor]
    view_index: Tensor
    balanced: Labeled | None = None


class ModelOutput(NamedTuple):
    """The output of the network for M images.

    Shapes: ``logits`` (M, C) of the linear classifier, ``features`` (M, D) of the backbone,
    ``heads[name]`` (M, width).
    """

    logits: Tensor
    features: Tensor
    heads: dict[str, Tensor]

    def split(self, sizes: Sequence[int]) -> "list[ModelOutput]":
        """Cut the rows into consecutive pieces."""
        heads = {name: values.split(list(sizes)) for name, values in self.heads.items()}
        pieces = zip(self.logits.split(list(sizes)), self.features.split(list(sizes)), strict=True)
        return [
            ModelOutput(logits, features, {name: parts[i] for name, parts in heads.items()})
            for i, (logits, features) in enumerate(pieces)
        ]


@dataclass(frozen=True)
class HeadSpec:
    """An extra head on the backbone's feature h.

    ``linear`` is W h + b, ``projection`` unit(W2 relu(W1 h + b1) + b2), and ``neural_process`` log
    p(y | h, memory) of the C classes, whose width need not be set.
    """

    kind: Literal["linear", "projection", "neural_process"]
    width: int = 0


class Networks(NamedTuple):
    """The network in training, and its moving average; the network itself if there is none.

    Each turns images (M, 3, H, W) into a :class:`ModelOutput`.
    """

    student: nn.Module
    teacher: nn.Module

    def forward(self, *images: Tensor) -> list[ModelOutput]:
        """Return the student's outputs, from one pass: batch normalisation sees every view."""
        output: ModelOutput = self.student(torch.cat(images))
        return output.split([len(part) for part in images])

    def ask_teacher(self, images: Tensor) -> ModelOutput:
        """Return the teacher's output in evaluation mode; its statistics and mode do not change."""
        return in_evaluation(self.teacher, images)


@torch.no_grad()
def in_evaluation(network: nn.Module, images: Tensor) -> ModelOutput:
    """Return a network's output in evaluation mode; its statistics and mode do not change."""
    modes = [(module, module.training) for module in network.modules()]
    output: ModelOutput = network.eval()(images)
    for module, training in modes:
        module.training = training
    return output


@dataclass(frozen=True)
class Clock:
    """Where training is: ``step`` counts from 0, and an epoch is a fixed number of steps.

    Where a run starts over with more labels, the steps are those of one ``generation``, which also
    counts from 0.
    """

    step: int
    total_steps: int
    epoch_steps: int
    generation: int = 0

    @property
    def progress(self) -> float:
        """Share of training done, 0 at the first step."""
        return self.step / self.total_steps

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return self.step // self.epoch_steps


@dataclass(frozen=True)
class Task:
    """What is known of the data before training.

    Args:
        class_counts: (C,) labelled images of each class.
        labeled_batch: B.
        unlabeled_batch: U.
        n_unlabeled: unlabelled images.
        n_features: D, of the backbone's features.
        original_counts: (C,) labels given by people, in a run that adds labels of the model.
        blank: (1, 3, H, W) the network's input for an image without content, or (1, D) on cached
            features; None where no add-on needs it, or nothing is trained.
    """

    class_counts: Tensor
    labeled_batch: int
    unlabeled_batch: int
    n_unlabeled: int = 0
    n_features: int = 0
    original_counts: Tensor | None = None
    blank: Tensor | None = None

    @property
    def given_counts(self) -> Tensor:
        """(C,) labels of each class that were given by people."""
        return self.class_counts if self.original_counts is None else self.original_counts

    @property
    def n_classes(self) -> int:
        """C."""
        return len(self.class_counts)

    @property
    def n_labeled(self) -> int:
        """Labelled images."""
        return int(self.class_counts.sum())


class PseudoLabels(NamedTuple):
    """Labels of unlabelled images, ``probs`` (U, C), and the ``mask`` (U,) of those in use."""

    probs: Tensor
    mask: Tensor


@dataclass(frozen=True)
class StepOutput:
    """The loss to minimise, its named parts (scalars), and the pseudo-labels for diagnostics."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    pseudo: PseudoLabels | None = None


def check_ranges(
    config: Any,
    *,
    fractions: tuple[str, ...] = (),
    below_one: tuple[str, ...] = (),
    positive: tuple[str, ...] = (),
    not_negative: tuple[str, ...] = (),
    at_least_one: tuple[str, ...] = (),
) -> None:
    """Raise SettingsError for options, by name, outside their range, and for negative weights.

    Every field that ends in ``_weight`` is taken for the weight of a loss. Options that are None
    are not checked.
    """
    weights = tuple(name for name in vars(config) if name.endswith("_weight"))
    rules: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
        (fractions, lambda value: 0 <= value <= 1, "lie in [0, 1]"),
        (below_one, lambda value: 0 <= value < 1, "lie in [0, 1)"),
        (positive, lambda value: value > 0, "be positive"),
        (not_negative, lambda value: value >= 0, "not be negative"),
        (weights, lambda value: value >= 0, "not be negative"),
        (at_least_one, lambda value: value >= 1, "be at least 1"),
    )
    for names, allowed, rule in rules:
        for name in names:
            value = getattr(config, name)
            if value is not None and not allowed(value):
                raise SettingsError(f"{name} must {rule}; got {value}.")
