"""One GP a class, each with a kernel of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Never, cast

import torch
from torch import Tensor, nn

from semigpc.gp.checks import (
    check_classes,
    check_engine,
    check_offset,
    check_queries,
    check_rows,
    check_slots,
    check_tensor,
    full_precision,
)
from semigpc.gp.engine import Engine, NoExpansionError, NotPositiveDefiniteError
from semigpc.gp.kernels import Kernel


@dataclass(frozen=True)
class AverageKernel:
    """k(a, b) = 1/C sum_c k_c(a, b). O(C N M D)."""

    kernels: tuple[Kernel, ...]

    @property
    def positive_definite(self) -> bool:
        """Where all of them are."""
        return all(kernel.positive_definite for kernel in self.kernels)

    def __call__(self, x1: Tensor, x2: Tensor, square_norms2: Tensor | None = None) -> Tensor:
        return torch.stack([kernel(x1, x2, square_norms2) for kernel in self.kernels]).mean(dim=0)

    def diagonal(self, x: Tensor) -> Tensor:
        return torch.stack([kernel.diagonal(x) for kernel in self.kernels]).mean(dim=0)


class PerClassGP(nn.Module):
    """mu_c(h) = k_c(h, h_Q) (k_c(h_Q, h_Q) + sigma_c^2 I)^-1 y_c: C engines of one class over the same rows.

    Everything costs what it costs C engines, memory included: each holds the features for itself, N D C numbers in all
    (250 MB in float32 for 16 300 rows of 384 and 10 classes), and one pass over each. Made for low-rank members and up to
    some 20 classes; beyond, classes have too few rows to tell their kernels apart.

    Args:
        capacity: N, slots.
        n_features: D.
        n_classes: C.
        make: an engine of N slots, D features and ONE class with this kernel and noise.
        kernels: k_c, one a class. noise_stds: sigma_c.
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
        super().__init__()
        self.capacity, self.n_features, self.n_classes = capacity, n_features, n_classes
        self._check_count(kernels, noise_stds)
        made = [make(kernel, noise_std) for kernel, noise_std in zip(kernels, noise_stds, strict=True)]
        for engine in made:
            shape = engine.capacity, engine.n_features, engine.n_classes
            if shape != (capacity, n_features, 1):
                raise ValueError(f"make must give engines of {capacity} slots, {n_features} features and 1 class; got {shape}.")
        self.dtype = made[0].dtype
        check_engine(capacity, n_features, n_classes, kernel=kernels[0], noise_std=noise_stds[0], dtype=self.dtype)
        self.members = nn.ModuleList(cast("list[nn.Module]", made))

    # Asking ---------------------------------------------------------------------------------------------------------

    @property
    def engines(self) -> list[Engine]:
        """The members, class by class."""
        return cast("list[Engine]", list(self.members))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """k_c."""
        return tuple(engine.kernel for engine in self.engines)

    @property
    def noise_stds(self) -> tuple[float, ...]:
        """sigma_c."""
        return tuple(engine.noise_std for engine in self.engines)

    def __len__(self) -> int:
        """Occupied slots."""
        return len(self.engines[0])

    @property
    def kernel(self) -> Kernel:
        """The average of the classes' kernels; its diagonal is the unit of :meth:`variance`."""
        return AverageKernel(self.kernels)

    @property
    def noise_std(self) -> float:
        """The root of the average of sigma_c^2."""
        return float(torch.tensor(self.noise_stds, dtype=torch.float64).square().mean().sqrt())

    @property
    def features(self) -> Tensor:
        """h_Q, (N, D); rows of empty slots are 0."""
        return self.engines[0].features

    @property
    def targets(self) -> Tensor:
        """y_Q, (N, C); rows of empty slots are 0."""
        return torch.cat([engine.targets for engine in self.engines], dim=1)

    @property
    def occupied(self) -> Tensor:
        """(N,) bool."""
        return self.engines[0].occupied

    def mean(self, queries: Tensor, *, offset: Tensor | None = None) -> Tensor:
        """mu(h), (M, C), for targets less ``offset`` (C,); differentiable in the queries (M, D)."""
        check_queries(self, queries)
        offsets: Sequence[Tensor | None] = [None] * self.n_classes
        if offset is not None:
            offsets = check_offset(self, offset).split(1)
        members = zip(self.engines, offsets, strict=True)
        return torch.cat([engine.mean(queries, offset=own) for engine, own in members], dim=1)

    @torch.no_grad()
    def variance(self, queries: Tensor) -> Tensor:
        """That of the class c with the largest mean, (M,), in units of the average prior: k(h, h) var_c(h) / k_c(h, h).

        So var / k(h, h), with k the average kernel, is the share of its prior variance that is left to this class; where all
        classes have the same output scale it is var_c itself.

        Args:
            queries: (M, D).
        """
        decided = self.mean(queries).argmax(dim=1)
        average = self.kernel.diagonal(queries)
        answer = average.clone()
        for c in decided.unique().tolist():
            rows, engine = decided == c, self.engines[c]
            prior = engine.kernel.diagonal(queries[rows])
            left = torch.where(prior > 0, engine.variance(queries[rows]) / prior, 0.0)
            answer[rows] = average[rows] * left
        return answer

    @torch.no_grad()
    def explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        """What each slot adds to the mean of one class per query, (M, N), by that class's engine; rows sum to the mean.

        Args:
            queries: (M, D). classes: (M,).
        """
        check_classes(self, queries, classes)
        weights = queries.new_zeros(len(queries), self.capacity)
        for c in classes.unique().tolist():
            rows = classes == c
            weights[rows] = self.engines[c].explain(queries[rows], torch.zeros_like(classes[rows]))
        return weights

    def expansion(self, *, offset: Tensor | None = None) -> Never:  # noqa: ARG002
        """There is none: the classes have different kernels."""
        raise NoExpansionError(
            "an engine with a kernel a class is no sum of one kernel. One with learn_per_class=False can be exported."
        )

    # Changing -------------------------------------------------------------------------------------------------------

    @full_precision()
    @torch.no_grad()
    def replace(self, slots: Tensor, features: Tensor, targets: Tensor) -> None:
        """Put rows (B, D), (B, C) into distinct slots (B,), empty or occupied; a refused call leaves what is stored."""
        slots = check_slots(self, slots)
        features, targets = check_rows(self, slots, features, targets)
        before = self.features[slots], self.targets[slots], self.occupied[slots]
        for c, engine in enumerate(self.engines):
            try:
                engine.replace(slots, features, targets[:, c : c + 1])
            except NotPositiveDefiniteError:
                self._put_back(c, slots, *before)
                raise

    @full_precision()
    @torch.no_grad()
    def remove(self, slots: Tensor) -> None:
        """Empty some occupied slots (B,); no slots, no change."""
        check_tensor("slots", slots)
        if slots.shape != (0,):
            check_slots(self, slots, occupied=True)
        for engine in self.engines:
            engine.remove(slots)

    def rebuild(self) -> None:
        """Everything anew from the stored features and targets."""
        for engine in self.engines:
            engine.rebuild()

    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        """Go on with another kernel and noise, the same for all classes, over the same rows."""
        self.reanchor_all([kernel] * self.n_classes, [noise_std] * self.n_classes)

    def reanchor_all(self, kernels: Sequence[Kernel], noise_stds: Sequence[float]) -> None:
        """Go on with another kernel and noise for each class. If one of them is refused, all stay as they were."""
        self._check_count(kernels, noise_stds)
        before = list(zip(self.engines, self.kernels, self.noise_stds, strict=True))
        for c, (engine, kernel, noise_std) in enumerate(zip(self.engines, kernels, noise_stds, strict=True)):
            try:
                engine.reanchor(kernel, noise_std)
            except Exception:
                for changed, old_kernel, old_noise_std in before[:c]:
                    changed.reanchor(old_kernel, old_noise_std)
                raise

    def _put_back(self, changed: int, slots: Tensor, features: Tensor, targets: Tensor, occupied: Tensor) -> None:
        """What was in the slots before, for the first so many members."""
        for c, engine in enumerate(self.engines[:changed]):
            engine.remove(slots[~occupied])
            if bool(occupied.any()):
                engine.replace(slots[occupied], features[occupied], targets[occupied, c : c + 1])

    def _check_count(self, kernels: Sequence[Kernel], noise_stds: Sequence[float]) -> None:
        if not len(kernels) == len(noise_stds) == self.n_classes:
            raise ValueError(
                f"a kernel and a noise_std for each of {self.n_classes} classes are needed; "
                f"got {len(kernels)} kernels and {len(noise_stds)} noise_stds."
            )

    def extra_repr(self) -> str:
        return f"capacity={self.capacity}, n_features={self.n_features}, n_classes={self.n_classes}"
