"""Charts with one place for each class, most labelled first: recall, counts, confusions,
pseudo-labels; and reliability.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from semigpc.report import style
from semigpc.report.style import (
    BLUE,
    FONT,
    INK,
    MUTED,
    NAMED,
    ORANGE,
    Chart,
    Entry,
    Floats,
    floats,
    mean_known,
    per_class,
)
from semigpc.report.wording import ABSENT, count, number_of, percent, short
from semigpc.training.run_folder import RunRecord

LAST_WINDOWS = 5  # of pseudo-labels, whose counts are what the network believes at the end
# the largest true or given share over the smallest, from which shares are drawn on a log scale
LOG_FROM = 15
RANKS = "class, most frequent first"
NUMBERED = 30  # up to so many classes, each cell of the confusion matrix contains its percentage
SMALL = 14  # up to so many classes, the confusion matrix fits beside another chart
NARROW, BROAD = 6.2, 9.4  # inches, of a confusion matrix
WHITE_FROM = 0.75  # of full colour: from here white is easier to read on it than the page's ink
MOST_CELLS = (
    150  # along a side: more would be smaller than a pixel or two, so neighbours are averaged
)
RELIABILITY = (4.7, 5.33)  # inches; as high as the confusion matrix it stands beside


# Recall and shares --------------------------------------------------------------------------------


def recall_chart(run: RunRecord, entry: Entry) -> Chart | None:
    """Draw the recall of each class as a bar in the colour of its group, and its precision as a
    dot.
    """
    n = len(run.class_names)
    recall = per_class(entry, "per_class_recall", n)
    if recall is None or not n:
        return None
    precision = per_class(entry, "per_class_precision", n)
    figure, (axes,) = style.panels(1, 1, height=3.6)
    x, order, colours = np.arange(n), run.order, np.full(n, BLUE)
    handles: list[Patch | Line2D] = []
    for name, ids in run.groups.items():
        colours[ids] = style.GROUP_COLOURS.get(name, BLUE)
        label = f"{name} ({len(ids)} classes): {percent(number_of(entry, name))}"
        handles.append(Patch(color=style.GROUP_COLOURS.get(name, BLUE), label=label))
    handles = handles or [Patch(color=BLUE, label="recall")]
    if n <= NAMED:
        axes.bar(x, np.nan_to_num(recall[order]), color=colours[order], width=0.72, zorder=2)
        for place in x[np.isnan(recall[order])]:
            axes.text(place, 0.02, ABSENT, ha="center", color=INK, fontsize=FONT + 3)
    else:
        axes.scatter(x, recall[order], c=colours[order], s=7, linewidths=0, alpha=0.8, zorder=2)
        axes.plot(x, style.running_mean(recall[order]), color=INK, linewidth=1.8, zorder=3)
        handles.append(Line2D([], [], color=INK, linewidth=1.8, label="running mean"))
    if precision is not None and n <= NAMED:
        shown = np.where(np.isfinite(recall), precision, np.nan)[order]
        axes.plot(
            x,
            shown,
            "D",
            color=INK,
            markersize=5,
            markeredgecolor=style.PAPER,
            markeredgewidth=1,
            zorder=4,
        )
        handles.append(
            Line2D([], [], linestyle="none", marker="D", markersize=5, color=INK, label="precision")
        )
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=5,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )
    class_axis(axes, run)
    style.share_axis(axes, whole=True)
    reading = (
        "The number by a name is its count of labelled images; look"
        if n <= NAMED
        else "Each dot is a class; look"
    )
    empty = int(np.isnan(recall).sum())
    gap = f" (classes without images to measure on, left empty: {empty})" if empty else ""
    where = "how far recall falls from the common classes on the left to the rare ones on the right"
    caption = f"{reading} at {where if run.groups else 'which classes are hardly found'}{gap}."
    return style.chart(figure, "Recall of each class", caption)


def share_chart(run: RunRecord) -> Chart | None:
    """Draw the share of each class among the labels given, the pseudo-labels believed and, where
    known, in truth.
    """
    given, believed, true = class_shares(run)
    if given is None and believed is None:
        return None
    order, lines = run.order, []
    if true is not None:
        lines.append(
            (
                true[order],
                {
                    "color": MUTED,
                    "linewidth": 6,
                    "alpha": 0.45,
                    "label": "true, among the unlabelled",
                },
            )
        )
    if given is not None:
        lines.append(
            (
                given[order],
                {"color": BLUE, "linestyle": (0, (4, 2)), "label": "given, among the labelled"},
            )
        )
    label = "believed, by the last pseudo-labels"
    if believed is not None and len(believed) <= NAMED:
        lines.append((believed[order], {"color": ORANGE, "marker": "o", "label": label}))
    elif believed is not None:
        lines.append((believed[order], {"color": ORANGE, "linewidth": 0.7, "alpha": 0.5}))
        lines.append(
            (
                style.running_mean(believed[order]),
                {"color": ORANGE, "label": f"{label} (bold: running mean)"},
            )
        )
    truth = (
        "the true share"
        if true is not None
        else "the share given, if the unlabelled images are drawn alike"
    )
    caption = f"The believed share should follow {truth}; below it a class is overlooked, above it one takes from others."
    if believed is None:
        caption = "No pseudo-labels were made; look at how unevenly the labels are spread over the classes."
    known = [shares for shares in (given, true) if shares is not None]
    return share_lines_chart(run, lines, known, "Class counts: given, believed, true", caption)


def share_lines_chart(
    run: RunRecord,
    lines: Sequence[tuple[Floats, dict[str, Any]]],
    known: Sequence[Floats],
    title: str,
    caption: str,
    *,
    averaged: bool = False,
) -> Chart:
    """Draw shares (C,) of the classes by rank as lines, each with its look; the shares in ``known``
    decide the scale.
    """
    figure, (axes,) = style.panels(1, 1, height=3.6)
    for shares, look in lines:
        draw_shares(axes, shares, **look)
    share_scale(axes, known)
    class_axis(axes, run, averaged=averaged)
    style.key_below(figure)
    return style.chart(figure, title, caption)


def class_shares(run: RunRecord) -> tuple[Floats | None, Floats | None, Floats | None]:
    """Return the shares (C,) of the classes: given by labels, believed in the last windows of
    pseudo-labels, true.
    """

    def summed(key: str) -> Floats | None:
        counts = [
            per_class(window, key, len(run.class_names)) for window in run.pseudo[-LAST_WINDOWS:]
        ]
        known = [row for row in counts if row is not None]
        return np.sum(known, axis=0) if known else None

    def share(counts: Floats | None) -> Floats | None:
        total = 0.0 if counts is None else np.nansum(counts)
        return np.nan_to_num(counts) / total if counts is not None and total else None

    true = run.counts("unlabeled_counts")
    return (
        share(run.counts("labeled_counts")),
        share(summed("believed_counts")),
        share(summed("true_counts") if true is None else true),
    )


def draw_shares(axes: Axes, shares: Floats, **look: Any) -> None:
    """Draw shares (C,) as a line over the ranks of the classes."""
    axes.plot(np.arange(len(shares)), shares, **{"linewidth": 1.8, "markersize": 4.5, **look})


def share_scale(axes: Axes, known: Sequence[Floats]) -> None:
    """Count percents along y: on a log scale if the known shares (C,) lie far apart, with those
    near zero on the floor.
    """
    positive = np.concatenate([shares[shares > 0] for shares in known]) if known else np.ones(1)
    if positive.max() / positive.min() < LOG_FROM:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    else:
        drawn = np.concatenate(
            [np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines]
        )
        floor = max(positive.min() / 4, 0.7 * drawn.min())
        for line in axes.lines:
            line.set_ydata(np.maximum(np.asarray(line.get_ydata(), dtype=np.float64), floor))
        axes.set_yscale("log")
        axes.set_ylim(floor * 0.9, 1.5 * drawn.max())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(style.percents())


def class_axis(axes: Axes, run: RunRecord, title: str = "", *, averaged: bool = False) -> None:
    """Put the classes along x: by name and labelled count if few, by rank if many; ``averaged``:
    lines are running means.
    """
    names, counts = run.class_names, run.counts("labeled_counts")
    many = len(names) > NAMED
    style.name_panel(
        axes, title, x=f"{RANKS}{' (running means)' if averaged else ''}" if many else ""
    )
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, len(names) - 0.4)
    if many:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
        return
    labels = [short(names[c]) for c in run.order]
    upright = (
        max(len(label) for label in labels) * len(names) <= 120
    )  # letters that fit side by side
    if counts is not None:
        written = [count(counts[c]) for c in run.order]
        labels = [
            f"{a}\n{b}" if upright else f"{a} ({b})" for a, b in zip(labels, written, strict=True)
        ]
    axes.set_xticks(np.arange(len(names)), labels)
    axes.tick_params(axis="x", length=0, labelsize=FONT - 0.5 if len(names) <= 20 else FONT - 1.5)
    if not upright:
        for label in axes.get_xticklabels():
            label.set(
                rotation=90 if len(names) > 20 else 38, ha="center" if len(names) > 20 else "right"
            )
            label.set_rotation_mode("default" if len(names) > 20 else "anchor")


# Maps of numbers between 0 and 1 ------------------------------------------------------------------


def confusion_chart(run: RunRecord, entry: Entry) -> Chart | None:
    """Draw how the images of each true class (row) are spread over the predicted classes (columns)."""
    if not (rows := entry.get("confusion")):
        return None
    order, n = run.order, len(run.class_names)
    matrix = np.array(rows, dtype=np.float64)[np.ix_(order, order)]
    block = -(-n // MOST_CELLS)
    starts = np.arange(0, n, block)
    matrix = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    totals = matrix.sum(axis=1, keepdims=True)
    shares = np.divide(matrix, totals, out=np.full_like(matrix, np.nan), where=totals > 0)
    side = BROAD if SMALL < n <= NUMBERED else NARROW
    figure, (axes,) = style.panels(1, 1, width=side, height=side * 0.86)
    _paint(axes, np.sqrt(shares), n, n)  # the root, so that a few percents are seen
    axes.set_aspect("equal")
    names = [short(run.class_names[c], 14) for c in order]
    _name_rows(axes, names)
    if n <= NAMED:
        axes.set_xticks(np.arange(n), names, rotation=90 if max(map(len, names)) > 2 else 0)
    if n <= NUMBERED:
        for (row, column), share in np.ndenumerate(shares):
            if share >= 0.005:
                colour = "white" if np.sqrt(share) >= WHITE_FROM else INK
                axes.text(
                    column,
                    row,
                    f"{100 * share:.0f}",
                    ha="center",
                    va="center",
                    fontsize=7.5,
                    color=colour,
                )
    style.name_panel(axes, x="predicted class", y="true class")
    _shade_key(figure, {f"{shade**2:.0%}": shade for shade in (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)})
    together = f", {block} neighbours to a cell" if block > 1 else ""
    written = (
        "Numbers are percents of the true class"
        if n <= NUMBERED
        else f"Classes stand from common to rare{together}"
    )
    caption = f"{written}; look for colour left of the diagonal in the lower rows: rare classes taken for common ones."
    return style.chart(figure, "Confusion matrix", caption)


def pseudo_map_chart(run: RunRecord) -> Chart | None:
    """Draw coverage and precision of each class over time, or, without true labels, what was
    accepted of each class.
    """
    n = len(run.class_names)
    maps = {
        "Coverage, by true class": _over_time(run, "per_class_coverage"),
        "Precision, by predicted class": _over_time(run, "per_class_precision"),
    }
    drawn = {title: grid for title, grid in maps.items() if grid is not None}
    caption = "A row that stays pale on the left has its images ignored; one that is pale on the right attracts wrong ones."
    accepted, believed = _over_time(run, "accepted_counts"), _over_time(run, "believed_counts")
    if not drawn and accepted is not None and believed is not None:
        rate = np.where(believed > 0, accepted / np.maximum(believed, 1e-12), np.nan)
        drawn = {"Accepted, of those believed to be of the class": np.minimum(rate, 1)}
        caption = (
            "Look for rows that never take colour: nothing unlabelled is learned for those classes."
        )
    if not drawn:
        return None
    figure, grids = style.panels(1, len(drawn), height=min(7.0, max(2.6, 1.2 + 0.2 * n)))
    names = [short(run.class_names[c], 14) for c in run.order]
    for i, (axes, (title, grid)) in enumerate(zip(grids, drawn.items(), strict=True)):
        columns = grid.shape[1]
        _paint(axes, grid, n, columns)
        _name_rows(axes, names if i == 0 else [""] * n)
        stride = -(-columns // 6)  # so that about six columns are named
        at = np.arange(columns - 1, -1, -stride)[::-1]
        ends = [
            piece[-1]
            for piece in np.array_split([int(window["step"]) for window in run.pseudo], columns)
        ]
        axes.set_xticks(at, [f"{ends[column]:,}" for column in at])
        style.name_panel(axes, title, x="step", y="" if n <= NAMED or i else RANKS)
    _shade_key(figure, {f"{shade:.0%}": shade for shade in (0.0, 0.25, 0.5, 0.75, 1.0)})
    return style.chart(figure, "Pseudo-labels of each class over time", caption)


def _paint(axes: Axes, grid: Floats, height: int, width: int) -> None:
    """Fill an axes of so many units with the cells of a grid: rectangles if few, an image if many."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    rows, columns = grid.shape
    shown = np.ma.masked_invalid(grid)
    if rows * columns <= NUMBERED**2:
        edges = np.linspace(0, width, columns + 1) - 0.5, np.linspace(0, height, rows + 1) - 0.5
        axes.pcolormesh(
            *edges, shown, cmap=style.FADE, vmin=0, vmax=1, linewidth=0, antialiased=False
        )
        axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    else:
        extent = (-0.5, width - 0.5, height - 0.5, -0.5)
        axes.imshow(
            shown,
            cmap=style.FADE,
            vmin=0,
            vmax=1,
            interpolation="none",
            aspect="auto",
            extent=extent,
        )


