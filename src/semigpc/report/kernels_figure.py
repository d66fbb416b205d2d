"""The figure of ``semigpc bench kernels``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from semigpc.report.bench_figures import COLOURS

MARKERS = "osD^v"


def draw_kernel_study(summary: Mapping[str, Any], titles: Mapping[str, str], path: Path) -> None:
    """What each kernel changes against the first, a row a problem: likelihood on the left, accuracy on the right.

    Args:
        summary: of ``semigpc bench kernels``. titles: variant -> legend; the first is what others are compared with.
    """
    problems = summary["problems"]
    figure = Figure(figsize=(12, 0.45 * len(problems) + 2.2), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    first, *others = titles
    rows = range(len(problems))[::-1]
    for axes, name, scale in ((left, "nll", 1.0), (right, "balanced_accuracy", 100.0)):
        axes.axvline(0, color="#1A1A1A", linewidth=1, label=titles[first])
        for number, (variant, marker) in enumerate(zip(others, MARKERS, strict=False)):
            figures = [problem[name][variant] for problem in problems.values()]
            shifted = [row + 0.24 - 0.16 * number for row in rows]
            axes.errorbar(
                [scale * one["gain"] for one in figures],
                shifted,
                xerr=[scale * one["gain_error"] for one in figures],
                fmt=marker,
                color=COLOURS[(2, 4, 0, 6)[number % 4]],
                label=titles[variant],
                markersize=5,
                capsize=2,
            )
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_yticks(list(rows), [f"{name} ({problem['seeds']} seeds)" for name, problem in problems.items()])
    left.set_xlabel("change in nats a row: left of 0 is better")
    right.set_xlabel("change in points: right of 0 is better")
    left.set_title("Negative log-likelihood", loc="left", fontweight="bold", fontsize=11)
    right.set_title("Balanced accuracy", loc="left", fontweight="bold", fontsize=11)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=3, fontsize=9)
    figure.savefig(path)
