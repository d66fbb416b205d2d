"""Several experiments on the same splits and seeds: run them, then compare them seed by seed."""

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Required, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.algorithms import ALGORITHMS
from semigpc.data import Splits
from semigpc.data.dataset import ImageSet
from semigpc.io.atomic import Count, Sha256, altered, locked, write_json
from semigpc.io.errors import RunError
from semigpc.io.threads import granted, hold
from semigpc.training.experiment import Experiment
from semigpc.training.loop import train
from semigpc.training.metrics import (
    CLASS_GROUPS,
    FIGURES,
    LOOSE,
    METRIC,
    Figures,
    Part,
    classification_metrics,
)
from semigpc.training.processes import Stopped
from semigpc.training.run_folder import (
    REDO_SUMMARY,
    MetricsLine,
    RunFolder,
    RunSummary,
    evaluated,
    judged_result,
    read_run_json,
)
from semigpc.training.run_log import Listener
from semigpc.training.state import DataCache, Progress

NO_REFINER = "none"  # the refiner that others are compared with
BASELINE = "supervised+none"
REPORT_EVERY = 10  # steps between messages of a run in another process
_CACHE = DataCache()  # of a worker process, which lives as long as its comparison


@dataclass(frozen=True)
class Cell:
    """One row of a comparison: an experiment, run with every seed."""

    experiment: Experiment
    label: str

    @property
    def name(self) -> str:
        """As in "simmatch+gp", or "simmatch+darp+gp" with an add-on."""
        addon = self.experiment.addon_name
        between = "" if addon == "none" else f"{addon}+"
        return f"{self.experiment.algorithm_name}+{between}{self.experiment.refiner_name}"


# From the splits of a seed, the images to judge (M), the seed and what receives progress, to
# probabilities (M, C) and the seconds that are to be shown.
Answer: TypeAlias = Callable[[Splits, ImageSet, int, Progress], tuple[NDArray[Any], float]]


@dataclass(frozen=True)
class Untrained:
    """A row of a comparison that no network is trained for, on the splits of the other rows.

    Args:
        name: of its folder. label: for people.
        settings: what its answers depend on besides the splits, as JSON has them.
        answer: see :data:`Answer`.
    """

    name: str
    label: str
    settings: Mapping[str, str | int | None]
    answer: Answer


# comparison.json ----------------------------------------------------------------------------------


class RunEntry(TypedDict, total=False):
    """One seed of a method: its run's folder, and the result of what the run stands for.

    Nothing has a folder where nothing was trained.
    """

    seed: Count
    folder: str
    result: Figures
    seconds: float | None


class MethodEntry(TypedDict, total=False):
    """A method and its figures; ``rank`` is its algorithm's place in the registry."""

    name: Required[str]
    algorithm: str
    addon: str | None
    refiner: str
    label: str
    rank: Count | None
    runs: list[RunEntry]
    mean: dict[str, float | None]
    std: dict[str, float | None] | None


PairEntry = TypedDict(
    "PairEntry",
    {
        "name": str,
        "with": str,
        "without": str,
        "mean_difference": float,
        "std": float,
        "differences": list[float],
        "wins": Count,
        "losses": Count,
    },
)  # a refined method minus its base; "with" is no name of an attribute


@with_config(LOOSE)
class ComparisonRecord(TypedDict, total=False):
    """``comparison.json``; ``baseline`` is the method that learns from labels alone, if any.

    ``untrained_pairs`` are rows that nothing was trained for minus that method.
    """

    title: str
    command: str
    metric: str
    seeds: list[Count]
    cells: list[MethodEntry]
    pairs: list[PairEntry]
    untrained_pairs: list[PairEntry]
    baseline: str | None


class UntrainedRecord(TypedDict):
    """``result.json`` of an untrained row and a seed; ``split`` is the hash of the splits."""

    split: Sha256
    settings: dict[str, str | int | None]
    seconds: float
    result: Figures


class MethodFigures(TypedDict):
    """A method in short: percent per seed, and of each class group on average."""

    label: str
    balanced_accuracy: list[float]
    groups: dict[str, float | None]
    seconds: float


class ComparisonFigures(TypedDict):
    """A comparison without its figures class by class."""

    title: str
    seeds: list[int]
    cells: dict[str, MethodFigures]
    pairs: list[PairEntry]
    untrained_pairs: list[PairEntry]


# Comparing ----------------------------------------------------------------------------------------


