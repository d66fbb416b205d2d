"""A table of the paper, run and put beside what was published, seed by seed, without the names of
this machine's folders.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from semigpc.io.atomic import write_json
from semigpc.io.errors import RunError, SettingsError
from semigpc.io.text import CLASS_GROUPS
from semigpc.paper.cost import MACHINES, price
from semigpc.paper.published import STATEMENTS, agrees, judge_gain
from semigpc.paper.scales import check_weights
from semigpc.paper.tables import Group, Options, PaperCell, PaperTable, Scale, select
from semigpc.refiners import GPConfig
from semigpc.report.comparison_page import write_comparison_report
from semigpc.training import RunFolder
from semigpc.training.comparison import Cell, ComparisonListener, compare, finished_run, run_path
from semigpc.training.run_folder import read_run, read_run_json

METRIC = "top1"
PATHS = ("root", "splits", "pretrained")  # settings that contain a path
LAST = 20  # evaluations that some authors average over


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
) -> tuple[dict[str, Any], Path]:
    """Run what is missing of a table, group by group, and return its figures and the file that
    holds them.

    Args:
        table, options: what to run. globs: patterns of the cells to run; all without any.
        seeds: of each cell; without a number, as many as the claims of its group need. jobs: runs
            at a time.
        out: folder for runs and pages; ``reproduced/TABLE-SCALE`` without one.
        progress: called with the number of runs and the title of each group. on_report: called with
            the page of each group.
    """
    if options.labels_per_class is not None and not table.few_labels:
        raise SettingsError(
            f"{table.name} has no setting B, whose labels could be counted; leave --labels-per-class out."
        )
    rows = table.all_cells(options)
    chosen = select(rows, globs)
    for row in chosen:
        check_weights(row.experiment)
    kind = options.scale if options.features == "live" else f"{options.scale}-{options.features}"
    labels = "" if options.labels_per_class is None else f"-{options.labels_per_class}labels"
    steps = "" if options.steps is None else f"-{options.steps}steps"
    out = out or Path("reproduced") / f"{table.name}-{kind}{labels}{steps}"
    figures: dict[str, Any] = {
        "command": _command(table.name, options, globs, seeds, jobs),
        "table": table.name,
        "title": table.title,
        "scale": options.scale,
        "features": options.features,
        "metric": METRIC,
        "judged": options.scale == "paper"
        and not options.changed,  # whether ours are compared with the paper's
        "changed": [_setting_without_folders(setting) for setting in options.changed],
        "gp_settings": gp_settings(table, chosen),
        "environments": [],
        "groups": {},
        "statements": [],
    }
    for name, group in table.groups.items():
        folder, count = out / name.replace("/", "-"), seeds or group.seeds
        shown = [
            row
            for row in rows
            if row.group == name
            and (row.cell is None or row in chosen or _is_finished(row.cell, folder, count))
        ]
        cells = [row.cell for row in shown if row.cell is not None]
        if not cells:
            continue
        title = f"{group.title}, scale {kind}, {count} seeds"
        with progress(len(cells) * count, title) as listener:
            compare(
                cells,
                range(count),
                folder,
                title=title,
                command=figures["command"],
                jobs=jobs,
                listener=listener,
            )
        by_row = {
            row.row: _cell_figures(row, folder, count, judged=figures["judged"]) for row in shown
        }
        figures["groups"][name] = {
            "title": group.title,
            "seeds": list(range(count)),
            "class_names": RunFolder(run_path(folder, cells[0], 0)).read_split()["class_names"],
            "cells": by_row,
            "gains": _gains(group, by_row, judged=figures["judged"]),
        }
        for path in (
            run_path(folder, cell, seed) / "environment.json"
            for cell in cells
            for seed in range(count)
        ):
            place = read_run_json(
                path, dict[str, str], missing="the run does not say where it was made"
            )
            if place not in figures["environments"]:
                figures["environments"].append(place)
        if not options.changed:
            figures["statements"] = statements(table.name, figures["groups"])
        write_json(out / "figures.json", figures)
        on_report(write_comparison_report(folder))
    return figures, out / "figures.json"


def _is_finished(cell: Cell, folder: Path, seeds: int) -> bool:
    """Return whether every seed was run before, with these very settings."""
    try:
        return all(finished_run(folder, cell, seed) is not None for seed in range(seeds))
    except (RunError, ValueError):
        return False


# Figures ------------------------------------------------------------------------------------------


def _cell_figures(row: PaperCell, folder: Path, seeds: int, *, judged: bool) -> dict[str, Any]:
    """Return what was published of a row and, if it was run, its figures in percent, one per seed."""
    published = None if row.published is None else asdict(row.published)
    if row.cell is None:
        return {"label": row.row, "published": published}
    paths = [run_path(folder, row.cell, seed) for seed in range(seeds)]
    summaries: list[Any] = [RunFolder(path).read_summary() for path in paths]
    runs = [
        [entry for entry in read_run(path, bulky=False).evals if entry["part"] == "test"]
        for path in paths
    ]
    last, best = (
        [summary["results"][choice] for summary in summaries] for choice in ("last", "best_on_test")
    )
    head = last[0]["head"]
    figures: dict[str, Any] = {
        "label": row.cell.label,
        "published": published,
        "last": _over_seeds(last)
        | {
            "balanced_accuracy": [_percent(result["balanced_accuracy"]) for result in last],
            **{
                name: [_percent(result["groups"].get(name)) for result in last]
                for name in CLASS_GROUPS
            },
            "per_class_recall": [
                [_percent(recall, 1) for recall in result["per_class_recall"]] for result in last
            ],
        },
        "best_on_test": _over_seeds(best) | {"step": [result["step"] for result in best]},
        "head": head,
        "last_by_head": _by_head(runs),
        f"mean_of_last_{LAST}": [
            _percent(
                fmean(
                    [entry["balanced_accuracy"] for entry in evaluations if entry["head"] == head][
                        -LAST:
                    ]
                )
            )
            for evaluations in runs
        ],
        "seconds": [round(summary["seconds"], 1) for summary in summaries],
        "split_sha256": [RunFolder(path).read_split()["sha256"] for path in paths],
        "config": without_folders(row.cell.experiment.to_plain()),
    }
    if row.published is not None and not row.published.quoted:
        for choice in ("last", "best_on_test"):
            mean = figures[choice]["mean"]
            figures[choice]["difference"] = round(mean - row.published.top1, 2)
            figures[choice]["agrees"] = agrees(mean, row.published) if judged else None
    return figures


def _by_head(runs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, list[float | None]]:
    """Return the balanced accuracy of every head at the last step, also of those that are not the
    headline.
    """
    heads: dict[str, list[float | None]] = {}
    for evaluations in runs:
        for entry in evaluations:
            if entry["step"] == evaluations[-1]["step"]:
                heads.setdefault(entry["head"], []).append(_percent(entry["balanced_accuracy"]))
    return heads


def _over_seeds(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return accuracies in percent; the deviation divides by the number of seeds, as USB's does."""
    values = [100 * result[METRIC] for result in results]
    return {
        METRIC: [round(value, 2) for value in values],
        "mean": round(fmean(values), 2),
        "std": round(pstdev(values), 2),
    }


