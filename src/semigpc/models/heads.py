"""The network that trains: a backbone by name with its linear classifier and other heads.

Also the adapter on a frozen network.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.io.errors import SettingsError
from semigpc.models.backbones import EMBEDDED, VITS, build_timm, build_vit, embedded_weights
from semigpc.models.convnets import SmallCNN, WideResNet
from semigpc.models.neural_process import NeuralProcess
from semigpc.models.pretrained import (
    LoadReport,
    find_weights,
    hub_file,
    load_timm_file,
    load_weights,
)
from semigpc.types import HeadSpec, ModelOutput

HUB = "timm"  # as ``pretrained``: the weights of timm's hub
MODELS: dict[str, Callable[..., nn.Module]] = {
    "small_cnn": SmallCNN,
    "wrn_28_2": WideResNet,
    "wrn_28_8": partial(WideResNet, widen=8),
    **{name: partial(build_vit, name) for name in VITS},
}
NEVER_DECAYED = {"pos_embed", "cls_token"}


class Projection(nn.Module):
    """z = unit(W2 relu(W1 h + b1) + b2), a point on the sphere for contrastive losses.

    Args:
        n_features: D, of h and of the hidden layer.
        width: of z.
    """

    def __init__(self, n_features: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(n_features, n_features)
        self.out = nn.Linear(n_features, width)

    def forward(self, features: Tensor) -> Tensor:
        """Map features (M, D) to unit vectors (M, width)."""
        projected = self.out(F.relu(self.hidden(features)))
        # At least float32: half precision rounds eps, and the squares of small numbers, to 0.
        dtype = torch.promote_types(projected.dtype, torch.float32)
        return F.normalize(projected.to(dtype), dim=-1, eps=1e-8)


HEADS: dict[str, Callable[[int, int], nn.Module]] = {
    "linear": nn.Linear,
    "projection": Projection,
    "neural_process": NeuralProcess,  # has one output per class; the width is not used
}


class Classifier(nn.Module):
    """The network that trains: features = backbone(images), logits = W features + b, extra heads.

    New layers have PyTorch's initialisation, unless the backbone has ``init_classifier``, which
    then initialises the classifier.

    Example::

        heads = {"projection": HeadSpec("projection", 128)}
        model = Classifier(SmallCNN(), n_classes=10, heads=heads)
        model(images).heads["projection"]      # (M, 128), unit vectors

    Args:
        backbone: images (M, 3, H, W) to features (M, D), with D as its ``num_features`` (or
            timm's ``head_hidden_size``, where there are layers between maps and classifier).
        n_classes: C.
        heads: further outputs computed from the features, by name.
    """

    def __init__(
        self, backbone: nn.Module, n_classes: int, heads: Mapping[str, HeadSpec] | None = None
    ) -> None:
        super().__init__()
        if n_classes < 2:
            raise ValueError(f"n_classes must be at least 2; got {n_classes}.")
        self.n_features = _feature_width(backbone)
        self.input_dims = int(getattr(backbone, "input_dims", 4))
        self.n_classes = n_classes
        self.backbone = backbone
        self.classifier = nn.Linear(self.n_features, n_classes)
        if callable(init := getattr(backbone, "init_classifier", None)):
            init(self.classifier)
        self.heads = nn.ModuleDict()
        for name, spec in (heads or {}).items():
            if spec.kind not in HEADS:
                raise ValueError(
                    f"the kind of head {name!r} must be one of {', '.join(HEADS)}; got "
                    f"{spec.kind!r}."
                )
            width = n_classes if spec.kind == "neural_process" else spec.width
            if width < 1:
                raise ValueError(
                    f"the width of head {name!r} must be at least 1; got {spec.width}."
                )
            self.heads[name] = HEADS[spec.kind](self.n_features, width)

    def forward(self, images: Tensor) -> ModelOutput:
        """Map images (M, 3, H, W) to logits (M, C), features (M, D) and heads (M, width).

        Over an :class:`Adapter` the input is features (M, n_inputs) instead.
        """
        if images.ndim != self.input_dims:
            wanted = "(M, 3, H, W)" if self.input_dims == 4 else "(M, n_inputs)"
            raise ValueError(
                f"images must have shape {wanted}; got {tuple(images.shape)}. Stack single images "
                "into a batch."
            )
        features = self.backbone(images)
        if features.shape != (len(images), self.n_features):
            raise ValueError(
                f"the backbone must return features of shape {(len(images), self.n_features)}; "
                f"got {tuple(features.shape)}. Pool its maps or tokens, and set num_features to "
                "their width."
            )
        # The classifier first: the last bits of the features' gradient depend on the order.
        logits = self.classifier(features)
        heads = {name: head(features) for name, head in self.heads.items()}
        return ModelOutput(logits, features, heads)

    def layer_ids(self) -> dict[str, int]:
        """Return the depth of every parameter: 0 the stem, then blocks, last classifier and heads.

        Depths come from the backbone's ``layer_ids`` or timm's ``group_matcher``; a backbone with
        neither is one layer. With layer-wise decay a layer has the learning rate
        base * decay^(last id - id).
        """
        backbone = self.backbone
        if callable(own := getattr(backbone, "layer_ids", None)):
            inner = dict(own())
        elif callable(matcher := getattr(backbone, "group_matcher", None)):
            from timm.models import group_parameters

            inner = dict(group_parameters(backbone, matcher(coarse=False), reverse=True))
        else:
            inner = {name: 0 for name, _ in backbone.named_parameters()}
        top = max(inner.values(), default=-1) + 1
        ids = {f"backbone.{name}": layer for name, layer in inner.items()}
        return {name: ids.get(name, top) for name, _ in self.named_parameters()}

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters without weight decay.

        These are vectors, scalars, position embeddings, class tokens and those that the backbone
        lists in its own ``no_weight_decay``.
        """
        listed: Callable[[], Iterable[str]] = getattr(self.backbone, "no_weight_decay", tuple)
        exempt = {f"backbone.{name}" for name in listed()}
        return {
            name
            for name, parameter in self.named_parameters()
            if parameter.ndim <= 1 or name in exempt or name.rpartition(".")[2] in NEVER_DECAYED
        }


def _feature_width(backbone: nn.Module) -> int:
    for attribute in ("head_hidden_size", "num_features"):
        if isinstance(width := getattr(backbone, attribute, None), int):
            return width
    raise TypeError(
        "a backbone must have num_features, the width of its output; "
        f"{type(backbone).__name__} has none. Set it in its __init__."
    )


class Adapter(nn.Module):
    """h = relu(W norm(f) + b), where norm(f) has mean 0 and variance 1 over the features of a row.

    Args:
        n_inputs: width of the frozen network's features f.
        width: of h.
    """

    input_dims = 2  # its input is a batch of features, not of images

    def __init__(self, n_inputs: int, width: int = 256) -> None:
        super().__init__()
        if n_inputs < 2 or width < 1:
            raise ValueError(
                f"n_inputs must be at least 2 and width at least 1; got {n_inputs} and {width}."
            )
        self.num_features = width
        self.norm = nn.LayerNorm(n_inputs, elementwise_affine=False)
        self.hidden = nn.Linear(n_inputs, width)

    def forward(self, features: Tensor) -> Tensor:
        """Map features (M, n_inputs) to (M, width)."""
        hidden: Tensor = F.relu(self.hidden(self.norm(features)))
        return hidden


class OnFrozen(nn.Module):
    """A classifier trained on features, on top of the network that computes them from images.

    Args:
        frozen: images (M, 3, H, W) to features (M, n_inputs).
        classifier: a :class:`Classifier` over an :class:`Adapter`.
    """

    def __init__(self, frozen: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.frozen = frozen
        self.classifier = classifier

    def forward(self, images: Tensor) -> ModelOutput:
        """Return the classifier's output for the images' features."""
        output: ModelOutput = self.classifier(self.frozen(images))
        return output


# Networks by name --------------------------------------------------------------------------------


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
                raise SettingsError(
                    f"{field} must be at least 1; got {value}. None takes the model's own."
                )
        if self.drop_path is not None and not 0 <= self.drop_path < 1:
            raise SettingsError(
                f"drop_path must lie in [0, 1); got {self.drop_path}. None takes the model's own."
            )
        if self.pretrained == "":
            raise SettingsError(
                "pretrained must be 'timm', 'embedded' or a file; got ''. None starts from random "
                "weights."
            )


def build_model(
    config: ModelConfig, n_classes: int, heads: Mapping[str, HeadSpec] | None = None
) -> Classifier:
    """Return the network of a config, with a new classifier for C classes and new heads.

    Tensors of a weight file that are not used are logged as a warning; missing ones are an error.
    """
    options: dict[str, Any] = {
        key: value
        for key in ("image_size", "patch_size", "drop_path")
        if (value := getattr(config, key)) is not None
    }
    weights: str | Mapping[str, object] | None = config.pretrained
    if config.name not in MODELS:
        on_disk = hub_file(config.name) if config.pretrained == HUB else None
        download = config.pretrained == HUB and on_disk is None
        backbone = build_timm(config.name, **options, pretrained=download, others=MODELS)
        if on_disk is not None:
            _log_loaded(_load_cached(backbone, on_disk), str(on_disk))
        elif config.pretrained not in (None, HUB, EMBEDDED):
            report = load_timm_file(backbone, find_weights(config.pretrained))
            _log_loaded(report, config.pretrained)
        weights = None
    elif options and config.name not in VITS:
        settings = ", ".join(f"{key} {value}" for key, value in options.items())
        raise ValueError(
            f"{config.name} takes images of any size and has none of these settings; got "
            f"{settings}. Leave it None."
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
        _log_loaded(load_weights(backbone, weights), config.pretrained)
    return Classifier(backbone, n_classes, heads)


def _load_cached(backbone: nn.Module, file: Path) -> LoadReport:
    try:
        return load_timm_file(backbone, file)
    except ValueError as error:
        raise ValueError(
            f"{error} It is in a cache of timm's hub: delete it, and it will be downloaded again."
        ) from error


def _log_loaded(report: LoadReport, source: str | None) -> None:
    log = logging.getLogger(__name__)
    resized = ", ".join(report.resized) or "none"
    log.info("%s: %d tensors loaded, resized: %s", source, len(report.loaded), resized)
    if report.unexpected:
        unused = ", ".join(report.unexpected)
        log.warning("%s: not used, since the backbone has no such part: %s", source, unused)
