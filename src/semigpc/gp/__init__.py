"""Gaussian processes over a changing buffer: kernels, engines, and the choice of their scales."""

from semigpc.gp.conjugate_gradients import NotConvergedError
from semigpc.gp.engine import Engine, Expansion, NoExpansionError, NotPositiveDefiniteError
from semigpc.gp.ensemble import EnsembleGP, deal_rows, spread_out
from semigpc.gp.exact import ExactGP, Health, LeftOut, exact_fits, members_needed
from semigpc.gp.head import KernelHead
from semigpc.gp.kernels import KERNELS, NTK, RBF, Clipped, Cosine, Kernel, Laplace
from semigpc.gp.matrix_free import IterativeHealth, MatrixFreeGP
from semigpc.gp.scales import Learned, learn_kernel

__all__ = [
    "KERNELS",
    "NTK",
    "RBF",
    "Clipped",
    "Cosine",
    "Engine",
    "EnsembleGP",
    "ExactGP",
    "Expansion",
    "Health",
    "IterativeHealth",
    "Kernel",
    "KernelHead",
    "Laplace",
    "Learned",
    "LeftOut",
    "MatrixFreeGP",
    "NoExpansionError",
    "NotConvergedError",
    "NotPositiveDefiniteError",
    "deal_rows",
    "exact_fits",
    "learn_kernel",
    "members_needed",
    "spread_out",
]
