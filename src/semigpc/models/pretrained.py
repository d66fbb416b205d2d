"""Weights from a file: find the network inside, drop what is not the backbone, and refuse what does not fit."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layout = Literal["auto", "usb", "dino", "msn", "timm"]

# Where each layout keeps the network; None: the file is the network.
FOLDERS: dict[str, tuple[str | None, ...]] = {
    "usb": ("model",),
    "dino": (None,),
    "msn": ("target_encoder",),  # what MSN evaluates; `encoder` is the online network
    "timm": ("state_dict", None),
}
# How the names of parts above the backbone begin, in each layout.
TOPS: dict[str, tuple[str, ...]] = {
    "usb": ("fc", "classifier", "mlp", "head"),
    "dino": (),
    "msn": ("fc.",),
    "timm": ("fc.", "classifier.", "head.", "head_dist."),
}


@dataclass(frozen=True)
class LoadReport:
    """Names, in the order of the file: what went in, heads left out on purpose, what found no place, what was resized.

    ``resized`` is part of ``loaded``.
    """

    loaded: tuple[str, ...]
    dropped: tuple[str, ...]
    unexpected: tuple[str, ...]
    resized: tuple[str, ...]


def load_weights(backbone: nn.Module, source: str | Path | Mapping[str, object], *, layout: Layout = "auto") -> LoadReport:
    """Copy a file's weights into a backbone, all of it or nothing.

    Every tensor of the backbone must be in the file (batch norm's step counts excepted) with its own shape; only
    position embeddings are resized.

    Args:
        backbone: filled in place.
        source: .pth, .pt or .tar, read without running code from it; .safetensors; or what such a file contains.
        layout: "usb" {"model": weights}, "dino" weights, "msn" {"target_encoder": weights}, "timm" weights, maybe as
            {"state_dict": weights}. "auto" goes by the names at the top of the file.
    """
    contents, origin = (source, "the given weights") if isinstance(source, Mapping) else (_read(Path(source)), str(source))
    if layout == "auto":
        layout = _detect(contents)
    weights = _network(contents, layout, origin)

    wanted = backbone.state_dict()
    dropped = tuple(name for name in weights if _is_top(name, layout) and name not in wanted)
    kept = {name: value for name, value in weights.items() if name in wanted}
    unexpected = tuple(name for name in weights if name not in wanted and name not in dropped)
    missing = [name for name in wanted if name not in kept and not name.endswith("num_batches_tracked")]
    if missing:
        raise ValueError(
            f"every part of the backbone must be in {origin} (layout {layout}); missing: {_some(missing)}. "
            f"Not used from the file: {_some([*unexpected, *dropped])}. Is it of another architecture, or layout?"
        )
    resized = tuple(name for name in kept if _is_grid(name, kept[name]) and kept[name].shape != wanted[name].shape)
    for name in resized:
        kept[name] = resize_positions(kept[name], wanted[name].shape[1], n_prefix=_n_prefix(backbone))
    _check_shapes(kept, wanted, origin)
    backbone.load_state_dict(kept, strict=False)  # strictness is above: only step counts may be absent here
    return LoadReport(tuple(kept), dropped, unexpected, resized)


def resize_positions(positions: Tensor, n_tokens: int, *, n_prefix: int = 1) -> Tensor:
    """Position embeddings (1, P + n^2, D) for a grid of another size, (1, n_tokens, D): bicubic, the first P rows kept.

    Args:
        positions: (1, P + n^2, D).
        n_tokens: P + m^2 of the new grid.
        n_prefix: P, 1 for a class token alone.
    """
    side, new_side = math.isqrt(positions.shape[1] - n_prefix), math.isqrt(n_tokens - n_prefix)
    for count, length in ((positions.shape[1], side), (n_tokens, new_side)):
        if count != n_prefix + length**2:
            raise ValueError(f"positions must be {n_prefix} and a square grid to be resized; got {count}.")
    prefix, grid = positions[:, :n_prefix], positions[:, n_prefix:]
    maps = grid.reshape(1, side, side, -1).permute(0, 3, 1, 2).float()  # (1, D, n, n)
    maps = F.interpolate(maps, size=(new_side, new_side), mode="bicubic", align_corners=False)
    return torch.cat([prefix, maps.flatten(2).mT.to(prefix.dtype)], dim=1)


def _read(path: Path) -> Mapping[str, object]:
    path = path.expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"pretrained must be 'timm' or a file that exists; got {path}.")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # bytes that are no pickle fail in whatever way their first opcode has it
        raise ValueError(_refusal(path, error)) from error
    if not isinstance(contents, Mapping):
        raise ValueError(f"a weight file must hold a dict; {path} holds a {type(contents).__name__}. Save its state_dict().")
    return contents


def _refusal(path: Path, error: Exception) -> str:
    """Why a file was not read: code inside, named without running it, or no weight file at all."""
    try:
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # not a zip archive: in older formats only the first foreign name is known, from the error
        foreign = re.findall(r"GLOBAL (\S+)", str(error))
    if foreign:
        return (
            f"a weight file must hold tensors, numbers and dicts; {path} also holds {_some(foreign)}, and reading those would "
            "run code from the file. If you trust it, keep the tensors alone: contents = torch.load(file, weights_only=False), "
            "then torch.save the part that holds the weights (for MSN {'target_encoder': contents['target_encoder']})."
        )
    return f"{path} is not a weight file ({type(error).__name__}). Give one written by torch.save, or .safetensors."


def _detect(contents: Mapping[str, object]) -> Layout:
    if isinstance(contents.get("target_encoder"), Mapping):
        return "msn"
    if isinstance(contents.get("model"), Mapping):
        return "usb"
    return "timm"  # flat files: DINO's are timm's without a head


def _network(contents: Mapping[str, object], layout: str, origin: str) -> dict[str, Tensor]:
    """The tensors of one network, by name, without the prefix that data-parallel training leaves."""
    for folder in FOLDERS[layout]:
        part = contents if folder is None else contents.get(folder)
        if isinstance(part, Mapping):
            tensors = {str(name).removeprefix("module."): value for name, value in part.items() if isinstance(value, Tensor)}
            if tensors:
                return tensors
    places = " or ".join("the top level" if folder is None else repr(folder) for folder in FOLDERS[layout])
    raise ValueError(
        f"layout {layout!r} has weights at {places}; {origin} has none there, but {_some(list(map(str, contents)))}. "
        "Give the layout it was saved in."
    )


def _is_top(name: str, layout: str) -> bool:
    # fc_norm begins like a classifier and is a part of backbones that average their tokens
    return name.startswith(TOPS[layout]) and not name.startswith("fc_norm.")


def _is_grid(name: str, weights: Tensor) -> bool:
    return name.rpartition(".")[2] == "pos_embed" and weights.ndim == 3  # (1, tokens, D)


def _n_prefix(backbone: nn.Module) -> int:
    """Rows of the position embedding that belong to no patch."""
    return 0 if getattr(backbone, "no_embed_class", False) else int(getattr(backbone, "num_prefix_tokens", 1))


def _check_shapes(kept: Mapping[str, Tensor], wanted: Mapping[str, Tensor], origin: str) -> None:
    wrong = {name: value for name, value in kept.items() if value.shape != wanted[name].shape}
    for name, value in wrong.items():
        if name.endswith("patch_embed.proj.weight") and value.shape[-2:] != wanted[name].shape[-2:]:
            raise ValueError(
                f"patch kernels must have the backbone's size, {_by(wanted[name])}; {origin} has {_by(value)}. "
                "Kernels are not resized (16x16 ones make poor 2x2 ones): take weights trained with this patch_size."
            )
    if wrong:
        shapes = [f"{name} {tuple(value.shape)} for {tuple(wanted[name].shape)}" for name, value in wrong.items()]
        raise ValueError(f"weights must have the backbone's shapes; {origin} has {_some(shapes)}. Is it another model?")


def _by(kernel: Tensor) -> str:
    return "x".join(map(str, kernel.shape[-2:]))


def _some(names: list[str], most: int = 12) -> str:
    return (", ".join(names[:most]) or "nothing") + (f" and {len(names) - most} more" if len(names) > most else "")
