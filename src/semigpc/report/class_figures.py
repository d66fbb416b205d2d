"""Charts with one place for each class, most labelled first: recall, and how often each class is believed to occur."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from semigpc.report.run_record import Entry, Floats, RunFolder, floats, per_class
from semigpc.report.style import (
    BLUE,
    FADE,
    FONT,
    GROUP_COLOURS,
    INK,
    MUTED,
    NAMED,
    ORANGE,
    PAPER,
    VEIL,
    Chart,
    chart,
    key_below,
    name_panel,
    panels,
    running_mean,
    share_axis,
)
from semigpc.report.wording import number_of, short
from semigpc.text import ABSENT, count, percent

LAST_WINDOWS = 5  # of pseudo-labels, which tell what is believed at the end
LOG_FROM = 15  # the largest true or given share over the smallest, from which shares are drawn on a log scale
RANKS = "class, most frequent first"


def recall_chart(run: RunFolder, entry: Entry) -> Chart | None:
    """Draw the recall of each class as a bar in the colour of its group, and its precision as a dot."""
    n = len(run.class_names)
    recall = per_class(entry, "per_class_recall", n)
    if recall is None or not n:
        return None
    precision = per_class(entry, "per_class_precision", n)
    figure, (axes,) = panels(1, 1, height=3.6)
    order, colours = run.order, class_colours(run)
    x = np.arange(n)
    if n <= NAMED:
        axes.bar(x, np.nan_to_num(recall[order]), color=colours[order], width=0.72, zorder=2)
        for place in x[np.isnan(recall[order])]:
            axes.text(place, 0.02, ABSENT, ha="center", color=INK, fontsize=FONT + 3)
    else:
        axes.scatter(x, recall[order], c=colours[order], s=7, linewidths=0, alpha=0.8, zorder=2)
        axes.plot(x, running_mean(recall[order]), color=INK, linewidth=1.8, zorder=3)
    handles = group_key(run, entry)
    if precision is not None and n <= NAMED:
        shown = np.where(np.isfinite(recall), precision, np.nan)[order]
        axes.plot(x, shown, "D", color=INK, markersize=5, markeredgecolor=PAPER, markeredgewidth=1, zorder=4)
        handles.append(Line2D([], [], linestyle="none", marker="D", markersize=5, color=INK, label="precision"))
    if n > NAMED:
        handles.append(Line2D([], [], color=INK, linewidth=1.8, label="running mean"))
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=5, frameon=False, fontsize=9, labelcolor=INK)
    class_axis(axes, run)
    name_panel(axes, x="" if n <= NAMED else RANKS)
    share_axis(axes, whole=True)
    reading = "The number by a name is its count of labelled images; look" if n <= NAMED else "Each dot is a class; look"
    empty = int(np.isnan(recall).sum())
    gap = f" (classes without images to measure on, left empty: {empty})" if empty else ""
    caption = f"{reading} at how far recall falls from the common classes on the left to the rare ones on the right{gap}."
    return chart(figure, "Recall of each class", caption)


def share_chart(run: RunFolder) -> Chart | None:
    """Draw the share of each class among the labels given, the pseudo-labels believed and, where known, in truth."""
    n, given, believed, true = len(run.class_names), *class_shares(run)
    if given is None and believed is None:
        return None
    figure, (axes,) = panels(1, 1, height=3.6)
    if true is not None:
        draw_shares(axes, true[run.order], color=MUTED, linewidth=6, alpha=0.45, label="true, among the unlabelled")
    if given is not None:
        draw_shares(axes, given[run.order], color=BLUE, linestyle=(0, (4, 2)), label="given, among the labelled")
    if believed is not None:
        label = "believed, by the last pseudo-labels"
        if n <= NAMED:
            draw_shares(axes, believed[run.order], color=ORANGE, marker="o", label=label)
        else:
            draw_shares(axes, believed[run.order], color=ORANGE, linewidth=0.7, alpha=0.5)
            draw_shares(axes, running_mean(believed[run.order]), color=ORANGE, label=f"{label} (bold: running mean)")
    share_scale(axes, [shares for shares in (given, true) if shares is not None])
    class_axis(axes, run)
    name_panel(axes, x="" if n <= NAMED else RANKS)
    key_below(figure)
    truth = "the true share" if true is not None else "the share given, if the unlabelled images are drawn alike"
    caption = f"The believed share should follow {truth}; below it a class is overlooked, above it one takes from others."
    if believed is None:
        caption = "No pseudo-labels were made; look at how unevenly the labels are spread over the classes."
    return chart(figure, "Class counts: given, believed, true", caption)


def class_shares(run: RunFolder) -> tuple[Floats | None, Floats | None, Floats | None]:
    """Shares (C,) of the classes: given by labels, believed in the last windows of pseudo-labels, true."""
    n = len(run.class_names)
    windows = run.pseudo[-LAST_WINDOWS:]
    believed = [found for one in windows if (found := per_class(one, "believed_counts", n)) is not None]
    seen = [found for one in windows if (found := per_class(one, "true_counts", n)) is not None]
    true = run.counts("unlabeled_counts")
    if true is None and seen:
        true = np.sum(seen, axis=0)
    return _share(run.counts("labeled_counts")), _share(np.sum(believed, axis=0) if believed else None), _share(true)


def draw_shares(axes: Axes, shares: Floats, **style: object) -> None:
    """Draw shares (C,) as a line over the ranks of the classes."""
    axes.plot(np.arange(len(shares)), shares, **{"linewidth": 1.8, "markersize": 4.5, **style})  # type: ignore[arg-type]


def share_scale(axes: Axes, known: list[Floats]) -> None:
    """Count percents along y: on a log scale if the known shares (C,) lie far apart, with those near zero on the floor."""
    positive = np.concatenate([shares[shares > 0] for shares in known]) if known else np.ones(1)
    if positive.max() / positive.min() < LOG_FROM:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    else:
        drawn = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines])
        floor = max(positive.min() / 4, 0.7 * drawn.min())
        for line in axes.lines:
            line.set_ydata(np.maximum(np.asarray(line.get_ydata(), dtype=np.float64), floor))
        axes.set_yscale("log")
        axes.set_ylim(floor * 0.9, 1.5 * drawn.max())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))


def class_axis(axes: Axes, run: RunFolder) -> None:
    """Put the classes along x: by name and labelled count if few, by rank if many."""
    names, counts = run.class_names, run.counts("labeled_counts")
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, len(names) - 0.4)
    if len(names) > NAMED:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
        return
    labels = [short(names[c]) for c in run.order]
    upright = max(len(label) for label in labels) * len(names) <= 120  # letters that fit side by side
    if counts is not None:
        written = [count(counts[c]) for c in run.order]
        labels = [f"{a}\n{b}" if upright else f"{a} ({b})" for a, b in zip(labels, written, strict=True)]
    axes.set_xticks(np.arange(len(names)), labels)
    axes.tick_params(axis="x", length=0, labelsize=FONT - 0.5 if len(names) <= 20 else FONT - 1.5)
    if not upright:
        for label in axes.get_xticklabels():
            label.set(rotation=90 if len(names) > 20 else 38, ha="center" if len(names) > 20 else "right")
            label.set_rotation_mode("default" if len(names) > 20 else "anchor")


def class_colours(run: RunFolder) -> NDArray[np.str_]:
    """The colour (C,) of each class's group."""
    colours = np.full(len(run.class_names), BLUE)
    for name, ids in run.groups.items():
        colours[ids] = GROUP_COLOURS.get(name, BLUE)
    return colours


