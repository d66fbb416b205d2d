"""Fixtures for tests of cached features."""

import pytest
from torch import Tensor

from semigpc.data import feature_views
from semigpc.io import parts
from tests.data.feature_samples import compute, everything, noise, splits_of


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """Features of the usual splits, computed in one go."""
    splits = splits_of(noise())
    return everything(compute(tmp_path_factory.mktemp("whole"), splits), splits)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four images at a time through the network, eight in a file."""
    monkeypatch.setattr(feature_views, "CHUNK_IMAGES", 4)
    monkeypatch.setattr(parts, "PART_ROWS", 8)
