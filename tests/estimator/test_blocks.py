"""Blocks in which rows are scored."""

from itertools import pairwise

import numpy as np
import pytest

from semigpc.estimator import SemiGPClassifier, blocks
from semigpc.estimator.blocks import BLOCK, block_ends, frame, product_rows


def products(rows: int, call: int, product: int) -> list[tuple[int, int]]:
    """What the estimator does with all rows, spelled out: calls of ``answer``, blocks of those, products of these."""
    found = []
    for begin in range(0, rows, call):
        for block in range(begin, min(begin + call, rows), BLOCK):
            end = min(block + BLOCK, begin + call, rows)
            found += [(low, min(low + product, end)) for low in range(block, end, product)]
    return found


@pytest.mark.parametrize(
    ("rows", "call", "product"), [(150_000, 65_536, 2048), (90_001, 40_000, 2048), (70_000, 65_536, BLOCK)]
)
def test_a_frame_is_the_products_that_rows_take_part_in(rows: int, call: int, product: int) -> None:
    whole = products(rows, call, product)
    rng = np.random.default_rng(0)
    bounds = sorted({0, rows, *rng.integers(1, rows, 12).tolist()})
    seen = []
    for first, stop in pairwise(bounds):
        start = first
        for end in block_ends(first, stop, call=call):
            touched = [(low, high) for low, high in whole if low < end and high > start]
            assert frame(start, end, call=call, product=product, rows=rows) == (touched[0][0], touched[-1][1])
            seen.append((start, end))
            start = end
        assert start == stop
    assert seen[0][0] == 0
    assert block_ends(5, 5, call=call) == []


def test_rows_in_their_frame_get_the_same_numbers_whatever_else_it_holds() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 32)).astype(np.float32)
    y = np.full(300, -1)
    y[:60] = np.arange(60) % 3
    model = SemiGPClassifier(self_training=0, length_scale=4.0, noise_std=0.3, scaling="none", random_state=0).fit(X[:300], y)
    whole, product = model.answer(X), product_rows(model)
    assert product < BLOCK
    for first, stop in ((0, 1), (7, 8), (2047, 2049), (3000, 4999)):
        low, high = frame(first, stop, call=65_536, product=product, rows=len(X))
        filled = np.tile(X[first], (high - low, 1))
        filled[first - low : stop - low] = X[first:stop]
        found = model.answer(filled)
        for name in ("codes", "scores", "confidence", "variance", "rows", "weights"):
            np.testing.assert_array_equal(getattr(found, name)[first - low : stop - low], getattr(whole, name)[first:stop])


def test_blocks_are_kept_whole_where_products_differ_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    model = SemiGPClassifier(self_training=0, length_scale=1.0, noise_std=0.5, scaling="none", random_state=0)
    model.fit(X, np.arange(40) % 2)
    assert product_rows(model) < BLOCK
    monkeypatch.setattr(blocks, "CHUNK_CELLS", 39 * product_rows(model))
    assert product_rows(model) == BLOCK
