"""The estimator: labels for rows of which a few are labelled, with the scikit-learn contract."""

from semigpc.estimator.classifier import SemiGPClassifier
from semigpc.estimator.confidence import (
    STATUSES,
    Answers,
    Explanation,
    LeftOutLabels,
    Status,
)
from semigpc.estimator.promise import Promise
from semigpc.estimator.scaling import SCALINGS, Scaling

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