def _name_rows(axes: Axes, names: list[str]) -> None:
    if len(names) <= NAMED:
        axes.set_yticks(np.arange(len(names)), names)
        axes.tick_params(length=0, labelsize=FONT - 0.5 if len(names) <= 25 else FONT - 2)


def _over_time(run: RunRecord, key: str) -> Floats | None:
    """Return (rows, columns) of what the pseudo-label entries hold under ``key``: classes by rank
    and windows by step.

    Neighbours are averaged where there are more than MOST_CELLS. None if nothing is known.
    """
    n = len(run.class_names)
    columns = [per_class(window, key, n) for window in run.pseudo]
    if not n or all(column is None for column in columns):
        return None
    grid = np.stack(
        [floats([None] * n) if column is None else column for column in columns], axis=1
    )[run.order]
    for _ in range(2):  # along the classes, then along the windows
        grid = np.stack(
            [mean_known(piece) for piece in np.array_split(grid, min(MOST_CELLS, len(grid)))]
        ).T
    return grid


def _shade_key(figure: Figure, shades: dict[str, float]) -> None:
    """Explain the shades, below the map."""
    fills = [(style.FADE(shade), label) for label, shade in shades.items()] + [
        (style.VEIL, "no data")
    ]
    handles = [
        Patch(facecolor=fill, edgecolor=INK, linewidth=0.4, label=label) for fill, label in fills
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=7,
        frameon=False,
        fontsize=FONT - 0.5,
        labelcolor=INK,
    )


