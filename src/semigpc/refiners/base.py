"""The contract of a refiner: what algorithms, training and reports ask of it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NotRequired, Self, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.types import Batch, HostState, ModelOutput, check_ranges

if TYPE_CHECKING:
    from semigpc.refiners.gaussian_process import GaussianProcessRefiner

Site = Literal["semantic", "aggregate", "final"]
Moment = Literal["before", "after"]
Feature = Literal["backbone", "projection"]
Device = torch.device | str | None


class LearnedScales(TypedDict):
    """The scales of a learned kernel, and how often they changed."""

    times: int
    length_scale: NotRequired[float]
    output_scale: float
    noise_std: float


class GPFacts(TypedDict):
    """What summary.json states about the GP of a run."""

    engine: str
    engine_reason: str
    entries: int
    class_counts: list[int]
    scales: dict[str, float]
    learned: LearnedScales | None


@dataclass(frozen=True, kw_only=True)
class RefinerConfig:
    """Options of a refiner, and what others ask about them; here those of one without a memory."""

    @property
    def buffer_size(self) -> int:
        """N_Q, labelled entries remembered."""
        return 0

    @property
    def warmup_steps(self) -> int:
        """Steps before the refiner acts."""
        return 0

    @property
    def feature(self) -> Feature:
        """Which feature of an image is remembered."""
        return "backbone"

    @property
    def class_prior(self) -> str:
        """How class shares are corrected; empty for a refiner that has no such option."""
        return ""

    @property
    def automatic(self) -> frozenset[str]:
        """Names of the options that follow the features of a run."""
        return frozenset()

    def conflict(
        self, algorithm: str, *, sites: Collection[str], heads: Collection[str]
    ) -> str | None:
        """Return why these options do not fit an algorithm with such sites and heads, or None."""
        return None

    def with_memory(self, *, buffer_size: int, warmup_steps: int) -> Self:
        """Return these options with another size of the memory and another warm-up."""
        return self

    def for_short_run(self, *, buffer_size: int, warmup_steps: int) -> Self:
        """Return options for a run of some hundred steps, whatever these were chosen for."""
        return self.with_memory(buffer_size=buffer_size, warmup_steps=warmup_steps)

    def in_paper(self, *, temperature: float, n_classes: int, balanced: bool) -> Self:
        """Return these options as in section 3 of the paper.

        Args:
            temperature: T of SimMatch's similarities for this data set. n_classes: C. balanced:
                the daggered rows of its tables.
        """
        return self


class Refiner(nn.Module):
    """Turns the network's probabilities for unlabelled images into pseudo-labels.

    This base class changes nothing.

    An algorithm calls ``observe("before")`` first, ``classify`` on the output of each view,
    ``refine`` at each of its sites, ``confidence`` to compare with its threshold, and
    ``observe("after")`` last. State lives in registered buffers, so that a checkpoint holds it.
    """

    observes: bool = False  # whether labelled features are used at all

    def classify(self, output: ModelOutput, index: Tensor | None = None) -> ModelOutput:
        """Return a view's output, with the refiner's logits if it is the classifier.

        Args:
            output: of M images. index: (M,) positions in the labelled set, for labelled images.
        """
        return output

    def refine(self, site: Site, output: ModelOutput, probs: Tensor) -> Tensor:
        """Return the weak view's probabilities (U, C) at a site, refined."""
        return probs

    def confidence(self, output: ModelOutput, probs: Tensor) -> Tensor:
        """Return the confidence (U,), in [0, 1], of finished pseudo-labels (U, C); no gradient.

        A label with confidence 0 is not used by algorithms without a threshold either.

        Args:
            output: of the weak views, with the network's own logits, as ``refine`` received it.
            probs: after alignment and smoothing.
        """
        return probs.amax(dim=1)

    def observe(self, moment: Moment, x: ModelOutput, batch: Batch) -> None:
        """Receive the labelled batch; called before the first and after the last other call.

        ``x`` (B rows) must be of the network whose weak views are refined: a kernel between
        features of two networks, such as a student and its average, does not compare images.
        """

    # For training, evaluation, export and reports -------------------------------------------------

    @property
    def gp(self) -> "GaussianProcessRefiner | None":
        """The refiner itself, if it can be evaluated and exported as a head of its own."""
        return None

    @property
    def entries_per_class(self) -> int:
        """Rows of each class that training writes when the warm-up ends; 0 for none."""
        return 0

    @property
    def scales(self) -> Mapping[str, Tensor | float]:
        """Scales as they are now, by the name of their option."""
        return {}

    def store(self, output: ModelOutput, labels: Tensor, index: Tensor | None = None) -> None:
        """Write labelled images (B rows) into the memory, outside of a step."""

    def rebuild(self) -> None:
        """Recompute what a checkpoint leaves out, as loading it does."""

    def notes(self, *, has_threshold: bool) -> list[str]:
        """Return what the reader of a run should know about it before it begins.

        Args:
            has_threshold: whether the algorithm compares confidences with one.
        """
        return []

    def facts(self) -> GPFacts | None:
        """Return what the summary of a run says about it, as JSON; None for nothing."""
        return None


