"""semigpc: distribution-aware label refinement for class-imbalanced semi-supervised learning with Gaussian processes."""

from semigpc.buffers import BalancedBuffer, FIFOBuffer, Written
from semigpc.gp import RBF, Clipped, Cosine, ExactGP, Health, Kernel, Laplace, NotPositiveDefiniteError

__all__ = [
    "RBF",
    "BalancedBuffer",
    "Clipped",
    "Cosine",
    "ExactGP",
    "FIFOBuffer",
    "Health",
    "Kernel",
    "Laplace",
    "NotPositiveDefiniteError",
    "Written",
]