def group_key(run: RunFolder, entry: Entry) -> list[Patch | Line2D]:
    """Keys of the groups with the mean recall of each."""
    return [
        Patch(color=GROUP_COLOURS.get(name, BLUE), label=f"{name} ({len(ids)} classes): {percent(number_of(entry, name))}")
        for name, ids in run.groups.items()
    ] or [Patch(color=BLUE, label="recall")]


def _share(counts: Floats | None) -> Floats | None:
    """Divide counts (C,) by their sum; None if they are unknown or there is none."""
    total = 0.0 if counts is None else np.nansum(counts)
    return None if counts is None or not total else np.nan_to_num(counts) / total


NUMBERED = 30  # up to so many classes, each cell of the confusion matrix says its percents
SMALL = 14  # up to so many classes, the confusion matrix fits beside another chart
NARROW, BROAD = 6.2, 9.4  # inches
WHITE_FROM = 0.75  # of full colour: from here white is easier to read on it than the page's ink
MOST_CELLS = 150  # along a side: more would be smaller than a pixel or two, so neighbours are put together


def confusion_chart(run: RunFolder, entry: Entry) -> Chart | None:
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
    figure, (axes,) = panels(1, 1, width=side, height=side * 0.86)
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
                axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=7.5, color=colour)
    name_panel(axes, x="predicted class", y="true class")
    axes.spines[:].set_visible(False)
    _shade_key(figure, {f"{shade**2:.0%}": shade for shade in (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)})
    together = f", {block} neighbours to a cell" if block > 1 else ""
    written = "Numbers are percents of the true class" if n <= NUMBERED else f"Classes stand from common to rare{together}"
    caption = f"{written}; look for colour left of the diagonal in the lower rows: rare classes taken for common ones."
    return chart(figure, "Confusion matrix", caption)


