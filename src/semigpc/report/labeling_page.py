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

from semigpc.report.calibration_figure import reliability_chart
from semigpc.report.chart_style import Chart
from semigpc.report.labeling_figures import classes_of, pairs_chart, peers_chart, recall_chart, shares_chart, trust_chart
from semigpc.report.page import write_page
from semigpc.report.run_folder import Entry
from semigpc.report.wording import flatten
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
