"""What the page shows of the whole: what is guaranteed and expected, and what answers brought."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from semigpc.estimator import Status
from semigpc.estimator.answers import (
    FEWEST_EACH,
    FEWEST_LABELS,
    FEWEST_LEFT_OUT,
    labels_suffice,
    wilson,
)
from semigpc.estimator.promise import GRADES
from semigpc.labeling.journal import Answer, History
from semigpc.labeling.project import Project
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
    more; ``confidence`` is the mean confidence of the model in these, or in all labels given out
    where nothing is guaranteed, and None if there are none. Of labels that were given out,
    ``checked`` were reviewed and ``right`` of these accepted, with the interval from ``low`` to
    ``high``.
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
    """By how many the guaranteed labels of other rows changed with the last answers."""

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

    ``expected`` is the share of labels that are expected to be right, ``without`` the number of
    classes of which no new label is guaranteed, and ``target`` the precision from which labels are
    given out, None if a confidence decides.
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
    target: float | None


class _Point(NamedTuple):
    """What holds after some answers, ``single`` of them to one image at a time.

    ``open`` and ``guaranteed`` are masks of rows, packed: those without a label by people, and
    those of them with a label that is guaranteed at GRADE_SHOWN.
    """

    answers: int
    single: int
    open: NDArray[np.uint8]
    guaranteed: NDArray[np.uint8]
    expected: float

    def gain_since(self, before: "_Point") -> int:
        """Return by how many more labels are guaranteed, of the rows that are still open.

        A row that was guaranteed and has been labelled since is no loss.
        """
        earlier = np.unpackbits(before.guaranteed & self.open).sum()
        return int(np.unpackbits(self.guaranteed).sum()) - int(earlier)


class Reward:
    """What was guaranteed and expected after each number of answers, while the page is open."""

    def __init__(self) -> None:
        self._points: list[_Point] = []  # as many as gain and verdict need

    def record(self, queue: ReviewQueue, answers: int, single: int) -> None:
        """Remember what is guaranteed now, unless it is being brought up to date.

        Args:
            answers: rows that have been answered. single: answers to one image at a time.
        """
        model = queue.model
        if model.is_cold or state_of(queue) == "fitting":
            return
        free = (model.known_codes < 0) & (queue.kinds == UNANSWERED)
        guaranteed = free & (model.grade >= np.float32(GRADE_SHOWN))
        masks = np.packbits(free), np.packbits(guaranteed)
        point = _Point(answers, single, *masks, expected_share(queue) or 0.0)
        self._points = [each for each in self._points if each.answers < answers]
        needed = [each for each in self._points if each.single > single - WITHOUT_GAIN]
        self._points = [*self._points[: -len(needed) or None][-1:], *needed, point]

    def gain(self) -> Gain | None:
        """Return what the last answers brought; None before there are any."""
        if len(self._points) < 2:
            return None
        last = self._points[-1]
        first = next(
            each
            for each in self._points
            if each.answers >= last.answers - LAST_ANSWERS or each is self._points[-2]
        )
        return {
            "answers": last.answers - first.answers,
            "labels": last.gain_since(first),
            "precision": GRADE_SHOWN,
        }

    def verdict(self, rows: int) -> str:
        """Return a sentence if the last answers brought nothing, "" otherwise."""
        if not self._points:
            return ""
        last = self._points[-1]
        earlier = [each for each in self._points if each.single <= last.single - WITHOUT_GAIN]
        if not earlier:
            return ""
        before = earlier[-1]
        is_gain = last.gain_since(before) >= max(1.0, LEAST_GAIN * rows)
        if is_gain or last.expected - before.expected >= LEAST_EXPECTED_GAIN:
            return ""
        return (
            f"The last {last.single - before.single} answers brought next to nothing. More of them "
            "will hardly help: check some at random, export, or try another network (--model)."
        )


def target_precision(project: Project) -> float | None:
    """Return the precision from which labels are given out; None if a confidence decides."""
    options = project.settings["options"]
    return None if options["abstain"] is not None else options["target_precision"]


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
        "nothing": "" if cold else _without_guarantee(queue, classes),
        "target": target_precision(model.project),
    }


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
    noun = "rows" if project.images is None else "images"
    counts = queue.model.label_counts()
    if not labels_suffice(total, counts):
        missing = []
        if total < FEWEST_LEFT_OUT:
            missing.append(
                f"{FEWEST_LEFT_OUT} {noun} drawn at random have to be answered ({total} are)"
            )
        if not labels_suffice(FEWEST_LEFT_OUT, counts):
            missing.append(
                f"there have to be {FEWEST_LABELS} labels in all ({counts.sum()} are there) or "
                f"{FEWEST_EACH} of every class"
            )
        note = (
            "Guaranteed at 90 % will mean: at least 90 of 100 such labels are right. For that, "
            f"{', and '.join(missing)}."
        )
    elif given:
        note = (
            f"The guarantee rests on {given} labels that you brought, taken for a random sample of "
            f"their classes, and {random_cards} {noun} that were drawn at random."
        )
    else:
        note = f"The guarantee rests on {random_cards} {noun} that were drawn at random."
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


def _without_guarantee(queue: ReviewQueue, classes: Sequence[ClassProgress]) -> str:
    """Return the sentence on classes without any guaranteed label, with the labels they need."""
    model = queue.model
    if not (model.has_embedding & (model.status != Status.LABELLED)).any():
        return ""
    given = Counter(model.project.given.values())
    needed: dict[str, int | None] = {}
    for each in classes:
        if each["labels"] and not each["granted"]:
            first_needed = model.project.needed.get(each["name"])
            added = each["labels"] - given[each["name"]]
            needed[each["name"]] = None if first_needed is None else max(1, first_needed - added)
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
    by_confidence = target_precision(model.project) is None
    sure = queue.mask("pseudo") & has_class if by_confidence else granted
    n_sure = np.bincount(model.codes[sure], minlength=n_classes)
    confidence = np.bincount(model.codes[sure], model.confidence[sure], minlength=n_classes)
    classes: list[ClassProgress] = []
    for code, name in enumerate(model.names):
        if not (labels[code] or believed[code]):
            continue  # a new class that was undone, or one that was renamed
        _, low, high = wilson(int(right[code]), int(checked[code]))
        mean = float(confidence[code] / n_sure[code]) if n_sure[code] else None
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
