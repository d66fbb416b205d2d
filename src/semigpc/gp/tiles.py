"""A symmetric matrix stored as the tiles of its lower triangle, and delayed changes of it.

Half of the memory of a square, and each tile is read once for both of its roles, so a product costs
no more than with the whole matrix. Right-hand sides are ROWS, (R, N): for a handful of them X @ P
is the shape that matrix libraries run fastest, and P being symmetric it is the same product.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from semigpc.gp.engine import NotPositiveDefiniteError
from semigpc.io.threads import using

FOLD_RANK = 192  # rows of delayed changes by default; half of it for small matrices
BAND = 512  # rows of a tile changed at a time, to bound the memory that this takes
ONE_TILE = 2048  # rows up to which one square tile is as fast, and memory does not matter
TILE = 1024  # rows of a tile beyond: 8 MB of float64 keep the cores busy and fit into the cache


def rounding_floor(rows: int, dtype: torch.dtype) -> float:
    """Return the least square of a Cholesky pivot, over the diagonal, that exceeds rounding.

    Below it the factor has no digit right, and whether it exists at all depends on the processor.
    """
    return 8 * rows * torch.finfo(dtype).eps


class SymmetricTiles(nn.Module):
    """Lower-triangle tiles of a symmetric (N, N) matrix, grown from the identity.

    Only the leading ``size`` rows are in use; memory of tiles beyond them is reserved and not
    touched. The matrix is not part of ``state_dict``: its owner rebuilds it.

    Args:
        capacity: N at most. Rounded up to whole tiles; the padding is identity and never leaves
            this class's owner.
    """

    tiles: Tensor

    def __init__(
        self, capacity: int, *, dtype: torch.dtype, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.n_strips = 1 if capacity <= ONE_TILE else -(-capacity // TILE)
        self.side = capacity
        if self.n_strips > 1:  # rounded up to a cache line
            self.side = -(-capacity // (self.n_strips * 16)) * 16
        self.strips = 0
        n_tiles = self.n_strips * (self.n_strips + 1) // 2
        tiles = torch.empty(n_tiles, self.side, self.side, dtype=dtype, device=device)
        self.register_buffer("tiles", tiles, persistent=False)

    @property
    def size(self) -> int:
        """Rows in use: a whole number of strips."""
        return self.strips * self.side

    @property
    def full_size(self) -> int:
        """Rows when all strips are in use: the capacity, rounded up."""
        return self.n_strips * self.side

    def tile(self, i: int, j: int) -> Tensor:
        """Tile (i, j) with i >= j, (side, side), a view."""
        return self.tiles[i * (i + 1) // 2 + j]

    def reset(self) -> None:
        """Set the size to 0."""
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
        """Return x @ P for x (R, size): each tile is read once. O(R N^2)."""
        if self.strips == 1:
            return x @ self.tiles[0]
        x_strips = x.view(len(x), self.strips, self.side).transpose(0, 1).contiguous()
        products = torch.zeros_like(x_strips)  # (strips, R, side)
        for i in range(self.strips):
            for j in range(i + 1):
                tile = self.tile(i, j)
                products[j].addmm_(x_strips[i], tile)
                if i != j:
                    products[i].addmm_(x_strips[j], tile.mT)
        return products.transpose(0, 1).reshape(x.shape)

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
        """Return P[slots], (B, size)."""
        if self.n_strips == 1:
            return self.tiles[0, slots]
        return self.tiles.take(self._addresses(slots)).mT.contiguous()

    def fill(self, block: Callable[[slice, slice], Tensor]) -> None:
        """Overwrite the rows in use with a symmetric matrix.

        Args:
            block: returns its entries between given rows and columns.
        """
        strips = [slice(i * self.side, (i + 1) * self.side) for i in range(self.strips)]
        for i, rows in enumerate(strips):
            for j, columns in enumerate(strips[: i + 1]):
                self.tile(i, j).copy_(block(rows, columns))

    def _addresses(self, slots: Tensor) -> Tensor:
        """Return flat positions of P[:, slots], (size, B), in the tiles.

        Along a tile's row left of the diagonal, down its column below. Slots are the fastest
        dimension because neighbouring slots share cache lines in the columns.
        """
        strip = slots // self.side  # (B,)
        offset = slots % self.side
        other = torch.arange(self.strips, device=slots.device)[:, None]  # (strips, 1)
        low = torch.minimum(strip, other)
        high = torch.maximum(strip, other)
        along_row = strip >= other  # (strips, B)
        tile_start = (high * (high + 1) // 2 + low) * self.side**2
        start = tile_start + torch.where(along_row, offset * self.side, offset)
        stride = torch.where(along_row, 1, self.side)
        within = torch.arange(self.side, device=slots.device)[:, None]  # (side, 1)
        return (start[:, None] + stride[:, None] * within).view(-1, len(slots))

    # Inverting ------------------------------------------------------------------------------------

    def invert(self, block: Callable[[slice, slice], Tensor]) -> None:
        """Overwrite the rows in use with the inverse of a positive definite matrix, by Cholesky.

        O(N^3), with one tile of extra memory.

        Args:
            block: returns the entries of the matrix between given rows and columns.

        Raises:
            NotPositiveDefiniteError: it has no Cholesky factor, or one that is lost in rounding.
                The contents of the tiles are then undefined.
        """
        self.fill(block)
        # views: of K now, of its factor below
        diagonals = [self.tile(i, i).diagonal() for i in range(self.strips)]
        floor = rounding_floor(self.size, self.tiles.dtype) * torch.cat(diagonals).max()
        self._factorise()
        if not bool(torch.cat(diagonals).square().min() > floor):
            raise NotPositiveDefiniteError
        if self.strips == 1:
            # Two threads of LAPACK wait for each other: while other work kept one of two cores
            # busy, 1650 rows took 5 s, and 0.08 s by one thread, which idle cores halve at best.
            with using(1):
                torch.cholesky_inverse(self.tiles[0], out=self.tiles[0])
            return
        self._invert_factor()
        self._multiply_factor()

    def _factorise(self) -> None:
        """K = L L^T, strip by strip: L_ik = (K_ik - sum_j L_ij L_kj^T) L_kk^-T."""
        for k in range(self.strips):
            for j in range(k):
                self.tile(k, k).addmm_(self.tile(k, j), self.tile(k, j).mT, alpha=-1)
            factor, info = torch.linalg.cholesky_ex(self.tile(k, k))
            if int(info):
                raise NotPositiveDefiniteError
            self.tile(k, k).copy_(factor)
            for i in range(k + 1, self.strips):
                for j in range(k):
                    self.tile(i, k).addmm_(self.tile(i, j), self.tile(k, j).mT, alpha=-1)
                tile = self.tile(i, k)
                tile.copy_(torch.linalg.solve_triangular(factor.mT, tile, upper=True, left=False))

    def _invert_factor(self) -> None:
        """Put X = L^-1 in the place of L: X_ij = -L_ii^-1 sum_k L_ik X_kj, k from j to i - 1."""
        eye = torch.eye(self.side, dtype=self.tiles.dtype, device=self.tiles.device)
        for i in range(self.strips):
            own = torch.linalg.solve_triangular(self.tile(i, i), eye, upper=False)
            for j in range(i):
                total = self.tile(i, j) @ self.tile(j, j)
                for k in range(j + 1, i):
                    total.addmm_(self.tile(i, k), self.tile(k, j))
                torch.mm(own, total.neg_(), out=self.tile(i, j))
            self.tile(i, i).copy_(own)

    def _multiply_factor(self) -> None:
        """Put P = X^T X in the place of X: P_ij = sum_k X_ki^T X_kj, k from i on."""
        for i in range(self.strips):
            for j in range(i + 1):  # the diagonal tile last: the others need X_ii
                total = self.tile(i, i).mT @ self.tile(i, j)
                for k in range(i + 1, self.strips):
                    total.addmm_(self.tile(k, i).mT, self.tile(k, j))
                self.tile(i, j).copy_(total)


class DelayedInverse(nn.Module):
    """P = P0 + u^T diag(signs) u: a symmetric matrix and changes that are not yet added to it.

    Writing a rank-16 change into P0 at every step would move all of P0 through the processor for
    little arithmetic. The changes are kept in ``u`` instead, every product adds their part, O(R
    rank N), and they are folded into P0 when ``u`` is full, where a rank-256 change costs hardly
    more time than a rank-16 one. (Quantum Monte Carlo codes call this a delayed update.)

    Args:
        capacity: N at most.
        fold_rank: rows of ``u`` at most. More rows mean fewer folds and slower products.
    """

    u: Tensor
    signs: Tensor

    def __init__(
        self,
        capacity: int,
        *,
        fold_rank: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.base = SymmetricTiles(capacity, dtype=dtype, device=device)
        if fold_rank is None:
            fold_rank = FOLD_RANK if capacity > ONE_TILE else FOLD_RANK // 2
        self.fold_rank = fold_rank
        self.rank = 0
        self.folds = 0
        empty = torch.zeros(self.fold_rank, self.base.full_size, dtype=dtype, device=device)
        self.register_buffer("u", empty, persistent=False)
        self.register_buffer("signs", empty[:, 0].clone(), persistent=False)

    @property
    def size(self) -> int:
        """Rows in use."""
        return self.base.size

    def reset(self) -> None:
        """Set the size to 0."""
        self.rank = 0
        self.u.zero_()  # or columns of an earlier, larger size would come back as it grows
        self.base.reset()

    def rows(self, slots: Tensor) -> Tensor:
        """Return P[slots], (B, size). O(B rank N)."""
        u = self.u[: self.rank, : self.size]
        signs = self.signs[: self.rank]
        return torch.addmm(self.base.rows(slots), (u[:, slots] * signs[:, None]).mT, u)

    def multiply(self, x: Tensor) -> Tensor:
        """Return x @ P for x (R, size). O(R N^2): the one pass over all of P."""
        u = self.u[: self.rank, : self.size]
        signs = self.signs[: self.rank]
        return self.base.multiply(x).addmm_((x @ u.mT) * signs, u)

    def add(self, minus: Tensor, plus: Tensor) -> None:
        """Add plus^T plus - minus^T minus, for rows (R, size) each; fold first if ``u`` is full."""
        if self.rank + len(minus) + len(plus) > self.fold_rank:
            self.fold()
        if len(minus) + len(plus) > self.fold_rank:
            self.base.add_outer(minus, self.signs.new_full((len(minus),), -1))
            self.base.add_outer(plus, self.signs.new_ones(len(plus)))
            return
        for rows, sign in ((minus, -1), (plus, 1)):
            self.u[self.rank : self.rank + len(rows), : self.size] = rows
            self.signs[self.rank : self.rank + len(rows)] = sign
            self.rank += len(rows)

    def fold(self) -> None:
        """Add the delayed changes to P0. O(rank N^2 / 2)."""
        if self.rank:
            self.base.add_outer(self.u[: self.rank, : self.size], self.signs[: self.rank])
            self.rank = 0
            self.folds += 1
