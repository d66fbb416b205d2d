"""Confidence that people read: one temperature per head, fitted once the network is trained, apart
from pseudo-labels.

The class prior makes the GP head too sure of rare classes and not sure enough of frequent ones,
which no temperature mends. The linear head errs the other way. So the GP head reports two thirds of
its own probabilities and a third of the linear head's.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor, nn

from semigpc.gp.scales import neighbour_length_scale
from semigpc.refiners import GaussianProcessRefiner, GPConfig
from semigpc.training.metrics import Head

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
RANGE = (0.02, 50.0)  # of a temperature: from all but certain to all but uniform
ROWS = (
    4000  # labelled images that are split into halves; each half is then solved in about a second
)
NOISE_STD = 0.1**0.5  # sigma of the halves
UNCALIBRATED = "The confidence is not calibrated and may be far too high."
GP_SHARE = 2 / 3  # of the GP in what its head reports; at a half it would change more decisions


def tempered(probs: Floats, temperature: float) -> Floats:
    """Return p^(1/T) / sum p^(1/T), (M, C): softmax(z / T) of the logits z. The order of the
    classes does not change.
    """
    logits = np.log(np.maximum(probs, np.finfo(np.float64).tiny)) / temperature
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=1, keepdims=True)
    return shares


def calibrated(
    probs: Mapping[Head, Floats], temperatures: Mapping[Head, float]
) -> dict[Head, Floats]:
    """Return what each head reports, (M, C), from its ``probs`` p and temperature T::

        linear:  q_linear            with  q = p^(1/T) / sum p^(1/T)
        gp:      2/3 q_gp + 1/3 q_linear

    A head without a temperature is returned as it is, and is not mixed with another.
    """
    scaled = {
        head: tempered(p, temperatures[head]) if head in temperatures else p
        for head, p in probs.items()
    }
    if {"linear", "gp"} <= temperatures.keys() & probs.keys():
        scaled["gp"] = GP_SHARE * scaled["gp"] + (1 - GP_SHARE) * scaled["linear"]
    return scaled


def temperature_for(probs: Floats, accuracy: float, weights: Floats | None = None) -> float:
    """Return the T at which the mean confidence, mean_i max_c p_T(x_i)_c, is ``accuracy``; the end
    of RANGE if none is.

    Args:
        probs: (M, C). accuracy: in [0, 1]. weights: (M,) of the images in the mean; equal ones if
            left out.
    """

    def excess(log_temperature: float) -> float:
        return (
            float(np.average(tempered(probs, np.exp(log_temperature)).max(axis=1), weights=weights))
            - accuracy
        )

    low, high = np.log(RANGE)
    if excess(low) <= 0 or excess(high) >= 0:
        return RANGE[0] if excess(low) <= 0 else RANGE[1]
    return float(np.exp(brentq(excess, low, high, xtol=1e-4)))


def from_labels(probs: Mapping[Head, Floats], labels: Integers) -> dict[Head, float]:
    """Return the temperature of each head for images with known labels (M,): mean confidence =
    (right + 1) / (M + 2).

    The extra image on either side keeps a few images that are all right from making every
    confidence 1.
    """
    return {
        head: temperature_for(
            values, (int((values.argmax(axis=1) == labels).sum()) + 1) / (len(labels) + 2)
        )
        for head, values in probs.items()
    }


def from_halves(
    probs: Mapping[Head, Floats], halves: tuple[Integers, Integers], *, strict: bool
) -> dict[Head, float]:
    """Return the temperature of each head from the classes (M,) that two GPs, each over half of the
    labels, predict.

    The class by one half stands for the truth, and images are weighted so that all of its classes
    count alike: unlabelled images with a long tail then speak for every class, and the confidence
    is that on images with balanced classes::

        agreement  =  mean over classes c of P(head = c | half = c)
        e          =  1 - (agreement + mean confidence of the linear head) / 2
        accuracy   =  (1 - e) (1 - e^2)

    Without a linear head e = 1 - agreement.
    T is chosen such that the mean confidence, weighted likewise, equals the accuracy, but never
    below 1. Half of a few labels knows less than all of them, so agreement can be too low; a
    network's confidence tends to be too high. On easy images nearly all errors are seen in e; on
    hard ones the network and both halves are often wrong together, hence e^2. Features that were
    trained on all labels make the halves agree too often; with ``strict`` a head therefore counts
    as right only where both halves agree with it.
    """
    truth = np.concatenate(halves)
    other = np.concatenate(halves[::-1])
    weights = 1 / np.bincount(truth)[truth]
    twice = {head: np.concatenate([values, values]) for head, values in probs.items()}
    confident = (
        [np.average(twice["linear"].max(axis=1), weights=weights)] if "linear" in twice else []
    )
    temperatures = {}
    for head, values in twice.items():
        classes = values.argmax(axis=1)
        right = (classes == truth) & ((classes == other) | (not strict))
        error = 1 - float(np.mean([np.average(right, weights=weights), *confident]))
        temperatures[head] = max(
            1.0, temperature_for(values, (1 - error) * (1 - error**2), weights)
        )
    return temperatures


def halved(labels: Integers, n_classes: int, seed: int) -> tuple[Integers, Integers] | None:
    """Return the positions in ``labels`` (n,) of two random halves of each class; None if no class
    has two labels.

    The only label of a class is in both halves. At most 4000 labels are used, evenly over the
    classes.
    """
    rng = np.random.default_rng([seed, 37])
    members = [
        rng.permutation(np.flatnonzero(labels == c))[: max(2, ROWS // n_classes)]
        for c in range(n_classes)
    ]
    if max(map(len, members)) < 2:
        return None
    first = np.concatenate([rows[: (len(rows) + 1) // 2] for rows in members])
    second = np.concatenate(
        [rows[(len(rows) + 1) // 2 :] if len(rows) > 1 else rows for rows in members]
    )
    return first, second


def predicted_by_halves(
    features: Tensor,
    labels: Integers,
    halves: tuple[Integers, Integers],
    unlabeled: Tensor,
    n_classes: int,
) -> tuple[Integers, Integers]:
    """Return the classes (M,) of unlabelled images by two GPs, one over each half of the labelled
    ones. O(n^3 + M n D).

    The GP has the class prior and works on unit features; l^2 is 1.5 times the median squared
    distance from an unlabelled image to its nearest labelled one.

    Args:
        features: (n, D) of labelled images. labels: (n,). halves: positions among them. unlabeled:
            (M, D) features.
    """
    features, unlabeled = (
        nn.functional.normalize(rows.float(), dim=1) for rows in (features, unlabeled)
    )
    used = features[torch.from_numpy(np.union1d(*halves)).to(features.device)]
    config = GPConfig(
        buffer_size=len(used),
        length_scale=neighbour_length_scale(unlabeled, used),
        noise_std=NOISE_STD,
        logit_scale=1.0,
        class_prior="frequency",
    )

    def predicted(half: Integers) -> Integers:
        gp = GaussianProcessRefiner(config, features.shape[1], n_classes, device=features.device)
        rows = torch.from_numpy(half)
        gp.remember(
            features[rows.to(features.device)], torch.from_numpy(labels)[rows].to(features.device)
        )
        classes: Integers = gp.probs(unlabeled).argmax(dim=1).cpu().numpy()
        return classes

    return predicted(halves[0]), predicted(halves[1])
