"""Rows to label next: rows that the labels say little about, rare classes first, and no two that
would teach the same.

Every second row is sought for a class in need: one that gets no new labels, or that has few given
ones. These classes take turns, and such a row is worth v_i p_ic s_i, with c its first or second
class. The others are chosen by

    worth_i = v_i u_i r_i s_i       u_i = 1 - max_c p_ic (1 - min(1, v_i / v_out))       r_i = sum_c p_ic (n_min / n_c)^rare

v is the posterior variance; from v_out on a row is an outlier, whose probabilities p mean nothing
however high they are. n_c
rows are predicted to be of class c. s is small for a row without a neighbour: its label would say
nothing about other rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyarrow import compute

from semigpc.estimator import Status
from semigpc.io.errors import DataError
from semigpc.labeling.project import Project, own_names, write_hand_table
from semigpc.labeling.source import Rows

FILE = "suggestions.csv"
ISOLATION_RATIO, ISOLATION_POWER = (
    3.0,
    8,
)  # s = 1 / (1 + (r / 3)^8), r the distance to the neighbour over the usual one
FAR, TIE, RARE_CHANCE = (
    0.5,
    0.5,
    0.1,
)  # from these on a reason is named: v / v_out; second over first probability; probability

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SuggestConfig:
    """How to choose.

    Args:
        count: rows to suggest.
        rare: exponent of the weight of rare classes; 0 treats all alike, 1 gives a class with a
            tenth of the rows ten times the weight.
        outliers: "exclude" leaves out rows of that status. They may be a class that nobody has
            labelled yet.
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
            raise DataError(
                f"count must be 1 or more, and pool no less; got {self.count} and {self.pool}."
            )
        if not 0 <= self.rare <= 10:
            raise DataError(f"rare must lie in [0, 10]; got {self.rare}.")
        if self.outliers not in ("include", "exclude"):
            raise DataError(f"outliers must be 'include' or 'exclude'; got {self.outliers!r}.")


