"""A symmetric matrix stored as the tiles of its lower triangle.

Half of the memory of a square, and each tile is read once for both of its roles, so a product costs no more than with the
whole matrix. Right-hand sides are ROWS, (R, N): for a handful of them X @ P is the shape that matrix libraries run
fastest, and P being symmetric it is the same product.
"""

import torch
from torch import Tensor, nn

BAND = 512  # rows of a tile changed at a time, to bound the memory that this takes
ONE_TILE = 4096  # up to here one square tile is as fast, and memory does not matter
TILE = 1024  # beyond: 4 MB of float32, large enough to keep the cores busy, small enough to be re-used from cache


class SymmetricTiles(nn.Module):
    """Lower-triangle tiles of a symmetric (N, N) matrix, grown from the identity.

    Only the leading ``size`` rows are in use; memory of tiles beyond them is reserved and not touched. The matrix is
    not part of ``state_dict``: its owner rebuilds it.

    Args:
        capacity: N at most. Rounded up to whole tiles; the padding is identity and never leaves this class's owner.
    """

    tiles: Tensor

    def __init__(self, capacity: int, *, dtype: torch.dtype, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.n_strips = 1 if capacity <= ONE_TILE else -(-capacity // TILE)
        self.side = -(-capacity // (self.n_strips * 16)) * 16  # even strips, rounded to a cache line
        self.strips = 0
        n_tiles = self.n_strips * (self.n_strips + 1) // 2
        self.register_buffer("tiles", torch.empty(n_tiles, self.side, self.side, dtype=dtype, device=device), persistent=False)

    @property
    def size(self) -> int:
        """Rows in use: a whole number of strips."""
        return self.strips * self.side

    def tile(self, i: int, j: int) -> Tensor:
        """Tile (i, j) with i >= j, (side, side), a view."""
        return self.tiles[i * (i + 1) // 2 + j]

    def reset(self) -> None:
        """Forget everything: size 0."""
        self.strips = 0

    def grow(self, rows: int) -> None:
        """Extend by identity until at least ``rows`` rows are in use."""
        while self.size < rows:
            i = self.strips
            for j in range(i + 1):
                self.tile(i, j).zero_()
            self.tile(i, i).fill_diagonal_(1)
            self.strips += 1

    def multiply(self, x: Tensor) -> Tensor:
        """x @ P for x (R, size), in x's precision: each tile is read once. O(R N^2)."""
        if self.strips == 1:
            return x @ self.tiles[0].to(x.dtype)
        x_strips = x.view(len(x), self.strips, self.side).transpose(0, 1).contiguous()  # (strips, R, side)
        out_strips = torch.zeros_like(x_strips)
        wide = torch.empty_like(self.tiles[0], dtype=x.dtype) if x.dtype != self.tiles.dtype else None
        xs, outs, tiles = x_strips.unbind(), out_strips.unbind(), iter(self.tiles.unbind())
        for i in range(self.strips):
            for j in range(i + 1):
                tile = next(tiles) if wide is None else wide.copy_(next(tiles))
                outs[j].addmm_(xs[i], tile)
                if i != j:
                    outs[i].addmm_(xs[j], tile.mT)
        return out_strips.transpose(0, 1).reshape(x.shape)

    def add_outer(self, u: Tensor, signs: Tensor) -> None:
        """P += u^T diag(signs) u in place, for u (R, size) and signs (R,). O(R N^2 / 2)."""
        strips = u.split(self.side, dim=1)
        for i in range(self.strips):
            for start in range(0, self.side, BAND):
                band = slice(start, start + BAND)
                signed = (strips[i][:, band] * signs[:, None]).mT  # (BAND, R)
                for j in range(i + 1):
                    self.tile(i, j)[band].addmm_(signed, strips[j])

    def rows(self, slots: Tensor) -> Tensor:
        """P[slots], (B, size), gathered from the tiles that hold them."""
        if self.n_strips == 1:
            return self.tiles[0, slots]
        return self.tiles.take(self._addresses(slots)).mT.contiguous()

    def set_rows(self, slots: Tensor, rows: Tensor) -> None:
        """Write P[slots] = rows and, by symmetry, P[:, slots] = rows^T. ``rows`` is (B, size)."""
        self.tiles.view(-1)[self._addresses(slots)] = rows.mT
        # Inside a diagonal tile a row and its mirror image are two places: write the second one too.
        strip = slots // self.side
        own = rows.view(len(slots), self.strips, self.side)[torch.arange(len(slots), device=slots.device), strip]
        self.tiles[strip * (strip + 3) // 2, :, slots % self.side] = own

    def _addresses(self, slots: Tensor) -> Tensor:
        """Flat positions of P[:, slots], (size, B): along a tile's row left of the diagonal, down its column below.

        Slots are the fastest dimension because neighbouring slots share cache lines in the columns.
        """
        strip, offset = slots // self.side, slots % self.side  # (B,)
        other = torch.arange(self.strips, device=slots.device)[:, None]  # (strips, 1)
        low, high = torch.minimum(strip, other), torch.maximum(strip, other)
        along_row = strip >= other  # (strips, B)
        start = (high * (high + 1) // 2 + low) * self.side**2 + torch.where(along_row, offset * self.side, offset)
        stride = torch.where(along_row, 1, self.side)
        within = torch.arange(self.side, device=slots.device)[:, None]  # (side, 1)
        return (start[:, None] + stride[:, None] * within).view(-1, len(slots))
