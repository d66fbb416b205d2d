"""Models: from images to logits, features and the outputs of extra heads."""

from semigpc.models.convnets import SmallCNN, WideResNet
from semigpc.models.heads import MODELS, Adapter, Classifier, ModelConfig, OnFrozen, build_model
from semigpc.models.pretrained import LoadReport, load_weights

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
