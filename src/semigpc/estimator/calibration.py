"""From scores to honest probabilities: the logit scale, the class shares of the unlabelled rows, and when to abstain."""

import math

import numpy as np
import torch
from torch import Tensor

LOGIT_SCALES = tuple(float(x) for x in np.geomspace(1.0, 80.0, 40))
ROUNDS = 200  # of expectation-maximisation at most
STILL = 1e-6  # change of a share at which it has settled


def class_scales(counts: Tensor) -> Tensor:
    """sqrt(nbar / n_c) for counts (..., C): equal evidence for every class (algorithms 3.7); 0 for a class without labels."""
    present = counts > 0
    n_bar = counts.sum(dim=-1, keepdim=True) / present.sum(dim=-1, keepdim=True).clamp_min(1)
    return torch.where(present, (n_bar / counts.clamp_min(1e-9)).sqrt(), 0.0)


def left_out_scores(
    mean: Tensor, ones: Tensor, codes: Tensor, counts: Tensor, held: Tensor | None = None, *, equalised: bool = True
) -> Tensor:
    """Scores (n, C) of labelled rows as if each had never been labelled: its class has one label less, too.

    Args:
        mean: (n, C) leave-one-out means of the one-hot targets. ones: (n,) those of a target of ones.
        codes: (n,) given classes. counts: (C,) labels of each class, with every row counted.
        held: (n,) what a row counts for there, 1 if left out.
        equalised: whether classes are given equal evidence.

    Returns:
        The scores; -inf for the class of a row that was alone in it.
    """
    own = torch.nn.functional.one_hot(codes, len(counts)).to(counts)
    others = counts - (own if held is None else own * held.unsqueeze(1))  # (n, C)
    shares = others / others.sum(dim=1, keepdim=True).clamp_min(1)
    scores = mean - ones.unsqueeze(1) * shares
    if equalised:
        scores = scores * class_scales(others)
    impossible = (others < 1e-9) & (others >= 1e-9).any(dim=1, keepdim=True)  # of a single label, nothing can be said at all
    return scores.masked_fill(impossible, -math.inf)


def best_logit_scale(scores: Tensor, codes: Tensor, default: float) -> float:
    """lambda of the least negative log-likelihood of softmax(lambda s), every class counting the same. O(n C) a value.

    One pseudo-observation a class at the default keeps a handful of labels that are all found from claiming certainty.

    Args:
        scores: (n, C) of rows that did not take part; rows whose own class is -inf are left out. codes: (n,).
        default: lambda where nothing can be learned.
    """
    rows = torch.arange(len(codes))
    usable = scores[rows, codes].isfinite()
    scores, codes = scores[usable], codes[usable]
    if not len(codes):
        return default
    counts = torch.bincount(codes, minlength=scores.shape[1]).to(scores)
    weights = 1 / counts[codes]
    n_c = float(len(codes)) / float((counts > 0).sum())

    def loss(scale: float) -> float:
        own = torch.log_softmax(scale * scores, dim=1)[rows[: len(codes)], codes]
        return -float(weights @ own / weights.sum()) + math.log(scale / default) ** 2 / n_c

    return min(LOGIT_SCALES, key=loss)


def estimate_shares(probs: Tensor, present: Tensor, *, prior: float = 1.0) -> Tensor:
    """Class shares of unlabelled rows by expectation-maximisation: r_ic ~ pi_c p_ic, pi_c ~ prior + sum_i r_ic. O(n C) a round.

    Args:
        probs: (n, C) under equal shares. present: (C,) bool, classes that have labels.
        prior: rows of each class that are imagined beside them, so that no class is ever ruled out.
    """
    shares = present.to(probs) / present.sum()
    for _ in range(ROUNDS):
        joint = probs * shares
        counts = (joint / joint.sum(dim=1, keepdim=True).clamp_min(1e-30)).sum(dim=0) + prior * present.to(probs)
        settled = counts / counts.sum()
        moved = float((settled - shares).abs().max())
        shares = settled
        if moved < STILL:
            break
    return shares
