"""Evaluation: the network's heads on a labelled set."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from semigpc.addons import Survey
from semigpc.data import ImageSet, Splits, ViewSource, eval_loader
from semigpc.refiners import GaussianProcessRefiner, Refiner
from semigpc.refiners.engines import Confidence
from semigpc.training.experiment import Experiment
from semigpc.training.metrics import classification_metrics
from semigpc.training.state import Trainer, gp_of
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


def evaluate(predictions: Predictions, groups: dict[str, list[int]]) -> dict[str, dict[str, Any]]:
    """The metrics of each head."""
    return {head: classification_metrics(probs, predictions.labels, groups) for head, probs in predictions.probs.items()}


def headline_head(refiner: Refiner) -> str:
    """Which head's figures stand in the tables: the linear one unless the GP is the classifier or was asked for."""
    gp = gp_of(refiner)
    return "gp" if gp is not None and (gp.config.eval_head == "gp" or gp.config.role == "classifier") else "linear"


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


SAMPLE = 2000  # unlabelled images that are looked at
KINDS: tuple[Confidence, ...] = get_args(Confidence)


def screening(experiment: Experiment, splits: Splits, source: ViewSource, trainer: Trainer) -> dict[str, Any] | None:
    """How well each confidence tells U_in from U_out, on 2000 unlabelled images at most; None where nobody knows U_out.

    ``auroc_linear`` is that of the linear head's largest probability, ``auroc_max_softmax``, ``auroc_variance`` and
    ``auroc_expected`` those of the GP that is evaluated. The images are drawn by the run's seed, the same ones every time.
    """
    if splits.unlabeled_out is None:
        return None
    chosen = _sample(len(splits.unlabeled), experiment.seed)
    outside = splits.unlabeled_out[chosen]
    if outside.all() or not outside.any():
        return None
    config, gp, device = experiment.train, gp_of(trainer.refiner), trainer.fabric.device
    if gp is not None and gp.config.rebuilt_for_evaluation:
        gp = refilled(gp, trainer.evaluated, splits.labeled, source, batch=config.eval_batch, device=device)
    scores: dict[str, list[Tensor]] = {}
    for part in np.split(chosen, range(config.eval_batch, len(chosen), config.eval_batch)):
        images = source.plain(source.fetch(splits.unlabeled, part)).to(device)
        for name, values in confidences(trainer.evaluated, gp, images).items():
            scores.setdefault(name, []).append(values.double().cpu())
    found = in_class_auroc({name: torch.cat(parts).numpy() for name, parts in scores.items()}, outside)
    return {"n_in": int((~outside).sum()), "n_out": int(outside.sum())} | {f"auroc_{name}": one for name, one in found.items()}


@torch.no_grad()
def confidences(network: nn.Module, gp: GaussianProcessRefiner | None, images: Tensor) -> dict[str, Tensor]:
    """(M,) by each measure, the larger the more like an image of a known class. An empty GP is left out. O(M N^2)."""
    training = network.training
    output: ModelOutput = network.eval()(images)
    network.train(training)
    found = {"linear": torch.softmax(output.logits.double(), dim=1).amax(dim=1)}
    if gp is not None and len(gp.engine):
        belief = gp.belief(output)
        found |= {kind: belief.confidence(kind, belief.logits.argmax(dim=1)) for kind in KINDS}
    return found


def in_class_auroc(scores: Mapping[str, npt.NDArray[np.floating[Any]]], outside: npt.NDArray[np.bool_]) -> dict[str, float]:
    """The chance that an image of U_in has a higher score than one of U_out, half of it at a tie, of each score (M,)."""
    from sklearn.metrics import roc_auc_score  # a second to import, which runs without U_out need not wait for

    return {name: float(roc_auc_score(~outside, values)) for name, values in scores.items()}


def _sample(size: int, seed: int) -> npt.NDArray[np.int64]:
    """Positions, ascending: all of them, or 2000 drawn by the seed."""
    if size <= SAMPLE:
        return np.arange(size)
    drawn: npt.NDArray[np.int64] = np.sort(np.random.default_rng([seed, 23]).choice(size, SAMPLE, replace=False))
    return drawn
