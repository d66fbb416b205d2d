"""The paper's toy problem: four long-tailed classes in the plane, three classifiers, and the figures of the images.

The classes sit at the corners of a square, and their counts double clockwise from the top right: 16, 32, 64, 128. Two
questions are asked. Is a classifier sure where it should be, at the centre of even the smallest class, and unsure where
nothing has been seen, at an outlier? And if only an eighth of the labels is given, what does it make of the rest?

Nothing here draws or prints: ``semigpc.report.toy_figures`` draws, ``semigpc toy`` prints.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import product
from statistics import fmean

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import one_hot

from semigpc.gp import RBF, ExactGP
from semigpc.gp.kernels import squared_distances

CENTRES = ((1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (-1.0, 1.0))  # clockwise from the top right
COUNTS = (16, 32, 64, 128)
STD = 0.35
OUTLIER = (-3.0, 3.0)
NOISE_STD = 0.1**0.5
LOGIT_SCALE = 6.0
LENGTH_SCALES = (0.35, 0.5, 1.0)
THRESHOLD = 0.8
ONE_LABELED_IN = 8
N_DRAWS = 10  # averages are over so many draws: one alone has just 14 unlabelled points of the smallest class

Classifier = Callable[[Tensor], Tensor]  # points (M, 2) to class probabilities (M, C)


@dataclass(frozen=True, eq=False)
class ToyData:
    """One draw of the N points."""

    points: Tensor  # (N, 2)
    labels: Tensor  # (N,)
    labeled: Tensor  # (N,) bool: the labels that are given when the others are hidden


@dataclass(frozen=True)
class Confidence:
    """What a classifier trained on all labels says at the centres and far from every point."""

    classifier: str
    length_scale: float
    centre_confidence: tuple[float, ...]  # (C,) max_c p_c at each centre
    centre_own_class: tuple[float, ...]  # (C,) what each centre's own class gets there
    outlier_confidence: float  # max_c p_c at OUTLIER


@dataclass(frozen=True)
class Propagation:
    """How labels spread to the U points without one, as fractions of 1. The minority is class 0."""

    classifier: str
    length_scale: float
    accuracy: float  # of the U points, those given their own class
    minority_accuracy: float
    coverage: float  # of the U points, those with confidence >= THRESHOLD
    minority_coverage: float
    covered_precision: float  # of the covered points, those given their own class; 1 if there are none


@dataclass(frozen=True, kw_only=True)
class ToyFigures:
    """All numbers of one seed; ``dataclasses.asdict`` turns them into what JSON can hold."""

    seed: int
    confidence: tuple[Confidence, ...]  # for each length-scale, each of the three classifiers
    propagation: tuple[Propagation, ...]  # for each length-scale, similarity and the GP
    propagation_mean: tuple[Propagation, ...]  # the same, averaged over ...
    seeds_averaged: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class ConfidenceMap:
    """A classifier over a square grid of G x G points."""

    axis: Tensor  # (G,)
    probs: Tensor  # (G, G, C): probs[i, j] belongs to x = axis[j], y = axis[i]
    outlier_confidence: float


def draw(seed: int) -> ToyData:
    """Sample ``COUNTS[c]`` points x ~ N(centre_c, STD^2 I) of each class c, from a generator of its own.

    The first eighth of each class is the labelled part: points of a class are drawn alike, so the first are as good as
    any others.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(COUNTS)), torch.tensor(COUNTS))
    noise = torch.randn(len(labels), 2, generator=generator, dtype=torch.float64)
    place_in_class = torch.cat([torch.arange(count) for count in COUNTS])
    return ToyData(
        points=torch.tensor(CENTRES, dtype=torch.float64)[labels] + STD * noise,
        labels=labels,
        labeled=place_in_class < torch.tensor(COUNTS)[labels] // ONE_LABELED_IN,
    )


def linear(points: Tensor, labels: Tensor, _length_scale: float) -> Classifier:
    """Fit p = softmax(W x + b) to points (N, 2) and labels (N,), with scikit-learn's default regularisation.

    It has no length-scale, and takes one only to be called like the others.
    """
    model = LogisticRegression().fit(points.numpy(), labels.numpy())
    return lambda queries: torch.from_numpy(model.predict_proba(queries.numpy()))


def similarity(points: Tensor, labels: Tensor, length_scale: float) -> Classifier:
    """Average the labels (N,) of points (N, 2) by likeness, as SimMatch and CoMatch do.

        p_c(x) = sum_i k_i y_ic / sum_i k_i        k_i = exp(-|x - x_i|^2 / (2 l^2))

    Far away every k_i underflows and the quotient would be 0/0. But k_i / sum_j k_j is the softmax of log k_i, and that
    is exact at any distance.
    """
    y = one_hot(labels, len(COUNTS)).to(points.dtype)
    return lambda queries: (squared_distances(queries, points) * (-0.5 / length_scale**2)).softmax(dim=-1) @ y


