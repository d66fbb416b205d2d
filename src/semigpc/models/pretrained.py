"""Weights from files: where they are published, and how they are loaded into a backbone."""

import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.io.atomic import sha256

# Keys at which files hold the network; the first match is used: MSN (its `encoder` is the online
# network, which MSN does not evaluate), USB, timm; None is the top level, as in files of DINO and
# other files of timm.
NETWORK_KEYS = ("target_encoder", "model", "state_dict", None)
HEAD_PREFIXES = ("fc", "classifier", "mlp", "head")  # of parts above the backbone
HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # of timm's models on Hugging Face's hub
USB = "https://github.com/microsoft/Semi-supervised-learning/releases/download/v.0.0.0/"
META = "https://dl.fbaipublicfiles.com/"


@dataclass(frozen=True)
class WeightFile:
    """A published file.

    Args:
        url: its address, which ends with its name.
        backbone: the network, a key of ``VITS``.
        pretraining: supervised, dino or msn, all on ImageNet-1k.
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


# The paper's recipes start from the first file of each backbone and pre-training.
WEIGHTS: tuple[WeightFile, ...] = (
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
    """Names of tensors, in the order of the file.

    Attributes:
        loaded: copied into the backbone, and among them ``resized``.
        dropped: of heads, which are left out on purpose.
        unexpected: all others that the backbone has no place for.
    """

    loaded: tuple[str, ...]
    dropped: tuple[str, ...]
    unexpected: tuple[str, ...]
    resized: tuple[str, ...]


def load_weights(backbone: nn.Module, source: str | Path | Mapping[str, object]) -> LoadReport:
    """Copy a file's weights into a backbone, all of them or none.

    Every tensor of the backbone must be in the file (batch norm's step counts excepted) with its
    own shape; only position embeddings are resized. Files of USB, DINO, MSN and timm can be read.

    Args:
        backbone: filled in place.
        source: .pth, .pt or .tar, read without running code from it; .safetensors; or the content
            of such a file.
    """
    if isinstance(source, Mapping):
        contents = source
        origin = "the given weights"
    else:
        contents = _read(find_weights(source))
        origin = str(source)
    return _load(backbone, _network(contents, origin), origin)


def load_timm_file(backbone: nn.Module, file: Path) -> LoadReport:
    """Copy a weight file into a timm model, as :func:`load_weights` does.

    timm converts the names and shapes of published files when it downloads them, with the function
    that each of its modules has for this; the same is done here.
    """
    weights = _network(_read(file), str(file))
    convert = vars(sys.modules[type(backbone).__module__]).get("checkpoint_filter_fn")
    if convert is not None:
        try:
            weights = convert(weights, backbone)
        except (KeyError, RuntimeError, AttributeError) as error:
            raise ValueError(
                f"{file} does not hold the weights of a {type(backbone).__name__}: {error}. Is it "
                "of another architecture?"
            ) from error
    return _load(backbone, weights, str(file))


def _load(backbone: nn.Module, weights: dict[str, Tensor], origin: str) -> LoadReport:
    wanted = backbone.state_dict()
    kept = {name: value for name, value in weights.items() if name in wanted}
    unused = [name for name in weights if name not in wanted]
    dropped = tuple(name for name in unused if _is_head(name))
    unexpected = tuple(name for name in unused if not _is_head(name))
    missing = [
        name for name in wanted if name not in kept and not name.endswith("num_batches_tracked")
    ]
    if missing:
        raise ValueError(
            f"every tensor of the backbone must be in {origin}; missing: {_some(missing)}. "
            f"Not used from the file: {_some([*unexpected, *dropped])}. Is it of another "
            "architecture?"
        )
    resized = _resize_grids(kept, wanted, backbone)
    _check_shapes(kept, wanted, origin)
    # Not strict, since step counts may be absent; all else was checked above.
    backbone.load_state_dict(kept, strict=False)
    return LoadReport(tuple(kept), dropped, unexpected, resized)


def _is_head(name: str) -> bool:
    """Return whether a tensor belongs to a part above the backbone.

    ``fc_norm`` begins like a classifier, but is a part of backbones that average their tokens.
    """
    return name.startswith(HEAD_PREFIXES) and not name.startswith("fc_norm.")


def _resize_grids(
    kept: dict[str, Tensor], wanted: Mapping[str, Tensor], backbone: nn.Module
) -> tuple[str, ...]:
    """Resize position embeddings of another grid in place, and return their names."""
    # Rows of a position embedding that belong to no patch.
    n_prefix = int(getattr(backbone, "num_prefix_tokens", 1))
    if getattr(backbone, "no_embed_class", False):
        n_prefix = 0
    resized = []
    for name, value in kept.items():
        is_grid = name.rpartition(".")[2] == "pos_embed" and value.ndim == 3
        if is_grid and value.shape != wanted[name].shape:
            kept[name] = resize_positions(value, wanted[name].shape[1], n_prefix=n_prefix)
            resized.append(name)
    return tuple(resized)


def find_weights(source: str | Path) -> Path:
    """Return the path of a weight file that exists and has the published hash, if there is one."""
    path = Path(source).expanduser()
    published = next((weights for weights in WEIGHTS if weights.file == path.name), None)
    if not path.is_file():
        if published is None:
            raise FileNotFoundError(
                f"model.pretrained must be 'timm', 'embedded' or a file that exists; got {path}."
            )
        raise FileNotFoundError(
            f"the weights {published.file} are not in {path.parent}. Download {published.url} "
            "into that folder."
        )
    if published is not None and published.sha256 is not None:
        digest = sha256(path)
        if not digest.startswith(published.sha256):
            raise ValueError(
                f"the SHA-256 of {path} must begin with {published.sha256}; got {digest[:8]}. "
                f"Download {published.url} again."
            )
    return path


# Weights of timm's hub that are on this disk ------------------------------------------------------


def hub_file(name: str) -> Path | None:
    """Return the weights of a timm model in the caches of its hub; None if they are not there.

    These are looked up in the cache of Hugging Face, then in that of torch. Nothing is downloaded.

    Args:
        name: of the model; without a tag, the weights that timm takes by default.
    """
    import timm
    from huggingface_hub import try_to_load_from_cache

    if not timm.is_model(name.partition(".")[0]):
        return None
    published = timm.get_pretrained_cfg(name, allow_unregistered=False)
    if published is None:
        return None
    if published.hf_hub_id:
        own = [published.hf_hub_filename] if published.hf_hub_filename else []
        for file in (*own, *HUB_FILES):
            found = try_to_load_from_cache(published.hf_hub_id, file, cache_dir=_hub_cache())
            if isinstance(found, str):
                return Path(found)
    url = published.url if isinstance(published.url, str) else ""
    downloaded = Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])
    return downloaded if downloaded.is_file() else None


def _hub_cache() -> Path:
    """Return the folder in which Hugging Face's hub keeps files, by its variables."""
    if cache := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = os.environ.get("HF_HOME") or caches / "huggingface"
    return Path(home, "hub").expanduser()


def resize_positions(positions: Tensor, n_tokens: int, *, n_prefix: int = 1) -> Tensor:
    """Resize position embeddings to another grid, (1, n_tokens, D): bicubic, first P rows kept.

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
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # bytes of another kind raise errors of many classes
        raise ValueError(_unreadable(path, error)) from error
    if not isinstance(contents, Mapping):
        raise ValueError(
            f"a weight file must hold a dict; {path} holds a {type(contents).__name__}. Save its "
            "state_dict()."
        )
    return contents


def _unreadable(path: Path, error: Exception) -> str:
    """Return the message for a file that contains code, which is not run, or no weights at all."""
    try:
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:
        # Not a zip archive. In older formats only the error names the first foreign object.
        foreign = re.findall(r"GLOBAL (\S+)", str(error))
    if foreign:
        return (
            f"a weight file must hold tensors, numbers and dicts; {path} also holds "
            f"{_some(foreign)}, and reading those would run code from the file. If you trust it, "
            "extract the tensors: contents = torch.load(file, weights_only=False), then "
            "torch.save the part that holds the weights (for MSN "
            "{'target_encoder': contents['target_encoder']})."
        )
    return (
        f"{path} is not a weight file ({type(error).__name__}). Give one written by torch.save, "
        "or .safetensors."
    )


def _network(contents: Mapping[str, object], origin: str) -> dict[str, Tensor]:
    """Return the tensors of one network by name, without the prefix of data-parallel training."""
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
        f"there, but {_some(list(map(str, contents)))}. Save only the network's state_dict()."
    )


def _check_shapes(kept: Mapping[str, Tensor], wanted: Mapping[str, Tensor], origin: str) -> None:
    wrong = {name: value for name, value in kept.items() if value.shape != wanted[name].shape}
    for name, value in wrong.items():
        ours = "x".join(map(str, wanted[name].shape[-2:]))
        theirs = "x".join(map(str, value.shape[-2:]))
        if name.endswith("patch_embed.proj.weight") and ours != theirs:
            raise ValueError(
                f"patch kernels must have the backbone's size, {ours}; {origin} has {theirs}. "
                "Kernels are not resized (a 16x16 kernel makes a poor 2x2 one): use weights "
                "trained with this patch_size."
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
    text = ", ".join(names[:most]) or "nothing"
    return f"{text} and {len(names) - most} more" if len(names) > most else text
