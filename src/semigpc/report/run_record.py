"""Read what a training run left in its folder, finished or not. What is missing or cut off is left
out and reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semigpc.io.atomic import read_json
from semigpc.training.run_files import (
    RunSettings,
    RunSummary,
    SplitFacts,
    check_split,
    check_summary,
    read_metrics,
)

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
BULKY = (
    "confusion",
    "reliability",
)  # kept for the newest evaluation of each part and head only: C x C numbers a line
FILES: dict[str, tuple[Any, Any]] = {
    "config": (RunSettings, None),
    "environment": (dict[str, Any], None),
    "split": (SplitFacts, check_split),
    "summary": (RunSummary, check_summary),
}  # the schema of each file, and a check of what schemas cannot express


@dataclass(frozen=True)
class RunRecord:
    """The files of one run. What is missing or cut off is empty here and named in ``problems``."""

    path: Path
    config: Entry = field(default_factory=dict)
    environment: Entry = field(default_factory=dict)
    split: Entry = field(default_factory=dict)
    summary: Entry = field(default_factory=dict)
    train: Sequence[Entry] = ()
    evals: Sequence[Entry] = ()
    pseudo: Sequence[Entry] = ()
    notes: Sequence[Entry] = ()
    screening: Sequence[Entry] = ()
    problems: Sequence[str] = ()

    @property
    def class_names(self) -> list[str]:
        """Names as in split.json, or numbers where it is missing."""
        return _class_names(self.split, self.evals)

    @property
    def order(self) -> NDArray[np.intp]:
        """Class ids (C,), most labelled first; those with as many labels by their true count among
        the unlabelled.
        """
        nothing = np.zeros(len(self.class_names))
        labelled, true = self.counts("labeled_counts"), self.counts("unlabeled_counts")
        return np.lexsort(
            (-(nothing if true is None else true), -(nothing if labelled is None else labelled))
        )

    @property
    def groups(self) -> dict[str, list[int]]:
        """Class ids of each group that has any."""
        groups = self.summary.get("class_groups") or self.split.get("class_groups") or {}
        return {str(name): [int(c) for c in ids] for name, ids in groups.items() if ids}

    @property
    def head(self) -> str:
        """The head that is judged, whose numbers open the page: by the summary, else by the last
        evaluation.
        """
        last = (self.summary.get("results") or {}).get("last") or {}
        judged = [str(entry["head"]) for entry in self.evals if entry.get("judged")]
        return str(last.get("head") or (judged[-1] if judged else "linear"))

    def counts(self, key: str) -> Floats | None:
        """Return counts (C,) from split.json, or None where they are not known."""
        return per_class(self.split, key, len(self.class_names))

    def curve(self, part: str, head: str) -> list[Entry]:
        """Return the evaluations of one head on one part, by step."""
        return [
            entry for entry in self.evals if entry.get("part") == part and entry.get("head") == head
        ]

    def headline(self) -> Entry | None:
        """Return the last evaluation of the judged head: on the test images if there are any, else
        on the validation ones.
        """
        last = (self.summary.get("results") or {}).get("last") or {}
        for part in (last["part"],) if "part" in last else PARTS:
            if entries := self.curve(part, self.head):
                same_step = not last or last.get("step") == entries[-1]["step"]
                return {**entries[-1], **last} if same_step else last
        return last or None


def read_run(folder: Path, *, bulky: bool = True) -> RunRecord:
    """Read a run folder; ``bulky=False`` leaves out confusion matrices and reliability bins, which
    a comparison never draws.

    Raises:
        FileNotFoundError: if the folder holds neither config.json nor metrics.jsonl.
    """
    if not any((folder / name).is_file() for name in ("config.json", "metrics.jsonl")):
        raise FileNotFoundError(
            f"a run folder holds config.json and metrics.jsonl; {folder} has neither. Give the folder that the run wrote to."
        )
    problems: list[str] = []
    files: dict[str, Any] = {
        name: _read_object(folder / f"{name}.json", problems) for name in FILES
    }
    lines = _read_lines(folder / "metrics.jsonl", problems, bulky=bulky)
    lines = _of_these_classes(files, lines, problems)
    lines.sort(key=lambda entry: int(entry["step"]))
    kinds = {
        "train": "train",
        "evals": "eval",
        "pseudo": "pseudo",
        "notes": "note",
        "screening": "screening",
    }
    entries: dict[str, Any] = {
        name: [entry for entry in lines if entry["kind"] == kind] for name, kind in kinds.items()
    }
    return RunRecord(folder, **files, **entries, problems=problems)


def per_class(entry: Entry, key: str, n_classes: int) -> Floats | None:
    """Return the numbers (C,) an entry holds under ``key``, with nan for null, or None if it does
    not hold C of them.
    """
    values = entry.get(key)
    return None if values is None or len(values) != n_classes else floats(values)


def floats(values: Sequence[float | None]) -> Floats:
    """Turn numbers that may be null into an array with nan."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def series(entries: Sequence[Entry], key: str) -> tuple[Floats, Floats]:
    """Return steps and values of the entries in which ``key`` is a finite number."""
    steps, values = (
        floats([entry["step"] for entry in entries]),
        floats([entry.get(key) for entry in entries]),
    )
    known = np.isfinite(values)
    return steps[known], values[known]


