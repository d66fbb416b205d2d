"""Hyper-parameters by leave-one-out in closed form, every class counting the same.

    K = k(h, h) + sigma^2 I        mu_-i = y_i - [K^-1 Y]_i / (K^-1)_ii                  (algorithms 3.4 item 7)
    error = 1/C sum_c 1/n_c sum_{i in c} |y_i - mu_-i|^2

One eigendecomposition of k(h, h) serves every sigma: a length-scale costs O(n^3), each sigma O(n^2 C).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.gp import KERNELS, Kernel
from semigpc.gp.kernels import squared_distances

LENGTHS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0)  # in median distances between labelled points
NOISES = (0.2, 0.32, 0.55, 1.0)  # sigma, beside an output scale of 1; with less, rows of one class have weights that cancel


@dataclass(frozen=True)
class Setting:
    """Kernel, noise and scaling, and the class-balanced squared leave-one-out error that they were chosen for."""

    scaling: str
    length_scale: float
    noise_std: float
    error: float


def make_kernel(name: str, length_scale: float) -> Kernel:
    """The kernel of this name with output scale 1, so that variances are shares of the prior variance."""
    kind: Any = KERNELS[name]
    made: Kernel = kind() if name == "cosine" else kind(length_scale=length_scale)
    return made


def balanced_subset(codes: NDArray[np.int64], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions of at most ``size`` rows, sorted: as many of every class as fit, so that large classes give way first."""
    if len(codes) <= size:
        return np.arange(len(codes))
    counts = np.bincount(codes)
    caps = np.arange(1, counts.max() + 1)
    fitting = [cap for cap in caps if np.minimum(counts, cap).sum() <= size]
    cap = fitting[-1] if fitting else 1
    kept = [rng.permutation(np.flatnonzero(codes == c))[:cap] for c in np.flatnonzero(counts)]
    return np.sort(np.concatenate(kept))


def tune(
    points: Mapping[str, Tensor],
    codes: Tensor,
    *,
    kernel: str,
    length_scale: float | None,
    noise_std: float | None,
) -> Setting:
    """The setting of least error; None lets a hyper-parameter range over its grid.

    Rows that are alone in their class tell nothing about it when they are left out, and do not count.

    Args:
        points: labelled points (n, D) under each scaling to choose from.
        codes: (n,) classes 0 .. C - 1.
        kernel: its name.
        length_scale, noise_std: fixed, or None.
    """
    counts = torch.bincount(codes).double()
    targets = torch.nn.functional.one_hot(codes, len(counts)).double()
    weights = torch.where(counts[codes] > 1, 1 / counts[codes], 0.0)
    weights = weights / weights.sum() if bool(weights.any()) else torch.full_like(weights, 1 / len(weights))
    best: Setting | None = None
    for name, rough in points.items():
        h = rough.double()
        lengths: Sequence[float] = [length_scale] if length_scale is not None else _lengths(h)
        for length in lengths if kernel != "cosine" else lengths[:1]:
            values, vectors = torch.linalg.eigh(make_kernel(kernel, length)(h, h))
            rotated = vectors.mT @ targets
            for noise in NOISES if noise_std is None else (noise_std,):
                inverse = 1 / (values.clamp_min(0) + noise**2)
                alpha = vectors @ (inverse.unsqueeze(1) * rotated)
                residuals = alpha / (vectors.square() @ inverse).unsqueeze(1)
                error = float(weights @ residuals.square().sum(dim=1))
                if best is None or error < best.error:
                    best = Setting(name, float(length), float(noise), error)
    assert best is not None
    return best


def _lengths(points: Tensor) -> list[float]:
    """The grid around the median distance between different points (n, D); around 1 if all coincide."""
    distances = squared_distances(points, points).flatten()
    apart = distances[distances > 1e-12]
    median = float(apart.median().sqrt()) if len(apart) else 1.0
    return [factor * median for factor in LENGTHS]
