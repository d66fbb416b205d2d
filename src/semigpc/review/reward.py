"""What the page shows of the whole: what is guaranteed and expected, and what answers brought."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict, get_args

import numpy as np

from semigpc.estimator import Status
from semigpc.estimator.answers import wilson
from semigpc.estimator.promise import FEWEST_LEFT_OUT, GRADES
from semigpc.labeling.journal import Answer, History
from semigpc.report.wording import no_new_labels
from semigpc.review.queue import UNANSWERED, Mask, ReviewQueue, StatusFilter

HISTOGRAM_BINS = 20  # of confidences
GRADE_SHOWN = 0.9  # the precision whose labels are compared with earlier
LOWEST_GRADE = 0.8  # a class without a label of it gets none
LAST_ANSWERS = 10  # whose gain is shown
WITHOUT_GAIN = 40  # answers that brought nothing, after which the page says so
LEAST_GAIN = 0.01  # of all rows, in labels that are guaranteed ...
LEAST_EXPECTED_GAIN = 0.005  # ... or in the expected share of right labels
State = Literal["cold", "fitting", "ready"]


class ClassProgress(TypedDict):
    """What the page shows of a class.

    ``believed`` rows are predicted to be of it, and ``granted`` of these are guaranteed at 80 % or
    more. Of its pseudo-labels, ``checked`` were reviewed and ``right`` of these accepted, with the
    interval from ``low`` to ``high``; ``confidence`` is the mean confidence of the model in them,
    None if there are none.
    """

    name: str
    code: int
    labels: int
    believed: int
    granted: int
    checked: int
    right: int
    low: float
    high: float
    confidence: float | None


class GradeProgress(TypedDict):
    """Labels guaranteed at a precision or a higher one, and rows below that are no outliers."""

    precision: float
    labels: int
    open: int


class Gain(TypedDict):
    """By how many labels the guaranteed ones changed with the last answers."""

    answers: int
    labels: int
    precision: float


class Drawn(TypedDict):
    """Random cards that were answered, and what the guarantee rests on, in a sentence."""

    answered: int
    note: str


class Audit(TypedDict):
    """Of the random cards with a guess: how many guesses were right, and of those guaranteed."""

    checked: int
    right: int
    low: float | None
    high: float | None
    guaranteed_checked: int
    guaranteed_right: int
    guaranteed_low: float | None
    guaranteed_high: float | None


class Progress(TypedDict):
    """What the page shows about all rows; ``nothing`` and ``verdict`` are a sentence or empty.

    ``expected`` is the share of labels that are expected to be right, and ``without`` the number of
    classes that get no new label.
    """

    state: State
    reviewed: int
    total: int
    stale: int
    counts: dict[str, int]
    histogram: list[int]
    grades: list[GradeProgress]
    expected: float | None
    without: int
    gain: Gain | None
    verdict: str
    drawn: Drawn
    audit: Audit
    classes: list[ClassProgress]
    nothing: str


class Reward:
    """What was guaranteed and expected after each number of answers, while the page is open."""

    def __init__(self) -> None:
        self._points: list[tuple[int, int, float]] = []  # answers, labels at GRADE_SHOWN, expected

    def record(self, queue: ReviewQueue, answers: int) -> None:
        """Remember what is guaranteed now, unless it is being brought up to date."""
        if queue.model.is_cold or state_of(queue) == "fitting":
            return
        point = (answers, _guaranteed(queue, GRADE_SHOWN), expected_share(queue) or 0.0)
        if self._points and self._points[-1][0] >= answers:
            self._points = [each for each in self._points if each[0] < answers]
        self._points.append(point)

    def gain(self) -> Gain | None:
        """Return what the last answers brought; None before there are any."""
        if len(self._points) < 2:
            return None
        answers, labels, _ = self._points[-1]
        first = next(each for each in self._points if each[0] >= answers - LAST_ANSWERS)
        if first[0] == answers:
            first = self._points[-2]
        return {
            "answers": answers - first[0],
            "labels": labels - first[1],
            "precision": GRADE_SHOWN,
        }

    def verdict(self, rows: int) -> str:
        """Return a sentence if the last answers brought nothing, "" otherwise."""
        if not self._points:
            return ""
        answers, labels, expected = self._points[-1]
        earlier = [each for each in self._points if each[0] <= answers - WITHOUT_GAIN]
        if not earlier:
            return ""
        _, before, expected_before = earlier[-1]
        is_gain = labels - before >= max(1.0, LEAST_GAIN * rows)
        if is_gain or expected - expected_before >= LEAST_EXPECTED_GAIN:
            return ""
        return (
            f"The last {answers - earlier[-1][0]} answers brought next to nothing. More of them "
            "will hardly help: check some at random, export, or try another network."
        )


def state_of(queue: ReviewQueue) -> State:
    """Return whether there is a model, and whether what is shown is up to date."""
    model = queue.model
    if model.is_cold:
        labels = model.known_codes[(model.known_codes >= 0) & model.has_embedding]
        return "cold" if len(np.unique(labels)) < 2 else "fitting"
    late = model.stale.any() or model.promise_at != model.generation
    return "fitting" if late else "ready"


def progress(
    queue: ReviewQueue, history: History, reward: Reward, random_cards: Sequence[Answer]
) -> Progress:
    """Return everything that the page shows about the labelling as a whole. O(n).

    Args:
        random_cards: the answers to rows that were drawn at random.
    """
    model = queue.model
    answers = history.answers
    unlabelled = (model.status != Status.LABELLED) & (queue.kinds == UNANSWERED)
    bins = (model.confidence[unlabelled] * HISTOGRAM_BINS).astype(int)
    bins = np.minimum(bins, HISTOGRAM_BINS - 1)
    classes = _class_progress(queue, answers)
    cold = model.is_cold
    return {
        "state": state_of(queue),
        "reviewed": len(answers),
        "total": int(queue.asked.sum()),
        "stale": int(model.stale.sum()),
        "counts": {status: int(queue.mask(status).sum()) for status in get_args(StatusFilter)},
        "histogram": np.bincount(bins, minlength=HISTOGRAM_BINS).tolist(),
        "grades": [] if cold else _grade_progress(queue, unlabelled),
        "expected": expected_share(queue),
        "without": sum(not each["granted"] for each in classes if each["labels"]),
        "gain": reward.gain(),
        "verdict": reward.verdict(len(model)),
        "drawn": _drawn(queue, random_cards),
        "audit": _audit(random_cards),
        "classes": classes,
        "nothing": "" if cold else _without_pseudo_labels(queue),
    }


def _guaranteed(queue: ReviewQueue, precision: float) -> int:
    free = (queue.model.known_codes < 0) & (queue.kinds == UNANSWERED)
    return int((queue.model.grade[free] >= np.float32(precision)).sum())


def expected_share(queue: ReviewQueue) -> float | None:
    """Return the share of right labels to expect if all rows had their guess; None without a model.

    Labels by people count as right.
    """
    model = queue.model
    if model.is_cold:
        return None
    counted = model.has_embedding & (np.isin(queue.kinds, (UNANSWERED,)) | (model.known_codes >= 0))
    if not counted.any():
        return None
    return round(float(np.where(model.known_codes >= 0, 1.0, model.confidence)[counted].mean()), 4)


def _grade_progress(queue: ReviewQueue, unlabelled: Mask) -> list[GradeProgress]:
    """Return how many of the rows that are not labelled (n,) have each grade, the highest first."""
    model = queue.model
    grades = model.grade[unlabelled]
    plain = int((model.status[unlabelled] != Status.OUTLIER).sum())
    shown: list[GradeProgress] = []
    for precision in sorted({*GRADES, *model.classifier.promise_.grades}, reverse=True):
        labels = int((grades >= np.float32(precision)).sum())
        shown.append({"precision": precision, "labels": labels, "open": plain - labels})
    return shown


def _drawn(queue: ReviewQueue, cards: Sequence[Answer]) -> Drawn:
    """Return how many labels the guarantee rests on, and say so."""
    project = queue.model.project
    random_cards = sum(answer.label is not None for answer in cards)
    given = len(project.given) - len(project.chosen & project.given.keys())
    total = random_cards + given
    if total < FEWEST_LEFT_OUT:
        note = (
            f"Guarantees rest on labels of rows that were drawn at random: {total} so far, "
            f"{FEWEST_LEFT_OUT} are needed."
        )
    elif given:
        note = (
            f"Guarantees rest on {given} labels that you brought, taken for a random sample of "
            f"their classes, and {random_cards} random cards."
        )
    else:
        note = f"Guarantees rest on {random_cards} cards that were drawn at random."
    if queue.model.is_cold:
        note = ""
    return {"answered": random_cards, "note": note}


def _audit(cards: Sequence[Answer]) -> Audit:
    """Return how many guesses for random cards were right."""
    checked = [
        answer
        for answer in cards
        if answer.believed is not None
        and answer.label is not None
        and answer.status != Status.LABELLED.text
    ]
    guaranteed = [answer for answer in checked if answer.status == Status.PSEUDO.text]
    right = sum(answer.label == answer.believed for answer in checked)
    sure = sum(answer.label == answer.believed for answer in guaranteed)
    whole = wilson(right, len(checked))
    part = wilson(sure, len(guaranteed))
    return {
        "checked": len(checked),
        "right": right,
        "low": whole.low,
        "high": whole.high,
        "guaranteed_checked": len(guaranteed),
        "guaranteed_right": sure,
        "guaranteed_low": part.low,
        "guaranteed_high": part.high,
    }


def _without_pseudo_labels(queue: ReviewQueue) -> str:
    """Return the sentence on classes that are nobody's pseudo-label, with the labels they need."""
    model = queue.model
    if not (model.has_embedding & (model.status != Status.LABELLED)).any():
        return ""
    pseudo = queue.pseudo_counts()
    labels = model.label_counts()
    given = Counter(model.project.given.values())
    needed: dict[str, int | None] = {}
    for code, name in enumerate(model.names):
        if labels[code] and not pseudo[code]:
            added = int(labels[code]) - given[name]
            first_needed = model.project.needed.get(name)
            needed[name] = None if first_needed is None else max(1, first_needed - added)
    return no_new_labels(needed)


