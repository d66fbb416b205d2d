"""Screening: can unlabelled images that belong to no class be told from the others?"""

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from semigpc.data import Splits, ViewSource
from semigpc.refiners import GaussianProcessRefiner
from semigpc.refiners.engines import Confidence
from semigpc.training.evaluate import gp_of, refilled
from semigpc.training.experiment import Experiment
from semigpc.training.state import Trainer
from semigpc.types import ModelOutput

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
