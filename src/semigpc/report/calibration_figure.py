"""The reliability diagram: is a classifier right as often as it is sure?"""

import numpy as np

from semigpc.report.chart_style import BLUE, INK, MUTED, ORANGE, Chart, chart, key_below, name_panel, panels, share_axis
from semigpc.report.run_folder import Entry, floats
from semigpc.report.wording import number_of
from semigpc.text import percent

WIDTH, HEIGHT = 4.7, 5.33  # inches; as high as the confusion matrix it stands beside


def reliability_chart(entry: Entry, *, alone: bool = False, noun: str = "images") -> Chart | None:
    """Draw accuracy over confidence in bins with the gap between the two, and how many images each bin holds.

    The second panel stands below the first, or, with ``alone``, beside it across the page. What is counted is called ``noun``.
    """
    bins = entry.get("reliability")
    if not bins or not sum(bins["count"]):
        return None
    edges, accuracy, confidence = (floats(bins[key]) for key in ("edges", "accuracy", "confidence"))
    counts = floats(bins["count"])
    middles, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    if alone:
        figure, (top, bottom) = panels(1, 2, height=3.6)
    else:
        figure, (top, bottom) = panels(2, 1, width=WIDTH, height=HEIGHT, ratios=(3, 1))

    filled = (counts > 0) & np.isfinite(accuracy) & np.isfinite(confidence)
    x, right, sure = middles[filled], accuracy[filled], confidence[filled]
    top.bar(x, right, widths[filled] * 0.92, color=BLUE, alpha=0.55, label="accuracy", zorder=2)
    top.vlines(x, np.minimum(right, sure), np.maximum(right, sure), color=ORANGE, linewidth=1.6, zorder=3)
    half = widths[filled] * 0.32
    top.hlines(sure, x - half, x + half, color=ORANGE, linewidth=2.4, label="confidence", zorder=3)
    top.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=1.2, label="perfectly calibrated", zorder=4)
    key_below(figure)
    name_panel(top, f"ECE {percent(number_of(entry, 'ece'))}", x="confidence" if alone else "", y="accuracy")
    share_axis(top, whole=True)
    bottom.bar(middles, counts, widths * 0.92, color=MUTED)
    name_panel(bottom, x="confidence", y=noun)
    bottom.yaxis.set_major_formatter("{x:,.0f}")
    bottom.locator_params(axis="y", nbins=6 if alone else 3)
    for axes in (top, bottom):
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    caption = f"Orange above a bar is overconfidence, orange below its top is shyness; judge by the bins that hold many {noun}."
    return chart(figure, "Reliability", caption)
