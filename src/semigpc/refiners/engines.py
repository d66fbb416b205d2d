"""Which engine carries the GP of a refiner."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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
from semigpc.refiners.gp_config import EngineName, GPConfig

logger = logging.getLogger(__name__)

Make = Callable[[GPConfig, int, int, Kernel, torch.device | str | None], Engine]


class Choice(NamedTuple):
    """The engine that is taken, and why."""

    name: EngineName
    reason: str


def choose_engine(config: GPConfig, device: torch.device | str | None = None) -> Choice:
    """The engine that a config names; of "auto", exact if its matrices fit, low-rank if not."""
    if config.engine != "auto":
        return Choice(config.engine, "as configured")
    if config.learn_per_class:
        return Choice("lowrank", "every class has a kernel of its own")
    if config.kernel_clip:
        return Choice("exact", "a clipped kernel may not be positive definite, which the others need")
    fit = exact_fits(config.buffer_size, device)
    return Choice("exact" if fit.fits else "lowrank", fit.reason)


def build_engine(config: GPConfig, n_features: int, n_classes: int, *, device: torch.device | str | None = None) -> Engine:
    """The engine that a config asks for, empty. It is said which, and why, on the log."""
    choice = choose_engine(config, device)
    if config.exclude_same_index and choice.name != "exact":
        raise ValueError(f"exclude_same_index needs the exact engine; got engine={choice.name!r} ({choice.reason}).")
    logger.info("engine %s: %s", choice.name, choice.reason)
    make = _per_class if config.learn_per_class else ENGINES[choice.name]
    return make(config, n_features, n_classes, build_kernel(config), device)


def build_kernel(config: GPConfig) -> Kernel:
    """The kernel that a config asks for."""
    scales: dict[str, Any] = {"output_scale": config.output_scale}
    if config.kernel in ("rbf", "laplace"):
        scales["length_scale"] = config.length_scale
    kernel: Kernel = KERNELS[config.kernel](**scales)
    return Clipped(kernel, config.kernel_clip) if config.kernel_clip else kernel


def _exact(
    config: GPConfig,
    n_features: int,
    n_classes: int,
    kernel: Kernel,
    device: torch.device | str | None,
    capacity: int | None = None,
) -> Engine:
    return ExactGP(
        config.buffer_size if capacity is None else capacity,
        n_features,
        n_classes,
        kernel=kernel,
        noise_std=config.noise_std,
        device=device,
    )


def _lowrank(config: GPConfig, n_features: int, n_classes: int, kernel: Kernel, device: torch.device | str | None) -> Engine:
    return LowRankGP(
        config.buffer_size,
        n_features,
        n_classes,
        rank=config.landmarks,
        kernel=kernel,
        noise_std=config.noise_std,
        landmark_steps=config.landmark_steps,
        dtype=getattr(torch, config.dtype),
        device=device,
    )


def _per_class(config: GPConfig, n_features: int, n_classes: int, kernel: Kernel, device: torch.device | str | None) -> Engine:
    """A low-rank engine for each class, all with the config's kernel until others are learned."""

    def member(own: Kernel, _noise_std: float) -> Engine:
        return _lowrank(config, n_features, 1, own, device)

    kernels, noise_stds = [kernel] * n_classes, [config.noise_std] * n_classes
    return PerClassGP(config.buffer_size, n_features, n_classes, make=member, kernels=kernels, noise_stds=noise_stds)


def _ensemble(config: GPConfig, n_features: int, n_classes: int, kernel: Kernel, device: torch.device | str | None) -> Engine:
    if spread_out() and config.learn != "never":
        raise ValueError(f"learn={config.learn!r} needs all rows in one place, and processes share the members of an ensemble.")
    member = partial(_exact, config, n_features, n_classes, kernel, device)
    return EnsembleGP(config.buffer_size, n_features, n_classes, make=member, members=config.members, combine=config.combine)


def _matrix_free(
    config: GPConfig, n_features: int, n_classes: int, kernel: Kernel, device: torch.device | str | None
) -> Engine:
    return MatrixFreeGP(
        config.buffer_size,
        n_features,
        n_classes,
        rank=config.landmarks,
        tolerance=config.tolerance,
        kernel=kernel,
        noise_std=config.noise_std,
        dtype=getattr(torch, config.dtype),
        device=device,
    )


ENGINES: dict[str, Make] = {
    "exact": _exact,
    "lowrank": _lowrank,
    "ensemble": _ensemble,
    "matrix_free": _matrix_free,
}
