"""Gaussian processes over a changing buffer: kernels, the exact engine, and the slow references it is tested against."""

from semigpc.gp.engine import Engine, Expansion, NoExpansionError
from semigpc.gp.exact import ExactGP, LeftOut
from semigpc.gp.health import Health
from semigpc.gp.kernels import KERNELS, RBF, Clipped, Cosine, Kernel, Laplace
from semigpc.gp.solver import NotPositiveDefiniteError

__all__ = [
    "KERNELS",
    "RBF",
    "Clipped",
    "Cosine",
    "Engine",
    "ExactGP",
    "Expansion",
    "Health",
    "Kernel",
    "Laplace",
    "LeftOut",
    "NoExpansionError",
    "NotPositiveDefiniteError",
]
