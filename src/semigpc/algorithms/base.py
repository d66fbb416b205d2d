"""The contract of an algorithm: what recipes, the training loop and reports ask of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from semigpc.addons import AddOn, Step
from semigpc.refiners import Refiner
from semigpc.types import (
    Batch,
    Clock,
    HeadSpec,
    HostState,
    ModelOutput,
    Networks,
    StepOutput,
    Task,
    in_evaluation,
)

Preset = Literal["digits", "own_data", "short", "frozen"]


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Options of an algorithm; a subclass adds its own as fields.

    ``presets`` lists the options that differ from the defaults in a situation: ``digits``, 8 x 8
    images and a run of 1000 steps; ``own_data``, some hundred to some thousand images; ``short``,
    a run of some hundred steps; ``frozen``, cached features in place of images.
    """

    presets: ClassVar[Mapping[Preset, Mapping[str, float]]] = {}
    small_ratio: ClassVar[int] = 2  # unlabelled images per labelled one in recipes for a CPU
    uses_average: ClassVar[bool] = False  # whether the paper trains it with a moving average

    @property
    def heads(self) -> dict[str, HeadSpec]:
        """Extra heads of the network."""
        return {}

    @property
    def threshold(self) -> float:
        """tau, with which confidences are compared; 0 if there is none or it is not an option."""
        return 0.0

    @property
    def has_threshold(self) -> bool:
        """Whether confidences are compared with a threshold, an option or not."""
        return self.threshold > 0

    @property
    def smoothing(self) -> float:
        """Weight of the network's own label in a pseudo-label; the rest comes from a memory."""
        return 1.0

    def conflict(self, *, frozen: bool, average: bool) -> str | None:
        """Return why these options cannot work in such a run, or None.

        Args:
            frozen: training on cached features. average: with a moving average of the network.
        """
        return None

    def preset(self, name: Preset) -> Self:
        """Return these options with those of a preset in their place."""
        return replace(self, **self.presets.get(name, {}))

    def in_paper(self, *, temperature: float, photographs: bool, average: bool) -> Self:
        """Return these options as USB's recipes for vision transformers set them.

        Args:
            temperature: T of similarities, for this data set. photographs: not 32 pixels a side.
            average: with a moving average of the network.
        """
        return self


class Algorithm(HostState):
    """The loss of a batch. All state is in registered buffers, so that saving needs no code.

    Args:
        config: options. refiner: replaces pseudo-labels at ``sites``. task: what is known of the
            data. addon: called by ``step`` in the order that :class:`AddOn` gives.
    """

    views: ClassVar[tuple[str, ...]] = ()  # of unlabelled images in a batch; none: labels only
    sites: ClassVar[tuple[str, ...]] = ("semantic",)  # where a refiner may act
    takes_addons: ClassVar[bool] = False  # whether ``step`` calls the add-on
    answers: ClassVar[bool] = False  # whether evaluation uses answer() instead of the logits
    config: AlgorithmConfig

    def __init__(
        self, config: AlgorithmConfig, refiner: Refiner, task: Task, addon: AddOn | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.refiner = refiner
        self.addon = addon or AddOn.none(task)
        self.prepare(task)

    def prepare(self, task: Task) -> None:
        """Register the state, once config, refiner and add-on are set; there is none by default."""

    @property
    def asks_teacher(self) -> bool:
        """Whether the refiner sees features of the moving average instead of the network's."""
        return False

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        """Return the loss of one batch; no ``backward()``, no moving between devices."""
        raise NotImplementedError

    def answer(self, output: ModelOutput) -> Tensor:
        """Return the logits (M, C) for evaluation; only called if ``answers`` is true."""
        return output.logits

    @torch.no_grad()
    def show_blank(self, network: nn.Module) -> None:
        """Pass a network's output for an image without content to an add-on that needs it."""
        if self.addon.blank is None:
            return
        output = in_evaluation(network, self.addon.blank)
        if self.answers:
            output = output._replace(logits=self.answer(output))
        self.addon.see_blank(output)

    def weak_probs(self, step: Step, weak: ModelOutput) -> tuple[ModelOutput, Tensor]:
        """Return the weak views' output, and p_w (U, C): after add-on, refiner, add-on."""
        networks = step.networks
        self.show_blank(networks.teacher if self.asks_teacher else networks.student)
        output = self.addon.weak(step, weak)
        own = self.refiner.classify(output).logits.softmax(dim=1)
        probs = self.refiner.refine("semantic", output, own)
        return output, self.addon.opinion(step, output, probs)
