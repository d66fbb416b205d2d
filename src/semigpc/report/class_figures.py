"""Charts with one place for each class, most labelled first: recall, and how often each class is believed to occur."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from semigpc.report.chart_style import (
    BLUE,
    FONT,
    GROUP_COLOURS,
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
from semigpc.report.run_folder import Entry, Floats, RunFolder, per_class
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
