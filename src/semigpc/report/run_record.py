"""Read what a training run left in its folder, finished or not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from semigpc.files import Count, FileError, Share, parse, read_json, validated

Entry = Mapping[str, Any]
Floats = NDArray[np.float64]
HEADS = ("linear", "gp")
PARTS = ("test", "validation")
PER_CLASS = (
    "per_class_recall",
    "per_class_precision",
    "per_class_coverage",
    "believed_counts",
    "accepted_counts",
    "true_counts",
    "confusion",
)  # keys of a line that have one entry for each class
BULKY = ("confusion", "reliability")  # kept for the newest evaluation of each part and head only: C x C numbers a line
LARGEST = 1e30  # of a number that can be drawn
LOOSE = ConfigDict(strict=True, extra="allow")  # NaN is what a run that diverged has written


# Schemas: all that may be drawn, none of which needs to be there --------------------------------------------------------

Numbers = list[float | None]


class Bins(TypedDict):
    """Of a reliability diagram."""

    edges: Annotated[list[float], Field(min_length=2)]
    confidence: Numbers
    accuracy: Numbers
    count: list[Count]


@with_config(LOOSE)
class Figures(TypedDict, total=False):
    """An evaluation, or another line of ``metrics.jsonl``."""

    part: str
    head: str
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
    confusion: list[list[float]] | None
    reliability: Bins | None


@with_config(LOOSE)
class Line(Figures):
    """A line of ``metrics.jsonl``."""

    kind: str
    step: Count


@with_config(LOOSE)
class Config(TypedDict, total=False):
    """``config.json``."""

    data: dict[str, Any]
    algorithm: dict[str, Any]
    addon: dict[str, Any]
    refiner: dict[str, Any]
    train: dict[str, Any]


@with_config(LOOSE)
class Split(TypedDict, total=False):
    """``split.json``."""

    class_names: list[str]
    labeled_counts: list[Count] | None
    unlabeled_counts: list[Count] | None
    validation_counts: list[Count] | None
    test_counts: list[Count] | None
    class_groups: dict[str, list[Count]] | None


@with_config(LOOSE)
class Summary(TypedDict, total=False):
    """``summary.json``."""

    status: str
    step: Count | None
    seconds: Annotated[float, Field(ge=0, le=LARGEST)] | None
    results: dict[str, Line | None] | None
    class_groups: dict[str, list[Count]] | None
    gp: dict[str, Any] | None


SCHEMAS: dict[str, Any] = {"config": Config, "environment": dict[str, Any], "split": Split, "summary": Summary}


def _check(found: Any) -> None:
    """What schemas cannot say: lists go with each other, and whatever else a line has is a number."""
    names = found.get("class_names")
    for key in ("labeled_counts", "unlabeled_counts", "validation_counts", "test_counts") if names is not None else ():
        if found.get(key) is not None and len(found[key]) != len(names):
            raise ValueError(f"{key} must have one number for each of {len(names)} classes; got {len(found[key])}")
    for result in (found.get("results") or {}).values():
        check_figures(result or {})


def check_figures(found: Mapping[str, Any]) -> None:
    """Refuse an evaluation that cannot be drawn, by a ValueError."""
    for key, value in found.items():
        if key not in Line.__annotations__ and not all(_is_number(one) for one in _leaves(value)):
            raise ValueError(f"{key} must be a number, or numbers")
    confusion, bins = found.get("confusion") or [], found.get("reliability")
    if any(len(row) != len(confusion) for row in confusion):
        raise ValueError("confusion must have as many columns as rows")
    if bins and not len(bins["edges"]) - 1 == len(bins["confidence"]) == len(bins["accuracy"]) == len(bins["count"]):
        raise ValueError("reliability must have one number for each bin")


def _leaves(value: Any) -> Iterator[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _leaves(one)
    if not isinstance(value, dict | list):
        yield value


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not LARGEST < abs(value) < float("inf"))


# Reading --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunFolder:
    """The files of one run. What is missing or cut off is empty here and named in ``problems``."""

    path: Path
    config: Entry
    environment: Entry
    split: Entry
    summary: Entry
    train: Sequence[Entry] = ()
    evals: Sequence[Entry] = ()
    pseudo: Sequence[Entry] = ()
    notes: Sequence[Entry] = ()
    screening: Sequence[Entry] = ()
    problems: Sequence[str] = field(default=())

    @property
    def class_names(self) -> list[str]:
        """Names as in split.json, or numbers where it is missing."""
        if names := self.split.get("class_names"):
            return [str(name) for name in names]
        sizes = [len(entry["per_class_recall"]) for entry in self.evals if entry.get("per_class_recall")]
        return [str(c) for c in range(sizes[-1] if sizes else 0)]

    @property
    def order(self) -> NDArray[np.intp]:
        """Class ids (C,), most labelled first; those with as many labels by their true count among the unlabelled."""
        nothing = np.zeros(len(self.class_names))
        labelled, true = self.counts("labeled_counts"), self.counts("unlabeled_counts")
        return np.lexsort((-(nothing if true is None else true), -(nothing if labelled is None else labelled)))

    @property
    def groups(self) -> dict[str, list[int]]:
        """Class ids of each group that has any."""
        known = self.summary.get("class_groups") or self.split.get("class_groups") or {}
        return {str(name): [int(c) for c in ids] for name, ids in known.items() if ids}

    @property
    def head(self) -> str:
        """The head whose numbers open the page: the summary's, else the one the refiner asks for, if it was measured."""
        last = (self.summary.get("results") or {}).get("last") or {}
        refiner = self.config.get("refiner") or {}
        wanted = reversed(HEADS) if refiner.get("eval_head") == "gp" or refiner.get("role") == "classifier" else HEADS
        measured = [str(entry.get("head")) for entry in self.evals]
        return str(last.get("head") or next((head for head in wanted if head in measured), "linear"))

    def counts(self, key: str) -> Floats | None:
        """Counts (C,) from split.json, or None where they are not known."""
        return per_class(self.split, key, len(self.class_names))

    def curve(self, part: str, head: str) -> list[Entry]:
        """Evaluations of one head on one part, by step."""
        return [entry for entry in self.evals if entry.get("part") == part and entry.get("head") == head]

    def headline(self) -> Entry | None:
        """The last evaluation of the headline head: on the test images if there are any, else on the validation ones."""
        last = (self.summary.get("results") or {}).get("last") or {}
        for part in (last["part"],) if "part" in last else PARTS:
            if entries := self.curve(part, self.head):
                same_step = not last or last.get("step") == entries[-1]["step"]
                return {**entries[-1], **last} if same_step else last
        return last or None


