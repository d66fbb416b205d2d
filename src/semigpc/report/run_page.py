"""The page of one run: what came out, how it got there, and what went in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from semigpc.report.calibration_figure import reliability_chart
from semigpc.report.chart_style import present
from semigpc.report.class_figures import recall_chart, share_chart
from semigpc.report.heat_maps import NUMBERED, SMALL, confusion_chart, pseudo_map_chart
from semigpc.report.page import write_page
from semigpc.report.run_folder import HEADS, PARTS, Entry, RunFolder, read_run, series
from semigpc.report.training_figures import accuracy_chart, loss_chart, never_finite, pseudo_chart
from semigpc.report.wording import HEAD_NAMES, SCORE_NAMES, flatten, run_title
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
