"""How pages and their charts look: colours, axes, and SVG within HTML.

A figure is drawn once and must read on light and on dark paper. So its text, grid and paper are
drawn in four inks that stand for variables of the page's style sheet, and data are drawn in colours
of middle lightness, seen on both.
"""

import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from semigpc.io.atomic import write_text
from semigpc.report.wording import (
    Record,
    count,
    counted,
    duration,
    metric_name,
    number_of,
    percent,
    points,
)

Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]  # steps (S,) and values (S,)

INK = "#222222"
MUTED = "#6b6b6c"
GRID = "#d8d8d9"
PAPER = "#fefefd"
THEME = {INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"}
BLUE = "#0077BB"
ORANGE = "#D55E00"
GREEN = "#009E73"
PURPLE = "#AA4499"
GOLD = "#B8860B"
GREY = "#7F7F7F"
GROUP_COLOURS = {"many": BLUE, "medium": GREEN, "few": ORANGE}
# From transparent to opaque, so that zero is the page's own colour. Unknown values are grey.
UNKNOWN_SHADE = (0.5, 0.5, 0.5, 0.22)
SHADES = LinearSegmentedColormap.from_list(
    "shades", [(0, 0.467, 0.733, 0), (0, 0.467, 0.733, 1)]
).with_extremes(bad=UNKNOWN_SHADE)

PAGE_WIDTH = 11.0  # inches
FONT = 9.0  # points of ordinary text
MOST_NAMED_CLASSES = 40  # named one by one; more are drawn by rank, with running means
MOST_MARKED_POINTS = 30  # of a curve whose points are marked
MOST_OPEN_ROWS = 40  # of a table; longer ones start folded
NO_STAMP = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # equal charts are equal text
SVG_IDS = r'\bid="(?:figure|axes|patch|text|line2d|matplotlib|legend|xtick|ytick)[^"]*"'


@dataclass(frozen=True)
class Chart:
    """A finished chart: heading, one sentence on what to look at, drawing, and width in inches."""

    title: str
    caption: str
    svg: Markup
    width: float


def write_page(path: Path, template: str, context: Mapping[str, object]) -> Path:
    """Fill a template and write it: one file that loads nothing from the network."""
    environment = Environment(
        loader=PackageLoader("semigpc.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "points": points,
        "count": count,
        "duration": duration,
        "number": number_of,
        "metric": metric_name,
        "counted": counted,
    }
    page = environment.get_template(template).render(folded=MOST_OPEN_ROWS, **context)
    write_text(path, page)
    return path


# Numbers to draw ----------------------------------------------------------------------------------


def floats(values: Iterable[float | None]) -> Floats:
    """Return numbers that may be null as an array with NaN."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def per_class(record: Record, key: str, n_classes: int) -> Floats | None:
    """Return the numbers (C,) under ``key``, NaN for null; None if there are not C of them."""
    values = record.get(key)
    if not isinstance(values, Sequence) or len(values) != n_classes:
        return None
    return floats(values)


def series(records: Iterable[Record], key: str) -> Curve:
    """Return steps and values of the records in which ``key`` is a finite number."""
    pairs = [(number_of(record, "step"), number_of(record, key)) for record in records]
    known = [(step, value) for step, value in pairs if value is not None]
    return floats(step for step, _ in known), floats(value for _, value in known)


def mean_known(rows: Floats | Sequence[Floats]) -> Floats:
    """Return the mean over the first axis without NaN; NaN where there is nothing else."""
    known = np.isfinite(rows).sum(axis=0)
    return np.where(known > 0, np.nansum(rows, axis=0) / np.maximum(known, 1), np.nan)


def running_mean(values: Floats) -> Floats:
    """Average each value (C,) with its neighbours, about a twentieth of all, without NaN."""
    reach = max(2, len(values) // 40)
    windows = [values[max(0, i - reach) : i + reach + 1] for i in range(len(values))]
    return np.array([mean_known(window) for window in windows])


# Figures ------------------------------------------------------------------------------------------


def panels(
    rows: int,
    columns: int,
    *,
    width: float = PAGE_WIDTH,
    height: float,
    ratios: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Return a bare figure and its panels, row by row; ``ratios`` are those of the row heights."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    grid = figure.add_gridspec(rows, columns, height_ratios=ratios)
    every = [figure.add_subplot(grid[place]) for place in np.ndindex(rows, columns)]
    for axes in every:
        axes.set_facecolor("none")
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(MUTED)
        axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=FONT - 0.5)
        axes.grid(color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
    return figure, every


def name_panel(axes: Axes, title: str = "", *, x: str = "", y: str = "") -> None:
    """Write the title of a panel at its left, and name its axes."""
    axes.set_title(title, loc="left", fontsize=FONT + 1, color=INK, fontweight="bold")
    axes.set_xlabel(x, fontsize=FONT, color=INK)
    axes.set_ylabel(y, fontsize=FONT, color=INK)


def step_axis(axes: Axes) -> None:
    """Count steps along x, in whole numbers with a thousands separator."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("step", fontsize=FONT, color=INK)


def share_axis(axes: Axes, *, whole: bool = False) -> None:
    """Count percents along y, around the data drawn so far or from 0 to 100."""
    low, high = (0.0, 1.0) if whole else axes.get_ylim()
    room = 0.02 * (high - low)
    axes.set_ylim(max(low, -0.02), min(high, 1.0) + room)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(percents())


def percents() -> FuncFormatter:
    """Return a formatter of ticks that writes shares as percents, with the decimals they need."""
    return FuncFormatter(lambda share, _: f"{round(100 * share, 6):g}%")


def name_places(axes: Axes, names: Sequence[str]) -> None:
    """Name the places along y from the top down, one bar or dot each."""
    axes.set_yticks(np.arange(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def key_below(figure: Figure) -> None:
    """Write one key for all panels below them, with each name once, in one row or four columns."""
    pairs = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
    named = {label: handle for panel in pairs for handle, label in panel}
    if named:
        figure.legend(
            named.values(),
            named.keys(),
            loc="outside lower center",
            ncols=len(named) if len(named) <= 5 else 4,
            frameon=False,
            fontsize=FONT,
            handlelength=3,
            labelcolor=INK,
        )


def chart(figure: Figure, title: str, caption: str) -> Chart:
    """Turn a figure into a chart for the page."""
    return Chart(title, caption, _inline(figure, title), float(figure.get_size_inches()[0]))


def chart_rows(*rows: Sequence[Chart | None]) -> list[list[Chart]]:
    """Drop the charts that could not be drawn, and rows without any."""
    kept = [[one for one in row if one is not None] for row in rows]
    return [row for row in kept if row]


def _inline(figure: Figure, title: str) -> Markup:
    """Return a figure as SVG within HTML: theme inks as variables, text as text, ids of its own."""
    drawn = StringIO()
    settings = mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "semigpc"})
    with settings, warnings.catch_warnings():
        # The reader's browser draws the text, with its own fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(drawn, format="svg", metadata=NO_STAMP, dpi=150)
    svg = drawn.getvalue()
    mark = "c" + hashlib.sha1((title + svg).encode()).hexdigest()[:8]
    svg = svg[svg.index("<svg") :]
    opening = rf'<svg \1 role="img" aria-labelledby="{mark}-name">'
    svg = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", opening, svg, count=1)
    # The style sheet would hold for the whole page.
    svg = re.sub(r"<style.*?</style>", "", svg, count=1, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(SVG_IDS, "", svg)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{mark}-", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", svg)
    for ink, variable in THEME.items():
        svg = svg.replace(f": {ink}", f": {variable}")
    head, body = svg.split(">", 1)
    return Markup(f'{head}><title id="{mark}-name">{escape(title)}</title>{body}')
