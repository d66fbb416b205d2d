"""What a reproduction found, as data: every seed beside what was published, and nothing of this machine's folders."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from semigpc.algorithms import ALGORITHMS
from semigpc.cli.cells import REFINER_LABELS
from semigpc.recipes.paper import Group, Options, PaperCell, PaperTable
from semigpc.recipes.published import Published, agrees, judge_gain
from semigpc.report.run_record import read_run
from semigpc.text import CLASS_GROUPS
from semigpc.training import Experiment, RunError, RunFolder
from semigpc.training.comparison import Cell, run_path
from semigpc.training.run_folder import read_json

METRIC = "top1"
PATHS = ("root", "splits", "pretrained")  # settings that name a place
LAST = 20  # evaluations


def folder_name(group: str) -> str:
    """Of a group's comparison."""
    return group.replace("/", "-")


def paired(cells: Sequence[PaperCell]) -> list[Cell]:
    """As a comparison wants them."""
    return [Cell(cell.experiment, label_of(cell)) for cell in cells if cell.experiment is not None]


def label_of(cell: PaperCell) -> str:
    """For people."""
    if cell.experiment is None:
        return cell.row
    refiner = cell.experiment.refiner_name
    return ALGORITHMS[cell.experiment.algorithm_name].label + REFINER_LABELS.get(refiner, f" + {refiner}")


def finished(cell: PaperCell, folder: Path, seeds: int) -> bool:
    """Whether every seed was run before, with these very settings."""
    return cell.experiment is not None and all(_is_finished(cell, cell.experiment, folder, seed) for seed in range(seeds))


def _is_finished(cell: PaperCell, experiment: Experiment, folder: Path, seed: int) -> bool:
    run = RunFolder(run_path(folder, Cell(experiment, cell.row), seed))
    try:
        done = run.read_summary()["status"] == "finished"
        return done and run.experiment() == replace(experiment, seed=seed)
    except (RunError, ValueError):
        return False


# Telling -----------------------------------------------------------------------------------------------------------


def begun(table: PaperTable, options: Options, seeds: int, command: str) -> dict[str, Any]:
    """The figures of a table before any group is in them. ``judged`` tells whether ours are to be held against the paper's."""
    return {
        "command": command,
        "table": table.name,
        "title": table.title,
        "scale": options.scale,
        "features": options.features,
        "seeds": list(range(seeds)),
        "metric": METRIC,
        "judged": options.scale == "paper" and not options.changed,
        "changed": [_setting_without_folders(setting) for setting in options.changed],
        "environments": [],
        "groups": {},
    }


def figures_of_group(group: Group, cells: Sequence[PaperCell], folder: Path, seeds: int, *, judged: bool) -> dict[str, Any]:
    """All that is told of a group: its cells by row, and gains seed by seed."""
    told = {cell.row: _figures(cell, folder, seeds, judged=judged) for cell in cells}
    first = next(cell for cell in cells if cell.experiment is not None)
    split = RunFolder(run_path(folder, paired([first])[0], 0)).read_split()
    return {
        "title": group.title,
        "class_names": split["class_names"],
        "cells": told,
        "gains": _gains(group, told, judged=judged),
    }


def add_environments(figures: dict[str, Any], cells: Sequence[PaperCell], folder: Path) -> None:
    """Note where these runs were made: each set of versions once."""
    for cell in paired(cells):
        for seed in figures["seeds"]:
            place = read_json(
                run_path(folder, cell, seed) / "environment.json", "the run does not say where it was made", dict[str, str]
            )
            if place not in figures["environments"]:
                figures["environments"].append(place)


