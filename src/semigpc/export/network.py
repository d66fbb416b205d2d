"""What is exported: images in, probabilities out, and nothing of training in between."""

import torch
from torch import Tensor, nn

from semigpc.data import AugmentConfig
from semigpc.gp import KernelHead
from semigpc.models import Classifier, OnFrozen
from semigpc.training.state import Answering
from semigpc.types import ModelOutput

INPUT = "images"
HEADLINE = "probabilities"


class ExportedNetwork(nn.Module):
    """p(x) = softmax(z(x)) for each head, with x / std - mean / std inside, so that images come as they are: RGB in [0, 1].

    Answers with a dictionary of (M, C) float32. ``probabilities`` are those of the headline head; if there are two heads, each
    is also there under its own name, ``linear_probabilities`` and ``gp_probabilities``.

    Args:
        network: a classifier, alone or with an add-on that answers for it, or one of these on a frozen network.
        gp: the GP's head, if it is to be inside. gp_feature: what it is asked with, ``backbone`` or ``projection``.
        augment: says how images are normalised.
        heads: ``linear``, ``gp`` or both; the headline one first.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        network: Classifier | Answering | OnFrozen,
        gp: KernelHead | None,
        *,
        gp_feature: str,
        augment: AugmentConfig,
        heads: tuple[str, ...],
    ) -> None:
        super().__init__()
        frozen, classifier = ([network.frozen], network.classifier) if isinstance(network, OnFrozen) else ([], network)
        self.answering = classifier if isinstance(classifier, Answering) else None
        classifier = classifier.network if isinstance(classifier, Answering) else classifier
        assert isinstance(classifier, Classifier)
        self.backbone = nn.Sequential(*frozen, classifier.backbone)
        self.linear = classifier.classifier if "linear" in heads else None
        self.projection = classifier.heads["projection"] if gp is not None and gp_feature == "projection" else None
        self.gp, self.heads = gp, heads
        mean, std = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (augment.mean, augment.std))
        self.register_buffer("scale", (1 / std).float())
        self.register_buffer("shift", (-mean / std).float())

    @property
    def outputs(self) -> dict[str, str]:
        """Which head each output comes from, in the order of the outputs."""
        named = {f"{head}_probabilities": head for head in self.heads}
        return {HEADLINE: self.heads[0]} | (named if len(self.heads) > 1 else {})

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Images (M, 3, s, s) float32, RGB in [0, 1], to probabilities (M, C)."""
        features = self.backbone(images * self.scale + self.shift)
        probs: dict[str, Tensor] = {}
        if self.linear is not None:
            probs["linear"] = torch.softmax(self._logits(features), dim=1)
        if self.gp is not None:
            asked = features if self.projection is None else self.projection(features)
            probs["gp"] = torch.softmax(self.gp(asked), dim=1).float()
        return {name: probs[head] for name, head in self.outputs.items()}

    def _logits(self, features: Tensor) -> Tensor:
        """Of the linear head (M, C), or of what answers in its place."""
        assert self.linear is not None
        logits: Tensor = self.linear(features)
        if self.answering is None:
            return logits
        classifier = self.answering.network
        heads = {name: head(features) for name, head in classifier.heads.items()}  # type: ignore[union-attr,operator]
        return self.answering.replaced(ModelOutput(logits, features, heads)).logits


def bare(network: nn.Module) -> Classifier | Answering | OnFrozen:
    """The network of a run without what training wrapped around it, on the CPU: float32, even if it trained with less.

    Weights of convolutions are laid out plainly: torch.export has trouble to save those that are kept channels last.
    """
    if isinstance(network, OnFrozen):
        unwrapped: Classifier | Answering | OnFrozen = OnFrozen(network.frozen, bare(network.classifier))
    elif isinstance(network, Answering):
        unwrapped = Answering(bare(network.network), network.own, network.addon)
    else:
        inner = network if isinstance(network, Classifier) else network.module
        assert isinstance(inner, Classifier)
        unwrapped = inner
    return unwrapped.to("cpu", memory_format=torch.contiguous_format).eval().requires_grad_(False)  # type: ignore[call-overload,no-any-return]
