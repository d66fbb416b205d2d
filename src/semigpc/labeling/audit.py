"""A sample of the pseudo-labels to check by hand; what was drawn is kept in audit.json, so that answers can be weighed."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyarrow import compute
from pydantic import Field, with_config
from typing_extensions import TypedDict

from semigpc.data.dataset import DataError, listed
from semigpc.data.tables import SUFFIXES, as_label, is_table, read_pairs
from semigpc.files import RELAXED, Count, Positive, Share, read_json, shown, write_json
from semigpc.labeling.project import Project, own_names, write_hand_table
from semigpc.text import similar_names

TABLE, FACTS = "audit.csv", "audit.json"
AGAIN = "Draw a new sample (semigpc audit OUT --sample N --overwrite)."
RIGHT = frozenset(("y", "yes", "correct", "right", "true", "ok"))
WRONG = frozenset(("n", "no", "wrong", "false"))
TRUTH, LABEL = "truth", "label"
Truths = dict[str, str | None]  # the right class by id; None if it is only known that the label is wrong
LEVEL = 0.95
NORMAL = 1.959963984540054  # the quantile of that level, two-sided
BANDS = {1: ("all",), 2: ("low", "high"), 3: ("low", "middle", "high")}  # of confidence, by how many there are
FEW = 5  # rows to check in every class, if there are that many
SURE = 0.9  # confidence beyond which a stratum is not checked any less
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class StratumFacts(TypedDict):
    """A stratum, and how many of its rows were drawn."""

    label: str
    band: Literal["all", "low", "middle", "high"]
    rows: Positive
    confidence: Share
    drawn: Count


class SampleFacts(TypedDict):
    """A :class:`Design` as JSON holds it."""

    seed: Count
    edges: list[Share]
    strata: list[StratumFacts]
    rows: dict[str, Annotated[tuple[str, Count], Field(strict=False)]]  # a list in JSON


@with_config(RELAXED)
class AuditFacts(TypedDict):
    """``audit.json``; what was found, under "result", is written again and never read."""

    sample: SampleFacts


def _check_facts(facts: AuditFacts) -> None:
    sample = facts["sample"]
    if len(sample["edges"]) not in {bands - 1 for bands in BANDS} or sample["edges"] != sorted(set(sample["edges"])):
        raise ValueError(f"sample.edges must be at most {max(BANDS) - 1} rising numbers; got {shown(sample['edges'])}")
    drawn = Counter(number for _, number in sample["rows"].values())
    for number, stratum in enumerate(sample["strata"]):
        if drawn.pop(number, 0) != stratum["drawn"] or stratum["drawn"] > stratum["rows"]:
            raise ValueError(f"sample.strata[{number}].drawn must be how many of its rows are listed; got {stratum['drawn']}")
    if drawn:
        raise ValueError(f"sample.rows must be of the {len(sample['strata'])} strata; got number {max(drawn)}")


class Stratum(NamedTuple):
    """Rows that are believed to be of one class, with confidences in one band: how many, and their mean confidence."""

    label: str
    band: str
    rows: int
    confidence: float

    @property
    def name(self) -> str:
        """For people."""
        return self.label if self.band == "all" else f"{self.label}, {self.band}"


@dataclass(frozen=True)
class Design:
    """What was drawn.

    Args:
        seed: of the drawing. edges: between bands of confidence.
        strata: H of them. counts: (H,) rows drawn from each at random, so that a row of stratum h is in with the probability
            counts[h] / strata[h].rows.
        rows: label and number of the stratum of each row that was drawn, by id, in the order of the table.
    """

    seed: int
    edges: list[float]
    strata: list[Stratum]
    counts: list[int]
    rows: dict[str, tuple[str, int]]

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        strata = [stratum._asdict() | {"drawn": n} for stratum, n in zip(self.strata, self.counts, strict=True)]
        return {"seed": self.seed, "edges": self.edges, "strata": strata, "rows": self.rows}

    @classmethod
    def read(cls, project: Project) -> "Design":
        """From audit.json; an error if it is not there, or if the labels were made again since."""
        path = project.folder / FACTS
        try:
            held = read_json(path, AuditFacts, error=DataError, remedy=AGAIN, check=_check_facts)["sample"]
        except FileNotFoundError as error:
            raise DataError(f"No sample was drawn from {project.folder}: it has no {FACTS}. {AGAIN}") from error
        design = cls(
            seed=held["seed"],
            edges=held["edges"],
            strata=[Stratum(entry["label"], entry["band"], entry["rows"], entry["confidence"]) for entry in held["strata"]],
            counts=[entry["drawn"] for entry in held["strata"]],
            rows=held["rows"],
        )
        design._check(project)
        return design

    def _check(self, project: Project) -> None:
        """Rows must have the labels that they were drawn with, and strata as many rows."""
        numbers = {name: row for row, name in enumerate(project.ids) if name in self.rows}
        labels, status = (project.table.column(name) for name in ("label", "status"))
        now = {name: labels[row].as_py() for name, row in numbers.items() if status[row].as_py() == "pseudo"}
        changed = [name for name, (label, _) in self.rows.items() if now.get(name) != label]
        if changed:
            raise DataError(
                f"{len(changed)} rows of the sample in {FACTS} have another label or status in labels.parquet than when "
                f"it was drawn: {listed(changed, 3)}. Answers about the old labels say nothing of the new ones. {AGAIN}"
            )
        strata, _ = PseudoRows.of(project).strata(self.edges)
        if [stratum[:3] for stratum in strata] != [stratum[:3] for stratum in self.strata]:
            raise DataError(f"{project.folder} was labelled again since the sample of {FACTS} was drawn. {AGAIN}")


def draw_sample(project: Project, sample: int = 200, *, seed: int = 0, overwrite: bool = False) -> tuple[Path, Design]:
    """Draw pseudo-labelled rows at random within strata of class and confidence, and write them to audit.csv for people.

    Bands of confidence are thirds of all pseudo-labels, halves or the whole where the sample would leave fewer than two rows
    for a stratum. How many rows of each are drawn is said at :func:`semigpc.labeling.audit.allocate`.

    Args:
        project: what was labelled. sample: rows to check; all of them if there are no more.
        seed: of the drawing. overwrite: replace a sample of which some rows are answered.

    Raises:
        DataError: there is nothing to check, the sample is too small, or answers would be lost.
    """
    pseudo = PseudoRows.of(project)
    classes, sample = len(pseudo.classes), min(sample, len(pseudo.rows))
    if sample < classes:
        raise DataError(
            f"A sample must have a row of each of the {classes} classes among the pseudo-labels; got {sample}. "
            f"Take at least {classes}, better {10 * classes}."
        )
    edges = pseudo.edges(min(max(BANDS), max(1, sample // (2 * classes))))
    strata, member = pseudo.strata(edges)
    counts = allocate(strata, sample)
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(np.flatnonzero(member == h), count, replace=False) for h, count in enumerate(counts)]
    order = rng.permutation(np.concatenate(chosen))  # the same class in a row would blunt the eye
    rows = {project.ids[pseudo.rows[i]]: (pseudo.classes[pseudo.codes[i]], int(member[i])) for i in order.tolist()}
    design = Design(seed, edges, strata, counts, rows)
    path = project.folder / TABLE
    others = own_names(("label", "confidence", "stratum", "inclusion", "truth"), project.id_name)
    table = [
        (name, label, f"{pseudo.confidence[i]:.6g}", strata[h].name, f"{counts[h] / strata[h].rows:.6g}", "")
        for i, (name, (label, h)) in zip(order.tolist(), rows.items(), strict=True)
    ]
    write_hand_table(path, [project.id_name, *others], table, blank="truth", overwrite=overwrite)
    write_facts(project, {"sample": design.plain()})
    return path, design


def write_facts(project: Project, facts: dict[str, Any]) -> Path:
    """audit.json, all at once."""
    path = project.folder / FACTS
    write_json(path, facts)
    return path


def judge(project: Project, path: Path) -> dict[str, Any]:
    """Precision of the pseudo-labels by the answers in a table: overall and by class, with what was taken for what.

    Writes audit.json: the sample, and under "result" what is returned.

    Raises:
        DataError: the table cannot be read or does not fit the sample, or the labels were made again since it was drawn.
    """
    design = Design.read(project)
    truths = read_answers(path, project, design)
    if not truths:
        raise DataError(
            f"{path} has no answers yet. Write into its column {TRUTH} the right class, or y if the label is right and n if "
            "it is wrong."
        )
    right, checked = (np.zeros(len(design.strata), dtype=np.int64) for _ in range(2))
    confusions: Counter[tuple[str, str | None]] = Counter()
    for name, truth in truths.items():
        label, stratum = design.rows[name]
        checked[stratum] += 1
        right[stratum] += truth == label
        if truth != label:
            confusions[label, truth] += 1
    labels = np.array([stratum.label for stratum in design.strata])
    result = {
        "level": LEVEL,
        "answered": len(truths),
        "unanswered": len(design.rows) - len(truths),
        "all": _figures(design, right, checked, np.ones(len(labels), dtype=bool)),
        "classes": [
            {"class": name} | _figures(design, right, checked, labels == name)
            for name in project.classes
            if (labels == name).any()
        ],
        "confusions": [
            {"label": label, "truth": truth, "count": count}
            for (label, truth), count in sorted(confusions.items(), key=lambda item: (-item[1], str(item[0])))
        ],
    }
    write_facts(project, {"sample": design.plain(), "result": result})
    return result


def read_answers(path: Path, project: Project, design: Design) -> Truths:
    """The truth of each row that was answered: a class; a word for right, which stands for the label; or one for wrong.

    A class called like such a word goes before it. Rows may be in any order, and those left empty or missing are not answered.
    """
    if not path.is_file():
        raise DataError(f"The answers are not there: {path}. Check the path.")
    if not is_table(path):
        raise DataError(f"Answers must be in a file that ends in {' or '.join(SUFFIXES)}; got {path.name}.")
    pairs = _pairs(path, project.id_name, TRUTH)
    names = [name for name, _ in pairs]
    unknown = [name for name in names if name not in design.rows]
    if unknown:
        raise DataError(
            f"{path} has {len(unknown)} ids that were not drawn: {listed(unknown, 3)}. Answers count for rows of the sample "
            "alone: take these out, or give the table that was drawn last."
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path} has {len(twice)} ids more than once: {listed(twice, 3)}. Keep one row for each.")
    _check_labels(path, project, design)
    classes = _reader(project.classes, path)
    return {name: classes(value, design.rows[name][0]) for name, value in pairs if value is not None}


def _check_labels(path: Path, project: Project, design: Design) -> None:
    """Some people mend the label instead of writing the truth."""
    try:
        labels = _pairs(path, project.id_name, LABEL)
    except ColumnError:
        return
    other = [name for name, label in labels if label != design.rows[name][0]]
    if other:
        raise DataError(
            f"{len(other)} rows of {path} have another label than when the sample was drawn: {listed(other, 3)}. Leave the "
            f"column {LABEL} as it was, and write the right class into {TRUTH}."
        )


def _pairs(path: Path, id_name: str, second: str) -> list[tuple[str, str | None]]:
    """Ids with another column; rows that are empty in both, as spreadsheets leave behind, are passed over."""
    pairs = [
        ("" if name is None else str(name).strip(), as_label(value))
        for name, value in read_pairs(path, _columns(id_name, second))
    ]
    for number, (name, value) in enumerate(pairs, start=1):
        if not name and value is not None:
            raise DataError(
                f"Row {number} of {path} has {value!r} as its {second}, and no {id_name}. Fill it in, or delete it."
            )
    return [(name, value) for name, value in pairs if name]


def _reader(classes: Sequence[str], path: Path) -> Callable[[str, str], str | None]:
    """What turns an answer, and the label that it is about, into the true class."""
    exact = set(classes)
    folded = Counter(name.casefold() for name in classes)
    by_folded = {name.casefold(): name for name in classes if folded[name.casefold()] == 1}

    def read(answer: str, label: str) -> str | None:
        word = answer.casefold()
        whole = answer[:-2] if answer.endswith(".0") else answer  # as spreadsheets write whole numbers
        for name in (answer, whole):
            if name in exact:
                return name
        if word in by_folded:
            return by_folded[word]
        if word in RIGHT or word in WRONG:
            return label if word in RIGHT else None
        close = similar_names(answer, classes)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {listed(list(classes))}."
        raise DataError(
            f"{path} has the answer {answer!r}, which is no class; {hint} Write a class, or y if the label is right and n if "
            "it is wrong, also where the truth is a class that has no label yet."
        )

    return read


class ColumnError(DataError):
    """A column that is not there."""


def _columns(id_name: str, second: str) -> Callable[[Sequence[str], Path], tuple[str, str]]:
    def choose(found: Sequence[str], path: Path) -> tuple[str, str]:
        missing = [name for name in (id_name, second) if name not in found]
        if missing:
            raise ColumnError(
                f"{path} must have the columns {id_name} and {second}; it has {listed(found, 8) or 'none'}. Take the table "
                "that was drawn, and separate columns by commas."
            )
        return id_name, second

    return choose


def _figures(design: Design, right: Any, checked: Any, those: Any) -> dict[str, Any]:
    """Of some of the strata: rows, answers, precision with its interval, and the mean confidence to compare it with."""
    strata = [stratum for stratum, wanted in zip(design.strata, those.tolist(), strict=True) if wanted]
    rows = sum(stratum.rows for stratum in strata)
    found = precision(strata, right[those], checked[those])
    named = ("precision", "low", "high")
    return {
        "rows": rows,
        "checked": int(checked[those].sum()),
        "right": int(right[those].sum()),
        **(dict.fromkeys(named) if found is None else dict(zip(named, found, strict=True))),
        "confidence": sum(stratum.rows * stratum.confidence for stratum in strata) / rows,
    }


class Interval(NamedTuple):
    """A precision, and between what it lies with a confidence of 95 percent."""

    estimate: float
    low: float
    high: float


def precision(strata: Sequence[Stratum], right: Integers, checked: Integers) -> Interval | None:
    """Precision of all rows of these strata; None if nothing was answered.

        P = sum_h W_h k_h / n_h       W_h = N_h / N       1 / n_eff = sum_h W_h^2 / n_h (N_h - n_h) / (N_h - 1)

    The interval is that of Agresti and Coull for a share P among n_eff rows. It is sound where few rows were checked and all of
    them are right, where the usual variance would be 0, and a stratum that was checked to the last row adds nothing to it. In
    simulations of seven kinds of errors, with 3 to 74 rows checked in a class, it covered the truth in 96 to 98 percent overall
    and in no class in fewer than 95. Wilson's interval is a tenth narrower and falls to 90 in classes that are nearly all
    right. A posterior for each stratum by itself may never cover the truth: with few rows in many strata, the priors add up.

    A stratum without an answer is taken to be like the others of its class. If a whole class has none, nothing is known of it:
    ``low`` takes all of it to be wrong, and ``high`` to be right.

    Args:
        strata: H of them. right: (H,) answers that say so, k_h. checked: (H,) all answers, n_h.
    """
    if not checked.any():
        return None
    sizes, labels = np.array([stratum.rows for stratum in strata], float), np.array([stratum.label for stratum in strata])
    answered, weights = checked > 0, np.zeros(len(strata))
    for name in np.unique(labels[answered]):
        those = labels == name
        weights[those & answered] = sizes[those & answered] * sizes[those].sum() / sizes[those & answered].sum()
    known = float(weights.sum() / sizes.sum())
    w, k, n, size = (weights / weights.sum())[answered], right[answered], checked[answered], sizes[answered]
    estimate = float(w @ (k / n))
    unseen = (size - n) / np.maximum(size - 1, 1)
    low, high = agresti_coull(estimate, float((w**2 / n) @ unseen))
    return Interval(estimate, known * low, known * high + 1 - known)


def agresti_coull(share: float, inverse_size: float) -> tuple[float, float]:
    """The interval of a share among n rows, of which 1 / n is given: 0 if nothing is left to chance.

    c +- z sqrt(c (1 - c) / (n + z^2))       c = (n share + z^2 / 2) / (n + z^2)
    """
    z2 = NORMAL**2 * inverse_size
    centre = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * centre * (1 - centre) / (1 + z2))
    return max(0.0, centre - half), min(1.0, centre + half)


class PseudoRows(NamedTuple):
    """All rows with the status pseudo: numbers (n,), class codes (n,) in ``classes``, and confidences (n,)."""

    rows: Integers
    codes: Integers
    confidence: Floats
    classes: list[str]

    @classmethod
    def of(cls, project: Project) -> "PseudoRows":
        """Those of a project, with the classes that occur."""
        table = project.table.filter(compute.equal(project.table.column("status"), "pseudo"))
        if not table.num_rows:
            raise DataError(
                f"{project.folder} has no pseudo-labels to check: every row is labelled by you, an outlier or abstained from."
            )
        labels = table.column("label").to_pylist()
        classes = sorted(set(labels), key=project.classes.index)
        code = {name: number for number, name in enumerate(classes)}
        rows = np.flatnonzero(np.asarray(compute.equal(project.table.column("status"), "pseudo")))
        confidence = table.column("confidence").to_numpy().astype(np.float64)
        return cls(rows, np.array([code[label] for label in labels]), confidence, classes)

    def edges(self, bands: int) -> list[float]:
        """Confidences that part the rows into bands of about equal size; fewer if many rows are equally sure."""
        quantiles = np.quantile(self.confidence, np.arange(1, bands) / bands)
        return sorted({float(edge) for edge in quantiles if edge > self.confidence.min()})

    def strata(self, edges: Sequence[float]) -> tuple[list[Stratum], Integers]:
        """Those with rows, by class and then from low to high confidence; and (n,) in which of them each row is."""
        names = BANDS[len(edges) + 1]
        keys = self.codes * len(names) + np.searchsorted(edges, self.confidence, side="right")
        found, member, counts = np.unique(keys, return_inverse=True, return_counts=True)
        means = np.bincount(member, self.confidence) / counts
        strata = [
            Stratum(self.classes[key // len(names)], names[key % len(names)], count, mean)
            for key, count, mean in zip(found.tolist(), counts.tolist(), means.tolist(), strict=True)
        ]
        return strata, member


def allocate(strata: Sequence[Stratum], sample: int) -> list[int]:
    """How many rows of each stratum to check: a few of every class, and the rest where it narrows the interval most.

    Every stratum gets a row, and every class up to five in equal parts of its strata. The others go one by one to the stratum
    with the largest N_h s_h / (n_h + 1/2), where s_h = sqrt(c (1 - c)) and c is the mean confidence, at least 0.5 and at most
    0.9: in proportion to N_h s_h, which is Neyman's rule. The bound keeps a model that is too sure of itself from hiding where
    it is wrong. O(sample H).

    Args:
        strata: H of them, none empty.
        sample: no more than there are rows, and at least two for each stratum, or one if every class has a single one.
    """
    sizes = np.array([stratum.rows for stratum in strata])
    bands = {name: sum(stratum.label == name for stratum in strata) for name in {stratum.label for stratum in strata}}
    few = max(1, min(FEW, sample // (2 * len(bands))))
    counts = np.minimum(sizes, [-(-few // bands[stratum.label]) for stratum in strata])
    believed = np.clip([stratum.confidence for stratum in strata], 0.5, SURE)
    weights = sizes * np.sqrt(believed * (1 - believed))
    for _ in range(sample - int(counts.sum())):
        counts[int(np.where(counts < sizes, weights / (counts + 0.5), -1.0).argmax())] += 1
    allocated: list[int] = counts.tolist()
    return allocated
