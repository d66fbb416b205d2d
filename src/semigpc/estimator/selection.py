"""Model selection of scikit-learn where only some rows are labelled: GridSearchCV and the like.

scikit-learn takes -1 for a class, which every model gets wrong, and cannot sort None. Here rows
without a label are left out of the tested part of each fold and stay in the fitted part.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from semigpc.estimator.answers import Integers
from semigpc.estimator.classifier import read_targets

# Metric of true and predicted classes (n,).
Metric = Callable[[NDArray[Any], NDArray[Any]], float]


def balanced_accuracy(truth: NDArray[Any], predicted: NDArray[Any]) -> float:
    """Return the mean over classes of the share of their rows that are right. O(n C).

        1/C sum_c  #(truth = c and predicted = c) / #(truth = c)      over classes of the truth

    As ``sklearn.metrics.balanced_accuracy_score``, without its warning where a rare class is
    predicted that a fold does not have.

    Args:
        truth, predicted: (n,) classes.
    """
    right = truth == predicted
    return float(np.mean([right[truth == name].mean() for name in np.unique(truth)]))


@dataclass(frozen=True)
class LabeledKFold:
    """Stratified folds of the labelled rows; all unlabelled rows are fitted in every fold.

    ``GridSearchCV(SemiGPClassifier(), grid, cv=LabeledKFold(), scoring=LabeledScorer())``. With
    ``groups``, rows of one group, such as frames of one video, stay together.

    Args:
        n_splits: folds, at most the labels of the largest class.
        random_state: seed of the folds; None for others each time.
    """

    n_splits: int = 5
    random_state: int | None = 0

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds."""
        return self.n_splits

    def split(self, X: Any, y: Any, groups: Any = None) -> Iterator[tuple[Integers, Integers]]:
        """Yield the rows to fit and the rows to test for each fold. O(n log n).

        Args:
            X: (n, D), not read. y: (n,) classes; -1, NaN, None or empty text for no label.
            groups: (n,) what to keep together; read for labelled rows only.

        Raises:
            ValueError: no class has as many labels as there are folds.
        """
        codes, _ = read_targets(y)
        rows = np.flatnonzero(codes >= 0)
        kind = StratifiedKFold if groups is None else StratifiedGroupKFold
        folds = kind(self.n_splits, shuffle=True, random_state=self.random_state)
        own = None if groups is None else np.asarray(groups)[rows]
        with warnings.catch_warnings():
            # That a class has fewer labels than folds, which is the rule in a long tail.
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            parts = list(folds.split(rows, codes[rows], own))
        for _, tested in parts:
            yield np.setdiff1d(np.arange(len(codes)), rows[tested]), rows[tested]


@dataclass(frozen=True)
class LabeledScorer:
    """A scorer that judges labelled rows alone, for ``scoring=`` of scikit-learn.

    Args:
        metric: of true and predicted classes, larger is better.
    """

    metric: Metric = balanced_accuracy

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        """Return the metric of the estimator on the rows (n, D) whose y (n,) is a label.

        Raises:
            ValueError: none of the rows is labelled.
        """
        codes, classes = read_targets(y)
        known = codes >= 0
        if not known.any():
            raise ValueError("none of the rows to score is labelled. Use cv=LabeledKFold().")
        truth = classes[codes[known]]
        predicted = np.asarray(estimator.predict(X))[known]
        # Not of objects, whose kind scikit-learn's metrics do not know.
        return float(self.metric(np.array(truth.tolist()), np.array(predicted.tolist())))
