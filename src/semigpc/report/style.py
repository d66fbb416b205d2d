"""How pages and their charts look, and how a figure becomes part of a page.

A figure is drawn once and must read on light and on dark paper. So its text, grid and paper are
drawn in four inks that stand for variables of the page's style sheet, and data are drawn in colours
of middle lightness, seen on both.
"""

import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

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
from semigpc.report.wording import count, counted, duration, metric_name, number_of, percent, points

Entry = Mapping[str, Any]  # one line of a run, or one cell of a comparison
Floats = NDArray[np.float64]

INK, MUTED, GRID, PAPER = "#222222", "#6b6b6c", "#d8d8d9", "#fefefd"
THEME = {INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"}
BLUE, ORANGE, GREEN, PURPLE, GOLD, GREY = (
    "#0077BB",
    "#D55E00",
    "#009E73",
    "#AA4499",
    "#B8860B",
    "#7F7F7F",
)
GROUP_COLOURS = {"many": BLUE, "medium": GREEN, "few": ORANGE}
# From see-through to full, so that zero is the page's own colour. What is not known is a grey veil.
VEIL = (0.5, 0.5, 0.5, 0.22)
FADE = LinearSegmentedColormap.from_list(
    "fade", [(0, 0.467, 0.733, 0), (0, 0.467, 0.733, 1)]
).with_extremes(bad=VEIL)

FULL, FONT = 11.0, 9.0  # inches across the page, points of ordinary text
NAMED = 40  # up to so many classes are named one by one; more thin out to ranks and running means
FEW_POINTS = 30  # up to so many, each point of a curve is marked
FOLDED = 40  # tables with more rows start folded
NAMELESS = dict.fromkeys(
    ("Creator", "Date", "Format", "Type")
)  # no stamp: equal charts are equal text


@dataclass(frozen=True)
class Chart:
    """A finished chart: its heading, one sentence on what to look at, the drawing, and its width in
    inches.
    """

    title: str
    caption: str
    svg: Markup
    width: float


def write_page(path: Path, template: str, context: dict[str, Any]) -> Path:
    """Fill a template and write it: one file with its style and drawings inside, which loads
    nothing from the network.
    """
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
    }
    environment.filters |= {"number": number_of, "metric": metric_name, "counted": counted}
    page = environment.get_template(template).render(folded=FOLDED, **context)
    write_text(path, page)
    return path


def panels(
    rows: int,
    columns: int,
    *,
    width: float = FULL,
    height: float,
    ratios: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Lay out a bare figure and its panels, row by row; ``ratios`` are those of the rows' heights."""
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
    """Write a panel's title at its left if it has neighbours to be told from, and name its axes."""
    axes.set_title(title, loc="left", fontsize=FONT + 1, color=INK, fontweight="bold")
    axes.set_xlabel(x, fontsize=FONT, color=INK)
    axes.set_ylabel(y, fontsize=FONT, color=INK)


def step_axis(axes: Axes) -> None:
    """Count steps along x, in whole numbers with thousands set apart."""
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
    """Return what writes shares at the ticks of an axis as percents, with as many decimals as they
    have.
    """
    return FuncFormatter(lambda share, _: f"{round(100 * share, 6):g}%")


def key_below(figure: Figure) -> None:
    """Write one key for all panels below them, with each name once: in a line, or in four columns."""
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


def running_mean(values: Floats) -> Floats:
    """Average each value (C,) with its neighbours, about a twentieth of all, leaving nan out."""
    reach = max(2, len(values) // 40)
    return np.array(
        [mean_known(values[max(0, i - reach) : i + reach + 1]) for i in range(len(values))]
    )


def chart(figure: Figure, title: str, caption: str) -> Chart:
    """Turn a figure into a chart for the page."""
    return Chart(title, caption, _inline(figure, title), float(figure.get_size_inches()[0]))


def chart_rows(*rows: Sequence[Chart | None]) -> list[list[Chart]]:
    """Drop the charts that could not be drawn, and rows without any."""
    kept = [[one for one in row if one is not None] for row in rows]
    return [row for row in kept if row]


def _inline(figure: Figure, title: str) -> Markup:
    """Write a figure as SVG to stand within HTML: theme inks as variables, text as text, ids that
    no other chart has.
    """
    drawn = StringIO()
    with (
        mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "semigpc"}),
        warnings.catch_warnings(),
    ):
        # The reader's browser draws the text, with its own fonts: what matplotlib's lacks is no
        # matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(drawn, format="svg", metadata=NAMELESS, dpi=150)
    svg = drawn.getvalue()
    mark = "c" + hashlib.sha1((title + svg).encode()).hexdigest()[:8]
    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>",
        rf'<svg \1 role="img" aria-labelledby="{mark}-name">',
        svg,
        count=1,
    )
    svg = re.sub(
        r"<style.*?</style>", "", svg, count=1, flags=re.DOTALL
    )  # it would hold for the whole page
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(
        r'\bid="(?:figure|axes|patch|text|line2d|matplotlib|legend|xtick|ytick)[^"]*"', "", svg
    )
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{mark}-", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", svg)
    for ink, variable in THEME.items():
        svg = svg.replace(f": {ink}", f": {variable}")
    head, body = svg.split(">", 1)
    return Markup(f'{head}><title id="{mark}-name">{escape(title)}</title>{body}')


# Numbers to draw ----------------------------------------------------------------------------------


def per_class(entry: Entry, key: str, n_classes: int) -> Floats | None:
    """Return the numbers (C,) under ``key``, NaN for null; None if there are not C of them."""
    values = entry.get(key)
    return None if values is None or len(values) != n_classes else floats(values)


def floats(values: Sequence[float | None]) -> Floats:
    """Return numbers that may be null as an array with NaN."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def series(entries: Sequence[Entry], key: str) -> tuple[Floats, Floats]:
    """Return steps and values of the entries in which ``key`` is a finite number."""
    steps = floats([entry["step"] for entry in entries])
    values = floats([entry.get(key) for entry in entries])
    known = np.isfinite(values)
    return steps[known], values[known]


def mean_known(rows: Floats | Sequence[Floats]) -> Floats:
    """Return the mean over the first axis without NaN; NaN where there is nothing else."""
    known = np.isfinite(rows).sum(axis=0)
    return np.where(known > 0, np.nansum(rows, axis=0) / np.maximum(known, 1), np.nan)
