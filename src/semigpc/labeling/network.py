"""A network that keeps its weights and turns images into embeddings."""

import torch
from torch import Tensor, nn

from semigpc.data import Augment, AugmentConfig, DataError, weights_hash
from semigpc.data.images import Pixels
from semigpc.models import MODELS, ModelConfig, build_model
from semigpc.models.backbones import EMBEDDED, NAME, VITS, input_statistics

SIZE = 224  # of networks that do not say what they were trained with
HUB, NO_WEIGHTS, AUTO = "timm", "none", "auto"


class Network:
    """Images to embeddings, without gradients, on a GPU if there is one.

    Args:
        name: any that timm knows, or one of ours.
        pretrained: "embedded", "timm" for timm's hub, a file, "none" for random weights (the same ones every time), or "auto":
            embedded where there are such weights and the hub otherwise.
        image_size: pixels a side; None takes what the network was trained with.

    Raises:
        DataError: there is no such network, or its weights do not fit.
    """

    def __init__(self, name: str, pretrained: str, image_size: int | None) -> None:
        own_size, fixed = _own_size(name)
        self.name, self.image_size = name, image_size or own_size
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if pretrained == AUTO:
            pretrained = EMBEDDED if name == NAME else HUB
        config = ModelConfig(
            name=name,
            image_size=self.image_size if fixed and self.image_size != own_size else None,
            pretrained=None if pretrained == NO_WEIGHTS else pretrained,
        )
        backbone = _built(config).eval().requires_grad_(False)
        self.weights = weights_hash(backbone.state_dict())
        self._backbone = backbone.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        mean, std = input_statistics(name)
        self._augment = Augment(AugmentConfig(image_size=self.image_size, style="resize", mean=mean, std=std))
        self.width = self._tried()

    @torch.inference_mode()
    def embed(self, pixels: Pixels) -> Tensor:
        """Images (M, s, s, 3) to float32 embeddings (M, D)."""
        images = self._augment.normalise(pixels).to(self.device, memory_format=torch.channels_last)
        features: Tensor = self._backbone(images)
        return features.float().cpu()

    def _tried(self) -> int:
        """D, of an answer to a black image."""
        size = self.image_size
        try:
            answer = self.embed(torch.zeros(1, size, size, 3, dtype=torch.uint8).numpy())
        except (RuntimeError, ValueError, AssertionError) as error:
            raise DataError(
                f"{self.name} cannot see images of {size} x {size} pixels: {error}. Give another image size."
            ) from error
        if answer.ndim != 2:
            raise DataError(
                f"{self.name} answers an image with numbers of shape {tuple(answer.shape[1:])} and not with one row. "
                "Choose a network that pools its features."
            )
        return answer.shape[1]


def _own_size(name: str) -> tuple[int, bool]:
    """Pixels a side that a network was trained with, and whether it must be built for another size."""
    import timm

    if name in VITS:
        return VITS[name].image_size, True
    known = None if name in MODELS or not timm.is_model(name.partition(".")[0]) else timm.get_pretrained_cfg(name)
    return (SIZE, False) if known is None else (int(known.input_size[-1]), bool(known.fixed_input_size))


def _built(config: ModelConfig) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # so that a network without weights is the same one every time
        try:
            backbone: nn.Module = build_model(config, 2).backbone
        except (ValueError, KeyError, OSError) as error:
            raise DataError(f"The network cannot be built: {error.args[0] if error.args else error}") from error
    return backbone
