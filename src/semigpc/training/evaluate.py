"""Evaluation: heads on labelled images, screening of unlabelled ones, surveys of all images."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from semigpc.addons import Survey
from semigpc.data import EvaluationLoader, ImageSet, Splits
from semigpc.io.errors import DivergedError
from semigpc.refiners import GaussianProcessRefiner, Refiner
from semigpc.refiners.gp_config import Posterior
from semigpc.training.calibration import (
    accuracy_by_halves,
    calibrated,
    from_halves,
    from_labels,
    halved,
    predicted_by_halves,
)
from semigpc.training.experiment import Experiment
from semigpc.training.metrics import METRIC, Figures, Groups, Head, Part, classification_metrics
from semigpc.training.state import Trainer
from semigpc.types import ModelOutput

FILLING_STREAM = 31  # keeps the random numbers of filling a buffer apart from others of a seed
SAMPLE_STREAM = 23  # likewise, of drawing unlabelled images
LEAST_LEAD = 2.0  # standard errors by which a trained head must be ahead of a label head
SAMPLE_IMAGES = 2000  # for screening and calibration: a share is then known to about one point


class Predictions(NamedTuple):
    """Probabilities (M, C) by each head, labels (M,); there is always a linear head."""

    probs: dict[Head, npt.NDArray[np.float64]]
    labels: npt.NDArray[np.int64]

    def calibrated(self, temperatures: Mapping[Head, float]) -> "Predictions":
        """Return what the heads report with these temperatures: :func:`.calibration.calibrated`."""
        return self._replace(probs=calibrated(self.probs, temperatures))


class Evaluation(NamedTuple):
    """What was measured at a step: ``results`` has one entry for each part and head.

    ``head`` is the one that is judged and used, ``temperatures`` scale the confidence of each
    (:mod:`.calibration`). ``accuracy`` is that of the head that is judged, on validation images or
    else as two halves of the labels estimate it at the last step; None if neither is there.
    """

    results: list[Figures]
    head: Head
    temperatures: dict[Head, float]
    screening: Figures | None
    accuracy: float | None = None


def evaluate_run(
    experiment: Experiment,
    trainer: Trainer,
    splits: Splits,
    loader: EvaluationLoader,
    groups: Groups,
    *,
    last: bool,
    label_probs: Mapping[Part, npt.NDArray[np.float64]] | None = None,
) -> Evaluation:
    """Evaluate the network and its GP on validation and test images, and screening.

    A GP that is rebuilt for evaluation is refilled once, from the labelled images as the network
    sees them now. Confidence is calibrated on the validation images; without any, at the ``last``
    step, by two halves of the labels.

    Args:
        label_probs: probabilities (M, C) of these images by the label head, if there is one.
    """
    network = trainer.evaluated
    gp = trainer.gp
    if gp is not None and gp.config.rebuilt_for_evaluation:
        gp = refilled(gp, network, loader, splits.labeled)
    parts: dict[Part, ImageSet | None] = {"validation": splits.validation, "test": splits.test}
    predictions = {
        part: predict(network, gp, loader.batches(images))
        for part, images in parts.items()
        if images is not None
    }
    for part, probs in (label_probs or {}).items():
        predictions[part].probs["label"] = probs
    temperatures: dict[Head, float] = {}
    accuracies: dict[Head, float] = {}
    if "validation" in predictions:
        labelled = predictions["validation"]
        temperatures = from_labels(_trained_heads(labelled, gp), labelled.labels)
    elif last:
        temperatures, accuracies = _without_labels(experiment, splits, loader, network, gp)
    measured = {
        part: evaluate(raw.calibrated(temperatures), groups) for part, raw in predictions.items()
    }
    validation = {head: figures[METRIC] for head, figures in measured.get("validation", {}).items()}
    judged = judged_head(gp, validation, addon_answers=trainer.addon.answers)
    if label_probs is not None:
        raw = predictions.get("validation")
        judged = or_label_head(judged, gp, raw and raw.calibrated(temperatures))
    results = list(_results(measured, judged, temperatures))
    found = screening(experiment, splits, loader, network, gp)
    return Evaluation(results, judged, temperatures, found, (accuracies | validation).get(judged))


def _results(
    measured: Mapping[Part, Mapping[Head, Figures]],
    judged: Head,
    temperatures: Mapping[Head, float],
) -> Iterator[Figures]:
    """Yield the figures of each part and head, with what they are of."""
    for part, heads in measured.items():
        for head, figures in heads.items():
            about: Figures = {"part": part, "head": head, "judged": head == judged}
            yield {**about, "temperature": temperatures.get(head, 1.0), **figures}


def evaluate(predictions: Predictions, groups: Groups) -> dict[Head, Figures]:
    """Return the metrics of each head."""
    return {
        head: classification_metrics(probs, predictions.labels, groups)
        for head, probs in predictions.probs.items()
    }


def judged_head(
    gp: GaussianProcessRefiner | None,
    validation: Mapping[Head, float] | None = None,
    *,
    addon_answers: bool = False,
) -> Head:
    """Return the head by which a run is judged and which predicts; no test label is needed.

    It is the linear one without a GP or with an empty buffer, the GP with role ``classifier``, and
    otherwise that of ``eval_head``. ``auto``: the head with the better balanced accuracy on
    validation images; without any, or if both are equal, the GP, once its scales are tuned, unless
    an add-on such as CoSSL replaces the linear head by a classifier trained for balance. Of a run
    with a label head this is the best one that trains: see :func:`or_label_head`.

    Args:
        gp: as it is evaluated. validation: balanced accuracy of both heads, if known.
        addon_answers: whether the linear head's logits are an add-on's.
    """
    if gp is None or not len(gp.engine):
        return "linear"
    if gp.config.role == "classifier":
        return "gp"
    if gp.config.eval_head != "auto":
        return gp.config.eval_head
    if validation and validation["gp"] != validation["linear"]:
        return "gp" if validation["gp"] > validation["linear"] else "linear"
    return "gp" if gp.is_tuned and not addon_answers else "linear"


def or_label_head(
    trained: Head, gp: GaussianProcessRefiner | None, validation: Predictions | None = None
) -> Head:
    """Return the judged head of a run with a label head, from the best one that trains.

    It is the label head, unless ``eval_head`` names another, or validation images say that the
    trained one is better by more than chance: by LEAST_LEAD standard errors of :func:`lead`.

    Args:
        trained: as of :func:`judged_head`. gp: as it is evaluated.
        validation: what the heads report for validation images, if there are any.
    """
    if gp is not None and gp.config.eval_head != "auto":
        return trained
    if validation is None:
        return "label"
    difference, error = lead(validation, trained, "label")
    return trained if difference > LEAST_LEAD * error else "label"


def unevaluated_head(trainer: Trainer, *, has_label: bool) -> Head:
    """Return the head that a run without an evaluation so far stands for."""
    head = judged_head(trainer.gp, addon_answers=trainer.addon.answers)
    return or_label_head(head, trainer.gp) if has_label else head


def lead(predictions: Predictions, head: Head, other: Head) -> tuple[float, float]:
    """Return how much higher a head's balanced accuracy is than another's, and its standard error.

        d = sum_i w_i d_i        e^2 = sum_i w_i^2 (d_i - d)^2        w_i = 1 / (C n_c)

    d_i is 1 for an image that only the first head has right, -1 for one that only the other has,
    else 0; n_c are the images of its class, of C classes that occur. The difference is paired: what
    makes an image hard for both does not count. Where no d_i differs, e is 0.
    """
    labels = predictions.labels
    mine, theirs = (predictions.probs[each].argmax(axis=1) == labels for each in (head, other))
    _, of_class, counts = np.unique(labels, return_inverse=True, return_counts=True)
    weights = 1 / (len(counts) * counts[of_class])
    differences = mine.astype(np.float64) - theirs
    difference = float((weights * differences).sum())
    error = float(np.sqrt((np.square(weights) * np.square(differences - difference)).sum()))
    return difference, error


def _without_labels(
    experiment: Experiment,
    splits: Splits,
    loader: EvaluationLoader,
    network: nn.Module,
    gp: GaussianProcessRefiner | None,
) -> tuple[dict[Head, float], dict[Head, float]]:
    """Return temperature and accuracy of each head by two halves of the labels; none if impossible.

    At most 2000 unlabelled images are used. The halves work on cached features where the network
    trains on those, which do not depend on the labels, else on the network's own.
    """
    labels = splits.labeled.labels
    chosen = _sample(len(splits.unlabeled), experiment.seed)
    halves = halved(labels, splits.n_classes, experiment.seed)
    if halves is None or not len(chosen):
        return {}, {}
    frozen = experiment.frozen is not None
    unlabeled: list[Tensor] = []

    def keep(inputs: Tensor, output: ModelOutput) -> None:
        unlabeled.append(inputs if frozen else output.features)

    predictions = predict(network, gp, loader.batches(splits.unlabeled, chosen), keep)
    with _evaluating(network):
        batches = [inputs for inputs, _, _ in loader.batches(splits.labeled)]
        labeled = [inputs if frozen else network(inputs).features for inputs in batches]
    predicted = predicted_by_halves(
        torch.cat(labeled), labels, halves, torch.cat(unlabeled), splits.n_classes
    )
    probs = _trained_heads(predictions, gp)
    return (
        from_halves(probs, predicted, strict=not frozen),
        accuracy_by_halves(probs, predicted, strict=not frozen),
    )


def _trained_heads(
    predictions: Predictions, gp: GaussianProcessRefiner | None
) -> dict[Head, npt.NDArray[np.float64]]:
    """Return the heads to calibrate; with role ``classifier`` nothing trains the linear one.

    A label head is calibrated already, on labels that it left out.
    """
    probs = dict(predictions.probs)
    probs.pop("label", None)
    if "gp" in probs and gp is not None and gp.config.role == "classifier":
        del probs["linear"]
    return probs


def predict(
    network: nn.Module,
    gp: GaussianProcessRefiner | None,
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    on_output: Callable[[Tensor, ModelOutput], None] | None = None,
) -> Predictions:
    """Return the probabilities of every image, by the network in evaluation mode.

    A GP with an empty buffer is left out.

    Args:
        network: evaluated as it is. gp: on its features.
        batches: as of :class:`EvaluationLoader`; labels stay on the host.
        on_output: called with the inputs and outputs of each batch.
    """
    parts: dict[Head, list[Tensor]] = {"linear": []}
    if gp is not None and len(gp.engine):
        parts["gp"] = []
    labels = []
    with _evaluating(network):
        for images, targets, _ in batches:
            output: ModelOutput = network(images)
            if on_output is not None:
                on_output(images, output)
            parts["linear"].append(torch.softmax(output.logits.double(), dim=1).cpu())
            if gp is not None and "gp" in parts:
                parts["gp"].append(torch.softmax(gp.logits(output).double(), dim=1).cpu())
            labels.append(targets)
    probs: dict[Head, npt.NDArray[np.float64]] = {
        head: torch.cat(batches).numpy() for head, batches in parts.items()
    }
    if not all(np.isfinite(values).all() for values in probs.values()):
        raise DivergedError(
            "the network's predictions contain NaN or infinity. Start a new run with a lower "
            "train.lr."
        )
    return Predictions(probs, torch.cat(labels).numpy())


# Filling a GP -------------------------------------------------------------------------------------


def refilled(
    refiner: GaussianProcessRefiner, network: nn.Module, loader: EvaluationLoader, labeled: ImageSet
) -> GaussianProcessRefiner:
    """Return a GP of the same kind over the labelled set as the network sees it now. O(n N^2)."""
    fresh = refiner.empty_copy()
    with _evaluating(network):
        for images, targets, positions in loader.batches(labeled):
            fresh.store(network(images), targets.to(loader.device), positions)
    return fresh


def fill_rings(
    refiner: Refiner, network: nn.Module, loader: EvaluationLoader, labeled: ImageSet, seed: int
) -> None:
    """Fill all rings of a balanced buffer with weak views of the labelled images, class by class.

    As rows come with the labelled batches, the ring of a rare class fills slowly: on CIFAR-10-LT in
    setting A, at ratio 150, after 71 000 of 204 800 steps. Within a class whole random permutations
    follow each other. The network is in evaluation mode, which all N_Q images pass once.
    """
    rng = np.random.default_rng([seed, FILLING_STREAM])
    rounds = refiner.entries_per_class
    labels = labeled.labels
    members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    turns = [
        np.concatenate([rng.permutation(rows) for _ in range(-(-rounds // len(rows)))])[:rounds]
        for rows in members
    ]
    positions = np.stack(turns, axis=1).reshape(-1)
    bounds = range(loader.batch_size, len(positions), loader.batch_size)
    with _evaluating(network):
        for part in np.split(positions, bounds):
            images = loader.source.fetch(labeled, part)
            views = loader.source.cut("weak", images, rng).to(loader.device)
            output = network(loader.source.normalise(views))
            classes = torch.from_numpy(labels[part]).to(loader.device)
            refiner.store(output, classes, torch.from_numpy(part))


# All training images ------------------------------------------------------------------------------


def survey(network: nn.Module, splits: Splits, loader: EvaluationLoader) -> Survey:
    """Return the network's outputs for every training image, for add-ons that choose among them.

    The network is in evaluation mode. O((n + u) (C + D)) memory.
    """

    def outputs(image_set: ImageSet) -> ModelOutput:
        parts: list[ModelOutput] = [network(images) for images, _, _ in loader.batches(image_set)]
        heads = {name: torch.cat([part.heads[name] for part in parts]) for name in parts[0].heads}
        return ModelOutput(
            torch.cat([part.logits for part in parts]),
            torch.cat([part.features for part in parts]),
            heads,
        )

    with _evaluating(network):
        y = torch.from_numpy(splits.labeled.labels).to(loader.device)
        return Survey(outputs(splits.labeled), y, outputs(splits.unlabeled))


@torch.no_grad()
def screening(
    experiment: Experiment,
    splits: Splits,
    loader: EvaluationLoader,
    network: nn.Module,
    gp: GaussianProcessRefiner | None,
) -> Figures | None:
    """Return how well each confidence separates U_in from U_out; None if U_out is unknown.

    ``auroc_linear`` is that of the linear head's largest probability, ``auroc_max_softmax``,
    ``auroc_variance`` and ``auroc_expected`` those of the GP, unless its buffer is empty. At most
    2000 images are drawn by the run's seed, the same ones every time. O(M N^2) for M images.
    """
    if splits.unlabeled_out is None:
        return None
    chosen = _sample(len(splits.unlabeled), experiment.seed)
    outside = splits.unlabeled_out[chosen]
    if outside.all() or not outside.any():
        return None
    scores: dict[str, list[Tensor]] = {}
    with _evaluating(network):
        for images, _, _ in loader.batches(splits.unlabeled, chosen):
            output: ModelOutput = network(images)
            measured = {"linear": torch.softmax(output.logits.double(), dim=1).amax(dim=1)}
            if gp is not None and len(gp.engine):
                belief = gp.belief(output)
                measured |= {
                    kind: belief.confidence(kind, belief.logits.argmax(dim=1))
                    for kind in get_args(Posterior)
                }
            for name, values in measured.items():
                scores.setdefault(name, []).append(values.double().cpu())
    aurocs = in_class_auroc(
        {name: torch.cat(parts).numpy() for name, parts in scores.items()}, outside
    )
    found = {f"auroc_{name}": auroc for name, auroc in aurocs.items()}
    counts: Figures = {"n_in": int((~outside).sum()), "n_out": int(outside.sum())}
    return cast("Figures", counts | found)


def in_class_auroc(
    scores: Mapping[str, npt.NDArray[np.floating[Any]]], outside: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """Return for each score (M,) the chance that it is higher in U_in than in U_out; ties: half."""
    from sklearn.metrics import roc_auc_score  # takes a second to import, for few runs

    return {name: float(roc_auc_score(~outside, values)) for name, values in scores.items()}


def _sample(size: int, seed: int) -> npt.NDArray[np.int64]:
    """Return positions in ascending order: all of them, or 2000 drawn by the seed."""
    if size <= SAMPLE_IMAGES:
        return np.arange(size)
    rng = np.random.default_rng([seed, SAMPLE_STREAM])
    drawn: npt.NDArray[np.int64] = np.sort(rng.choice(size, SAMPLE_IMAGES, replace=False))
    return drawn


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Put the network into evaluation mode, without gradients, and back afterwards."""
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(training)
