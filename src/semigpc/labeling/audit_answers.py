"""What people wrote into a sample of pseudo-labels, and what it says of all of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from semigpc.data.dataset import DataError, listed
from semigpc.data.tables import SUFFIXES, as_label, is_table, read_pairs
from semigpc.labeling.audit import Design, write_facts
from semigpc.labeling.precision import LEVEL, precision
from semigpc.labeling.project import Project
from semigpc.text import similar_names

RIGHT = frozenset(("y", "yes", "correct", "right", "true", "ok"))
WRONG = frozenset(("n", "no", "wrong", "false"))
TRUTH, LABEL = "truth", "label"

Truths = dict[str, str | None]  # the right class by id; None if it is only known that the label is wrong


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
