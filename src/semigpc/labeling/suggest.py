"""Rows to label next: rows that the labels say little about, rare classes first, no two alike.

Every second row is sought for a class in need: one that gets no new labels, or that has few given
ones. These classes take turns, and such a row is worth v_i p_ic s_i, with c its first or second
class. The others are chosen by

    worth_i = v_i u_i r_i s_i
    u_i = 1 - max_c p_ic (1 - min(1, v_i / v_out))       r_i = sum_c p_ic (n_min / n_c)^rare

v is the posterior variance; from v_out on a row is an outlier, whose probabilities p are ignored
however high they are. n_c rows are predicted to be of class c. s is small for a row without a
neighbour: its label would say nothing about other rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyarrow import compute

from semigpc.estimator import SemiGPClassifier, Status
from semigpc.io.errors import DataError, SettingsError
from semigpc.io.tables import CHOSEN, YES
from semigpc.labeling.choose import codes_in_need as codes_in_need
from semigpc.labeling.project import Project, own_names, write_hand_table
from semigpc.labeling.source import Rows

FILE = "suggestions.csv"
# s = 1 / (1 + (r / 3)^8), with r the distance to the nearest row over the usual one.
ISOLATION_RATIO = 3.0
ISOLATION_POWER = 8
# From these values on a reason is named.
FAR_VARIANCE = 0.5  # v / v_out
TIE_RATIO = 0.5  # second over first probability
RARE_PROBABILITY = 0.1  # of a rare class

Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SuggestConfig:
    """How to choose.

    Args:
        count: rows to suggest.
        rare: exponent of the weight of rare classes; 0 treats all alike, 1 gives a class with a
            tenth of the rows ten times the weight.
        outliers: "exclude" leaves out rows of that status. They may be a class without any label.
        pool: rows to choose among; of more, those of the largest worth by themselves, a quarter of
            them for classes in need, and a quarter at random.
        seed: of that quarter.
    """

    count: int = 50
    rare: float = 0.5
    outliers: Literal["include", "exclude"] = "include"
    pool: int = 3000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or self.pool < self.count:
            raise SettingsError(
                f"count must be at least 1, and pool at least count; got {self.count} and "
                f"{self.pool}."
            )
        if not 0 <= self.rare <= 10:
            raise SettingsError(f"rare must lie in [0, 10]; got {self.rare}.")
        if self.outliers not in ("include", "exclude"):
            raise SettingsError(f"outliers must be 'include' or 'exclude'; got {self.outliers!r}.")


class Suggestion(NamedTuple):
    """A row to label.

    Attributes:
        row, id: which. believed, confidence: its most probable class, and that probability.
        variance: of the row. worth: of its label when it was chosen.
        for_class: the class that it is sought for; empty if for none.
        why: the reason, for people.
    """

    row: int
    id: str
    believed: str
    confidence: float
    variance: float
    worth: float
    for_class: str
    why: str


class _Rows(NamedTuple):
    """What labels.parquet holds of all N rows: classes as text, and numbers (N,)."""

    guesses: list[str]
    seconds: list[str]  # the most probable of the other classes
    confidence: Floats
    variance: Floats

    @classmethod
    def of(cls, project: Project) -> "_Rows":
        column = project.table.column
        return cls(
            column("guess").to_pylist(),
            column("second").to_pylist(),
            column("confidence").to_numpy().astype(np.float64),
            column("variance").to_numpy().astype(np.float64),
        )


def suggest(project: Project, config: SuggestConfig | None = None) -> list[Suggestion]:
    """Return the most instructive rows that have no label; fewer than ``count`` if none are left.

    Rows for classes in need and others alternate, each the best of what is left.

    Cost for P rows in the pool and n labels: O(P n^2 + P^2 n) for their covariance, then O(count^2
    P). Memory: P^2 numbers.
    """
    config = config or SuggestConfig()
    candidates = _candidates(project, config)
    model = project.model()
    names = [str(name) for name in model.classes_]
    rows = _Rows.of(project)
    rows_of = Counter(rows.guesses)  # given or predicted
    counts = np.array([rows_of[name] for name in names])
    weights = rare_weights(counts, config.rare)
    needs = classes_in_need(project)
    worth = _worth_alone(rows, candidates, model, dict(zip(names, weights.tolist(), strict=True)))
    decided = [{rows.guesses[row], rows.seconds[row]} for row in candidates.tolist()]
    sought = [np.array([name in classes for classes in decided]) for name in needs]
    pool, is_random = _pool(candidates, worth, sought, config)

    x = project.embeddings(pool)
    probs = model.predict_proba(x).astype(np.float64)
    covariance = model.covariance(x, x).astype(np.float64)
    far = covariance.diagonal() / _outlier_variance(model)
    second = np.sort(probs, axis=1)[:, -2:].min(axis=1, keepdims=True)
    first_two = np.where(probs >= second, probs, 0.0)  # p of the first two classes
    in_need = first_two[:, [names.index(name) for name in needs]]
    general = unsure(probs.max(axis=1), far) * (probs @ weights)
    factors = np.stack([general, *in_need.T]) * neighbourly(covariance, is_random)
    turns = [0 if k % 2 == 0 or not needs else 1 + k // 2 % len(needs) for k in range(config.count)]
    chosen = choose_diverse(covariance, factors, model.noise_std_**2, turns)
    rare = {name for name, count in zip(names, counts, strict=True) if 2 * count < counts.mean()}
    suggestions = []
    for place, value, turn in zip(*chosen, strict=True):
        row = int(pool[place])
        for_class = ""
        why = _why(float(far[place]), probs[place], names, rare)
        if turn > 0:
            for_class, need = list(needs.items())[turn - 1]
            why = f"may be {for_class}, which {need}"
        suggestion = Suggestion(
            row=row,
            id=project.ids[row],
            believed=rows.guesses[row],
            confidence=float(rows.confidence[row]),
            variance=float(rows.variance[row]),
            worth=float(value),
            for_class=for_class,
            why=why,
        )
        suggestions.append(suggestion)
    return suggestions


def _candidates(project: Project, config: SuggestConfig) -> Rows:
    """Return the rows that may be suggested."""
    status = project.table.column("status")
    excluded = np.asarray(compute.equal(status, Status.LABELLED.text))
    excluded[list(project.bad)] = True  # bad rows can neither be predicted nor learned from
    if config.outliers == "exclude":
        excluded |= np.asarray(compute.equal(status, Status.OUTLIER.text))
    candidates = np.flatnonzero(~excluded)
    if not len(candidates):
        rest = "" if config.outliers == "include" else " except outliers"
        raise DataError(
            f"Nothing is left to label in {project.folder}: all of its {len(project.ids)} rows"
            f"{rest} are labelled."
        )
    return candidates


def _outlier_variance(model: SemiGPClassifier) -> float:
    return float(max(model.outlier_variance_, 1e-12))


def _worth_alone(
    rows: _Rows, candidates: Rows, model: SemiGPClassifier, weight_of: dict[str, float]
) -> Floats:
    """Return the worth (n,) of each candidate by itself, before neighbours are known."""
    variance = rows.variance[candidates]
    doubt = unsure(rows.confidence[candidates], variance / _outlier_variance(model))
    weights = np.array([weight_of[rows.guesses[row]] for row in candidates.tolist()])
    worth: Floats = variance * doubt * weights
    return worth


def classes_in_need(project: Project) -> dict[str, str]:
    """Return the classes of :func:`codes_in_need` by name, each with the reason."""
    is_pseudo = compute.equal(project.table.column("status"), Status.PSEUDO.text)
    new = Counter(project.table.filter(is_pseudo).column("label").to_pylist())
    given = Counter(project.given.values())
    labels = np.array([given[name] for name in project.classes])
    pseudo = np.array([new[name] for name in project.classes])
    reasons = {}
    for code in codes_in_need(labels, pseudo).tolist():
        number = "1 label" if labels[code] == 1 else f"{labels[code]} labels"
        nothing = "" if pseudo[code] else " and gets no new ones"
        reasons[project.classes[code]] = f"has {number}{nothing}"
    return reasons


def rare_weights(counts: NDArray[Any], exponent: float) -> Floats:
    """Return weights (C,) (n_min / n_c)^exponent of classes with n_c rows: 1 for the rarest."""
    smoothed = np.asarray(counts, dtype=np.float64) + 1
    weights: Floats = (smoothed.min() / smoothed) ** exponent
    return weights


def unsure(confidence: Floats, far: Floats) -> Floats:
    """Return (P,) 1 - confidence (1 - far), where far = v / v_out is limited to 1.

    Confidence is ignored for outliers.
    """
    doubt: Floats = 1 - confidence * (1 - np.minimum(far, 1.0))
    return doubt


def neighbourly(covariance: Floats, usual: NDArray[np.bool_] | None = None) -> Floats:
    """Return weights (P,) 1 / (1 + (r / 3)^8): near 0 for rows without a neighbour, else near 1.

    r = -log(corr of a row with its nearest) / median of the same, which for an RBF kernel is a
    ratio of squared distances, whatever the length-scale. O(P^2).

    Args:
        covariance: (P, P) posterior. usual: (P,) the rows that the median is over; all if left out.
    """
    if len(covariance) < 3:
        return np.ones(len(covariance))
    deviation = np.sqrt(np.maximum(covariance.diagonal(), 1e-12))
    correlation = np.abs(covariance) / deviation / deviation[:, None]
    np.fill_diagonal(correlation, 0.0)
    distance = -np.log(correlation.max(axis=1).clip(1e-30, 1 - 1e-6))
    ratio = distance / np.median(distance if usual is None or not usual.any() else distance[usual])
    weights: Floats = 1 / (1 + (ratio / ISOLATION_RATIO) ** ISOLATION_POWER)
    return weights


def choose_diverse(
    covariance: Floats, factors: Floats, noise_variance: float, turns: Sequence[int]
) -> tuple[Rows, Floats, Rows]:
    """Choose rows one by one by v_i factor_gi; each lowers the variance of the others.

        v_j <- v_j - cov(j, i)^2 / (v_i + sigma^2)

    as if it were labelled, which is the square of a column of a pivoted Cholesky factor. A copy of
    a chosen row then has almost no worth. The label is not needed: the variance does not depend on
    it.

    Args:
        covariance: (P, P) posterior. factors: (G, P) 0 or more. noise_variance: sigma^2.
        turns: k numbers g of the factors to choose by; 0 is taken where those of a turn are all 0.

    Returns:
        Places (min(k, P),), the worth of each when it was chosen, and the g that it was chosen by.
        O(k^2 P).
    """
    count = min(len(turns), len(covariance))
    variance = covariance.diagonal().copy()
    columns = np.empty((count, len(covariance)))
    free = np.ones(len(covariance), dtype=bool)
    chosen = np.empty(count, np.int64)
    worth = np.empty(count)
    chosen_by = np.array(turns[:count], np.int64)
    for k in range(count):
        if not (factors[chosen_by[k]][free] > 0).any():
            chosen_by[k] = 0
        value = np.where(free, variance * factors[chosen_by[k]], -np.inf)
        i = int(value.argmax())
        chosen[k] = i
        worth[k] = value[i]
        free[i] = False
        explained = columns[:k, i] @ columns[:k]
        columns[k] = (covariance[i] - explained) / np.sqrt(variance[i] + noise_variance)
        variance = np.maximum(variance - columns[k] ** 2, 0.0)
    return chosen, worth, chosen_by


def write_suggestions(
    project: Project, suggestions: Sequence[Suggestion], *, overwrite: bool = False
) -> Path:
    """Write ``suggestions.csv`` to the project's folder, with an empty column ``label``.

    Raises:
        DataError: labels have been written into the existing file.
    """
    path = project.folder / FILE
    names = ("rank", "label", *Suggestion._fields[2:], CHOSEN)
    rank_name, *others = own_names(names, project.id_name)
    rows = []
    for rank, row in enumerate(suggestions, start=1):
        values = (f"{value:.6g}" if isinstance(value, float) else value for value in row[2:])
        rows.append((rank, row.id, "", *values, YES))
    header = [rank_name, project.id_name, *others]
    project.claim(FILE)
    write_hand_table(path, header, rows, blank="label", overwrite=overwrite)
    return path


def _pool(
    candidates: Rows, worth: Floats, sought: Sequence[Mask], config: SuggestConfig
) -> tuple[Rows, Mask]:
    """Return the rows to choose among, sorted, and which of them were drawn at random.

    The random ones show which distances are usual.

    Args:
        candidates: (n,) rows. worth: (n,) of each by itself. sought: for each class in need, (n,)
            rows that may be of it.
    """
    if len(candidates) <= config.pool:
        return candidates, np.ones(len(candidates), dtype=bool)
    rng = np.random.default_rng(config.seed)
    drawn = rng.choice(len(candidates), config.pool // 4, replace=False)
    best = np.argsort(-worth, kind="stable")
    each = config.pool // 4 // max(1, len(sought))
    for_classes = [best[own[best]][:each] for own in sought]
    first = np.concatenate([*for_classes, best])
    rest = first[np.sort(np.unique(first, return_index=True)[1])]
    rest = rest[~np.isin(rest, drawn)][: config.pool - len(drawn)]
    places = np.sort(np.concatenate([drawn, rest]))
    return candidates[places], np.isin(places, drawn)


def _why(far: float, probs: Floats, names: Sequence[str], rare: set[str]) -> str:
    first, second = (int(c) for c in (-probs).argsort(kind="stable")[:2])
    reasons = []
    if far > FAR_VARIANCE:
        reasons.append("unlike what is labelled" if far > 1 else "far from the labels")
    if probs[second] > TIE_RATIO * probs[first]:
        reasons.append(f"{names[first]} or {names[second]}")
    likely = [names[c] for c in (first, second) if probs[c] > RARE_PROBABILITY]
    maybe_rare = [name for name in likely if name in rare]
    if maybe_rare:
        reasons.append(f"{maybe_rare[0]} is rare")
    return "; ".join(reasons) or "unsure"
