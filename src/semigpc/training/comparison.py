"""Several experiments on the same splits and seeds: runs what is missing, then means, spreads and
paired differences.
"""

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
from typing import Any

import numpy as np

from semigpc.algorithms import ALGORITHMS
from semigpc.io.atomic import altered, locked, write_json
from semigpc.io.errors import RunError
from semigpc.io.threads import granted, hold
from semigpc.training.experiment import Experiment
from semigpc.training.loop import train
from semigpc.training.metrics import CLASS_GROUPS, FIGURES, METRIC
from semigpc.training.processes import Stopped
from semigpc.training.run_folder import REDO_SUMMARY, MetricsLine, RunFolder, RunSummary
from semigpc.training.run_log import Listener
from semigpc.training.state import DataCache

WITHOUT = "none"  # the refiner that others are compared with
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


class ComparisonListener:
    """Receives what happens, as it happens; override the methods you need."""

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
) -> dict[str, Any]:
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
        missing = []
        for seed in seeds:
            for cell in cells:
                summary = finished_run(path, cell, seed)
                if summary is None:
                    missing.append((cell, seed))
                else:
                    listener.done(cell, seed, summary, kept=True)
        _compute_features(missing, listener)
        _run_missing(missing, path, jobs, listener)
        _check_splits(cells, seeds, path)
        comparison: dict[str, Any] = {
            "title": title,
            "command": command,
            "metric": METRIC,
            "seeds": list(seeds),
            "cells": [_cell_figures(cell, seeds, path) for cell in cells],
        }
        comparison["pairs"] = pairs(comparison["cells"])
        comparison["baseline"] = "supervised+none" if "supervised+none" in names else None
        write_json(path / "comparison.json", comparison)
        return comparison


# Running ------------------------------------------------------------------------------------------


def run_path(path: Path, cell: Cell, seed: int) -> Path:
    """Return the folder of a run of a comparison."""
    return path / "cells" / cell.name / f"seed{seed}"


def finished_run(path: Path, cell: Cell, seed: int) -> RunSummary | None:
    """Return the summary of a run that was finished with these settings; a RunError if it was with
    others.
    """
    folder = RunFolder(run_path(path, cell, seed))
    if not folder.summary.exists():
        return None
    if changed := folder.changed(replace(cell.experiment, seed=seed)):
        raise RunError(
            f"{folder.path} holds a run with other settings, by {folder.config.name}: {changed}. "
            "Compare into another folder (--out), or delete that one."
        )
    summary = folder.read_summary()
    if summary["status"] != "finished":
        return None
    if summary["step"] != (steps := cell.experiment.train.steps):
        raise RunError(
            f"{folder.summary} cannot be used: step must be {steps}, the last of a finished run; got {summary['step']}. "
            f"{REDO_SUMMARY}"
        )
    changed_files = [
        name for name in altered(folder.path, summary["files"]) if (folder.path / name).exists()
    ]
    if changed_files:  # checkpoints may be deleted
        raise RunError(
            f"{folder.path} was finished, but {changed_files[0]} has changed since, by {folder.summary.name}. Delete that "
            "folder to run it again."
        )
    return summary


def _compute_features(missing: list[tuple[Cell, int]], listener: ComparisonListener) -> None:
    """Compute features of frozen networks once for all runs, before several of them begin to do the
    same.
    """
    cache = DataCache()
    for cell, seed in missing:
        if cell.experiment.frozen is not None:
            cache.run_data(replace(cell.experiment, seed=seed), progress=listener.features)


def _run_missing(
    missing: list[tuple[Cell, int]], path: Path, jobs: int, listener: ComparisonListener
) -> None:
    if jobs == 1 or len(missing) < 2:
        cache = DataCache()
        for cell, seed in missing:
            experiment, where = replace(cell.experiment, seed=seed), run_path(path, cell, seed)
            summary = train(
                experiment, where, resume=True, listener=listener.run(cell, seed), cache=cache
            )
            listener.done(cell, seed, summary, kept=False)
        return
    context = multiprocessing.get_context("spawn")
    messages = context.Manager().Queue()
    with (
        _terminable(),
        ProcessPoolExecutor(
            jobs, mp_context=context, initializer=hold, initargs=(granted(jobs),)
        ) as pool,
    ):
        try:
            futures = {
                pool.submit(
                    _run_elsewhere,
                    replace(cell.experiment, seed=seed),
                    run_path(path, cell, seed),
                    messages,
                    number,
                ): (cell, seed)
                for number, (cell, seed) in enumerate(missing)
            }
            _listen(futures, missing, messages, listener)
        except BaseException:
            for worker in list(pool._processes.values()):
                worker.terminate()  # which its run takes as Ctrl-C: it saves and stops
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that it takes its workers along."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Messenger(Listener):
    """Passes the progress of a run on to the process that waits for it."""

    def __init__(self, messages: Any, number: int) -> None:
        self.messages, self.number = messages, number

    def begin(self, first_step: int, total_steps: int) -> None:
        self.messages.put((self.number, "begin", (first_step, total_steps)))

    def step(self, step: int) -> None:
        if (step + 1) % REPORT_EVERY == 0:
            self.messages.put((self.number, "step", (step,)))

    def entry(self, entry: MetricsLine) -> None:
        self.messages.put((self.number, "entry", (entry,)))


