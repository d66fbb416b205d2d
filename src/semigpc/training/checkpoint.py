"""Checkpoints: one safetensors file each, its JSON state in the header, put in place in one move. Nothing is pickled."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

SUFFIX = ".safetensors"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; the message says what is still intact."""


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
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file(tensors, draft, metadata={"state": json.dumps(state)})
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except (OSError, safetensors.SafetensorError) as error:
        draft.unlink(missing_ok=True)
        kept = f"The previous checkpoint {path} is intact." if path.exists() else "There was no earlier checkpoint."
        raise CheckpointError(
            f"could not write the checkpoint {path}: {error}. {kept} Make room or mend it, then resume."
        ) from error


def load(path: Path) -> Checkpoint:
    """Read a checkpoint."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            state = json.loads(file.metadata()["state"])
            return Checkpoint({name: file.get_tensor(name) for name in file.keys()}, state)  # noqa: SIM118 - not a dict
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint {path}.") from error
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {error}. Resume from another, or train anew.") from error


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
