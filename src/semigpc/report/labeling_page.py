"""The page of a labelled data set: how many rows got a label, how far to trust them, and what to look at by hand.

``facts`` is a plain dictionary (what ``summary.json`` holds). Keys without "optional" are needed:

    title        str: heading of the page                   data         str: what was labelled, as the user named it
    classes      [str] (C,): names, in the model's order    given        [int] (C,): labels that came with the data
    pseudo       [int] (C,): rows that got a label          believed     [float] (C,) or None: shares of the classes among the
                                                                         rows without a given label, summing to 1
    statuses     {"labelled": int, "pseudo": int, "abstained": int, "outlier": int}: rows, as in the column ``status``
    threshold    float: confidence below which the model abstains; 0.0 if it never does
    model        {name: number or text}: the hyper-parameters it was fitted with, in the order to show them
    settings     {name: value}: options of the command, in the order to show them
    evidence     what ``semigpc.labeling.evidence.gather_evidence`` answers, or None
    why_none     optional str: a sentence on why there is no evidence; shown where the evidence would stand
    suspects     [{"id", "given", "believed": str, "p_given", "p_believed", "variance": float}]: given labels that may be
                 wrong, worst first: the evidence's ``suspects`` with ids instead of row numbers; may be empty
    outliers     [{"id", "label": str (the likeliest class), "confidence", "variance": float}]: the farthest first; may be cut
                 off, their number is that in ``statuses``
    notes        [str]: sentences that the reader should see first, such as files that were skipped; may be empty
    rows_noun    optional str: what a row is, in the plural; "rows" if left out, "images" for a folder
    target_precision   optional float or None           seconds   optional float: time that labelling took
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from semigpc.report.class_figures import RANKS, class_axis, draw_shares, reliability_chart, share_scale
from semigpc.report.run_record import Entry, Floats, RunFolder, floats
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
    chart,
    key_below,
    name_panel,
    panels,
    running_mean,
    share_axis,
    write_page,
)
from semigpc.report.wording import flatten, short
from semigpc.text import count, duration, percent

LISTED = 100  # rows of a list by hand; the tables of the folder have them all
NO_EVIDENCE = "Nothing was held out, so there is no estimate of how many of the labels are right."


def write_labeling_report(path: Path, facts: dict[str, Any]) -> Path:
    """Write the page of a labelled data set: one file, with everything it shows inside.

    Args:
        path: of the page.
        facts: see the top of this module.

    Returns:
        The path of the page.
    """
    return write_page(path, "labeling.html", _context(facts))


def _context(facts: dict[str, Any]) -> dict[str, Any]:
    evidence = facts.get("evidence")
    noun = str(facts.get("rows_noun") or "rows")
    if not sum(facts["statuses"].values()) - facts["statuses"].get("labelled", 0):
        facts = facts | {"believed": None}  # there is no rest for shares to be of
    measured: dict[str, list[list[Chart]]] = {"trust": [], "reliability": [], "recall": [], "confusions": [], "peers": []}
    if evidence:
        charts = {
            "trust": trust_chart(evidence, threshold=facts["threshold"], target=facts.get("target_precision")),
            "reliability": reliability_chart(evidence, alone=True, noun="held-out labels"),
            "recall": recall_chart(facts, evidence),
            "confusions": pairs_chart(evidence),
            "peers": peers_chart(_methods(evidence)),
        }
        measured = {key: [[one]] if one else [] for key, one in charts.items()}
    shares = shares_chart(facts)
    return {
        "title": facts["title"],
        "data": facts["data"],
        "noun": noun,
        "headline": [*_headline(facts, noun), *_trust(facts, noun)],
        "good": evidence is not None,
        "notes": facts.get("notes") or [],
        "facts": _numbers(facts, noun),
        "evidence": evidence,
        "why_none": str(facts.get("why_none") or NO_EVIDENCE),
        "shares": [[shares]] if shares else [],
        "charts": measured,
        "classes": _class_rows(facts),
        "totals": {key: sum(facts[key]) for key in ("given", "pseudo")},
        "confusions": (evidence or {}).get("confusions") or [],
        "suspects": facts.get("suspects") or [],
        "outliers": facts.get("outliers") or [],
        "outlier_count": facts["statuses"].get("outlier", 0),
        "methods": _methods(evidence) if evidence else [],
        "verdict": _verdict(evidence) if evidence else "",
        "model": _listed(facts.get("model")),
        "settings": _listed(facts.get("settings")),
        "unmeasured": _some((evidence or {}).get("never_held_out") or []),
        "how": _how(evidence) if evidence else "",
        "fairness": _fairness(evidence, noun) if evidence else "",
        "listed": LISTED,
    }


def _headline(facts: Mapping[str, Any], noun: str) -> list[str]:
    """Say how many rows got a label, and why the others did not."""
    statuses = {key: int(facts["statuses"].get(key, 0)) for key in ("labelled", "pseudo", "abstained", "outlier")}
    total = sum(statuses.values()) - statuses["labelled"]
    if not total:
        return [f"All {count(statuses['labelled'])} {noun} came with a label: there was nothing to label."]
    many = {key: f"{count(number)} ({percent(number / total)})" for key, number in statuses.items()}
    said = f"Of {count(total)} {noun} without a label, {many['pseudo']} got one."
    reasons = []
    if statuses["abstained"]:
        threshold = f"confidence below {percent(facts['threshold'])}"
        reasons.append(f"{many['abstained']} because no class was probable enough ({threshold})")
    if statuses["outlier"]:
        reasons.append(f"{many['outlier']} because they are unlike everything labelled")
    return [said + (f" Left open: {', and '.join(reasons)}." if reasons else " None was left open.")]


def _trust(facts: Mapping[str, Any], noun: str) -> list[str]:
    """Say what share of the new labels should be right, and how that is known."""
    evidence = facts.get("evidence")
    if not evidence:
        return [str(facts.get("why_none") or NO_EVIDENCE)]
    chosen = evidence["chosen"]
    held = (
        f"{count(evidence['held_out'])} given labels, each judged by a model that had not seen it ({evidence['folds']} folds)"
    )
    if chosen["precision"] is None:
        return [f"At this threshold none of the {held} would have got a label: nothing is known of the precision."]
    target = facts.get("target_precision")
    below = f" This is less than the {percent(target)} asked for." if target and chosen["precision"] < target else ""
    return [
        f"Of the labels made, {percent(chosen['precision'])} should be right (95% interval {percent(chosen['low'])} to "
        f"{percent(chosen['high'])}).{below} That is what was found on {held}; it holds for {noun} like the labelled ones."
    ]


def _how(evidence: Entry) -> str:
    """Say how the figures were measured, and which way they may lean."""
    held, labels = count(evidence["held_out"]), count(evidence["labels"])
    folds = f"{evidence['folds']} folds with every class spread over them"
    said = [f"{held} of {labels} given labels were held out in turn, in {folds}."]
    if evidence["used"] < evidence["labels"]:
        said.append(f"Only {count(evidence['used'])} of the labels took part, to save time.")
    said.append("Hyper-parameters were chosen anew in each fold, from the labels left in it.")
    said.append("A rare class misses a good part of its labels while some are held out: this makes figures too low.")
    if evidence["suspects"]:
        said.append("So do given labels that are wrong, as finding the right class for them counts as a mistake.")
    if evidence["weighted"]:
        said.append(
            "For precision, coverage and reliability a label counts as often as its class is believed to occur among the rest."
        )
    return " ".join(said)


def _fairness(evidence: Entry, noun: str) -> str:
    """Say on what terms the methods were compared."""
    prepared = {"unit": "scaled to unit length", "standardised": "standardised column by column"}[evidence["preparation"]]
    return (
        f"All methods learned from the same labels and were asked for the same held-out ones; the others saw rows {prepared}. "
        f"Those that use unlabelled {noun} were given {count(evidence['peer_unlabeled'])} of them. Times are of all folds; "
        "\N{PLUS-MINUS SIGN} is one deviation over folds."
    )


def _numbers(facts: Mapping[str, Any], noun: str) -> list[tuple[str, str]]:
    """Name the few numbers that a reader asks for first."""
    statuses = facts["statuses"]
    names = {"labelled": "Given labels", "pseudo": "New labels", "abstained": "Left open", "outlier": "Outliers"}
    found = [(noun.capitalize(), count(sum(statuses.values()))), ("Classes", count(len(facts["classes"])))]
    found += [(name, count(statuses.get(key, 0))) for key, name in names.items()]
    if evidence := facts.get("evidence"):
        found.append(("Expected precision", percent(evidence["chosen"]["precision"])))
        found.append(("Balanced accuracy", percent(evidence["balanced_accuracy"]["value"])))
    if facts.get("seconds") is not None:
        found.append(("Time", duration(facts["seconds"])))
    return found


def _class_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each class, most labelled first, with what was measured of it."""
    run = classes_of(facts)
    measured = {row["class"]: row for row in (facts.get("evidence") or {}).get("per_class") or []}
    believed = facts.get("believed")
    return [
        {
            "name": run.class_names[c],
            "given": facts["given"][c],
            "share": believed[c] if believed else None,
            "pseudo": facts["pseudo"][c],
            "recall": _interval(measured.get(run.class_names[c], {}), "recall"),
            "precision": _interval(measured.get(run.class_names[c], {}), "precision"),
        }
        for c in run.order
    ]


