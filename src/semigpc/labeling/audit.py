"""The precision of pseudo-labels, measured on a sample that people check.

``draw_sample`` writes rows to audit.csv, drawn within strata of class and confidence, and the
design of the sample to audit.json. People write the right classes into audit.csv, and ``judge``
computes the precision of all pseudo-labels from them.
"""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyarrow import compute
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from semigpc.estimator import Status
from semigpc.io.atomic import RELAXED, Count, Positive, Share, read_json, shown, write_json
from semigpc.io.errors import DataError
from semigpc.io.tables import SUFFIXES, as_label, is_table, read_pairs
from semigpc.io.text import listed, similar_names
from semigpc.labeling.evidence import Z95, Interval95
from semigpc.labeling.project import Project, own_names, write_hand_table

TABLE, FACTS = "audit.csv", "audit.json"
AGAIN = "Draw a new sample (semigpc audit OUT --sample N --overwrite)."
TRUTH, LABEL = "truth", "label"  # columns of audit.csv
RIGHT = frozenset(("y", "yes", "correct", "right", "true", "ok"))  # answers that confirm the label
WRONG = frozenset(("n", "no", "wrong", "false"))
BANDS = {
    1: ("all",),
    2: ("low", "high"),
    3: ("low", "middle", "high"),
}  # names of the bands of confidence, by their number
FEW = 5  # rows to check in every class, if there are that many
SURE = 0.9  # a stratum with more confidence than this is checked no less than one with this

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


# The design of a sample ---------------------------------------------------------------------------


@with_config(ConfigDict(allow_inf_nan=False))
@dataclass(frozen=True)
class Stratum:
    """Pseudo-labels of one class and one band of confidence: how many, their mean confidence, and
    how many were drawn.
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
        strata: H of them; a row of stratum h is in the sample with the probability drawn_h /
            rows_h.
        rows: label and number of the stratum of each row that was drawn, by id, in the order of the
            table.
    """

    seed: Count
    edges: list[Share]
    strata: list[Stratum]
    rows: dict[str, tuple[str, Count]]

    @classmethod
    def read(cls, project: Project) -> "Design":
        """Read audit.json; raise a DataError if there is none, or if the labels were made again
        since.
        """
        try:
            facts = read_json(
                project.folder / FACTS,
                AuditFacts,
                error=DataError,
                remedy=AGAIN,
                check=_check_facts,
            )
        except FileNotFoundError as error:
            raise DataError(
                f"No sample was drawn from {project.folder}: it has no {FACTS}. {AGAIN}"
            ) from error
        design, pseudo = facts["sample"], PseudoRows.of(project)
        current = {
            project.ids[row]: pseudo.classes[code]
            for row, code in zip(pseudo.rows, pseudo.codes, strict=True)
        }
        changed = [name for name, (label, _) in design.rows.items() if current.get(name) != label]
        if changed:
            raise DataError(
                f"{len(changed)} rows of the sample in {FACTS} have another label or status in labels.parquet than when "
                f"it was drawn: {listed(changed, 3)}. Answers about the old labels say nothing of the new ones. {AGAIN}"
            )
        strata, _ = pseudo.strata(design.edges)
        if [(s.label, s.band, s.rows) for s in strata] != [
            (s.label, s.band, s.rows) for s in design.strata
        ]:
            raise DataError(
                f"{project.folder} was labelled again since the sample of {FACTS} was drawn. {AGAIN}"
            )
        return design


@with_config(RELAXED)
class AuditFacts(TypedDict):
    """``audit.json``; the precision, under "result", is written again each time and never read."""

    sample: Design


def _check_facts(facts: AuditFacts) -> None:
    sample = facts["sample"]
    if len(sample.edges) not in {bands - 1 for bands in BANDS} or sample.edges != sorted(
        set(sample.edges)
    ):
        raise ValueError(
            f"sample.edges must be at most {max(BANDS) - 1} rising numbers; got {shown(sample.edges)}"
        )
    drawn = Counter(number for _, number in sample.rows.values())
    for number, stratum in enumerate(sample.strata):
        if drawn.pop(number, 0) != stratum.drawn or stratum.drawn > stratum.rows:
            raise ValueError(
                f"sample.strata[{number}].drawn must be how many of its rows are listed; got {stratum.drawn}"
            )
    if drawn:
        raise ValueError(
            f"sample.rows must be of the {len(sample.strata)} strata; got number {max(drawn)}"
        )


