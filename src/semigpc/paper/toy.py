"""The paper's toy problems: points in the plane, three classifiers, and the numbers of the images.

Figure 1 has three situations, each with one number. Labels that disagree in one place: how
confident is a classifier there? A minority surrounded by a majority: how probable is the minority's
class at its own centre? An outlier: how confident is a classifier far from all points?

The outlier belongs to the problem of four classes at the corners of a square, whose counts double
clockwise from the top right: 16, 32, 64, 128. If only an eighth of its labels is given, which
labels do the other points get?

Nothing here draws or prints: ``semigpc.paper.plots`` draws, ``semigpc toy`` prints.
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
DISPUTED = (-1.8, 0.0)  # centre of the points that have a label of both classes
DISPUTED_STD = 0.1
N_DISPUTED = 4
NEIGHBOURS = 128  # points of the first class beside the disputed ones
OTHERS = 64  # points of the second class on the far side
SURROUNDED = 8  # points of the minority
SURROUNDED_STD = 0.2  # of the minority, and of the ring's width
RING = 128  # points of the majority in a ring around the minority
RADIUS = 1.5  # of the ring
NOISE_STD = 0.1**0.5
LOGIT_SCALE = 6.0
LENGTH_SCALES = (0.35, 0.5, 1.0)
THRESHOLD = 0.8
ONE_LABELED_IN = 8
N_DRAWS = 10  # for averages: one draw has only 14 unlabelled points of the smallest class

Classifier = Callable[[Tensor], Tensor]  # points (M, 2) to class probabilities (M, C)


@dataclass(frozen=True, eq=False)
class ToyData:
    """One draw of the N points."""

    points: Tensor  # (N, 2)
    labels: Tensor  # (N,)
    labeled: Tensor  # (N,) bool: the labels that are given when the others are hidden


@dataclass(frozen=True, kw_only=True, eq=False)
class Situation:
    """Points whose labels are all given, and the place that a situation of Figure 1 is about."""

    data: ToyData
    place: tuple[float, float]
    own_class: int | None = None  # that should be found there; None where none should be
    window: tuple[float, float, float, float]  # left, right, bottom, top of what is drawn

    def probability(self, predict: Classifier) -> float:
        """Return the probability of ``own_class`` at the place, or the largest if it is None."""
        probs = predict(torch.tensor([self.place], dtype=torch.float64))[0]
        return float(probs.max() if self.own_class is None else probs[self.own_class])


@dataclass(frozen=True)
class Confidence:
    """Probabilities by a classifier trained on all labels, in each situation and at the centres."""

    classifier: str
    length_scale: float
    disagreement: float  # max_c p_c where half of the labels contradict the other half; 0.5 is fair
    minority: float  # of the minority's class at its own centre; 1 is right
    outlier: float  # max_c p_c far from all points; 0.25 is "no idea"
    centres: tuple[float, ...]  # (C,) of each of the four classes at its own centre; 1 is right


@dataclass(frozen=True)
class Propagation:
    """How labels spread to the U points without one, as fractions of 1. The minority is class 0."""

    classifier: str
    length_scale: float
    accuracy: float  # of the U points, those given their own class
    minority_accuracy: float
    coverage: float  # of the U points, those with confidence >= THRESHOLD
    minority_coverage: float
    covered_precision: float  # of the covered points, those given their own class; 1 if none


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
    """A classifier over a grid of H x W points."""

    x: Tensor  # (W,)
    y: Tensor  # (H,)
    probs: Tensor  # (H, W, C): probs[i, j] belongs to x[j] and y[i]


def draw(seed: int) -> ToyData:
    """Sample ``COUNTS[c]`` points x ~ N(centre_c, STD^2 I) of each class c.

    The first eighth of each class is labelled: points of a class are drawn alike, so the first are
    as good as any others.
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


def situations(seed: int) -> dict[str, Situation]:
    """Return the three situations of Figure 1 by the name of their number in :class:`Confidence`.

    disagreement: ``N_DISPUTED`` points are in the data twice, with a label of either class, and a
    cluster of the first class lies beside them. minority: a few points inside a ring of the other
    class. outlier: the four classes of :func:`draw`.
    """
    generator = torch.Generator().manual_seed(seed)

    def cluster(count: int, centre: tuple[float, float], std: float) -> Tensor:
        noise = torch.randn(count, 2, generator=generator, dtype=torch.float64)
        return torch.tensor(centre, dtype=torch.float64) + std * noise

    def two_classes(first: Tensor, second: Tensor) -> ToyData:
        labels = torch.repeat_interleave(torch.tensor([len(first), len(second)]))
        labeled = torch.ones(len(labels), dtype=torch.bool)
        return ToyData(torch.cat([first, second]), labels, labeled)

    disputed = cluster(N_DISPUTED, DISPUTED, DISPUTED_STD)
    beside = cluster(NEIGHBOURS, (0.0, 0.0), STD)
    opposite = cluster(OTHERS, (2.0, 0.0), STD)
    directions = torch.nn.functional.normalize(cluster(RING, (0.0, 0.0), 1.0))
    widths = torch.randn(RING, 1, generator=generator, dtype=torch.float64)
    ring = directions * (RADIUS + SURROUNDED_STD * widths)
    return {
        "disagreement": Situation(
            data=two_classes(torch.cat([disputed, beside]), torch.cat([disputed, opposite])),
            place=DISPUTED,
            window=(-4.0, 4.0, -3.0, 3.0),
        ),
        "minority": Situation(
            data=two_classes(cluster(SURROUNDED, (0.0, 0.0), SURROUNDED_STD), ring),
            place=(0.0, 0.0),
            own_class=0,
            window=(-4.0, 4.0, -3.0, 3.0),
        ),
        "outlier": Situation(data=draw(seed), place=OUTLIER, window=(-4.4, 4.4, -2.6, 4.0)),
    }


