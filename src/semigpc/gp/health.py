"""What an engine tells of its own numerical health."""

import math
from dataclasses import dataclass


@dataclass(kw_only=True)
class Health:
    """What an engine has had to do to stay true. Residuals are the latest ones, of sampled rows; counts are since it was made.

    Args:
        steps: calls that changed the buffer.
        folds: times that kept-aside changes were added into P.
        refined: refinement rounds, each one product with K and one with P.
        reinserted: rows written again unchanged because nothing had touched them for two turnovers.
        rebuilds: times P was rebuilt from the features because a check failed. Should stay near 0.
        inverse_residual: max |K[I] P[:, J] - delta|; 0 from a rebuild to the next look.
        mean_residual: max |K[I] alpha - y[I]|, which is also the error of the mean to expect near the data.
        schur_ratio: smallest eigenvalue of the latest Schur complement over the noise variance; in exact arithmetic >= 1 for
            rows that go in.
    """

    steps: int = 0
    folds: int = 0
    refined: int = 0
    reinserted: int = 0
    rebuilds: int = 0
    inverse_residual: float = 0.0
    mean_residual: float = 0.0
    schur_ratio: float = math.inf