def _gains(
    group: Group, cells: Mapping[str, Mapping[str, Any]], *, judged: bool
) -> list[dict[str, Any]]:
    """Return what each refiner adds to its base at the last step, seed by seed."""
    rows = []
    for row, cell in cells.items():
        method, _, refiner = row.rpartition("+")  # an algorithm, or an algorithm with an add-on
        base = cells.get(f"{method}+none")
        if "last" not in cell or refiner == "none" or base is None:
            continue
        gains = [
            ours - theirs
            for ours, theirs in zip(cell["last"][METRIC], base["last"][METRIC], strict=True)
        ]
        linear = cell["last_by_head"]["linear"] if cell["head"] != "linear" else None
        printed = cell["published"] or {}
        claimed = printed.get("delta") if printed.get("meant") is None else printed["meant"]
        rows.append(
            {
                "with": row,
                "without": f"{method}+none",
                "label": cell["label"],
                "gains": [round(gain, 2) for gain in gains],
                "mean": round(fmean(gains), 2),
                "std": round(pstdev(gains), 2),
                "linear": None
                if linear is None
                else round(fmean(linear) - fmean(base["last_by_head"]["linear"]), 2),
                "published": printed.get("delta"),
                "claimed": claimed,
                "claim": judge_gain(gains, claimed, enough=group.seeds)
                if judged and claimed is not None
                else None,
            }
        )
    return rows


