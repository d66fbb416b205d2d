"""Read a comparison: its cells, how each is drawn wherever it appears, and what its runs have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.files import Count, FileError, read_json
from semigpc.report.run_folder import LOOSE, Entry, Figures, Floats, RunFolder, floats, read_run, series

# Each algorithm has a hue and a mark of its own, and so has one with an add-on. Its plain form is light and dashed, with
# SemiGPC it is dark and solid.
HUES = {
    "fixmatch": ("#0072B2", "#56B4E9", "o"),
    "simmatch": ("#C84E00", "#F0A35C", "s"),
    "comatch": ("#008F68", "#5CC9A7", "^"),
    "freematch": ("#A23B92", "#D58FCB", "D"),
    "remixmatch": ("#9A7400", "#D9B84A", "v"),
    "supervised": ("#666666", "#A3A3A3", "P"),
}
SPARE = (("#4B56C8", "#A2A9EE", "X"), ("#B03052", "#E795AB", "*"), ("#00808F", "#68C4D0", "<"), ("#6E5A3C", "#B8A487", ">"))
PLAIN, REFINED = ("none", ""), ("gp",)


class Run(TypedDict, total=False):
    """One seed of a method."""

    seed: Count | None
    folder: str | None
    result: Figures | None


class Named(TypedDict):
    """A method."""

    name: str


class Method(Named, total=False):
    """A method, and what it was made of."""

    algorithm: str | None
    addon: str | None
    refiner: str | None
    label: str | None
    runs: list[Run] | None
    mean: dict[str, float | None] | None
    std: dict[str, float | None] | None


@with_config(LOOSE)
class Record(TypedDict, total=False):
    """``comparison.json``."""

    title: str | None
    command: str | None
    metric: str | None
    seeds: list[Count] | None
    cells: list[Method] | None
    pairs: list[dict[str, Any]] | None
    baseline: str | None


@dataclass(frozen=True)
class Cell:
    """One method of a comparison: its entry in comparison.json, the runs whose folders could be read, and its looks."""

    record: Entry
    runs: Sequence[tuple[Entry, RunFolder]]
    colour: str
    dashes: Any
    marker: str

    @property
    def name(self) -> str:
        return str(self.record["name"])

    @property
    def label(self) -> str:
        return str(self.record.get("label") or self.name)

    @property
    def algorithm(self) -> str:
        """Its name, with the add-on's if there is one."""
        return base_of(self.record)

    @property
    def line(self) -> dict[str, Any]:
        """How matplotlib is to draw the cell."""
        return {"color": self.colour, "linestyle": self.dashes, "linewidth": 1.9}

    def results(self) -> list[Entry]:
        """The result of each seed that has one."""
        return [run["result"] for run in self.record.get("runs") or [] if run.get("result")]

    def mean_per_class(self, key: str, n_classes: int) -> Floats | None:
        """Mean over seeds (C,) of what the results hold under ``key``; nan where no seed knows."""
        found = [floats(values) for result in self.results() if (values := result.get(key)) and len(values) == n_classes]
        return mean_of(found) if found else None

    def over_steps(self, pick: Callable[[Entry, RunFolder], Sequence[Entry]], key: str) -> tuple[Floats, Floats] | None:
        """Steps (S,) that all runs share, and the values (runs, S) of ``key`` in the entries that ``pick`` finds."""
        curves = [series(pick(result, run), key) for result, run in self.runs]
        found = [dict(zip(steps.tolist(), values.tolist(), strict=True)) for steps, values in curves if len(steps)]
        shared = sorted(set.intersection(*map(set, found))) if found else []
        return (np.array(shared), np.array([[curve[step] for step in shared] for curve in found])) if shared else None


@dataclass(frozen=True)
class Comparison:
    """The contents of a comparison folder; ``reference`` is a run that tells of the classes."""

    path: Path
    record: Entry
    cells: Sequence[Cell]
    reference: RunFolder
    problems: Sequence[str]

    @property
    def metric(self) -> str:
        return str(self.record.get("metric") or "balanced_accuracy")

    def groups(self, most: int = 6) -> list[tuple[str, list[Cell]]]:
        """The cells in one panel, or, if there are too many to tell apart, in one panel for each algorithm."""
        if len(self.cells) <= most:
            return [("", list(self.cells))]
        algorithms = dict.fromkeys(cell.algorithm for cell in self.cells)
        return [(name, [cell for cell in self.cells if cell.algorithm == name]) for name in algorithms]


def read_comparison(folder: Path) -> Comparison:
    """Read a comparison folder and whatever its runs have left.

    Raises:
        FileNotFoundError: if there is no comparison.json.
        FileError: if comparison.json is not what a comparison writes.
    """
    path = folder / "comparison.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"a comparison folder holds comparison.json; {folder} does not. Give the folder that the comparison wrote to."
        )
    record: Entry = read_json(path, Record, error=FileError, remedy="Run the comparison again.")
    problems: list[str] = []
    entries = record.get("cells") or []
    hues = dict(HUES)
    for algorithm in map(base_of, entries):
        hues.setdefault(algorithm, SPARE[(len(hues) - len(HUES)) % len(SPARE)])
    cells = [_cell(folder, entry, hues, problems) for entry in entries]
    return Comparison(folder, record, cells, _reference(folder, cells), problems)


def base_of(entry: Entry) -> str:
    """What a refiner is put on, as in "fixmatch" or "fixmatch+darp"."""
    algorithm, addon = str(entry.get("algorithm") or entry["name"].split("+")[0]), entry.get("addon") or "none"
    return algorithm if addon == "none" else f"{algorithm}+{addon}"


def mean_of(rows: Sequence[Floats]) -> Floats:
    """Mean (C,) of rows (C,), leaving nan out; nan where there is nothing else."""
    stacked = np.stack(rows)
    known = np.isfinite(stacked).sum(axis=0)
    return np.where(known > 0, np.nansum(stacked, axis=0) / np.maximum(known, 1), np.nan)


def _cell(folder: Path, entry: Entry, hues: dict[str, tuple[str, str, str]], problems: list[str]) -> Cell:
    runs: list[tuple[Entry, RunFolder]] = []
    missing: list[str] = []
    for run in entry.get("runs") or []:
        try:
            runs.append((run.get("result") or {}, read_run(folder / str(run.get("folder") or ""), bulky=False)))
        except FileNotFoundError:
            missing.append(str(run.get("seed")))
    if missing:
        problems.append(f"The files of {entry['name']} for seed {', '.join(missing)} are missing: its curves leave them out.")
    refiner = str(entry.get("refiner") or "")
    dark, light, marker = hues[base_of(entry)]
    if refiner in REFINED:
        return Cell(entry, runs, dark, "-", marker)
    if refiner in PLAIN:
        return Cell(entry, runs, light, (0, (4, 1.6)), marker)
    middle = to_hex(tuple(np.mean([to_rgb(dark), to_rgb(light)], axis=0).tolist()))
    return Cell(entry, runs, middle, (0, (6, 1.6, 1.2, 1.6)), marker)


def _reference(folder: Path, cells: Sequence[Cell]) -> RunFolder:
    """A run with a split; else one that only knows how many classes there are."""
    for cell in cells:
        for _, run in cell.runs:
            if run.split.get("class_names"):
                return run
    lengths = [len(result["per_class_recall"]) for cell in cells for result in cell.results() if result.get("per_class_recall")]
    names = [str(c) for c in range(max(lengths, default=0))]
    return RunFolder(folder, {}, {}, {"class_names": names}, {})
