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

__all__ = [
    "SCALINGS",
    "STATUSES",
    "Answers",
    "Explanation",
    "LeftOutLabels",
    "Promise",
    "Scaling",
    "SemiGPClassifier",
    "Status",
]