class Suggestion(NamedTuple):
    """A row to label.

    Attributes:
        row, id: which. believed, confidence: its likeliest class, and the probability of that.
            variance: of the row.
        worth: of its label when it was chosen. for_class: the class that it is sought for; empty if
            for none.
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


def suggest(project: Project, config: SuggestConfig | None = None) -> list[Suggestion]:
    """Return the most instructive rows that have no label; fewer than ``count`` if there are no
    more.

    Rows for classes in need and others alternate, each the best of what is left.

    Cost for P rows in the pool and n labels: O(P n^2 + P^2 n) for their covariance, then O(count^2
    P). Memory: P^2 numbers.
    """
    config, status = config or SuggestConfig(), project.table.column("status")
    excluded = np.asarray(compute.equal(status, Status.LABELLED.text))
    excluded[list(project.bad)] = True  # bad rows can neither be predicted nor learned from
    if config.outliers == "exclude":
        excluded |= np.asarray(compute.equal(status, Status.OUTLIER.text))
    candidates = np.flatnonzero(~excluded)
    if not len(candidates):
        rest = "" if config.outliers == "include" else " but outliers"
        raise DataError(
            f"Nothing is left to label in {project.folder}: it has {len(project.ids)} rows, all labelled{rest}."
        )
    model = project.model()
    names, outlier_variance = (
        [str(name) for name in model.classes_],
        max(model.outlier_variance_, 1e-12),
    )
    labels, likeliest = (project.table.column(name).to_pylist() for name in ("label", "likeliest"))
    numbers = ("likeliest_confidence", "variance")
    confidence, variance = (
        project.table.column(name).to_numpy().astype(np.float64) for name in numbers
    )
    rows_of = Counter(labels)  # given or predicted
    counts = np.array([rows_of[name] for name in names])
    weights = rare_weights(counts, config.rare)
    weight_of = dict(zip(names, weights.tolist(), strict=True))
    alone = variance[candidates] * unsure(
        confidence[candidates], variance[candidates] / outlier_variance
    )
    alone *= np.array(
        [weight_of[labels[row]] for row in candidates.tolist()]
    )  # the worth of each row by itself
    needs = classes_in_need(project)
    decided = [{labels[row], likeliest[row]} for row in candidates.tolist()]
    pool, is_random = _pool(
        candidates, alone, [np.array([name in each for each in decided]) for name in needs], config
    )

    x = project.embeddings(pool)
    probs = model.predict_proba(x).astype(np.float64)
    covariance = model.covariance(x, x).astype(np.float64)
    far = covariance.diagonal() / outlier_variance
    has_neighbours = neighbourly(covariance, is_random)
    second = np.sort(probs, axis=1)[:, -2:].min(axis=1, keepdims=True)
    sought = np.where(probs >= second, probs, 0.0)[
        :, [names.index(name) for name in needs]
    ]  # p of the first two classes
    factors = (
        np.stack([unsure(probs.max(axis=1), far) * (probs @ weights), *sought.T]) * has_neighbours
    )
    turns = [0 if k % 2 == 0 or not needs else 1 + k // 2 % len(needs) for k in range(config.count)]
    rare = {name for name, count in zip(names, counts, strict=True) if 2 * count < counts.mean()}
    suggestions = []
    for place, value, turn in zip(
        *choose_diverse(covariance, factors, model.noise_std_**2, turns), strict=True
    ):
        row, reason = int(pool[place]), _why(float(far[place]), probs[place], names, rare)
        for_class, need = ("", "") if turn == 0 else list(needs.items())[turn - 1]
        suggestions.append(
            Suggestion(
                row=row,
                id=project.ids[row],
                believed=likeliest[row],
                confidence=float(confidence[row]),
                variance=float(variance[row]),
                worth=float(value),
                for_class=for_class,
                why=f"may be {for_class}, which {need}" if for_class else reason,
            )
        )
    return suggestions


def classes_in_need(project: Project) -> dict[str, str]:
    """Return the classes that rows are sought for, most in need first, each with why.

    First those that no row without a given label got, then those with fewer than half as many given
    labels as a class has on average; within both, those with the fewest labels.
    """
    status = project.table.column("status")
    new = set(
        project.table.filter(compute.equal(status, Status.PSEUDO.text)).column("label").to_pylist()
    )
    counts = Counter(project.given.values())
    few = sum(counts.values()) / len(counts) / 2
    needy = [name for name in project.classes if name not in new or counts[name] < few]
    needy.sort(key=lambda name: (name in new, counts[name]))
    labels = {name: "1 label" if counts[name] == 1 else f"{counts[name]} labels" for name in needy}
    return {
        name: f"has {labels[name]}{'' if name in new else ' and gets no new ones'}"
        for name in needy
    }


def rare_weights(counts: NDArray[Any], exponent: float) -> Floats:
    """Return (C,) weights (n_min / n_c)^exponent of classes with n_c rows, so that the rarest has
    1.
    """
    smoothed = np.asarray(counts, dtype=np.float64) + 1
    weights: Floats = (smoothed.min() / smoothed) ** exponent
    return weights


def unsure(confidence: Floats, far: Floats) -> Floats:
    """Return (P,) 1 - confidence (1 - far), with far = v / v_out limited to 1: the confidence of an
    outlier does not count.
    """
    doubt: Floats = 1 - confidence * (1 - np.minimum(far, 1.0))
    return doubt


def neighbourly(covariance: Floats, usual: NDArray[np.bool_] | None = None) -> Floats:
    """Return (P,) weights 1 / (1 + (r / 3)^8): near 1 for a row with a neighbour at a usual
    distance, near 0 for one alone.

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
    """Choose rows one by one by v_i factor_gi; each lowers the variance of the others as if it were
    labelled.

        v_j <- v_j - cov(j, i)^2 / (v_i + sigma^2)        which is a column of a pivoted Cholesky factor, squared

    A copy of a chosen row has then next to nothing left to teach. No label is needed: the variance
    does not depend on it.

    Args:
        covariance: (P, P) posterior. factors: (G, P) 0 or more. noise_variance: sigma^2.
        turns: k times g, the factors to choose by; the first ones where those of a turn are all 0.

    Returns:
        Places (min(k, P),), the worth of each when it was chosen, and the g that it was chosen by;
        O(k^2 P).
    """
    count = min(len(turns), len(covariance))
    variance = covariance.diagonal().copy()
    columns = np.empty((count, len(covariance)))
    free = np.ones(len(covariance), dtype=bool)
    chosen, worth, chosen_by = (
        np.empty(count, np.int64),
        np.empty(count),
        np.array(turns[:count], np.int64),
    )
    for k in range(count):
        chosen_by[k] *= bool((factors[chosen_by[k]][free] > 0).any())
        value = np.where(free, variance * factors[chosen_by[k]], -np.inf)
        i = int(value.argmax())
        chosen[k], worth[k], free[i] = i, value[i], False
        columns[k] = (covariance[i] - columns[:k, i] @ columns[:k]) / np.sqrt(
            variance[i] + noise_variance
        )
        variance = np.maximum(variance - columns[k] ** 2, 0.0)
    return chosen, worth, chosen_by


def write_suggestions(
    project: Project, suggestions: Sequence[Suggestion], *, overwrite: bool = False
) -> Path:
    """Write ``suggestions.csv`` to the project's folder; its empty column ``label`` is filled in
    and given to semigpc label.

    Raises:
        DataError: labels have been written into the existing file.
    """
    path = project.folder / FILE
    rank_name, *others = own_names(("rank", "label", *Suggestion._fields[2:]), project.id_name)
    rows = [
        (
            rank,
            row.id,
            "",
            *(f"{value:.6g}" if isinstance(value, float) else value for value in row[2:]),
        )
        for rank, row in enumerate(suggestions, start=1)
    ]
    write_hand_table(
        path, [rank_name, project.id_name, *others], rows, blank="label", overwrite=overwrite
    )
    return path


def _pool(
    candidates: Rows, worth: Floats, sought: Sequence[NDArray[np.bool_]], config: SuggestConfig
) -> tuple[Rows, NDArray[np.bool_]]:
    """Return the rows to choose among, sorted, and which of them were drawn at random: they show
    what distances are usual.

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
    first = np.concatenate(
        [*(best[own[best]][:each] for own in sought), best]
    )  # those of classes in need first
    rest = first[np.sort(np.unique(first, return_index=True)[1])]
    rest = rest[~np.isin(rest, drawn)][: config.pool - len(drawn)]
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
