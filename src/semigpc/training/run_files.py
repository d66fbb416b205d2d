"""The files of a training run as JSON: what ``config.json``, ``split.json``, ``metrics.jsonl`` and
``summary.json`` hold.

Training writes these files and reads them back to resume or use a run; reports draw whatever is
there. Both use the schemas of this module. Few keys are required by a schema, since a run may have
been cut off or written by another version; the checks take the keys that a caller cannot do
without. Keys that are not named here are let through.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from semigpc.io.atomic import Count, FileFacts, Sha256, Share, parse, shown, validated
from semigpc.io.errors import FileError

# in size, of a number that can be drawn; NaN and infinity are what a run that diverged has written
LARGEST = 1e30
LOOSE = ConfigDict(strict=True, extra="allow")

Numbers = list[float | None]
Head = Literal["linear", "gp"]


class ReliabilityBins(TypedDict):
    """A reliability diagram; ``confidence`` and ``accuracy`` are None in bins without images."""

    edges: Annotated[list[float], Field(min_length=2)]
    confidence: Numbers
    accuracy: Numbers
    count: list[Count]


@with_config(LOOSE)
class Figures(TypedDict, total=False):
    """The figures of one evaluation, of C classes; those that no image speaks for are None."""

    part: Literal["test", "validation"]
    head: Head
    judged: bool
    temperature: float
    message: str
    n: Count | None
    top1: Share | None
    balanced_accuracy: Share | None
    macro_f1: Share | None
    ece: Share | None
    groups: dict[str, Share | None] | None
    per_class_recall: Numbers | None
    per_class_precision: Numbers | None
    per_class_coverage: Numbers | None
    believed_counts: Numbers | None
    accepted_counts: Numbers | None
    true_counts: Numbers | None
    confusion: list[list[Count]] | None
    reliability: ReliabilityBins | None


@with_config(LOOSE)
class MetricsLine(Figures):
    """One line of ``metrics.jsonl``, of the kind "train", "eval", "pseudo", "screening" or "note"."""

    kind: str
    step: Count


Results = dict[str, MetricsLine | None]  # "last", "best_on_validation" and "best_on_test"


@with_config(LOOSE)
class RunSettings(TypedDict, total=False):
    """``config.json``: an experiment as plain values."""

    data: dict[str, Any]
    algorithm: dict[str, Any]
    addon: dict[str, Any]
    refiner: dict[str, Any]
    train: dict[str, Any]


@with_config(LOOSE)
class SplitFacts(TypedDict, total=False):
    """``split.json``: classes, counts (C,) of each part where they are known, and the hash of the
    split.
    """

    class_names: list[str]
    labeled_counts: list[Count] | None
    validation_counts: list[Count] | None
    test_counts: list[Count] | None
    unlabeled: Count
    unlabeled_counts: list[Count] | None
    sha256: Sha256
    notes: list[str]
    class_groups: dict[str, list[Count]] | None


@with_config(LOOSE)
class RunSummary(TypedDict, total=False):
    """``summary.json``: how a run ended; ``label`` is the method's name for people.

    ``head`` is the one that is judged and that predicts, ``temperatures`` scale the confidence of
    each head.
    """

    label: str
    status: Literal["finished", "stopped"]
    step: Count | None
    seconds: Annotated[float, Field(ge=0, le=LARGEST)] | None
    results: Results | None
    head: Head | None
    temperatures: dict[str, float]
    class_groups: dict[str, list[Count]] | None
    gp: dict[str, Any] | None
    files: dict[str, FileFacts]


def check_split(split: Mapping[str, Any], *, required: Collection[str] = ()) -> None:
    """Raise a ValueError for a ``split.json`` whose parts do not fit each other, or which lacks a
    required key.
    """
    _require(split, required)
    names = split.get("class_names")
    if names is None:
        return
    if not 0 < len(names) == len(set(names)):
        raise ValueError(f"class_names must be different names; got {shown(names)}")
    for key in ("labeled_counts", "validation_counts", "test_counts", "unlabeled_counts"):
        if (counts := split.get(key)) is not None and len(counts) != len(names):
            raise ValueError(
                f"{key} must have one number for each of {len(names)} classes; got {shown(counts)}"
            )
    for name, classes in (split.get("class_groups") or {}).items():
        if any(number >= len(names) for number in classes):
            raise ValueError(
                f"class_groups.{name} must be below {len(names)}, the number of classes; got {shown(classes)}"
            )


def check_summary(
    summary: Mapping[str, Any], *, required: Collection[str] = (), figures: Collection[str] = ()
) -> None:
    """Raise a ValueError for a ``summary.json`` that lacks a required key, or one of the required
    figures in a result.
    """
    _require(summary, required)
    for name, result in (summary.get("results") or {}).items():
        if result is not None:
            _require(result, figures, f"results.{name}.")
            check_figures(result, f"results.{name}.")


def read_metrics(path: Path) -> Iterator[MetricsLine | None]:
    """Yield the lines of ``metrics.jsonl``, None for each that cannot be used; empty lines are
    passed over.
    """
    with path.open("rb") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                yield validated(parse(line, path), MetricsLine, path, check_figures)
            except FileError:
                yield None


def check_figures(figures: Mapping[str, Any], where: str = "") -> None:
    """Raise a ValueError for an evaluation that cannot be drawn: lists that do not fit each other,
    or text for a number.
    """
    for key, value in figures.items():
        if key not in MetricsLine.__annotations__ and not all(
            _is_number(leaf) for leaf in _leaves(value)
        ):
            raise ValueError(f"{where}{key} must be a number, or numbers")
    confusion, bins = figures.get("confusion") or [], figures.get("reliability")
    if any(len(row) != len(confusion) for row in confusion):
        raise ValueError(f"{where}confusion must have as many columns as rows")
    if bins and not len(bins["edges"]) - 1 == len(bins["confidence"]) == len(
        bins["accuracy"]
    ) == len(bins["count"]):
        raise ValueError(f"{where}reliability must have one number for each bin")


def _require(content: Mapping[str, Any], keys: Collection[str], where: str = "") -> None:
    for key in keys:
        if content.get(key) is None:
            raise ValueError(f"{where}{key} is missing")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


def _is_number(value: Any) -> bool:
    return value is None or (
        isinstance(value, int | float) and not LARGEST < abs(value) < float("inf")
    )
