"""Run a table of the paper and put its figures beside the published ones, seed by seed.

The records below are figures.json, key by key. It names files, but no folder of this machine.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NotRequired, cast

from typing_extensions import TypedDict

from semigpc.io.atomic import write_json
from semigpc.io.errors import RunError, SettingsError
from semigpc.paper.published import STATEMENTS, Claim, Published, agrees, judge_gain
from semigpc.paper.recipes import check_weights
from semigpc.paper.tables import Features, Group, Options, PaperCell, PaperTable, Scale, select
from semigpc.refiners import GPConfig
from semigpc.report.comparison_page import write_comparison_report
from semigpc.training import RunFolder
from semigpc.training.comparison import Cell, ComparisonListener, compare, finished_run, run_path
from semigpc.training.metrics import CLASS_GROUPS
from semigpc.training.run_folder import read_run, read_run_json

METRIC = "top1"
PATHS = ("root", "splits", "pretrained")  # settings that contain a path
EVALUATIONS_AVERAGED = 20  # at the end of a run; some authors report their mean


# Records ------------------------------------------------------------------------------------------


class Accuracy(TypedDict):
    """Top-1 accuracy in percent: one value per seed, their mean and standard deviation.

    ``difference`` and ``agrees`` are there if the paper ran the row; ``agrees`` is None if the runs
    cannot be compared with the paper.
    """

    top1: list[float]
    mean: float
    std: float
    difference: NotRequired[float]
    agrees: NotRequired[bool | None]


class LastAccuracy(Accuracy):
    """At the last step; the other accuracies are in percent too, and None for an empty group."""

    balanced_accuracy: list[float | None]
    many: list[float | None]
    medium: list[float | None]
    few: list[float | None]
    per_class_recall: list[list[float | None]]


class BestAccuracy(Accuracy):
    """At the step that is best on the test images, of each seed."""

    step: list[int]


class PublishedFigure(TypedDict):
    """The fields of :class:`Published`."""

    top1: float
    std: float | None
    delta: float | None
    meant: float | None
    quoted: bool
    source: str
    note: str | None


class CellFigures(TypedDict):
    """One row. One that the paper quotes from others was not run and has the first two fields."""

    label: str
    published: PublishedFigure | None
    last: NotRequired[LastAccuracy]
    best_on_test: NotRequired[BestAccuracy]
    head: NotRequired[str]
    last_by_head: NotRequired[dict[str, list[float]]]
    mean_of_last_20: NotRequired[list[float | None]]
    seconds: NotRequired[list[float]]
    split_sha256: NotRequired[list[str]]
    config: NotRequired[dict[str, Any]]


# What a refiner adds to its base, in points at the last step. ``linear``: by the linear layer,
# where another head is judged. ``claimed`` is ``published`` with the sign that was meant.
Gain = TypedDict(
    "Gain",
    {
        "with": str,
        "without": str,
        "label": str,
        "gains": list[float],
        "mean": float,
        "std": float,
        "linear": float | None,
        "published": float | None,
        "claimed": float | None,
        "claim": Claim | None,
    },
)


class GroupFigures(TypedDict):
    """The rows that share data and seeds, and what refiners add."""

    title: str
    seeds: list[int]
    class_names: list[str]
    cells: dict[str, CellFigures]
    gains: list[Gain]


class StatementFigures(TypedDict):
    """A number of the paper's text over the units ``over``: ours, from its tables, as printed."""

    name: str
    over: list[str]
    missing: list[str]
    ours: float | None
    published: float | None
    printed: float


GPSettings = dict[str, dict[str, float]]  # l^2, sigma^2 and lambda by data set


class TableFigures(TypedDict):
    """All of figures.json; ``judged``: whether ours may be compared with the paper's."""

    command: str
    table: str
    title: str
    scale: Scale
    features: Features
    metric: str
    judged: bool
    changed: list[str]
    gp_settings: GPSettings
    environments: list[dict[str, str]]
    groups: dict[str, GroupFigures]
    statements: list[StatementFigures]


class ListedCell(TypedDict):
    """What a cell would run."""

    network: str
    seeds: int
    steps: int


class ListedTable(TypedDict):
    """The cells of a table by key."""

    table: str
    title: str
    gp_settings: GPSettings
    cells: dict[str, ListedCell]


# Running ------------------------------------------------------------------------------------------


def list_cells(
    table: PaperTable, options: Options, globs: Sequence[str], seeds: int | None
) -> ListedTable:
    """Return what the cells that match ``globs`` would run; None for the default seeds."""
    cells = select(table.all_cells(options), globs)
    listed: dict[str, ListedCell] = {}
    for row, cell in _runnable(cells):
        experiment = cell.experiment
        listed[row.key] = {
            "network": experiment.model.name,
            "seeds": seeds or table.groups[row.group].seeds,
            "steps": experiment.train.steps,
        }
    return {
        "table": table.name,
        "title": table.title,
        "gp_settings": gp_settings(table, cells),
        "cells": listed,
    }


