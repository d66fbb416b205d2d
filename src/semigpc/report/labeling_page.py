"""The page of a labelled data set: how many rows got a label, how reliable they are, what to check.

It shows what ``summary.json`` holds, see :class:`semigpc.report.labeling_summary.LabelingSummary`.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from pyarrow import compute, parquet

from semigpc.io.errors import ImageError
from semigpc.io.images import thumbnail
from semigpc.io.paths import image_path
from semigpc.io.text import listed
from semigpc.report import style
from semigpc.report.charts import (
    GIVEN_LOOK,
    TRUE_LOOK,
    ClassList,
    Look,
    class_axis,
    reliability_chart,
    share_lines_chart,
)
from semigpc.report.labeling_summary import (
    ClassEvidence,
    Confusion,
    CopyGroup,
    Evidence,
    GradeFacts,
    LabelingSummary,
    Method,
)
from semigpc.report.style import BLUE, FONT, GREEN, INK, MUTED, ORANGE, PAPER, Chart, Floats, floats
from semigpc.report.wording import count, counted, duration, flatten, no_new_labels, percent, short

LISTED = 100  # rows of a list; the tables of the folder have them all
COPIES_NAMED = 6  # rows of a group of copies that are named
PAIRS_DRAWN = 15  # pairs of confused classes; the table has more
FEW_LABELS = 0.1  # share of the rows below which a lower precision is offered
INTERVAL = "95% interval"
OFFSET: Look = {"textcoords": "offset points", "color": INK}  # of numbers beside bars
THUMBNAIL_SIZE = 96  # pixels along the longer side ...
THUMBNAIL_QUALITY = 75  # ... and of JPEG: about 3 kB each
IMAGES_SHOWN = 150  # on a page
# Of these at most; examples of classes have the rest.
SUSPECTS_PICTURED = 30
PAIRS_PICTURED = 15
OUTLIERS_PICTURED = 20
EXAMPLES_PICTURED = 3  # of each class and kind

Examples = dict[str, list[tuple[str, float]]]  # by kind: ids and confidences


# Images -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReportImages:
    """Images for the page.

    Attributes:
        thumbnails: by id, as addresses that begin with "data:"; rows without one have no image.
        examples: by class, then by kind: "given", "most sure" and "least sure".
        confused: an id for pairs of classes, given and predicted.
    """

    thumbnails: Mapping[str, str]
    examples: Mapping[str, Examples]
    confused: Mapping[tuple[str, str], str]


NO_IMAGES = ReportImages({}, {}, {})


def report_images(
    folder: Path,
    table: Path,
    summary: LabelingSummary,
    confused: Mapping[tuple[str, str], str],
    *,
    follow_links: bool,
) -> ReportImages:
    """Return the images of a page, of at most IMAGES_SHOWN rows.

    Args:
        folder: of the images, by the ids; those that cannot be read are left out.
        table: labels.parquet. summary: content of summary.json.
        confused: an id for each pair of classes, given and predicted.
    """
    evidence = summary["evidence"]
    pairs = (
        [(pair["true"], pair["believed"]) for pair in evidence["confusions"]] if evidence else []
    )
    shown = {pair: confused[pair] for pair in pairs[:PAIRS_PICTURED] if pair in confused}
    ids = [row["id"] for row in summary["suspects"][:SUSPECTS_PICTURED]]
    ids += shown.values()
    ids += [row["id"] for row in summary["outliers"][:OUTLIERS_PICTURED]]
    room = (IMAGES_SHOWN - len(ids)) // 3  # examples of each of the three kinds
    rarest = [summary["classes"][c] for c in np.argsort(summary["given"], kind="stable")[:room]]
    each = min(EXAMPLES_PICTURED, room // max(1, len(rarest)))
    examples = class_examples(table, summary["id_name"], rarest, each) if each else {}
    ids += [name for kinds in examples.values() for rows in kinds.values() for name, _ in rows]
    root = folder.resolve()
    thumbnails = {name: _embedded(root, name, follow_links) for name in dict.fromkeys(ids)}
    existing = {name: address for name, address in thumbnails.items() if address is not None}
    return ReportImages(existing, examples, shown)


def class_examples(
    table: Path, id_name: str, classes: Sequence[str], each: int
) -> dict[str, Examples]:
    """Return for each class rows with a given label, and the most and least confident new ones.

    Reads the table once, a part at a time.

    Args:
        table: labels.parquet. id_name: of its ids. each: rows of a class and kind at most.
    """
    examples: dict[str, Examples] = {
        name: {"given": [], "most sure": [], "least sure": []} for name in classes
    }
    columns = [id_name, "label", "confidence", "status"]
    for batch in parquet.ParquetFile(table).iter_batches(columns=columns):
        confidence = batch.column("confidence").to_numpy()
        labels = batch.column("label").dictionary_encode()
        codes = labels.indices.fill_null(-1).to_numpy()
        is_given = np.asarray(compute.equal(batch.column("status"), "labelled"))
        is_new = np.asarray(compute.equal(batch.column("status"), "pseudo"))
        for code, name in enumerate(labels.dictionary.to_pylist()):
            if name not in examples:
                continue
            kinds = examples[name]
            given = np.flatnonzero((codes == code) & is_given)[: each - len(kinds["given"])]
            new = np.flatnonzero((codes == code) & is_new)
            new = new[np.argsort(-confidence[new], kind="stable")]
            kinds["given"] += _entries(batch, id_name, given)
            most = kinds["most sure"] + _entries(batch, id_name, new[:each])
            least = kinds["least sure"] + _entries(batch, id_name, new[each:][-each:])
            kinds["most sure"] = sorted(most, key=_confidence_falling)[:each]
            kinds["least sure"] = sorted(least, key=_confidence_falling)[-each:]
    return examples


def _entries(
    batch: pyarrow.RecordBatch, id_name: str, rows: NDArray[np.int64]
) -> list[tuple[str, float]]:
    ids = batch.column(id_name)
    confidence = batch.column("confidence")
    return [(ids[row].as_py(), float(confidence[row].as_py())) for row in rows.tolist()]


def _confidence_falling(entry: tuple[str, float]) -> float:
    return -entry[1]


def _embedded(folder: Path, name: str, follow_links: bool) -> str | None:
    """Return the image of an id as the address of an <img>; None if it cannot be read."""
    path = image_path(folder, name, follow_links)
    if path is None:
        return None
    try:
        content = thumbnail(path, THUMBNAIL_SIZE, THUMBNAIL_QUALITY)
    except ImageError:
        return None
    return f"data:image/jpeg;base64,{b64encode(content).decode()}"


# The page -----------------------------------------------------------------------------------------


def write_labeling_report(
    path: Path, facts: LabelingSummary, images: ReportImages = NO_IMAGES
) -> Path:
    """Write the page of a labelled data set, one file with everything it shows; return its path."""
    evidence = facts["evidence"]
    noun = facts["rows_noun"]
    methods = _methods(evidence)
    charts = {
        "shares": shares_chart(facts),
        "trust": trust_chart(evidence, facts["threshold"], facts["target_precision"]),
        "reliability": reliability_chart(
            evidence["reliability"] if evidence else None,
            evidence["ece"] if evidence else None,
            beside=True,
            noun="held-out labels",
        ),
        "recall": recall_chart(facts, evidence),
        "pairs_taken": pairs_chart(evidence),
        "peers": peers_chart(methods),
    }
    context = {
        "title": facts["title"],
        "data": facts["data"],
        "noun": noun,
        "nothing": _nothing(facts),
        "headline": [_headline(facts, noun), promise_sentence(facts), _trust(facts, noun)],
        "grades": grade_rows(facts),
        "reach": reach_sentence(facts),
        "guaranteed": _guaranteed(facts),
        "images": images,
        "notes": facts["notes"],
        "facts": _numbers(facts, evidence, noun),
        "evidence": evidence or {},
        "why_none": facts["why_none"],
        **{name: style.chart_rows([chart]) for name, chart in charts.items()},
        "classes": _class_rows(facts, evidence),
        "totals": {"given": sum(facts["given"]), "pseudo": sum(facts["pseudo"])},
        "confusions": evidence["confusions"] if evidence else [],
        "suspects": facts["suspects"],
        "copies": [_copies_row(group) for group in facts["copies"]],
        "outliers": facts["outliers"],
        "outlier_count": facts["statuses"]["outlier"],
        "methods": methods,
        "verdict": _verdict(methods),
        "model": _listed(facts["model"]),
        "settings": _listed(facts["settings"]),
        "unmeasured": evidence["never_held_out"] if evidence else [],
        "listed": LISTED,
    }
    return style.write_page(path, "labeling.html", context)


def _copies_row(group: CopyGroup) -> dict[str, str | int]:
    """Return a row of the table of copies."""
    labels = listed(list(dict.fromkeys(group["labels"])), COPIES_NAMED)
    ids = listed(group["ids"], COPIES_NAMED)
    return {"labels": labels, "rows": len(group["ids"]), "ids": ids}


def _unlabelled(facts: LabelingSummary) -> int:
    """Return the number of rows without a given label."""
    return sum(facts["statuses"].values()) - facts["statuses"]["labelled"]


def _nothing(facts: LabelingSummary) -> str:
    """Return the sentence on classes that got no new label; none if there was nothing to label."""
    if not facts["unlabelled"]:
        return ""
    promise = facts["promise"]
    if promise:
        return no_new_labels({name: promise["needed"].get(name) for name in promise["without"]})
    counts = zip(facts["classes"], facts["pseudo"], strict=True)
    return no_new_labels({name: None for name, new in counts if not new})


def promise_sentence(facts: LabelingSummary) -> str:
    """Return what is guaranteed and what is expected of the new labels; empty if nothing is."""
    promise = facts["promise"]
    if not promise:
        return ""
    given_out = facts["statuses"]["pseudo"]
    target = f"{100 * promise['target']:g}%"
    if not given_out:
        labels = counted(promise["labels"], "given labels")
        return (
            f"{labels} are too few to guarantee {target} precision. {_more_sentence(facts)}".strip()
        )
    own = next(grade for grade in promise["grades"] if grade["precision"] == promise["target"])
    of = " of every class" if promise["per_class"] else ""
    expected = f" Expected: {percent(own['expected'])}." if own["expected"] else ""
    return (
        f"Guaranteed: at least {target} of the {counted(given_out, 'labels')} given out{of} are "
        f"right.{expected} The guarantee holds in {100 * promise['probability']:g} of 100 cases, "
        f"if the given labels of each class are a random sample of it. {_more_sentence(facts)}"
    ).strip()


def grade_that_gives_more(facts: LabelingSummary) -> GradeFacts | None:
    """Return the next lower precision that gives out more, where few labels are given out.

    That is the first which gives out FEW_LABELS of the rows, or else the first that gives any more.
    """
    promise = facts["promise"]
    total = _unlabelled(facts)
    given_out = facts["statuses"]["pseudo"]
    if not promise or given_out >= FEW_LABELS * total:
        return None
    below = [grade for grade in promise["grades"] if grade["precision"] < promise["target"]]
    more = [grade for grade in below if grade["labels"] > given_out]
    enough = [grade for grade in more if grade["labels"] >= FEW_LABELS * total]
    return next(iter(enough or more), None)


def _more_sentence(facts: LabelingSummary) -> str:
    more = grade_that_gives_more(facts)
    if more is None:
        return ""
    labels = count(more["labels"])
    return f"A target precision of {100 * more['precision']:g}% gives out {labels}."


@dataclass(frozen=True)
class GradeRow:
    """A line of the table of grades: its name, its rows, and what is expected of them."""

    name: str
    labels: int
    expected: float | None = None


def grade_rows(facts: LabelingSummary) -> list[GradeRow]:
    """Return the labels guaranteed at each precision, and what is left; empty without a promise."""
    promise = facts["promise"]
    if not promise:
        return []
    grades = [grade for grade in promise["grades"] if grade["labels"]]
    rows = [
        GradeRow(f"{100 * grade['precision']:g}%", grade["labels"], grade["expected"])
        for grade in grades
    ]
    guaranteed = max((grade["labels"] for grade in grades), default=0)
    outliers = facts["statuses"]["outlier"]
    rows.append(GradeRow("not guaranteed", _unlabelled(facts) - guaranteed - outliers))
    rows.append(GradeRow("unlike everything", outliers))
    return rows


def reach_sentence(facts: LabelingSummary) -> str:
    """Return how many labels would have the target precision by expectation alone."""
    promise = facts["promise"]
    if not promise or promise["reach"] <= facts["statuses"]["pseudo"]:
        return ""
    return (
        f"Without a guarantee, {count(promise['reach'])} labels are expected to be "
        f"{100 * promise['target']:g}% right."
    )


def _headline(facts: LabelingSummary, noun: str) -> str:
    """Return how many rows got a label, and why the others did not."""
    statuses = facts["statuses"]
    total = _unlabelled(facts)
    if not total:
        given = counted(statuses["labelled"], noun)
        return f"All {given} came with a label: there was nothing to label."
    many = {key: f"{count(number)} ({percent(number / total)})" for key, number in statuses.items()}
    are = "it is" if statuses["outlier"] == 1 else "they are"
    reasons = []
    if statuses["abstained"]:
        reasons.append(f"{many['abstained']} for lack of confidence")
    if statuses["outlier"]:
        reasons.append(f"{many['outlier']} because {are} unlike everything labelled")
    rest = f"Left open: {', and '.join(reasons)}." if reasons else "None was left open."
    return f"Of {counted(total, noun)} without a label, {many['pseudo']} got one. {rest}"


def _trust(facts: LabelingSummary, noun: str) -> str:
    """Return what share of the new labels should be right, where nothing is guaranteed of them."""
    evidence = facts["evidence"]
    if not evidence:
        return facts["why_none"]
    if facts["promise"]:
        return ""
    chosen = evidence["chosen"]
    target = facts["target_precision"]
    labels = counted(evidence["held_out"], "given labels")
    folds = counted(evidence["folds"], "folds")
    held = f"{labels}, each predicted by a model that had not seen it ({folds})"
    if chosen["precision"] is None:
        return f"At this threshold none of the {held} would get a label: precision is unknown."
    missed = target and chosen["precision"] < target
    below = f" This is less than the {percent(target)} requested." if missed else ""
    return (
        f"Measured: {percent(chosen['precision'])} of the labels given out would be right (95% "
        f"interval {percent(chosen['low'])} to {percent(chosen['high'])}).{below} This was "
        f"measured on {held}; it holds for {noun} like the labelled ones."
    )


def _numbers(facts: LabelingSummary, evidence: Evidence | None, noun: str) -> list[tuple[str, str]]:
    """Return the few numbers that a reader looks for first."""
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
    numbers += [(name, count(statuses[key])) for key, name in names.items()]
    if evidence and not facts["promise"]:
        numbers.append(("Measured precision", percent(evidence["chosen"]["precision"])))
    if evidence:
        numbers.append(("Balanced accuracy", percent(evidence["balanced_accuracy"]["value"])))
    if "seconds" in facts:
        numbers.append(("Time", duration(facts["seconds"])))
    return numbers


@dataclass(frozen=True)
class ClassRow:
    """A class in the table: labels, estimated share among the others, and what was measured.

    ``guaranteed`` are its labels at each precision of ``_guaranteed``.
    """

    name: str
    given: int
    share: float | None
    pseudo: int
    guaranteed: list[int]
    measured: ClassEvidence | None


def _guaranteed(facts: LabelingSummary) -> list[GradeFacts]:
    """Return the grades that some label has."""
    return [grade for grade in (facts["promise"] or {"grades": []})["grades"] if grade["labels"]]


def _class_rows(facts: LabelingSummary, evidence: Evidence | None) -> list[ClassRow]:
    """List the classes, most labelled first, with what was measured of each."""
    measured = {row["class"]: row for row in evidence["per_class"]} if evidence else {}
    rows = []
    for c in classes_of(facts).order:
        name = facts["classes"][c]
        share = facts["believed"][c] if _unlabelled(facts) else None
        given = facts["given"][c]
        guaranteed = [grade["classes"][c] for grade in _guaranteed(facts)]
        pseudo = facts["pseudo"][c]
        rows.append(ClassRow(name, given, share, pseudo, guaranteed, measured.get(name)))
    return rows


def _listed(values: Mapping[str, float | str | None]) -> list[tuple[str, str]]:
    """List names and values as text, numbers with four digits."""
    rounded = {
        name: f"{value:.4g}" if isinstance(value, float) else value
        for name, value in values.items()
    }
    return flatten(rounded) if rounded else []


def _methods(evidence: Evidence | None) -> list[Method]:
    """Return the methods that were compared, best balanced accuracy first and failures last."""
    methods = evidence["peers"] if evidence else []
    return sorted(
        methods,
        key=lambda row: -1.0 if row["balanced_accuracy"] is None else -2 - row["balanced_accuracy"],
    )


def _verdict(methods: Sequence[Method]) -> str:
    """Return which method was better on the same folds, and whether by more than folds differ."""
    ours = next((row for row in methods if row["name"] == "semigpc"), None)
    best = next((row for row in methods if row["name"] != "semigpc"), None)
    if not ours or not best:
        return ""
    own = ours["balanced_accuracy"]
    other = best["balanced_accuracy"]
    if own is None or other is None:
        return ""
    gap = own - other
    spread = max(ours["balanced_accuracy_std"] or 0.0, best["balanced_accuracy_std"] or 0.0)
    by = f"by {100 * abs(gap):.1f} points of balanced accuracy"
    caution = ", which is less than folds differ among themselves" if abs(gap) < spread else ""
    title = best["title"]
    if gap < -0.0005:
        return f"On these labels {title} does better than the Gaussian process, {by}{caution}."
    if gap > 0.0005:
        return (
            f"On these labels the Gaussian process does better than the best of the others, "
            f"{title}, {by}{caution}."
        )
    return (
        f"On these labels the Gaussian process and the best of the others, {title}, do equally "
        "well."
    )


# Charts -------------------------------------------------------------------------------------------


def classes_of(facts: LabelingSummary) -> ClassList:
    """Return the classes with their given labels, in the order of the charts."""
    return ClassList.by_count(facts["classes"], floats(facts["given"]))


def shares_chart(facts: LabelingSummary) -> Chart | None:
    """Draw the shares of the classes: given labels, estimated among the others, new labels."""
    classes = classes_of(facts)
    counts = {"given": floats(facts["given"]), "pseudo": floats(facts["pseudo"])}
    if _unlabelled(facts):
        counts["believed"] = floats(facts["believed"])
    known = {key: values for key, values in counts.items() if values.sum() > 0}
    shares = {key: values[classes.order] / values.sum() for key, values in known.items()}
    if not shares:
        return None
    marker = "" if classes.many else "o"
    looks: dict[str, Look] = {
        "believed": TRUE_LOOK | {"label": "estimated, without a given label"},
        "given": GIVEN_LOOK | {"label": "given labels"},
        "pseudo": {"color": ORANGE, "label": "new labels", "marker": marker},
    }
    lines = []
    for key, look in looks.items():
        if key in shares:
            averaged = classes.many and key != "given"
            lines.append((style.running_mean(shares[key]) if averaged else shares[key], look))
    caption = (
        "Orange should follow the broad grey line; where it falls below, more of that class was "
        "left open than of others. Where grey and blue differ, classes have other shares among the "
        "rows without a label than among the given labels."
    )
    if "pseudo" not in shares:
        caption = "No new labels were made; see how unevenly the given ones are distributed."
    scale = [shares.get("given", shares[next(iter(shares))])]
    return share_lines_chart(classes, lines, scale, "Shares of the classes", caption, averaged=True)


def trust_chart(evidence: Evidence | None, threshold: float, target: float | None) -> Chart | None:
    """Draw precision over coverage, and both over the threshold, with the chosen one marked."""
    if not evidence or not evidence["curve"]:
        return None
    curve = evidence["curve"]
    at = floats([point["threshold"] for point in curve])
    coverage = floats([point["coverage"] for point in curve])
    precision = floats([point["precision"] for point in curve])
    low = floats([point["low"] for point in curve])
    high = floats([point["high"] for point in curve])
    figure, (left, right) = style.panels(1, 2, height=3.7)
    band: Look = {"color": BLUE, "alpha": 0.22, "linewidth": 0}
    left.fill_between(coverage, low, high, label=f"its {INTERVAL}", **band)
    left.plot(coverage, precision, color=BLUE, linewidth=2, label="precision of the labels made")
    right.fill_between(at, low, high, **band)
    right.plot(at, precision, color=BLUE, linewidth=2)
    dashed: Look = {"color": GREEN, "linewidth": 2, "linestyle": (0, (5, 1.5))}
    right.plot(at, coverage, label="coverage: share that gets a label", **dashed)
    chosen = evidence["chosen"]
    if chosen["precision"] is not None:
        dot: Look = {"linestyle": "none", "marker": "o", "markersize": 9, "color": ORANGE}
        dot |= {"markeredgecolor": PAPER, "zorder": 5}
        left.plot(chosen["coverage"], chosen["precision"], label="as chosen", **dot)
        right.plot(threshold, chosen["precision"], **dot)
    right.axvline(threshold, color=ORANGE, linewidth=1.2, zorder=1)
    for axes in (left, right):
        if target is not None:
            dotted: Look = {"color": INK, "linestyle": ":", "linewidth": 1.2}
            axes.axhline(target, label="precision requested", **dotted)
        axes.xaxis.set_major_formatter(style.percents())
    left.set_xlim(-0.02, 1.02)
    right.set_xlim(min(float(at.min()), threshold) - 0.02, 1.02)
    style.share_axis(left)
    style.share_axis(right, whole=True)
    style.name_panel(left, "What precision costs", x="coverage", y="precision")
    style.name_panel(right, "Which threshold gives which", x="confidence required")
    style.key_below(figure)
    caption = (
        "Measured on given labels that the model did not see. Where the curve stays high to the "
        "right, nearly everything can be labelled safely; where the band is broad, there were few "
        "labels to measure on."
    )
    return style.chart(figure, "Coverage against precision", caption)


def recall_chart(facts: LabelingSummary, evidence: Evidence | None) -> Chart | None:
    """Draw recall and precision of each class on held-out labels; intervals if they are few."""
    if not evidence:
        return None
    classes = classes_of(facts)
    by_class = {row["class"]: row for row in evidence["per_class"]}
    rows = [by_class[classes.names[c]] for c in classes.order]
    recall = floats(row["recall"] for row in rows)
    if not np.isfinite(recall).any():
        return None
    figure, (axes,) = style.panels(1, 1, height=3.6)
    recall_interval = (
        floats(row["recall_low"] for row in rows),
        floats(row["recall_high"] for row in rows),
    )
    _draw_measured(axes, "recall", recall, recall_interval, classes.many)
    precision_interval = (
        floats(row["precision_low"] for row in rows),
        floats(row["precision_high"] for row in rows),
    )
    precision = floats(row["precision"] for row in rows)
    _draw_measured(axes, "precision", precision, precision_interval, classes.many)
    class_axis(axes, classes)
    style.share_axis(axes, whole=True)
    style.key_below(figure)
    reading = "Each dot is a class."
    if not classes.many:
        reading = f"Lines are {INTERVAL}s: long ones mean few labels."
    caption = (
        f"{reading} Low recall: rows of the class are taken for others; label more of the class. "
        "Low precision: rows of others are taken for the class; label more of those."
    )
    return style.chart(figure, "Recall and precision of each class", caption)


def _draw_measured(
    axes: Axes, key: str, values: Floats, interval: tuple[Floats, Floats], many: bool
) -> None:
    """Draw recall or precision (C,) of the classes, with their intervals if they are few."""
    is_recall = key == "recall"
    colour = BLUE if is_recall else ORANGE
    x = np.arange(len(values))
    if many:
        axes.scatter(x, values, color=colour, s=8, linewidths=0, alpha=0.55, zorder=2)
        line: Look = {"color": colour, "linewidth": 1.8, "zorder": 3}
        axes.plot(x, style.running_mean(values), label=f"{key} (running mean)", **line)
    else:
        beside = x + (-0.14 if is_recall else 0.14)
        low, high = interval
        axes.vlines(beside, low, high, color=colour, linewidth=1.6, alpha=0.7)
        dots: Look = {"color": colour, "markersize": 6, "markeredgecolor": PAPER, "zorder": 4}
        axes.plot(beside, values, "o" if is_recall else "D", label=key, **dots)


def pairs_chart(evidence: Evidence | None) -> Chart | None:
    """Draw the most frequent confusions as bars: which share of a class is taken for another."""
    pairs: list[Confusion] = evidence["confusions"][:PAIRS_DRAWN] if evidence else []
    if not pairs:
        return None
    figure, (axes,) = style.panels(1, 1, height=0.9 + 0.3 * len(pairs))
    counts = [pair["count"] for pair in pairs]
    axes.barh(np.arange(len(pairs)), counts, color=BLUE, height=0.68, zorder=2)
    names = []
    for place, pair in enumerate(pairs):
        written = f"{pair['count']:,} ({percent(pair['share'])} of the class)"
        beside: Look = {"va": "center", "fontsize": FONT - 0.5, **OFFSET}
        axes.annotate(written, (pair["count"], place), (4, 0), **beside)
        true = short(pair["true"], 30)
        names.append(f"{true} \N{RIGHTWARDS ARROW} {short(pair['believed'], 30)}")
    style.name_places(axes, names)
    axes.set_xlim(0, 1.28 * max(counts))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    style.name_panel(axes, x="held-out labels")
    caption = (
        "Left of the arrow the given class, right of it the predicted one. More labels of the "
        "pairs on top help most."
    )
    return style.chart(figure, "Most frequent confusions", caption)


def peers_chart(methods: Sequence[Method]) -> Chart | None:
    """Draw balanced and plain accuracy of each method on the same folds, with deviations."""
    if all(method["balanced_accuracy"] is None for method in methods):
        return None
    figure, (left, right) = style.panels(1, 2, height=0.95 + 0.34 * len(methods))
    balanced = floats(method["balanced_accuracy"] for method in methods)
    balanced_std = floats(method["balanced_accuracy_std"] for method in methods)
    _draw_accuracies(left, methods, balanced, np.nan_to_num(balanced_std))
    style.name_panel(left, "Balanced accuracy")
    plain = floats(method["accuracy"] for method in methods)
    plain_std = floats(method["accuracy_std"] for method in methods)
    _draw_accuracies(right, methods, plain, np.nan_to_num(plain_std))
    style.name_panel(right, "Accuracy")
    left.set_yticklabels([short(method["title"], 34) for method in methods])
    caption = (
        "Dots are over all held-out labels, lines one deviation over the folds; methods whose "
        "lines overlap are close."
    )
    return style.chart(figure, "The same folds, by other methods", caption)


def _draw_accuracies(
    axes: Axes, methods: Sequence[Method], values: Floats, spreads: Floats
) -> None:
    """Draw a dot and a line of one deviation to either side for each method."""
    for place, method in enumerate(methods):
        value = values[place]
        if not np.isfinite(value):
            text: Look = {"va": "center", "fontsize": FONT, "color": MUTED}
            axes.text(0.02, place, "failed", transform=axes.get_yaxis_transform(), **text)
            continue
        colour = ORANGE if method["name"] == "semigpc" else BLUE
        low = max(0.0, value - spreads[place])
        high = min(1.0, value + spreads[place])
        axes.hlines(place, low, high, color=colour, linewidth=2.2, alpha=0.6)
        dot: Look = {"color": colour, "markersize": 8, "markeredgecolor": PAPER, "zorder": 4}
        axes.plot(value, place, "o", **dot)
        above: Look = {"ha": "center", "fontsize": FONT - 1.5, **OFFSET}
        axes.annotate(percent(value), (value, place), (0, 6), **above)
    lowest = np.nanmin(values - spreads)
    highest = np.nanmax(values + spreads)
    room = max(0.02, 0.12 * (highest - lowest))
    axes.set_xlim(max(-0.02, lowest - room), min(1.02, highest + room))
    style.name_places(axes, [""] * len(methods))
    axes.set_ylim(len(methods) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(style.percents())