def read_run(folder: Path, *, bulky: bool = True) -> RunFolder:
    """Read a run folder; ``bulky=False`` leaves out confusion matrices and reliability bins, which a comparison never draws.

    Raises:
        FileNotFoundError: if the folder holds neither config.json nor metrics.jsonl.
    """
    if not any((folder / name).is_file() for name in ("config.json", "metrics.jsonl")):
        raise FileNotFoundError(
            f"a run folder holds config.json and metrics.jsonl; {folder} has neither. Give the folder that the run wrote to."
        )
    problems: list[str] = []
    parts = {name: _read_object(folder / f"{name}.json", problems) for name in SCHEMAS}
    lines = _read_metrics(folder / "metrics.jsonl", problems, bulky=bulky)
    _leave_out_other_classes(parts, lines, problems)
    lines.sort(key=lambda entry: int(entry["step"]))
    kinds = {
        kind: [entry for entry in lines if entry["kind"] == kind] for kind in ("train", "eval", "pseudo", "note", "screening")
    }
    return RunFolder(
        folder,
        **parts,
        train=kinds["train"],
        evals=kinds["eval"],
        pseudo=kinds["pseudo"],
        notes=kinds["note"],
        screening=kinds["screening"],
        problems=problems,
    )


def per_class(entry: Entry, key: str, n_classes: int) -> Floats | None:
    """Return the numbers (C,) an entry holds under ``key``, with nan for null, or None if it does not hold C of them."""
    values = entry.get(key)
    return None if values is None or len(values) != n_classes else floats(values)


