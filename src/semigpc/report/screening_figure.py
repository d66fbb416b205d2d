"""The image of ``semigpc bench screening``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from semigpc.report.bench_figures import COLOURS

MARKERS = "Dosv^"


def draw_screening(summary: Mapping[str, Any], titles: Mapping[str, str], path: Path) -> None:
    """AUROC of every score, and the risk of the three confidences over all coverages, a row a problem.

    Args:
        summary: of ``semigpc bench screening``. titles: score -> legend, the confidences among them.
    """
    problems = summary["problems"]
    figure = Figure(figsize=(10, 0.5 * len(problems) + 2.4), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, ((score, title), marker) in enumerate(zip(titles.items(), MARKERS, strict=True)):
        rows = [place + 0.12 * (2 - number) for place in range(len(problems))[::-1]]  # apart, so that bars can be told
        values = [problem["auroc"][score] for problem in problems.values()]
        errors = [problem["auroc_std"][score] / problem["seeds"] ** 0.5 for problem in problems.values()]
        look = {"fmt": marker, "color": COLOURS[(0, 6, 3, 2, 4)[number]], "markersize": 6, "capsize": 2}
        left.errorbar(values, rows, xerr=errors, label=title, **look)
        if score in summary["risk"]:
            areas = [100 * problem["risk"][score]["known"]["area"] for problem in problems.values()]
            right.plot(areas, rows, marker, color=look["color"], markersize=6)
    left.set_yticks(range(len(problems))[::-1], [f"{name} ({problem['seeds']} seeds)" for name, problem in problems.items()])
    left.axvline(0.5, color="#999999", linewidth=1, linestyle="--")
    left.set_xlabel("AUROC, known against unknown classes;\nbars: standard error")
    right.set_xlabel("wrong labels of known classes in percent,\nmean over all coverages")
    left.set_title("Rows of no known class", loc="left", fontweight="bold")
    right.set_title("Abstaining", loc="left", fontweight="bold")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path)
