"""The options of SemiGPC and of its engines; which engine ``auto`` means, and how each is built."""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch

from semigpc.gp import (
    KERNELS,
    Clipped,
    Engine,
    EnsembleGP,
    ExactGP,
    Kernel,
    MatrixFreeGP,
    exact_fits,
    members_needed,
    spread_out,
)
from semigpc.gp.certainty import auto_logit_scale
from semigpc.gp.kernels import has_length_scale, make_kernel
from semigpc.gp.scales import LEARNABLE
from semigpc.io.errors import SettingsError
from semigpc.io.text import unknown_name
from semigpc.refiners.base import Device, PlacementConfig
from semigpc.types import check_ranges

logger = logging.getLogger(__name__)

RANK = 1024  # landmarks of the preconditioner by default
START_LENGTH = 0.1**0.5  # l, until the features of a run have been seen

Posterior = Literal["max_softmax", "variance", "expected"]  # a confidence by the GP alone
Confidence = Literal["agreement", Posterior]  # what thresholds are compared with


class Choice(NamedTuple):
    """Options of the engine that is built, never those of ``auto``, and why it is that one."""

    options: "EngineOptions"
    reason: str

    @property
    def name(self) -> str:
        """The engine's name in ``ENGINES``."""
        return self.options.name


@dataclass(frozen=True, kw_only=True)
class EngineOptions(ABC):
    """Options of one engine. To add an engine, write such a class and list it in ``ENGINES``."""

    name: ClassVar[str]

    def check(self, buffer_size: int) -> None:  # noqa: B027 - most options go with any size
        """Raise SettingsError for options that do not fit this buffer size."""

    def choose(self, config: "GPConfig", device: Device) -> Choice:
        """Return the engine to build on a device."""
        return Choice(self, "as configured")

    @abstractmethod
    def build(self, capacity: int, n_features: int, n_classes: int, **common: Any) -> Engine:
        """Return the engine, empty; ``common`` are its kernel, noise_std and device."""


@dataclass(frozen=True, kw_only=True)
class ExactOptions(EngineOptions):
    """The exact engine updates K^-1 at O(B N^2) per step, in float64; it has no options."""

    name: ClassVar[str] = "exact"

    def build(self, capacity: int, n_features: int, n_classes: int, **common: Any) -> Engine:
        """Return an :class:`ExactGP`."""
        return ExactGP(capacity, n_features, n_classes, **common)


@dataclass(frozen=True, kw_only=True)
class EnsembleOptions(EngineOptions):
    """The ensemble deals the buffer out to exact members.

    Args:
        members: how many.
        combine: their means, weighted by ``precision``, or as a plain ``mean``.
    """

    name: ClassVar[str] = "ensemble"
    members: int = 5
    combine: Literal["precision", "mean"] = "precision"

    def __post_init__(self) -> None:
        check_ranges(self, at_least_one=("members",))

    def check(self, buffer_size: int) -> None:
        """Raise SettingsError for more members than slots."""
        if self.members > buffer_size:
            raise SettingsError(
                "engine.members must not be more than buffer_size; "
                f"got {self.members} > {buffer_size}."
            )

    def choose(self, config: "GPConfig", device: Device) -> Choice:
        """Return these options; SettingsError if a kernel is learned and processes share rows."""
        if spread_out() and config.learn != "never":
            raise SettingsError(
                f"learn={config.learn!r} needs all rows in one process, but several processes "
                "share the members of an ensemble; use engine='exact' or learn='never'."
            )
        return super().choose(config, device)

    def build(self, capacity: int, n_features: int, n_classes: int, **common: Any) -> Engine:
        """Return an :class:`EnsembleGP`; processes that train together share the members."""
        make = partial(ExactGP, n_features=n_features, n_classes=n_classes, **common)
        return EnsembleGP(
            capacity, n_features, n_classes, make=make, members=self.members, combine=self.combine
        )


