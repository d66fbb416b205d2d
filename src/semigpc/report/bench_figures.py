"""Curves of the benchmarks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#56B4E9", "#999999", "#D55E00", "#E69F00", "#CC79A7", "#009E73", "#6A3D9A", "#B15928", "#1A1A1A")


def draw_update_curves(records: Sequence[Mapping[str, float | int | str | None]], names: Mapping[str, str], path: Path) -> None:
    """Seconds an update over buffer size, log-log, one curve for each entry of ``names`` (key -> legend) that was timed."""
    figure = Figure(figsize=(8.5, 5.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for (key, label), colour in zip(names.items(), COLOURS, strict=False):
        points = [(float(r["size"] or 0), float(value)) for r in records if (value := r.get(key)) is not None]
        if not points:
            continue
        ours = key.startswith("ours")
        axes.loglog(
            *zip(*points, strict=True),
            marker="o",
            color=colour,
            label=label,
            linewidth=2.6 if ours else 1.4,
            linestyle="--" if key == "floor_s" else "-",
            zorder=3 if ours else 2,
        )
    sizes = sorted({int(r["size"] or 0) for r in records})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("buffer size N")
    axes.set_ylabel("seconds an update")
    axes.set_title(f"Taking {records[0]['batch']} new rows into a GP over N", loc="left", fontweight="bold")
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path)


def draw_estimator_study(summary: Mapping[str, Any], titles: Mapping[str, str], ours: str, path: Path) -> None:
    """Balanced accuracy of each method on each problem, a row a problem, with the standard error of ours over seeds.

    Args:
        summary: of ``semigpc bench estimator``. titles: method -> legend, ours among them.
    """
    problems = summary["problems"]
    figure = Figure(figsize=(9.5, 0.42 * len(problems) + 2.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    rows = range(len(problems))[::-1]
    others = [method for method in titles if method != ours]
    for (method, marker), colour in zip(zip(others, "ovs^dPX", strict=False), COLOURS[1:], strict=False):
        values = [100 * problem["mean"][method] for problem in problems.values()]
        axes.plot(values, rows, marker, color=colour, label=titles[method], markersize=6, alpha=0.85, zorder=3)
    values = [100 * problem["mean"][ours] for problem in problems.values()]
    errors = [100 * problem["std"][ours] / problem["seeds"] ** 0.5 for problem in problems.values()]
    axes.errorbar(values, rows, xerr=errors, fmt="D", color=COLOURS[0], label=titles[ours], markersize=8, capsize=3, zorder=2)
    axes.set_yticks(list(rows), [f"{name} ({problem['seeds']} seeds)" for name, problem in problems.items()])
    axes.set_xlabel("balanced accuracy in percent; bars: standard error of SemiGPClassifier")
    axes.set_title("Long-tailed problems, all methods with their defaults", loc="left", fontweight="bold")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path)