# Reliability --------------------------------------------------------------------------------------


def reliability_chart(entry: Entry, *, alone: bool = False, noun: str = "images") -> Chart | None:
    """Draw accuracy over confidence in bins with the gap between the two, and how many images each
    bin holds.

    The second panel stands below the first, or, with ``alone``, beside it across the page. What is
    counted is called ``noun``.
    """
    bins = entry.get("reliability")
    if not bins or not sum(bins["count"]):
        return None
    edges, accuracy, confidence, counts = (
        floats(bins[key]) for key in ("edges", "accuracy", "confidence", "count")
    )
    middles, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    if alone:
        figure, (top, bottom) = style.panels(1, 2, height=3.6)
    else:
        figure, (top, bottom) = style.panels(
            2, 1, width=RELIABILITY[0], height=RELIABILITY[1], ratios=(3, 1)
        )
    filled = (counts > 0) & np.isfinite(accuracy) & np.isfinite(confidence)
    x, right, sure = middles[filled], accuracy[filled], confidence[filled]
    top.bar(x, right, widths[filled] * 0.92, color=BLUE, alpha=0.55, label="accuracy", zorder=2)
    top.vlines(
        x, np.minimum(right, sure), np.maximum(right, sure), color=ORANGE, linewidth=1.6, zorder=3
    )
    half = widths[filled] * 0.32
    top.hlines(sure, x - half, x + half, color=ORANGE, linewidth=2.4, label="confidence", zorder=3)
    top.plot(
        [0, 1],
        [0, 1],
        color=INK,
        linestyle=":",
        linewidth=1.2,
        label="perfectly calibrated",
        zorder=4,
    )
    style.key_below(figure)
    style.name_panel(
        top,
        f"ECE {percent(number_of(entry, 'ece'))}",
        x="confidence" if alone else "",
        y="accuracy",
    )
    style.share_axis(top, whole=True)
    bottom.bar(middles, counts, widths * 0.92, color=MUTED)
    style.name_panel(bottom, x="confidence", y=noun)
    bottom.yaxis.set_major_locator(MaxNLocator(nbins=6 if alone else 3, integer=True))
    bottom.yaxis.set_major_formatter("{x:,.0f}")
    for axes in (top, bottom):
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    temperature = number_of(entry, "temperature")
    caption = (
        ""
        if temperature is None
        else f"Confidence as predict gives it, with the temperature {temperature:.2g}. "
    )
    caption += (
        "Orange above a bar: labels are right less often than their confidence says; orange below its top: more often. "
        f"Bins with few {noun} say little."
    )
    return style.chart(figure, "Reliability", caption)
