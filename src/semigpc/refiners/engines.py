"""The engines that can hold the GP of a refiner: their options, which one ``auto`` takes, and how each is built."""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch

from semigpc.gp import (
    KERNELS,
    Clipped,
    Engine,
    EnsembleGP,
    ExactGP,
    Kernel,
    LowRankGP,
    MatrixFreeGP,
    PerClassGP,
    exact_fits,
    spread_out,
)

if TYPE_CHECKING:
    from semigpc.refiners.gp_config import GPConfig

logger = logging.getLogger(__name__)

RANK = 1024  # landmarks by default

Device = torch.device | str | None


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
    """What one engine can be set to. To add an engine, write such a class and list it in ``ENGINES``."""

    name: ClassVar[str]

    def check(self, buffer_size: int) -> None:  # noqa: B027 - most options go with any size
        """Raise ValueError for options that do not go with this buffer size."""

    def choose(self, config: "GPConfig", device: Device) -> Choice:  # noqa: ARG002
        """The engine to build on a device."""
        return Choice(self, "as configured")

    @abstractmethod
    def build(self, capacity: int, n_features: int, n_classes: int, **common: Any) -> Engine:
        """Return the engine, empty. ``common``: kernel, noise_std and device, which every engine takes."""


@dataclass(frozen=True, kw_only=True)
class ExactOptions(EngineOptions):
    """The exact engine updates K^-1 at O(B N^2) per step, in float64; it has no options."""

    name: ClassVar[str] = "exact"

    def build(self, capacity: int, n_features: int, n_classes: int, **common: Any) -> Engine:
        """An :class:`ExactGP`."""
        return ExactGP(capacity, n_features, n_classes, **common)


@dataclass(frozen=True, kw_only=True)
class LowRankOptions(EngineOptions):
    """The low-rank engine works on landmarks, at O(B rank^2) per step for any N.

    Args:
        rank: landmarks; 1024, or as many as there are slots.
        landmark_steps: steps after which landmarks are chosen anew, as the network moves its features; 0 for one turnover of
            the buffer. They are also chosen anew when new rows are badly covered.
        dtype: of the stored rows.
    """

    name: ClassVar[str] = "lowrank"
    rank: int | None = None
    landmark_steps: int = 0
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        _check_rank(self.rank)
        if self.landmark_steps < 0:
            raise ValueError(f"landmark_steps must not be negative; got {self.landmark_steps}.")

    def check(self, buffer_size: int) -> None:
        """There are no more landmarks than slots."""
        _check_landmarks(self.rank, buffer_size)

    def build(self, capacity: int, n_features: int, n_classes: int, **common: Any) -> Engine:
        """A :class:`LowRankGP`."""
        return LowRankGP(
            capacity,
            n_features,
            n_classes,
            rank=self.rank or min(RANK, capacity),
            landmark_steps=self.landmark_steps,
            dtype=getattr(torch, self.dtype),
            **common,
        )


@dataclass(frozen=True, kw_only=True)
class AutoOptions(LowRankOptions):
    """The exact engine where its matrices fit into the device's memory, and beyond the low-rank one with these options."""

    name: ClassVar[str] = "auto"

    def choose(self, config: "GPConfig", device: Device) -> Choice:
        """By the rest of the config where that needs one of the two, and else by the device's memory."""
        exact = ExactOptions()
        lowrank = LowRankOptions(rank=self.rank, landmark_steps=self.landmark_steps, dtype=self.dtype)
        if config.learn_per_class:
            return Choice(lowrank, "every class has a kernel of its own")
        if config.kernel_clip:
            return Choice(exact, "a clipped kernel may not be positive definite, which the others need")
        fit = exact_fits(config.buffer_size, device)
        return Choice(exact if fit.fits else lowrank, fit.reason)


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
        if self.members < 1:
            raise ValueError(f"members must be at least 1; got {self.members}.")

    def check(self, buffer_size: int) -> None:
        """Each member has a slot."""
        if self.members > buffer_size:
            raise ValueError(f"engine.members must not be more than buffer_size; got {self.members} > {buffer_size}.")

    def choose(self, config: "GPConfig", device: Device) -> Choice:
        """As configured, unless processes share the members and a kernel is to be learned from all rows."""
        if spread_out() and config.learn != "never":
            raise ValueError(
                f"learn={config.learn!r} needs all rows in one place, and processes share the members of an ensemble."
            )
        return super().choose(config, device)

    def build(self, capacity: int, n_features: int, n_classes: int, **common: Any) -> Engine:
        """An :class:`EnsembleGP`; processes that train together share the members."""
        make = partial(ExactGP, n_features=n_features, n_classes=n_classes, **common)
        return EnsembleGP(capacity, n_features, n_classes, make=make, members=self.members, combine=self.combine)


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
        _check_rank(self.rank)
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must lie between 0 and 1; got {self.tolerance}.")

    def check(self, buffer_size: int) -> None:
        """There are no more landmarks than slots."""
        _check_landmarks(self.rank, buffer_size)

    def build(self, capacity: int, n_features: int, n_classes: int, **common: Any) -> Engine:
        """A :class:`MatrixFreeGP`."""
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
    kind.name: kind for kind in (AutoOptions, ExactOptions, LowRankOptions, EnsembleOptions, MatrixFreeOptions)
}


def choose_engine(config: "GPConfig", device: Device = None) -> Choice:
    """The engine that a config names; of "auto", exact if its matrices fit into the device's memory, low-rank if not."""
    choice: Choice = config.engine.choose(config, device)
    if config.exclude_same_index and choice.name != "exact":
        raise ValueError(f"exclude_same_index needs the exact engine; got engine={choice.name!r} ({choice.reason}).")
    return choice


def build_engine(config: "GPConfig", n_features: int, n_classes: int, *, device: Device = None) -> Engine:
    """The engine that a config asks for, empty. The log says which, and why."""
    options, reason = choose_engine(config, device)
    logger.info("engine %s: %s", options.name, reason)
    kernel, size = build_kernel(config), config.buffer_size
    if not config.learn_per_class:
        return options.build(size, n_features, n_classes, kernel=kernel, noise_std=config.noise_std, device=device)

    def member(own: Kernel, noise_std: float) -> Engine:
        return options.build(size, n_features, 1, kernel=own, noise_std=noise_std, device=device)

    kernels, noise_stds = [kernel] * n_classes, [config.noise_std] * n_classes  # until others are learned
    return PerClassGP(size, n_features, n_classes, make=member, kernels=kernels, noise_stds=noise_stds)


def build_kernel(config: "GPConfig") -> Kernel:
    """The kernel that a config asks for."""
    scales: dict[str, Any] = {"output_scale": config.output_scale}
    if config.kernel in ("rbf", "laplace"):
        scales["length_scale"] = config.length_scale
    kernel: Kernel = KERNELS[config.kernel](**scales)
    return Clipped(kernel, config.kernel_clip) if config.kernel_clip else kernel


def _check_rank(rank: int | None) -> None:
    if rank is not None and rank < 1:
        raise ValueError(f"rank must be at least 1; got {rank}.")


def _check_landmarks(rank: int | None, buffer_size: int) -> None:
    if rank is not None and rank > buffer_size:
        raise ValueError(
            f"engine.rank must not be larger than buffer_size, as landmarks are rows of it; got {rank} > {buffer_size}. "
            "Lower it, or leave it out."
        )
