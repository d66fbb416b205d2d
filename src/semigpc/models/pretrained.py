"""Weights from a file: where it is published, what of it is the backbone, and an error for what
does not fit.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.io.atomic import sha256

# Where files keep the network, first match first: MSN (`encoder` beside it is the online network,
# which MSN does not evaluate), USB, timm; None is the top level, as in DINO's files and in other
# files of timm.
NETWORK_KEYS = ("target_encoder", "model", "state_dict", None)
HEAD_PREFIXES = ("fc", "classifier", "mlp", "head")  # of parts above the backbone
USB = "https://github.com/microsoft/Semi-supervised-learning/releases/download/v.0.0.0/"
META = "https://dl.fbaipublicfiles.com/"


@dataclass(frozen=True)
class WeightFile:
    """A published file.

    Args:
        url: its address, which ends with its name.
        backbone: the network, a key of ``VITS``. pretraining: supervised, dino or msn, all on
            ImageNet-1k.
        licence: of the repository that publishes it.
        sha256: the first digits of its hash; None where no hash is published.
    """

    url: str
    backbone: str
    pretraining: str
    licence: str
    sha256: str | None = None

    @property
    def file(self) -> str:
        """Its name."""
        return self.url.rpartition("/")[2]


WEIGHTS: tuple[
    WeightFile, ...
] = (  # the first of a backbone and a pre-training is what the paper's recipes start from
    WeightFile(
        f"{USB}vit_tiny_patch2_32_mlp_im_1k_32.pth", "vit_tiny_patch2_32", "supervised", "MIT"
    ),
    WeightFile(
        f"{USB}vit_small_patch2_32_mlp_im_1k_32.pth", "vit_small_patch2_32", "supervised", "MIT"
    ),
    WeightFile(
        f"{USB}vit_small_patch16_224_mlp_im_1k_224.pth",
        "vit_small_patch16_224",
        "supervised",
        "MIT",
    ),
    WeightFile(
        f"{META}dino/dino_deitsmall16_pretrain/dino_deitsmall16_pretrain.pth",
        "vit_small_patch16_224",
        "dino",
        "Apache-2.0",
    ),
    WeightFile(f"{META}msn/vits16_800ep.pth.tar", "vit_small_patch16_224", "msn", "CC BY-NC 4.0"),
    WeightFile(
        f"{META}deit/deit_small_patch16_224-cd65a155.pth",
        "vit_small_patch16_224",
        "supervised",
        "Apache-2.0",
        "cd65a155",
    ),
)


@dataclass(frozen=True)
class LoadReport:
    """Names, in the order of the file: what went in, heads left out on purpose, what found no
    place, what was resized.

    ``resized`` is part of ``loaded``.
    """

    loaded: tuple[str, ...]
    dropped: tuple[str, ...]
    unexpected: tuple[str, ...]
    resized: tuple[str, ...]


def load_weights(backbone: nn.Module, source: str | Path | Mapping[str, object]) -> LoadReport:
    """Copy a file's weights into a backbone, all of it or nothing.

    Every tensor of the backbone must be in the file (batch norm's step counts excepted) with its
    own shape; only position embeddings are resized. Files of USB, DINO, MSN and timm are
    understood.

    Args:
        backbone: filled in place.
        source: .pth, .pt or .tar, read without running code from it; .safetensors; or what such a
            file contains.
    """
    contents, origin = (
        (source, "the given weights")
        if isinstance(source, Mapping)
        else (_read(find_weights(source)), str(source))
    )
    weights = _network(contents, origin)

    wanted = backbone.state_dict()
    # fc_norm begins like a classifier and is a part of backbones that average their tokens.
    heads = [
        name
        for name in weights
        if name.startswith(HEAD_PREFIXES) and not name.startswith("fc_norm.")
    ]
    dropped = tuple(name for name in heads if name not in wanted)
    kept = {name: value for name, value in weights.items() if name in wanted}
    unexpected = tuple(name for name in weights if name not in wanted and name not in dropped)
    missing = [
        name for name in wanted if name not in kept and not name.endswith("num_batches_tracked")
    ]
    if missing:
        raise ValueError(
            f"every part of the backbone must be in {origin}; missing: {_some(missing)}. "
            f"Not used from the file: {_some([*unexpected, *dropped])}. Is it of another "
            "architecture?"
        )
    grids = [
        name
        for name, value in kept.items()
        if name.rpartition(".")[2] == "pos_embed" and value.ndim == 3
    ]
    resized = tuple(name for name in grids if kept[name].shape != wanted[name].shape)
    for name in resized:
        # rows of the position embedding that belong to no patch
        n_prefix = (
            0
            if getattr(backbone, "no_embed_class", False)
            else int(getattr(backbone, "num_prefix_tokens", 1))
        )
        kept[name] = resize_positions(kept[name], wanted[name].shape[1], n_prefix=n_prefix)
    _check_shapes(kept, wanted, origin)
    backbone.load_state_dict(
        kept, strict=False
    )  # strictness is above: only step counts may be absent here
    return LoadReport(tuple(kept), dropped, unexpected, resized)


def find_weights(source: str | Path) -> Path:
    """Return the path of a weight file that exists and whose hash is the published one, where one
    is published.
    """
    path = Path(source).expanduser()
    known = next((weights for weights in WEIGHTS if weights.file == path.name), None)
    if not path.is_file():
        if known is None:
            raise FileNotFoundError(
                f"model.pretrained must be 'timm', 'embedded' or a file that exists; got {path}."
            )
        raise FileNotFoundError(
            f"the weights {known.file} are not in {path.parent}. Fetch {known.url} into that "
            "folder."
        )
    if (
        known is not None
        and known.sha256 is not None
        and not (digest := sha256(path)).startswith(known.sha256)
    ):
        raise ValueError(
            f"the SHA-256 of {path} must begin with {known.sha256}; got {digest[:8]}. Fetch "
            f"{known.url} again."
        )
    return path


def resize_positions(positions: Tensor, n_tokens: int, *, n_prefix: int = 1) -> Tensor:
    """Return position embeddings (1, P + n^2, D) for a grid of another size, (1, n_tokens, D):
    bicubic, the first P rows kept.

    Args:
        positions: (1, P + n^2, D).
        n_tokens: P + m^2 of the new grid.
        n_prefix: P, 1 for a class token alone.
    """
    side = math.isqrt(positions.shape[1] - n_prefix)
    new_side = math.isqrt(n_tokens - n_prefix)
    for count, length in ((positions.shape[1], side), (n_tokens, new_side)):
        if count != n_prefix + length**2:
            raise ValueError(
                f"positions must be {n_prefix} and a square grid to be resized; got {count}."
            )
    prefix = positions[:, :n_prefix]
    grid = positions[:, n_prefix:]
    maps = grid.reshape(1, side, side, -1).permute(0, 3, 1, 2).float()  # (1, D, n, n)
    maps = F.interpolate(maps, size=(new_side, new_side), mode="bicubic", align_corners=False)
    return torch.cat([prefix, maps.flatten(2).mT.to(prefix.dtype)], dim=1)


def _read(path: Path) -> Mapping[str, object]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except (
        Exception
    ) as error:  # bytes that are no pickle fail in whatever way their first opcode has it
        raise ValueError(_refusal(path, error)) from error
    if not isinstance(contents, Mapping):
        raise ValueError(
            f"a weight file must hold a dict; {path} holds a {type(contents).__name__}. Save its "
            "state_dict()."
        )
    return contents


def _refusal(path: Path, error: Exception) -> str:
    """Return why a file was not read: code inside, named without running it, or no weight file at
    all.
    """
    try:
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (
        Exception
    ):  # not a zip archive: in older formats only the first foreign name is known, from the error
        foreign = re.findall(r"GLOBAL (\S+)", str(error))
    if foreign:
        return (
            f"a weight file must hold tensors, numbers and dicts; {path} also holds "
            f"{_some(foreign)}, and reading those would "
            "run code from the file. If you trust it, keep the tensors alone: contents = "
            "torch.load(file, weights_only=False), "
            "then torch.save the part that holds the weights (for MSN "
            "{'target_encoder': contents['target_encoder']})."
        )
    return (
        f"{path} is not a weight file ({type(error).__name__}). Give one written by torch.save, "
        "or .safetensors."
    )


def _network(contents: Mapping[str, object], origin: str) -> dict[str, Tensor]:
    """Return the tensors of one network by name, without the prefix that data-parallel training
    leaves.
    """
    for key in NETWORK_KEYS:
        part = contents if key is None else contents.get(key)
        if isinstance(part, Mapping):
            tensors = {
                str(name).removeprefix("module."): value
                for name, value in part.items()
                if isinstance(value, Tensor)
            }
            if tensors:
                return tensors
    keys = ", ".join(repr(key) for key in NETWORK_KEYS if key is not None)
    raise ValueError(
        f"a weight file must hold tensors at the top level or at one of {keys}; {origin} has none "
        "there, but "
        f"{_some(list(map(str, contents)))}. Save the state_dict() of the network alone."
    )


def _check_shapes(kept: Mapping[str, Tensor], wanted: Mapping[str, Tensor], origin: str) -> None:
    wrong = {name: value for name, value in kept.items() if value.shape != wanted[name].shape}
    for name, value in wrong.items():
        ours, theirs = ("x".join(map(str, kernel.shape[-2:])) for kernel in (wanted[name], value))
        if name.endswith("patch_embed.proj.weight") and ours != theirs:
            raise ValueError(
                f"patch kernels must have the backbone's size, {ours}; {origin} has {theirs}. "
                "Kernels are not resized (16x16 ones make poor 2x2 ones): take weights trained "
                "with this patch_size."
            )
    if wrong:
        shapes = [
            f"{name} {tuple(value.shape)} for {tuple(wanted[name].shape)}"
            for name, value in wrong.items()
        ]
        raise ValueError(
            f"weights must have the backbone's shapes; {origin} has {_some(shapes)}. Is it another "
            "model?"
        )


def _some(names: list[str], most: int = 12) -> str:
    return (", ".join(names[:most]) or "nothing") + (
        f" and {len(names) - most} more" if len(names) > most else ""
    )
