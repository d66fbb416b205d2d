"""Draw the toy problem: how labels spread from a few points to the rest, and where each classifier is sure."""

from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from semigpc.files import replacing
from semigpc.toy import (
    CLASSIFIERS,
    COUNTS,
    N_DRAWS,
    OUTLIER,
    PROPAGATORS,
    THRESHOLD,
    ConfidenceMap,
    Propagation,
    ToyData,
    ToyFigures,
    confidence_map,
    draw,
    propagate,
)

# Chosen to be told apart in normal vision and in each of the three colour blindnesses, in full and faded to half.
CLASS_COLOURS = ("#CC3311", "#0077BB", "#EEAA11", "#66AA88")
UNSURE, GREY, INK = "#D9D9D9", "#777777", "#222222"
NAMES = {"linear": "Linear", "similarity": "Similarity", "gp": "SemiGPC"}
FAINTEST, STRONGEST = 0.25, 0.75  # how much of the hue a map shows at THRESHOLD and at full confidence
SHADES = 24  # steps between the two: too fine to see, few enough for the file to stay small
WIDTH, SIDE, GAP = 12.0, 3.84, 0.12  # inches, of a figure and of its panels
PIXELS_PER_INCH = 150
RESOLUTION = 300  # points along a side of a map
PROPAGATION_LENGTH_SCALE = 1.0  # so wide that a large class reaches into a small one
MAPS = (("linear", 0.5), ("similarity", 0.5), ("gp", 0.5), ("similarity", 1.0), ("gp", 1.0))


def write_toy_figures(out: Path, figures: ToyFigures, on_row: Callable[[], None]) -> list[Path]:
    """Draw propagation.png and confidence_maps.png of a seed into a folder; return their paths.

    ``on_row`` is called ``len(MAPS) * RESOLUTION`` times as the maps are computed.
    """
    data, scale = draw(figures.seed), PROPAGATION_LENGTH_SCALE
    probs = {name: propagate(data, classifier=name, length_scale=scale) for name in PROPAGATORS}
    one, mean = (
        {entry.classifier: entry for entry in entries if entry.length_scale == scale}
        for entries in (figures.propagation, figures.propagation_mean)
    )
    save_png(propagation_figure(data, probs, one, mean), out / "propagation.png")
    maps = {
        (name, length_scale): confidence_map(
            CLASSIFIERS[name](data.points, data.labels, length_scale), resolution=RESOLUTION, on_row=on_row
        )
        for name, length_scale in MAPS
    }
    save_png(confidence_figure(data, maps), out / "confidence_maps.png")
    return [out / "propagation.png", out / "confidence_maps.png"]


def propagation_figure(
    data: ToyData, probs: Mapping[str, Tensor], figures: Mapping[str, Propagation], means: Mapping[str, Propagation]
) -> Figure:
    """Draw the labels given, and those found by similarity and by SemiGPC. Hollow is unsure, a cross is wrong.

    ``probs`` (N, C), the ``figures`` of this draw and their ``means`` over many draws are keyed by classifier.
    """
    figure, panels = _panels(1, title=0.62, footer=0.78)
    points, labels, given = data.points.numpy(), data.labels.numpy(), data.labeled.numpy()
    hues = np.array(CLASS_COLOURS)

    panels[0, 0].scatter(*points[~given].T, s=22, color="#BDBDBD", linewidths=0)
    length_scale = figures["gp"].length_scale
    _title(
        panels[0, 0],
        f"{given.sum()} labels given",
        f"{(~given).sum()} left to find, with length-scale {length_scale:g}",
    )
    for panel, name in zip(panels[0, 1:], ("similarity", "gp"), strict=True):
        confidence, found = (values.numpy() for values in probs[name].max(dim=1))
        sure, unsure = ~given & (confidence >= THRESHOLD), ~given & (confidence < THRESHOLD)
        wrong = ~given & (found != labels)
        panel.scatter(*points[unsure].T, s=26, facecolors="white", edgecolors=hues[found[unsure]], linewidths=1.2)
        panel.scatter(*points[sure].T, s=26, color=hues[found[sure]], linewidths=0)
        panel.scatter(*points[wrong].T, s=22, marker="x", color=INK, linewidths=1.1, zorder=4)
        one, mean = figures[name], means[name].minority_accuracy
        minority = f"class of {COUNTS[0]}: {_percent(one.minority_accuracy)} right ({_percent(mean)} over {N_DRAWS} draws)"
        _title(panel, f"{NAMES[name]}: {_percent(one.accuracy)} right", minority)
    reach = 1.07 * np.abs(points).max()
    for panel in panels[0]:
        panel.scatter(*points[given].T, s=64, color=hues[labels[given]], edgecolors=INK, linewidths=1.3, zorder=3)
        panel.set(xlim=(-reach, reach), ylim=(-reach, reach))
    figure.legend(handles=_propagation_key(), loc="lower center", ncols=4, frameon=False, fontsize=12)
    return figure


