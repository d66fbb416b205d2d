"""Labelled points for the engine's tests."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Draw = Callable[[int], tuple[Tensor, Tensor]]


def clusters(
    generator: torch.Generator,
    *,
    n_classes: int = 4,
    width: int = 16,
    spread: float = 0.5,
    dtype: torch.dtype = torch.float64,
) -> Draw:
    """Unit vectors (n, width) around one direction per class, with one-hot targets."""
    centres = F.normalize(torch.randn(n_classes, width, generator=generator, dtype=dtype), dim=1)

    def draw(rows: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(n_classes, (rows,), generator=generator)
        noise = torch.randn(rows, width, generator=generator, dtype=dtype) * spread / width**0.5
        return F.normalize(centres[labels] + noise, dim=1), F.one_hot(labels, n_classes).to(dtype)

    return draw


def assert_near(found: Tensor, expected: Tensor, *, atol: float) -> None:
    """The same dtype and shape, and no entry further apart than ``atol``."""
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def failing_once(
    method: Callable[..., None], error: type[BaseException], *, written: bool
) -> Callable[..., None]:
    """An engine's method whose first call raises, with nothing changed or all ``written``."""
    calls: list[object] = []

    def call(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) > 1 or written:
            method(*arguments)
        if len(calls) == 1:
            raise error("no solution")

    return call