class ComparisonListener:
    """Receives progress; override the methods you need."""

    def features(self, done: int, total: int) -> None:
        """Features of ``done`` images are computed, of the ``total`` that were not cached."""

    def run(self, cell: Cell, seed: int) -> Listener:  # noqa: ARG002
        """A run starts, here or in another process; return what listens to it."""
        return Listener()

    def done(self, cell: Cell, seed: int, summary: RunSummary, *, kept: bool) -> None:
        """A run is finished, or was so already (``kept``)."""

    def answer(self, row: Untrained, seed: int) -> Progress:  # noqa: ARG002
        """An untrained row starts on a seed; return what receives images done, of so many."""
        return lambda done, total: None  # noqa: ARG005

    def answered(self, row: Untrained, seed: int, record: UntrainedRecord, *, kept: bool) -> None:
        """An untrained row has its result for a seed, or had it already (``kept``)."""


def compare(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    path: Path,
    *,
    title: str,
    command: str,
    jobs: int = 1,
    untrained: Sequence[Untrained] = (),
    listener: ComparisonListener | None = None,
) -> ComparisonRecord:
    """Run every cell with every seed into ``path/cells``; write ``comparison.json`` and return it.

    Finished runs are kept and cut-off ones resumed, so a comparison that was stopped goes on where
    it was.

    Args:
        cells: what to compare. seeds: of each. path: of the folder. title, command: for the reader
            of the result.
        jobs: runs at a time; more than one run in processes of their own, which share the CPU's
            threads.
        untrained: rows besides the cells, computed here after all runs.
        listener: receives progress.
    """
    _check_names(cells)
    listener = listener or ComparisonListener()
    with locked(path):
        missing = _missing_runs(cells, seeds, path, listener)
        _compute_features(missing, listener)
        if jobs == 1 or len(missing) < 2:
            _run_here(missing, path, listener)
        else:
            _run_in_processes(missing, path, jobs, listener)
        _check_splits(cells, seeds, path)
        methods = [_method_entry(cell, seeds, path) for cell in cells]
        others = [_untrained_entry(row, cells[0], seeds, path, listener) for row in untrained]
        baseline = next((one for one in methods if one["name"] == BASELINE), None)
        comparison: ComparisonRecord = {
            "title": title,
            "command": command,
            "metric": METRIC,
            "seeds": list(seeds),
            "cells": [*methods, *others],
            "pairs": pairs(methods),
            "untrained_pairs": [] if baseline is None else [_pair(o, baseline) for o in others],
            "baseline": None if baseline is None else BASELINE,
        }
        write_json(path / "comparison.json", comparison)
        return comparison


def _check_names(cells: Sequence[Cell]) -> None:
    names = [cell.name for cell in cells]
    if len(set(names)) < len(names):
        raise RunError(
            f"every cell needs its own algorithm, add-on and refiner; got {', '.join(names)}."
        )


# Running ------------------------------------------------------------------------------------------


def run_path(path: Path, cell: Cell, seed: int) -> Path:
    """Return the folder of a run of a comparison."""
    return path / "cells" / cell.name / f"seed{seed}"


def _missing_runs(
    cells: Sequence[Cell], seeds: Sequence[int], path: Path, listener: ComparisonListener
) -> list[tuple[Cell, int]]:
    """Return the cells and seeds that are still to be run; the listener receives the others."""
    missing = []
    for seed in seeds:
        for cell in cells:
            summary = finished_run(path, cell, seed)
            if summary is None:
                missing.append((cell, seed))
            else:
                listener.done(cell, seed, summary, kept=True)
    return missing


def finished_run(path: Path, cell: Cell, seed: int) -> RunSummary | None:
    """Return the summary of a finished run, None if there is none.

    Raises:
        RunError: the run was made with other settings, or its files have changed.
    """
    folder = RunFolder(run_path(path, cell, seed))
    if not folder.summary.exists():
        return None
    if changed := folder.changed(replace(cell.experiment, seed=seed)):
        raise RunError(
            f"{folder.path} holds a run with other settings, by {folder.config.name}: {changed}. "
            "Compare into another folder, out=..., or delete that one."
        )
    summary = folder.read_summary()
    if summary["status"] != "finished":
        return None
    steps = cell.experiment.train.steps
    if summary["step"] != steps:
        raise RunError(
            f"{folder.summary} cannot be used: step must be {steps}, the last of a finished run; "
            f"got {summary['step']}. {REDO_SUMMARY}"
        )
    for name in altered(folder.path, summary["files"]):
        if (folder.path / name).exists():  # checkpoints may be deleted
            raise RunError(
                f"{folder.path} was finished, but {name} has changed since, by "
                f"{folder.summary.name}. Delete that folder to run it again."
            )
    return summary


def _compute_features(missing: list[tuple[Cell, int]], listener: ComparisonListener) -> None:
    """Compute features of frozen networks once, before several runs begin to compute the same."""
    cache = DataCache()
    for cell, seed in missing:
        if cell.experiment.frozen is not None:
            cache.run_data(replace(cell.experiment, seed=seed), progress=listener.features)