def statements(table: str, groups: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what the paper's text says of a whole table, computed from ours and, over the same
    units, from the published.

    Ours are those of the linear layer, also where another head is judged, so that all accuracies
    are of one kind.

    Args:
        table: its name. groups: as in figures.json. A row that the paper quotes counts as ours,
            too: it is what ours are compared with.
    """
    ours: dict[tuple[str, str], float] = {}
    printed: dict[tuple[str, str], float] = {}
    for group, entry in groups.items():
        for row, cell in entry["cells"].items():
            if cell["published"]:
                printed[group, row] = cell["published"]["top1"]
            if "last" in cell or cell["published"]:
                ours[group, row] = (
                    fmean(cell["last_by_head"]["linear"])
                    if "last" in cell
                    else cell["published"]["top1"]
                )
    made = []
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


def gp_settings(table: PaperTable, cells: Sequence[PaperCell]) -> dict[str, dict[str, float]]:
    """Return l^2, sigma^2 and lambda of the GP by data set: values of ours, since the paper prints
    none.
    """
    found = {}
    for cell in cells:
        group = table.groups[cell.group]
        if cell.experiment is not None and isinstance(refiner := cell.experiment.refiner, GPConfig):
            scales = refiner.starting_scales(group.data.n_classes)
            values = {
                "l^2": scales["length_scale"] ** 2,
                "sigma^2": refiner.noise_std**2,
                "lambda": scales["logit_scale"],
            }
            found[group.suite] = {name: float(f"{value:.3g}") for name, value in values.items()}
    return found


def _percent(share: float | None, digits: int = 2) -> float | None:
    return _rounded(None if share is None else 100 * share, digits)


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)


def without_folders(value: Any, key: str = "") -> Any:
    """Return nested settings in which every path is reduced to the name of its file."""
    if isinstance(value, Mapping):
        return {name: without_folders(inner, name) for name, inner in value.items()}
    if isinstance(value, str) and (
        key in PATHS or Path(value).is_absolute() or value.startswith("~")
    ):
        return Path(value).name
    return value


def _command(
    table: str, options: Options, globs: Sequence[str], seeds: int | None, jobs: int
) -> str:
    """Return the command that makes the same figures, with names in place of paths; where the runs
    were put is left out.
    """
    words = ["semigpc", "reproduce", table, "--root", options.root.expanduser().resolve().name]
    words += ["--weights", options.weights.expanduser().resolve().name] if options.weights else []
    for option, values in (
        ("--cell", globs),
        ("--algorithm", options.algorithms),
        ("--addon", options.addons),
    ):
        words += [word for value in values for word in (option, value)]
    if options.refiners != Options().refiners:
        words += [word for value in options.refiners for word in ("--refiner", value)]
    words += (
        ["--labels-per-class", str(options.labels_per_class)]
        if options.labels_per_class is not None
        else []
    )
    words += ["--steps", str(options.steps)] if options.steps is not None else []
    words += ["--seeds", str(seeds)] if seeds is not None else []
    words += ["--scale", options.scale]
    words += ["--features", options.features] if options.features != "live" else []
    words += [
        word
        for setting in options.overrides
        for word in ("--set", _setting_without_folders(setting))
    ]
    words += ["--jobs", str(jobs)] if jobs > 1 else []
    return shlex.join(words)


def _setting_without_folders(setting: str) -> str:
    key, equals, value = setting.partition("=")
    return f"{key}{equals}{without_folders(value, key.strip().rpartition('.')[2])}"


# Costs --------------------------------------------------------------------------------------------


def prices_of(
    table: PaperTable, cells: Sequence[PaperCell], scale: Scale, seeds: int | None
) -> dict[str, Any]:
    """Estimate the hours of one run of each cell, and of all of them with so many seeds, or as many
    as their claims need.
    """
    costs: dict[str, dict[str, Any]] = {}
    all_hours, shared = (
        0.0,
        dict[str, float](),
    )  # cells of a group share the features of a frozen network
    for cell in cells:
        if cell.experiment is None:
            continue
        group = table.groups[cell.group]
        cost, count = price(cell.experiment, group.data), seeds or group.seeds
        hours = cost.hours(MACHINES[scale])
        all_hours += count * (hours.total - hours.features)
        shared[cell.group] = count * hours.features
        costs[cell.key] = {
            "network": cell.experiment.model.name,
            "seeds": count,
            "steps": cost.steps,
            "images_with_gradient": cost.learnt,
            "images_without": cost.looked_at,
            "hours": hours._asdict(),
            "gp_bytes": cost.gp_bytes,
        }
    return {
        "table": table.name,
        "title": table.title,
        "gp_settings": gp_settings(table, cells),
        "cells": costs,
        "hours": all_hours + sum(shared.values()),
    }
