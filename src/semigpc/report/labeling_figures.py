"""Charts of a labelled data set: its classes, what a label can be trusted for, what is confused, and who does better."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from semigpc.report.chart_style import (
    BLUE,
    FONT,
    GREEN,
    GREY,
    INK,
    MUTED,
    NAMED,
    ORANGE,
    PAPER,
    Chart,
    chart,
    key_below,
    name_panel,
    panels,
    running_mean,
    share_axis,
)
from semigpc.report.class_figures import RANKS, class_axis, draw_shares, share_scale
from semigpc.report.run_folder import Entry, Floats, RunFolder, floats
from semigpc.report.wording import short
from semigpc.text import percent

PAIRS = 15  # confusion pairs that are drawn; the table has more
INTERVAL = "95% interval"


def classes_of(facts: Mapping[str, Any]) -> RunFolder:
    """The classes with the labels given of each, in the form that charts with one place for each class take."""
    return RunFolder(Path(), {}, {}, {"class_names": facts["classes"], "labeled_counts": facts["given"]}, {})


def shares_chart(facts: Mapping[str, Any]) -> Chart | None:
    """Draw the share of each class among the labels given, the rows believed to be of it, and the labels made."""
    run = classes_of(facts)
    n, order = len(run.class_names), run.order
    known = {key: floats(facts[key]) for key in ("given", "believed", "pseudo") if facts.get(key)}
    shares = {key: values / values.sum() for key, values in known.items() if values.sum() > 0}
    if not shares:
        return None
    figure, (axes,) = panels(1, 1, height=3.6)
    styles: dict[str, dict[str, Any]] = {
        "given": {"color": BLUE, "linestyle": (0, (4, 2)), "label": "given, among the labels"},
        "believed": {"color": MUTED, "linewidth": 6, "alpha": 0.45, "label": "believed, among the rest"},
        "pseudo": {"color": ORANGE, "label": "made, among the new labels", "marker": "o" if n <= NAMED else ""},
    }
    for key in ("believed", "given", "pseudo"):
        if key in shares:
            drawn = shares[key][order]
            draw_shares(axes, running_mean(drawn) if n > NAMED and key != "given" else drawn, **styles[key])
    share_scale(axes, [shares.get("given", shares[next(iter(shares))])])
    class_axis(axes, run)
    name_panel(axes, x="" if n <= NAMED else f"{RANKS} (running means)")
    key_below(figure)
    caption = (
        "Orange should follow the broad grey line; where it falls below, more of that class was left open than of others. "
        "Grey away from blue says that the data hold other shares of the classes than the labels do."
    )
    if "pseudo" not in shares:
        caption = "No new labels were made; look at how unevenly the given ones are spread over the classes."
    return chart(figure, "Classes: given, believed, labelled", caption)


def trust_chart(evidence: Entry, *, threshold: float, target: float | None) -> Chart | None:
    """Draw what precision costs in coverage, and which threshold gives which, with the chosen one marked."""
    curve = evidence.get("curve") or []
    if not curve:
        return None
    keys = ("threshold", "coverage", "precision", "low", "high")
    at, coverage, precision, low, high = (floats([point[key] for point in curve]) for key in keys)
    figure, (left, right) = panels(1, 2, height=3.7)
    left.fill_between(coverage, low, high, color=BLUE, alpha=0.22, linewidth=0, label=f"its {INTERVAL}")
    left.plot(coverage, precision, color=BLUE, linewidth=2, label="precision of the labels made")
    right.fill_between(at, low, high, color=BLUE, alpha=0.22, linewidth=0)
    right.plot(at, precision, color=BLUE, linewidth=2)
    right.plot(at, coverage, color=GREEN, linewidth=2, linestyle=(0, (5, 1.5)), label="coverage: share that gets a label")
    chosen = evidence.get("chosen")
    if chosen and chosen["precision"] is not None:
        dot: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 9, "markeredgecolor": PAPER, "zorder": 5}
        left.plot(chosen["coverage"], chosen["precision"], color=ORANGE, label="as chosen", **dot)
        right.plot(threshold, chosen["precision"], color=ORANGE, **dot)
    right.axvline(threshold, color=ORANGE, linewidth=1.2, zorder=1)
    for axes in (left, right):
        if target is not None:
            axes.axhline(target, color=INK, linestyle=":", linewidth=1.2, label="precision asked for")
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    left.set_xlim(-0.02, 1.02)
    right.set_xlim(min(float(at.min()), threshold) - 0.02, 1.02)
    share_axis(left)
    share_axis(right, whole=True)
    name_panel(left, "What precision costs", x="coverage", y="precision")
    name_panel(right, "Which threshold gives which", x="confidence asked for")
    key_below(figure)
    caption = (
        "Measured on given labels that the model did not see. A curve that stays high to the right labels nearly everything "
        "safely; where the band is broad, there were few labels to measure on."
    )
    return chart(figure, "Coverage against precision", caption)


def recall_chart(facts: Mapping[str, Any], evidence: Entry) -> Chart | None:
    """Draw recall and precision of each class on held-out labels, with intervals where the classes are named."""
    run = classes_of(facts)
    n, order = len(run.class_names), run.order
    rows = {row["class"]: row for row in evidence.get("per_class") or []}
    found = [rows.get(run.class_names[c], {}) for c in order]
    recall, precision = (floats([row.get(key) for row in found]) for key in ("recall", "precision"))
    if not np.isfinite(recall).any():
        return None
    figure, (axes,) = panels(1, 1, height=3.6)
    x = np.arange(n)
    for key, values, colour, mark, aside in (
        ("recall", recall, BLUE, "o", -0.14),
        ("precision", precision, ORANGE, "D", 0.14),
    ):
        if n <= NAMED:
            low, high = (floats([row.get(f"{key}_{end}") for row in found]) for end in ("low", "high"))
            axes.vlines(x + aside, low, high, color=colour, linewidth=1.6, alpha=0.7)
            axes.plot(x + aside, values, mark, color=colour, markersize=6, markeredgecolor=PAPER, label=key, zorder=4)
        else:
            axes.scatter(x, values, color=colour, s=8, linewidths=0, alpha=0.55, zorder=2)
            axes.plot(x, running_mean(values), color=colour, linewidth=1.8, label=f"{key} (running mean)", zorder=3)
    class_axis(axes, run)
    name_panel(axes, x="" if n <= NAMED else RANKS)
    share_axis(axes, whole=True)
    key_below(figure)
    reading = f"Lines are {INTERVAL}s: long ones mean few labels." if n <= NAMED else "Each dot is a class."
    caption = (
        f"{reading} Low recall: the class is overlooked. Low precision: it takes rows of others. The first is mended by "
        "labelling more of the class, the second by labelling more of what it takes."
    )
    return chart(figure, "Recall and precision of each class", caption)


def pairs_chart(evidence: Entry) -> Chart | None:
    """Draw the commonest confusions as bars: which share of a class is taken for another."""
    pairs = (evidence.get("confusions") or [])[:PAIRS]
    if not pairs:
        return None
    figure, (axes,) = panels(1, 1, height=0.9 + 0.3 * len(pairs))
    axes.barh(np.arange(len(pairs)), [pair["count"] for pair in pairs], color=BLUE, height=0.68, zorder=2)
    for place, pair in enumerate(pairs):
        written = f"{pair['count']:,} ({percent(pair['share'])} of the class)"
        style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": FONT - 0.5, "color": INK}
        axes.annotate(written, (pair["count"], place), (4, 0), **style)
    names = [f"{short(pair['true'], 30)} \N{RIGHTWARDS ARROW} {short(pair['believed'], 30)}" for pair in pairs]
    _name_places(axes, names)
    axes.set_xlim(0, 1.28 * max(pair["count"] for pair in pairs))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    name_panel(axes, x="held-out labels")
    caption = "Left of the arrow the given class, right of it what the model believes; a pair at the top is worth new labels."
    return chart(figure, "What is taken for what", caption)


def peers_chart(rows: Sequence[Entry]) -> Chart | None:
    """Draw balanced and plain accuracy of each method on the same folds, with the deviation over folds."""
    if not any(row.get("balanced_accuracy") is not None for row in rows):
        return None
    figure, found = panels(1, 2, height=0.95 + 0.34 * len(rows))
    colours = [ORANGE if row["name"] == "semigpc" else GREY if row.get("failed") else BLUE for row in rows]
    for axes, key in zip(found, ("balanced_accuracy", "accuracy"), strict=True):
        value, spread = floats([row.get(key) for row in rows]), floats([row.get(f"{key}_std") for row in rows])
        _draw_spreads(axes, value, np.nan_to_num(spread), colours)
        for place, row in enumerate(rows):
            if row.get(key) is None:
                axes.text(0.02, place, "failed", transform=axes.get_yaxis_transform(), va="center", fontsize=FONT, color=MUTED)
        _name_places(axes, [short(str(row["title"]), 34) for row in rows] if axes is found[0] else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        name_panel(axes, "Balanced accuracy" if key == "balanced_accuracy" else "Accuracy")
    caption = "Dots are over all held-out labels, lines one deviation over the folds; methods whose lines overlap are close."
    return chart(figure, "The same folds, by other methods", caption)


def _draw_spreads(axes: Axes, value: Floats, spread: Floats, colours: Sequence[str]) -> None:
    for place, (middle, half, colour) in enumerate(zip(value, spread, colours, strict=True)):
        if np.isfinite(middle):
            axes.hlines(place, max(0.0, middle - half), min(1.0, middle + half), color=colour, linewidth=2.2, alpha=0.6)
            axes.plot(middle, place, "o", color=colour, markersize=8, markeredgecolor=PAPER, zorder=4)
            axes.annotate(
                percent(middle),
                (middle, place),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=FONT - 1.5,
                color=INK,
            )
    low, high = np.nanmin(value - spread), np.nanmax(value + spread)
    room = max(0.02, 0.12 * (high - low))
    axes.set_xlim(max(-0.02, low - room), min(1.02, high + room))


def _name_places(axes: Axes, names: Sequence[str]) -> None:
    """Name the places along y from the top down, one bar or dot each."""
    axes.set_yticks(np.arange(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
