"""The optimiser with layer-wise decay, its learning rate at each step, and the moving average."""

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from semigpc.models import Classifier
from semigpc.training.experiment import TrainConfig


def build_optimizer(model: Classifier, config: TrainConfig) -> torch.optim.Optimizer:
    """Return AdamW or SGD, with learning rates lr d^(depth - layer); that of the heads is lr.

    Each parameter group stores its rate as ``base_lr``, which :func:`set_rate` scales. A fused
    optimiser divides by the loss scale of 16-mixed within its step, after which gradients can no
    longer be clipped, so with that precision it is not fused.
    """
    layers = model.layer_ids()
    not_decayed = model.no_weight_decay()
    depth = max(layers.values())
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault((layers[name], name in not_decayed), []).append(parameter)
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
    """Return t / W in the W steps of the warm-up, then max(0, cos(7/16 pi (t - W) / (T - W))).

    The cosine ends at 0.195; with ``schedule="constant"`` the factor is 1 after the warm-up.
    """
    warmup = config.warmup_steps
    total = config.steps
    if step < warmup:
        return step / warmup
    if config.schedule == "constant" or total <= warmup:
        return 1.0
    return max(0.0, math.cos(7 / 16 * math.pi * (step - warmup) / (total - warmup)))


def set_rate(optimizer: torch.optim.Optimizer, step: int, config: TrainConfig) -> float:
    """Set the learning rate of every group for this step, and return that of the heads."""
    factor = rate_factor(step, config)
    for group in optimizer.param_groups:
        group["lr"] = factor * group["base_lr"]
    return factor * config.lr


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the moments of every parameter, under names such as "3.exp_avg"."""
    return {
        f"{number}.{name}": value
        for number, moments in optimizer.state_dict()["state"].items()
        for name, value in moments.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the moments of :func:`optimizer_tensors`; learning rates follow from the schedule.

    Files store tensors row by row, but a parameter may have another memory layout (channels last).
    Its moments need the same layout, or a fused optimiser combines numbers of different entries.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        if value.shape == parameter.shape:  # a count of steps is a single number
            value = torch.empty_like(parameter).copy_(value).detach()
        moments.setdefault(int(number), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def average_of(model: nn.Module) -> nn.Module:
    """Return a copy of the network for its moving average: no gradients, evaluation mode."""
    return copy.deepcopy(model).eval().requires_grad_(False)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, momentum: float) -> None:
    """theta_avg <- m theta_avg + (1 - m) theta; batch-norm statistics are copied."""
    averaged = [parameter.detach() for parameter in average.parameters()]
    current = [parameter.detach() for parameter in model.parameters()]
    torch._foreach_lerp_(averaged, current, 1 - momentum)
    for buffer, newest in zip(average.buffers(), model.buffers(), strict=True):
        buffer.copy_(newest)
