"""The moving average of the network, which is what gets evaluated."""

import copy

import torch
from torch import nn


def average_of(model: nn.Module) -> nn.Module:
    """A copy of the network to average into; no gradients, evaluation mode."""
    return copy.deepcopy(model).eval().requires_grad_(False)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, momentum: float) -> None:
    """theta_avg <- m theta_avg + (1 - m) theta; statistics of batch normalisation are copied, not averaged."""
    ours = [parameter.detach() for parameter in average.parameters()]
    torch._foreach_lerp_(ours, [parameter.detach() for parameter in model.parameters()], 1 - momentum)
    for kept, current in zip(average.buffers(), model.buffers(), strict=True):
        kept.copy_(current)