@dataclass(frozen=True, kw_only=True)
class NoRefinerConfig(RefinerConfig):
    """No refinement: the base algorithm."""


class NoRefiner(Refiner):
    """Changes nothing: the base algorithm."""


@dataclass(frozen=True, kw_only=True)
class PlacementConfig(RefinerConfig):
    """Where and when a refiner with a memory acts in an algorithm, and how much it remembers.

    Args:
        site: what is replaced: the weak probabilities (``semantic``), the memory's label inside the
            smoothing of SimMatch and CoMatch (``aggregate``), or SimMatch's finished pseudo-label
            (``final``).
        blend: b in (1 - b) p + b p_refined.
        feature: the backbone's feature h, or the projection e where the algorithm has one.
        l2norm: whether features are put on the unit sphere.
        push: whether a batch enters the memory after the step has read it, or before.
        warmup_steps: steps during which the memory fills but the algorithm keeps its own
            probabilities.
        buffer_size: N_Q, labelled entries remembered.
        balanced: one ring of N_Q / C entries for each class (the paper's daggered rows) instead of
            one queue; all are filled with views of the labelled images when the warm-up ends.
    """

    site: Site = "semantic"
    blend: float = 1.0
    feature: Feature = "backbone"
    l2norm: bool = True
    push: Moment = "after"
    warmup_steps: int = 1024
    buffer_size: int = 16300
    balanced: bool = False

    def __post_init__(self) -> None:
        check_ranges(self, fractions=("blend",), not_negative=("warmup_steps",))

    def conflict(
        self, algorithm: str, *, sites: Collection[str], heads: Collection[str]
    ) -> str | None:
        """Return why an algorithm has no such site or feature, or None."""
        if self.site not in sites:
            known = ", ".join(sites)
            return f"{algorithm} has no site {self.site!r}; refiner.site may be {known}."
        if self.feature == "projection" and "projection" not in heads:
            return f"{algorithm} has no projection head; leave refiner.feature at 'backbone'."
        return None

    def with_memory(self, *, buffer_size: int, warmup_steps: int) -> Self:
        """Return these options with another size of the memory and another warm-up."""
        return replace(self, buffer_size=buffer_size, warmup_steps=warmup_steps)


class Placement(HostState):
    """Applies a :class:`PlacementConfig`; its only state is the number of steps so far."""

    on_host = ("steps",)
    steps: Tensor

    def __init__(self, config: PlacementConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("steps", torch.tensor(0))

    @property
    def warm(self) -> bool:
        """Whether the warm-up is over."""
        return int(self.steps) >= self.config.warmup_steps

    def acts_at(self, site: Site) -> bool:
        """Return whether the probabilities at this site are refined in this step."""
        return self.warm and site == self.config.site

    def mix(self, probs: Tensor, refined: Tensor) -> Tensor:
        """(1 - b) p + b p_refined, in the type of p."""
        b = self.config.blend
        return refined.to(probs) if b == 1 else (1 - b) * probs + b * refined.to(probs)

    def features(self, output: ModelOutput) -> Tensor:
        """Return features (M, D), float32 or float64, on the unit sphere if so configured."""
        raw = output.features if self.config.feature == "backbone" else output.heads["projection"]
        raw = raw if raw.dtype == torch.float64 else raw.float()
        return F.normalize(raw, dim=1) if self.config.l2norm else raw
