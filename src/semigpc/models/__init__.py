"""Models: from images to logits, features and the outputs of extra heads."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from semigpc.models.backbones import EMBEDDED, VITS, build_timm, build_vit, embedded_weights
from semigpc.models.convnets import SmallCNN, WideResNet
from semigpc.models.heads import Adapter, Classifier, OnFrozen
from semigpc.models.pretrained import LoadReport, load_weights
from semigpc.types import HeadSpec

HUB = "timm"  # as ``pretrained``: the weights of timm's hub
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
        image_size, patch_size: in pixels a side, where a network depends on them; None takes its
            own.
        drop_path: stochastic depth of the last block, falling linearly to 0 at the first; None
            takes the network's own.
        pretrained: None starts from random weights, "timm" from timm's hub, "embedded" from a
            package of weights (the extra of that name, for tf_efficientnet_lite0), anything else is
            a file.
    """

    name: str = "small_cnn"
    image_size: int | None = None
    patch_size: int | None = None
    drop_path: float | None = None
    pretrained: str | None = None

    def __post_init__(self) -> None:
        for field in ("image_size", "patch_size"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(
                    f"{field} must be at least 1; got {value}. None takes the model's own."
                )
        if self.drop_path is not None and not 0 <= self.drop_path < 1:
            raise ValueError(
                f"drop_path must lie in [0, 1); got {self.drop_path}. None takes the model's own."
            )
        if self.pretrained == "":
            raise ValueError(
                "pretrained must be 'timm', 'embedded' or a file; got ''. None starts from random "
                "weights."
            )


def build_model(
    config: ModelConfig, n_classes: int, heads: Mapping[str, HeadSpec] | None = None
) -> Classifier:
    """Return the network a config describes, with a fresh classifier for C classes and fresh heads.

    What a weight file left unused is logged as a warning; what it lacks is an error.
    """
    options: dict[str, Any] = {
        key: value
        for key in ("image_size", "patch_size", "drop_path")
        if (value := getattr(config, key)) is not None
    }
    weights: str | Mapping[str, object] | None = config.pretrained
    if config.name not in MODELS:
        from_hub = config.pretrained == HUB
        backbone = build_timm(config.name, **options, pretrained=from_hub, others=MODELS)
        weights = None if from_hub else weights
    elif options and config.name not in VITS:
        settings = ", ".join(f"{key} {value}" for key, value in options.items())
        raise ValueError(
            f"{config.name} takes images of any size and has nothing to set; got {settings}. Leave "
            "it None."
        )
    else:
        backbone = MODELS[config.name](**options)
        if config.pretrained == HUB:
            if config.name not in VITS or (twin := VITS[config.name].hub) is None:
                raise ValueError(
                    f"timm's hub has no weights for {config.name}; give pretrained a file, or None."
                )
            weights = build_timm(twin, pretrained=True).state_dict()
    if config.pretrained == EMBEDDED:
        weights = embedded_weights(config.name, backbone)
    if weights is not None:
        report, log = load_weights(backbone, weights), logging.getLogger(__name__)
        resized = ", ".join(report.resized) or "none"
        log.info(
            "%s: %d tensors loaded, resized: %s", config.pretrained, len(report.loaded), resized
        )
        if report.unexpected:
            unused = ", ".join(report.unexpected)
            log.warning(
                "%s: not used, since the backbone has no such part: %s", config.pretrained, unused
            )
    return Classifier(backbone, n_classes, heads)


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
