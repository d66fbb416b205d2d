"""Fixtures that all tests share."""

from collections import Counter

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files with the largest share of slow tests first, so that parallel processes finish at about the same time."""
    tests, slow = Counter(item.path for item in items), Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path] / tests[item.path])


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of random numbers; the library never touches the global one, and neither do its tests."""
    return torch.Generator().manual_seed(0)
