"""The page of one run: what came out, how it got there, and what went in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from semigpc.report import style
from semigpc.report.charts import (
    NUMBERED,
    SMALL,
    confusion_chart,
    pseudo_map_chart,
    recall_chart,
    reliability_chart,
    share_chart,
)
from semigpc.report.style import Chart, Entry, Floats, series
from semigpc.report.wording import (
    HEAD_NAMES,
    JUDGED,
    SCORE_NAMES,
    count,
    duration,
    flatten,
    metric_name,
    percent,
    run_title,
)
from semigpc.training.metrics import CLASS_GROUPS
from semigpc.training.run_folder import HEADS, PARTS, RunRecord, read_run

CHOICES = {
    "last": "Last step",
    "best_on_validation": "Best on validation",
    "best_on_test": "Best on the test set (optimistic: chosen on the test set)",
}
COUNTS = {
    "labeled_counts": "Labelled",
    "unlabeled_counts": "Unlabelled (true)",
    "validation_counts": "Validation",
    "test_counts": "Test",
}
LOSS_NAMES = {
    "loss": "total",
    "loss_x": "labelled",
    "loss_u": "unlabelled",
    "loss_in": "instances",
    "loss_c": "contrastive",
    "loss_f": "fairness",
    "loss_pre": "before mixing",
    "loss_rot": "rotation",
}  # others are named by their key
LOSS_COLOURS = (style.BLUE, style.ORANGE, style.PURPLE, style.GOLD, style.GREEN, style.GREY)
HEAD_COLOURS = {"linear": style.BLUE, "gp": style.ORANGE}
MOST_POINTS = 300  # of a curve; neighbours in longer ones are averaged


def write_run_report(folder: Path) -> Path:
    """Read a run folder and write ``report.html`` into it, also from a run that was cut short.

    Returns:
        The path of the page: one file, with everything it shows inside.

    Raises:
        FileNotFoundError: if the folder holds neither config.json nor metrics.jsonl.
    """
    run = read_run(folder)
    entry: Entry = run.headline() or {}
    broad = SMALL < len(run.class_names) <= NUMBERED  # the matrix is too wide to share its row
    matrix, reliability = confusion_chart(run, entry), reliability_chart(entry, alone=broad)
    counts = {name: run.counts(key) for key, name in COUNTS.items()}
    context = {
        "title": run_title(run.config, run.summary.get("label")),
        "folder": run.path.resolve().name,
        "state": _state(run),
        "finished": run.summary.get("status") == "finished",
        "problems": [*run.problems, *_warnings(run)],
        "facts": _facts(run),
        "results": _results(run),
        "columns": _columns(run),
        "measured": f"{entry['part']} images, {_head(entry)}, step {count(entry.get('step'))}"
        if "part" in entry
        else "",
        "accuracy": style.chart_rows([accuracy_chart(run)]),
        "classes": style.chart_rows(
            [recall_chart(run, entry)],
            *([[matrix], [reliability]] if broad else [[matrix, reliability]]),
        ),
        "screening": _screening(run),
        "pseudo": style.chart_rows(
            [pseudo_chart(run)], [scale_chart(run)], [share_chart(run)], [pseudo_map_chart(run)]
        ),
        "training": style.chart_rows([loss_chart(run)]),
        "sections": _sections(run.config),
        "gp": flatten(run.summary["gp"]) if run.summary.get("gp") else [],
        "environment": flatten(run.environment) if run.environment else [],
        "split": run.split,
        "counts": {name: values for name, values in counts.items() if values is not None},
        "names": run.class_names,
        "order": run.order.tolist(),
        "notes": run.notes,
    }
    return style.write_page(folder / "report.html", "run.html", context)


def _state(run: RunRecord) -> str:
    """Say in one sentence how the run ended."""
    steps = (run.config.get("train") or {}).get("steps")
    of = f" of {count(steps)}" if isinstance(steps, int) else ""
    if run.summary:
        verb = {"finished": "Finished", "stopped": "Stopped before the end,"}.get(
            str(run.summary.get("status")), "Ended"
        )
        return f"{verb} at step {count(run.summary.get('step'))}{of}, after {duration(run.summary.get('seconds'))}."
    reached = max(
        (int(one["step"]) for kind in (run.train, run.evals, run.pseudo) for one in kind),
        default=None,
    )
    where = (
        f"it has reached step {count(reached)}{of}"
        if reached is not None
        else "it has written no metrics"
    )
    return f"No summary.json: the run was interrupted or is still going; {where}, and the numbers are of its last evaluation."


def _warnings(run: RunRecord) -> list[str]:
    bad = [
        int(entry["step"])
        for entry in run.train
        if "loss" in entry and not len(series([entry], "loss")[0])
    ]
    return (
        [
            f"The training loss was not a finite number at step {count(bad[0])} ({len(bad)} times in all)."
        ]
        if bad
        else []
    )


def _facts(run: RunRecord) -> list[tuple[str, str]]:
    """Name the few numbers a reader asks for first."""
    facts = [("Classes", count(len(run.class_names)))]
    labelled, known = run.counts("labeled_counts"), run.counts("unlabeled_counts")
    unlabelled = run.split.get("unlabeled", None if known is None else known.sum())
    if labelled is not None and len(labelled):
        facts.append(("Labelled images", count(labelled.sum())))
        if (fewest := labelled.min()) > 0:
            facts.append(("Most to fewest", f"{labelled.max() / fewest:.3g} to 1"))
    if unlabelled is not None:
        facts.append(("Unlabelled images", count(unlabelled)))
    speed, waiting = (
        series(run.train, "steps_per_second")[1],
        series(run.train, "data_wait_share")[1],
    )
    if len(speed):
        facts.append(("Steps a second", f"{np.median(speed):.3g}"))
    if len(waiting):
        facts.append(("Waiting for data", percent(float(np.median(waiting)))))
    if device := run.environment.get("device"):
        facts.append(("Device", str(device)))
    return facts


def _results(run: RunRecord) -> list[dict[str, Any]]:
    """List the rows of the headline table: the choices of the summary, then the last evaluations it
    does not contain.
    """
    summarised = run.results
    rows: list[tuple[str, Entry]] = [
        (name, result) for key, name in CHOICES.items() if (result := summarised.get(key))
    ]
    last: Entry = run.last_result or {}
    for part in PARTS:
        for head in HEADS:
            entries = run.curve(part, head)
            if entries and (part, head) != (last.get("part"), last.get("head")):
                rows.append(("Last step" if summarised else "Last evaluation", entries[-1]))
    return [
        {
            "name": name,
            "where": ", ".join(filter(None, (str(entry.get("part", "")), _head(entry))))
            + (JUDGED if entry.get("judged") else ""),
            "step": entry.get("step"),
            "entry": entry,
        }
        for name, entry in rows
    ]


def _head(entry: Entry) -> str:
    return HEAD_NAMES.get(str(entry.get("head")), str(entry.get("head", "")))


def _columns(run: RunRecord) -> list[str]:
    """Return the metrics of the headline table; of five classes all are among the first five, so
    top-5 needs more.
    """
    top5 = ("top5",) if len(run.class_names) > 5 else ()
    return ["balanced_accuracy", "top1", *top5, *CLASS_GROUPS, "macro_f1", "ece"]


def _screening(run: RunRecord) -> dict[str, Any] | None:
    """Return how well images of no class are told apart at the last evaluation, the AUROC of each
    score best first.
    """
    if not run.screening:
        return None
    last: Entry = run.screening[-1]
    scores = {
        SCORE_NAMES.get(key, key): float(last[key]) for key in last if key.startswith("auroc_")
    }
    return {
        "n_in": None,
        "n_out": None,
        **last,
        "rows": sorted(scores.items(), key=lambda pair: -pair[1]),
    }


def _sections(config: Entry) -> list[tuple[str, list[tuple[str, str]]]]:
    """Group the configuration by its first level; what is not nested stands under "run"."""
    nested = {
        str(key): flatten(value)
        for key, value in config.items()
        if isinstance(value, Mapping) and value
    }
    flat = [(str(key), str(value)) for key, value in config.items() if str(key) not in nested]
    return [*nested.items(), *([("run", flat)] if flat else [])]


# Curves over the steps ----------------------------------------------------------------------------


def loss_chart(run: RunRecord) -> Chart | None:
    """Draw each part of the training loss."""
    others = {
        key for entry in run.train for key in entry if key.startswith("loss")
    } - LOSS_NAMES.keys()
    keys = [*LOSS_NAMES, *sorted(others)]
    curves = {key: curve for key in keys if len((curve := series(run.train, key))[0])}
    if not curves:
        return None
    figure, (axes,) = style.panels(1, 1, height=3.1)
    parts = [key for key in curves if key != "loss"]
    for key, curve in curves.items():
        name = LOSS_NAMES.get(key, key.removeprefix("loss_").replace("_", " "))
        colour = style.INK if key == "loss" else LOSS_COLOURS[parts.index(key) % len(LOSS_COLOURS)]
        draw_curve(axes, curve, label=name, color=colour, linewidth=1.8 if key == "loss" else 1.4)
    style.name_panel(axes)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    style.step_axis(axes)
    style.key_below(figure)
    return style.chart(
        figure,
        "Loss",
        "Each part, here before its weight, should settle; a part stuck at zero does no work.",
    )


def accuracy_chart(run: RunRecord) -> Chart | None:
    """Draw balanced accuracy and top-1 for each part and head that was measured."""
    curves = {
        (part, head): entries
        for part in PARTS
        for head in HEADS
        if (entries := run.curve(part, head))
    }
    if not curves:
        return None
    figure, both = style.panels(1, 2, height=3.5)
    best: Entry = run.results.get("best_on_validation") or {}
    chosen = best.get("step")
    validation = {"linestyle": (0, (4, 2)), "markerfacecolor": style.PAPER, "linewidth": 1.3}
    for axes, key in zip(both, ("balanced_accuracy", "top1"), strict=True):
        for (part, head), entries in curves.items():
            look = {"label": f"{part}, {HEAD_NAMES[head]}", "color": HEAD_COLOURS[head]}
            draw_curve(
                axes, series(entries, key), **look, **(validation if part == "validation" else {})
            )
        if chosen is not None:
            axes.axvline(
                chosen,
                color=style.GREY,
                linestyle=":",
                linewidth=1.2,
                label="step chosen on validation",
            )
        style.name_panel(axes, metric_name(key))
        style.share_axis(axes)
        style.step_axis(axes)
    style.key_below(figure)
    caption = "Balanced accuracy counts every class alike: where it lags behind top-1, the rare classes pay for it."
    return style.chart(figure, "Accuracy over training", caption)


def pseudo_chart(run: RunRecord) -> Chart | None:
    """Draw how many unlabelled images got a pseudo-label, how many of those were right, and their
    calibration error.
    """
    looks = {
        "coverage": ("coverage: share of images accepted", style.GREEN),
        "precision": ("precision: share of accepted ones that are right", style.PURPLE),
        "ece": ("calibration error of accepted ones", style.ORANGE),
    }
    curves = {key: curve for key in looks if len((curve := series(run.pseudo, key))[0])}
    if not curves:
        return None
    figure, (axes,) = style.panels(1, 1, height=3.0)
    for key, curve in curves.items():
        draw_curve(axes, curve, label=looks[key][0], color=looks[key][1])
    style.name_panel(axes)
    style.share_axis(axes, whole=True)
    style.step_axis(axes)
    style.key_below(figure)
    unknown = (
        ""
        if "precision" in curves
        else " Precision is not known, as the unlabelled images have no true labels here."
    )
    error = (
        " The calibration error is the gap between precision and mean confidence, bin by bin."
        if "ece" in curves
        else ""
    )
    caption = f"Coverage should rise without precision falling: accepting more but worse labels teaches mistakes.{error}{unknown}"
    return style.chart(figure, "Quality of the pseudo-labels", caption)


def scale_chart(run: RunRecord) -> Chart | None:
    """Draw lambda and l of the GP, each in a panel of its own."""
    names = {
        "logit_scale": "lambda (refiner.logit_scale)",
        "length_scale": "l (refiner.length_scale)",
    }
    curves = {
        name: curve for key, name in names.items() if len((curve := series(run.train, key))[0])
    }
    if not curves:
        return None
    figure, panels = style.panels(1, len(curves), height=2.6)
    for axes, (name, curve) in zip(panels, curves.items(), strict=True):
        draw_curve(axes, curve, color=style.BLUE)
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        style.name_panel(axes, name)
        style.step_axis(axes)
    caption = "A larger lambda makes every pseudo-label more confident; with a larger l, labels reach less similar images."
    return style.chart(figure, "Scales of the GP", caption)


def draw_curve(axes: Axes, curve: tuple[Floats, Floats], **look: Any) -> None:
    """Draw steps and values (S,), each pair marked if there are few, and neighbours averaged if
    there are many.
    """
    steps, values = curve
    if len(steps) > MOST_POINTS:
        steps, values = (
            np.array([piece.mean() for piece in np.array_split(numbers, MOST_POINTS)])
            for numbers in curve
        )
    marks = {"marker": "o", "markersize": 3.2} if len(steps) <= style.FEW_POINTS else {}
    axes.plot(steps, values, **{"linewidth": 1.8, **marks, **look})