def gaussian_process(points: Tensor, labels: Tensor, length_scale: float) -> Classifier:
    """Put points (N, 2) and labels (N,) into the buffer of SemiGPC (section 3 of the paper).

        p(x) = softmax(lambda mu(x))        mu(x) = k(x, h_Q) K^-1 y_Q

    Far away mu is 0 for every class, so p is uniform: the answer to an outlier is "no idea".
    """
    kernel = RBF(length_scale=length_scale)
    engine = ExactGP(len(points), 2, len(COUNTS), kernel=kernel, noise_std=NOISE_STD)
    engine.replace(torch.arange(len(points)), points, one_hot(labels, len(COUNTS)).to(points.dtype))
    return lambda queries: (LOGIT_SCALE * engine.mean(queries)).softmax(dim=-1)


CLASSIFIERS = {"linear": linear, "similarity": similarity, "gp": gaussian_process}
PROPAGATORS = ("similarity", "gp")


def propagate(data: ToyData, *, classifier: str, length_scale: float) -> Tensor:
    """Class probabilities (N, C) at every point, from the given labels alone."""
    known = data.labeled
    return CLASSIFIERS[classifier](data.points[known], data.labels[known], length_scale)(data.points)


def confidence_map(
    predict: Classifier, *, resolution: int = 300, half_width: float = 4.0, on_row: Callable[[], None] = lambda: None
) -> ConfidenceMap:
    """Evaluate a classifier on G = ``resolution`` points a side over [-half_width, half_width]^2. O(G^2 N).

    A row is evaluated at a time, which bounds the memory; ``on_row`` is called after each, for a progress bar.
    """
    axis = torch.linspace(-half_width, half_width, resolution, dtype=torch.float64)
    rows = []
    for y in axis:
        rows.append(predict(torch.stack([axis, y.expand(resolution)], dim=1)))
        on_row()
    outlier = float(predict(torch.tensor([OUTLIER], dtype=torch.float64)).max())
    return ConfidenceMap(axis=axis, probs=torch.stack(rows), outlier_confidence=outlier)


def toy_figures(seed: int = 0) -> ToyFigures:
    """Every number of the toy problem for one seed, in well under a second."""
    seeds = tuple(range(seed, seed + N_DRAWS))
    draws = [propagation_figures(draw(each)) for each in seeds]
    return ToyFigures(
        seed=seed,
        confidence=confidence_figures(draw(seed)),
        propagation=draws[0],
        propagation_mean=tuple(_mean(entries) for entries in zip(*draws, strict=True)),
        seeds_averaged=seeds,
    )


def confidence_figures(data: ToyData) -> tuple[Confidence, ...]:
    """Confidence at the centres and at the outlier, for each length-scale and each classifier trained on all labels."""
    places = torch.tensor([*CENTRES, OUTLIER], dtype=torch.float64)
    entries = []
    for length_scale, classifier in product(LENGTH_SCALES, CLASSIFIERS):
        probs = CLASSIFIERS[classifier](data.points, data.labels, length_scale)(places)  # (C + 1, C)
        *centres, outlier = probs.amax(dim=1).tolist()
        own_class = tuple(probs.diagonal().tolist())
        entries.append(Confidence(classifier, length_scale, tuple(centres), own_class, outlier))
    return tuple(entries)


def propagation_figures(data: ToyData) -> tuple[Propagation, ...]:
    """How well the hidden labels are found, for each length-scale, by similarity and by the GP."""
    truth = data.labels[~data.labeled]  # (U,)
    minority = truth == 0
    entries = []
    for length_scale, classifier in product(LENGTH_SCALES, PROPAGATORS):
        probs = propagate(data, classifier=classifier, length_scale=length_scale)[~data.labeled]  # (U, C)
        confidence, predicted = probs.max(dim=1)
        right, covered = predicted == truth, confidence >= THRESHOLD
        entries.append(
            Propagation(
                classifier,
                length_scale,
                accuracy=_share(right),
                minority_accuracy=_share(right[minority]),
                coverage=_share(covered),
                minority_coverage=_share(covered[minority]),
                covered_precision=_share(right[covered]) if covered.any() else 1.0,
            )
        )
    return tuple(entries)


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())


def _mean(entries: Sequence[Propagation]) -> Propagation:
    """Average entries that share a classifier and a length-scale."""
    classifiers, length_scales, *figures = zip(*map(astuple, entries), strict=True)
    return Propagation(classifiers[0], length_scales[0], *map(fmean, figures))