def reproduce_table(
    table: PaperTable,
    options: Options,
    *,
    globs: Sequence[str],
    seeds: int | None,
    out: Path | None,
    jobs: int,
    progress: Callable[[int, str], AbstractContextManager[ComparisonListener]],
    on_report: Callable[[Path], None],
) -> tuple[TableFigures, Path]:
    """Run what is missing of a table, group by group; return its figures and their file.

    Args:
        table, options: what to run. globs: patterns of the cells to run; all if empty.
        seeds: of each cell; None for as many as the claims of its group need. jobs: runs at a time.
        out: folder for runs and pages; ``reproduced/TABLE-SCALE`` if None.
        progress: called with the number of runs and the title of each group.
        on_report: called with the page of each group.
    """
    rows, chosen = _rows_to_run(table, options, globs)
    out = out or Path("reproduced", _folder_name(table, options))
    command = _command(table.name, options, globs, seeds, jobs)
    figures = _no_figures_yet(table, options, chosen, command)
    for name, group in table.groups.items():
        folder = out / name.replace("/", "-")
        count = seeds or group.seeds
        shown = [row for row in rows if row.group == name and _is_shown(row, chosen, folder, count)]
        cells = [cell for _, cell in _runnable(shown)]
        if not cells:
            continue
        title = f"{group.title}, scale {_scale_name(options)}, {count} seeds"
        with progress(len(cells) * count, title) as listener:
            compare(
                cells,
                range(count),
                folder,
                title=title,
                command=command,
                jobs=jobs,
                listener=listener,
            )
        figures["groups"][name] = _group_figures(group, shown, folder, count, figures["judged"])
        _add_environments(figures, cells, folder, count)
        if not options.changed:
            figures["statements"] = statements(table.name, figures["groups"])
        write_json(out / "figures.json", figures)
        on_report(write_comparison_report(folder))
    return figures, out / "figures.json"


def _rows_to_run(
    table: PaperTable, options: Options, globs: Sequence[str]
) -> tuple[list[PaperCell], list[PaperCell]]:
    """Return all rows of a table, and those to run; raise if one of these cannot run."""
    if options.labels_per_class is not None and not table.few_labels:
        raise SettingsError(
            f"labels_per_class=... needs a table with a setting B; {table.name} has none."
        )
    rows = table.all_cells(options)
    chosen = select(rows, globs)
    for row in chosen:
        check_weights(row.experiment)
    return rows, chosen


def _runnable(rows: Iterable[PaperCell]) -> Iterator[tuple[PaperCell, Cell]]:
    for row in rows:
        if row.cell is not None:
            yield row, row.cell


def _scale_name(options: Options) -> str:
    if options.features == "live":
        return options.scale
    return f"{options.scale}-{options.features}"


def _folder_name(table: PaperTable, options: Options) -> str:
    parts = [table.name, _scale_name(options)]
    if options.labels_per_class is not None:
        parts.append(f"{options.labels_per_class}labels")
    if options.steps is not None:
        parts.append(f"{options.steps}steps")
    return "-".join(parts)


def _no_figures_yet(
    table: PaperTable, options: Options, chosen: Sequence[PaperCell], command: str
) -> TableFigures:
    return {
        "command": command,
        "table": table.name,
        "title": table.title,
        "scale": options.scale,
        "features": options.features,
        "metric": METRIC,
        "judged": options.scale == "paper" and not options.changed,
        "changed": [_setting_without_folders(setting) for setting in options.changed],
        "gp_settings": gp_settings(table, chosen),
        "environments": [],
        "groups": {},
        "statements": [],
    }


def _is_shown(row: PaperCell, chosen: Sequence[PaperCell], folder: Path, seeds: int) -> bool:
    """Return whether a row is quoted, was chosen, or was run before with these very settings."""
    if row.cell is None or row in chosen:
        return True
    try:
        return all(finished_run(folder, row.cell, seed) is not None for seed in range(seeds))
    except (RunError, ValueError):
        return False


def _add_environments(
    figures: TableFigures, cells: Sequence[Cell], folder: Path, seeds: int
) -> None:
    """Add the versions and machines that the runs record, each once."""
    for cell in cells:
        for seed in range(seeds):
            path = run_path(folder, cell, seed) / "environment.json"
            missing = "the run does not say where it was made"
            place = read_run_json(path, dict[str, str], missing=missing)
            if place not in figures["environments"]:
                figures["environments"].append(place)