def _run_here(missing: list[tuple[Cell, int]], path: Path, listener: ComparisonListener) -> None:
    cache = DataCache()
    for cell, seed in missing:
        experiment = replace(cell.experiment, seed=seed)
        where = run_path(path, cell, seed)
        progress = listener.run(cell, seed)
        summary = train(experiment, where, resume=True, listener=progress, cache=cache)
        listener.done(cell, seed, summary, kept=False)


def _run_in_processes(
    missing: list[tuple[Cell, int]], path: Path, jobs: int, listener: ComparisonListener
) -> None:
    context = multiprocessing.get_context("spawn")
    messages = context.Manager().Queue()
    pool = ProcessPoolExecutor(
        jobs, mp_context=context, initializer=hold, initargs=(granted(jobs),)
    )
    with _terminable(), pool:
        try:
            futures = []
            for number, (cell, seed) in enumerate(missing):
                experiment = replace(cell.experiment, seed=seed)
                where = run_path(path, cell, seed)
                futures.append(pool.submit(_run_as_worker, experiment, where, messages, number))
            _forward(futures, missing, messages, listener)
        except BaseException:
            for worker in list(pool._processes.values()):
                worker.terminate()  # its run handles this as Ctrl-C: it saves and stops
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that its workers are ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Messenger(Listener):
    """Sends the progress of a run to the process that waits for it."""

    def __init__(self, messages: Any, number: int) -> None:
        self.messages = messages
        self.number = number

    def begin(self, first_step: int, total_steps: int) -> None:
        self.messages.put((self.number, "begin", (first_step, total_steps)))

    def step(self, step: int) -> None:
        if (step + 1) % REPORT_EVERY == 0:
            self.messages.put((self.number, "step", (step,)))

    def entry(self, entry: MetricsLine) -> None:
        self.messages.put((self.number, "entry", (entry,)))


def _run_as_worker(experiment: Experiment, path: Path, messages: Any, number: int) -> RunSummary:
    messenger = _Messenger(messages, number)
    try:
        return train(experiment, path, resume=True, listener=messenger, cache=_CACHE)
    except Stopped:
        os._exit(1)  # it is saved; returning would let the pool give this process the next run


def _forward(
    futures: Sequence["Future[RunSummary]"],
    runs: list[tuple[Cell, int]],
    messages: Any,
    listener: ComparisonListener,
) -> None:
    """Pass messages on until every run is done; the first error is raised."""
    listeners: dict[int, Listener] = {}
    waiting = dict(enumerate(futures))
    while waiting:
        with suppress(queue.Empty):
            number, method, arguments = messages.get(timeout=0.2)
            if number not in listeners:
                listeners[number] = listener.run(*runs[number])
            getattr(listeners[number], method)(*arguments)
        for number in [number for number, future in waiting.items() if future.done()]:
            listener.done(*runs[number], waiting.pop(number).result(), kept=False)


# Rows without training ----------------------------------------------------------------------------


def _untrained_entry(
    row: Untrained, cell: Cell, seeds: Sequence[int], path: Path, listener: ComparisonListener
) -> MethodEntry:
    """Return the entry of an untrained row on the splits that the runs of a cell had."""
    runs: list[RunEntry] = []
    for seed in seeds:
        record = _untrained_record(row, cell, seed, path, listener)
        run: RunEntry = {"seed": seed, "result": record["result"], "seconds": record["seconds"]}
        runs.append(run)
    mean, std = _mean_and_std(runs)
    return {
        "name": row.name,
        "algorithm": row.name,
        "addon": None,
        "refiner": NO_REFINER,
        "label": row.label,
        "rank": None,
        "runs": runs,
        "mean": mean,
        "std": std,
    }


def _untrained_record(
    row: Untrained, cell: Cell, seed: int, path: Path, listener: ComparisonListener
) -> UntrainedRecord:
    """Return the result of an untrained row on a seed; one that is there and fits is kept."""
    run = RunFolder(run_path(path, cell, seed))
    split = run.read_split()
    file = path / "cells" / row.name / f"seed{seed}" / "result.json"
    if file.exists():
        earlier: UntrainedRecord = read_run_json(
            file, UntrainedRecord, missing="it was deleted", remedy="Delete it to compute it again."
        )
        if (earlier["split"], earlier["settings"]) == (split["sha256"], row.settings):
            listener.answered(row, seed, earlier, kept=True)
            return earlier
    splits = DataCache().splits(cell.experiment.data, seed)
    run.check_same(replace(cell.experiment, seed=seed), splits)
    part: Part = "validation" if splits.test is None else "test"
    images = splits.validation if splits.test is None else splits.test
    if images is None:
        raise RunError(f"{row.label}: there are neither test nor validation images to judge it by.")
    probs, seconds = row.answer(splits, images, seed, listener.answer(row, seed))
    figures = classification_metrics(probs, images.labels, split["class_groups"] or {})
    record: UntrainedRecord = {
        "split": splits.sha256,
        "settings": dict(row.settings),
        "seconds": seconds,
        "result": {"part": part, "head": "gp", **figures},
    }
    write_json(file, record)
    listener.answered(row, seed, record, kept=False)
    return record


