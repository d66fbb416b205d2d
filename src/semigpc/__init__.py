"""semigpc: distribution-aware label refinement for class-imbalanced semi-supervised learning with
Gaussian processes.

The public names are here, and are imported when they are first used: torch takes seconds, which
``semigpc --help`` should not. Training lives in :mod:`semigpc.training` and
:mod:`semigpc.training.presets`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semigpc.estimator import SemiGPClassifier
    from semigpc.gp import (
        NTK,
        RBF,
        Clipped,
        Cosine,
        EnsembleGP,
        ExactGP,
        Health,
        Kernel,
        Laplace,
        MatrixFreeGP,
        NotPositiveDefiniteError,
    )
    from semigpc.io.errors import SemiGPCError
    from semigpc.labeling.one_call import label_dataset, label_images
    from semigpc.refiners import GaussianProcessRefiner, GPConfig
    from semigpc.refiners.buffers import BalancedBuffer, FIFOBuffer, Written

__all__ = [
    "NTK",
    "RBF",
    "BalancedBuffer",
    "Clipped",
    "Cosine",
    "EnsembleGP",
    "ExactGP",
    "FIFOBuffer",
    "GPConfig",
    "GaussianProcessRefiner",
    "Health",
    "Kernel",
    "Laplace",
    "MatrixFreeGP",
    "NotPositiveDefiniteError",
    "SemiGPCError",
    "SemiGPClassifier",
    "Written",
    "label_dataset",
    "label_images",
]
# Where the names live; the quickest to import first.
ROOMS = ("io.errors", "gp", "refiners.buffers", "refiners", "estimator", "labeling.one_call")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for room in ROOMS:
            module = import_module(f"semigpc.{room}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'semigpc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
