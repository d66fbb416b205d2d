"""A hub cache as timm's downloads leave it, with the weights of a tiny network."""

from pathlib import Path

import timm
import torch
from safetensors.torch import save_file
from torch import nn

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def tiny_network(name: str, seed: int = 0) -> nn.Module:
    """A timm model with its classifier and random weights, all of them other than a fresh one's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = timm.create_model(name)
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.add_(0.1 * torch.rand_like(value))
    return model


def add_to_hub_cache(cache: Path, repository: str, weights: dict[str, torch.Tensor]) -> Path:
    """Write ``model.safetensors`` of a repository: a blob, a snapshot that links to it, a ref."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    for name in ("blobs", f"snapshots/{COMMIT}", "refs"):
        (folder / name).mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "blobs/abc")
    file = folder / "snapshots" / COMMIT / "model.safetensors"
    file.symlink_to(Path("../../blobs/abc"))
    (folder / "refs/main").write_text(COMMIT)
    return file
