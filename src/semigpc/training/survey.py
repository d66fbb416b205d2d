"""All training pictures at once, for add-ons that choose among them."""

import torch
from torch import Tensor, nn

from semigpc.addons import Survey
from semigpc.data import ImageSet, Splits, ViewSource, eval_loader
from semigpc.types import ModelOutput


@torch.no_grad()
def survey(network: nn.Module, splits: Splits, source: ViewSource, *, batch: int, device: torch.device) -> Survey:
    """What the network says of every labelled and unlabelled picture, in evaluation mode; O((n + u) (C + D)) memory."""
    training = network.training
    network.eval()
    labeled, y = _look(network, splits.labeled, source, batch, device)
    unlabeled, _ = _look(network, splits.unlabeled, source, batch, device)
    network.train(training)
    return Survey(labeled, y, unlabeled)


def _look(
    network: nn.Module, images: ImageSet, source: ViewSource, batch: int, device: torch.device
) -> tuple[ModelOutput, Tensor]:
    outputs: list[ModelOutput] = []
    for pictures, _, _ in eval_loader(images, source, batch_size=batch, workers=0):
        outputs.append(network(pictures.to(device)))
    heads = {name: torch.cat([output.heads[name] for output in outputs]) for name in outputs[0].heads}
    logits, features = (torch.cat([getattr(output, part) for output in outputs]) for part in ("logits", "features"))
    return ModelOutput(logits, features, heads), torch.from_numpy(images.labels).to(device)
