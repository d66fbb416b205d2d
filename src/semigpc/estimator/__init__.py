"""The estimator: labels for rows of which a few are labelled, with the scikit-learn contract."""

from semigpc.estimator.answers import (
    SCALINGS,
    STATUSES,
    Answers,
    Explanation,
    LeftOutLabels,
    Scaling,
    Status,
)
from semigpc.estimator.classifier import SemiGPClassifier
from semigpc.estimator.promise import Promise
from semigpc.estimator.selection import LabeledKFold, LabeledScorer

__all__ = [
    "SCALINGS",
    "STATUSES",
    "Answers",
    "Explanation",
    "LabeledKFold",
    "LabeledScorer",
    "LeftOutLabels",
    "Promise",
    "Scaling",
    "SemiGPClassifier",
    "Status",
]
