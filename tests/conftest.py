"""Fixtures that all tests share."""

import pytest
import torch


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of random numbers; the library never touches the global one, and neither do its tests."""
    return torch.Generator().manual_seed(0)