def floats(values: Sequence[float | None]) -> Floats:
    """Turn numbers that may be null into an array with nan."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def series(entries: Sequence[Entry], key: str) -> tuple[Floats, Floats]:
    """Steps and values of the entries in which ``key`` is a finite number."""
    steps, values = floats([entry["step"] for entry in entries]), floats([entry.get(key) for entry in entries])
    known = np.isfinite(values)
    return steps[known], values[known]


def _read_object(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = read_json(
            path, SCHEMAS[path.stem], error=ValueError, remedy="What it would tell is left out.", check=_check
        )
    except FileNotFoundError:
        if path.name != "summary.json":  # the page's first line speaks of the summary
            problems.append(f"{path.name} is missing; what it would tell is left out.")
        return {}
    except ValueError as error:
        problems.append(str(error).replace(str(path), path.name))
        return {}
    return found


def _leave_out_other_classes(parts: dict[str, dict[str, Any]], lines: list[dict[str, Any]], problems: list[str]) -> None:
    """Figures for another number of classes than the split has are of another run."""
    names = parts["split"].get("class_names")
    if names is None:
        sizes = [len(entry["per_class_recall"]) for entry in lines if entry.get("per_class_recall")]
        names = range(sizes[-1]) if sizes else ()

    def fits(entry: Mapping[str, Any]) -> bool:
        lists = [entry[key] for key in PER_CLASS if entry.get(key) is not None]
        return all(isinstance(values, list) and len(values) == len(names) for values in lists)

    odd = [entry for entry in lines if not fits(entry)]
    if odd:
        problems.append(
            f"metrics.jsonl has {len(odd)} lines with figures that are not for the {len(names)} classes of split.json; they "
            "are left out. Are both of the same run?"
        )
        lines[:] = [entry for entry in lines if fits(entry)]
    groups = parts["summary"].get("class_groups") or parts["split"].get("class_groups") or {}
    results = [result for result in (parts["summary"].get("results") or {}).values() if result]
    if any(c >= len(names) for ids in groups.values() for c in ids) or not all(fits(result) for result in results):
        problems.append(f"summary.json is not about the {len(names)} classes of split.json; it is left out.")
        parts["summary"] = {}
        parts["split"].pop("class_groups", None)


def _read_metrics(path: Path, problems: list[str], *, bulky: bool) -> list[dict[str, Any]]:
    """Read line by line. A step measured again after a resume replaces what an earlier attempt wrote for it."""
    if not path.is_file():
        problems.append("metrics.jsonl is missing; there is nothing to draw over time.")
        return []
    kept: dict[tuple[object, ...], dict[str, Any]] = {}
    newest: dict[tuple[object, object], dict[str, Any]] = {}
    broken = 0
    with path.open("rb") as lines:
        for line in lines:
            entry = _parse(line, path)
            if entry is None:
                broken += bool(line.strip())
                continue
            part, head = entry.get("part"), entry.get("head")
            if entry["kind"] == "eval":
                stale = newest.get((part, head), {}) if bulky else entry
                for key in BULKY:
                    stale.pop(key, None)
                newest[part, head] = entry
            kept[entry["kind"], entry["step"], part, head, entry.get("message")] = entry
    if broken:
        problems.append(f"Unreadable lines of metrics.jsonl, such as a kill leaves at the end, were left out: {broken}.")
    return list(kept.values())


def _parse(line: bytes, path: Path) -> dict[str, Any] | None:
    try:
        entry = validated(parse(line, path), Line, path, check_figures)
        return dict(entry)
    except FileError:
        return None
