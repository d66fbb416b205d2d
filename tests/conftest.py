"""Fixtures that all tests share."""

from collections.abc import Iterator

import pytest
import torch

from tests.pretend_device import PretendDevice


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches of embeddings, features and weights that are not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
        patch.setenv("TORCH_HOME", str(tmp_path_factory.mktemp("torch")))
        patch.delenv("SEMIGPC_WEIGHTS", raising=False)
        patch.setenv("SEMIGPC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave nightly tests out wherever slow ones are left out."""
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker("slow")


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of random numbers: neither the library nor its tests use the global one."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def gpu() -> Iterator[PretendDevice]:
    """A machine with one GPU, for the length of a test."""
    with PretendDevice() as device:
        yield device
