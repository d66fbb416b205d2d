"""Calibrated confidence: one temperature per head, fitted after training.

It is what people read; pseudo-labels are not affected. The class prior makes the GP head too
confident of rare classes and not confident enough of frequent ones, which no single temperature can
correct. The linear head errs the other way, so the GP head reports two thirds of its own
probabilities and one third of the linear head's.
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
RANGE = (0.02, 50.0)  # of a temperature: from almost certain to almost uniform
HALVED_LABELS = 4000  # at most; a GP over half of them then takes about a second
NOISE_STD = 0.1**0.5  # sigma of the two GPs
UNCALIBRATED = "The confidence is not calibrated and may be far too high."
GP_SHARE = 2 / 3  # of the GP in what its head reports; at a half it would change more decisions


def tempered(probs: Floats, temperature: float) -> Floats:
    """Return p^(1/T) / sum p^(1/T), (M, C), which is softmax(z / T) of the logits z.

    The order of the classes does not change.
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

    Probabilities of a head without a temperature are returned unchanged and are not mixed.
    """
    scaled = {
        head: tempered(p, temperatures[head]) if head in temperatures else p
        for head, p in probs.items()
    }
    if {"linear", "gp"} <= temperatures.keys() & probs.keys():
        scaled["gp"] = GP_SHARE * scaled["gp"] + (1 - GP_SHARE) * scaled["linear"]
    return scaled


def temperature_for(probs: Floats, accuracy: float, weights: Floats | None = None) -> float:
    """Return the T at which the mean confidence, mean_i max_c p_T(x_i)_c, equals ``accuracy``.

    If there is none, it is the nearer end of RANGE.

    Args:
        probs: (M, C). accuracy: in [0, 1]. weights: (M,) of the images in the mean; equal if left
            out.
    """

    def excess(log_temperature: float) -> float:
        confidence = tempered(probs, np.exp(log_temperature)).max(axis=1)
        return float(np.average(confidence, weights=weights)) - accuracy

    low, high = np.log(RANGE)
    if excess(low) <= 0:
        return RANGE[0]
    if excess(high) >= 0:
        return RANGE[1]
    return float(np.exp(brentq(excess, low, high, xtol=1e-4)))


def from_labels(probs: Mapping[Head, Floats], labels: Integers) -> dict[Head, float]:
    """Return the temperature of each head from images with known labels (M,).

    The mean confidence becomes (right + 1) / (M + 2). One more image that is right and one that is
    wrong keep a few images, all of them right, from making every confidence 1.
    """
    temperatures = {}
    for head, values in probs.items():
        right = int((values.argmax(axis=1) == labels).sum())
        temperatures[head] = temperature_for(values, (right + 1) / (len(labels) + 2))
    return temperatures


def from_halves(
    probs: Mapping[Head, Floats], halves: tuple[Integers, Integers], *, strict: bool
) -> dict[Head, float]:
    """Return the temperature of each head from the predictions of two GPs.

    Each GP has learned half of the labels, and ``halves`` are the classes (M,) that each predicts
    for M unlabelled images. The prediction of one half stands for the truth, and images are
    weighted such that all classes count the same: unlabelled images with a long tail then represent
    every class, and the confidence is that on images with balanced classes::

        agreement  =  mean over classes c of P(head = c | half = c)
        e          =  1 - (agreement + mean confidence of the linear head) / 2
        accuracy   =  (1 - e) (1 - e^2)

    Without a linear head, e = 1 - agreement. T is chosen such that the mean confidence, weighted
    likewise, equals this accuracy, but is at least 1.

    A GP over half of the labels is less accurate than one over all of them, so agreement tends to
    be too low; the confidence of a network tends to be too high. On easy images nearly all errors
    show in e. On hard ones the network and both GPs are often wrong together, hence e^2. If the
    features were trained on all labels, the two GPs agree too often; with ``strict``, a head
    therefore counts as right only where both GPs agree with it.
    """
    weights = _even_weights(np.concatenate(halves))
    accuracies = accuracy_by_halves(probs, halves, strict=strict)
    temperatures = {}
    for head, values in probs.items():
        twice = np.concatenate([values, values])
        temperatures[head] = max(1.0, temperature_for(twice, accuracies[head], weights))
    return temperatures


def accuracy_by_halves(
    probs: Mapping[Head, Floats], halves: tuple[Integers, Integers], *, strict: bool
) -> dict[Head, float]:
    """Return the accuracy of each head, as :func:`from_halves` estimates it."""
    truth = np.concatenate(halves)
    other = np.concatenate(halves[::-1])
    weights = _even_weights(truth)
    twice = {head: np.concatenate([values, values]) for head, values in probs.items()}
    confident = []
    if "linear" in twice:
        confident = [np.average(twice["linear"].max(axis=1), weights=weights)]
    accuracies = {}
    for head, values in twice.items():
        classes = values.argmax(axis=1)
        right = (classes == truth) & ((classes == other) | (not strict))
        error = 1 - float(np.mean([np.average(right, weights=weights), *confident]))
        accuracies[head] = (1 - error) * (1 - error**2)
    return accuracies


def _even_weights(classes: Integers) -> Floats:
    """Return weights (M,) with which every class counts the same."""
    weights: Floats = 1 / np.bincount(classes)[classes]
    return weights


def halved(labels: Integers, n_classes: int, seed: int) -> tuple[Integers, Integers] | None:
    """Return the positions in ``labels`` (n,) of two random halves of each class.

    The only label of a class is in both halves. At most 4000 labels are used, about equally many of
    each class. None if no class has two labels.
    """
    rng = np.random.default_rng([seed, 37])
    most = max(2, HALVED_LABELS // n_classes)
    members = [rng.permutation(np.flatnonzero(labels == c))[:most] for c in range(n_classes)]
    if max(map(len, members)) < 2:
        return None
    first = [rows[: (len(rows) + 1) // 2] for rows in members]
    second = [rows[(len(rows) + 1) // 2 :] if len(rows) > 1 else rows for rows in members]
    return np.concatenate(first), np.concatenate(second)


def predicted_by_halves(
    features: Tensor,
    labels: Integers,
    halves: tuple[Integers, Integers],
    unlabeled: Tensor,
    n_classes: int,
) -> tuple[Integers, Integers]:
    """Return the classes (M,) of unlabelled images by two GPs, one over each half of the labels.

    The GPs have a class prior and work on unit features; l^2 is 1.5 times the median squared
    distance from an unlabelled image to its nearest labelled one. O(n^3 + M n D).

    Args:
        features: (n, D) of labelled images. labels: (n,). halves: positions among them. unlabeled:
            (M, D) features.
    """
    features = nn.functional.normalize(features.float(), dim=1)
    unlabeled = nn.functional.normalize(unlabeled.float(), dim=1)
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
        known = torch.from_numpy(labels)[rows].to(features.device)
        gp.remember(features[rows.to(features.device)], known)
        classes: Integers = gp.probs(unlabeled).argmax(dim=1).cpu().numpy()
        return classes

    return predicted(halves[0]), predicted(halves[1])
