"""The page of one run: what came out, how it got there, and what went in."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from semigpc.report.class_figures import (
    NUMBERED,
    SMALL,
    confusion_chart,
    pseudo_map_chart,
    recall_chart,
    reliability_chart,
    share_chart,
)
from semigpc.report.run_record import HEADS, PARTS, Entry, Floats, RunFolder, read_run, series
from semigpc.report.style import (
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
    present,
    share_axis,
    step_axis,
    thin,
    write_page,
)
from semigpc.report.wording import HEAD_NAMES, SCORE_NAMES, flatten, metric_name, run_title
from semigpc.text import CLASS_GROUPS, count, duration, percent

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


def write_run_report(folder: Path) -> Path:
    """Read a run folder and write ``report.html`` into it, also from a run that was cut short.

    Returns:
        The path of the page: one file, with everything it shows inside.

    Raises:
        FileNotFoundError: if the folder holds neither config.json nor metrics.jsonl.
        ValueError: if its files disagree on the number of classes.
    """
    run = read_run(folder)
    return write_page(folder / "report.html", "run.html", _context(run))


def _context(run: RunFolder) -> dict[str, Any]:
    entry = run.headline() or {}
    broad = SMALL < len(run.class_names) <= NUMBERED  # the matrix is too wide to share its row
    matrix, reliability = confusion_chart(run, entry), reliability_chart(entry, alone=broad)
    rows = [[recall_chart(run, entry)], *([[matrix], [reliability]] if broad else [[matrix, reliability]])]
    counts = {name: run.counts(key) for key, name in COUNTS.items()}
    return {
        "title": run_title(run.config),
        "folder": run.path.resolve().name,
        "state": _state(run),
        "finished": run.summary.get("status") == "finished",
        "problems": [*run.problems, *_warnings(run)],
        "facts": _facts(run),
        "results": _results(run),
        "columns": _columns(run),
        "measured": f"{entry['part']} images, {_head(entry)}, step {count(entry.get('step'))}" if "part" in entry else "",
        "accuracy": [present([accuracy_chart(run)])],
        "classes": [found for row in rows if (found := present(row))],
        "screening": _screening(run),
        "pseudo": [present([one]) for one in (pseudo_chart(run), share_chart(run), pseudo_map_chart(run)) if one],
        "training": [present([loss_chart(run)])],
        "sections": _sections(run.config),
        "gp": flatten(run.summary["gp"]) if run.summary.get("gp") else [],
        "environment": flatten(run.environment) if run.environment else [],
        "split": run.split,
        "counts": {name: found for name, found in counts.items() if found is not None},
        "names": run.class_names,
        "order": run.order.tolist(),
        "notes": run.notes,
    }


def _state(run: RunFolder) -> str:
    """Say in one sentence how the run ended."""
    steps = (run.config.get("train") or {}).get("steps")
    of = f" of {count(steps)}" if isinstance(steps, int) else ""
    if run.summary:
        verb = {"finished": "Finished", "stopped": "Stopped before the end,"}.get(str(run.summary.get("status")), "Ended")
        return f"{verb} at step {count(run.summary.get('step'))}{of}, after {duration(run.summary.get('seconds'))}."
    reached = max((int(one["step"]) for kind in (run.train, run.evals, run.pseudo) for one in kind), default=None)
    where = f"it has reached step {count(reached)}{of}" if reached is not None else "it has written no metrics"
    return f"No summary.json: the run was interrupted or is still going; {where}, and the numbers are of its last evaluation."


def _warnings(run: RunFolder) -> list[str]:
    bad = never_finite(run.train)
    return [f"The training loss was not a finite number at step {count(bad[0])} ({len(bad)} times in all)."] if bad else []


def _facts(run: RunFolder) -> list[tuple[str, str]]:
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
    speed, waiting = series(run.train, "steps_per_second")[1], series(run.train, "data_wait_share")[1]
    if len(speed):
        facts.append(("Steps a second", f"{np.median(speed):.3g}"))
    if len(waiting):
        facts.append(("Waiting for data", percent(float(np.median(waiting)))))
    if device := run.environment.get("device"):
        facts.append(("Device", str(device)))
    return facts


def _results(run: RunFolder) -> list[dict[str, Any]]:
    """List the rows of the headline table: the choices of the summary, then the last evaluations it does not speak of."""
    summarised = run.summary.get("results") or {}
    rows = [_row(name, summarised[key]) for key, name in CHOICES.items() if summarised.get(key)]
    last = summarised.get("last") or {}
    for part in PARTS:
        for head in HEADS:
            entries = run.curve(part, head)
            if entries and (part, head) != (last.get("part"), last.get("head")):
                rows.append(_row("Last step" if summarised else "Last evaluation", entries[-1]))
    return rows


def _screening(run: RunFolder) -> dict[str, Any] | None:
    """How well images of no class are told apart at the last evaluation: facts, and (what goes by, AUROC) best first."""
    if not run.screening:
        return None
    last = run.screening[-1]
    found = {SCORE_NAMES.get(key, key): float(last[key]) for key in last if key.startswith("auroc_")}
    return {
        "step": last["step"],
        "n_in": last.get("n_in"),
        "n_out": last.get("n_out"),
        "rows": sorted(found.items(), key=lambda pair: -pair[1]),
    }


def _row(name: str, entry: Entry) -> dict[str, Any]:
    part = str(entry.get("part", ""))
    return {"name": name, "where": ", ".join(filter(None, (part, _head(entry)))), "step": entry.get("step"), "entry": entry}


def _head(entry: Entry) -> str:
    return HEAD_NAMES.get(str(entry.get("head")), str(entry.get("head", "")))


def _columns(run: RunFolder) -> list[str]:
    """Metrics of the headline table; all classes are among the first five of five, so top-5 needs more."""
    top5 = ("top5",) if len(run.class_names) > 5 else ()
    return ["balanced_accuracy", "top1", *top5, *CLASS_GROUPS, "macro_f1", "ece"]


def _sections(config: Entry) -> list[tuple[str, list[tuple[str, str]]]]:
    """Group the configuration by its first level; what is not nested stands under "run"."""
    nested = [(str(key), flatten(value)) for key, value in config.items() if isinstance(value, Mapping) and value]
    flat = [(str(key), str(value)) for key, value in config.items() if not (isinstance(value, Mapping) and value)]
    return nested + ([("run", flat)] if flat else [])


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
