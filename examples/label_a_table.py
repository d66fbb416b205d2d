"""Label a table of which a few rows are labelled: long-tailed digits, 95 % of the labels promised
right, with reasons.

Run: python examples/label_a_table.py          (seconds, CPU)
"""

import numpy as np
from sklearn.datasets import load_digits

from semigpc import SemiGPClassifier

# labels of the largest class over those of the smallest, and how many it has
RATIO = 20
HEAD = 30


def main() -> None:
    """Hide most labels, find them again, and look at one decision."""
    X, truth = load_digits(return_X_y=True)  # noqa: N806
    rng = np.random.default_rng(0)
    y = np.full(len(truth), -1)  # -1: not labelled
    for digit in range(10):
        count = max(1, int(HEAD * RATIO ** (-digit / 9)))
        y[rng.permutation(np.flatnonzero(truth == digit))[:count]] = digit

    model = SemiGPClassifier().fit(X, y)
    hidden = y < 0
    found = model.transduction_[hidden]
    given = found >= 0
    right = (found == truth[hidden])[given].mean()
    print(
        f"{(y >= 0).sum()} labels, {hidden.sum()} rows without: {given.mean():.0%} got one, "
        f"{right:.1%} of these are right"
    )

    row = int(np.flatnonzero(hidden)[0])
    why = model.explain(X[row : row + 1])
    print(f"row {row} is a {model.classes_[why.codes[0]]}, score {why.scores[0]:.2f}, because of")
    for number, weight, difference in zip(
        why.rows[0], why.weights[0], why.differences[0], strict=True
    ):
        print(
            f"  row {number}, labelled {y[number]}: {weight:+.2f}; "
            f"without it the score would be {difference:.2f} less"
        )

    before = model.predict_proba(X[row : row + 1]).max()
    model.partial_fit(
        X[row : row + 1], truth[row : row + 1], rows=[row]
    )  # a correction, in milliseconds
    print(
        f"with that label its confidence is {model.predict_proba(X[row : row + 1]).max():.3f}; "
        f"it was {before:.3f}"
    )


if __name__ == "__main__":
    main()
