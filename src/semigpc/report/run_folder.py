"""Read what a training run left in its folder, finished or not."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Entry = Mapping[str, Any]
Floats = NDArray[np.float64]
HEADS = ("linear", "gp")
PARTS = ("test", "validation")
BULKY = ("confusion", "reliability")  # kept for the newest evaluation of each part and head only: C x C numbers a line


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
        """The last evaluation of the headline head: on the test pictures if there are any, else on the validation ones."""
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
    parts = {name: _read_object(folder / f"{name}.json", problems) for name in ("config", "environment", "split", "summary")}
    lines = _read_metrics(folder / "metrics.jsonl", problems, bulky=bulky)
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
    """Return the numbers (C,) an entry holds under ``key``, with nan for null, or None if it holds none."""
    values = entry.get(key)
    if values is None:
        return None
    if len(values) != n_classes:
        raise ValueError(
            f"{key} must have one number for each of the {n_classes} classes; got {len(values)} at step {entry.get('step')}. "
            "Check that split.json and metrics.jsonl come from the same run."
        )
    return floats(values)


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
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if path.name != "summary.json":  # the page's first line speaks of the summary
            problems.append(f"{path.name} is missing; what it would tell is left out.")
        return {}
    except ValueError:
        problems.append(f"{path.name} is not whole JSON, perhaps cut off by a kill; what it would tell is left out.")
        return {}
    if not isinstance(found, dict):
        problems.append(f"{path.name} holds a {type(found).__name__} where an object is expected; it is left out.")
        return {}
    return found


def _read_metrics(path: Path, problems: list[str], *, bulky: bool) -> list[dict[str, Any]]:
    """Read line by line. A step measured again after a resume replaces what an earlier attempt wrote for it."""
    if not path.is_file():
        problems.append("metrics.jsonl is missing; there is nothing to draw over time.")
        return []
    kept: dict[tuple[object, ...], dict[str, Any]] = {}
    newest: dict[tuple[object, object], dict[str, Any]] = {}
    broken = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            entry = _parse(line)
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


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "kind" in entry and isinstance(entry.get("step"), int) else None
