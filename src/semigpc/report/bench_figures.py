"""Curves of the benchmarks."""

from collections.abc import Mapping, Sequence
from pathlib import Path

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
