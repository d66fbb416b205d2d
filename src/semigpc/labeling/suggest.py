"""Rows to label next: rows that the labels say little about, rare classes first, and no two that would teach the same.

    worth_i = v_i u_i r_i s_i       u_i = 1 - max_c p_ic (1 - min(1, v_i / v_out))       r_i = sum_c p_ic (n_min / n_c)^rare

v is the posterior variance; from v_out on a row is an outlier, whose probabilities p mean nothing however high they are. n_c
rows are predicted to be of class c. s is small for a row without a neighbour: its label would say nothing about other rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyarrow import compute

from semigpc.data.dataset import DataError
from semigpc.labeling.project import Project, own_names, write_hand_table
from semigpc.labeling.source import Rows

FILE = "suggestions.csv"
ISOLATION_RATIO, ISOLATION_POWER = 3.0, 8  # s = 1 / (1 + (r / 3)^8), r the distance to the neighbour over the usual one
FAR, TIE, RARE_CHANCE = 0.5, 0.5, 0.1  # from these on a reason is named: v / v_out; second over first probability; probability

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SuggestConfig:
    """How to choose.

    Args:
        count: rows to suggest.
        rare: exponent of the weight of rare classes; 0 treats all alike, 1 gives a class with a tenth of the rows ten times the
            weight.
        outliers: "exclude" leaves out rows of that status. They may be a class that nobody has labelled yet.
        pool: rows to choose among; of more, those of the largest worth by themselves, and a quarter at random.
        seed: of that quarter.
    """

    count: int = 50
    rare: float = 0.5
    outliers: Literal["include", "exclude"] = "include"
    pool: int = 3000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or self.pool < self.count:
            raise DataError(f"count must be 1 or more, and pool no less; got {self.count} and {self.pool}.")
        if not 0 <= self.rare <= 10:
            raise DataError(f"rare must lie in [0, 10]; got {self.rare}.")
        if self.outliers not in ("include", "exclude"):
            raise DataError(f"outliers must be 'include' or 'exclude'; got {self.outliers!r}.")


class Suggestion(NamedTuple):
    """A row to label: its predicted class, the confidence and variance of that, the worth of its label, and the reason."""

    row: int
    id: str
    believed: str
    confidence: float
    variance: float
    worth: float
    why: str


def suggest(project: Project, config: SuggestConfig | None = None) -> list[Suggestion]:
    """Return the most instructive rows that have no label, best first; fewer than ``count`` if there are no more.

    Cost for P rows in the pool and n labels: O(P n^2 + P^2 n) for their covariance, then O(count^2 P). Memory: P^2 numbers.
    """
    config, status = config or SuggestConfig(), project.table.column("status")
    excluded = np.asarray(compute.equal(status, "labelled"))
    excluded[list(project.bad)] = True  # bad rows can neither be predicted nor learned from
    if config.outliers == "exclude":
        excluded |= np.asarray(compute.equal(status, "outlier"))
    candidates = np.flatnonzero(~excluded)
    if not len(candidates):
        rest = "" if config.outliers == "include" else " but outliers"
        raise DataError(f"Nothing is left to label in {project.folder}: it has {len(project.ids)} rows, all labelled{rest}.")
    model = project.model()
    names, outlier_variance = [str(name) for name in model.classes_], max(model.outlier_variance_, 1e-12)
    labels = project.table.column("label").to_pylist()
    confidence, variance = (project.table.column(name).to_numpy().astype(np.float64) for name in ("confidence", "variance"))
    rows_of = Counter(labels)  # given or predicted
    counts = np.array([rows_of[name] for name in names])
    weights = rare_weights(counts, config.rare)
    weight_of = dict(zip(names, weights.tolist(), strict=True))
    alone = variance[candidates] * unsure(confidence[candidates], variance[candidates] / outlier_variance)
    alone *= np.array([weight_of[labels[row]] for row in candidates.tolist()])  # the worth of each row by itself
    pool, is_random = _pool(candidates, alone, config)

    x = project.embeddings(pool)
    probs = model.predict_proba(x).astype(np.float64)
    covariance = model.covariance(x, x).astype(np.float64)
    far = covariance.diagonal() / outlier_variance
    factors = unsure(probs.max(axis=1), far) * (probs @ weights) * neighbourly(covariance, is_random)
    chosen, worth = choose_diverse(covariance, factors, model.noise_std_**2, config.count)
    rare = {name for name, count in zip(names, counts, strict=True) if 2 * count < counts.mean()}
    return [
        Suggestion(
            row=row,
            id=project.ids[row],
            believed=labels[row],
            confidence=float(confidence[row]),
            variance=float(variance[row]),
            worth=value,
            why=_why(float(far[place]), probs[place], names, rare),
        )
        for place, row, value in zip(chosen.tolist(), pool[chosen].tolist(), worth.tolist(), strict=True)
    ]


def rare_weights(counts: NDArray[Any], exponent: float) -> Floats:
    """Return (C,) weights (n_min / n_c)^exponent of classes with n_c rows, so that the rarest has 1."""
    smoothed = np.asarray(counts, dtype=np.float64) + 1
    weights: Floats = (smoothed.min() / smoothed) ** exponent
    return weights


def unsure(confidence: Floats, far: Floats) -> Floats:
    """Return (P,) 1 - confidence (1 - far), with far = v / v_out limited to 1: the confidence of an outlier does not count."""
    doubt: Floats = 1 - confidence * (1 - np.minimum(far, 1.0))
    return doubt


def neighbourly(covariance: Floats, usual: NDArray[np.bool_] | None = None) -> Floats:
    """Return (P,) weights 1 / (1 + (r / 3)^8): near 1 for a row with a neighbour at a usual distance, near 0 for one alone.

    r = -log(corr of a row with its nearest) / median of the same, which for an RBF kernel is a ratio of squared distances,
    whatever the length-scale. O(P^2).

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


