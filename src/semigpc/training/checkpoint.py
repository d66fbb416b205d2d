"""Checkpoints: one file of tensors each, its JSON state in the header, put in place in one move. Nothing is pickled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semigpc import tensor_files
from semigpc.files import FileError, WriteError, replacing


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read; the message says why, and which other one can."""


class Checkpoint(NamedTuple):
    """``tensors`` by name, such as "model.classifier.weight"; ``state`` is JSON."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below a prefix, without it."""
        return {name.removeprefix(f"{prefix}."): value for name, value in self.tensors.items() if name.startswith(f"{prefix}.")}


def save(path: Path, parts: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Write a checkpoint beside ``path``, push it to the disk, then move it there; whatever fails, the old one stays.

    Args:
        path: of the file. parts: tensors by part and name. state: anything that JSON holds.
    """
    tensors = {
        f"{part}.{name}": value.detach().to("cpu", copy=True).contiguous()
        for part, values in parts.items()
        for name, value in values.items()
    }
    try:
        with replacing(path) as draft:
            tensor_files.save(draft, tensors, state=state)
    except WriteError as error:
        size = sum(value.nbytes for value in tensors.values()) / 1e6
        raise WriteError(f"the checkpoint {error} It takes {size:.1f} MB.", passing=error.passing) from error


def load(path: Path) -> Checkpoint:
    """Read a checkpoint, every byte of which is verified."""
    try:
        with tensor_files.opened(path) as (file, facts):
            return Checkpoint({name: file.get_tensor(name) for name in file.keys()}, facts["state"])  # noqa: SIM118 - not a dict
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint {path}.") from error
    except FileError as error:
        raise CheckpointError(f"the checkpoint {error}.") from error
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {error.strerror or error}.") from error


# Optimisers --------------------------------------------------------------------------------------------------------


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments of every parameter, as "3.exp_avg"."""
    return {
        f"{number}.{name}": value
        for number, moments in optimizer.state_dict()["state"].items()
        for name, value in moments.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the moments back; rates are set by the schedule.

    A file holds rows in order, a parameter may be laid out otherwise (channels last): its moments have to be laid out as it is,
    or a fused optimiser pairs the wrong numbers.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        laid_out = torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value
        moments.setdefault(int(number), {})[name] = laid_out.detach()
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
