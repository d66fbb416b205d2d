"""Algorithm x add-on x refiner on the problems of ``recipes/field.py``: runs what is missing, then one table and mean ranks."""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from semigpc.addons import ADDONS
from semigpc.algorithms import ALGORITHMS
from semigpc.bench.graph_baselines import GRAPH_BASELINES, Rows
from semigpc.data import ImageSet, ViewSource, eval_loader
from semigpc.files import write_json
from semigpc.recipes.field import BASES, PROBLEMS, REFINERS, field_experiment
from semigpc.training import Listener, SettingError
from semigpc.training.comparison import Cell, ComparisonListener, compare, finished_run, run_path
from semigpc.training.experiment import Experiment
from semigpc.training.metrics import classification_metrics
from semigpc.training.run_data import DataCache, RunData
from semigpc.training.run_folder import RunFolder, groups_of, read_json

SEMIGPC = "SemiGPC"
PLAIN = "no add-on"
BESIDE = (("supervised", "none"), ("npmatch", "none"), ("npmatch", "gp"))  # rows without add-ons, out of the ranking
DECIDED = ("n", "top1", "balanced_accuracy", "macro_f1", "groups", "per_class_recall", "per_class_precision", "confusion")
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Field:
    """What is compared.

    Args:
        problems, bases, addons, refiners: by name. root: of the images, where a problem needs them.
        seeds: of each run, from 0. steps: of a run, instead of the problem's.
    """

    problems: tuple[str, ...] = tuple(PROBLEMS)
    bases: tuple[str, ...] = BASES
    addons: tuple[str, ...] = tuple(ADDONS)
    refiners: tuple[str, ...] = REFINERS
    root: Path = Path()
    seeds: int = 3
    steps: int | None = None

    def cells(self, problem: str) -> tuple[list[Cell], list[Record]]:
        """The cells of a problem, and combinations that are refused, with the reason."""
        chosen = [(base, "none", refiner) for base, refiner in BESIDE if base not in self.bases]
        chosen += [(base, addon, refiner) for base in self.bases for addon in self.addons for refiner in self.refiners]
        found, refused = [], []
        for base, addon, refiner in chosen:
            try:
                experiment = field_experiment(problem, base, addon, refiner, root=self.root, steps=self.steps)
            except SettingError as error:
                refused.append({"base": base, "addon": addon, "refiner": refiner, "reason": str(error)})
            else:
                found.append(Cell(experiment, f"{ALGORITHMS[base].label}, {method_name(addon, refiner)}"))
        if len(refused) == len(self.bases) * len(self.addons) * len(self.refiners):
            raise SettingError(f"nothing of this can be run on {problem}: {refused[0]['reason']}")
        return found, refused

    def graphs(self, problem: str) -> tuple[str, ...]:
        """The graph baselines of a problem; on images there are none."""
        return tuple(GRAPH_BASELINES) if PROBLEMS[problem].cached else ()

    def methods(self) -> list[str]:
        """Add-on with refiner, in order: those that some base takes."""
        made = [cell.experiment for problem in self.problems for cell in self.cells(problem)[0]]
        taken = {(one.addon_name, one.refiner_name) for one in made if one.algorithm_name in self.bases}
        return [method_name(a, r) for a in self.addons for r in self.refiners if (a, r) in taken]

    def runs(self) -> int:
        """How many runs there are in all."""
        return self.seeds * sum(len(self.cells(problem)[0]) + len(self.graphs(problem)) for problem in self.problems)


def method_name(addon: str, refiner: str) -> str:
    """As in "DARP + SemiGPC"; an algorithm alone is "no add-on"."""
    parts = [ADDONS[addon].label] if addon != "none" else []
    parts += [SEMIGPC if refiner == "gp" else refiner] if refiner != "none" else []
    return " + ".join(parts) or PLAIN


# Running -----------------------------------------------------------------------------------------------------------


def run_field(
    field: Field,
    out: Path,
    *,
    command: str,
    jobs: int,
    listener: ComparisonListener,
    advance: Callable[[str], None] = lambda _: None,
) -> None:
    """Run every problem into ``out/PROBLEM``; finished runs are kept and cut-off ones go on. Weights are not kept.

    Args:
        field: what to run. out: folder. command: for whoever reads the result. jobs: runs at a time. listener: of runs.
        advance: told about every graph baseline that is there.
    """
    for problem in field.problems:
        cells, _ = field.cells(problem)
        folder, title = out / problem, PROBLEMS[problem].title
        weightless = _Weightless(listener, folder)
        compare(cells, range(field.seeds), folder, title=title, command=command, jobs=jobs, listener=weightless)
        supplies = DataCache()
        for seed in range(field.seeds):
            for name in field.graphs(problem):
                if _graph_summary(folder, name, seed) is None:
                    experiment = replace(cells[0].experiment, seed=seed)
                    material = supplies.of(experiment)
                    assert material is not None
                    _judge_graph(name, material, folder, seed)
                advance(f"{problem}: {GRAPH_BASELINES[name].label}")


