"""Choosing what probabilities depend on: the scales of both logits, class shares, sharpness."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import gammaln
from torch import Tensor

from semigpc.estimator.answers import SHARPENING, SMALLEST, sharpened

USUAL_SHARPNESS = 0.2  # log beta where nothing can be learned ...
SHARPNESS_DEVIATION = 0.3  # ... and how far it usually is from that
SHARPNESS_RANGE = (-1.5, 1.5)  # of log beta
# What is taken from beta where the shares are far from those of the labels, and how many nats that
# is: there left-out labels say less. Chosen on 47 problems, seeds 100 to 102 (docs/results.md).
APART_SHARPNESS = 0.1
APART_NATS = 0.1
LOGIT_SCALES = tuple(float(x) for x in np.geomspace(1.0, 80.0, 40))
EM_ROUNDS = 200  # of expectation-maximisation at most
CONVERGED_CHANGE = 1e-6  # of a share, below which it stops
RELIED_SHARE = 0.15  # of the unlabelled rows that counts for the prior: their classes are estimates
STRENGTHS = np.geomspace(1, 1e5, 41)  # tried, of the prior proportional to the labels, in labels
LEAST_SHARE = 0.01  # of an even share: that of the pseudo-rows of a class
# Largest over smallest count of labels up to which they count as chosen evenly by a person, so that
# they contain nothing about shares.
EVEN_RATIO = 1.5


def choose_sharpness(probs: Tensor, codes: Tensor, counts: Tensor, weights: Tensor) -> float:
    """Return the beta under which left-out labels are most likely. O(n C) for each value tried.

    Args:
        probs: (n, C) averages for rows that did not take part. codes: (n,) their labels.
        counts: (n, C) labels of each class that did. weights: (n,) of the labels.
    """
    rows = torch.arange(len(codes))

    def loss(log_sharpness: float) -> float:
        own = sharpened(probs, math.exp(log_sharpness), counts)[rows, codes]
        misfit = -float(weights.to(own) @ own.clamp_min(SMALLEST).log())
        return misfit + ((log_sharpness - USUAL_SHARPNESS) / SHARPNESS_DEVIATION) ** 2 / 2

    found = minimize_scalar(loss, bounds=SHARPNESS_RANGE, method="bounded", options={"xatol": 1e-3})
    return math.exp(float(found.x))


def share_divergence(shares: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """Return how far shares pi (C,) are from those of the labels: KL(pi | nu), in nats. O(C).

        nu_c ~ n_c + 1/2

    Args:
        shares: (C,) of the unlabelled rows. counts: (C,) labels of each class.
    """
    shares = np.maximum(shares, SMALLEST)
    likely = (counts + 0.5) / (counts + 0.5).sum()
    return float((shares * np.log(shares / likely)).sum())


def doubted_sharpness(
    sharpness: float, shares: NDArray[np.float64], counts: NDArray[np.float64]
) -> float:
    """Return beta (1 - 0.1 min(1, KL(pi | nu) / 0.1)). O(C).

    Where the unlabelled rows have other shares pi than the labels, left-out labels are not like
    these rows, and the beta that suits them is too large on average.

    Args:
        sharpness: beta. shares, counts: (C,) as of :func:`share_divergence`.
    """
    apart = share_divergence(shares, counts) / APART_NATS
    return sharpness * (1 - APART_SHARPNESS * min(1.0, max(0.0, apart)))


def label_weights(codes: Tensor, shares: Tensor) -> Tensor:
    """Return weights (n,) under which labels have the classes' shares (C,) among unlabelled rows.

    They sum to the effective number of labels, (sum w)^2 / sum w^2.
    """
    counts = torch.bincount(codes, minlength=len(shares))
    weights = shares[codes] / counts[codes]
    return weights * weights.sum() / weights.square().sum().clamp_min(1e-300)


def best_logit_scale(scores: Tensor, codes: Tensor, default: float) -> float:
    """Return the lambda of largest likelihood of softmax(lambda s), classes counting the same.

    One pseudo-observation per class at the default prevents certainty from a handful of labels that
    are all predicted right. O(n C) for each value tried.

    Args:
        scores: (n, C) of rows that did not take part; rows whose own class is -inf are left out.
            codes: (n,).
        default: lambda where nothing can be learned.
    """
    rows = torch.arange(len(codes))
    usable = scores[rows, codes].isfinite()
    scores = scores[usable]
    codes = codes[usable]
    if not len(codes):
        return default
    counts = torch.bincount(codes, minlength=scores.shape[1]).to(scores)
    weights = 1 / counts[codes]
    n_c = float(len(codes)) / float((counts > 0).sum())

    def loss(scale: float) -> float:
        own = torch.log_softmax(scale * scores, dim=1)[rows[: len(codes)], codes]
        return -float(weights @ own / weights.sum()) + math.log(scale / default) ** 2 / n_c

    return min(LOGIT_SCALES, key=loss)


def estimate_shares(scores: Tensor, scale: float, counts: Tensor) -> Tensor:
    """Return class shares of unlabelled rows by expectation-maximisation.

        r_ic ~ pi_c softmax(2 lambda s_i)_c
        pi_c ~ max(1, u / 100 C) + kappa n_c / n + sum_i r_ic

    The prior is proportional to the labels. The first term are pseudo-rows, so that no share
    becomes 0. kappa is chosen each round: it
    maximises the likelihood of the counts sum_i r_ic, of which 15 % are relied on, under a
    Dirichlet-multinomial distribution around n_c / n. Labels that are drawn like the other rows
    thus decide about rare classes, and labels that are not have little weight. Where all classes
    have about as many labels, somebody chose them so, and kappa is 0. O(u C) a round.

    Args:
        scores: (u, C) of the unlabelled rows, with equal evidence for every class. scale: lambda.
        counts: (C,) labels of each class; a class without labels has no share.
    """
    present = counts > 0
    if not len(scores):
        return counts / counts.sum()
    probs = torch.softmax(
        (SHARPENING * scale * scores.double()).masked_fill(~present, -math.inf), dim=1
    )
    likely = (counts / counts.sum()).numpy()
    pseudo = present.double().numpy() * max(1.0, LEAST_SHARE * len(scores) / len(counts))
    even = float(counts.max() / counts[present].min()) <= EVEN_RATIO
    shares = present.double() / present.sum()
    for _ in range(EM_ROUNDS):
        joint = probs * shares
        rows = (joint / joint.sum(dim=1, keepdim=True).clamp_min(1e-30)).sum(dim=0).numpy()
        kappa = (
            0.0
            if even
            else _strength(RELIED_SHARE * rows[pseudo > 0], likely[pseudo > 0]) / RELIED_SHARE
        )
        total = rows + kappa * likely + pseudo
        before = shares
        shares = torch.from_numpy(total / total.sum())
        if float((shares - before).abs().max()) < CONVERGED_CHANGE:
            break
    return shares


def _strength(rows: NDArray[np.float64], likely: NDArray[np.float64]) -> float:
    """Return the kappa of largest Dirichlet-multinomial likelihood of counts (C,)."""
    prior = STRENGTHS[:, None] * likely
    evidence = (
        gammaln(STRENGTHS)
        - gammaln(STRENGTHS + rows.sum())
        + (gammaln(prior + rows) - gammaln(prior)).sum(axis=1)
    )
    return float(STRENGTHS[evidence.argmax()])
