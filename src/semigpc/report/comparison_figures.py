"""Charts of a comparison: one fixed colour for each cell, means over seeds, bands from the lowest to the highest seed."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from semigpc.report.chart_style import (
    FONT,
    FULL,
    GREY,
    INK,
    MUTED,
    NAMED,
    PAPER,
    Chart,
    chart,
    key_below,
    name_panel,
    panels,
    running_mean,
    share_axis,
    step_axis,
)
from semigpc.report.class_figures import RANKS, class_axis, class_shares, draw_shares, share_scale
from semigpc.report.comparison_folder import Cell, Comparison, mean_of
from semigpc.report.run_folder import Entry, Floats, RunFolder, floats
from semigpc.report.training_figures import FEW_POINTS
from semigpc.report.wording import ALGORITHMS, metric_name, short
from semigpc.text import points

Pick = Callable[[Entry, RunFolder], Sequence[Entry]]


def difference_chart(comparison: Comparison) -> Chart | None:
    """Draw each pair's difference as a dot for each seed, and their mean as a bar."""
    pairs = [pair for pair in comparison.record.get("pairs") or [] if pair.get("differences")]
    if not pairs:
        return None
    colours = {cell.name: cell.colour for cell in comparison.cells}
    figure, (axes,) = panels(1, 1, height=0.9 + 0.42 * len(pairs))
    for row, pair in enumerate(pairs):
        colour = colours.get(str(pair.get("with")), GREY)
        differences = 100 * floats(pair["differences"])
        spread = (np.arange(len(differences)) - (len(differences) - 1) / 2) * min(0.09, 0.5 / len(differences))
        mean = 100 * float(pair["mean_difference"])
        axes.plot([mean, mean], [row - 0.33, row + 0.33], color=INK, linewidth=2.6, zorder=3)
        axes.scatter(differences, row + spread, s=38, color=colour, edgecolors=PAPER, linewidths=0.8, zorder=4)
        axes.text(1.01, row, points(mean / 100), transform=axes.get_yaxis_transform(), va="center", fontsize=FONT, color=INK)
    axes.axvline(0, color=MUTED, linewidth=1.2)
    axes.set_yticks(range(len(pairs)), [short(str(pair["name"]), 40) for pair in pairs])
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    reach = 1.12 * max(0.1, *(abs(100 * value) for pair in pairs for value in pair["differences"] if value is not None))
    axes.set_xlim(min(-0.15 * reach, axes.get_xlim()[0]), max(0.15 * reach, axes.get_xlim()[1]))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    name_panel(axes, x=f"difference in {metric_name(comparison.metric).lower()}, percentage points")
    caption = "Dots are seeds, the bar their mean; look for all dots on one side of zero, which with few seeds can be chance."
    return chart(figure, "Paired differences, seed by seed", caption)


def curve_chart(comparison: Comparison) -> Chart | None:
    """Draw the metric over training for all cells."""

    def pick(result: Entry, run: RunFolder) -> Sequence[Entry]:
        return run.curve(str(result.get("part", "test")), str(result.get("head", run.head)))

    name = metric_name(comparison.metric)
    caption = "Lines are means and bands span all seeds; look at where the lines part, and whether the bands overlap."
    return _over_steps(comparison, {name: (pick, comparison.metric)}, f"{name} over training", caption, whole=False)


def pseudo_chart(comparison: Comparison) -> Chart | None:
    """Draw coverage and precision of the pseudo-labels over training for all cells."""
    entries: Pick = lambda _, run: run.pseudo  # noqa: E731
    measures = {"Coverage": (entries, "coverage"), "Precision": (entries, "precision")}
    caption = "The better method is higher on both sides; a gain in coverage that costs precision is no gain."
    return _over_steps(comparison, measures, "Quality of the pseudo-labels", caption, whole=True)


def recall_chart(comparison: Comparison) -> Chart | None:
    """Draw the recall of each class for all cells."""
    n = len(comparison.reference.class_names)
    caption = "Classes stand from common to rare; look at how far each line falls on the right."
    return _over_classes(
        comparison, lambda cell: cell.mean_per_class("per_class_recall", n), "Recall of each class", caption, shares=False
    )


def share_chart(comparison: Comparison) -> Chart | None:
    """Draw how often each cell believes each class to occur, against the truth where it is known."""

    def believed(cell: Cell) -> Floats | None:
        found = [shares for _, run in cell.runs if (shares := class_shares(run)[1]) is not None]
        return mean_of(found) if found else None

    known = class_shares(comparison.reference)[2] is not None
    against = "the broad grey line, the truth" if known else "the dotted line, the share among the labels"
    caption = f"Pseudo-labels should follow {against}; a method that falls below it on the right overlooks rare classes."
    return _over_classes(comparison, believed, "Class counts: believed and true", caption, shares=True)