class PseudoRows(NamedTuple):
    """All rows with the status "pseudo": numbers (n,), class codes (n,) in ``classes``, and
    confidences (n,).
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
                f"{project.folder} has no pseudo-labels to check: every row is labelled by you, an outlier or abstained from."
            )
        labels = table.column("label").to_pylist()
        classes = sorted(set(labels), key=project.classes.index)
        code = {name: number for number, name in enumerate(classes)}
        confidence = table.column("confidence").to_numpy().astype(np.float64)
        return cls(
            np.flatnonzero(np.asarray(is_pseudo)),
            np.array([code[label] for label in labels]),
            confidence,
            classes,
        )

    def edges(self, bands: int) -> list[float]:
        """Return confidences that divide the rows into bands of about equal size; fewer if many
        rows are equally confident.
        """
        quantiles = np.quantile(self.confidence, np.arange(1, bands) / bands)
        return sorted({float(edge) for edge in quantiles if edge > self.confidence.min()})

    def strata(self, edges: Sequence[float]) -> tuple[list[Stratum], Integers]:
        """Return the strata that have rows, by class and then by confidence, and (n,) the stratum
        of each row.
        """
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
    """Return how many rows of each stratum to check: a few of every class, the rest where they
    narrow the interval most.

    Every stratum gets a row, and every class up to five in equal parts of its strata. The others go
    one by one to the stratum with the largest N_h s_h / (n_h + 1/2), where s_h = sqrt(c (1 - c))
    and c is the mean confidence, at least 0.5 and at most
    0.9: in proportion to N_h s_h, which is Neyman's rule. The bound of 0.9 keeps an overconfident
    model from hiding where it is wrong. O(sample H).

    Args:
        strata: H of them, none empty.
        sample: no more than there are rows, and at least two for each stratum, or one if every
            class has a single one.
    """
    sizes = np.array([stratum.rows for stratum in strata])
    bands = Counter(stratum.label for stratum in strata)
    few = max(1, min(FEW, sample // (2 * len(bands))))
    counts = np.minimum(sizes, [-(-few // bands[stratum.label]) for stratum in strata])
    confidence = np.clip([stratum.confidence for stratum in strata], 0.5, SURE)
    weights = sizes * np.sqrt(confidence * (1 - confidence))
    for _ in range(sample - int(counts.sum())):
        counts[int(np.where(counts < sizes, weights / (counts + 0.5), -1.0).argmax())] += 1
    return list(map(int, counts))


def draw_sample(
    project: Project, sample: int = 200, *, seed: int = 0, overwrite: bool = False
) -> tuple[Path, Design]:
    """Draw pseudo-labelled rows at random within strata of class and confidence, and write them to
    audit.csv for people.

    Bands of confidence are thirds of all pseudo-labels, halves or the whole where the sample would
    leave fewer than two rows for a stratum. :func:`allocate` decides how many rows of each are
    drawn.

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
    strata = [
        replace(stratum, drawn=count)
        for stratum, count in zip(strata, allocate(strata, sample), strict=True)
    ]
    rng = np.random.default_rng(seed)
    chosen = [
        rng.choice(np.flatnonzero(member == h), stratum.drawn, replace=False)
        for h, stratum in enumerate(strata)
    ]
    order = rng.permutation(
        np.concatenate(chosen)
    ).tolist()  # people see less if one class follows itself again and again
    rows = {
        project.ids[pseudo.rows[i]]: (pseudo.classes[pseudo.codes[i]], int(member[i]))
        for i in order
    }
    design, path = Design(seed, edges, strata, rows), project.folder / TABLE
    others = own_names((LABEL, "confidence", "stratum", "inclusion", TRUTH), project.id_name)
    table = [
        (
            name,
            label,
            f"{pseudo.confidence[i]:.6g}",
            strata[h].name,
            f"{strata[h].drawn / strata[h].rows:.6g}",
            "",
        )
        for i, (name, (label, h)) in zip(order, rows.items(), strict=True)
    ]
    write_hand_table(path, [project.id_name, *others], table, blank=TRUTH, overwrite=overwrite)
    write_json(project.folder / FACTS, {"sample": asdict(design)})
    return path, design


