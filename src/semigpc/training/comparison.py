"""Several experiments on the same splits and seeds: run them, then compare them seed by seed."""

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Required

import numpy as np
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.algorithms import ALGORITHMS
from semigpc.io.atomic import Count, altered, locked, write_json
from semigpc.io.errors import RunError
from semigpc.io.threads import granted, hold
from semigpc.training.experiment import Experiment
from semigpc.training.loop import train
from semigpc.training.metrics import CLASS_GROUPS, FIGURES, LOOSE, METRIC, Figures
from semigpc.training.processes import Stopped
from semigpc.training.run_folder import (
    REDO_SUMMARY,
    MetricsLine,
    RunFolder,
    RunSummary,
    evaluated,
    judged_result,
)
from semigpc.training.run_log import Listener
from semigpc.training.state import DataCache

NO_REFINER = "none"  # the refiner that others are compared with
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


# comparison.json ----------------------------------------------------------------------------------


class RunEntry(TypedDict, total=False):
    """One seed of a method: its run's folder, and the result of what the run stands for."""

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
    """``comparison.json``; ``baseline`` is the method that learns from labels alone, if any."""

    title: str
    command: str
    metric: str
    seeds: list[Count]
    cells: list[MethodEntry]
    pairs: list[PairEntry]
    baseline: str | None


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


def compare(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    path: Path,
    *,
    title: str,
    command: str,
    jobs: int = 1,
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
        listener: receives progress.
    """
    names = [cell.name for cell in cells]
    if len(set(names)) < len(names):
        raise RunError(
            f"every cell needs its own algorithm, add-on and refiner; got {', '.join(names)}."
        )
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
        comparison: ComparisonRecord = {
            "title": title,
            "command": command,
            "metric": METRIC,
            "seeds": list(seeds),
            "cells": methods,
            "pairs": pairs(methods),
            "baseline": "supervised+none" if "supervised+none" in names else None,
        }
        write_json(path / "comparison.json", comparison)
        return comparison


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
    figures: dict[str, list[float | None]] = {}
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
        shown: Mapping[str, Any] = result
        for name, value in ({name: shown[name] for name in FIGURES} | result["groups"]).items():
            figures.setdefault(name, []).append(value)
    known = {
        name: None if None in values else np.array(values, dtype=np.float64)
        for name, values in figures.items()
    }
    return {
        "name": cell.name,
        "algorithm": cell.experiment.algorithm_name,
        "addon": cell.experiment.addon_name,
        "refiner": cell.experiment.refiner_name,
        "label": cell.label,
        # Pages choose colours by it.
        "rank": list(ALGORITHMS).index(cell.experiment.algorithm_name),
        "runs": runs,
        "mean": {
            k: None if values is None else float(values.mean()) for k, values in known.items()
        },
        "std": {k: None if values is None else float(values.std()) for k, values in known.items()},
    }


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
        differences = [
            ours - theirs for ours, theirs in zip(_values(cell), _values(base), strict=True)
        ]
        entries.append(
            {
                "name": f"{cell['label']} - {base['label']}",
                "with": cell["name"],
                "without": base["name"],
                "mean_difference": float(np.mean(differences)),
                "std": float(np.std(differences)),
                "differences": differences,
                "wins": sum(difference > 0 for difference in differences),
                "losses": sum(difference < 0 for difference in differences),
            }
        )
    return entries


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
    """Return the mean of all paired differences."""
    gains = [pair["mean_difference"] for comparison in comparisons for pair in comparison["pairs"]]
    return sum(gains) / len(gains) if gains else None
