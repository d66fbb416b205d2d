"""Which engine carries the GP of a refiner."""

import logging

import torch

from semigpc.gp import KERNELS, Clipped, Engine, ExactGP, Kernel
from semigpc.refiners.gp_config import GPConfig

logger = logging.getLogger(__name__)

EXACT_ROWS = 32_768  # beyond, a step of the exact engine takes half a second on two cores
EXACT_SHARE = 0.5  # of the free memory that K and its inverse may take


def build_engine(config: GPConfig, n_features: int, n_classes: int, *, device: torch.device | str | None = None) -> Engine:
    """The engine that a config asks for, empty."""
    kernel, dtype = build_kernel(config), getattr(torch, config.dtype)
    return ExactGP(
        config.buffer_size,
        n_features,
        n_classes,
        kernel=kernel,
        noise_std=config.noise_std,
        refine=config.iterative_refinement,
        dtype=dtype,
        device=device,
    )


def build_kernel(config: GPConfig) -> Kernel:
    """The kernel that a config asks for."""
    scales = {"output_scale": config.output_scale}
    if config.kernel in ("rbf", "laplace"):
        scales["length_scale"] = config.length_scale
    kernel: Kernel = KERNELS[config.kernel](**scales)
    return Clipped(kernel, config.kernel_clip) if config.kernel_clip else kernel
