"""What all engines have in common: the questions they answer and the changes they take."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from semigpc.gp.kernels import Kernel


class NoExpansionError(TypeError):
    """An engine whose mean is no fixed sum of kernels; the message says which of its options would make it one."""


class Expansion(NamedTuple):
    """A mean as a sum of kernels, mu(h) = k(h, points) @ weights: all that is needed to answer elsewhere.

    Shapes: ``points`` (P, D), ``weights`` (P, C) float64.
    """

    points: Tensor
    weights: Tensor


class Engine(Protocol):
    """A Gaussian process over ``capacity`` slots whose rows come and go. Each is an ``nn.Module`` too.

    N slots, D features, C classes, M queries, B rows changed. What a call costs is said by each engine.
    """

    capacity: int
    n_features: int
    n_classes: int
    dtype: torch.dtype

    def __len__(self) -> int:
        """Occupied slots."""

    @property
    def kernel(self) -> Kernel:
        """The kernel k."""

    @property
    def noise_std(self) -> float:
        """Sigma."""

    @property
    def features(self) -> Tensor:
        """h_Q, (N, D); rows of empty slots are 0."""

    @property
    def targets(self) -> Tensor:
        """y_Q, (N, C); rows of empty slots are 0."""

    @property
    def occupied(self) -> Tensor:
        """(N,) bool."""

    def mean(self, queries: Tensor, *, offset: Tensor | None = None) -> Tensor:
        """mu(h), (M, C), for targets less ``offset`` (C,); differentiable in the queries (M, D)."""

    def variance(self, queries: Tensor) -> Tensor:
        """var(h), (M,), of the noise-free function, at least 0."""

    def explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        """What each slot adds to the mean of one class per query, (M, N); rows sum to the mean."""

    def expansion(self, *, offset: Tensor | None = None) -> Expansion:
        """The mean as a sum of kernels; NoExpansionError if it is none."""

    def replace(self, slots: Tensor, features: Tensor, targets: Tensor) -> None:
        """Put rows (B, D), (B, C) into distinct slots (B,), empty or occupied."""

    def remove(self, slots: Tensor) -> None:
        """Empty some occupied slots."""

    def rebuild(self) -> None:
        """Everything anew from the stored features and targets."""

    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        """Go on with another kernel and noise over the same rows, as if it had always been these."""