def _run_elsewhere(experiment: Experiment, path: Path, messages: Any, number: int) -> RunSummary:
    try:
        return train(
            experiment, path, resume=True, listener=_Messenger(messages, number), cache=_CACHE
        )
    except Stopped:
        os._exit(1)  # it is saved; returning would let the pool hand this process the next run


def _listen(
    futures: dict["Future[RunSummary]", tuple[Cell, int]],
    runs: list[tuple[Cell, int]],
    messages: Any,
    listener: ComparisonListener,
) -> None:
    """Hand on messages until every run is done; the first error ends it."""
    listeners: dict[int, Listener] = {}
    waiting = set(futures)
    while waiting:
        with suppress(queue.Empty):
            number, method, arguments = messages.get(timeout=0.2)
            if number not in listeners:
                listeners[number] = listener.run(*runs[number])
            getattr(listeners[number], method)(*arguments)
        for future in [future for future in waiting if future.done()]:
            waiting.remove(future)
            listener.done(*futures[future], future.result(), kept=False)


# Counting -----------------------------------------------------------------------------------------


def _check_splits(cells: Sequence[Cell], seeds: Sequence[int], path: Path) -> None:
    for seed in seeds:
        hashes = {
            cell.name: RunFolder(run_path(path, cell, seed)).read_split()["sha256"]
            for cell in cells
        }
        if len(set(hashes.values())) > 1:
            raise RunError(
                f"the cells of seed {seed} saw different splits: {hashes}. Give them the same data settings."
            )


def _cell_figures(cell: Cell, seeds: Sequence[int], path: Path) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    for seed in seeds:
        where = run_path(path, cell, seed)
        summary = RunFolder(where).read_summary()
        result = (summary["results"] or {}).get("last")
        if result is None:
            raise RunError(f"{where} has neither test nor validation images to compare by.")
        runs.append(
            {
                "seed": seed,
                "folder": str(where.relative_to(path)),
                "result": result,
                "seconds": summary["seconds"],
            }
        )
    figures: dict[str, list[Any]] = {
        name: [run["result"][name] for run in runs] for name in FIGURES
    }
    figures |= {
        group: [run["result"]["groups"][group] for run in runs]
        for group in runs[0]["result"]["groups"]
    }
    return {
        "name": cell.name,
        "algorithm": cell.experiment.algorithm_name,
        "addon": cell.experiment.addon_name,
        "refiner": cell.experiment.refiner_name,
        "label": cell.label,
        "rank": list(ALGORITHMS).index(
            cell.experiment.algorithm_name
        ),  # by which pages choose a colour
        "runs": runs,
        "mean": {
            name: float(np.mean(values)) if None not in values else None
            for name, values in figures.items()
        },
        "std": {
            name: float(np.std(values)) if None not in values else None
            for name, values in figures.items()
        },
    }


def pairs(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each refined algorithm minus its base, seed by seed. Deviations divide by the number
    of seeds, as USB's do.
    """
    differences_of = []
    bases = {
        (cell["algorithm"], cell.get("addon")): cell for cell in cells if cell["refiner"] == WITHOUT
    }
    for cell in cells:
        base = bases.get((cell["algorithm"], cell.get("addon")))
        if base is None or cell is base:
            continue
        differences = [
            ours["result"][METRIC] - theirs["result"][METRIC]
            for ours, theirs in zip(cell["runs"], base["runs"], strict=True)
        ]
        differences_of.append(
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
    return differences_of


def figures_of(comparison: dict[str, Any]) -> dict[str, Any]:
    """Return a comparison without its figures class by class: percent per seed; None for a group
    without classes.
    """
    cells = {
        cell["name"]: {
            "label": cell["label"],
            "balanced_accuracy": [
                round(100 * run["result"]["balanced_accuracy"], 2) for run in cell["runs"]
            ],
            "groups": {
                name: None if (mean := cell["mean"][name]) is None else round(100 * mean, 2)
                for name in CLASS_GROUPS
            },
            "seconds": round(sum(run["seconds"] for run in cell["runs"]) / len(cell["runs"]), 1),
        }
        for cell in comparison["cells"]
    }
    return {
        "title": comparison["title"],
        "seeds": comparison["seeds"],
        "cells": cells,
        "pairs": comparison["pairs"],
    }


def mean_gain(comparisons: list[dict[str, Any]]) -> float | None:
    """Return the mean of all paired differences."""
    gains = [pair["mean_difference"] for comparison in comparisons for pair in comparison["pairs"]]
    return sum(gains) / len(gains) if gains else None