@dataclass(frozen=True, kw_only=True)
class AutoOptions(EnsembleOptions):
    """Exact where one inverse fits into the device's memory, and an ensemble beyond.

    Args:
        members: of the ensemble, at least; more where so few would not fit into the memory.
        combine: as for the ensemble.
    """

    name: ClassVar[str] = "auto"

    def check(self, buffer_size: int) -> None:
        """Any size will do: a buffer with fewer slots than members fits one exact GP."""

    def choose(self, config: "GPConfig", device: Device) -> Choice:
        """Exact if the rest of the config needs it, and otherwise by the device's memory."""
        if config.kernel_clip:
            return Choice(ExactOptions(), "a clipped kernel needs the exact engine")
        fit = exact_fits(config.buffer_size, device)
        if fit.fits:
            return Choice(ExactOptions(), fit.reason)
        members = max(self.members, members_needed(config.buffer_size, device))
        ensemble = EnsembleOptions(members=members, combine=self.combine)
        return ensemble.choose(config, device)._replace(reason=fit.reason)


@dataclass(frozen=True, kw_only=True)
class MatrixFreeOptions(EngineOptions):
    """The matrix-free engine solves K alpha = y to a tolerance, without memory of order N^2.

    Args:
        rank: landmarks of the preconditioner; 1024, or as many as there are slots.
        tolerance: |y - K alpha| / |y|.
        dtype: of kernel values and stored rows.
    """

    name: ClassVar[str] = "matrix_free"
    rank: int | None = None
    tolerance: float = 1e-3
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        check_ranges(self, at_least_one=("rank",))
        if not 0 < self.tolerance < 1:
            raise SettingsError(f"tolerance must lie between 0 and 1; got {self.tolerance}.")

    def check(self, buffer_size: int) -> None:
        """Raise SettingsError for more landmarks than slots."""
        if self.rank is not None and self.rank > buffer_size:
            raise SettingsError(
                "engine.rank must not be larger than buffer_size, as landmarks are rows of it; "
                f"got {self.rank} > {buffer_size}. Lower it, or leave it out."
            )

    def build(self, capacity: int, n_features: int, n_classes: int, **common: Any) -> Engine:
        """Return a :class:`MatrixFreeGP`."""
        return MatrixFreeGP(
            capacity,
            n_features,
            n_classes,
            rank=self.rank or min(RANK, capacity),
            tolerance=self.tolerance,
            dtype=getattr(torch, self.dtype),
            **common,
        )


ENGINES: dict[str, type[EngineOptions]] = {
    kind.name: kind for kind in (AutoOptions, ExactOptions, EnsembleOptions, MatrixFreeOptions)
}


