"""Models: images in; logits, features and extra heads out."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from torch import nn

from semigpc.models.backbones import EMBEDDED, VITS, build_timm, build_vit, embedded_weights
from semigpc.models.convnets import SmallCNN, WideResNet
from semigpc.models.heads import Adapter, Classifier, OnFrozen
from semigpc.models.pretrained import Layout, LoadReport, load_weights
from semigpc.types import HeadSpec

MODELS: dict[str, Callable[..., nn.Module]] = {
    "small_cnn": SmallCNN,
    "wrn_28_2": WideResNet,
    "wrn_28_8": partial(WideResNet, widen=8),
    **{name: partial(build_vit, name) for name in VITS},
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which network, and what it starts from.

    Args:
        name: a key of :data:`MODELS`, or any name timm knows.
        image_size, patch_size: in pixels a side, where a network depends on them; None takes its own.
        drop_path: stochastic depth of the last block, falling linearly to 0 at the first; None takes the network's own.
        pretrained: None starts from random weights, "timm" from timm's hub, "embedded" from a package of weights (the extra of
            that name, for tf_efficientnet_lite0), anything else is a file.
        pretrained_layout: how that file names its parts; "auto" finds out.
    """

    name: str = "small_cnn"
    image_size: int | None = None
    patch_size: int | None = None
    drop_path: float | None = None
    pretrained: str | None = None
    pretrained_layout: Layout = "auto"

    def __post_init__(self) -> None:
        for field in ("image_size", "patch_size"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field} must be at least 1; got {value}. None takes the model's own.")
        if self.drop_path is not None and not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path must lie in [0, 1); got {self.drop_path}. None takes the model's own.")
        if self.pretrained == "":
            raise ValueError("pretrained must be 'timm', 'embedded' or a file; got ''. None starts from random weights.")
        if self.pretrained_layout not in get_args(Layout):
            layouts = ", ".join(get_args(Layout))
            raise ValueError(f"pretrained_layout must be one of {layouts}; got {self.pretrained_layout!r}.")


def build_model(config: ModelConfig, n_classes: int, heads: Mapping[str, HeadSpec] | None = None) -> Classifier:
    """The network a config describes, with a fresh classifier for C classes and fresh heads.

    What a weight file left unused is logged as a warning; what it lacks is an error.
    """
    options: dict[str, Any] = {
        key: value for key in ("image_size", "patch_size", "drop_path") if (value := getattr(config, key)) is not None
    }
    from_hub = config.pretrained == "timm"
    if config.name not in MODELS:
        backbone = build_timm(config.name, **options, pretrained=from_hub, others=MODELS)
    elif options and config.name not in VITS:
        settings = ", ".join(f"{key} {value}" for key, value in options.items())
        raise ValueError(f"{config.name} takes images of any size and has nothing to set; got {settings}. Leave it None.")
    else:
        backbone = MODELS[config.name](**options)
        if from_hub:
            _note(load_weights(backbone, _hub_twin(config.name).state_dict(), layout="timm"), "timm's hub")
    if config.pretrained == EMBEDDED:
        _note(load_weights(backbone, embedded_weights(config.name, backbone), layout="timm"), "the embedded weights")
    elif config.pretrained is not None and not from_hub:
        _note(load_weights(backbone, config.pretrained, layout=config.pretrained_layout), config.pretrained)
    return Classifier(backbone, n_classes, heads)


def _hub_twin(name: str) -> nn.Module:
    """The pretrained timm model of the same shape as one of ours."""
    hub = VITS[name].hub if name in VITS else None
    if hub is None:
        raise ValueError(f"timm's hub has no weights for {name}; give pretrained a file, or None.")
    return build_timm(hub, pretrained=True)


def _note(report: LoadReport, source: str) -> None:
    log = logging.getLogger(__name__)
    log.info("%s: %d tensors loaded, resized: %s", source, len(report.loaded), ", ".join(report.resized) or "none")
    if report.unexpected:
        log.warning("%s: not used, since the backbone has no such part: %s", source, ", ".join(report.unexpected))


__all__ = [
    "MODELS",
    "Adapter",
    "Classifier",
    "LoadReport",
    "ModelConfig",
    "OnFrozen",
    "SmallCNN",
    "WideResNet",
    "build_model",
    "load_weights",
]