def mean_known(rows: Floats | Sequence[Floats]) -> Floats:
    """Return the mean over the first axis, leaving nan out; nan where there is nothing else."""
    known = np.isfinite(rows).sum(axis=0)
    return np.where(known > 0, np.nansum(rows, axis=0) / np.maximum(known, 1), np.nan)


def _read_object(path: Path, problems: list[str]) -> dict[str, Any]:
    schema, check = FILES[path.stem]
    try:
        return dict(
            read_json(
                path,
                schema,
                error=ValueError,
                remedy="What it would tell is left out.",
                check=check,
            )
        )
    except FileNotFoundError:
        if path.name != "summary.json":  # the page's first line names a missing summary
            problems.append(f"{path.name} is missing; what it would tell is left out.")
    except ValueError as error:
        problems.append(str(error).replace(str(path), path.name))
    return {}


def _read_lines(path: Path, problems: list[str], *, bulky: bool) -> list[dict[str, Any]]:
    """Read the lines of metrics.jsonl. A step measured again after a resume replaces what an
    earlier attempt wrote for it.
    """
    if not path.is_file():
        problems.append("metrics.jsonl is missing; there is nothing to draw over time.")
        return []
    kept: dict[tuple[object, ...], dict[str, Any]] = {}
    newest: dict[tuple[object, object], dict[str, Any]] = {}
    broken = 0
    for line in read_metrics(path):
        if line is None:
            broken += 1
            continue
        entry: dict[str, Any] = dict(line)
        part, head = entry.get("part"), entry.get("head")
        if entry["kind"] == "eval":
            stale = newest.get((part, head), {}) if bulky else entry
            for key in BULKY:
                stale.pop(key, None)
            newest[part, head] = entry
        kept[entry["kind"], entry["step"], part, head, entry.get("message")] = entry
    if broken:
        problems.append(
            f"Unreadable lines of metrics.jsonl, such as a kill leaves at the end, were left out: {broken}."
        )
    return list(kept.values())


def _of_these_classes(
    files: dict[str, Any], lines: list[dict[str, Any]], problems: list[str]
) -> list[dict[str, Any]]:
    """Leave out figures for another number of classes than the split has, which come from another
    run.
    """
    n = len(_class_names(files["split"], lines))

    def fits(entry: Entry) -> bool:
        return all(len(entry[key]) == n for key in PER_CLASS if entry.get(key) is not None)

    fitting = [entry for entry in lines if fits(entry)]
    if len(fitting) < len(lines):
        problems.append(
            f"metrics.jsonl has {len(lines) - len(fitting)} lines with figures that are not for the {n} classes of split.json; "
            "they are left out. Are both of the same run?"
        )
    groups = files["summary"].get("class_groups") or {}
    results = [result for result in (files["summary"].get("results") or {}).values() if result]
    if any(c >= n for ids in groups.values() for c in ids) or not all(
        fits(result) for result in results
    ):
        problems.append(f"summary.json is not about the {n} classes of split.json; it is left out.")
        files["summary"] = {}
    return fitting


def _class_names(split: Entry, lines: Sequence[Entry]) -> list[str]:
    if names := split.get("class_names"):
        return [str(name) for name in names]
    sizes = [len(entry["per_class_recall"]) for entry in lines if entry.get("per_class_recall")]
    return [str(c) for c in range(sizes[-1] if sizes else 0)]
