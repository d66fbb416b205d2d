"""Mean ranks of methods, best first, with the difference that chance alone could make."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D

from semigpc.report.style import BLUE, FONT, GREY, INK, MUTED, ORANGE, name_panel, panels

WITH_GP, WITHOUT = ORANGE, BLUE


def draw_mean_ranks(ranks: Mapping[str, Any], path: Path, *, marked: str, title: str) -> None:
    """A dot a method on one axis, the best at the top; those with ``marked`` in their name in another colour.

    The grey band reaches one critical difference from the best: who stands in it cannot be told from the best.

    Args:
        ranks: ``mean_ranks`` best first, ``blocks`` and ``critical_difference``, as :mod:`semigpc.bench.ranks` has them.
        path: of the image. marked: such as "SemiGPC". title: above it.
    """
    means, cd = ranks["mean_ranks"], ranks["critical_difference"]
    figure, (axes,) = panels(1, 1, width=8.5, height=0.24 * len(means) + 1.7)
    figure.set_facecolor("white")
    best = min(means.values())
    axes.axvspan(best, best + cd, color=GREY, alpha=0.14, linewidth=0)
    for place, (method, value) in enumerate(means.items()):
        ours = marked in method
        axes.plot([1, value], [place, place], color=WITH_GP if ours else WITHOUT, alpha=0.35, linewidth=1.2)
        axes.plot(value, place, "D" if ours else "o", color=WITH_GP if ours else WITHOUT, markersize=6)
        axes.annotate(
            f"{value:.1f}", (value, place), (7, 0), textcoords="offset points", va="center", fontsize=FONT - 1, color=INK
        )
    axes.set_yticks(range(len(means)), list(means))
    for tick, method in zip(axes.get_yticklabels(), means, strict=True):
        tick.set_color(WITH_GP if marked in method else INK)
    axes.set_ylim(len(means) - 0.4, -1.6)
    axes.plot([best, best + cd], [-1.0, -1.0], color=MUTED, linewidth=2, solid_capstyle="butt")
    label = f"critical difference {cd:.1f}"
    axes.annotate(label, (best + cd, -1.0), (6, 0), textcoords="offset points", va="center", fontsize=FONT - 1, color=MUTED)
    axes.set_xlim(0.5, max([*means.values(), best + cd]) + 1.2)
    axes.grid(axis="y", visible=False)
    name_panel(axes, title, x=f"mean rank over {ranks['blocks']} blocks of a problem with a base algorithm: left is better")
    keys = [
        Line2D([], [], color=WITH_GP, marker="D", label=f"with {marked}"),
        Line2D([], [], color=WITHOUT, marker="o", label="without"),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=2, frameon=False, fontsize=FONT, labelcolor=INK)
    figure.savefig(path, dpi=150)