def confidence_figure(data: ToyData, maps: Mapping[tuple[str, float], ConfidenceMap]) -> Figure:
    """Draw maps keyed by classifier and length-scale: hue is the class, strength the confidence, grey is unsure.

    The linear classifier has no length-scale: it is drawn once, and the key stands below it. Similarity and SemiGPC
    have a column each, with a row for each length-scale.
    """
    length_scales = sorted({length_scale for name, length_scale in maps if name != "linear"})
    figure, panels = _panels(max(1, len(length_scales)), title=0.4, footer=GAP)
    columns = {"linear": 0, "similarity": 1, "gp": 2}
    for (name, length_scale), one in maps.items():
        row = 0 if name == "linear" else length_scales.index(length_scale)
        _draw_map(panels[row, columns[name]], data, one)
        _title(panels[row, columns[name]], NAMES[name] + (f", length-scale {length_scale:g}" if columns[name] else ""))
    for panel in panels[1:, 0]:
        panel.set_axis_off()
    for panel in panels[1:2, 0]:
        _draw_key(panel)
    return figure


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure 1800 pixels wide, small and without a version stamp: equal images are equal files."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=PIXELS_PER_INCH, format="png")
    with replacing(path) as draft:
        Image.open(drawn).convert("RGB").save(draft, format="png")


def _panels(rows: int, *, title: float, footer: float) -> tuple[Figure, NDArray[np.object_]]:
    """Lay out rows of three square panels, with so many inches above each row and below the last; panels (rows, 3)."""
    height = rows * (SIDE + title) + footer
    figure = Figure(figsize=(WIDTH, height))
    panels = np.empty((rows, 3), dtype=object)
    for row, column in np.ndindex(rows, 3):
        left, bottom = GAP + column * (SIDE + GAP), footer + (rows - 1 - row) * (SIDE + title)
        panel = figure.add_axes((left / WIDTH, bottom / height, SIDE / WIDTH, SIDE / height))
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_color("#888888")
        panels[row, column] = panel
    return figure, panels


def _title(panel: Axes, headline: str, detail: str = "") -> None:
    panel.set_title(headline, fontsize=15, color=INK, pad=24 if detail else 7)
    panel.text(0.5, 1.018, detail, transform=panel.transAxes, ha="center", va="bottom", fontsize=11.5, color=INK)


def _percent(share: float) -> str:
    """Whole percents, with a decimal between 99.5 and 99.95, which is good but not perfect."""
    return f"{share:.1%}" if 0.995 <= share < 0.9995 else f"{share:.0%}"