class _Weightless(ComparisonListener):
    """Passes everything on, and deletes the checkpoints of finished runs: a table needs none of a thousand networks."""

    def __init__(self, listener: ComparisonListener, folder: Path) -> None:
        self.listener, self.folder = listener, folder

    def features(self, done: int, total: int) -> None:
        self.listener.features(done, total)

    def run(self, cell: Cell, seed: int) -> Listener:
        return self.listener.run(cell, seed)

    def done(self, cell: Cell, seed: int, summary: Mapping[str, Any], *, kept: bool) -> None:
        shutil.rmtree(RunFolder(run_path(self.folder, cell, seed)).last.parent, ignore_errors=True)
        self.listener.done(cell, seed, summary, kept=kept)


def _graph_path(folder: Path, name: str, seed: int) -> Path:
    return folder / "graphs" / name / f"seed{seed}.json"


def _graph_summary(folder: Path, name: str, seed: int) -> Record | None:
    path = _graph_path(folder, name, seed)
    return read_json(path, "it was never made", dict[str, Any]) if path.exists() else None


def _judge_graph(name: str, material: RunData, folder: Path, seed: int) -> None:
    """Fit on labelled and unlabelled features, judge on those of the test set, and write a summary as a run does."""
    splits, source = material
    assert splits.test is not None
    began = time.perf_counter()
    labeled, unlabeled = features_of(splits.labeled, source), features_of(splits.unlabeled, source)
    predict = GRAPH_BASELINES[name].fit(labeled, splits.labeled.labels, unlabeled, splits.n_classes)
    answers = np.eye(splits.n_classes)[predict(features_of(splits.test, source))]
    figures = classification_metrics(answers, splits.test.labels, groups_of(splits))
    result = {key: figures[key] for key in DECIDED}  # the rest would be of probabilities, which these do not have
    path = _graph_path(folder, name, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"status": "finished", "seconds": time.perf_counter() - began, "results": {"last": result}})


def features_of(images: ImageSet, source: ViewSource) -> Rows:
    """(n, D) plain features."""
    return np.concatenate([rows.numpy() for rows, _, _ in eval_loader(images, source, batch_size=1024, workers=0)])


# Telling -----------------------------------------------------------------------------------------------------------


def rows_of(field: Field, problem: str, out: Path) -> list[Record]:
    """A row for each cell and graph baseline of which some seed is finished."""
    cells, _ = field.cells(problem)
    rows = []
    for cell in cells:
        found = {seed: finished_run(out / problem, cell, seed) for seed in range(field.seeds)}
        row = _row(_names(cell.experiment), found)
        rows.append(row | _by_network(row, [run_path(out / problem, cell, seed) for seed in row["seeds"]]))
    for name in field.graphs(problem):
        found = {seed: _graph_summary(out / problem, name, seed) for seed in range(field.seeds)}
        rows.append(_row({"base": name, "label": GRAPH_BASELINES[name].label, "method": None}, found))
    return [row for row in rows if row["seeds"]]


def _names(experiment: Experiment) -> Record:
    base, addon, refiner = experiment.algorithm_name, experiment.addon_name, experiment.refiner_name
    label = ALGORITHMS[base].label
    return {"base": base, "addon": addon, "refiner": refiner, "label": label, "method": method_name(addon, refiner)}


def _row(names: Record, summaries: Mapping[int, Record | None]) -> Record:
    done = {seed: summary for seed, summary in summaries.items() if summary is not None}
    results = [summary["results"]["last"] for summary in done.values()]
    values = [result["balanced_accuracy"] for result in results]
    groups = results[0]["groups"] if results else ()
    return names | {
        "head": results[0].get("head") if results else None,
        "seeds": list(done),
        "balanced_accuracy": values,
        "mean": float(np.mean(values)) if values else None,
        "std": float(np.std(values)) if values else None,
        "groups": {group: float(np.mean([result["groups"][group] for result in results])) for group in groups},
        "seconds": float(np.mean([summary["seconds"] for summary in done.values()])) if done else None,
    }


def _by_network(row: Record, runs: list[Path]) -> Record:
    """Mean balanced accuracy by the network's own answer, which differs where a run is judged by its GP."""
    if row["head"] != "gp":
        return {"by_network": row["mean"]}
    found = []
    for run in runs:
        lines = (json.loads(line) for line in RunFolder(run).metrics.read_text().splitlines())
        found += [line["balanced_accuracy"] for line in lines if (line.get("part"), line.get("head")) == ("test", "linear")]
    return {"by_network": float(np.mean(found))}


def refusals(field: Field) -> list[Record]:
    """Combinations that were left out, each with the problems that refuse it."""
    found: dict[tuple[str, ...], Record] = {}
    for problem in field.problems:
        for one in field.cells(problem)[1]:
            found.setdefault(tuple(one.values()), one | {"problems": []})["problems"].append(problem)
    return list(found.values())
