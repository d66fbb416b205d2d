"""The classes one by one, of a whole reproduction: where a refiner helps, and where it costs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from semigpc.files import replacing
from semigpc.report.chart_style import BLUE, FONT, GREEN, GREY, MUTED, NAMED, ORANGE
from semigpc.report.wording import short

COLUMNS = 3
STYLES = {"none": ("algorithms alone", BLUE), "similarity": ("with a kernel average", GREEN), "gp": ("with SemiGPC", ORANGE)}


def draw_class_recall(figures: Mapping[str, Any], path: Path) -> None:
    """Save :func:`class_recall_figure` as a PNG."""
    with replacing(path) as draft:
        class_recall_figure(figures).savefig(draft, format="png")


def class_recall_figure(figures: Mapping[str, Any]) -> Figure:
    """Recall of each class, a panel a group: labels only, and the mean over algorithms with each refiner.

    Thin lines are the algorithms one by one, all of them means over seeds.

    Args:
        figures: what ``semigpc reproduce`` writes as figures.json.
    """
    groups = {
        name: group for name, group in figures["groups"].items() if any("last" in cell for cell in group["cells"].values())
    }
    columns = min(COLUMNS, len(groups))
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.1 * rows + 0.5), dpi=130, layout="constrained")
    found = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axes, (name, group) in zip(found, groups.items(), strict=False):
        _draw_group(axes, name, group)
    for axes in found[len(groups) :]:
        axes.set_visible(False)
    for axes in found[::columns]:
        axes.set_ylabel("recall, %")
    handles, labels = found[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _draw_group(axes: Axes, name: str, group: Mapping[str, Any]) -> None:
    ran = {row: cell for row, cell in group["cells"].items() if "last" in cell}
    ranks = np.arange(len(group["class_names"]))
    by_refiner: dict[str, list[NDArray[np.float64]]] = {}
    for row, cell in ran.items():
        algorithm, _, refiner = row.partition("+")
        recall = np.mean(cell["last"]["per_class_recall"], axis=0)  # (C,), of the seeds
        if algorithm == "supervised":
            axes.plot(ranks, recall, color=GREY, linewidth=2.2, linestyle="--", label="labels only")
        else:
            by_refiner.setdefault(refiner, []).append(recall)
    for refiner, recalls in by_refiner.items():
        label, colour = STYLES.get(refiner, (f"with {refiner}", MUTED))
        for recall in recalls:
            axes.plot(ranks, recall, color=colour, linewidth=0.8, alpha=0.35)
        axes.plot(ranks, np.mean(recalls, axis=0), color=colour, linewidth=2.4, label=label)
    axes.set_title(name, loc="left", fontsize=FONT + 1)
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    _name_classes(axes, group["class_names"])


def _name_classes(axes: Axes, names: Sequence[str]) -> None:
    if len(names) <= NAMED // 2:
        axes.set_xticks(range(len(names)), [short(name) for name in names], rotation=45, ha="right", fontsize=FONT - 1)
    else:
        axes.set_xlabel("class, from the largest to the smallest")
