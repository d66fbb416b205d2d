"""The paper's images: Figure 1, how labels spread in the plane, and the recall of every class.

Images of the toy problem are 1800 pixels wide and carry no version stamp: equal images are equal
files.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from semigpc.io.atomic import replacing
from semigpc.paper.reproduction import CellFigures, GroupFigures
from semigpc.paper.toy import (
    CLASSIFIERS,
    COUNTS,
    N_DISPUTED,
    N_DRAWS,
    NEIGHBOURS,
    PROPAGATORS,
    RING,
    SURROUNDED,
    THRESHOLD,
    Confidence,
    ConfidenceMap,
    Propagation,
    Situation,
    ToyData,
    ToyFigures,
    confidence_map,
    draw,
    propagate,
    situations,
)
from semigpc.report.style import BLUE, FONT, GREEN, GREY, MOST_NAMED_CLASSES, MUTED, ORANGE, PURPLE
from semigpc.report.wording import short

# Distinct in normal vision and in the three colour blindnesses, in full and at half strength.
CLASS_COLOURS = ("#CC3311", "#0077BB", "#EEAA11", "#66AA88")
UNSURE = "#D9D9D9"
MARK_GREY = "#777777"
INK = "#222222"
CLASSIFIER_NAMES = {"linear": "Linear", "similarity": "Similarity", "gp": "SemiGPC"}
FAINTEST = 0.25  # share of the hue that a map shows at THRESHOLD
STRONGEST = 0.75  # the same at full confidence
SHADES = 24  # steps between the two: too fine to see, few enough for the file to stay small
WIDTH = 12.0  # inches, of a figure
SIDE = 3.84  # inches, of a panel
GAP = 0.12  # inches, between panels
PIXELS_PER_INCH = 150
MAP_POINTS = 320  # from left to right of a map
LENGTH_SCALE = 1.0  # of both images: so wide that a large class reaches into a small one
QUESTIONS = {
    "disagreement": f"Labels that disagree: {N_DISPUTED} points have both labels, and {NEIGHBOURS} "
    "of one class lie beside them. How sure is each there? 50% is fair.",
    "minority": f"A minority, surrounded: {SURROUNDED} points inside a ring of {RING}. How "
    "probable is their class at their own centre? 100% is right.",
    "outlier": f"An outlier, far from all: four classes of {', '.join(map(str, COUNTS[:-1]))} and "
    f"{COUNTS[-1]} points. How sure is each there? 25% means no idea.",
}
RECALL_PANELS = 3  # beside each other
OTHER_REFINERS = (GREEN, PURPLE, MUTED)
Entry = TypeVar("Entry", Confidence, Propagation)


# Recall of every class ----------------------------------------------------------------------------


def draw_class_recall(groups: Mapping[str, GroupFigures], path: Path) -> None:
    """Save :func:`class_recall_figure` as a PNG."""
    with replacing(path) as draft:
        class_recall_figure(groups).savefig(draft, format="png")


def class_recall_figure(groups: Mapping[str, GroupFigures]) -> Figure:
    """Draw the recall of each class, one panel per group that was run.

    Thick lines are labels only, and the mean over algorithms with each refiner. Thin lines are the
    algorithms one by one. All are means over seeds.
    """
    groups = {
        name: group
        for name, group in groups.items()
        if any("last" in cell for cell in group["cells"].values())
    }
    columns = min(RECALL_PANELS, len(groups))
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.1 * rows + 0.5), dpi=130, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axes, (name, group) in zip(grid, groups.items(), strict=False):
        _draw_recalls(axes, group["cells"])
        axes.set_title(name, loc="left", fontsize=FONT + 1)
        _name_classes(axes, group["class_names"])
    for axes in grid[len(groups) :]:
        axes.set_visible(False)
    for axes in grid[::columns]:
        axes.set_ylabel("recall, %")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _draw_recalls(axes: Axes, cells: Mapping[str, CellFigures]) -> None:
    lines: dict[str, list[NDArray[np.float64]]] = {}  # by refiner, or by add-on and refiner
    labels = {"none": "algorithms alone"}
    for row, cell in cells.items():
        if "last" not in cell:
            continue
        refiner = row.partition("+")[2]
        recall = np.mean(np.array(cell["last"]["per_class_recall"], float), axis=0)  # (C,)
        if row == "supervised+none":
            axes.plot(recall, color=GREY, linewidth=2.2, linestyle="--", label="labels only")
            continue
        lines.setdefault(refiner, []).append(recall)
        labels.setdefault(refiner, f"with {cell['label'].partition(' + ')[2] or refiner}")
    colours = {"none": BLUE, "gp": ORANGE}
    others = [refiner for refiner in lines if refiner not in colours]
    colours |= dict(zip(others, cycle(OTHER_REFINERS), strict=False))
    for refiner, recalls in lines.items():
        colour = colours[refiner]
        for recall in recalls:
            axes.plot(recall, color=colour, linewidth=0.8, alpha=0.35)
        axes.plot(np.mean(recalls, axis=0), color=colour, linewidth=2.4, label=labels[refiner])
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _name_classes(axes: Axes, names: Sequence[str]) -> None:
    if len(names) > MOST_NAMED_CLASSES // 2:
        axes.set_xlabel("class, from the largest to the smallest")
        return
    ticks = [short(name) for name in names]
    axes.set_xticks(range(len(names)), ticks, rotation=45, ha="right", fontsize=FONT - 1)


# Toy problem --------------------------------------------------------------------------------------


def write_toy_figures(out: Path, figures: ToyFigures) -> list[Path]:
    """Draw propagation.png and figure1.png of a seed into a folder; return their paths."""
    data = draw(figures.seed)
    probs = {
        name: propagate(data, classifier=name, length_scale=LENGTH_SCALE) for name in PROPAGATORS
    }
    one = _of_the_images(figures.propagation)
    mean = _of_the_images(figures.propagation_mean)
    save_png(propagation_figure(data, probs, one, mean), out / "propagation.png")
    numbers = _of_the_images(figures.confidence)
    save_png(situations_figure(situations(figures.seed), numbers), out / "figure1.png")
    return [out / "propagation.png", out / "figure1.png"]


def _of_the_images(entries: Sequence[Entry]) -> dict[str, Entry]:
    """Return the entries with the length-scale of the images, by classifier."""
    return {entry.classifier: entry for entry in entries if entry.length_scale == LENGTH_SCALE}


def propagation_figure(
    data: ToyData,
    probs: Mapping[str, Tensor],
    figures: Mapping[str, Propagation],
    means: Mapping[str, Propagation],
) -> Figure:
    """Draw the given labels, and those found by similarity and by SemiGPC.

    Hollow points are below the threshold, crosses are wrong. ``probs`` (N, C), the ``figures`` of
    this draw and their ``means`` over many draws are keyed by classifier.
    """
    figure, panels = _panels(1, height=SIDE, title=0.62, footer=0.78)
    points = data.points.numpy()
    given = data.labeled.numpy()
    panels[0, 0].scatter(*points[~given].T, s=22, color="#BDBDBD", linewidths=0)
    rest = f"{(~given).sum()} left to find, with length-scale {figures['gp'].length_scale:g}"
    _title(panels[0, 0], f"{given.sum()} labels given", rest)
    for panel, name in zip(panels[0, 1:], PROPAGATORS, strict=True):
        _draw_found_labels(panel, data, probs[name])
        one = figures[name]
        mean = f"{_percent(means[name].minority_accuracy)} over {N_DRAWS} draws"
        minority = f"class of {COUNTS[0]}: {_percent(one.minority_accuracy)} right ({mean})"
        _title(panel, f"{CLASSIFIER_NAMES[name]}: {_percent(one.accuracy)} right", minority)
    reach = 1.07 * np.abs(points).max()
    colours = np.array(CLASS_COLOURS)[data.labels.numpy()[given]]
    for panel in panels[0]:
        panel.scatter(
            *points[given].T, s=64, color=colours, edgecolors=INK, linewidths=1.3, zorder=3
        )
        panel.set(xlim=(-reach, reach), ylim=(-reach, reach))
    key = _propagation_key()
    figure.legend(handles=key, loc="lower center", ncols=4, frameon=False, fontsize=12)
    return figure


def _draw_found_labels(panel: Axes, data: ToyData, probs: Tensor) -> None:
    x, y = data.points.numpy().T
    hidden = ~data.labeled.numpy()
    confidence, found = (values.numpy() for values in probs.max(dim=1))
    sure = hidden & (confidence >= THRESHOLD)
    unsure = hidden & (confidence < THRESHOLD)
    wrong = hidden & (found != data.labels.numpy())
    hues = np.array(CLASS_COLOURS)[found]
    panel.scatter(
        x[unsure], y[unsure], s=26, facecolors="white", edgecolors=hues[unsure], linewidths=1.2
    )
    panel.scatter(x[sure], y[sure], s=26, color=hues[sure], linewidths=0)
    panel.scatter(x[wrong], y[wrong], s=22, marker="x", color=INK, linewidths=1.1, zorder=4)


def situations_figure(rows: Mapping[str, Situation], numbers: Mapping[str, Confidence]) -> Figure:
    """Draw Figure 1: a row for each situation, a column for each classifier.

    Hue is the class, strength the confidence; grey is below the threshold. A ring marks the place
    that the situation is about.

    Args:
        rows: by the name of their number. numbers: by the name of the classifier.
    """
    figure, panels = _panels(len(rows), height=0.75 * SIDE, title=0.68, footer=0.5)
    for (key, situation), row in zip(rows.items(), panels, strict=True):
        row[0].text(0, 1.13, QUESTIONS[key], transform=row[0].transAxes, fontsize=12.5, color=INK)
        for name, panel in zip(CLASSIFIERS, row, strict=True):
            entry = numbers[name]
            data = situation.data
            predict = CLASSIFIERS[name](data.points, data.labels, entry.length_scale)
            _draw_map(panel, data, confidence_map(predict, situation.window, width=MAP_POINTS))
            _mark(panel, situation.place, _percent(getattr(entry, key)))
            _title(panel, CLASSIFIER_NAMES[name])
    unsure = f"under {THRESHOLD:.0%} sure, whatever the class"
    entries = [
        Patch(facecolor=UNSURE, edgecolor=INK, label=unsure),
        _key_mark("the place that the number is about", "o", "none", INK, 13),
    ]
    figure.legend(handles=entries, loc="lower center", ncols=2, frameon=False, fontsize=12)
    return figure


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure with 256 colours and without a version stamp."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=PIXELS_PER_INCH, format="png")
    image = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    with replacing(path) as draft:
        image.save(draft, format="png")


def _panels(
    rows: int, *, height: float, title: float, footer: float
) -> tuple[Figure, NDArray[np.object_]]:
    """Lay out panels (rows, 3), with inches for a title above each row and a footer."""
    total = rows * (height + title) + footer
    figure = Figure(figsize=(WIDTH, total))
    panels = np.empty((rows, 3), dtype=object)
    for row, column in np.ndindex(rows, 3):
        left = GAP + column * (SIDE + GAP)
        bottom = footer + (rows - 1 - row) * (height + title)
        panel = figure.add_axes((left / WIDTH, bottom / total, SIDE / WIDTH, height / total))
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_color("#888888")
        panels[row, column] = panel
    return figure, panels


def _title(panel: Axes, headline: str, detail: str = "") -> None:
    panel.set_title(headline, fontsize=15, color=INK, pad=24 if detail else 7)
    text = panel.text(0.5, 1.018, detail, transform=panel.transAxes, fontsize=11.5, color=INK)
    text.set(ha="center", va="bottom")


def _percent(share: float) -> str:
    """Return whole percents, with a decimal between 99.5 and 99.95: good but not perfect."""
    return f"{share:.1%}" if 0.995 <= share < 0.9995 else f"{share:.0%}"


def _draw_map(panel: Axes, data: ToyData, one: ConfidenceMap) -> None:
    x = one.x.numpy()
    y = one.y.numpy()
    confidence, found = (values.numpy() for values in one.probs.max(dim=-1))  # (H, W) each
    extent = (x[0], x[-1], y[0], y[-1])
    pixels = _shade(found, confidence)
    panel.imshow(pixels, origin="lower", extent=extent, interpolation="nearest", aspect="auto")
    panel.contour(x, y, confidence, levels=[THRESHOLD], colors=[INK], linewidths=1)
    points = data.points.numpy()
    labels = data.labels.numpy()
    dark = [tuple(0.7 * part for part in to_rgb(hue)) for hue in CLASS_COLOURS]
    marks = []
    for c in np.unique(labels):
        marks += panel.plot(*points[labels == c].T, "o", color=dark[c], markersize=3.8)
    places, counts = np.unique(points, axis=0, return_counts=True)
    twice = panel.plot(*places[counts > 1].T, "o", color=dark[0], markersize=5.5)
    twice[0].set(fillstyle="left", markerfacecoloralt=dark[1])
    for mark in marks + twice:
        mark.set(markeredgecolor="white", markeredgewidth=0.4)


def _mark(panel: Axes, place: tuple[float, float], number: str) -> None:
    x, y = place
    panel.scatter(x, y, s=420, facecolors="none", edgecolors=INK, linewidths=1.8, zorder=3)
    label = panel.text(x, y + 0.5, number, ha="center", fontsize=15, color=INK, fontweight="bold")
    label.set_path_effects([withStroke(linewidth=3, foreground="white")])


def _shade(found: NDArray[np.int64], confidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """Colours (..., 3) for the classes found (...), each with its confidence (...)."""
    hues = np.array([to_rgb(hue) for hue in CLASS_COLOURS])[found]
    sureness = np.clip((confidence - THRESHOLD) / (1 - THRESHOLD), 0, 1)
    strength = (FAINTEST + (STRONGEST - FAINTEST) * np.round(sureness * SHADES) / SHADES)[..., None]
    return np.where(
        confidence[..., None] >= THRESHOLD, strength * hues + (1 - strength), to_rgb(UNSURE)
    )


def _propagation_key() -> list[Line2D]:
    """Return the legend: classes in its first row, the meaning of marks in its second."""
    classes = [
        _key_mark(f"class of {n}", "o", hue, hue, 6)
        for n, hue in zip(COUNTS, CLASS_COLOURS, strict=True)
    ]
    meanings = [
        _key_mark("label given", "o", MARK_GREY, INK, 8),
        _key_mark(f"label found, at least {THRESHOLD:.0%} sure", "o", MARK_GREY, MARK_GREY, 6),
        _key_mark(f"label found, under {THRESHOLD:.0%} sure", "o", "white", MARK_GREY, 6),
        _key_mark("wrong label", "x", INK, INK, 6),
    ]
    return [key for pair in zip(classes, meanings, strict=True) for key in pair]


def _key_mark(label: str, marker: str, fill: str, edge: str, size: float) -> Line2D:
    line = Line2D([], [], linestyle="none", marker=marker, markersize=size, label=label)
    line.set(markerfacecolor=fill, markeredgecolor=edge, markeredgewidth=1.2)
    return line