# Counting -----------------------------------------------------------------------------------------


def _check_splits(cells: Sequence[Cell], seeds: Sequence[int], path: Path) -> None:
    for seed in seeds:
        hashes = {
            cell.name: RunFolder(run_path(path, cell, seed)).read_split()["sha256"]
            for cell in cells
        }
        if len(set(hashes.values())) > 1:
            raise RunError(
                f"the cells of seed {seed} had different splits: {hashes}. Use the same data "
                "settings for all."
            )


def _method_entry(cell: Cell, seeds: Sequence[int], path: Path) -> MethodEntry:
    runs: list[RunEntry] = []
    for seed in seeds:
        where = run_path(path, cell, seed)
        summary = RunFolder(where).read_summary()
        result = evaluated(judged_result(summary["results"]))
        run: RunEntry = {
            "seed": seed,
            "folder": str(where.relative_to(path)),
            "result": result,
            "seconds": summary["seconds"],
        }
        runs.append(run)
    mean, std = _mean_and_std(runs)
    return {
        "name": cell.name,
        "algorithm": cell.experiment.algorithm_name,
        "addon": cell.experiment.addon_name,
        "refiner": cell.experiment.refiner_name,
        "label": cell.label,
        # Pages choose colours by it.
        "rank": list(ALGORITHMS).index(cell.experiment.algorithm_name),
        "runs": runs,
        "mean": mean,
        "std": std,
    }


def _mean_and_std(
    runs: Sequence[RunEntry],
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Return mean and deviation of each figure over seeds; None if a seed does not have it."""
    mean: dict[str, float | None] = {}
    std: dict[str, float | None] = {}
    figures: dict[str, list[float | None]] = {}
    for run in runs:
        shown: Mapping[str, Any] = run["result"]
        for name, value in ({name: shown[name] for name in FIGURES} | shown["groups"]).items():
            figures.setdefault(name, []).append(value)
    for name, values in figures.items():
        known = None if None in values else np.array(values, dtype=np.float64)
        mean[name] = None if known is None else float(known.mean())
        std[name] = None if known is None else float(known.std())
    return mean, std


def pairs(cells: Sequence[MethodEntry]) -> list[PairEntry]:
    """Return each refined algorithm minus its base, seed by seed.

    Deviations divide by the number of seeds, as USB's do.
    """
    bases = {
        (cell["algorithm"], cell.get("addon")): cell
        for cell in cells
        if cell["refiner"] == NO_REFINER
    }
    entries: list[PairEntry] = []
    for cell in cells:
        base = bases.get((cell["algorithm"], cell.get("addon")))
        if base is None or cell is base:
            continue
        entries.append(_pair(cell, base))
    return entries


def _pair(cell: MethodEntry, base: MethodEntry) -> PairEntry:
    """Return one method minus another, seed by seed."""
    differences = [ours - theirs for ours, theirs in zip(_values(cell), _values(base), strict=True)]
    return {
        "name": f"{cell['label']} - {base['label']}",
        "with": cell["name"],
        "without": base["name"],
        "mean_difference": float(np.mean(differences)),
        "std": float(np.std(differences)),
        "differences": differences,
        "wins": sum(difference > 0 for difference in differences),
        "losses": sum(difference < 0 for difference in differences),
    }


def _values(cell: MethodEntry) -> list[float]:
    """Return the metric of each seed."""
    return [run["result"][METRIC] for run in cell["runs"]]


def figures_of(comparison: ComparisonRecord) -> ComparisonFigures:
    """Return a comparison without its figures class by class."""
    return {
        "title": comparison["title"],
        "seeds": comparison["seeds"],
        "cells": {cell["name"]: _method_figures(cell) for cell in comparison["cells"]},
        "pairs": comparison["pairs"],
        "untrained_pairs": comparison["untrained_pairs"],
    }


def _method_figures(cell: MethodEntry) -> MethodFigures:
    means = {name: cell["mean"][name] for name in CLASS_GROUPS}
    seconds = [run["seconds"] or 0.0 for run in cell["runs"]]
    return {
        "label": cell["label"],
        "balanced_accuracy": [round(100 * value, 2) for value in _values(cell)],
        "groups": {k: None if mean is None else round(100 * mean, 2) for k, mean in means.items()},
        "seconds": round(sum(seconds) / len(seconds), 1),
    }


def mean_gain(comparisons: Sequence[ComparisonFigures]) -> float | None:
    """Return the mean of what refiners add, over all pairs."""
    gains = [pair["mean_difference"] for comparison in comparisons for pair in comparison["pairs"]]
    return sum(gains) / len(gains) if gains else None