def choose_diverse(covariance: Floats, factors: Floats, noise_variance: float, count: int) -> tuple[Rows, Floats]:
    """Choose rows one by one by v_i factor_i; each lowers the variance of the others as if it were labelled.

        v_j <- v_j - cov(j, i)^2 / (v_i + sigma^2)        which is a column of a pivoted Cholesky factor, squared

    A copy of a chosen row has then next to nothing left to teach. No label is needed: the variance does not depend on it.

    Args:
        covariance: (P, P) posterior. factors: (P,) 0 or more. noise_variance: sigma^2.
        count: k.

    Returns:
        Places (min(k, P),) and the worth of each when it was chosen; O(k^2 P).
    """
    count = min(count, len(covariance))
    variance = covariance.diagonal().copy()
    columns = np.empty((count, len(covariance)))
    free = np.ones(len(covariance), dtype=bool)
    chosen, worth = np.empty(count, np.int64), np.empty(count)
    for k in range(count):
        value = np.where(free, variance * factors, -np.inf)
        i = int(value.argmax())
        chosen[k], worth[k], free[i] = i, value[i], False
        columns[k] = (covariance[i] - columns[:k, i] @ columns[:k]) / np.sqrt(variance[i] + noise_variance)
        variance = np.maximum(variance - columns[k] ** 2, 0.0)
    return chosen, worth


def write_suggestions(project: Project, suggestions: Sequence[Suggestion], *, overwrite: bool = False) -> Path:
    """Write ``suggestions.csv`` to the project's folder; its empty column ``label`` is filled in and given to semigpc label.

    Raises:
        DataError: labels have been written into the existing file.
    """
    path = project.folder / FILE
    rank_name, *others = own_names(("rank", "label", "believed", "confidence", "variance", "worth", "why"), project.id_name)
    rows = [
        (rank, row.id, "", row.believed, *(f"{number:.6g}" for number in (row.confidence, row.variance, row.worth)), row.why)
        for rank, row in enumerate(suggestions, start=1)
    ]
    write_hand_table(path, [rank_name, project.id_name, *others], rows, blank="label", overwrite=overwrite)
    return path


def _pool(candidates: Rows, worth: Floats, config: SuggestConfig) -> tuple[Rows, NDArray[np.bool_]]:
    """Return the rows to choose among, sorted, and which of them were drawn at random: they show what distances are usual."""
    if len(candidates) <= config.pool:
        return candidates, np.ones(len(candidates), dtype=bool)
    rng = np.random.default_rng(config.seed)
    drawn = rng.choice(len(candidates), config.pool // 4, replace=False)
    best = np.argsort(-worth, kind="stable")
    rest = best[~np.isin(best, drawn)][: config.pool - len(drawn)]
    places = np.sort(np.concatenate([drawn, rest]))
    return candidates[places], np.isin(places, drawn)


def _why(far: float, probs: Floats, names: Sequence[str], rare: set[str]) -> str:
    first, second = (int(c) for c in (-probs).argsort(kind="stable")[:2])
    reasons = []
    if far > FAR:
        reasons.append("unlike what is labelled" if far > 1 else "far from the labels")
    if probs[second] > TIE * probs[first]:
        reasons.append(f"{names[first]} or {names[second]}")
    maybe_rare = [names[c] for c in (first, second) if names[c] in rare and probs[c] > RARE_CHANCE]
    if maybe_rare:
        reasons.append(f"{maybe_rare[0]} is rare")
    return "; ".join(reasons) or "unsure"
