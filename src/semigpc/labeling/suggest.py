"""``suggestions.csv``: the rows to label next, as :mod:`semigpc.labeling.choose` chooses them.

All answers of the page are known to it. Rows that were drawn at random count for the guarantee once
they are labelled; the others have the word "yes" in the column ``chosen``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from semigpc.estimator import SemiGPClassifier
from semigpc.io.errors import DataError, SettingsError
from semigpc.io.tables import CHOSEN, YES
from semigpc.labeling.choose import ChoiceKind, Pool, Predictions, choose
from semigpc.labeling.choose import codes_in_need as codes_in_need
from semigpc.labeling.evidence import SUSPICION, suspicion
from semigpc.labeling.journal import random_order
from semigpc.labeling.project import Project, own_names, write_hand_table

FILE = "suggestions.csv"
BLOCK = 16_384  # rows predicted at a time, to bound memory


class Suggestion(NamedTuple):
    """A row to label.

    Attributes:
        row, id: which. guess, confidence: its most probable class, and that probability; empty
            and 0 while fewer than two classes are known.
        variance: posterior over prior variance of the row, 1 if nothing is known.
        kind: what it was chosen for. for_class: the class that it is sought for; empty if for none.
        why: the reason, for people.
    """

    row: int
    id: str
    guess: str
    confidence: float
    variance: float
    kind: ChoiceKind
    for_class: str
    why: str


def suggest(project: Project, count: int = 50, *, seed: int = 0) -> list[Suggestion]:
    """Return the rows to label next; fewer than ``count`` if no more are left.

    O(n N (D + N)) for n rows and N labels if there are answers of the page, beside the cost of
    :func:`semigpc.labeling.choose.choose`.

    Args:
        project: with the labels and the answers of the page.
        count: of rows. seed: of the rows to choose among, where they are many.
    """
    if count < 1:
        raise SettingsError(f"count must be at least 1; got {count}.")
    pool = open_pool(project)
    choices = choose(pool, count, seed=seed)
    if not choices:
        raise DataError(
            f"Nothing is left to label in {project.folder}: all of its {len(project.ids)} rows "
            "are labelled or answered."
        )
    found = []
    for choice in choices:
        guess = ""
        confidence = 0.0
        variance = 1.0
        if pool.answers is not None:
            guess = pool.names[pool.answers.codes[choice.row]]
            confidence = float(pool.answers.confidence[choice.row])
            variance = float(pool.answers.variance[choice.row])
        about = (guess, confidence, variance, choice.kind, choice.for_class, choice.why)
        found.append(Suggestion(choice.row, project.ids[choice.row], *about))
    return found


def open_pool(project: Project) -> Pool:
    """Return what is to be chosen from: the labels of the tables, and the answers of the page."""
    answers = project.history().answers
    known = project.known(answers)
    names = sorted({str(label) for label in known.labels})
    place = {name: code for code, name in enumerate(names)}
    codes = np.full(len(project.ids), -1, np.int64)
    codes[known.rows] = [place[str(label)] for label in known.labels]
    is_open = codes < 0
    is_open[[*answers, *project.bad]] = False
    order = random_order(len(project.ids))
    pool = Pool(project.embeddings, codes, is_open, order, names)
    if len(names) < 2:
        return pool
    model = project.taught()
    unchecked = np.zeros(len(project.ids), dtype=bool)
    unchecked[[row for row in project.given if row not in answers and row not in project.bad]] = (
        True
    )
    left_out = model.leave_one_out()
    suspected = np.zeros(len(project.ids), dtype=bool)
    suspected[left_out.rows[suspicion(left_out) >= SUSPICION]] = True
    return Pool(
        project.embeddings,
        codes,
        is_open,
        order,
        names,
        model,
        _predictions(project, model, names),
        suspected & unchecked,
        unchecked,
    )


def _predictions(project: Project, model: SemiGPClassifier, names: Sequence[str]) -> Predictions:
    """Return what a model predicts for all rows of a project, in bounded memory."""
    place = {name: code for code, name in enumerate(names)}
    code_of = np.array([place[str(name)] for name in model.classes_], np.int64)
    parts = []
    for start in range(0, len(project.ids), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(project.ids)))
        found = model.answer(project.embeddings(rows), top=0)
        assert found.variance is not None
        codes = (code_of[found.codes], code_of[found.second])
        parts.append(Predictions(*codes, found.confidence, found.variance, found.status))
    return Predictions(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def write_suggestions(
    project: Project, suggestions: Sequence[Suggestion], *, overwrite: bool = False
) -> Path:
    """Write ``suggestions.csv`` to the project's folder, with an empty column ``label``.

    Raises:
        DataError: labels have been written into the existing file.
    """
    path = project.folder / FILE
    names = ("rank", "label", *Suggestion._fields[2:], CHOSEN)
    rank_name, *others = own_names(names, project.id_name)
    rows = []
    for rank, row in enumerate(suggestions, start=1):
        values = (f"{value:.6g}" if isinstance(value, float) else value for value in row[2:])
        rows.append((rank, row.id, "", *values, "" if row.kind == "random" else YES))
    header = [rank_name, project.id_name, *others]
    project.claim(FILE)
    write_hand_table(path, header, rows, blank="label", overwrite=overwrite)
    return path