# Answers ------------------------------------------------------------------------------------------


def judge(project: Project, path: Path) -> dict[str, Any]:
    """Return the precision of the pseudo-labels by the answers in a table: overall, by class, and
    which classes were confused.

    Writes audit.json: the sample, and under "result" what is returned.

    Raises:
        DataError: the table cannot be read or does not fit the sample, or the labels were made
            again since it was drawn.
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
        "level": 0.95,
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
            for (label, truth), count in sorted(
                confusions.items(), key=lambda item: (-item[1], str(item[0]))
            )
        ],
    }
    write_json(project.folder / FACTS, {"sample": asdict(design), "result": result})
    return result


def _figures(
    design: Design, right: Integers, checked: Integers, chosen: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return for some of the strata: rows, answers, precision with its interval, and the mean
    confidence.
    """
    strata = [
        stratum for stratum, wanted in zip(design.strata, chosen.tolist(), strict=True) if wanted
    ]
    rows = sum(stratum.rows for stratum in strata)
    return {
        "rows": rows,
        "checked": int(checked[chosen].sum()),
        "right": int(right[chosen].sum()),
        **dict(
            zip(
                ("precision", "low", "high"),
                precision(strata, right[chosen], checked[chosen]),
                strict=True,
            )
        ),
        "confidence": sum(stratum.rows * stratum.confidence for stratum in strata) / rows,
    }


def read_answers(path: Path, project: Project, design: Design) -> dict[str, str | None]:
    """Return the right class of each row that was answered, by its id; None if it is only known
    that the label is wrong.

    An answer is a class, a word for "right", which stands for the label, or one for "wrong". A
    class of such a name is meant before the word. Integers may be in any order; those left empty or
    missing are not answered.
    """
    if not path.is_file():
        raise DataError(f"The answers are not there: {path}. Check the path.")
    if not is_table(path):
        raise DataError(
            f"Answers must be in a file that ends in {' or '.join(SUFFIXES)}; got {path.name}."
        )
    pairs = _pairs(path, project.id_name, TRUTH)
    names = [name for name, _ in pairs]
    unknown = [name for name in names if name not in design.rows]
    if unknown:
        raise DataError(
            f"{path} has {len(unknown)} ids that were not drawn: {listed(unknown, 3)}. Answers count for rows of the sample "
            "alone: take these out, or give the table that was drawn last."
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"{path} has {len(repeated)} ids more than once: {listed(repeated, 3)}. Keep one row for each."
        )
    with suppress(
        _ColumnError
    ):  # that column is not needed, but somebody may have corrected it instead of writing the truth
        other = [
            name
            for name, label in _pairs(path, project.id_name, LABEL)
            if label != design.rows[name][0]
        ]
        if other:
            raise DataError(
                f"{len(other)} rows of {path} have another label than when the sample was drawn: {listed(other, 3)}. Leave the "
                f"column {LABEL} as it was, and write the right class into {TRUTH}."
            )
    return {
        name: _true_class(value, design.rows[name][0], project.classes, path)
        for name, value in pairs
        if value is not None
    }


class _ColumnError(DataError):
    """A column that does not exist."""


