"""A symmetric matrix in tiles behaves like the square it stands for."""

import pytest
import torch
from torch import Tensor

from semigpc.gp import tiles
from semigpc.gp.tiles import DelayedInverse, SymmetricTiles
from tests.gp.streams import assert_near


@pytest.fixture(params=[(50, 4096, 16), (50, 1, 16), (90, 1, 48), (16, 1, 16)], ids=str)
def tiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SymmetricTiles:
    """Matrices of one tile and of several, dividing evenly or not."""
    capacity, one_tile, tile = request.param
    monkeypatch.setattr(tiles, "ONE_TILE", one_tile)
    monkeypatch.setattr(tiles, "TILE", tile)
    matrix = SymmetricTiles(capacity, dtype=torch.float64)
    matrix.grow(capacity)
    return matrix


def square(matrix: SymmetricTiles) -> Tensor:
    return matrix.multiply(torch.eye(matrix.size, dtype=torch.float64))


def test_starts_as_the_identity(tiled: SymmetricTiles) -> None:
    assert torch.equal(square(tiled), torch.eye(tiled.size, dtype=torch.float64))


def test_outer_products_rows_and_filling_match_the_square(
    tiled: SymmetricTiles, generator: torch.Generator
) -> None:
    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    n = tiled.size
    expected = torch.eye(n, dtype=torch.float64)
    u, signs = random(5, n), torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0], dtype=torch.float64)
    tiled.add_outer(u, signs)
    expected += u.mT @ (signs[:, None] * u)
    assert_near(square(tiled), expected, atol=1e-12)

    slots = torch.randperm(n, generator=generator)[:7]
    assert_near(tiled.rows(slots), expected[slots], atol=1e-12)

    expected = random(n, n)
    expected = expected + expected.mT
    tiled.fill(lambda rows, columns: expected[rows, columns])
    assert torch.equal(square(tiled), expected)
    x = random(3, n)
    assert_near(tiled.multiply(x), x @ expected, atol=1e-11)


def test_growing_keeps_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "ONE_TILE", 1)
    monkeypatch.setattr(tiles, "TILE", 16)
    matrix = SymmetricTiles(48, dtype=torch.float64)
    matrix.grow(1)
    assert matrix.size == 16
    matrix.add_outer(torch.ones(1, 16, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    matrix.grow(40)
    expected = torch.eye(48, dtype=torch.float64)
    expected[:16, :16] += 1
    assert torch.equal(square(matrix), expected)


def test_changes_kept_aside_count_before_and_after_folding(generator: torch.Generator) -> None:
    inverse = DelayedInverse(30, fold_rank=8, dtype=torch.float64)
    inverse.base.grow(30)
    n = inverse.size
    expected = torch.eye(n, dtype=torch.float64)
    x = torch.randn(4, n, generator=generator, dtype=torch.float64)
    slots = torch.tensor([2, 11, 29])
    # fits, fits, folds first, fits, larger than the room there is, fits
    for rank in (3, 4, 3, 1, 12, 2):
        u = torch.randn(rank, n, generator=generator, dtype=torch.float64)
        sign = -1 if rank % 2 else 1
        inverse.add(*((u, u[:0]) if sign < 0 else (u[:0], u)))
        expected += sign * u.mT @ u
        assert_near(inverse.multiply(x), x @ expected, atol=1e-10)
        assert_near(inverse.rows(slots), expected[slots], atol=1e-10)
    assert inverse.folds == 2


def test_what_was_kept_aside_before_a_reset_does_not_come_back_as_it_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tiles, "ONE_TILE", 1)
    monkeypatch.setattr(tiles, "TILE", 16)
    inverse = DelayedInverse(48, fold_rank=8, dtype=torch.float64)
    inverse.base.grow(48)
    inverse.add(torch.zeros(0, 48), torch.ones(2, 48, dtype=torch.float64))
    inverse.reset()
    inverse.base.grow(16)
    inverse.add(torch.zeros(0, 16), torch.full((1, 16), 2.0, dtype=torch.float64))
    inverse.base.grow(48)
    expected = torch.eye(48, dtype=torch.float64)
    expected[:16, :16] += 4
    torch.testing.assert_close(inverse.multiply(torch.eye(48, dtype=torch.float64)), expected)
