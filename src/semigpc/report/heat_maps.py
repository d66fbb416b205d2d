"""Maps of numbers between 0 and 1: which class is taken for which, and the pseudo-labels of each class over time."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from semigpc.report.chart_style import FADE, FONT, INK, NAMED, VEIL, Chart, chart, name_panel, panels
from semigpc.report.run_folder import Entry, Floats, RunFolder, floats, per_class
from semigpc.report.wording import short

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
