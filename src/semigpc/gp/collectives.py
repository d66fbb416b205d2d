"""What processes that train together do together: sums, with their gradients, and dictionaries joined."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def spread_out() -> bool:
    """Whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class Sum(torch.autograd.Function):
    """The sum over processes; the loss is the same on all, so each term's gradient is the sum's."""

    @staticmethod
    def forward(ctx: Any, term: Tensor) -> Tensor:  # noqa: ARG004
        total = term.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient


class SumGradients(torch.autograd.Function):
    """Nothing on the way there; on the way back the sum over processes, each of which has a part of what was made of it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:  # noqa: ARG004
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def gathered(part: dict[Any, Any]) -> dict[Any, Any]:
    """The dictionaries of all processes as one."""
    parts: list[dict[Any, Any]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, part)
    return {key: value for part in parts for key, value in part.items()}