def linear(points: Tensor, labels: Tensor, _length_scale: float) -> Classifier:
    """Fit p = softmax(W x + b) to points (N, 2) and labels (N,), as scikit-learn does by default.

    It has no length-scale, and takes one only to be called like the others.
    """
    model = LogisticRegression().fit(points.numpy(), labels.numpy())
    return lambda queries: torch.from_numpy(model.predict_proba(queries.numpy()))


def similarity(points: Tensor, labels: Tensor, length_scale: float) -> Classifier:
    """Average the labels (N,) of points (N, 2) by likeness, as SimMatch and CoMatch do.

        p_c(x) = sum_i k_i y_ic / sum_i k_i        k_i = exp(-|x - x_i|^2 / (2 l^2))

    Far away every k_i underflows and the quotient would be 0/0. But k_i / sum_j k_j is the softmax
    of log k_i, and that is exact at any distance.
    """
    y = one_hot(labels).to(points.dtype)
    return lambda queries: (
        (squared_distances(queries, points) * (-0.5 / length_scale**2)).softmax(dim=-1) @ y
    )


def gaussian_process(points: Tensor, labels: Tensor, length_scale: float) -> Classifier:
    """Put points (N, 2) and labels (N,) into the buffer of SemiGPC (section 3 of the paper).

        p(x) = softmax(lambda mu(x))        mu(x) = k(x, h_Q) K^-1 y_Q

    Far away mu is 0 for every class, so p is uniform: an outlier has no likely class.
    """
    y = one_hot(labels).to(points.dtype)  # (N, C)
    engine = ExactGP(
        len(points), 2, y.shape[1], kernel=RBF(length_scale=length_scale), noise_std=NOISE_STD
    )
    engine.replace(torch.arange(len(points)), points, y)
    return lambda queries: (LOGIT_SCALE * engine.mean(queries)).softmax(dim=-1)


CLASSIFIERS = {"linear": linear, "similarity": similarity, "gp": gaussian_process}
PROPAGATORS = ("similarity", "gp")


def propagate(data: ToyData, *, classifier: str, length_scale: float) -> Tensor:
    """Class probabilities (N, C) at every point, from the given labels alone."""
    known = data.labeled
    predict = CLASSIFIERS[classifier](data.points[known], data.labels[known], length_scale)
    return predict(data.points)


def confidence_map(
    predict: Classifier, window: tuple[float, float, float, float], *, width: int = 320
) -> ConfidenceMap:
    """Evaluate a classifier on a grid of W = ``width`` columns, equally dense upwards. O(W H N).

    One row is evaluated at a time, which bounds the memory.
    """
    left, right, bottom, top = window
    height = 1 + round((width - 1) * (top - bottom) / (right - left))
    x = torch.linspace(left, right, width, dtype=torch.float64)
    y = torch.linspace(bottom, top, height, dtype=torch.float64)
    probs = torch.stack([predict(torch.stack([x, row.expand(width)], dim=1)) for row in y])
    return ConfidenceMap(x=x, y=y, probs=probs)


def toy_figures(seed: int = 0) -> ToyFigures:
    """Every number of the toy problem for one seed, in well under a second."""
    seeds = tuple(range(seed, seed + N_DRAWS))
    draws = [propagation_figures(draw(each)) for each in seeds]
    return ToyFigures(
        seed=seed,
        confidence=confidence_figures(seed),
        propagation=draws[0],
        propagation_mean=tuple(_mean(entries) for entries in zip(*draws, strict=True)),
        seeds_averaged=seeds,
    )


def confidence_figures(seed: int) -> tuple[Confidence, ...]:
    """Return the numbers of Figure 1 and of the centres, by length-scale and classifier."""
    places = situations(seed)
    centres = torch.tensor(CENTRES, dtype=torch.float64)
    entries = []
    for length_scale, name in product(LENGTH_SCALES, CLASSIFIERS):
        trained = {
            key: CLASSIFIERS[name](one.data.points, one.data.labels, length_scale)
            for key, one in places.items()
        }
        numbers = {key: one.probability(trained[key]) for key, one in places.items()}
        own_class = tuple(trained["outlier"](centres).diagonal().tolist())
        entries.append(Confidence(name, length_scale, **numbers, centres=own_class))
    return tuple(entries)


def propagation_figures(data: ToyData) -> tuple[Propagation, ...]:
    """How well the hidden labels are found, for each length-scale, by similarity and by the GP."""
    truth = data.labels[~data.labeled]  # (U,)
    minority = truth == 0
    entries = []
    for length_scale, classifier in product(LENGTH_SCALES, PROPAGATORS):
        probs = propagate(data, classifier=classifier, length_scale=length_scale)  # (N, C)
        confidence, predicted = probs[~data.labeled].max(dim=1)
        right = predicted == truth
        covered = confidence >= THRESHOLD
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