def _over_steps(
    comparison: Comparison, measures: dict[str, tuple[Pick, str]], title: str, caption: str, *, whole: bool
) -> Chart | None:
    """Draw measures of all cells over steps: a panel for each measure, and a row for each group of cells."""
    curves = {
        (name, cell.name): found
        for name, (pick, key) in measures.items()
        for cell in comparison.cells
        if (found := cell.over_steps(pick, key)) is not None
    }
    shown = [name for name in measures if any(measure == name for measure, _ in curves)]
    if not curves:
        return None
    drawn = {cell for _, cell in curves}
    groups = [(group, cells) for group, cells in comparison.groups() if any(cell.name in drawn for cell in cells)]
    places = [(group, cells, name) for group, cells in groups for name in shown]
    figure, found_panels = _grid(len(places), columns=2 if len(shown) == 2 else 3)
    for axes, (group, cells, name) in zip(found_panels, places, strict=True):
        for cell in cells:
            if (name, cell.name) in curves:
                _draw_band(axes, cell, *curves[name, cell.name])
        heading = [ALGORITHMS.get(group, group)] if group else []
        name_panel(axes, ": ".join(heading + ([name] if len(shown) > 1 else [])))
        step_axis(axes)
    _same_limits(found_panels)
    for axes in found_panels:
        share_axis(axes, whole=whole)
    key_below(figure)
    return chart(figure, title, caption)


def _over_classes(
    comparison: Comparison, values: Callable[[Cell], Floats | None], title: str, caption: str, *, shares: bool
) -> Chart | None:
    """Draw one number for each class and cell, classes by rank, a panel for each group of cells."""
    reference = comparison.reference
    n, order = len(reference.class_names), reference.order
    found = {cell.name: numbers for cell in comparison.cells if (numbers := values(cell)) is not None and len(numbers) == n}
    if not found or not n:
        return None
    groups = [(group, cells) for group, cells in comparison.groups() if any(cell.name in found for cell in cells)]
    figure, places = panels(len(groups), 1, height=3.9 if len(groups) == 1 else 1.0 + 2.1 * len(groups))
    given, _, true = class_shares(reference)
    for axes, (group, cells) in zip(places, groups, strict=True):
        if shares and true is not None:
            draw_shares(axes, true[order], color=MUTED, linewidth=6, alpha=0.45, label="true, among the unlabelled")
        elif shares and given is not None:
            draw_shares(axes, given[order], color=INK, linestyle=":", label="given, among the labelled")
        for cell in (cell for cell in cells if cell.name in found):
            numbers = found[cell.name][order]
            marks = {"marker": cell.marker} if n <= NAMED else {}
            draw_shares(axes, numbers if n <= NAMED else running_mean(numbers), **cell.line, **marks, label=_key_name(cell))
        if shares:
            share_scale(axes, [known for known in (given, true) if known is not None])
        else:
            share_axis(axes, whole=True)
        class_axis(axes, reference)
        lowest = axes is places[-1]
        axes.tick_params(axis="x", labelbottom=lowest)
        name_panel(axes, ALGORITHMS.get(group, short(group, 40)), x=f"{RANKS} (running means)" if lowest and n > NAMED else "")
    key_below(figure)
    return chart(figure, title, caption)


def _key_name(cell: Cell) -> str:
    name = short(cell.label, 40)
    return f" {name}" if name.startswith("_") else name  # matplotlib leaves a name out of keys that begins with an underscore


def _draw_band(axes: Axes, cell: Cell, steps: Floats, values: Floats) -> None:
    """Draw the mean over runs of values (runs, S), and a band around it if there are several."""
    marker = cell.marker if len(steps) <= FEW_POINTS else ""
    axes.plot(steps, values.mean(axis=0), **cell.line, marker=marker, markersize=3.5, label=_key_name(cell))
    if len(values) > 1:
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=cell.colour, alpha=0.15, linewidth=0)


def _grid(n: int, *, columns: int) -> tuple[Figure, list[Axes]]:
    """Lay out n panels in rows of at most so many columns."""
    across = min(columns, n)
    rows = -(-n // across)
    figure, found = panels(rows, across, width=FULL, height=4.2 if rows == across == 1 else 0.5 + 2.8 * rows)
    for axes in found[n:]:
        axes.remove()
    return figure, found[:n]


def _same_limits(found: Sequence[Axes]) -> None:
    limits = [axes.get_ylim() for axes in found]
    for axes in found:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
