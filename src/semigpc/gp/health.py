"""What an engine tells of its own numerical health."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class IterativeHealth:
    """What a matrix-free engine has had to do to stay within its tolerance. Counts are since it was made.

    Args:
        steps: calls that changed the buffer ...
        kept: ... and those of them that needed no product with all of K.
        solves: solves by conjugate gradients, with ...
        iterations: ... the steps that the latest of them took, and ...
        total_iterations: ... all together.
        passes: products with all of K, those of variances included.
        rounds: exact steps on the landmarks and the rows that need it most, each some of a pass.
        landmark_choices: times that the preconditioner's landmarks were chosen.
        residual: largest |y - K alpha| / |y| over the classes; also bounds the error of the mean at the buffer's own rows.
        drift: how far the residual that is kept was from the true one when rows of it were last looked at, in the same units.
    """

    steps: int = 0
    kept: int = 0
    solves: int = 0
    iterations: int = 0
    total_iterations: int = 0
    passes: int = 0
    rounds: int = 0
    landmark_choices: int = 0
    residual: float = 0.0
    drift: float = 0.0
