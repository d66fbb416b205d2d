"""What trains on top of a frozen network: one hidden layer, in place of a backbone."""

import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.types import ModelOutput


class Adapter(nn.Module):
    """h = relu(W norm(f) + b), with norm(f) the feature shifted and scaled to mean 0 and variance 1.

    Args:
        n_inputs: of the frozen network's features f.
        width: of h.
    """

    input_dims = 2  # a batch of features and not of images

    def __init__(self, n_inputs: int, width: int = 256) -> None:
        super().__init__()
        if n_inputs < 2 or width < 1:
            raise ValueError(f"n_inputs must be at least 2 and width at least 1; got {n_inputs} and {width}.")
        self.num_features = width
        self.norm = nn.LayerNorm(n_inputs, elementwise_affine=False)
        self.hidden = nn.Linear(n_inputs, width)

    def forward(self, features: Tensor) -> Tensor:
        """Features (M, n_inputs) to (M, width)."""
        hidden: Tensor = F.relu(self.hidden(self.norm(features)))
        return hidden


class OnFrozen(nn.Module):
    """A classifier that was trained on features, put on the network they come from: images in again.

    Args:
        frozen: images (M, 3, H, W) to features (M, n_inputs).
        classifier: a :class:`Classifier` over an :class:`Adapter`.
    """

    def __init__(self, frozen: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.frozen, self.classifier = frozen, classifier

    def forward(self, images: Tensor) -> ModelOutput:
        """What the classifier says of the images' features."""
        output: ModelOutput = self.classifier(self.frozen(images))
        return output