def _draw_map(panel: Axes, data: ToyData, one: ConfidenceMap) -> None:
    axis = one.axis.numpy()
    confidence, found = (values.numpy() for values in one.probs.max(dim=-1))  # (G, G) each
    extent = (axis[0], axis[-1], axis[0], axis[-1])
    panel.imshow(_shade(found, confidence), origin="lower", extent=extent, interpolation="nearest", aspect="auto")
    panel.contour(axis, axis, confidence, levels=[THRESHOLD], colors=[INK], linewidths=1)
    points, labels = data.points.numpy(), data.labels.numpy()
    for c, hue in enumerate(CLASS_COLOURS):
        dark = tuple(0.7 * part for part in to_rgb(hue))
        panel.plot(*points[labels == c].T, "o", color=dark, markersize=3.8, markeredgecolor="white", markeredgewidth=0.4)
    x, y = OUTLIER
    panel.scatter(x, y, s=230, marker="*", color=INK, edgecolors="white", linewidths=1, zorder=3)
    label = panel.text(x, y + 0.25, _percent(one.outlier_confidence), ha="center", fontsize=15, color=INK)
    label.set(fontweight="bold", path_effects=[withStroke(linewidth=3, foreground="white")])


def _shade(found: NDArray[np.int64], confidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """Colours (..., 3) for the classes found (...), each with its confidence (...)."""
    hues = np.array([to_rgb(hue) for hue in CLASS_COLOURS])[found]
    sureness = np.clip((confidence - THRESHOLD) / (1 - THRESHOLD), 0, 1)
    strength = (FAINTEST + (STRONGEST - FAINTEST) * np.round(sureness * SHADES) / SHADES)[..., None]
    return np.where(confidence[..., None] >= THRESHOLD, strength * hues + (1 - strength), to_rgb(UNSURE))


def _draw_key(panel: Axes) -> None:
    """Say what a map shows: for each class a strip of rising confidence, then grey and the star."""
    left, right, height, text = 0.06, 0.42, 0.085, 0.48
    steps = np.linspace(THRESHOLD, 1, 8 * SHADES)[None]
    rows = [0.78 - 0.125 * row for row in range(len(COUNTS) + 2)]  # bottoms
    captions = [
        *(f"class of {count} points" for count in COUNTS),
        f"under {THRESHOLD:.0%} sure",
        "outlier, and how sure",
    ]
    for bottom, caption in zip(rows, captions, strict=True):
        panel.text(text, bottom + height / 2, caption, va="center", fontsize=13, color=INK)
    for c, bottom in enumerate(rows[: len(COUNTS)]):
        extent = (left, right, bottom, bottom + height)
        panel.imshow(_shade(np.full(steps.shape, c), steps), aspect="auto", extent=extent)
    panel.text(left, 0.885, f"{THRESHOLD:.0%} sure", fontsize=11, color=INK)
    panel.text(right, 0.885, "100%", fontsize=11, color=INK, ha="right")
    panel.fill_between([left, right], rows[-2], rows[-2] + height, facecolor=UNSURE, edgecolor=INK, linewidth=1)
    panel.scatter((left + right) / 2, rows[-1] + height / 2, s=230, marker="*", color=INK)
    panel.set(xlim=(0, 1), ylim=(0, 1))


def _propagation_key() -> list[Line2D]:
    """Entries of a legend of four columns, filled downwards: the classes above, what marks mean below."""

    def mark(label: str, marker: str, fill: str, edge: str, size: float) -> Line2D:
        line = Line2D([], [], linestyle="none", marker=marker, markersize=size, label=label)
        line.set(markerfacecolor=fill, markeredgecolor=edge, markeredgewidth=1.2)
        return line

    classes = [mark(f"class of {n}", "o", hue, hue, 6) for n, hue in zip(COUNTS, CLASS_COLOURS, strict=True)]
    meanings = [
        mark("label given", "o", GREY, INK, 8),
        mark(f"label found, at least {THRESHOLD:.0%} sure", "o", GREY, GREY, 6),
        mark(f"label found, under {THRESHOLD:.0%} sure", "o", "white", GREY, 6),
        mark("wrong label", "x", INK, INK, 6),
    ]
    return [key for pair in zip(classes, meanings, strict=True) for key in pair]
