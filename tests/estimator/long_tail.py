"""Small long-tailed data for the tests of the estimator."""

from typing import Any

import numpy as np

# Hyper-parameters that need no fitting, for comparisons with equations written by hand.
FIXED: dict[str, Any] = {"length_scale": 0.6, "noise_std": 0.3, "logit_scale": 6.0}
FIXED |= {"scaling": "unit", "self_training": 0}


def blobs(
    counts: tuple[int, ...] = (60, 20, 6), unlabeled: int = 40, width: int = 8, seed: int = 0
) -> tuple[Any, Any, Any]:
    """Rows, codes (-1: one of the ``unlabeled`` of each class), and the truth: Gaussian blobs."""
    rng = np.random.default_rng(seed)
    centres = 4 * rng.standard_normal((len(counts), width))
    truth = np.repeat(np.arange(len(counts)), [count + unlabeled for count in counts])
    X = (centres[truth] + rng.standard_normal((len(truth), width))).astype(np.float32)
    codes = truth.copy()
    start = 0
    for count in counts:
        codes[start + count : start + count + unlabeled] = -1
        start += count + unlabeled
    return X, codes, truth


X, CODES, TRUTH = blobs()  # what most tests fit
