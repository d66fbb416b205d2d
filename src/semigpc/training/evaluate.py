"""Evaluation: the network's heads on a labelled set."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from semigpc.data import ImageSet, ViewSource, eval_loader
from semigpc.refiners import GaussianProcessRefiner, Refiner
from semigpc.training.metrics import classification_metrics
from semigpc.types import ModelOutput


class DivergedError(RuntimeError):
    """Losses or predictions are no numbers any more."""


class Predictions(NamedTuple):
    """Probabilities of M images by each head: ``probs["linear"]``, and ``probs["gp"]`` where there is one, (M, C)."""

    probs: dict[str, npt.NDArray[np.float64]]
    labels: npt.NDArray[np.int64]


@torch.no_grad()
def predict(
    network: nn.Module, gp: GaussianProcessRefiner | None, loader: Iterable[tuple[Tensor, Tensor, Tensor]], device: torch.device
) -> Predictions:
    """Every image through the network in evaluation mode. A GP whose buffer is still empty is left out."""
    training = network.training
    network.eval()
    probs: dict[str, list[Tensor]] = {"linear": []}
    if gp is not None and len(gp.engine):
        probs["gp"] = []
    labels = []
    for images, targets, _ in loader:
        output: ModelOutput = network(images.to(device))
        probs["linear"].append(torch.softmax(output.logits.double(), dim=1).cpu())
        if gp is not None and "gp" in probs:
            probs["gp"].append(torch.softmax(gp.logits(output).double(), dim=1).cpu())
        labels.append(targets)
    network.train(training)
    found = {head: torch.cat(parts).numpy() for head, parts in probs.items()}
    if not all(np.isfinite(values).all() for values in found.values()):
        raise DivergedError("the network's predictions are no numbers any more. Start a new run with a lower train.lr.")
    return Predictions(found, torch.cat(labels).numpy())


@torch.no_grad()
def refilled(
    refiner: GaussianProcessRefiner,
    network: nn.Module,
    labeled: ImageSet,
    source: ViewSource,
    *,
    batch: int,
    device: torch.device,
) -> GaussianProcessRefiner:
    """A GP of the same kind over the labelled set as this network sees it now, without augmentation. O(n N^2)."""
    fresh, training = refiner.empty_copy(), network.training
    fill(fresh, network.eval(), labeled, source, batch=batch, device=device)
    network.train(training)
    return fresh


@torch.no_grad()
def fill(
    refiner: GaussianProcessRefiner,
    network: nn.Module,
    labeled: ImageSet,
    source: ViewSource,
    *,
    batch: int,
    device: torch.device,
) -> None:
    """One pass over the labels into the buffer, with the network in whatever mode it is."""
    for images, targets, positions in eval_loader(labeled, source, batch_size=batch, workers=0):
        features = refiner.placement.features(network(images.to(device)))
        refiner.write(features, targets.to(device), positions.to(device))


def gp_of(refiner: Refiner) -> GaussianProcessRefiner | None:
    """The refiner if it is a GP that can be evaluated as a head of its own."""
    return refiner if isinstance(refiner, GaussianProcessRefiner) else None


def evaluate(predictions: Predictions, groups: dict[str, list[int]]) -> dict[str, dict[str, Any]]:
    """The metrics of each head."""
    return {head: classification_metrics(probs, predictions.labels, groups) for head, probs in predictions.probs.items()}


def headline_head(refiner: Refiner) -> str:
    """Which head's figures stand in the tables: the linear one unless the GP is the classifier or was asked for."""
    gp = gp_of(refiner)
    return "gp" if gp is not None and (gp.config.eval_head == "gp" or gp.config.role == "classifier") else "linear"
