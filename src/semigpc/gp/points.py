"""The rows of a buffer, and what can be said of their kernel matrix without storing it."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from semigpc.gp.kernel_products import columns, cross_product, symmetric_product
from semigpc.gp.kernels import Kernel
from semigpc.gp.stored_rows import StoredRows


class Points(StoredRows):
    """Features and targets in N slots, some of them empty, with a kernel and noise: K = k(h, h) + sigma^2 I.

    ``count`` slots are occupied and the last of them is number ``width`` - 1: no product looks further than that. Rows of empty
    slots are 0, and so is their kernel with everything.

    Args:
        capacity: N. n_features: D. n_classes: C. kernel: k. noise_std: sigma. dtype: of what is stored.
    """

    def __init__(
        self,
        capacity: int,
        n_features: int,
        n_classes: int,
        *,
        kernel: Kernel,
        noise_std: float,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(capacity, n_features, n_classes, dtype=dtype, device=device)
        self.kernel, self.noise_std = kernel, noise_std
        self.width = 0

    def write(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Rows (B, D), (B, C) into slots (B,), or none."""
        super().write(slots, features, targets)
        self.recount()

    def recount(self) -> None:
        """``count`` and ``width`` from the slots as they are."""
        held = self.occupied.nonzero().squeeze(1)
        self.count = len(held)
        self.width = int(held[-1]) + 1 if len(held) else 0

    def right_hand_sides(self) -> Tensor:
        """(N, C + 1) float64: targets, and 1 at occupied slots."""
        return torch.cat([self.targets.double(), self.occupied.unsqueeze(1).double()], dim=1)

    def scales(self) -> Tensor:
        """|y| of each right-hand side, (C + 1,)."""
        norms: Tensor = torch.linalg.vector_norm(self.right_hand_sides(), dim=0)
        return norms

    def product(self, x: Tensor) -> Tensor:
        """K x, (width, R) float64. O(width^2 (D + R))."""
        return self._masked(symmetric_product(self.features[: self.width], self.kernel, x)) + self.noise_std**2 * x

    def columns(self, points: Tensor) -> Tensor:
        """k(h, points), (width, B) float64. O(width B D)."""
        return self._masked(columns(self.features[: self.width], points, self.kernel))

    def spread(self, slots: Tensor, x: Tensor) -> Tensor:
        """k(h, h_S) x, (width, R) float64, for slots (B,) and x (B, R). O(width B (D + R))."""
        return self._masked(cross_product(self.features[: self.width], self.features[slots], self.kernel, x))

    def block(self, slots: Tensor) -> Tensor:
        """K_SS, (B, B) float64, for occupied slots (B,). O(B^2 D)."""
        wide = self.features[slots].double()
        K = self.kernel(wide, wide)
        K.diagonal().copy_(self.kernel.diagonal(wide) + self.noise_std**2)
        return K

    def _masked(self, rows: Tensor) -> Tensor:
        """Rows (width, .) with 0 at empty slots."""
        return rows if self.count == self.width else rows.mul_(self.occupied[: self.width, None])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow a surrounding module to its device, never to its dtype."""
        device = fn(torch.empty(0, device=self.targets.device)).device
        super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]
        return self
