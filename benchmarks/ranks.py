"""Mean ranks of methods over blocks (Demsar, 2006), the sign test, and the figure of
``benchmarks/field.py``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy import stats

from semigpc.report.style import BLUE, FONT, GREY, INK, ORANGE, name_panel, panels

SCORES_EQUAL = 9  # decimals in which two scores of the same value may differ by rounding


@dataclass(frozen=True)
class Ranking:
    """Mean ranks, best first; 1 is the best there can be.

    Args:
        mean_ranks: of each method. blocks: that were ranked. dropped: blocks that lack a method.
        statistic, p_value: Friedman's test that all methods are alike; None with fewer than three
            methods or two blocks.
        critical_difference: Nemenyi's at 5 %: two mean ranks that differ by less cannot be told
            apart.
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


def rank(
    scores: Mapping[str, Mapping[str, float]], methods: Sequence[str], *, level: float = 0.05
) -> Ranking:
    """Rank methods within every block, the highest score first, ties sharing the mean of their
    ranks, and average.

    chi^2_F = 12 N / (k (k + 1)) (sum_j R_j^2 - k (k + 1)^2 / 4) over N blocks and k methods,
    corrected for ties; CD = q_a sqrt(k (k + 1) / 6 N), with q_a the studentized range of k at
    infinite freedom divided by sqrt 2.

    Args:
        scores: block -> method -> score; a block that lacks one of ``methods`` is dropped, and
            named.
        methods: to rank. level: a, of the critical difference.
    """
    whole = {
        block: row for block, row in scores.items() if all(method in row for method in methods)
    }
    dropped = [block for block in scores if block not in whole]
    n = len(whole)
    k = len(methods)
    if not n or k < 2:
        return Ranking({}, n, dropped, None, None, None)
    table = np.array(
        [[round(row[method], SCORES_EQUAL) for method in methods] for row in whole.values()]
    )  # (N, k)
    means = stats.rankdata(-table, axis=1).mean(axis=0)
    statistic = p_value = None
    if k > 2 and n > 1 and (table != table[:, :1]).any():
        found = stats.friedmanchisquare(*table.T)
        statistic = float(found.statistic)
        p_value = float(found.pvalue)
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


def sign_test(gains: Sequence[float]) -> dict[str, Any]:
    """Return wins, losses and ties of one method against another, the mean difference, and the
    two-sided p of the sign test.
    """
    values = np.round(np.asarray(gains, dtype=float), SCORES_EQUAL)
    wins = int((values > 0).sum())
    losses = int((values < 0).sum())
    return {
        "pairs": len(values),
        "wins": wins,
        "losses": losses,
        "ties": len(values) - wins - losses,
        "mean_gain": float(values.mean()) if len(values) else None,
        "p_value": float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else None,
    }


def draw_study(
    summary: Mapping[str, Any], path: Path, *, titles: Mapping[str, str], labels: Mapping[str, str]
) -> None:
    """Draw the gain of SemiGPC over its base on each problem, and the mean rank of each method, as
    one PNG.

    Args:
        summary: as ``benchmarks/field.py`` makes it. path: of the image. titles: of problems.
            labels: of methods.
    """
    ranks = summary["ranks"]["chosen"]
    figure, (left, right) = panels(
        1, 2, width=13, height=0.24 * max(len(ranks["mean_ranks"]), 14) + 1.4
    )
    figure.set_facecolor("white")
    for by, colour, shift in (("linear", BLUE, -0.18), ("chosen", ORANGE, 0.18)):
        bars = {
            name: gain for name, gain in summary["gain_by_problem"][by].items() if gain is not None
        }
        places = np.arange(len(bars))
        left.barh(
            places + shift,
            [100 * gain for gain in bars.values()],
            0.34,
            color=colour,
            label=f"{by} head",
        )
        left.set_yticks(places, [titles[name] for name in bars])
    left.axvline(0, color=INK, linewidth=0.8)
    left.invert_yaxis()
    left.legend(frameon=False, fontsize=FONT - 1)
    name_panel(
        left, "SemiGPC over its base", x="points of balanced accuracy, mean over bases and seeds"
    )
    _draw_ranks(right, ranks, labels)
    figure.savefig(path, dpi=120)


def _draw_ranks(axes: Axes, ranks: Mapping[str, Any], labels: Mapping[str, str]) -> None:
    """Draw one dot per method, the best at the top; the grey band reaches one critical difference
    from the best.
    """
    means = ranks["mean_ranks"]
    if not means:
        axes.set_axis_off()
        return
    best = min(means.values())
    axes.axvspan(best, best + ranks["critical_difference"], color=GREY, alpha=0.14, linewidth=0)
    for place, (method, value) in enumerate(means.items()):
        ours = method.endswith("+gp")
        axes.plot(value, place, "D" if ours else "o", color=ORANGE if ours else BLUE, markersize=6)
    axes.set_yticks(range(len(means)), [labels[method] for method in means])
    for tick, method in zip(axes.get_yticklabels(), means, strict=True):
        tick.set_color(ORANGE if method.endswith("+gp") else INK)
    axes.invert_yaxis()
    name_panel(
        axes,
        "Mean ranks by the chosen head",
        x=f"mean rank over {ranks['blocks']} problems: left is better",
    )
