"""The precision of pseudo-labels, measured on a sample that people check.

``draw_sample`` writes rows to audit.csv, drawn within strata of class and confidence, and the
design of the sample to audit.json. People write the right classes into audit.csv, and ``judge``
computes the precision of all pseudo-labels from them.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyarrow import compute
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from semigpc.estimator import Status
from semigpc.estimator.answers import Z95, Interval95
from semigpc.io.atomic import RELAXED, Count, Positive, Share, read_json, shown, write_json
from semigpc.io.errors import DataError
from semigpc.io.tables import RIGHT, SUFFIXES, TRUTH, WRONG, as_label, is_table, read_columns
from semigpc.io.text import listed, similar_names
from semigpc.labeling.project import Project, own_names, write_hand_table

TABLE = "audit.csv"
FACTS = "audit.json"
AGAIN = "Draw a new sample with overwrite=True."
LABEL = "label"  # column of audit.csv
# Names of the bands of confidence, by their number.
BANDS = {1: ("all",), 2: ("low", "high"), 3: ("low", "middle", "high")}
CHECKED_PER_CLASS = 5  # rows, if there are that many
# A stratum with more confidence than this is checked as much as one with this.
MOST_CONFIDENCE = 0.9
LEVEL = 0.95  # of the intervals

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


# The design of a sample ---------------------------------------------------------------------------


@with_config(ConfigDict(allow_inf_nan=False))
@dataclass(frozen=True)
class Stratum:
    """Pseudo-labels of one class and one band of confidence.

    Attributes:
        rows: how many. confidence: their mean. drawn: how many of them were drawn.
    """

    label: str
    band: Annotated[str, Field(pattern="^(all|low|middle|high)$")]
    rows: Positive
    confidence: Share
    drawn: Count = 0

    @property
    def name(self) -> str:
        """Return a name for people."""
        return self.label if self.band == "all" else f"{self.label}, {self.band}"


@with_config(ConfigDict(allow_inf_nan=False))
@dataclass(frozen=True)
class Design:
    """A sample that was drawn.

    Args:
        seed: of the drawing. edges: between bands of confidence.
        strata: H of them; a row of stratum h is drawn with the probability drawn_h / rows_h.
        rows: label and stratum of each row that was drawn, by id, in the order of the table.
    """

    seed: Count
    edges: list[Share]
    strata: list[Stratum]
    rows: dict[str, tuple[str, Count]]

    @classmethod
    def read(cls, project: Project) -> "Design":
        """Read audit.json.

        Raises:
            DataError: there is none, or the labels were made again since.
        """
        path = project.folder / FACTS
        project.check_current(FACTS, AGAIN)
        try:
            facts = read_json(path, AuditFacts, error=DataError, remedy=AGAIN, check=_check_facts)
        except FileNotFoundError as error:
            raise DataError(
                f"No sample was drawn from {project.folder}: it has no {FACTS}. {AGAIN}"
            ) from error
        design = facts["sample"]
        pseudo = PseudoRows.of(project)
        labels = zip(pseudo.rows, pseudo.codes, strict=True)
        current = {project.ids[row]: pseudo.classes[code] for row, code in labels}
        changed = [name for name, (label, _) in design.rows.items() if current.get(name) != label]
        if changed:
            raise DataError(
                f"{len(changed)} sampled rows of {path} have another label or status in "
                f"labels.parquet now: {listed(changed, 3)}. Answers about the old labels cannot be "
                f"used for new ones. {AGAIN}"
            )
        strata, _ = pseudo.strata(design.edges)
        sizes = [(stratum.label, stratum.band, stratum.rows) for stratum in strata]
        if sizes != [(stratum.label, stratum.band, stratum.rows) for stratum in design.strata]:
            raise DataError(f"{project.folder} was labelled again since {FACTS} was made. {AGAIN}")
        return design


@with_config(RELAXED)
class AuditFacts(TypedDict):
    """``audit.json``; the precision, under "result", is written again each time and never read."""

    sample: Design


def _check_facts(facts: AuditFacts) -> None:
    sample = facts["sample"]
    edges = sample.edges
    if len(edges) + 1 not in BANDS or edges != sorted(set(edges)):
        most = max(BANDS) - 1
        raise ValueError(f"sample.edges must be at most {most} rising numbers; got {shown(edges)}")
    drawn = Counter(number for _, number in sample.rows.values())
    for number, stratum in enumerate(sample.strata):
        if drawn.pop(number, 0) != stratum.drawn or stratum.drawn > stratum.rows:
            raise ValueError(
                f"sample.strata[{number}].drawn must be the number of its rows that are listed; "
                f"got {stratum.drawn}"
            )
    if drawn:
        raise ValueError(
            f"sample.rows must be of the {len(sample.strata)} strata; got number {max(drawn)}"
        )


class PseudoRows(NamedTuple):
    """All rows with the status "pseudo".

    Attributes:
        rows: (n,) numbers. codes: (n,) indices into ``classes``. confidence: (n,).
    """

    rows: Integers
    codes: Integers
    confidence: Floats
    classes: list[str]

    @classmethod
    def of(cls, project: Project) -> "PseudoRows":
        """Return those of a project, with the classes that occur."""
        is_pseudo = compute.equal(project.table.column("status"), Status.PSEUDO.text)
        table = project.table.filter(is_pseudo)
        if not table.num_rows:
            raise DataError(
                f"{project.folder} has no pseudo-labels to check: every row has a given label, is "
                "an outlier or was abstained from. On the page of semigpc open or review, "
                '"Check 50 at random" checks guesses as well.'
            )
        labels = table.column("label").to_pylist()
        classes = sorted(set(labels), key=project.classes.index)
        code_of = {name: code for code, name in enumerate(classes)}
        codes = np.array([code_of[label] for label in labels])
        confidence = table.column("confidence").to_numpy().astype(np.float64)
        return cls(np.flatnonzero(np.asarray(is_pseudo)), codes, confidence, classes)

    def edges(self, bands: int) -> list[float]:
        """Return confidences between bands of about equal size; fewer if many are equal."""
        quantiles = np.quantile(self.confidence, np.arange(1, bands) / bands)
        return sorted({float(edge) for edge in quantiles if edge > self.confidence.min()})

    def strata(self, edges: Sequence[float]) -> tuple[list[Stratum], Integers]:
        """Return the non-empty strata by class and confidence, and (n,) the stratum of each row."""
        names = BANDS[len(edges) + 1]
        keys = self.codes * len(names) + np.searchsorted(edges, self.confidence, side="right")
        used, member, counts = np.unique(keys, return_inverse=True, return_counts=True)
        means = np.bincount(member, self.confidence) / counts
        strata = [
            Stratum(self.classes[key // len(names)], names[key % len(names)], count, mean)
            for key, count, mean in zip(used.tolist(), counts.tolist(), means.tolist(), strict=True)
        ]
        return strata, member


def allocate(strata: Sequence[Stratum], sample: int) -> list[int]:
    """Return how many rows of each stratum to check.

    Every stratum gets a row, and every class up to five in equal parts of its strata. The others go
    one by one to the stratum with the largest N_h s_h / (n_h + 1/2), where they narrow the interval
    most. s_h = sqrt(c (1 - c)), and c is the mean confidence, at least 0.5 and at most 0.9: they
    are in proportion to N_h s_h, which is Neyman's rule. The bound of 0.9 is for a model that is
    overconfident where it is wrong. O(sample H).

    Args:
        strata: H of them, none empty.
        sample: no more than there are rows, and at least two for each stratum, or one if every
            class has a single one.
    """
    sizes = np.array([stratum.rows for stratum in strata])
    bands = Counter(stratum.label for stratum in strata)
    per_class = max(1, min(CHECKED_PER_CLASS, sample // (2 * len(bands))))
    counts = np.minimum(sizes, [-(-per_class // bands[stratum.label]) for stratum in strata])
    confidence = np.clip([stratum.confidence for stratum in strata], 0.5, MOST_CONFIDENCE)
    weights = sizes * np.sqrt(confidence * (1 - confidence))
    for _ in range(sample - int(counts.sum())):
        gain = np.where(counts < sizes, weights / (counts + 0.5), -1.0)
        counts[int(gain.argmax())] += 1
    return [int(count) for count in counts]


def draw_sample(
    project: Project, sample: int = 200, *, seed: int = 0, overwrite: bool = False
) -> tuple[Path, Design]:
    """Draw pseudo-labelled rows at random within strata, and write them to audit.csv.

    Strata are those of class and confidence. Bands of confidence are thirds of all pseudo-labels,
    or halves, or the whole where the sample would leave fewer than two rows for a stratum.
    :func:`allocate` decides how many rows of each are drawn.

    Args:
        project: what was labelled. sample: rows to check; all of them if there are no more.
        seed: of the drawing. overwrite: replace a sample of which some rows are answered.

    Raises:
        DataError: there is nothing to check, the sample is too small, or answers would be lost.
    """
    pseudo = PseudoRows.of(project)
    classes = len(pseudo.classes)
    sample = min(sample, len(pseudo.rows))
    if sample < classes:
        raise DataError(
            f"sample must be at least {classes}, the number of classes among the pseudo-labels; "
            f"got {sample}. Better take {10 * classes}."
        )
    edges = pseudo.edges(min(max(BANDS), max(1, sample // (2 * classes))))
    strata, member = pseudo.strata(edges)
    counts = allocate(strata, sample)
    strata = [replace(stratum, drawn=n) for stratum, n in zip(strata, counts, strict=True)]
    rng = np.random.default_rng(seed)
    members = (np.flatnonzero(member == h) for h in range(len(strata)))
    chosen = [rng.choice(rows, n, replace=False) for rows, n in zip(members, counts, strict=True)]
    # In random order: people notice less if one class follows itself again and again.
    order = rng.permutation(np.concatenate(chosen)).tolist()
    rows = {
        project.ids[pseudo.rows[i]]: (pseudo.classes[pseudo.codes[i]], int(member[i]))
        for i in order
    }
    design = Design(seed, edges, strata, rows)
    table = []
    for i, (name, (label, h)) in zip(order, rows.items(), strict=True):
        inclusion = strata[h].drawn / strata[h].rows
        confidence = f"{pseudo.confidence[i]:.6g}"
        table.append((name, label, confidence, strata[h].name, f"{inclusion:.6g}", ""))
    path = project.folder / TABLE
    others = own_names((LABEL, "confidence", "stratum", "inclusion", TRUTH), project.id_name)
    project.claim(TABLE, FACTS)
    write_hand_table(path, [project.id_name, *others], table, blank=TRUTH, overwrite=overwrite)
    write_json(project.folder / FACTS, {"sample": asdict(design)})
    return path, design


# Answers ------------------------------------------------------------------------------------------


class Figures(TypedDict):
    """Precision of some pseudo-labels with its interval, None if no row was checked."""

    rows: int
    checked: int
    right: int
    precision: float | None
    low: float | None
    high: float | None
    confidence: float


# The figures of one class.
ClassFigures = TypedDict(
    "ClassFigures",
    {
        "class": str,
        "rows": int,
        "checked": int,
        "right": int,
        "precision": float | None,
        "low": float | None,
        "high": float | None,
        "confidence": float,
    },
)


class WrongLabels(TypedDict):
    """Checked rows with a wrong label; ``truth`` is None where only that is known."""

    label: str
    truth: str | None
    count: int


class AuditResult(TypedDict):
    """What the answers have shown: "result" of audit.json."""

    level: float
    answered: int
    unanswered: int
    all: Figures
    classes: list[ClassFigures]
    confusions: list[WrongLabels]


def judge(project: Project, path: Path) -> AuditResult:
    """Return the precision of the pseudo-labels by the answers in a table.

    Writes audit.json: the sample, and under "result" what is returned.

    Raises:
        DataError: the table cannot be read or does not fit the sample, or the labels were made
            again since it was drawn.
    """
    design = Design.read(project)
    truths = read_answers(path, project, design)
    if not truths:
        raise DataError(
            f"{path} has no answers yet. Fill in its column {TRUTH}: the right class, or y if the "
            "label is right and n if it is wrong."
        )
    right = np.zeros(len(design.strata), dtype=np.int64)
    checked = np.zeros(len(design.strata), dtype=np.int64)
    confusions: Counter[tuple[str, str | None]] = Counter()
    for name, truth in truths.items():
        label, stratum = design.rows[name]
        checked[stratum] += 1
        right[stratum] += truth == label
        if truth != label:
            confusions[label, truth] += 1
    labels = np.array([stratum.label for stratum in design.strata])
    every = np.ones(len(labels), dtype=bool)
    by_count = sorted(confusions.items(), key=lambda item: (-item[1], str(item[0])))
    result: AuditResult = {
        "level": LEVEL,
        "answered": len(truths),
        "unanswered": len(design.rows) - len(truths),
        "all": _figures(design, right, checked, every),
        "classes": [
            {"class": name, **_figures(design, right, checked, labels == name)}
            for name in project.classes
            if (labels == name).any()
        ],
        "confusions": [
            {"label": label, "truth": truth, "count": count} for (label, truth), count in by_count
        ],
    }
    write_json(project.folder / FACTS, {"sample": asdict(design), "result": result})
    return result


def _figures(
    design: Design, right: Integers, checked: Integers, chosen: NDArray[np.bool_]
) -> Figures:
    """Return the figures of some of the strata."""
    strata = [design.strata[h] for h in np.flatnonzero(chosen).tolist()]
    rows = sum(stratum.rows for stratum in strata)
    share = precision(strata, right[chosen], checked[chosen])
    return {
        "rows": rows,
        "checked": int(checked[chosen].sum()),
        "right": int(right[chosen].sum()),
        "precision": share.value,
        "low": share.low,
        "high": share.high,
        "confidence": sum(stratum.rows * stratum.confidence for stratum in strata) / rows,
    }


def read_answers(path: Path, project: Project, design: Design) -> dict[str, str | None]:
    """Return the right class of each answered row by its id; None if only the label is wrong.

    An answer is a class, a word for "right", which stands for the label, or one for "wrong". Where
    a class has such a name, the class is meant. Rows may be in any order; empty or missing ones are
    not answered.
    """
    if not path.is_file():
        raise DataError(f"The table of answers does not exist: {path}. Check the path.")
    if not is_table(path):
        endings = " or ".join(SUFFIXES)
        raise DataError(f"Answers must be in a file that ends in {endings}; got {path.name}.")
    pairs = _pairs(path, project.id_name, TRUTH)
    names = [name for name, _ in pairs]
    unknown = [name for name in names if name not in design.rows]
    if unknown:
        raise DataError(
            f"Only sampled rows can be answered; remove these {len(unknown)} ids from {path}, or "
            f"give the table that was drawn last: {listed(unknown, 3)}."
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"{path} has {len(repeated)} ids more than once: {listed(repeated, 3)}. "
            "Keep one row for each."
        )
    _check_labels(path, project, design)
    return {
        name: _true_class(value, design.rows[name][0], project.classes, path)
        for name, value in pairs
        if value is not None
    }


def _check_labels(path: Path, project: Project, design: Design) -> None:
    """Raise a DataError if labels were corrected in place instead of writing the truth."""
    try:
        labels = _pairs(path, project.id_name, LABEL)
    except _ColumnError:  # the column is not needed
        return
    other = [name for name, label in labels if label != design.rows[name][0]]
    if other:
        raise DataError(
            f"{len(other)} rows of {path} have another label than the sample: {listed(other, 3)}. "
            f"Restore the column {LABEL}, and write the right class into {TRUTH}."
        )


class _ColumnError(DataError):
    """A column that does not exist."""


def _pairs(path: Path, id_name: str, second: str) -> list[tuple[str, str | None]]:
    """Return ids with another column, without rows that are empty in both."""

    def choose(names: Sequence[str], path: Path) -> tuple[str, str]:
        if not {id_name, second} <= set(names):
            raise _ColumnError(
                f"{path} must have the columns {id_name} and {second}; it has "
                f"{listed(names, 8) or 'none'}. Use the table that was drawn, with columns "
                "separated by commas."
            )
        return id_name, second

    pairs = [
        ("" if name is None else str(name).strip(), as_label(value))
        for name, value in read_columns(path, choose)
    ]
    for number, (name, value) in enumerate(pairs, start=1):
        if not name and value is not None:
            raise DataError(
                f"Row {number} of {path} has the {second} {value!r} but no {id_name}. Fill it in, "
                "or delete the row."
            )
    return [(name, value) for name, value in pairs if name]


def _true_class(answer: str, label: str, classes: Sequence[str], path: Path) -> str | None:
    """Return the class that an answer about a label means; None if only the label is wrong."""
    if answer in classes:
        return answer
    word = answer.casefold()
    alike = [name for name in classes if name.casefold() == word]
    if len(alike) == 1:
        return alike[0]
    if word in RIGHT or word in WRONG:
        return label if word in RIGHT else None
    similar = similar_names(answer, classes)
    hint = f"did you mean {similar[0]!r}?" if similar else f"known: {listed(list(classes))}."
    raise DataError(
        f"{path} has the answer {answer!r}, which is not a class; {hint} Write a class, or y if "
        "the label is right and n if it is wrong, also where the truth is a class without labels."
    )


# Precision ----------------------------------------------------------------------------------------


def precision(strata: Sequence[Stratum], right: Integers, checked: Integers) -> Interval95:
    """Return the precision of all rows of these strata.

        P = sum_h W_h k_h / n_h       W_h = N_h / N
        1 / n_eff = sum_h W_h^2 / n_h (N_h - n_h) / (N_h - 1)

    The interval is that of Agresti and Coull for a share P among n_eff rows. It holds where few
    rows were checked and all of them are right, where the usual variance would be 0, and a stratum
    of which every row was checked adds nothing to it. In simulations of seven kinds of errors, with
    3 to 74 rows checked in a class, it covered the truth in 96 to 98 percent overall and in no
    class in fewer than 95. Wilson's interval is a tenth narrower and falls to 90 in classes that
    are nearly all right. A posterior for each stratum by itself may never cover the truth: with few
    rows in many strata, the priors add up.

    A stratum without an answer is taken to be like the others of its class. If a whole class has
    none, nothing is known of it: ``low`` takes all of it to be wrong, and ``high`` to be right.

    Args:
        strata: H of them. right: (H,) answers that confirm the label, k_h. checked: (H,) all
            answers, n_h.
    """
    if not checked.any():
        return Interval95(None, None, None)
    sizes = np.array([stratum.rows for stratum in strata], float)
    labels = np.array([stratum.label for stratum in strata])
    answered = checked > 0
    weights = np.zeros(len(strata))
    for name in np.unique(labels[answered]):
        of_class = labels == name
        own = of_class & answered
        weights[own] = sizes[own] * sizes[of_class].sum() / sizes[own].sum()
    known = float(weights.sum() / sizes.sum())
    w = (weights / weights.sum())[answered]
    k = right[answered]
    n = checked[answered]
    size = sizes[answered]
    estimate = float(w @ (k / n))
    unseen = (size - n) / np.maximum(size - 1, 1)
    low, high = agresti_coull(estimate, float((w**2 / n) @ unseen))
    return Interval95(estimate, known * low, known * high + 1 - known)


def agresti_coull(share: float, inverse_size: float) -> tuple[float, float]:
    """Return the interval of a share among n rows.

        c +- z sqrt(c (1 - c) / (n + z^2))       c = (n share + z^2 / 2) / (n + z^2)

    ``inverse_size`` is 1 / n, and 0 if every row was checked.
    """
    z2 = Z95**2 * inverse_size
    centre = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * centre * (1 - centre) / (1 + z2))
    return max(0.0, centre - half), min(1.0, centre + half)
