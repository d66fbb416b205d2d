"""Mean ranks of methods over blocks (Demsar, 2006), with the tables and the figure of ``benchmarks/field.py``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from rich.table import Table
from scipy import stats

from benchmarks.tables import new_table
from semigpc.algorithms import ALGORITHMS
from semigpc.report.style import BLUE, FONT, GREY, INK, MUTED, ORANGE, name_panel, panels
from semigpc.text import CLASS_GROUPS

SEMIGPC = "SemiGPC"  # in the name of a method that has it
WITH_GP, WITHOUT = ORANGE, BLUE  # colours
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


STEP = (
    "Slower: seconds of a step over those of the algorithm without add-on, mean over algorithms, fastest of several windows "
    "late in a run on digits; what happens once in a run is in the seconds alone."
)


def problem_table(problem: Mapping[str, Any], bases: Sequence[str]) -> Table:
    """Return the table of a problem: one row per method, one column per algorithm; then methods that have no base of these."""
    seeds = problem["of_seeds"]
    title = f"{problem['title']}\nbalanced accuracy in percent" + (f", mean and spread of {seeds} seeds" if seeds > 1 else "")
    table = new_table(title, "", *(ALGORITHMS[base].label for base in bases), *CLASS_GROUPS, "s per run")
    ours = [row for row in problem["rows"] if row["base"] in bases]
    best = {base: max((row["mean"] for row in ours if row["base"] == base), default=None) for base in bases}
    for method in dict.fromkeys(row["method"] for row in ours):
        rows = {row["base"]: row for row in ours if row["method"] == method}
        figures = (_figure(rows.get(base), seeds, best[base]) for base in bases)
        table.add_row(method, *figures, *_means(list(rows.values())))
    table.add_section()
    for row in problem["rows"]:
        if row["base"] not in bases:
            name = row["label"] + (f" + {SEMIGPC}" if row.get("refiner") == "gp" else "")
            table.add_row(name, _figure(row, seeds, None), *[""] * (len(bases) - 1), *_means([row]))
    partial = any(len(row["seeds"]) < seeds for row in problem["rows"])
    table.caption = "Groups and seconds are means over algorithms." + (" * fewer seeds so far." if partial else "")
    return table


def _figure(row: Mapping[str, Any] | None, seeds: int, best: float | None) -> str:
    if row is None:
        return "-"
    text = f"{100 * row['mean']:.1f}" + (f" ± {100 * row['std']:.1f}" if len(row["seeds"]) > 1 else "")
    text += "" if len(row["seeds"]) == seeds else "*"
    return f"[bold]{text}[/bold]" if row["mean"] == best else text


def _means(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    groups = [mean(row["groups"][group] for row in rows) for group in CLASS_GROUPS]
    return [*(f"{100 * value:.0f}" for value in groups), f"{mean(row['seconds'] for row in rows):.1f}"]


def rank_table(summary: Mapping[str, Any]) -> Table:
    """Return methods by mean rank, and how much slower their add-on makes a step."""
    table = new_table("Mean ranks, 1 is best", "", "mean rank", "slower")
    rows = {row["method"]: row for problem in summary["problems"].values() for row in problem["rows"] if row["method"]}
    for method, value in summary["ranks"]["mean_ranks"].items():
        addon = rows[method]["addon"]
        ratios = [times[addon]["ratio"] for times in summary["step_times"].values() if addon in times]
        slower = f"x {mean(ratios):.2f}" if ratios and SEMIGPC not in method else ""
        table.add_row(method, f"{value:.2f}", slower)
    return table


def field_notes(summary: Mapping[str, Any]) -> list[str]:
    """Return what has to be known to read the tables, and what they say of SemiGPC."""
    ranks = summary["ranks"]
    lines = [f"Mean ranks: {_test(ranks)}", *_of_semigpc(summary)] if ranks["mean_ranks"] else []
    heads = {row["head"] for problem in summary["problems"].values() for row in problem["rows"] if row["head"]}
    if "gp" in heads and summary["by_network"]["ranks"]["mean_ranks"]:
        lines.append("On features runs with SemiGPC are judged by the GP. By the network's own answer everywhere instead:")
        lines += [f"  {line}" for line in _of_semigpc(summary["by_network"])]
    if ranks["dropped"]:
        count = "1 block was" if len(ranks["dropped"]) == 1 else f"{len(ranks['dropped'])} blocks were"
        lines.append(f"{count} not ranked, as runs are missing: {', '.join(ranks['dropped'])}.")
    if ranks["mean_ranks"]:
        lines.append(STEP)
    if summary["unfinished"]:
        lines.append(f"{summary['unfinished']} runs are not finished; give the command without --only-summary to go on.")
    for one in summary["refused"]:
        name = "+".join((one["base"], one["addon"], one["refiner"]))
        lines.append(f"Left out: {name} on {', '.join(one['problems'])}: {one['reason']}")
    return lines


def _test(ranks: Mapping[str, Any]) -> str:
    text = f"{len(ranks['mean_ranks'])} methods over {ranks['blocks']} blocks of a problem with an algorithm"
    if ranks["statistic"] is not None:
        text += f"; Friedman's chi2 {ranks['statistic']:.1f}, p {ranks['p_value']:.2g}"
    return f"{text}; those closer than {ranks['critical_difference']:.2f} cannot be told apart (Nemenyi, 5 %)."


def _of_semigpc(part: Mapping[str, Any]) -> list[str]:
    """Its rank without an add-on, and with it against without."""
    means, pairs, lines = part["ranks"]["mean_ranks"], part["with_gp"]["all"], []
    if SEMIGPC in means:
        place = list(means).index(SEMIGPC) + 1
        lines.append(f"SemiGPC without an add-on has mean rank {means[SEMIGPC]:.2f}, place {place} of {len(means)}.")
    if pairs["pairs"]:
        p = "" if pairs["p_value"] is None else f", Wilcoxon's p {pairs['p_value']:.2g}"
        lines.append(
            f"With SemiGPC against without, same problem, algorithm and add-on: better in {pairs['wins']} of {pairs['pairs']}, "
            f"worse in {pairs['losses']}, {100 * pairs['mean_gain']:+.2f} points on the mean{p}."
        )
    for kind in ("problem", "base", "addon"):
        gains = part["with_gp"][f"by_{kind}"].items()
        said = [f"{name} {100 * one['mean_gain']:+.1f} ({one['wins']}:{one['losses']})" for name, one in gains]
        lines += [f"  by {kind}: {', '.join(said)}"] if said else []
    return lines


def draw_mean_ranks(ranks: Mapping[str, Any], path: Path, *, marked: str, title: str) -> None:
    """Draw one dot per method on one axis, the best at the top; those with ``marked`` in their name in another colour.

    The grey band reaches one critical difference from the best: who stands in it cannot be told from the best.

    Args:
        ranks: ``mean_ranks`` best first, ``blocks`` and ``critical_difference``, as :func:`rank` returns them.
        path: of the image. marked: such as "SemiGPC". title: above it.
    """
    means, cd = ranks["mean_ranks"], ranks["critical_difference"]
    figure, (axes,) = panels(1, 1, width=8.5, height=0.24 * len(means) + 1.7)
    figure.set_facecolor("white")
    best = min(means.values())
    axes.axvspan(best, best + cd, color=GREY, alpha=0.14, linewidth=0)
    for place, (method, value) in enumerate(means.items()):
        ours = marked in method
        axes.plot([1, value], [place, place], color=WITH_GP if ours else WITHOUT, alpha=0.35, linewidth=1.2)
        axes.plot(value, place, "D" if ours else "o", color=WITH_GP if ours else WITHOUT, markersize=6)
        axes.annotate(
            f"{value:.1f}", (value, place), (7, 0), textcoords="offset points", va="center", fontsize=FONT - 1, color=INK
        )
    axes.set_yticks(range(len(means)), list(means))
    for tick, method in zip(axes.get_yticklabels(), means, strict=True):
        tick.set_color(WITH_GP if marked in method else INK)
    axes.set_ylim(len(means) - 0.4, -1.6)
    axes.plot([best, best + cd], [-1.0, -1.0], color=MUTED, linewidth=2, solid_capstyle="butt")
    label = f"critical difference {cd:.1f}"
    axes.annotate(label, (best + cd, -1.0), (6, 0), textcoords="offset points", va="center", fontsize=FONT - 1, color=MUTED)
    axes.set_xlim(0.5, max([*means.values(), best + cd]) + 1.2)
    axes.grid(axis="y", visible=False)
    name_panel(axes, title, x=f"mean rank over {ranks['blocks']} blocks of a problem with a base algorithm: left is better")
    keys = [
        Line2D([], [], color=WITH_GP, marker="D", label=f"with {marked}"),
        Line2D([], [], color=WITHOUT, marker="o", label="without"),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=2, frameon=False, fontsize=FONT, labelcolor=INK)
    figure.savefig(path, dpi=150)
