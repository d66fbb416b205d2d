"""How far the review is, and how good the labels of each class are as far as one can tell."""

import math
from typing import Any

import numpy as np

from semigpc.review.history import Answer
from semigpc.review.waiting import UNASKED, Waiting

BINS = 20
Z = 1.959964  # of 95 %


def wilson(right: int, checked: int) -> tuple[float, float]:
    """The 95 % interval by Wilson of a share of which ``right`` of ``checked`` draws were found.

    (p + z^2/2n -+ z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n)
    """
    if checked == 0:
        return 0.0, 1.0
    share, z2 = right / checked, Z**2 / checked
    half = Z * math.sqrt(share * (1 - share) / checked + z2 / (4 * checked))
    low, high = (share + z2 / 2 - half) / (1 + z2), (share + z2 / 2 + half) / (1 + z2)
    return max(0.0, low), min(1.0, high)


def progress(waiting: Waiting, answers: dict[int, Answer]) -> dict[str, Any]:
    """Everything that the page shows about the review as a whole, as JSON holds it."""
    beliefs = waiting.beliefs
    free = waiting.unlabelled & (waiting.kinds == UNASKED)
    bins = np.minimum((beliefs.confidence[free] * BINS).astype(int), BINS - 1)
    return {
        "reviewed": len(answers),
        "total": int(waiting.asked.sum()),
        "stale": int((beliefs.scored < beliefs.generation).sum()),
        "counts": waiting.counts(),
        "histogram": np.bincount(bins, minlength=BINS).tolist(),
        "classes": _classes(waiting, answers),
    }


def _classes(waiting: Waiting, answers: dict[int, Answer]) -> list[dict[str, Any]]:
    """For each class: labels, rows believed to be of it, and the precision of its pseudo-labels.

    By humans where they checked any: the share of pseudo-labels of the class that they accepted, with an interval. Cards that
    need a human most are checked first, so it errs on the low side. By the model where nobody has: its mean confidence.
    """
    beliefs = waiting.beliefs
    n_classes = len(beliefs.names)
    checked, right = np.zeros(n_classes, int), np.zeros(n_classes, int)
    for answer in answers.values():
        if answer.status == "pseudo" and answer.believed is not None and answer.label is not None:
            code = beliefs.code(answer.believed)
            checked[code] += 1
            right[code] += answer.label == answer.believed
    labels = beliefs.label_counts()
    pseudo = waiting.mask("pseudo") & (beliefs.codes >= 0)
    n_pseudo = np.bincount(beliefs.codes[pseudo], minlength=n_classes)
    confidence = np.bincount(beliefs.codes[pseudo], beliefs.confidence[pseudo], minlength=n_classes)
    believed = np.bincount(beliefs.codes[waiting.unlabelled & (beliefs.codes >= 0)], minlength=n_classes)
    rows = []
    for code, name in enumerate(beliefs.names):
        if not (labels[code] or believed[code] or name in beliefs.project.classes):
            continue  # a new class that was undone
        low, high = wilson(int(right[code]), int(checked[code]))
        row: dict[str, Any] = {"name": name, "code": code, "labels": int(labels[code]), "believed": int(believed[code])}
        row |= {"checked": int(checked[code]), "right": int(right[code]), "low": round(low, 3), "high": round(high, 3)}
        row["confidence"] = round(float(confidence[code] / n_pseudo[code]), 3) if n_pseudo[code] else None
        rows.append(row)
    return rows