def pseudo_map_chart(run: RunFolder) -> Chart | None:
    """Draw coverage and precision of each class over time, or, without true labels, what was accepted of each class."""
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
        caption = "Look for rows that never take colour: nothing unlabelled is learned for those classes."
    if not drawn:
        return None
    figure, found = panels(1, len(drawn), height=min(7.0, max(2.6, 1.2 + 0.2 * n)))
    names = [short(run.class_names[c], 14) for c in run.order]
    for i, (axes, (title, grid)) in enumerate(zip(found, drawn.items(), strict=True)):
        _paint(axes, grid, n, grid.shape[1])
        _name_rows(axes, names if i == 0 else [""] * n)
        _name_columns(axes, [int(one["step"]) for one in run.pseudo], grid.shape[1])
        name_panel(axes, title, x="step", y="" if n <= NAMED or i else "class, most frequent first")
        axes.spines[:].set_visible(False)
    _shade_key(figure, {f"{shade:.0%}": shade for shade in (0.0, 0.25, 0.5, 0.75, 1.0)})
    return chart(figure, "Pseudo-labels of each class over time", caption)


def _paint(axes: Axes, grid: Floats, height: int, width: int) -> None:
    """Fill an axes of so many units with the cells of a grid: rectangles if few, an image if many."""
    axes.grid(visible=False)
    rows, columns = grid.shape
    shown = np.ma.masked_invalid(grid)
    if rows * columns <= NUMBERED**2:
        edges = np.linspace(0, width, columns + 1) - 0.5, np.linspace(0, height, rows + 1) - 0.5
        axes.pcolormesh(*edges, shown, cmap=FADE, vmin=0, vmax=1, linewidth=0, antialiased=False)
        axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    else:
        extent = (-0.5, width - 0.5, height - 0.5, -0.5)
        axes.imshow(shown, cmap=FADE, vmin=0, vmax=1, interpolation="none", aspect="auto", extent=extent)


def _name_rows(axes: Axes, names: list[str]) -> None:
    if len(names) <= NAMED:
        axes.set_yticks(np.arange(len(names)), names)
        axes.tick_params(length=0, labelsize=FONT - 0.5 if len(names) <= 25 else FONT - 2)


