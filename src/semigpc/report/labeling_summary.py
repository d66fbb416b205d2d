"""What ``summary.json`` of a labelled folder holds: one record, for the page and for programs."""

from typing import NotRequired, TypedDict

from semigpc.gp.certainty import ReliabilityBins


class Suspect(TypedDict):
    """A given label that the other labels contradict, with both probabilities by the others."""

    row: int
    given: str
    believed: str
    p_given: float
    p_believed: float
    variance: float


class NamedSuspect(Suspect):
    """A suspect with the id of its row."""

    id: str


class CopyGroup(TypedDict):
    """Labelled rows that are copies of each other, and the label of each."""

    ids: list[str]
    labels: list[str]


class Outlier(TypedDict):
    """A row unlike everything labelled, with its most probable class."""

    id: str
    label: str
    confidence: float
    variance: float


class GradeFacts(TypedDict):
    """A precision, and the labels for which it or a higher one is guaranteed.

    ``labels`` is their number, ``classes`` (C,) that of each class, and ``expected`` the share of
    them that is expected to be right; None if there are none.
    """

    precision: float
    labels: int
    classes: list[int]
    expected: float | None


class PromiseFacts(TypedDict):
    """What is promised about the new labels.

    ``target`` was requested and holds with ``probability``. ``grades`` has the highest precision
    first. ``reach`` is how many labels would have that precision by expectation, without a
    guarantee. ``labels`` is the number of given ones, ``without`` are the classes that got no new
    label, and ``needed`` is how many more labels each of them needs.
    """

    target: float
    probability: float
    per_class: bool
    grades: list[GradeFacts]
    reach: int
    labels: int
    without: list[str]
    needed: dict[str, int]


class Accepted(TypedDict):
    """Coverage and precision, with its 95% interval, of the labels that reach a threshold."""

    threshold: float
    accepted: int
    coverage: float
    precision: float | None
    low: float | None
    high: float | None


class Accuracy(TypedDict):
    """A share of held-out labels with its 95% interval, and its deviation over the folds."""

    value: float | None
    low: float | None
    high: float | None
    std: float


# Recall and precision of a class on held-out labels; None for a class that was never held out.
ClassEvidence = TypedDict(
    "ClassEvidence",
    {
        "class": str,
        "given": int,
        "held_out": int,
        "believed": int,
        "recall": float | None,
        "recall_low": float | None,
        "recall_high": float | None,
        "precision": float | None,
        "precision_low": float | None,
        "precision_high": float | None,
    },
)


class Confusion(TypedDict):
    """How often, and for what share of its class, a held-out label was taken for another."""

    true: str
    believed: str
    count: int
    share: float


class Method(TypedDict):
    """A method on the same folds; accuracies are None if it failed, and ``failed`` says why."""

    name: str
    title: str
    uses_unlabeled: bool
    accuracy: float | None
    accuracy_std: float | None
    balanced_accuracy: float | None
    balanced_accuracy_std: float | None
    seconds: float
    failed: str | None
    remarks: list[str]


class Evidence(TypedDict):
    """The result of cross-validation: ``semigpc.labeling.evidence`` makes it."""

    folds: int
    seed: int
    labels: int
    used: int
    held_out: int
    never_held_out: list[str]
    hyper_parameters: str
    weighted: bool
    accuracy: Accuracy
    balanced_accuracy: Accuracy
    per_class: list[ClassEvidence]
    curve: list[Accepted]
    chosen: Accepted
    reliability: ReliabilityBins
    ece: float
    confusions: list[Confusion]
    suspects: list[Suspect]
    preparation: str
    peers: list[Method]
    seconds: float


class LabelingSummary(TypedDict):
    """``summary.json``, for C classes.

    Attributes:
        title: heading of the page. data: what was labelled, as the user named it.
        rows, width: of the data. unlabelled: rows with an embedding and without a given label.
        id_name: of the ids. rows_noun: "rows", or "images".
        classes: (C,) names in the model's order. given: (C,) given labels. pseudo: (C,) new labels.
        believed: (C,) shares of the classes among the rows without a given label.
        statuses: number of rows by status.
        threshold: confidence below which no label is given, averaged over the classes.
        target_precision: that was requested. promise: None if none was, or nothing was to label.
        model: hyper-parameters, in the order to show them. settings: options of the command.
        notes: sentences that the reader should see first.
        outliers: the farthest first; at most as many as the page lists.
        suspects: the most suspicious first.
        copies: those with different labels first.
        evidence: None if nothing was held out. why_none: the reason, in a sentence.
        seconds: that labelling took. engine, partitions: of labelling on Ray.
    """

    title: str
    data: str
    rows: int
    unlabelled: int
    width: int
    id_name: str
    rows_noun: str
    classes: list[str]
    given: list[int]
    pseudo: list[int]
    believed: list[float]
    statuses: dict[str, int]
    threshold: float
    target_precision: float | None
    promise: PromiseFacts | None
    model: dict[str, float | str]
    settings: dict[str, float | str | None]
    notes: list[str]
    outliers: list[Outlier]
    suspects: list[NamedSuspect]
    copies: list[CopyGroup]
    evidence: Evidence | None
    why_none: str
    seconds: NotRequired[float]
    engine: NotRequired[str]
    partitions: NotRequired[int]
