"""The page of one run: what came out, how it got there, and what went in."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from semigpc.report import style
from semigpc.report.charts import (
    MOST_NARROW,
    MOST_NUMBERED,
    Look,
    confusion_chart,
    draw_curve,
    pseudo_map_chart,
    recall_chart,
    reliability_chart,
    share_chart,
)
from semigpc.report.style import Chart, series
from semigpc.report.wording import (
    HEAD_NAMES,
    JUDGED,
    SCORE_NAMES,
    Record,
    count,
    duration,
    flatten,
    metric_name,
    number_of,
    percent,
    used_sentence,
)
from semigpc.training.metrics import CLASS_GROUPS
from semigpc.training.run_folder import (
    HEADS,
    PARTS,
    MetricsLine,
    RunRecord,
    RunSettings,
    Standing,
    read_run,
)

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
HEAD_COLOURS = {"linear": style.BLUE, "gp": style.ORANGE, "label": style.GREEN}
SCALE_NAMES = {
    "logit_scale": "lambda (refiner.logit_scale)",
    "length_scale": "l (refiner.length_scale)",
}
PSEUDO_LINES = {
    "coverage": ("coverage: share of images accepted", style.GREEN),
    "precision": ("precision: share of accepted ones that are right", style.PURPLE),
    "ece": ("calibration error of accepted ones", style.ORANGE),
}


@dataclass(frozen=True)
class ResultRow:
    """A row of the table of results: which step, what it was measured on, and its figures."""

    name: str
    where: str
    step: float | None
    figures: Record


@dataclass(frozen=True)
class Screening:
    """How well images of no class are told apart: AUROC by score, best first, and image counts."""

    step: int
    n_in: int | None
    n_out: int | None
    scores: list[tuple[str, float]]


def write_run_report(folder: Path) -> Path:
    """Read a run folder and write ``report.html`` into it, also from a run that was cut short.

    Returns:
        The path of the page: one file, with everything it shows inside.

    Raises:
        FileNotFoundError: if the folder holds neither config.json nor metrics.jsonl.
    """
    run = read_run(folder)
    headline = run.headline()
    figures: Record = headline or {}
    counts = {name: run.counts(key) for key, name in COUNTS.items()}
    context = {
        "title": run_title(run.config, run.summary.get("label")),
        "folder": run.path.resolve().name,
        "state": _state(run),
        "finished": run.summary.get("status") == "finished",
        "problems": [*run.problems, *_warnings(run)],
        "facts": _facts(run),
        "results": _results(run),
        "used": used_sentence(*run.standing),
        "columns": _columns(run),
        "measured": _measured(figures),
        "accuracy": style.chart_rows([accuracy_chart(run)]),
        "classes": _class_charts(run, headline),
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


def run_title(config: RunSettings, label: str | None = None) -> str:
    """Name a run by its method, data and seed, as far as they are known.

    Args:
        config: of the run.
        label: the name of the method for people.
    """
    parts = [config.get("algorithm"), config.get("addon"), config.get("refiner")]
    names = [str((part or {}).get("name", "none")) for part in parts]
    method = label or " + ".join(name for name in names if name != "none") or "Run"
    data = (config.get("data") or {}).get("name")
    where = f" on {data}" if data else ""
    seed = f", seed {config['seed']}" if "seed" in config else ""
    return f"{method}{where}{seed}"


def _state(run: RunRecord) -> str:
    """Return one sentence on how the run ended."""
    steps = (run.config.get("train") or {}).get("steps")
    of = f" of {count(steps)}" if isinstance(steps, int) else ""
    if run.summary:
        verbs = {"finished": "Finished", "stopped": "Stopped before the end,"}
        verb = verbs.get(run.summary.get("status", ""), "Ended")
        step = count(run.summary.get("step"))
        return f"{verb} at step {step}{of}, after {duration(run.summary.get('seconds'))}."
    reached = [line["step"] for line in (*run.train, *run.evals, *run.pseudo)]
    where = f"it has reached step {count(max(reached))}{of}" if reached else "it has no metrics yet"
    return (
        f"No summary.json: the run was interrupted or is still running; {where}, and the charts of "
        "classes are those of its last evaluation."
    )


def _warnings(run: RunRecord) -> list[str]:
    losses = [line for line in run.train if "loss" in line]
    bad = [line["step"] for line in losses if number_of(line, "loss") is None]
    if not bad:
        return []
    return [f"The training loss was NaN or infinite at step {count(bad[0])} ({len(bad)} in all)."]


def _facts(run: RunRecord) -> list[tuple[str, str]]:
    """Return the few numbers that a reader looks for first."""
    facts = [("Classes", count(len(run.class_names)))]
    labelled = run.counts("labeled_counts")
    if labelled is not None and len(labelled):
        facts.append(("Labelled images", count(labelled.sum())))
        if (fewest := labelled.min()) > 0:
            facts.append(("Most to fewest", f"{labelled.max() / fewest:.3g} to 1"))
    known = run.counts("unlabeled_counts")
    unlabelled = run.split.get("unlabeled", None if known is None else known.sum())
    if unlabelled is not None:
        facts.append(("Unlabelled images", count(unlabelled)))
    _, speed = series(run.train, "steps_per_second")
    if len(speed):
        facts.append(("Steps per second", f"{np.median(speed):.3g}"))
    _, waiting = series(run.train, "data_wait_share")
    if len(waiting):
        facts.append(("Waiting for data", percent(float(np.median(waiting)))))
    if device := run.environment.get("device"):
        facts.append(("Device", str(device)))
    return facts


def _results(run: RunRecord) -> list[ResultRow]:
    """Return the results by their choice, then the last evaluations that are not among them."""
    last_name = "Last step" if run.summary else "Last evaluation"
    names = CHOICES | {"last": last_name}
    rows: list[tuple[str, MetricsLine]] = [
        (name, result) for key, name in names.items() if (result := run.results.get(key))
    ]
    last = run.results.get("last")
    summarised = None if last is None else (last.get("part"), last.get("head"))
    for part in PARTS:
        for head in HEADS:
            lines = run.curve(part, head)
            if lines and (part, head) != summarised:
                rows.append((last_name, lines[-1]))
    return [
        ResultRow(name, _where(figures, run.standing), number_of(figures, "step"), figures)
        for name, figures in rows
    ]


def _where(figures: Record, stands_for: Standing) -> str:
    parts = [str(figures.get("part", "")), _head(figures)]
    is_used = (figures.get("step"), figures.get("head")) == (stands_for.step, stands_for.head)
    return ", ".join(filter(None, parts)) + (JUDGED if is_used else "")


def _head(figures: Record) -> str:
    head = str(figures.get("head", ""))
    return HEAD_NAMES.get(head, head)


def _measured(figures: Record) -> str:
    if "part" not in figures:
        return ""
    step = count(number_of(figures, "step"))
    return f"{figures['part']} images, {_head(figures)}, step {step}"


def _columns(run: RunRecord) -> list[str]:
    """Return the metrics of the table; top-5 needs more than five classes."""
    top5 = ("top5",) if len(run.class_names) > 5 else ()
    return ["balanced_accuracy", "top1", *top5, *CLASS_GROUPS, "macro_f1", "ece"]


def _class_charts(run: RunRecord, headline: MetricsLine | None) -> list[list[Chart]]:
    """Return recall, confusions and reliability of an evaluation."""
    if headline is None:
        return []
    broad = MOST_NARROW < len(run.class_names) <= MOST_NUMBERED  # too wide to share its row
    matrix = confusion_chart(run, headline.get("confusion"))
    reliability = reliability_chart(
        headline.get("reliability"),
        number_of(headline, "ece"),
        temperature=number_of(headline, "temperature"),
        beside=broad,
    )
    rows = [[matrix], [reliability]] if broad else [[matrix, reliability]]
    return style.chart_rows([recall_chart(run, headline)], *rows)


def _screening(run: RunRecord) -> Screening | None:
    """Return the last evaluation of how well images of no class are told apart."""
    if not run.screening:
        return None
    last = run.screening[-1]
    scores = [
        (SCORE_NAMES.get(key, key), value)
        for key in last
        if key.startswith("auroc_") and (value := number_of(last, key)) is not None
    ]
    scores.sort(key=lambda score: -score[1])
    return Screening(last["step"], last.get("n_in"), last.get("n_out"), scores)


def _sections(config: RunSettings) -> list[tuple[str, list[tuple[str, str]]]]:
    """Group the configuration by its first level; what is not nested stands under "run"."""
    sections = []
    flat = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            sections.append((key, flatten(value)))
        else:
            flat.append((key, str(value)))
    return [*sections, ("run", flat)] if flat else sections


# Curves over the steps ----------------------------------------------------------------------------


def loss_chart(run: RunRecord) -> Chart | None:
    """Draw each part of the training loss."""
    logged = {key for line in run.train for key in line if key.startswith("loss")}
    keys = [*LOSS_NAMES, *sorted(logged - LOSS_NAMES.keys())]
    curves = {key: curve for key in keys if len((curve := series(run.train, key))[0])}
    if not curves:
        return None
    figure, (axes,) = style.panels(1, 1, height=3.1)
    parts = [key for key in curves if key != "loss"]
    for key, curve in curves.items():
        name = LOSS_NAMES.get(key, key.removeprefix("loss_").replace("_", " "))
        if key == "loss":
            draw_curve(axes, curve, label=name, color=style.INK)
        else:
            colour = LOSS_COLOURS[parts.index(key) % len(LOSS_COLOURS)]
            draw_curve(axes, curve, label=name, color=colour, linewidth=1.4)
    style.name_panel(axes)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    style.step_axis(axes)
    style.key_below(figure)
    caption = (
        "Each part, before its weight, should settle; a part that stays at zero has no effect."
    )
    return style.chart(figure, "Loss", caption)


def accuracy_chart(run: RunRecord) -> Chart | None:
    """Draw balanced accuracy and top-1 for each part and head that was measured."""
    curves = {(part, head): run.curve(part, head) for part in PARTS for head in HEADS}
    if not any(curves.values()):
        return None
    figure, both = style.panels(1, 2, height=3.5)
    best = run.results.get("best_on_validation")
    validation = {"linestyle": (0, (4, 2)), "markerfacecolor": style.PAPER, "linewidth": 1.3}
    for axes, key in zip(both, ("balanced_accuracy", "top1"), strict=True):
        for (part, head), lines in curves.items():
            look: Look = {"label": f"{part}, {HEAD_NAMES[head]}", "color": HEAD_COLOURS[head]}
            look |= validation if part == "validation" else {}
            if lines:
                draw_curve(axes, series(lines, key), **look)
        if best is not None:
            dotted: Look = {"color": style.GREY, "linestyle": ":", "linewidth": 1.2}
            axes.axvline(best["step"], label="step chosen on validation", **dotted)
        style.name_panel(axes, metric_name(key))
        style.share_axis(axes)
        style.step_axis(axes)
    style.key_below(figure)
    caption = (
        "Balanced accuracy weights all classes equally: where it lags behind top-1, rare classes "
        "are found less often."
    )
    return style.chart(figure, "Accuracy over training", caption)


def pseudo_chart(run: RunRecord) -> Chart | None:
    """Draw coverage, precision and calibration error of the pseudo-labels."""
    curves = {key: curve for key in PSEUDO_LINES if len((curve := series(run.pseudo, key))[0])}
    if not curves:
        return None
    figure, (axes,) = style.panels(1, 1, height=3.0)
    for key, curve in curves.items():
        label, colour = PSEUDO_LINES[key]
        draw_curve(axes, curve, label=label, color=colour)
    style.name_panel(axes)
    style.share_axis(axes, whole=True)
    style.step_axis(axes)
    style.key_below(figure)
    caption = (
        "Coverage should rise without precision falling: more but worse labels teach mistakes."
    )
    if "ece" in curves:
        caption += " The calibration error is the mean gap between precision and confidence."
    if "precision" not in curves:
        caption += " Precision is not known, as the unlabelled images have no true labels here."
    return style.chart(figure, "Quality of the pseudo-labels", caption)


def scale_chart(run: RunRecord) -> Chart | None:
    """Draw lambda and l of the GP, each in a panel of its own."""
    curves = {key: curve for key in SCALE_NAMES if len((curve := series(run.train, key))[0])}
    if not curves:
        return None
    figure, panels = style.panels(1, len(curves), height=2.6)
    for axes, (key, curve) in zip(panels, curves.items(), strict=True):
        draw_curve(axes, curve, color=style.BLUE)
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        style.name_panel(axes, SCALE_NAMES[key])
        style.step_axis(axes)
    caption = (
        "lambda multiplies the scores of the Gaussian process before the softmax: a larger one "
        "makes every pseudo-label more confident. l is its length-scale: with a larger one, labels "
        "reach less similar images."
    )
    return style.chart(figure, "Scales of the GP", caption)
