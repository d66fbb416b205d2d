"""The page of a labelled data set: how many rows got a label, how far to trust them, and what to
look at by hand.

``facts`` is a plain dictionary (what ``summary.json`` holds). Keys without "optional" are needed:

    title        str: heading of the page                   data         str: what was labelled, as the user named it
    classes      [str] (C,): names, in the model's order    given        [int] (C,): labels that came with the data
    pseudo       [int] (C,): rows that got a label          believed     [float] (C,) or None: shares of the classes among the
                                                                         rows without a given label,
                                                                         summing to 1
    statuses     {"labelled": int, "pseudo": int, "abstained": int, "outlier": int}: rows, as in the column ``status``
    threshold    float: confidence below which the model abstains, on average over the classes; 0.0 if it never does
    model        {name: number or text}: the hyper-parameters it was fitted with, in the order to show them
    settings     {name: value}: options of the command, in the order to show them
    evidence     what ``semigpc.labeling.evidence.gather_evidence`` returns, or None
    why_none     optional str: a sentence on why there is no evidence; shown where the evidence would stand
    suspects     [{"id", "given", "believed": str, "p_given", "p_believed", "variance": float}]: given labels that may be
                 wrong, worst first: the evidence's ``suspects`` with ids instead of row numbers; may be empty
    outliers     [{"id", "label": str (the likeliest class), "confidence", "variance": float}]: the farthest first; may be cut
                 off, their number is that in ``statuses``
    notes        [str]: sentences that the reader should see first, such as files that were skipped; may be empty
    rows_noun    optional str: what a row is, in the plural; "rows" if left out, "images" for a folder
    target_precision   optional float or None           seconds   optional float: time that labelling took
    promise      optional {"target", "probability", "supported", "expected", "possible": float or None, "per_class": bool,
                 "labels": int, "without": [str], "needed": {str: int}} or None: what is promised of the new labels, and the
                 classes that got none with the number of labels that each needs
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from semigpc.report import style
from semigpc.report.charts import class_axis, reliability_chart, share_lines_chart
from semigpc.report.style import (
    BLUE,
    FONT,
    GREEN,
    GREY,
    INK,
    MUTED,
    NAMED,
    ORANGE,
    PAPER,
    Chart,
    Entry,
    Floats,
    floats,
)
from semigpc.report.wording import count, counted, duration, flatten, no_new_labels, percent, short
from semigpc.training.run_folder import RunRecord

LISTED = 100  # rows of a list by hand; the tables of the folder have them all
PAIRS = 15  # confusion pairs that are drawn; the table has more
INTERVAL = "95% interval"
OFFSET: dict[str, Any] = {
    "textcoords": "offset points",
    "color": INK,
}  # of numbers beside bars and dots
NO_EVIDENCE = "Nothing was held out, so there is no estimate of how many of the labels are right."


Examples = dict[
    str, list[tuple[str, float]]
]  # "given", "most sure" and "least sure": ids and confidences


@dataclass(frozen=True)
class ReportImages:
    """Images for the page.

    Attributes:
        thumbnails: by id, as addresses that begin with "data:"; rows without one have no image.
        examples: by class. confused: an id for pairs of classes, given and predicted.
    """

    thumbnails: Mapping[str, str]
    examples: Mapping[str, Examples]
    confused: Mapping[tuple[str, str], str]


NO_IMAGES = ReportImages({}, {}, {})


def write_labeling_report(
    path: Path, facts: dict[str, Any], images: ReportImages = NO_IMAGES
) -> Path:
    """Write the page of a labelled data set: one file, with everything it shows inside.

    Args:
        path: of the page.
        facts: see the top of this module. images: small ones, if the rows are images.

    Returns:
        The path of the page.
    """
    evidence = facts.get("evidence") or {}
    noun = str(facts.get("rows_noun") or "rows")
    if not sum(facts["statuses"].values()) - facts["statuses"].get("labelled", 0):
        facts = facts | {"believed": None}  # there is no rest for shares to be of
    why_none = str(facts.get("why_none") or NO_EVIDENCE)
    methods = _methods(evidence)
    context = {
        "title": facts["title"],
        "data": facts["data"],
        "noun": noun,
        "nothing": _nothing(facts),
        "headline": [
            _headline(facts, noun),
            promise_sentence(facts),
            _trust(facts, evidence, noun) if evidence else why_none,
        ],
        "images": images,
        "notes": facts.get("notes") or [],
        "facts": _numbers(facts, evidence, noun),
        "evidence": evidence,
        "why_none": why_none,
        "shares": style.chart_rows([shares_chart(facts)]),
        "trust": style.chart_rows(
            [trust_chart(evidence, facts["threshold"], facts.get("target_precision"))]
        ),
        "reliability": style.chart_rows(
            [reliability_chart(evidence, alone=True, noun="held-out labels")]
        ),
        "recall": style.chart_rows([recall_chart(facts, evidence)]),
        "pairs_taken": style.chart_rows([pairs_chart(evidence)]),
        "peers": style.chart_rows([peers_chart(methods)]),
        "classes": _class_rows(facts, evidence),
        "totals": {key: sum(facts[key]) for key in ("given", "pseudo")},
        "confusions": evidence.get("confusions") or [],
        "suspects": facts.get("suspects") or [],
        "outliers": facts.get("outliers") or [],
        "outlier_count": facts["statuses"].get("outlier", 0),
        "methods": methods,
        "verdict": _verdict(methods),
        "model": _listed(facts.get("model")),
        "settings": _listed(facts.get("settings")),
        "unmeasured": evidence.get("never_held_out") or [],
        "listed": LISTED,
    }
    return style.write_page(path, "labeling.html", context)


def _nothing(facts: Entry) -> str:
    """Return the sentence on classes that got no new label; none if there was nothing to label."""
    if sum(facts["statuses"].values()) == facts["statuses"].get("labelled", 0):
        return ""
    promise = facts.get("promise") or {}
    empty = [name for name, new in zip(facts["classes"], facts["pseudo"], strict=True) if not new]
    return no_new_labels(
        {name: promise.get("needed", {}).get(name) for name in promise.get("without", empty)}
    )


def promise_sentence(facts: Entry) -> str:
    """Say what is promised of the new labels, and apart from that what their confidence says."""
    promise = facts.get("promise")
    if not promise or not facts["statuses"].get("pseudo", 0):
        return _no_promise(promise) if promise else ""
    target, probability = (f"{100 * promise[key]:g}%" for key in ("target", "probability"))
    of = " of every class" if promise.get("per_class") else ""
    sentence = (
        f"The promise: {target} of the labels given out{of} are right, with probability {probability}, if the given labels of "
        "each class are a random sample of it."
    )
    supported, expected = promise.get("supported"), promise.get("expected")
    if supported is not None and supported < promise["target"]:
        given = counted(promise["labels"], "given labels")
        alone = "Judged by the left-out labels above the threshold alone,"
        sentence += f" {alone} {given} can support {math.floor(100 * supported)}%."
    return f"{sentence} Apart from the promise, the mean confidence of the labels given out is {percent(expected)}."


def _no_promise(promise: Entry) -> str:
    labels = counted(promise.get("labels", 0), "given labels")
    lower = (
        f" Labels could be given out with a promise of {100 * promise['possible']:g}%."
        if promise.get("possible")
        else ""
    )
    return f"{labels} do not allow to promise that {100 * promise['target']:g}% of new labels are right.{lower}"


def _headline(facts: Entry, noun: str) -> str:
    """Say how many rows got a label, and why the others did not."""
    statuses = {
        key: int(facts["statuses"].get(key, 0))
        for key in ("labelled", "pseudo", "abstained", "outlier")
    }
    total = sum(statuses.values()) - statuses["labelled"]
    if not total:
        return f"All {counted(statuses['labelled'], noun)} came with a label: there was nothing to label."
    many = {key: f"{count(number)} ({percent(number / total)})" for key, number in statuses.items()}
    are = "it is" if statuses["outlier"] == 1 else "they are"
    reasons = []
    if statuses["abstained"]:
        threshold = f"confidence below {percent(facts['threshold'])}, or two classes compete"
        threshold = threshold if facts["threshold"] <= 1 else "with so few labels no confidence is"
        reasons.append(f"{many['abstained']} because no class was sure enough ({threshold})")
    if statuses["outlier"]:
        reasons.append(f"{many['outlier']} because {are} unlike everything labelled")
    rest = f"Left open: {', and '.join(reasons)}." if reasons else "None was left open."
    return f"Of {counted(total, noun)} without a label, {many['pseudo']} got one. {rest}"


def _trust(facts: Entry, evidence: Entry, noun: str) -> str:
    """Say what share of the new labels should be right, and how that is known."""
    chosen, target = evidence["chosen"], facts.get("target_precision")
    labels = counted(evidence["held_out"], "given labels")
    held = f"{labels}, each predicted by a model that had not seen it ({counted(evidence['folds'], 'folds')})"
    if chosen["precision"] is None:
        return f"At this threshold none of the {held} would have got a label: nothing is known of the precision."
    below = (
        f" This is less than the {percent(target)} asked for."
        if target and chosen["precision"] < target
        else ""
    )
    return (
        f"Measured: {percent(chosen['precision'])} of the labels given out would be right (95% interval "
        f"{percent(chosen['low'])} to {percent(chosen['high'])}).{below} That was found on {held}; it holds for {noun} like "
        "the labelled ones."
    )


def _numbers(facts: Entry, evidence: Entry, noun: str) -> list[tuple[str, str]]:
    """Name the few numbers that a reader asks for first."""
    statuses = facts["statuses"]
    names = {
        "labelled": "Given labels",
        "pseudo": "New labels",
        "abstained": "Left open",
        "outlier": "Outliers",
    }
    numbers = [
        (noun.capitalize(), count(sum(statuses.values()))),
        ("Classes", count(len(facts["classes"]))),
    ]
    numbers += [(name, count(statuses.get(key, 0))) for key, name in names.items()]
    if evidence:
        numbers.append(("Measured precision", percent(evidence["chosen"]["precision"])))
        numbers.append(("Balanced accuracy", percent(evidence["balanced_accuracy"]["value"])))
    if facts.get("seconds") is not None:
        numbers.append(("Time", duration(facts["seconds"])))
    return numbers


def _class_rows(facts: Entry, evidence: Entry) -> list[dict[str, Any]]:
    """List the classes, most labelled first, with what was measured of each."""
    run, believed = classes_of(facts), facts.get("believed")
    measured = {row["class"]: row for row in evidence.get("per_class") or []}
    return [
        {
            "name": run.class_names[c],
            "given": facts["given"][c],
            "share": believed[c] if believed else None,
            "pseudo": facts["pseudo"][c],
            "measured": measured.get(run.class_names[c], {}),
        }
        for c in run.order
    ]


def _listed(values: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """List names and values as text, numbers with four digits."""
    rounded = {
        name: f"{value:.4g}" if isinstance(value, float) else value
        for name, value in (values or {}).items()
    }
    return flatten(rounded) if rounded else []


def _methods(evidence: Entry) -> list[Entry]:
    """Return the methods that were compared, best balanced accuracy first and failures last."""
    return sorted(
        evidence.get("peers") or [],
        key=lambda row: (
            -1.0 if row.get("balanced_accuracy") is None else -2 - row["balanced_accuracy"]
        ),
    )


def _verdict(methods: Sequence[Entry]) -> str:
    """Say plainly which method was better on the same folds, and whether by more than folds differ."""
    rows = [row for row in methods if row.get("balanced_accuracy") is not None]
    ours = next((row for row in rows if row["name"] == "semigpc"), None)
    others = [row for row in rows if row["name"] != "semigpc"]
    if ours is None or not others:
        return ""
    best = others[0]
    gap = ours["balanced_accuracy"] - best["balanced_accuracy"]
    spread = max(ours.get("balanced_accuracy_std") or 0.0, best.get("balanced_accuracy_std") or 0.0)
    by = f"by {100 * abs(gap):.1f} points of balanced accuracy"
    caution = ", which is less than folds differ among themselves" if abs(gap) < spread else ""
    if gap < -0.0005:
        return (
            f"On these labels {best['title']} does better than the Gaussian process, {by}{caution}."
        )
    if gap > 0.0005:
        return f"On these labels the Gaussian process does better than the best of the others, {best['title']}, {by}{caution}."
    return f"On these labels the Gaussian process and the best of the others, {best['title']}, do equally well."


def classes_of(facts: Entry) -> RunRecord:
    """Return the classes with the labels given of each, in the form that charts with one place for
    each class take.
    """
    return RunRecord(
        Path(), split={"class_names": facts["classes"], "labeled_counts": facts["given"]}
    )


def shares_chart(facts: Entry) -> Chart | None:
    """Draw the share of each class among the labels given, the rows believed to be of it, and the
    labels made.
    """
    run = classes_of(facts)
    many = len(run.class_names) > NAMED
    counts = {
        key: floats(facts[key])[run.order]
        for key in ("given", "believed", "pseudo")
        if facts.get(key)
    }
    shares = {key: values / values.sum() for key, values in counts.items() if values.sum() > 0}
    if not shares:
        return None
    looks: dict[str, dict[str, Any]] = {
        "believed": {
            "color": MUTED,
            "linewidth": 6,
            "alpha": 0.45,
            "label": "estimated, without a given label",
        },
        "given": {"color": BLUE, "linestyle": (0, (4, 2)), "label": "given labels"},
        "pseudo": {"color": ORANGE, "label": "new labels", "marker": "" if many else "o"},
    }
    averaged = {
        key: style.running_mean(values) if many and key != "given" else values
        for key, values in shares.items()
    }
    lines = [(averaged[key], look) for key, look in looks.items() if key in shares]
    caption = (
        "Orange should follow the broad grey line; where it falls below, more of that class was left open than of others. "
        "Where grey and blue differ, classes have other shares among the rows without a label than among the given labels."
    )
    if "pseudo" not in shares:
        caption = "No new labels were made; look at how unevenly the given ones are spread over the classes."
    known = [shares.get("given", shares[next(iter(shares))])]
    return share_lines_chart(run, lines, known, "Shares of the classes", caption, averaged=True)


def trust_chart(evidence: Entry, threshold: float, target: float | None) -> Chart | None:
    """Draw what precision costs in coverage, and which threshold gives which, with the chosen one
    marked.
    """
    curve = evidence.get("curve") or []
    if not curve:
        return None
    keys = ("threshold", "coverage", "precision", "low", "high")
    at, coverage, precision, low, high = (floats([point[key] for point in curve]) for key in keys)
    figure, (left, right) = style.panels(1, 2, height=3.7)
    left.fill_between(
        coverage, low, high, color=BLUE, alpha=0.22, linewidth=0, label=f"its {INTERVAL}"
    )
    left.plot(coverage, precision, color=BLUE, linewidth=2, label="precision of the labels made")
    right.fill_between(at, low, high, color=BLUE, alpha=0.22, linewidth=0)
    right.plot(at, precision, color=BLUE, linewidth=2)
    right.plot(
        at,
        coverage,
        color=GREEN,
        linewidth=2,
        linestyle=(0, (5, 1.5)),
        label="coverage: share that gets a label",
    )
    chosen = evidence.get("chosen")
    if chosen and chosen["precision"] is not None:
        dot: dict[str, Any] = {
            "linestyle": "none",
            "marker": "o",
            "markersize": 9,
            "markeredgecolor": PAPER,
            "zorder": 5,
        }
        left.plot(chosen["coverage"], chosen["precision"], color=ORANGE, label="as chosen", **dot)
        right.plot(threshold, chosen["precision"], color=ORANGE, **dot)
    right.axvline(threshold, color=ORANGE, linewidth=1.2, zorder=1)
    for axes in (left, right):
        if target is not None:
            axes.axhline(
                target, color=INK, linestyle=":", linewidth=1.2, label="precision asked for"
            )
        axes.xaxis.set_major_formatter(style.percents())
    left.set_xlim(-0.02, 1.02)
    right.set_xlim(min(float(at.min()), threshold) - 0.02, 1.02)
    style.share_axis(left)
    style.share_axis(right, whole=True)
    style.name_panel(left, "What precision costs", x="coverage", y="precision")
    style.name_panel(right, "Which threshold gives which", x="confidence asked for")
    style.key_below(figure)
    caption = (
        "Measured on given labels that the model did not see. A curve that stays high to the right labels nearly everything "
        "safely; where the band is broad, there were few labels to measure on."
    )
    return style.chart(figure, "Coverage against precision", caption)


def recall_chart(facts: Entry, evidence: Entry) -> Chart | None:
    """Draw recall and precision of each class on held-out labels, with intervals where the classes
    are named.
    """
    run = classes_of(facts)
    n = len(run.class_names)
    rows = {row["class"]: row for row in evidence.get("per_class") or []}
    measured = [rows.get(run.class_names[c], {}) for c in run.order]
    recall, precision = (
        floats([row.get(key) for row in measured]) for key in ("recall", "precision")
    )
    if not np.isfinite(recall).any():
        return None
    figure, (axes,) = style.panels(1, 1, height=3.6)
    x = np.arange(n)
    for key, values, colour, mark, aside in (
        ("recall", recall, BLUE, "o", -0.14),
        ("precision", precision, ORANGE, "D", 0.14),
    ):
        if n <= NAMED:
            low, high = (
                floats([row.get(f"{key}_{end}") for row in measured]) for end in ("low", "high")
            )
            axes.vlines(x + aside, low, high, color=colour, linewidth=1.6, alpha=0.7)
            axes.plot(
                x + aside,
                values,
                mark,
                color=colour,
                markersize=6,
                markeredgecolor=PAPER,
                label=key,
                zorder=4,
            )
        else:
            axes.scatter(x, values, color=colour, s=8, linewidths=0, alpha=0.55, zorder=2)
            axes.plot(
                x,
                style.running_mean(values),
                color=colour,
                linewidth=1.8,
                label=f"{key} (running mean)",
                zorder=3,
            )
    class_axis(axes, run)
    style.share_axis(axes, whole=True)
    style.key_below(figure)
    reading = (
        f"Lines are {INTERVAL}s: long ones mean few labels."
        if n <= NAMED
        else "Each dot is a class."
    )
    caption = (
        f"{reading} Low recall: rows of the class are taken for others; label more of the class. Low precision: rows of others "
        "are taken for the class; label more of those."
    )
    return style.chart(figure, "Recall and precision of each class", caption)


def pairs_chart(evidence: Entry) -> Chart | None:
    """Draw the commonest confusions as bars: which share of a class is taken for another."""
    pairs = (evidence.get("confusions") or [])[:PAIRS]
    if not pairs:
        return None
    figure, (axes,) = style.panels(1, 1, height=0.9 + 0.3 * len(pairs))
    axes.barh(
        np.arange(len(pairs)), [pair["count"] for pair in pairs], color=BLUE, height=0.68, zorder=2
    )
    for place, pair in enumerate(pairs):
        written = f"{pair['count']:,} ({percent(pair['share'])} of the class)"
        axes.annotate(
            written, (pair["count"], place), (4, 0), va="center", fontsize=FONT - 0.5, **OFFSET
        )
    names = [
        f"{short(pair['true'], 30)} \N{RIGHTWARDS ARROW} {short(pair['believed'], 30)}"
        for pair in pairs
    ]
    _name_places(axes, names)
    axes.set_xlim(0, 1.28 * max(pair["count"] for pair in pairs))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    style.name_panel(axes, x="held-out labels")
    caption = "Left of the arrow the given class, right of it the predicted one. More labels of the pairs on top help most."
    return style.chart(figure, "Most frequent confusions", caption)


def peers_chart(rows: Sequence[Entry]) -> Chart | None:
    """Draw balanced and plain accuracy of each method on the same folds, with the deviation over
    folds.
    """
    if not any(row.get("balanced_accuracy") is not None for row in rows):
        return None
    figure, both = style.panels(1, 2, height=0.95 + 0.34 * len(rows))
    colours = [
        ORANGE if row["name"] == "semigpc" else GREY if row.get("failed") else BLUE for row in rows
    ]
    for axes, key in zip(both, ("balanced_accuracy", "accuracy"), strict=True):
        value, spread = (
            floats([row.get(key) for row in rows]),
            floats([row.get(f"{key}_std") for row in rows]),
        )
        _draw_spreads(axes, value, np.nan_to_num(spread), colours)
        for place, row in enumerate(rows):
            if row.get(key) is None:
                side = axes.get_yaxis_transform()
                axes.text(
                    0.02, place, "failed", transform=side, va="center", fontsize=FONT, color=MUTED
                )
        _name_places(
            axes,
            [short(str(row["title"]), 34) for row in rows] if axes is both[0] else [""] * len(rows),
        )
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(style.percents())
        style.name_panel(axes, "Balanced accuracy" if key == "balanced_accuracy" else "Accuracy")
    caption = "Dots are over all held-out labels, lines one deviation over the folds; methods whose lines overlap are close."
    return style.chart(figure, "The same folds, by other methods", caption)


def _draw_spreads(axes: Axes, value: Floats, spread: Floats, colours: Sequence[str]) -> None:
    for place, (middle, half, colour) in enumerate(zip(value, spread, colours, strict=True)):
        if np.isfinite(middle):
            axes.hlines(
                place,
                max(0.0, middle - half),
                min(1.0, middle + half),
                color=colour,
                linewidth=2.2,
                alpha=0.6,
            )
            axes.plot(
                middle, place, "o", color=colour, markersize=8, markeredgecolor=PAPER, zorder=4
            )
            axes.annotate(
                percent(middle), (middle, place), (0, 6), ha="center", fontsize=FONT - 1.5, **OFFSET
            )
    low, high = np.nanmin(value - spread), np.nanmax(value + spread)
    room = max(0.02, 0.12 * (high - low))
    axes.set_xlim(max(-0.02, low - room), min(1.02, high + room))


def _name_places(axes: Axes, names: Sequence[str]) -> None:
    """Name the places along y from the top down, one bar or dot each."""
    axes.set_yticks(np.arange(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
