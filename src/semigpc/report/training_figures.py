"""Curves over the steps of a run: losses, accuracy, and the quality of the pseudo-labels."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from semigpc.report.chart_style import (
    BLUE,
    GOLD,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PAPER,
    PURPLE,
    Chart,
    chart,
    key_below,
    name_panel,
    panels,
    share_axis,
    step_axis,
    thin,
)
from semigpc.report.run_folder import HEADS, PARTS, Entry, Floats, RunFolder, series
from semigpc.report.wording import HEAD_NAMES, metric_name

LOSS_NAMES = {
    "loss": "total",
    "loss_x": "labelled",
    "loss_u": "unlabelled",
    "loss_in": "instances",
    "loss_c": "contrastive",
    "loss_f": "fairness",
    "loss_pre": "before mixing",
    "loss_rot": "rotation",
}
LOSS_COLOURS = (BLUE, ORANGE, PURPLE, GOLD, GREEN, GREY)
HEAD_COLOURS = {"linear": BLUE, "gp": ORANGE}
FEW_POINTS = 30  # up to so many, each point of a curve is marked


def loss_chart(run: RunFolder) -> Chart | None:
    """Draw each part of the training loss, and beside it how much of the unlabelled data was used."""
    others = {key for entry in run.train for key in entry if key.startswith("loss")} - LOSS_NAMES.keys()
    keys = [*LOSS_NAMES, *sorted(others)]
    curves = {key: found for key in keys if len((found := series(run.train, key))[0])}
    if not curves:
        return None
    mask = series(run.train, "mask_rate")
    figure, (left, *right) = panels(1, 2 if len(mask[0]) else 1, height=3.1)
    parts = [key for key in curves if key != "loss"]
    for key, curve in curves.items():
        name = LOSS_NAMES.get(key, key.removeprefix("loss_").replace("_", " "))
        if key == "loss":
            draw_curve(left, curve, label=name, color=INK, linewidth=1.8)
        else:
            draw_curve(left, curve, label=name, color=LOSS_COLOURS[parts.index(key) % len(LOSS_COLOURS)], linewidth=1.4)
    name_panel(left, "Training loss")
    left.set_ylim(bottom=min(0.0, left.get_ylim()[0]))
    step_axis(left)
    left.legend(frameon=False, fontsize=9, labelcolor=INK)
    for axes in right:
        draw_curve(axes, mask, color=GREEN, linewidth=1.6)
        name_panel(axes, "Unlabelled images used")
        share_axis(axes, whole=True)
        step_axis(axes)
    title = "Loss, and use of the unlabelled images" if right else "Loss"
    used = " and more unlabelled images should pass the threshold" if right else ""
    return chart(figure, title, f"Each part, here before its weight, should settle{used}; a part stuck at zero does no work.")


def accuracy_chart(run: RunFolder) -> Chart | None:
    """Draw balanced accuracy and top-1 for each part and head that was measured."""
    curves = {(part, head): found for part in PARTS for head in HEADS if (found := run.curve(part, head))}
    if not curves:
        return None
    figure, both = panels(1, 2, height=3.5)
    chosen = ((run.summary.get("results") or {}).get("best_on_validation") or {}).get("step")
    for axes, key in zip(both, ("balanced_accuracy", "top1"), strict=True):
        for (part, head), entries in curves.items():
            style = {} if part == "test" else {"linestyle": (0, (4, 2)), "markerfacecolor": PAPER, "linewidth": 1.3}
            name = f"{part}, {HEAD_NAMES[head]}"
            draw_curve(axes, series(entries, key), **{"label": name, "color": HEAD_COLOURS[head], **style})
        if chosen is not None:
            axes.axvline(chosen, color=GREY, linestyle=":", linewidth=1.2, label="step chosen on validation")
        name_panel(axes, metric_name(key))
        share_axis(axes)
        step_axis(axes)
    key_below(figure)
    caption = "Balanced accuracy counts every class alike: where it lags behind top-1, the rare classes pay for it."
    return chart(figure, "Accuracy over training", caption)


def pseudo_chart(run: RunFolder) -> Chart | None:
    """Draw how many unlabelled images got a pseudo-label, and how many of those were right."""
    curves = {key: found for key in ("coverage", "precision") if len((found := series(run.pseudo, key))[0])}
    if not curves:
        return None
    figure, (axes,) = panels(1, 1, height=3.0)
    names = {
        "coverage": "coverage: share of images accepted",
        "precision": "precision: share of accepted ones that are right",
    }
    for key, curve in curves.items():
        draw_curve(axes, curve, label=names[key], color={"coverage": GREEN, "precision": PURPLE}[key])
    name_panel(axes)
    share_axis(axes, whole=True)
    step_axis(axes)
    key_below(figure)
    unknown = "" if "precision" in curves else " Precision is not known, as the unlabelled images have no true labels here."
    caption = f"Coverage should rise without precision falling: accepting more but worse labels teaches mistakes.{unknown}"
    return chart(figure, "Quality of the pseudo-labels", caption)


def never_finite(entries: Sequence[Entry]) -> list[int]:
    """Steps at which a training loss was not a finite number."""
    return [int(entry["step"]) for entry in entries if "loss" in entry and not len(series([entry], "loss")[0])]


def draw_curve(axes: Axes, curve: tuple[Floats, Floats], **style: object) -> None:
    """Draw one curve, thinned if long and with its points marked if short."""
    steps, values = thin(*curve)
    marker = {"marker": "o", "markersize": 3.2} if len(steps) <= FEW_POINTS else {}
    axes.plot(steps, values, **{"linewidth": 1.8, **marker, **style})  # type: ignore[arg-type]
