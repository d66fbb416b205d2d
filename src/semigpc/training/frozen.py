"""Frozen-backbone mode: features of all views are computed once, and an adapter with the heads trains on them in seconds."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semigpc.data import AugmentConfig, CachedFeatures, CacheKey, FeatureCache, Splits, cache_root, weights_hash
from semigpc.models import ModelConfig, build_model
from semigpc.threads import granted, using
from semigpc.training.settings import settings_of

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class FrozenConfig:
    """The network of ``model`` keeps its weights; what trains is h = relu(W norm(f) + b) on its features f, and the heads on h.

    Args:
        views: V, weak and strong views of each image to compute. More cost time once, and 2 (2 V + 1) D bytes an image.
        width: of h.
    """

    views: int = 3
    width: int = 256

    def __post_init__(self) -> None:
        if self.views < 1 or self.width < 1:
            raise ValueError(f"views and width must be at least 1; got {self.views} and {self.width}.")


def frozen_backbone(model: ModelConfig, device: torch.device) -> nn.Module:
    """The network below, in evaluation mode and without gradients."""
    with settings_of("model"), torch.random.fork_rng():  # what trains on top must not depend on how many numbers this one drew
        torch.manual_seed(0)  # so that a network without pretrained weights is the same one every time
        backbone: nn.Module = build_model(model, 2).backbone
    return backbone.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def cached_features(
    frozen: FrozenConfig,
    model: ModelConfig,
    augment: AugmentConfig,
    splits: Splits,
    *,
    device: torch.device,
    workers: int = 1,
    progress: Progress | None = None,
) -> CachedFeatures:
    """Features of these splits: from the cache as far as they are there, the rest computed and added to it.

    On two CPU cores EfficientNet-Lite0 takes some ten minutes for 12 000 images of 96 px with V = 3.
    """
    backbone = frozen_backbone(model, device)

    @torch.inference_mode()
    def embed(images: Tensor) -> Tensor:
        features: Tensor = backbone(images.to(device, memory_format=torch.channels_last))
        return features.cpu()

    size = augment.image_size
    width = embed(torch.zeros(1, 3, size, size)).shape[1]
    key = CacheKey(
        network=model.name, weights=weights_hash(backbone.state_dict()), augment=augment, views=frozen.views, width=width
    )
    with using(granted()):
        return FeatureCache(key, cache_root()).features(splits, embed, workers=workers, progress=progress)