def _listed(values: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Names and values as text, numbers with four digits."""
    short = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in (values or {}).items()}
    return flatten(short) if short else []


def _some(names: Sequence[str], most: int = 12) -> str:
    """Names in a row, the first few if they are many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _interval(row: Entry, key: str) -> tuple[str, str]:
    """A share and its interval, as text."""
    if row.get(key) is None:
        return percent(None), ""
    return percent(row[key]), f"{percent(row[f'{key}_low'])} to {percent(row[f'{key}_high'])}"


def _methods(evidence: Entry) -> list[Entry]:
    """The methods that were compared, best balanced accuracy first and failures last."""
    return sorted(
        evidence.get("peers") or [],
        key=lambda row: -1.0 if row.get("balanced_accuracy") is None else -2 - row["balanced_accuracy"],
    )


def _verdict(evidence: Entry) -> str:
    """Say plainly who was better on the same folds, and whether by more than chance moves it."""
    rows: Sequence[Entry] = [row for row in _methods(evidence) if row.get("balanced_accuracy") is not None]
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
        return f"On these labels {best['title']} does better than the Gaussian process, {by}{caution}. Consider it."
    if gap > 0.0005:
        return f"On these labels the Gaussian process does better than the best of the others, {best['title']}, {by}{caution}."
    return f"On these labels the Gaussian process and the best of the others, {best['title']}, do equally well."


PAIRS = 15  # confusion pairs that are drawn; the table has more
INTERVAL = "95% interval"


def classes_of(facts: Mapping[str, Any]) -> RunFolder:
    """The classes with the labels given of each, in the form that charts with one place for each class take."""
    return RunFolder(Path(), {}, {}, {"class_names": facts["classes"], "labeled_counts": facts["given"]}, {})


def shares_chart(facts: Mapping[str, Any]) -> Chart | None:
    """Draw the share of each class among the labels given, the rows believed to be of it, and the labels made."""
    run = classes_of(facts)
    n, order = len(run.class_names), run.order
    known = {key: floats(facts[key]) for key in ("given", "believed", "pseudo") if facts.get(key)}
    shares = {key: values / values.sum() for key, values in known.items() if values.sum() > 0}
    if not shares:
        return None
    figure, (axes,) = panels(1, 1, height=3.6)
    styles: dict[str, dict[str, Any]] = {
        "given": {"color": BLUE, "linestyle": (0, (4, 2)), "label": "given, among the labels"},
        "believed": {"color": MUTED, "linewidth": 6, "alpha": 0.45, "label": "believed, among the rest"},
        "pseudo": {"color": ORANGE, "label": "made, among the new labels", "marker": "o" if n <= NAMED else ""},
    }
    for key in ("believed", "given", "pseudo"):
        if key in shares:
            drawn = shares[key][order]
            draw_shares(axes, running_mean(drawn) if n > NAMED and key != "given" else drawn, **styles[key])
    share_scale(axes, [shares.get("given", shares[next(iter(shares))])])
    class_axis(axes, run)
    name_panel(axes, x="" if n <= NAMED else f"{RANKS} (running means)")
    key_below(figure)
    caption = (
        "Orange should follow the broad grey line; where it falls below, more of that class was left open than of others. "
        "Grey away from blue says that the data hold other shares of the classes than the labels do."
    )
    if "pseudo" not in shares:
        caption = "No new labels were made; look at how unevenly the given ones are spread over the classes."
    return chart(figure, "Classes: given, believed, labelled", caption)


def trust_chart(evidence: Entry, *, threshold: float, target: float | None) -> Chart | None:
    """Draw what precision costs in coverage, and which threshold gives which, with the chosen one marked."""
    curve = evidence.get("curve") or []
    if not curve:
        return None
    keys = ("threshold", "coverage", "precision", "low", "high")
    at, coverage, precision, low, high = (floats([point[key] for point in curve]) for key in keys)
    figure, (left, right) = panels(1, 2, height=3.7)
    left.fill_between(coverage, low, high, color=BLUE, alpha=0.22, linewidth=0, label=f"its {INTERVAL}")
    left.plot(coverage, precision, color=BLUE, linewidth=2, label="precision of the labels made")
    right.fill_between(at, low, high, color=BLUE, alpha=0.22, linewidth=0)
    right.plot(at, precision, color=BLUE, linewidth=2)
    right.plot(at, coverage, color=GREEN, linewidth=2, linestyle=(0, (5, 1.5)), label="coverage: share that gets a label")
    chosen = evidence.get("chosen")
    if chosen and chosen["precision"] is not None:
        dot: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 9, "markeredgecolor": PAPER, "zorder": 5}
        left.plot(chosen["coverage"], chosen["precision"], color=ORANGE, label="as chosen", **dot)
        right.plot(threshold, chosen["precision"], color=ORANGE, **dot)
    right.axvline(threshold, color=ORANGE, linewidth=1.2, zorder=1)
    for axes in (left, right):
        if target is not None:
            axes.axhline(target, color=INK, linestyle=":", linewidth=1.2, label="precision asked for")
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    left.set_xlim(-0.02, 1.02)
    right.set_xlim(min(float(at.min()), threshold) - 0.02, 1.02)
    share_axis(left)
    share_axis(right, whole=True)
    name_panel(left, "What precision costs", x="coverage", y="precision")
    name_panel(right, "Which threshold gives which", x="confidence asked for")
    key_below(figure)
    caption = (
        "Measured on given labels that the model did not see. A curve that stays high to the right labels nearly everything "
        "safely; where the band is broad, there were few labels to measure on."
    )
    return chart(figure, "Coverage against precision", caption)


