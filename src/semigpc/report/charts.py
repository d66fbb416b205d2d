"""Charts that several pages have: recall, shares, confusions and pseudo-labels of each class.

Classes stand from the most to the least labelled one. Also curves over the steps, and reliability.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from semigpc.gp.certainty import ReliabilityBins
from semigpc.report import style
from semigpc.report.style import (
    BLUE,
    FONT,
    INK,
    MOST_NAMED_CLASSES,
    MUTED,
    ORANGE,
    Chart,
    Curve,
    Floats,
    floats,
    mean_known,
    per_class,
)
from semigpc.report.wording import ABSENT, Record, count, number_of, percent, short
from semigpc.training.run_folder import RunRecord

LAST_WINDOWS = 5  # of pseudo-labels, which count for the predicted shares at the end
LOG_RATIO = 15  # of the largest known share to the smallest, from which the scale is logarithmic
RANKS = "class, most frequent first"
MOST_NUMBERED = 30  # classes of a confusion matrix whose cells contain percentages
MOST_NARROW = 14  # classes of a confusion matrix that fits beside another chart
NARROW_INCHES = 6.2  # of a confusion matrix
BROAD_INCHES = 9.4
WHITE_FROM = 0.75  # of full colour, on which white is easier to read than the page's ink
MOST_CELLS = 150  # along a side of a map; more would be smaller than a pixel or two
UPRIGHT_LETTERS = 120  # of all class names that fit side by side along x
RELIABILITY_INCHES = (4.7, 5.33)  # as high as the confusion matrix beside it
Look = dict[str, Any]  # keyword arguments of matplotlib
MOST_POINTS = 300  # of a curve; neighbours in longer ones are averaged


@dataclass(frozen=True)
class ClassList:
    """The classes along an axis: names (C,), their labelled counts (C,) and their order (C,)."""

    names: Sequence[str]
    labelled: Floats | None
    order: NDArray[np.intp]

    @staticmethod
    def of_run(run: RunRecord) -> "ClassList":
        """Return the classes of a run."""
        return ClassList(run.class_names, run.counts("labeled_counts"), run.order)

    @staticmethod
    def by_count(names: Sequence[str], labelled: Floats) -> "ClassList":
        """Return classes in the order of their labelled counts."""
        return ClassList(names, labelled, np.argsort(-labelled, kind="stable"))

    @property
    def many(self) -> bool:
        """Whether there are too many to be named one by one."""
        return len(self.names) > MOST_NAMED_CLASSES


def class_axis(axes: Axes, classes: ClassList, title: str = "", *, averaged: bool = False) -> None:
    """Put the classes along x: by name and labelled count, or by rank if there are many.

    Args:
        axes: where the values are drawn.
        classes: in the order of the values.
        title: of the panel.
        averaged: whether lines are running means if there are many classes.
    """
    n = len(classes.names)
    ranks = f"{RANKS}{' (running means)' if averaged else ''}"
    style.name_panel(axes, title, x=ranks if classes.many else "")
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, n - 0.4)
    if classes.many:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
        return
    labels = [short(classes.names[c]) for c in classes.order]
    upright = max(len(label) for label in labels) * n <= UPRIGHT_LETTERS
    if classes.labelled is not None:
        counts = [count(classes.labelled[c]) for c in classes.order]
        form = "{}\n{}" if upright else "{} ({})"
        labels = [form.format(label, number) for label, number in zip(labels, counts, strict=True)]
    axes.set_xticks(np.arange(n), labels)
    axes.tick_params(axis="x", length=0, labelsize=FONT - 0.5 if n <= 20 else FONT - 1.5)
    if not upright:
        for label in axes.get_xticklabels():
            label.set(rotation=90 if n > 20 else 38, ha="center" if n > 20 else "right")
            label.set_rotation_mode("default" if n > 20 else "anchor")


def draw_curve(axes: Axes, curve: Curve, **look: Any) -> None:
    """Draw steps and values (S,); few points are marked, and of many, neighbours are averaged."""
    if len(curve[0]) > MOST_POINTS:
        pieces = [np.array_split(numbers, MOST_POINTS) for numbers in curve]
        steps, values = (np.array([piece.mean() for piece in each]) for each in pieces)
    else:
        steps, values = curve
    few = len(steps) <= style.MOST_MARKED_POINTS
    marks = {"marker": "o", "markersize": 3.2} if few else {}
    axes.plot(steps, values, **{"linewidth": 1.8, **marks, **look})


# Recall and shares --------------------------------------------------------------------------------


def recall_chart(run: RunRecord, figures: Record) -> Chart | None:
    """Draw the recall of each class as a bar in the colour of its group, and precision as a dot."""
    classes = ClassList.of_run(run)
    n = len(classes.names)
    recall = per_class(figures, "per_class_recall", n)
    if recall is None or not n:
        return None
    figure, (axes,) = style.panels(1, 1, height=3.6)
    colours = np.full(n, BLUE)
    handles: list[Patch | Line2D] = []
    for name, ids in run.groups.items():
        colour = style.GROUP_COLOURS.get(name, BLUE)
        colours[ids] = colour
        label = f"{name} ({len(ids)} classes): {percent(number_of(figures, name))}"
        handles.append(Patch(color=colour, label=label))
    handles = handles or [Patch(color=BLUE, label="recall")]
    x = np.arange(n)
    ranked = recall[classes.order]
    colours = colours[classes.order]
    if classes.many:
        axes.scatter(x, ranked, c=colours, s=7, linewidths=0, alpha=0.8, zorder=2)
        axes.plot(x, style.running_mean(ranked), color=INK, linewidth=1.8, zorder=3)
        handles.append(Line2D([], [], color=INK, linewidth=1.8, label="running mean"))
    else:
        axes.bar(x, np.nan_to_num(ranked), color=colours, width=0.72, zorder=2)
        for place in x[np.isnan(ranked)]:
            axes.text(place, 0.02, ABSENT, ha="center", color=INK, fontsize=FONT + 3)
        precision = per_class(figures, "per_class_precision", n)
        if precision is not None:
            shown = np.where(np.isfinite(ranked), precision[classes.order], np.nan)
            look: Look = {"linestyle": "none", "marker": "D", "markersize": 5, "color": INK}
            edge: Look = {"markeredgecolor": style.PAPER, "markeredgewidth": 1}
            axes.plot(x, shown, **look, **edge, zorder=4)
            handles.append(Line2D([], [], **look, label="precision"))
    above: Look = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 5}
    axes.legend(handles=handles, frameon=False, fontsize=9, labelcolor=INK, **above)
    class_axis(axes, classes)
    style.share_axis(axes, whole=True)
    caption = _recall_caption(classes, int(np.isnan(recall).sum()), grouped=bool(run.groups))
    return style.chart(figure, "Recall of each class", caption)


def _recall_caption(classes: ClassList, unmeasured: int, *, grouped: bool) -> str:
    reading = "The number by a name is its count of labelled images; look"
    if classes.many:
        reading = "Each dot is a class; look"
    where = "which classes are hardly found"
    if grouped:
        where = "how far recall falls from the common classes on the left to the rare on the right"
    gap = f" (classes without images to measure on, left empty: {unmeasured})" if unmeasured else ""
    return f"{reading} at {where}{gap}."


@dataclass(frozen=True)
class ClassShares:
    """Shares (C,) of the classes among labels, among the last pseudo-labels, and in truth."""

    given: Floats | None
    believed: Floats | None
    true: Floats | None

    @staticmethod
    def of_run(run: RunRecord) -> "ClassShares":
        """Return the shares of a run, as far as they are known."""
        windows = run.pseudo[-LAST_WINDOWS:]

        def summed(key: str) -> Floats | None:
            counts = [per_class(window, key, len(run.class_names)) for window in windows]
            known = [row for row in counts if row is not None]
            return np.sum(known, axis=0) if known else None

        def share(counts: Floats | None) -> Floats | None:
            total = 0.0 if counts is None else np.nansum(counts)
            return np.nan_to_num(counts) / total if counts is not None and total else None

        true = run.counts("unlabeled_counts")
        return ClassShares(
            given=share(run.counts("labeled_counts")),
            believed=share(summed("believed_counts")),
            true=share(summed("true_counts") if true is None else true),
        )

    @property
    def known(self) -> list[Floats]:
        """The shares that do not come from predictions."""
        return [shares for shares in (self.given, self.true) if shares is not None]


TRUE_LOOK: Look = {"color": MUTED, "linewidth": 6, "alpha": 0.45}
GIVEN_LOOK: Look = {"color": BLUE, "linestyle": (0, (4, 2))}


def share_chart(run: RunRecord) -> Chart | None:
    """Draw the share of each class among labels, among pseudo-labels and, where known, in truth."""
    classes = ClassList.of_run(run)
    shares = ClassShares.of_run(run)
    if shares.given is None and shares.believed is None:
        return None
    lines: list[tuple[Floats, Look]] = []
    order = classes.order
    if shares.true is not None:
        lines.append((shares.true[order], TRUE_LOOK | {"label": "true, among the unlabelled"}))
    if shares.given is not None:
        lines.append((shares.given[order], GIVEN_LOOK | {"label": "given, among the labelled"}))
    if shares.believed is not None:
        believed = shares.believed[order]
        label = "predicted, by the last pseudo-labels"
        if classes.many:
            averaged = style.running_mean(believed)
            lines.append((believed, {"color": ORANGE, "linewidth": 0.7, "alpha": 0.5}))
            lines.append((averaged, {"color": ORANGE, "label": f"{label} (bold: running mean)"}))
        else:
            lines.append((believed, {"color": ORANGE, "marker": "o", "label": label}))
    truth = "the true share"
    if shares.true is None:
        truth = "the share given, if the unlabelled images are drawn alike"
    caption = (
        f"The predicted share should follow {truth}; a class below it is overlooked, one above it "
        "attracts images of others."
    )
    if shares.believed is None:
        caption = "No pseudo-labels were made; look at how uneven the labels are over the classes."
    title = "Class counts: given, predicted, true"
    return share_lines_chart(classes, lines, shares.known, title, caption)


def share_lines_chart(
    classes: ClassList,
    lines: Sequence[tuple[Floats, Look]],
    known: Sequence[Floats],
    title: str,
    caption: str,
    *,
    averaged: bool = False,
) -> Chart:
    """Draw shares (C,) by rank, each with its look; those in ``known`` decide the scale."""
    figure, (axes,) = style.panels(1, 1, height=3.6)
    for shares, look in lines:
        draw_shares(axes, shares, **look)
    share_scale(axes, known)
    class_axis(axes, classes, averaged=averaged)
    style.key_below(figure)
    return style.chart(figure, title, caption)


def draw_shares(axes: Axes, shares: Floats, **look: Any) -> None:
    """Draw shares (C,) as a line over the ranks of the classes."""
    axes.plot(np.arange(len(shares)), shares, **{"linewidth": 1.8, "markersize": 4.5, **look})


def share_scale(axes: Axes, known: Sequence[Floats]) -> None:
    """Count percents along y, on a log scale if the known shares (C,) lie far apart.

    Values near zero are then drawn at the lower end.
    """
    positive = np.concatenate([shares[shares > 0] for shares in known]) if known else np.ones(1)
    if positive.max() / positive.min() < LOG_RATIO:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    else:
        drawn = [np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines]
        lowest = min(values.min() for values in drawn)
        highest = max(values.max() for values in drawn)
        floor = max(positive.min() / 4, 0.7 * lowest)
        for line, values in zip(axes.lines, drawn, strict=True):
            line.set_ydata(np.maximum(values, floor))
        axes.set_yscale("log")
        axes.set_ylim(floor * 0.9, 1.5 * highest)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(style.percents())


# Maps of numbers between 0 and 1 ------------------------------------------------------------------


def confusion_chart(run: RunRecord, rows: Sequence[Sequence[int]] | None) -> Chart | None:
    """Draw the predictions (columns) for images of each true class (rows), from counts (C, C)."""
    if not rows:
        return None
    classes = ClassList.of_run(run)
    n = len(classes.names)
    matrix = np.array(rows, dtype=np.float64)[np.ix_(classes.order, classes.order)]
    block = -(-n // MOST_CELLS)
    starts = np.arange(0, n, block)
    matrix = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    totals = matrix.sum(axis=1, keepdims=True)
    shares = np.divide(matrix, totals, out=np.full_like(matrix, np.nan), where=totals > 0)
    side = BROAD_INCHES if MOST_NARROW < n <= MOST_NUMBERED else NARROW_INCHES
    figure, (axes,) = style.panels(1, 1, width=side, height=side * 0.86)
    _paint(axes, np.sqrt(shares), n, n)  # the root, so that a few percents are seen
    axes.set_aspect("equal")
    names = [short(classes.names[c], 14) for c in classes.order]
    _name_rows(axes, names)
    if not classes.many:
        axes.set_xticks(np.arange(n), names, rotation=90 if max(map(len, names)) > 2 else 0)
    if n <= MOST_NUMBERED:
        _write_percentages(axes, shares)
    style.name_panel(axes, x="predicted class", y="true class")
    _shade_key(figure, {f"{shade**2:.0%}": shade for shade in (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)})
    together = f", {block} neighbours to a cell" if block > 1 else ""
    reading = f"Classes stand from common to rare{together}"
    if n <= MOST_NUMBERED:
        reading = "Numbers are percents of the true class"
    caption = (
        f"{reading}; look for colour left of the diagonal in the lower rows: rare classes taken "
        "for common ones."
    )
    return style.chart(figure, "Confusion matrix", caption)


def _write_percentages(axes: Axes, shares: Floats) -> None:
    for (row, column), share in np.ndenumerate(shares):
        if share >= 0.005:
            colour = "white" if np.sqrt(share) >= WHITE_FROM else INK
            look: Look = {"ha": "center", "va": "center", "fontsize": 7.5, "color": colour}
            axes.text(column, row, f"{100 * share:.0f}", **look)


def pseudo_map_chart(run: RunRecord) -> Chart | None:
    """Draw coverage and precision of the pseudo-labels of each class over time.

    Without true labels, draw how many of those predicted to be of a class were accepted.
    """
    n = len(run.class_names)
    maps = {
        "Coverage, by true class": _over_time(run, "per_class_coverage"),
        "Precision, by predicted class": _over_time(run, "per_class_precision"),
    }
    caption = (
        "Images of a class that stays pale on the left are ignored; a class that is pale on the "
        "right attracts wrong ones."
    )
    if all(grid is None for grid in maps.values()):
        maps = {"Accepted, of those predicted to be of the class": _accepted_over_time(run)}
        caption = "Look for rows that stay pale: nothing unlabelled is learned for those classes."
    drawn = {title: grid for title, grid in maps.items() if grid is not None}
    if not drawn:
        return None
    figure, grids = style.panels(1, len(drawn), height=min(7.0, max(2.6, 1.2 + 0.2 * n)))
    names = [short(run.class_names[c], 14) for c in run.order]
    steps = [window["step"] for window in run.pseudo]
    for i, (axes, (title, grid)) in enumerate(zip(grids, drawn.items(), strict=True)):
        columns = grid.shape[1]
        _paint(axes, grid, n, columns)
        _name_rows(axes, names if i == 0 else [""] * n)
        stride = -(-columns // 6)  # so that about six columns are named
        at = np.arange(columns - 1, -1, -stride)[::-1]
        ends = [piece[-1] for piece in np.array_split(steps, columns)]
        axes.set_xticks(at, [f"{ends[column]:,}" for column in at])
        style.name_panel(axes, title, x="step", y="" if n <= MOST_NAMED_CLASSES or i else RANKS)
    _shade_key(figure, {f"{shade:.0%}": shade for shade in (0.0, 0.25, 0.5, 0.75, 1.0)})
    return style.chart(figure, "Pseudo-labels of each class over time", caption)


def _accepted_over_time(run: RunRecord) -> Floats | None:
    """Return the share that was accepted of the images predicted to be of each class."""
    accepted = _over_time(run, "accepted_counts")
    believed = _over_time(run, "believed_counts")
    if accepted is None or believed is None:
        return None
    rate = np.where(believed > 0, accepted / np.maximum(believed, 1e-12), np.nan)
    return np.minimum(rate, 1)


def _over_time(run: RunRecord, key: str) -> Floats | None:
    """Return (rows, columns) of figures of the pseudo-labels: classes by rank, windows by step.

    Neighbours are averaged where there are more than MOST_CELLS. None if nothing is known.
    """
    n = len(run.class_names)
    columns = [per_class(window, key, n) for window in run.pseudo]
    if not n or all(column is None for column in columns):
        return None
    unknown = np.full(n, np.nan)
    known = [unknown if column is None else column for column in columns]
    grid = np.stack(known, axis=1)[run.order]
    for _ in range(2):  # along the classes, then along the windows
        pieces = np.array_split(grid, min(MOST_CELLS, len(grid)))
        grid = np.stack([mean_known(piece) for piece in pieces]).T
    return grid


def _paint(axes: Axes, grid: Floats, height: int, width: int) -> None:
    """Fill axes of so many units with the cells of a grid: rectangles if few, an image if many."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    rows, columns = grid.shape
    shown = np.ma.masked_invalid(grid)
    look: Look = {"cmap": style.SHADES, "vmin": 0, "vmax": 1}
    if rows * columns <= MOST_NUMBERED**2:
        x = np.linspace(0, width, columns + 1) - 0.5
        y = np.linspace(0, height, rows + 1) - 0.5
        axes.pcolormesh(x, y, shown, linewidth=0, antialiased=False, **look)
        axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    else:
        extent = (-0.5, width - 0.5, height - 0.5, -0.5)
        axes.imshow(shown, interpolation="none", aspect="auto", extent=extent, **look)


