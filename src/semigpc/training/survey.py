"""All training images at once, for add-ons that choose among them."""

import torch
from torch import Tensor, nn

from semigpc.addons import Survey
from semigpc.data import ImageSet, Splits, ViewSource, eval_loader
from semigpc.types import ModelOutput


@torch.no_grad()
def survey(network: nn.Module, splits: Splits, source: ViewSource, *, batch: int, device: torch.device) -> Survey:
    """What the network says of every labelled and unlabelled image, in evaluation mode; O((n + u) (C + D)) memory."""
    training = network.training
    network.eval()
    labeled, y = _look(network, splits.labeled, source, batch, device)
    unlabeled, _ = _look(network, splits.unlabeled, source, batch, device)
    network.train(training)
    return Survey(labeled, y, unlabeled)


def _look(
    network: nn.Module, image_set: ImageSet, source: ViewSource, batch: int, device: torch.device
) -> tuple[ModelOutput, Tensor]:
    outputs: list[ModelOutput] = []
    for images, _, _ in eval_loader(image_set, source, batch_size=batch, workers=0):
        outputs.append(network(images.to(device)))
    heads = {name: torch.cat([output.heads[name] for output in outputs]) for name in outputs[0].heads}
    logits, features = (torch.cat([getattr(output, part) for output in outputs]) for part in ("logits", "features"))
    return ModelOutput(logits, features, heads), torch.from_numpy(image_set.labels).to(device)