@dataclass(frozen=True, kw_only=True)
class GPConfig(PlacementConfig):
    """SemiGPC: the posterior mean of a GP over labelled features replaces the classifier's.

    The paper prints neither length_scale nor noise_std nor logit_scale; the defaults are ours.
    "auto" follows the features of the run (:class:`semigpc.refiners.tuning.ScaleTuner`); it starts
    with 0.316 and :func:`auto_logit_scale`, which role ``classifier`` keeps.

    Args:
        role: ``refine`` replaces the weak view's probabilities and changes no gradient path;
            ``classifier`` puts the GP in the place of the linear layer for every view, with
            gradients through the query k(h(x), h_Q) alone.
        length_scale: l, or "auto". With unit features l^2 plays the part of SimMatch's temperature.
        noise_std: sigma, beside an output scale of 1: the mean depends on their ratio alone.
        kernel: k, a name in :data:`semigpc.gp.KERNELS`; cosine and ntk have no length_scale.
        logit_scale: lambda, or "auto".
        kernel_clip: kernel values below it become 0.
        class_prior: ``frequency`` subtracts the class shares pi of the buffer and gives every class
            equal evidence, lambda sqrt(nbar / n_c) k K^-1 (Y_c - pi_c 1); ``none`` is the paper's
            rule.
        exclude_same_index: with role ``classifier``, leave other copies of a labelled image out of
            its own prediction.
        engine: what computes the GP: options out of ``ENGINES``, as in
            ``EnsembleOptions(members=8)``, or a name there, which stands for its default options.
            ``exact`` updates K^-1 at O(B N^2) per step; ``ensemble`` deals the buffer out to exact
            members; ``matrix_free`` solves to a tolerance without N^2 memory. ``auto`` is exact
            where that fits into the memory of the device, and an ensemble, with these options,
            beyond; the run reports which.
        confidence: what the algorithm's threshold is compared with. With ``agreement`` it is the
            GP's own probability of the label's class, before any alignment or smoothing, where the
            network has that class too, as it is or freed of the label shares
            (:class:`semigpc.pseudo_labels.LabelShares`) and, with even labels, the view is near
            enough to a labelled one (:class:`semigpc.refiners.tuning.ClassReach`), and 0
            elsewhere; role ``classifier`` has no second opinion. Others ask the GP alone: the
            largest probability (``max_softmax``, as in the paper), the share of the prior variance
            that the buffer explains (``variance``), or the probability of the class expected over
            the posterior (``expected``). A threshold has another meaning for each. With noise_std^2
            = 0.1 one close neighbour explains 0.91 of the variance, two 0.95, ten 0.99: set 0.9 or
            more to use only images that resemble one in the buffer, 0.5 to exclude only those that
            resemble none. ``expected`` is 0.80 beside one close neighbour and 0.91 beside two, of
            ten classes, where ``max_softmax`` is 0.98 for both: set about 0.8. FreeMatch computes
            its thresholds itself, ReMixMatch has none by default.
        learn: ``leave_one_out`` chooses length_scale, output scale and noise_std from the buffer
            every ``learn_steps`` steps; the engine is then rebuilt with them and goes on.
        eval_head: the head that is evaluated and predicts; the other is reported beside it.
            ``auto`` is the better one on the validation images; without any, the GP, unless an
            add-on such as CoSSL replaces the linear head.
        eval_buffer: evaluate with the buffer as it stands, or with one rebuilt from the labels by
            the evaluated weights; ``auto`` rebuilds it for role ``classifier``.
    """

    role: Literal["refine", "classifier"] = "refine"
    length_scale: float | Literal["auto"] = "auto"
    noise_std: float = 0.1**0.5
    logit_scale: float | Literal["auto"] = "auto"
    kernel: str = "rbf"
    kernel_clip: float = 0.0
    class_prior: Literal["none", "frequency"] = "frequency"
    exclude_same_index: bool = False
    engine: Any = field(default_factory=AutoOptions, metadata={"choices": ENGINES})
    confidence: Confidence = "agreement"
    learn: Literal["never", "leave_one_out"] = "never"
    learn_steps: int = 2048
    eval_head: Literal["auto", "linear", "gp"] = "auto"
    eval_buffer: Literal["auto", "live", "rebuilt"] = "auto"

    @property
    def rebuilt_for_evaluation(self) -> bool:
        """Whether evaluation fills a buffer of its own."""
        if self.eval_buffer == "auto":
            return self.role == "classifier"
        return self.eval_buffer == "rebuilt"

    @property
    def automatic(self) -> frozenset[str]:
        """Those of length_scale and logit_scale that are "auto"."""
        scales = {"length_scale": self.length_scale, "logit_scale": self.logit_scale}
        return frozenset(name for name, value in scales.items() if value == "auto")

    def for_short_run(self, *, buffer_size: int, warmup_steps: int) -> Self:
        """Return the defaults, which follow the features and need no balanced buffer."""
        return type(self)(buffer_size=buffer_size, warmup_steps=warmup_steps)

    def in_paper(self, *, temperature: float, n_classes: int, balanced: bool) -> Self:
        """Return these options as in section 3 of the paper.

        It prints neither l nor sigma nor lambda; these are ours: l^2 = T of SimMatch's
        similarities, sigma^2 = 0.1, and lambda by :func:`auto_logit_scale`. Buffer and weak views
        have features of the network in training, also where SimMatch's bank is written by its
        average: in USB the weak logits come from that network, and the GP replaces them.
        """
        return replace(
            self,
            balanced=balanced,
            length_scale=temperature**0.5,
            noise_std=0.1**0.5,
            logit_scale=auto_logit_scale(n_classes),
            class_prior="none",
            confidence="max_softmax",
            eval_head="linear",
        )

    @property
    def has_length_scale(self) -> bool:
        """Whether the kernel has one."""
        return has_length_scale(self.kernel)

    def starting_scales(self, n_classes: int) -> dict[str, float]:
        """Return length_scale and logit_scale as configured, or where "auto" starts."""
        length = START_LENGTH if self.length_scale == "auto" else self.length_scale
        logit = auto_logit_scale(n_classes) if self.logit_scale == "auto" else self.logit_scale
        return {"length_scale": length, "logit_scale": logit}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel not in KERNELS:
            raise SettingsError(unknown_name("kernel", self.kernel, KERNELS))
        scales = {"length_scale": self.length_scale, "logit_scale": self.logit_scale}
        for name, value in scales.items():
            if value != "auto" and not (isinstance(value, int | float) and value > 0):
                raise SettingsError(f"{name} must be positive, or 'auto'; got {value!r}.")
        check_ranges(self, at_least_one=("learn_steps",))
        if self.exclude_same_index and self.role != "classifier":
            raise SettingsError(
                "exclude_same_index changes the labelled loss, which only role='classifier' "
                "computes by the GP; leave it out."
            )
        if self.role == "classifier" and self.site != "semantic":
            raise SettingsError(
                "role='classifier' replaces the logits of every view; leave site at 'semantic', "
                f"got {self.site!r}."
            )
        if self.learn != "never" and self.kernel_clip:
            raise SettingsError(
                f"learn={self.learn!r} does not work with a clipped kernel, for which K can be "
                f"indefinite. Leave kernel_clip at 0, got {self.kernel_clip}, or learn at 'never'."
            )
        if self.learn != "never" and KERNELS[self.kernel] not in LEARNABLE:
            known = [name for name, kind in KERNELS.items() if kind in LEARNABLE]
            raise SettingsError(
                f"learn={self.learn!r} knows the kernels {', '.join(known)}; got {self.kernel!r}. "
                "Use one of these, or learn='never'."
            )
        self._check_engine()

    def _check_engine(self) -> None:
        """Replace a name by its default options, and check that they fit the rest."""
        if isinstance(self.engine, str) and self.engine in ENGINES:
            object.__setattr__(self, "engine", ENGINES[self.engine]())
        if type(self.engine) not in ENGINES.values():
            raise SettingsError(
                f"engine must be one of {', '.join(ENGINES)}, or options of one; "
                f"got {self.engine!r:.80}."
            )
        self.engine.check(self.buffer_size)
        if self.engine.name in ("auto", "exact"):
            return
        if self.kernel_clip:
            raise SettingsError(
                "kernel_clip can make K indefinite, which "
                f"engine={self.engine.name!r} does not support; use 'exact'."
            )
        if self.exclude_same_index:
            raise SettingsError(
                f"exclude_same_index needs engine='exact'; got {self.engine.name!r}."
            )


def choose_engine(config: GPConfig, device: Device = None) -> Choice:
    """Return the options of a config's engine, with "auto" resolved, and the reason."""
    choice: Choice = config.engine.choose(config, device)
    if config.exclude_same_index and choice.name != "exact":
        raise SettingsError(
            f"exclude_same_index needs the exact engine; got {choice.name!r} ({choice.reason})."
        )
    return choice


def build_engine(
    config: GPConfig, n_features: int, n_classes: int, *, device: Device = None
) -> Engine:
    """Return the engine that a config names, empty. The log says which, and why."""
    options, reason = choose_engine(config, device)
    logger.info("engine %s: %s", options.name, reason)
    return options.build(
        config.buffer_size,
        n_features,
        n_classes,
        kernel=build_kernel(config),
        noise_std=config.noise_std,
        device=device,
    )


def build_kernel(config: GPConfig, length_scale: float | None = None) -> Kernel:
    """Return the kernel that a config names; ``length_scale`` instead of its own, if given."""
    if length_scale is None:
        length_scale = START_LENGTH if config.length_scale == "auto" else config.length_scale
    kernel = make_kernel(config.kernel, length_scale)
    return Clipped(kernel, config.kernel_clip) if config.kernel_clip else kernel