def recall_chart(facts: Mapping[str, Any], evidence: Entry) -> Chart | None:
    """Draw recall and precision of each class on held-out labels, with intervals where the classes are named."""
    run = classes_of(facts)
    n, order = len(run.class_names), run.order
    rows = {row["class"]: row for row in evidence.get("per_class") or []}
    found = [rows.get(run.class_names[c], {}) for c in order]
    recall, precision = (floats([row.get(key) for row in found]) for key in ("recall", "precision"))
    if not np.isfinite(recall).any():
        return None
    figure, (axes,) = panels(1, 1, height=3.6)
    x = np.arange(n)
    for key, values, colour, mark, aside in (
        ("recall", recall, BLUE, "o", -0.14),
        ("precision", precision, ORANGE, "D", 0.14),
    ):
        if n <= NAMED:
            low, high = (floats([row.get(f"{key}_{end}") for row in found]) for end in ("low", "high"))
            axes.vlines(x + aside, low, high, color=colour, linewidth=1.6, alpha=0.7)
            axes.plot(x + aside, values, mark, color=colour, markersize=6, markeredgecolor=PAPER, label=key, zorder=4)
        else:
            axes.scatter(x, values, color=colour, s=8, linewidths=0, alpha=0.55, zorder=2)
            axes.plot(x, running_mean(values), color=colour, linewidth=1.8, label=f"{key} (running mean)", zorder=3)
    class_axis(axes, run)
    name_panel(axes, x="" if n <= NAMED else RANKS)
    share_axis(axes, whole=True)
    key_below(figure)
    reading = f"Lines are {INTERVAL}s: long ones mean few labels." if n <= NAMED else "Each dot is a class."
    caption = (
        f"{reading} Low recall: the class is overlooked. Low precision: it takes rows of others. The first is mended by "
        "labelling more of the class, the second by labelling more of what it takes."
    )
    return chart(figure, "Recall and precision of each class", caption)


