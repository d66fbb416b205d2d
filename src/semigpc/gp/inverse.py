"""The inverse of the kernel matrix with its latest changes kept aside until they are worth a pass over memory."""

import torch
from torch import Tensor, nn

from semigpc.gp.tiles import SymmetricTiles


class DelayedInverse(nn.Module):
    """P = P0 + u^T diag(signs) u: a symmetric matrix P0 and up to ``fold_rank`` rows of changes not yet added to it.

    Writing a rank-16 change into P0 at every step would move all of P0 through the processor for little arithmetic. The
    changes are kept in ``u`` instead, every product adds their part, O(R rank N), and they are folded into P0 when ``u``
    is full, where a rank-256 change costs hardly more time than a rank-16 one. (Quantum Monte Carlo codes call this
    a delayed update.)

    Args:
        capacity: N at most.
        fold_rank: rows of ``u``. More rows, fewer and more efficient folds, dearer products.
    """

    u: Tensor
    signs: Tensor

    def __init__(self, capacity: int, *, fold_rank: int, dtype: torch.dtype, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.base = SymmetricTiles(capacity, dtype=dtype, device=device)
        self.fold_rank = fold_rank
        self.rank = 0
        self.folds = 0
        width = self.base.n_strips * self.base.side
        self.register_buffer("u", torch.zeros(fold_rank, width, dtype=dtype, device=device), persistent=False)
        self.register_buffer("signs", torch.zeros(fold_rank, dtype=dtype, device=device), persistent=False)

    @property
    def size(self) -> int:
        """Rows in use."""
        return self.base.size

    def reset(self) -> None:
        """Back to size 0."""
        self.rank = 0
        self.u.zero_()  # or columns of an earlier, larger size would come back as it grows
        self.base.reset()

    def rows(self, slots: Tensor) -> Tensor:
        """P[slots], (B, size). O(B rank N)."""
        u, signs = self.u[: self.rank, : self.size], self.signs[: self.rank]
        return torch.addmm(self.base.rows(slots), (u[:, slots] * signs[:, None]).mT, u)

    def multiply(self, x: Tensor) -> Tensor:
        """x @ P for x (R, size). O(R N^2): the one pass over all of P."""
        u, signs = self.u[: self.rank, : self.size], self.signs[: self.rank]
        return self.base.multiply(x).addmm_((x @ u.mT) * signs, u)

    def add(self, u: Tensor, *, sign: int) -> None:
        """P += sign * u^T u for u (R, size) of any precision; folds first when there is no room for R more rows."""
        if self.rank + len(u) > self.fold_rank:
            self.fold()
        if len(u) > self.fold_rank:
            self.base.add_outer(u.to(self.u.dtype), self.signs.new_full((len(u),), sign))
            return
        self.u[self.rank : self.rank + len(u), : self.size] = u
        self.signs[self.rank : self.rank + len(u)] = sign
        self.rank += len(u)

    def fold(self) -> None:
        """Add the kept changes into P0, O(rank N^2 / 2)."""
        if self.rank:
            self.base.add_outer(self.u[: self.rank, : self.size], self.signs[: self.rank])
            self.rank = 0
            self.folds += 1