def _name_rows(axes: Axes, names: list[str]) -> None:
    if len(names) <= MOST_NAMED_CLASSES:
        axes.set_yticks(np.arange(len(names)), names)
        axes.tick_params(length=0, labelsize=FONT - 0.5 if len(names) <= 25 else FONT - 2)


def _shade_key(figure: Figure, shades: dict[str, float]) -> None:
    """Explain the shades, below the map."""
    fills = [(style.SHADES(shade), label) for label, shade in shades.items()]
    fills.append((style.UNKNOWN_SHADE, "no data"))
    figure.legend(
        handles=[
            Patch(facecolor=fill, edgecolor=INK, linewidth=0.4, label=label)
            for fill, label in fills
        ],
        loc="outside lower center",
        ncols=7,
        frameon=False,
        fontsize=FONT - 0.5,
        labelcolor=INK,
    )


# Reliability --------------------------------------------------------------------------------------


def reliability_chart(
    bins: ReliabilityBins | None,
    ece: float | None,
    *,
    temperature: float | None = None,
    beside: bool = False,
    noun: str = "images",
) -> Chart | None:
    """Draw accuracy over confidence in bins with the gap between the two, and the size of each bin.

    Args:
        bins: of confidence; None if they are not known.
        ece: expected calibration error.
        temperature: that logits were divided by.
        beside: the second panel stands beside the first, across the page, instead of below.
        noun: what is counted.
    """
    if not bins or not sum(bins["count"]):
        return None
    edges = floats(bins["edges"])
    counts = floats(bins["count"])
    middles = (edges[1:] + edges[:-1]) / 2
    widths = np.diff(edges)
    if beside:
        figure, (top, bottom) = style.panels(1, 2, height=3.6)
    else:
        width, height = RELIABILITY_INCHES
        figure, (top, bottom) = style.panels(2, 1, width=width, height=height, ratios=(3, 1))
    _draw_gaps(top, bins, middles, widths)
    style.key_below(figure)
    style.name_panel(top, f"ECE {percent(ece)}", x="confidence" if beside else "", y="accuracy")
    style.share_axis(top, whole=True)
    bottom.bar(middles, counts, widths * 0.92, color=MUTED)
    style.name_panel(bottom, x="confidence", y=noun)
    bottom.yaxis.set_major_locator(MaxNLocator(nbins=6 if beside else 3, integer=True))
    bottom.yaxis.set_major_formatter("{x:,.0f}")
    for axes in (top, bottom):
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    scaled = ""
    if temperature is not None:
        scaled = f"Confidence as predict returns it, with the temperature {temperature:.2g}. "
    caption = (
        f"{scaled}Orange above a bar: labels are right less often than their confidence says; "
        "orange below its top: more often. The expected calibration error (ECE) is the mean gap. "
        f"Bins with few {noun} say little."
    )
    return style.chart(figure, "Reliability", caption)


def _draw_gaps(axes: Axes, bins: ReliabilityBins, middles: Floats, widths: Floats) -> None:
    """Draw accuracy and confidence of the bins that are not empty, and a line between the two."""
    accuracy = floats(bins["accuracy"])
    confidence = floats(bins["confidence"])
    filled = (floats(bins["count"]) > 0) & np.isfinite(accuracy) & np.isfinite(confidence)
    x = middles[filled]
    right = accuracy[filled]
    sure = confidence[filled]
    bar = widths[filled] * 0.92
    axes.bar(x, right, bar, color=BLUE, alpha=0.55, label="accuracy", zorder=2)
    low = np.minimum(right, sure)
    high = np.maximum(right, sure)
    axes.vlines(x, low, high, color=ORANGE, linewidth=1.6, zorder=3)
    half = widths[filled] * 0.32
    axes.hlines(sure, x - half, x + half, color=ORANGE, linewidth=2.4, label="confidence", zorder=3)
    diagonal: Look = {"color": INK, "linestyle": ":", "linewidth": 1.2, "zorder": 4}
    axes.plot([0, 1], [0, 1], **diagonal, label="perfectly calibrated")