def pairs_chart(evidence: Entry) -> Chart | None:
    """Draw the commonest confusions as bars: which share of a class is taken for another."""
    pairs = (evidence.get("confusions") or [])[:PAIRS]
    if not pairs:
        return None
    figure, (axes,) = panels(1, 1, height=0.9 + 0.3 * len(pairs))
    axes.barh(np.arange(len(pairs)), [pair["count"] for pair in pairs], color=BLUE, height=0.68, zorder=2)
    for place, pair in enumerate(pairs):
        written = f"{pair['count']:,} ({percent(pair['share'])} of the class)"
        style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": FONT - 0.5, "color": INK}
        axes.annotate(written, (pair["count"], place), (4, 0), **style)
    names = [f"{short(pair['true'], 30)} \N{RIGHTWARDS ARROW} {short(pair['believed'], 30)}" for pair in pairs]
    _name_places(axes, names)
    axes.set_xlim(0, 1.28 * max(pair["count"] for pair in pairs))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    name_panel(axes, x="held-out labels")
    caption = "Left of the arrow the given class, right of it what the model believes; a pair at the top is worth new labels."
    return chart(figure, "What is taken for what", caption)


def peers_chart(rows: Sequence[Entry]) -> Chart | None:
    """Draw balanced and plain accuracy of each method on the same folds, with the deviation over folds."""
    if not any(row.get("balanced_accuracy") is not None for row in rows):
        return None
    figure, found = panels(1, 2, height=0.95 + 0.34 * len(rows))
    colours = [ORANGE if row["name"] == "semigpc" else GREY if row.get("failed") else BLUE for row in rows]
    for axes, key in zip(found, ("balanced_accuracy", "accuracy"), strict=True):
        value, spread = floats([row.get(key) for row in rows]), floats([row.get(f"{key}_std") for row in rows])
        _draw_spreads(axes, value, np.nan_to_num(spread), colours)
        for place, row in enumerate(rows):
            if row.get(key) is None:
                axes.text(0.02, place, "failed", transform=axes.get_yaxis_transform(), va="center", fontsize=FONT, color=MUTED)
        _name_places(axes, [short(str(row["title"]), 34) for row in rows] if axes is found[0] else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        name_panel(axes, "Balanced accuracy" if key == "balanced_accuracy" else "Accuracy")
    caption = "Dots are over all held-out labels, lines one deviation over the folds; methods whose lines overlap are close."
    return chart(figure, "The same folds, by other methods", caption)


def _draw_spreads(axes: Axes, value: Floats, spread: Floats, colours: Sequence[str]) -> None:
    for place, (middle, half, colour) in enumerate(zip(value, spread, colours, strict=True)):
        if np.isfinite(middle):
            axes.hlines(place, max(0.0, middle - half), min(1.0, middle + half), color=colour, linewidth=2.2, alpha=0.6)
            axes.plot(middle, place, "o", color=colour, markersize=8, markeredgecolor=PAPER, zorder=4)
            axes.annotate(
                percent(middle),
                (middle, place),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=FONT - 1.5,
                color=INK,
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