def _figures(cell: PaperCell, folder: Path, seeds: int, *, judged: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {"label": label_of(cell), "published": _plain(cell.published)}
    if cell.experiment is None:
        return figures
    paths = [run_path(folder, Cell(cell.experiment, cell.row), seed) for seed in range(seeds)]
    summaries: list[Any] = [RunFolder(path).read_summary() for path in paths]
    runs = [_evaluations(path) for path in paths]
    last, best = ([summary["results"][choice] for summary in summaries] for choice in ("last", "best_on_test"))
    figures |= {
        "last": _over_seeds(last)
        | {
            "balanced_accuracy": [_percent(result["balanced_accuracy"]) for result in last],
            **{name: [_percent(result["groups"].get(name)) for result in last] for name in CLASS_GROUPS},
            "per_class_recall": [[_percent(recall, 1) for recall in result["per_class_recall"]] for result in last],
        },
        "best_on_test": _over_seeds(best) | {"step": [result["step"] for result in best]},
        "head": last[0]["head"],
        "last_by_head": _by_head(runs),
        f"mean_of_last_{LAST}": [_mean_of_last(evaluations, last[0]["head"]) for evaluations in runs],
        "seconds": [round(summary["seconds"], 1) for summary in summaries],
        "split_sha256": [RunFolder(path).read_split()["sha256"] for path in paths],
        "config": without_folders(cell.experiment.to_plain()),
    }
    if cell.published is not None and not cell.published.quoted:
        for choice in ("last", "best_on_test"):
            mean = figures[choice]["mean"]
            figures[choice]["difference"] = round(mean - cell.published.top1, 2)
            figures[choice]["agrees"] = agrees(mean, cell.published) if judged else None
    return figures


def _evaluations(path: Path) -> list[Mapping[str, Any]]:
    """What was said of the test images, head by head and step by step."""
    return [entry for entry in read_run(path, bulky=False).evals if entry["part"] == "test"]


def _by_head(runs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, list[float | None]]:
    """Balanced accuracy of every head at the last step, also of those that are not the headline."""
    found: dict[str, list[float | None]] = {}
    for evaluations in runs:
        for entry in evaluations:
            if entry["step"] == evaluations[-1]["step"]:
                found.setdefault(entry["head"], []).append(_percent(entry["balanced_accuracy"]))
    return found


def _mean_of_last(evaluations: Sequence[Mapping[str, Any]], head: str) -> float:
    """Of the last evaluations, as some authors report; fewer than 20 where there are no more."""
    values = [entry[METRIC] for entry in evaluations if entry["head"] == head][-LAST:]
    return round(100 * fmean(values), 2)


def _over_seeds(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """In percent; the deviation divides by the number of seeds, as USB's does."""
    values = [100 * result[METRIC] for result in results]
    return {METRIC: [round(value, 2) for value in values], "mean": round(fmean(values), 2), "std": round(pstdev(values), 2)}


def _gains(group: Group, told: Mapping[str, Mapping[str, Any]], *, judged: bool) -> list[dict[str, Any]]:
    """What each refiner adds to its base at the last step, seed by seed."""
    found = []
    for row, cell in told.items():
        algorithm, _, refiner = row.partition("+")
        base = told.get(f"{algorithm}+none")
        if "last" not in cell or refiner == "none" or base is None:
            continue
        gains = [ours - theirs for ours, theirs in zip(cell["last"][METRIC], base["last"][METRIC], strict=True)]
        linear = cell["last_by_head"]["linear"] if cell["head"] != "linear" else None
        printed = cell["published"] or {}
        claimed = printed.get("delta") if printed.get("meant") is None else printed["meant"]
        found.append(
            {
                "with": row,
                "without": f"{algorithm}+none",
                "label": cell["label"],
                "gains": [round(gain, 2) for gain in gains],
                "mean": round(fmean(gains), 2),
                "std": round(pstdev(gains), 2),
                "linear": None if linear is None else round(fmean(linear) - fmean(base["last_by_head"]["linear"]), 2),
                "published": printed.get("delta"),
                "claimed": claimed,
                "claim": judge_gain(gains, claimed, enough=group.seeds) if judged and claimed is not None else None,
            }
        )
    return found


def _plain(published: Published | None) -> dict[str, Any] | None:
    return None if published is None else asdict(published)


def _percent(share: float | None, digits: int = 2) -> float | None:
    return None if share is None else round(100 * share, digits)


# Without folders ---------------------------------------------------------------------------------------------------


def without_folders(value: Any, key: str = "") -> Any:
    """Nested settings in which every path is reduced to the name of its file."""
    if isinstance(value, Mapping):
        return {name: without_folders(inner, name) for name, inner in value.items()}
    if isinstance(value, str) and (key in PATHS or Path(value).is_absolute() or value.startswith("~")):
        return Path(value).name
    return value


def spelled(table: str, options: Options, globs: Sequence[str], seeds: int, jobs: int) -> str:
    """The command that makes the same figures, with names in place of paths; where the runs were put is left out."""
    words = ["semigpc", "reproduce", table, "--root", options.root.expanduser().resolve().name]
    words += ["--weights", options.weights.expanduser().resolve().name] if options.weights else []
    for option, values in (("--cell", globs), ("--algorithm", options.algorithms)):
        words += [word for value in values for word in (option, value)]
    if options.refiners != Options().refiners:
        words += [word for value in options.refiners for word in ("--refiner", value)]
    words += ["--labels-per-class", str(options.labels_per_class)] if options.labels_per_class is not None else []
    words += ["--seeds", str(seeds), "--scale", options.scale]
    words += ["--features", options.features] if options.features != "live" else []
    words += [word for setting in options.overrides for word in ("--set", _setting_without_folders(setting))]
    words += ["--jobs", str(jobs)] if jobs > 1 else []
    return shlex.join(words)


def _setting_without_folders(setting: str) -> str:
    key, equals, value = setting.partition("=")
    return f"{key}{equals}{without_folders(value, key.strip().rpartition('.')[2])}"
