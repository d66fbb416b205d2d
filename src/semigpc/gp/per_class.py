"""One GP per class, each with its own kernel."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from semigpc.gp.engine import Engine, Expansion, NoExpansionError
from semigpc.gp.ensemble import change_together
from semigpc.gp.kernels import Kernel


@dataclass(frozen=True)
class AverageKernel:
    """k(a, b) = 1/C sum_c k_c(a, b). O(C N M D)."""

    kernels: tuple[Kernel, ...]

    @property
    def positive_definite(self) -> bool:
        """Whether all of them are."""
        return all(kernel.positive_definite for kernel in self.kernels)

    def __call__(self, x1: Tensor, x2: Tensor, square_norms2: Tensor | None = None) -> Tensor:
        return torch.stack([kernel(x1, x2, square_norms2) for kernel in self.kernels]).mean(dim=0)

    def diagonal(self, x: Tensor) -> Tensor:
        return torch.stack([kernel.diagonal(x) for kernel in self.kernels]).mean(dim=0)


class PerClassGP(Engine):
    """mu_c(h) = k_c(h, h_Q) (k_c(h_Q, h_Q) + sigma_c^2 I)^-1 y_c: C engines of one class over the
    same rows.

    Every call costs what it costs C engines, memory included: each stores the features, 250 MB in
    float32 for 16 300 rows of 384 and 10 classes. Made for low-rank members and up to some 20
    classes: of more, each has too few rows for a kernel.

    ``kernel`` is the average of the k_c, ``noise_std`` the root mean square of the sigma_c.
    ``variance`` is that of the class c
    with the largest mean, in units of the average prior: k(h, h) var_c(h) / k_c(h, h). So var /
    k(h, h) is the share of its prior variance that is left to this class; where all classes have
    the same output scale, var is var_c itself.

    Args:
        capacity: N. n_features: D. n_classes: C. kernels: k_c, one per class. noise_stds: sigma_c.
        make: returns an engine of N slots, D features and ONE class with this kernel and noise.
    """

    def __init__(
        self,
        capacity: int,
        n_features: int,
        n_classes: int,
        *,
        make: Callable[[Kernel, float], Engine],
        kernels: Sequence[Kernel],
        noise_stds: Sequence[float],
    ) -> None:
        _check_count(n_classes, kernels, noise_stds)
        made = [
            make(kernel, noise_std) for kernel, noise_std in zip(kernels, noise_stds, strict=True)
        ]
        for shape in ((engine.capacity, engine.n_features, engine.n_classes) for engine in made):
            if shape != (capacity, n_features, 1):
                raise ValueError(
                    f"make must return engines of shape {(capacity, n_features, 1)}, with one class; got {shape}."
                )
        kernel, noise_std = _averages(kernels, noise_stds)
        super().__init__(
            capacity, n_features, n_classes, kernel=kernel, noise_std=noise_std, dtype=made[0].dtype
        )
        self.members, self.kernels, self.noise_stds = (
            nn.ModuleList(made),
            tuple(kernels),
            tuple(noise_stds),
        )

    @property
    def engines(self) -> list[Engine]:
        """The members, class by class."""
        return cast("list[Engine]", list(self.members))

    @property
    def features(self) -> Tensor:  # type: ignore[override]
        return self.engines[0].features

    @property
    def targets(self) -> Tensor:  # type: ignore[override]
        return torch.cat([engine.targets for engine in self.engines], dim=1)

    @property
    def occupied(self) -> Tensor:  # type: ignore[override]
        return self.engines[0].occupied

    def _mean(self, queries: Tensor, offset: Tensor | None) -> Tensor:
        offsets = [None] * self.n_classes if offset is None else offset.split(1)
        return torch.cat(
            [engine._mean(queries, own) for engine, own in zip(self.engines, offsets, strict=True)],
            dim=1,
        )

    def _variance(self, queries: Tensor) -> Tensor:
        predicted = self._mean(queries, None).argmax(dim=1)
        share = queries.new_zeros(len(queries))
        for c, engine in enumerate(self.engines):
            prior = engine.kernel.diagonal(queries)
            share = torch.where(
                (predicted == c) & (prior > 0), engine._variance(queries) / prior, share
            )
        return self.kernel.diagonal(queries) * share

    def _explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        weights = queries.new_zeros(len(queries), self.capacity)
        for c in classes.unique().tolist():
            rows = classes == c
            weights[rows] = self.engines[c]._explain(queries[rows], torch.zeros_like(classes[rows]))
        return weights

    def _expansion(self, offset: Tensor | None) -> Expansion:
        raise NoExpansionError(
            "an engine with one kernel per class is no sum of one kernel. One with learn_per_class=False can be exported."
        )

    def _change(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        columns = [None] * self.n_classes if targets is None else targets.split(1, dim=1)
        change_together(
            (engine, slots, features, column)
            for engine, column in zip(self.engines, columns, strict=True)
        )

    def _rebuild(self) -> None:
        for engine in self.engines:
            engine.rebuild()

    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        self.reanchor_all([kernel] * self.n_classes, [noise_std] * self.n_classes)

    def reanchor_all(self, kernels: Sequence[Kernel], noise_stds: Sequence[float]) -> None:
        """Continue with another kernel and noise for each class; an error for one class leaves all
        as they were.
        """
        _check_count(self.n_classes, kernels, noise_stds)
        changes = list(zip(self.engines, kernels, noise_stds, strict=True))
        for engine, kernel, noise_std in changes:
            engine._check_kernel(kernel, noise_std)
        for c, (engine, kernel, noise_std) in enumerate(changes):
            try:
                engine.reanchor(kernel, noise_std)
            except BaseException:
                for changed, old_kernel, old_noise_std in zip(
                    self.engines[:c], self.kernels, self.noise_stds, strict=False
                ):
                    changed.reanchor(old_kernel, old_noise_std)
                raise
        self.kernels, self.noise_stds = tuple(kernels), tuple(noise_stds)
        self.kernel, self.noise_std = _averages(kernels, noise_stds)

    def _check_saved(self, state: dict[str, Any], prefix: str) -> None:
        for c, engine in enumerate(self.engines):  # of all, before the first is loaded
            engine._check_saved(state, f"{prefix}members.{c}.")

    def _adopt_state(self) -> None:
        self._recount()


def _averages(
    kernels: Sequence[Kernel], noise_stds: Sequence[float]
) -> tuple[AverageKernel, float]:
    return AverageKernel(tuple(kernels)), math.hypot(*noise_stds) / math.sqrt(len(noise_stds))


def _check_count(n_classes: int, kernels: Sequence[Kernel], noise_stds: Sequence[float]) -> None:
    if not len(kernels) == len(noise_stds) == n_classes:
        raise ValueError(
            f"{n_classes} kernels and noise_stds are needed; got {len(kernels)} and {len(noise_stds)}."
        )
