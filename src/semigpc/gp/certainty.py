"""From a posterior to a confidence, and whether that confidence is right.

The scale of logits, equal evidence for every class, the share of variance explained, expected
probabilities, and the reliability diagram with its calibration error.
"""

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.quasirandom import SobolEngine
from typing_extensions import TypedDict

DRAWS = 256  # of the other classes, in pairs of opposite sign
LEVELS = 16  # of the class itself
DRAWN_CELLS = 2**22  # numbers held at once
THRESHOLD = 0.95  # tau, the usual threshold of pseudo-labels ...
MEAN_AT_THRESHOLD = 0.8  # ... which a posterior mean of this on one class should just reach


def auto_logit_scale(n_classes: int) -> float:
    """Return lambda = ln((C - 1) tau / (1 - tau)) / 0.8 with tau = 0.95.

    6.43 for 10 classes, 9.42 for 100, 12.05 for 810.
    """
    return math.log(max(n_classes - 1, 1) * THRESHOLD / (1 - THRESHOLD)) / MEAN_AT_THRESHOLD


def class_scales(counts: Tensor) -> Tensor:
    """Return sqrt(nbar / n_c), by which means are multiplied for equal evidence of every class.

    nbar is the mean over the classes that have rows, so that the factor is 1 where these have
    equally many, however many other classes there are. It is 0 for a class without rows, whose mean
    contains no evidence.

    Args:
        counts: (..., C) rows of each class; soft labels count by their shares.
    """
    return torch.where(counts > 0, (_mean_count(counts) / counts.clamp_min(1e-9)).sqrt(), 0.0)


def _mean_count(counts: Tensor) -> Tensor:
    """Return nbar, (..., 1)."""
    return counts.sum(dim=-1, keepdim=True) / (counts > 0).sum(dim=-1, keepdim=True).clamp_min(1)


def explained_share(variance: Tensor, prior: Tensor) -> Tensor:
    """Return 1 - var(h) / k(h, h), in [0, 1]: 0 far from every row, 1 where all is known.

    With one row at h it is 1 / (1 + sigma^2 / k), with two 2 / (2 + sigma^2 / k): 0.91 and 0.95 at
    sigma^2 / k = 0.1.

    Args:
        variance: (M,). prior: (M,) k(h, h); where it is 0 there is nothing to explain, and the
            share is 0.
    """
    return torch.where(prior > 0, 1 - variance / prior, 0.0).clamp(0, 1)


def expected_probability(logits: Tensor, spread: Tensor, classes: Tensor) -> Tensor:
    """Return E[ softmax(f)_c ] of one class c per row, f_j ~ N(z_j, s_j^2) independent, (M,).

    The expectation is that of a class named beforehand. E[ max_j softmax(f)_j ] would not do as a
    confidence: the further f is spread, the nearer every draw comes to certainty of one class or
    another, so that it GROWS with the variance. That of a named class falls to 1 / C where nothing
    is known.

    The class's own f_c is taken at 16 levels of equal probability and the others at 256
    quasi-random draws, each beside its opposite, combined all with all. They are fixed, so that the
    result is deterministic and no generator is used. Accurate to about 0.005. O(M C).

    Args:
        logits: (M, C) z, at least one of a row finite; -inf for a class that is impossible.
        spread: (M, C) s, at least 0.
        classes: (M,) c.
    """
    rows = max(1, DRAWN_CELLS // (DRAWS * max(logits.shape[1], LEVELS)))
    parts = zip(*(x.split(rows) for x in (logits, spread, classes)), strict=True)
    expected = [_expected(*part) for part in parts]
    return torch.cat(expected) if expected else logits.new_zeros(0)


def _expected(logits: Tensor, spread: Tensor, classes: Tensor) -> Tensor:
    own = classes.unsqueeze(1)
    places = torch.arange(logits.shape[1] - 1, device=logits.device)
    others = places + (places >= own)  # (M, C - 1)
    levels, draws = (x.to(logits.dtype) for x in _normal(logits.shape[1] - 1, logits.device))
    noise = spread.gather(1, others).unsqueeze(1) * draws
    rivals = logits.gather(1, others).unsqueeze(1) + noise  # (M, draws, C - 1)
    ahead = logits.gather(1, own) + spread.gather(1, own) * levels  # (M, levels)
    return torch.sigmoid(ahead.unsqueeze(1) - rivals.logsumexp(dim=2).unsqueeze(2)).mean(dim=(1, 2))


@lru_cache(maxsize=8)
def _normal(dimensions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return normal levels (16,) in the middle of equal shares, and draws (256, dimensions)."""
    shares = (torch.arange(LEVELS, dtype=torch.float64) + 0.5) / LEVELS
    levels = torch.special.ndtri(shares).to(device)
    if not dimensions:
        return levels, levels.new_zeros(DRAWS, 0)
    uniform = SobolEngine(dimensions, scramble=True, seed=0).draw(DRAWS // 2, dtype=torch.float64)
    draws = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9)).to(device)
    return levels, torch.cat([draws, -draws])


# Reliability --------------------------------------------------------------------------------------


class ReliabilityBins(TypedDict):
    """A reliability diagram; ``confidence`` and ``accuracy`` are None in bins without rows."""

    edges: list[float]
    confidence: list[float | None]
    accuracy: list[float | None]
    count: list[int]


def reliability(
    confidence: NDArray[np.float64],
    right: NDArray[np.bool_],
    *,
    bins: int,
    weights: NDArray[np.float64] | None = None,
) -> tuple[ReliabilityBins, float]:
    """Return the reliability diagram over equal bins [a, b) of confidence, and the ECE.

    The expected calibration error is the sum over bins of |accuracy - mean confidence|, weighted by
    their share of the rows. A confidence of 1 is in the last bin.

    Args:
        confidence: (M,) in [0, 1]. right: (M,) whether the class is right. bins: how many. weights:
            (M,) of the rows; equal if left out.
    """
    weights = np.ones(len(confidence)) if weights is None else weights
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    total = np.bincount(place, weights=weights, minlength=bins)
    count = np.bincount(place, minlength=bins)
    divisor = np.where(total > 0, total, 1.0)
    mean = np.bincount(place, weights=weights * confidence, minlength=bins) / divisor
    accuracy = np.bincount(place, weights=weights * right, minlength=bins) / divisor
    error = float((total * np.abs(mean - accuracy)).sum() / max(weights.sum(), 1e-300))

    def known(values: NDArray[np.float64]) -> list[float | None]:
        return [float(value) if n else None for value, n in zip(values, count, strict=True)]

    diagram: ReliabilityBins = {
        "edges": np.linspace(0, 1, bins + 1).tolist(),
        "confidence": known(mean),
        "accuracy": known(accuracy),
        "count": count.tolist(),
    }
    return diagram, error