def _name_columns(axes: Axes, steps: list[int], columns: int) -> None:
    """Write the step under about six columns, evenly spaced; a column may stand for several windows."""
    stride = -(-columns // 6)
    at = np.arange(columns - 1, -1, -stride)[::-1]
    ends = [piece[-1] for piece in np.array_split(np.array(steps), columns)]
    axes.set_xticks(at, [f"{ends[i]:,}" for i in at])


def _over_time(run: RunFolder, key: str) -> Floats | None:
    """Return (rows, columns) of what the pseudo-label entries hold under ``key``: classes by rank and windows by step.

    Neighbours are averaged where there are more than MOST_CELLS. None if nothing is known.
    """
    n = len(run.class_names)
    found = [per_class(one, key, n) for one in run.pseudo]
    if not n or all(column is None for column in found):
        return None
    grid = np.stack([floats([None] * n) if column is None else column for column in found], axis=1)
    return _average(_average(grid[run.order]).T).T


def _average(grid: Floats) -> Floats:
    """Average neighbouring rows, leaving nan out, until at most MOST_CELLS are left."""
    pieces = np.array_split(grid, min(MOST_CELLS, len(grid)))
    known = np.stack([np.isfinite(piece).sum(axis=0) for piece in pieces])
    sums = np.stack([np.nansum(piece, axis=0) for piece in pieces])
    return np.where(known > 0, sums / np.maximum(known, 1), np.nan)


def _shade_key(figure: Figure, shades: dict[str, float]) -> None:
    """Say what shades mean, below the map."""
    fills = [(FADE(shade), label) for label, shade in shades.items()] + [(VEIL, "no data")]
    handles = [Patch(facecolor=fill, edgecolor=INK, linewidth=0.4, label=label) for fill, label in fills]
    figure.legend(handles=handles, loc="outside lower center", ncols=7, frameon=False, fontsize=FONT - 0.5, labelcolor=INK)


WIDTH, HEIGHT = 4.7, 5.33  # inches; as high as the confusion matrix it stands beside


def reliability_chart(entry: Entry, *, alone: bool = False, noun: str = "images") -> Chart | None:
    """Draw accuracy over confidence in bins with the gap between the two, and how many images each bin holds.

    The second panel stands below the first, or, with ``alone``, beside it across the page. What is counted is called ``noun``.
    """
    bins = entry.get("reliability")
    if not bins or not sum(bins["count"]):
        return None
    edges, accuracy, confidence = (floats(bins[key]) for key in ("edges", "accuracy", "confidence"))
    counts = floats(bins["count"])
    middles, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    if alone:
        figure, (top, bottom) = panels(1, 2, height=3.6)
    else:
        figure, (top, bottom) = panels(2, 1, width=WIDTH, height=HEIGHT, ratios=(3, 1))

    filled = (counts > 0) & np.isfinite(accuracy) & np.isfinite(confidence)
    x, right, sure = middles[filled], accuracy[filled], confidence[filled]
    top.bar(x, right, widths[filled] * 0.92, color=BLUE, alpha=0.55, label="accuracy", zorder=2)
    top.vlines(x, np.minimum(right, sure), np.maximum(right, sure), color=ORANGE, linewidth=1.6, zorder=3)
    half = widths[filled] * 0.32
    top.hlines(sure, x - half, x + half, color=ORANGE, linewidth=2.4, label="confidence", zorder=3)
    top.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=1.2, label="perfectly calibrated", zorder=4)
    key_below(figure)
    name_panel(top, f"ECE {percent(number_of(entry, 'ece'))}", x="confidence" if alone else "", y="accuracy")
    share_axis(top, whole=True)
    bottom.bar(middles, counts, widths * 0.92, color=MUTED)
    name_panel(bottom, x="confidence", y=noun)
    bottom.yaxis.set_major_formatter("{x:,.0f}")
    bottom.locator_params(axis="y", nbins=6 if alone else 3)
    for axes in (top, bottom):
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    caption = f"Orange above a bar is overconfidence, orange below its top is shyness; judge by the bins that hold many {noun}."
    return chart(figure, "Reliability", caption)