def _pairs(path: Path, id_name: str, second: str) -> list[tuple[str, str | None]]:
    """Return ids with another column; rows that are empty in both, as spreadsheets leave behind,
    are left out.
    """

    def choose(names: Sequence[str], path: Path) -> tuple[str, str]:
        if not {id_name, second} <= set(names):
            raise _ColumnError(
                f"{path} must have the columns {id_name} and {second}; it has {listed(names, 8) or 'none'}. Take the table "
                "that was drawn, and separate columns by commas."
            )
        return id_name, second

    pairs = [
        ("" if name is None else str(name).strip(), as_label(value))
        for name, value in read_pairs(path, choose)
    ]
    for number, (name, value) in enumerate(pairs, start=1):
        if not name and value is not None:
            raise DataError(
                f"Row {number} of {path} has {value!r} as its {second}, and no {id_name}. Fill it in, or delete it."
            )
    return [(name, value) for name, value in pairs if name]


def _true_class(answer: str, label: str, classes: Sequence[str], path: Path) -> str | None:
    """Return the class that an answer about a label means; None if it is only known that the label
    is wrong.
    """
    for name in (
        answer,
        answer.removesuffix(".0"),
    ):  # spreadsheets write whole numbers with a fraction
        if name in classes:
            return name
    word = answer.casefold()
    alike = [name for name in classes if name.casefold() == word]
    if len(alike) == 1:
        return alike[0]
    if word in RIGHT or word in WRONG:
        return label if word in RIGHT else None
    similar = similar_names(answer, classes)
    hint = f"did you mean {similar[0]!r}?" if similar else f"known: {listed(list(classes))}."
    raise DataError(
        f"{path} has the answer {answer!r}, which is no class; {hint} Write a class, or y if the label is right and n if "
        "it is wrong, also where the truth is a class that has no label yet."
    )


# Precision ----------------------------------------------------------------------------------------


def precision(strata: Sequence[Stratum], right: Integers, checked: Integers) -> Interval95:
    """Return the precision of all rows of these strata.

        P = sum_h W_h k_h / n_h       W_h = N_h / N       1 / n_eff = sum_h W_h^2 / n_h (N_h - n_h) / (N_h - 1)

    The interval is that of Agresti and Coull for a share P among n_eff rows. It holds where few
    rows were checked and all of them are right, where the usual variance would be 0, and a stratum
    of which every row was checked adds nothing to it. In simulations of seven kinds of errors, with
    3 to 74 rows checked in a class, it covered the truth in 96 to 98 percent overall and in no
    class in fewer than 95. Wilson's interval is a tenth narrower and falls to 90 in classes that
    are nearly all
    right. A posterior for each stratum by itself may never cover the truth: with few rows in many
    strata, the priors add up.

    A stratum without an answer is taken to be like the others of its class. If a whole class has
    none, nothing is known of it: ``low`` takes all of it to be wrong, and ``high`` to be right.

    Args:
        strata: H of them. right: (H,) answers that confirm the label, k_h. checked: (H,) all
            answers, n_h.
    """
    if not checked.any():
        return Interval95(None, None, None)
    sizes, labels = (
        np.array([stratum.rows for stratum in strata], float),
        np.array([stratum.label for stratum in strata]),
    )
    answered, weights = checked > 0, np.zeros(len(strata))
    for name in np.unique(labels[answered]):
        of_class = labels == name
        weights[of_class & answered] = (
            sizes[of_class & answered] * sizes[of_class].sum() / sizes[of_class & answered].sum()
        )
    known = float(weights.sum() / sizes.sum())
    w, k, n, size = (
        (weights / weights.sum())[answered],
        right[answered],
        checked[answered],
        sizes[answered],
    )
    estimate = float(w @ (k / n))
    unseen = (size - n) / np.maximum(size - 1, 1)
    low, high = agresti_coull(estimate, float((w**2 / n) @ unseen))
    return Interval95(estimate, known * low, known * high + 1 - known)


def agresti_coull(share: float, inverse_size: float) -> tuple[float, float]:
    """Return the interval of a share among n rows; ``inverse_size`` is 1 / n, and 0 if every row
    was checked.

    c +- z sqrt(c (1 - c) / (n + z^2))       c = (n share + z^2 / 2) / (n + z^2)
    """
    z2 = Z95**2 * inverse_size
    centre = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * centre * (1 - centre) / (1 + z2))
    return max(0.0, centre - half), min(1.0, centre + half)
