"""Mean ranks of methods over blocks, and how far apart they must be to be told from chance (Demsar, 2006)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

SCORES_EQUAL = 9  # decimals in which two scores of the same value may differ by rounding


@dataclass(frozen=True)
class Ranking:
    """Mean ranks, best first; 1 is the best there can be.

    Args:
        mean_ranks: of each method. blocks: that were ranked. dropped: blocks that lack a method.
        statistic, p_value: Friedman's test that all methods are alike; None with fewer than three methods or two blocks.
        critical_difference: Nemenyi's at 5 %: two mean ranks that differ by less cannot be told apart.
    """

    mean_ranks: dict[str, float]
    blocks: int
    dropped: list[str]
    statistic: float | None
    p_value: float | None
    critical_difference: float | None

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def rank(scores: Mapping[str, Mapping[str, float]], methods: Sequence[str], *, level: float = 0.05) -> Ranking:
    """Rank methods within every block, the highest score first, ties sharing the mean of their ranks, and average.

    chi^2_F = 12 N / (k (k + 1)) (sum_j R_j^2 - k (k + 1)^2 / 4) over N blocks and k methods, corrected for ties;
    CD = q_a sqrt(k (k + 1) / 6 N), with q_a the studentized range of k at infinite freedom divided by sqrt 2.

    Args:
        scores: block -> method -> score; a block that lacks one of ``methods`` is dropped, and named.
        methods: to rank. level: a, of the critical difference.
    """
    whole = {block: row for block, row in scores.items() if all(method in row for method in methods)}
    dropped = [block for block in scores if block not in whole]
    n, k = len(whole), len(methods)
    if not n or k < 2:
        return Ranking({}, n, dropped, None, None, None)
    table = np.array([[round(row[method], SCORES_EQUAL) for method in methods] for row in whole.values()])  # (N, k)
    means = stats.rankdata(-table, axis=1).mean(axis=0)
    statistic = p_value = None
    if k > 2 and n > 1 and (table != table[:, :1]).any():
        found = stats.friedmanchisquare(*table.T)
        statistic, p_value = float(found.statistic), float(found.pvalue)
    q = float(stats.studentized_range.ppf(1 - level, k, math.inf)) / math.sqrt(2)
    order = np.argsort(means, kind="stable")
    return Ranking(
        {methods[i]: float(means[i]) for i in order},
        n,
        dropped,
        statistic,
        p_value,
        q * math.sqrt(k * (k + 1) / (6 * n)),
    )


def paired(gains: Sequence[float]) -> dict[str, Any]:
    """Wins, losses and ties of one method against another, the mean difference, and Wilcoxon's two-sided p."""
    values = np.round(np.asarray(gains, dtype=float), SCORES_EQUAL)
    decided = values[values != 0]
    return {
        "pairs": len(values),
        "wins": int((values > 0).sum()),
        "losses": int((values < 0).sum()),
        "ties": int((values == 0).sum()),
        "mean_gain": float(values.mean()) if len(values) else None,
        "p_value": float(stats.wilcoxon(decided).pvalue) if len(decided) else None,
    }