# Figures ------------------------------------------------------------------------------------------


def _group_figures(
    group: Group, rows: Sequence[PaperCell], folder: Path, seeds: int, judged: bool
) -> GroupFigures:
    cells = {row.row: _row_figures(row, folder, seeds, judged=judged) for row in rows}
    first = next(cell for _, cell in _runnable(rows))
    return {
        "title": group.title,
        "seeds": list(range(seeds)),
        "class_names": list(RunFolder(run_path(folder, first, 0)).read_split()["class_names"]),
        "cells": cells,
        "gains": _gains(group, cells, judged=judged),
    }


def _row_figures(row: PaperCell, folder: Path, seeds: int, *, judged: bool) -> CellFigures:
    """Return what was published of a row and, if it was run, its figures."""
    published = None
    if row.published is not None:
        published = cast("PublishedFigure", asdict(row.published))
    if row.cell is None:
        return {"label": row.row, "published": published}
    runs = [RunFolder(run_path(folder, row.cell, seed)) for seed in range(seeds)]
    summaries: list[Any] = [run.read_summary() for run in runs]
    results = [summary["results"] for summary in summaries]
    evaluations = [
        [entry for entry in read_run(run.path, bulky=False).evals if entry["part"] == "test"]
        for run in runs
    ]
    head = results[0]["last"]["head"]
    figures: CellFigures = {
        "label": row.cell.label,
        "published": published,
        "last": _last_accuracy([result["last"] for result in results]),
        "best_on_test": _best_accuracy([result["best_on_test"] for result in results]),
        "head": head,
        "last_by_head": _by_head(evaluations),
        "mean_of_last_20": [_mean_of_last(entries, head) for entries in evaluations],
        "seconds": [round(summary["seconds"], 1) for summary in summaries],
        "split_sha256": [run.read_split()["sha256"] for run in runs],
        "config": without_folders(row.cell.experiment.to_plain()),
    }
    if row.published is not None and not row.published.quoted:
        _compare_with(row.published, figures["last"], judged=judged)
        _compare_with(row.published, figures["best_on_test"], judged=judged)
    return figures


def _compare_with(published: Published, ours: Accuracy, *, judged: bool) -> None:
    ours["difference"] = round(ours["mean"] - published.top1, 2)
    ours["agrees"] = agrees(ours["mean"], published) if judged else None


def _accuracy(results: Sequence[Mapping[str, Any]]) -> Accuracy:
    """Return accuracies in percent; the deviation divides by the number of seeds, as USB's does."""
    values = [100 * result[METRIC] for result in results]
    return {
        "top1": [round(value, 2) for value in values],
        "mean": round(fmean(values), 2),
        "std": round(pstdev(values), 2),
    }


def _last_accuracy(results: Sequence[Mapping[str, Any]]) -> LastAccuracy:
    many, medium, few = (
        [_percent(result["groups"].get(name)) for result in results] for name in CLASS_GROUPS
    )
    return {
        **_accuracy(results),
        "balanced_accuracy": [_percent(result["balanced_accuracy"]) for result in results],
        "many": many,
        "medium": medium,
        "few": few,
        "per_class_recall": [
            [_percent(recall, 1) for recall in result["per_class_recall"]] for result in results
        ],
    }


def _best_accuracy(results: Sequence[Mapping[str, Any]]) -> BestAccuracy:
    return {**_accuracy(results), "step": [result["step"] for result in results]}


def _mean_of_last(entries: Sequence[Mapping[str, Any]], head: str) -> float | None:
    values = [entry[METRIC] for entry in entries if entry["head"] == head]
    return _percent(fmean(values[-EVALUATIONS_AVERAGED:]))


def _by_head(runs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, list[float]]:
    """Return the balanced accuracy of every head at the last step, one value per seed."""
    heads: dict[str, list[float]] = {}
    for entries in runs:
        for entry in entries:
            if entry["step"] == entries[-1]["step"]:
                heads.setdefault(entry["head"], []).append(
                    round(100 * entry["balanced_accuracy"], 2)
                )
    return heads


