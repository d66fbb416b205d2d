"""Fixtures that all tests share."""

from collections.abc import Iterator

import pytest
import torch

from tests.pretend_device import PretendDevice


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of random numbers; the library never touches the global one, and neither do
    its tests.
    """
    return torch.Generator().manual_seed(0)


@pytest.fixture
def gpu() -> Iterator[PretendDevice]:
    """A machine with one GPU, for the length of a test."""
    with PretendDevice() as device:
        yield device
