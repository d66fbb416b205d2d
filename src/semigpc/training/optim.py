"""The optimiser: parameter groups with layer-wise decay, the learning rate of each step, and the
moving average.
"""

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from semigpc.models import Classifier
from semigpc.training.experiment import TrainConfig


def build_optimizer(model: Classifier, config: TrainConfig) -> torch.optim.Optimizer:
    """Return AdamW or SGD over groups with lr d^(depth - layer); the heads have lr itself.

    Each group keeps its own rate as ``base_lr``, which :func:`set_rate` scales. A fused optimiser
    divides by the loss scale of 16-mixed inside its step, where gradients can no longer be clipped;
    so with that precision it is not fused.
    """
    layers = model.layer_ids()
    spared = model.no_weight_decay()
    depth = max(layers.values())
    groups: dict[tuple[int, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault((layers[name], name in spared), []).append(parameter)
    described = [
        {
            "params": parameters,
            "lr": 0.0,
            "base_lr": config.lr * config.layer_decay ** (depth - layer),
            "weight_decay": 0.0 if exempt else config.weight_decay,
        }
        for (layer, exempt), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]
    if config.optimizer == "sgd":
        return torch.optim.SGD(described, lr=config.lr, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(
        described, lr=config.lr, betas=(0.9, 0.999), eps=1e-8, fused=config.precision != "16-mixed"
    )


def rate_factor(step: int, config: TrainConfig) -> float:
    """Return t / W up to the warm-up's end W, then max(0, cos(7/16 pi (t - W) / (T - W))), which
    ends at 0.195.
    """
    warmup = config.warmup_steps
    total = config.steps
    if step < warmup:
        return step / warmup
    if config.schedule == "constant" or total <= warmup:
        return 1.0
    return max(0.0, math.cos(7 / 16 * math.pi * (step - warmup) / (total - warmup)))


def set_rate(optimizer: torch.optim.Optimizer, step: int, config: TrainConfig) -> float:
    """Set every group's rate for this step; returns the heads' rate."""
    factor = rate_factor(step, config)
    for group in optimizer.param_groups:
        group["lr"] = factor * group["base_lr"]
    return factor * config.lr


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the moments of every parameter, as "3.exp_avg"."""
    return {
        f"{number}.{name}": value
        for number, moments in optimizer.state_dict()["state"].items()
        for name, value in moments.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the moments back; rates are set by the schedule.

    A file holds rows in order, a parameter may be laid out otherwise (channels last): its moments
    have to be laid out as it is, or a fused optimiser pairs the wrong numbers.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        laid_out = (
            torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value
        )
        moments.setdefault(int(number), {})[name] = laid_out.detach()
    optimizer.load_state_dict(
        {"state": moments, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def average_of(model: nn.Module) -> nn.Module:
    """Return a copy of the network to average into, without gradients and in evaluation mode."""
    return copy.deepcopy(model).eval().requires_grad_(False)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, momentum: float) -> None:
    """theta_avg <- m theta_avg + (1 - m) theta; statistics of batch normalisation are copied, not
    averaged.
    """
    ours = [parameter.detach() for parameter in average.parameters()]
    torch._foreach_lerp_(
        ours, [parameter.detach() for parameter in model.parameters()], 1 - momentum
    )
    for kept, current in zip(average.buffers(), model.buffers(), strict=True):
        kept.copy_(current)