def _gains(group: Group, cells: Mapping[str, CellFigures], *, judged: bool) -> list[Gain]:
    """Return what each refiner adds to its base at the last step, seed by seed."""
    gains = []
    for row, cell in cells.items():
        method, _, refiner = row.rpartition("+")  # an algorithm, or an algorithm with an add-on
        base = cells.get(f"{method}+none")
        if "last" not in cell or refiner == "none" or base is None:
            continue
        pairs = zip(cell["last"]["top1"], base["last"]["top1"], strict=True)
        differences = [ours - theirs for ours, theirs in pairs]
        linear = None
        if cell["head"] != "linear":
            means = (fmean(one["last_by_head"]["linear"]) for one in (cell, base))
            linear = round(next(means) - next(means), 2)
        printed = cell["published"]
        delta = printed["delta"] if printed else None
        meant = printed["meant"] if printed else None
        claimed = delta if meant is None else meant
        claim = None
        if judged and claimed is not None:
            claim = judge_gain(differences, claimed, enough=group.seeds)
        gain: Gain = {
            "with": row,
            "without": f"{method}+none",
            "label": cell["label"],
            "gains": [round(difference, 2) for difference in differences],
            "mean": round(fmean(differences), 2),
            "std": round(pstdev(differences), 2),
            "linear": linear,
            "published": delta,
            "claimed": claimed,
            "claim": claim,
        }
        gains.append(gain)
    return gains


def statements(table: str, groups: Mapping[str, GroupFigures]) -> list[StatementFigures]:
    """Return the numbers that the paper's text gives for a whole table, from ours and from its own.

    Ours are those of the linear layer, also where another head is judged, so that all accuracies
    are of one kind. A row that the paper quotes counts as ours too: it is what ours are compared
    with.
    """
    ours: dict[tuple[str, str], float] = {}
    printed: dict[tuple[str, str], float] = {}
    for group, entry in groups.items():
        for row, cell in entry["cells"].items():
            if cell["published"]:
                printed[group, row] = ours[group, row] = cell["published"]["top1"]
            if "last" in cell:
                ours[group, row] = fmean(cell["last_by_head"]["linear"])
    made: list[StatementFigures] = []
    for statement in STATEMENTS.get(table, ()):
        units = statement.units(ours)
        if not units:
            continue
        known = set(units) <= set(statement.units(printed))
        made.append(
            {
                "name": statement.name,
                "over": units,
                "missing": [unit for unit in statement.pairs if unit not in units],
                "ours": _rounded(statement.value(ours, units)),
                "published": _rounded(statement.value(printed, units)) if known else None,
                "printed": statement.printed,
            }
        )
    return made


def gp_settings(table: PaperTable, cells: Sequence[PaperCell]) -> GPSettings:
    """Return l^2, sigma^2 and lambda of the GP by data set; the paper does not print its own."""
    settings = {}
    for row, cell in _runnable(cells):
        group = table.groups[row.group]
        refiner = cell.experiment.refiner
        if isinstance(refiner, GPConfig):
            scales = refiner.starting_scales(group.data.n_classes)
            values = {
                "l^2": scales["length_scale"] ** 2,
                "sigma^2": refiner.noise_std**2,
                "lambda": scales["logit_scale"],
            }
            settings[group.suite] = {name: float(f"{value:.3g}") for name, value in values.items()}
    return settings


def _percent(share: float | None, digits: int = 2) -> float | None:
    return _rounded(None if share is None else 100 * share, digits)


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)


# Without the folders of this machine --------------------------------------------------------------


def without_folders(value: Any, key: str = "") -> Any:
    """Return nested settings in which every path is reduced to the name of its file."""
    if isinstance(value, Mapping):
        return {name: without_folders(inner, name) for name, inner in value.items()}
    if not isinstance(value, str):
        return value
    is_path = key in PATHS or Path(value).is_absolute() or value.startswith("~")
    return Path(value).name if is_path else value


def _setting_without_folders(setting: str) -> str:
    key, equals, value = setting.partition("=")
    return f"{key}{equals}{without_folders(value, key.strip().rpartition('.')[2])}"


def _command(
    table: str, options: Options, globs: Sequence[str], seeds: int | None, jobs: int
) -> str:
    """Return the command that makes the same figures, with names in place of paths and no out."""
    repeated: dict[str, Sequence[str]] = {
        "cell": globs,
        "algorithm": options.algorithms,
        "addon": options.addons,
        "refiner": () if options.refiners == Options().refiners else options.refiners,
    }
    single: dict[str, object | None] = {
        "labels-per-class": options.labels_per_class,
        "steps": options.steps,
        "seeds": seeds,
        "scale": options.scale,
        "features": None if options.features == "live" else options.features,
    }
    words = ["semigpc", "reproduce", table, "--root", _name(options.root)]
    if options.weights:
        words += ["--weights", _name(options.weights)]
    for option, values in repeated.items():
        words += [word for value in values for word in (f"--{option}", value)]
    for option, value in single.items():
        words += [] if value is None else [f"--{option}", str(value)]
    for setting in options.overrides:
        words += ["--set", _setting_without_folders(setting)]
    if jobs > 1:
        words += ["--jobs", str(jobs)]
    return shlex.join(words)


def _name(path: Path) -> str:
    return path.expanduser().resolve().name