def _class_progress(queue: ReviewQueue, answers: Mapping[int, Answer]) -> list[ClassProgress]:
    """Return for each class its labels, the rows predicted to be of it, and its precision.

    Where pseudo-labels were reviewed, precision is the share of them that was accepted, with an
    interval. It is biased low, since the cards that most need review come first. Elsewhere it is
    the mean confidence of the model.
    """
    model = queue.model
    n_classes = len(model.names)
    checked = np.zeros(n_classes, int)
    right = np.zeros(n_classes, int)
    for answer in answers.values():
        if answer.status == "pseudo" and answer.believed is not None and answer.label is not None:
            code = model.code(answer.believed)
            checked[code] += 1
            right[code] += answer.label == answer.believed
    labels = model.label_counts()
    has_class = model.codes >= 0
    unlabelled = (model.status != Status.LABELLED) & has_class
    believed = np.bincount(model.codes[unlabelled], minlength=n_classes)
    granted = unlabelled & (model.grade >= np.float32(LOWEST_GRADE))
    n_granted = np.bincount(model.codes[granted], minlength=n_classes)
    pseudo_codes = model.codes[queue.mask("pseudo") & has_class]
    n_pseudo = np.bincount(pseudo_codes, minlength=n_classes)
    pseudo = queue.mask("pseudo") & has_class
    confidence = np.bincount(pseudo_codes, model.confidence[pseudo], minlength=n_classes)
    classes: list[ClassProgress] = []
    for code, name in enumerate(model.names):
        if not (labels[code] or believed[code]):
            continue  # a new class that was undone, or one that was renamed
        _, low, high = wilson(int(right[code]), int(checked[code]))
        mean = float(confidence[code] / n_pseudo[code]) if n_pseudo[code] else None
        classes.append(
            {
                "name": name,
                "code": code,
                "labels": int(labels[code]),
                "believed": int(believed[code]),
                "granted": int(n_granted[code]),
                "checked": int(checked[code]),
                "right": int(right[code]),
                "low": round(low or 0.0, 3),
                "high": 1.0 if high is None else round(high, 3),
                "confidence": None if mean is None else round(mean, 3),
            }
        )
    return classes
