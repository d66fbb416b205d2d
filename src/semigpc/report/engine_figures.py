"""Time and error of the engines, over buffer size and rank."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from semigpc.report.bench_figures import COLOURS

NAMES = {"exact": "exact", "lowrank": "low-rank", "ensemble": "ensemble of 5", "matrix_free": "matrix-free"}
MARKERS = "osD^"
LEVELS = (0.005, 0.01, 0.02, 0.05, 0.1)
LEAST = 1e-7  # differences below are drawn there


def draw_engines(records: Mapping[str, Any], path: Path) -> None:
    """Three panels: seconds an update over N, distance from the exact mean over N, and over the rank at three length-scales.

    Args:
        records: of ``semigpc bench engines``; a part that is not there leaves its panels empty.
    """
    figure = Figure(figsize=(14, 4.6), dpi=150, layout="constrained")
    time, error, ranks = figure.subplots(1, 3)
    for (key, label), colour, marker in zip(NAMES.items(), COLOURS, MARKERS, strict=False):
        there = [(record["size"], record["engines"][key]) for record in records.get("sizes", []) if key in record["engines"]]
        if there:
            sizes = [size for size, _ in there]
            style: dict[str, Any] = {"color": colour, "marker": marker, "label": label, "linewidth": 2}
            time.loglog(sizes, [figures["update_s"] for _, figures in there], **style)
            error.loglog(sizes, [max(figures["mean_difference"], LEAST) for _, figures in there], **style)
    for curve, colour, marker in zip(records.get("ranks", {}).get("curves", []), COLOURS, MARKERS, strict=False):
        points = curve["points"]
        label = (
            f"l = {curve['length_scale']:.2f} ({curve['factor']:g} x), effective dimension {curve['effective_dimension']:.0f}"
        )
        ranks.loglog(
            [point["rank"] for point in points],
            [point["mean_difference"] for point in points],
            color=colour,
            marker=marker,
            label=label,
            linewidth=2,
        )
    _dress(time, "A step of 8 rows", "buffer size N", "seconds an update")
    _dress(error, "Distance from the exact mean", "buffer size N", "mean |difference|")
    size = records.get("ranks", {}).get("size", "N")
    _dress(ranks, f"Low-rank, N = {size}", "rank", "mean |difference|", legend="lower left")
    ranks.set_yticks(LEVELS, [f"{level:g}" for level in LEVELS])
    ranks.axhline(0.01, color="#999999", linestyle="--", linewidth=1)
    for axes, ticks in (
        (time, [record["size"] for record in records.get("sizes", [])]),
        (error, [record["size"] for record in records.get("sizes", [])]),
        (ranks, sorted({point["rank"] for curve in records.get("ranks", {}).get("curves", []) for point in curve["points"]})),
    ):
        if ticks:
            axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            axes.minorticks_off()
    figure.savefig(path)


def _dress(axes: Axes, title: str, x: str, y: str, legend: Literal["best", "lower left"] = "best") -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc=legend)
