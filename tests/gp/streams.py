"""Labelled points for the engine's tests."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from semigpc.refiners.buffers import BalancedBuffer, FIFOBuffer

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


def replace_rows(
    engine: Any, order: str, draw: Draw, sizes: Iterable[int], generator: torch.Generator
) -> Iterator[int]:
    """Replace rows of an engine in the order of a buffer, or in arbitrary slots; yield the step."""
    capacity = engine.capacity
    buffer = (FIFOBuffer if order == "fifo" else BalancedBuffer)(capacity, engine.n_classes)
    for step, size in enumerate(sizes):
        features, targets = draw(size)
        if order == "arbitrary":
            reach = min(capacity, 10 + step)  # grows from nothing to full
            slots = torch.randperm(reach, generator=generator)[:size]
            engine.replace(slots, features, targets)
        else:
            written = buffer.write(targets.argmax(dim=1))
            engine.replace(written.slots, features[written.rows], targets[written.rows])
        yield step


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
