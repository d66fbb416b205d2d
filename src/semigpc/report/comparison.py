"""The page of a comparison: which method is better, by how much, on which classes, and how sure that is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.files import Count, FileError, read_json, replacing
from semigpc.report.class_figures import RANKS, class_axis, class_shares, draw_shares, share_scale
from semigpc.report.run_page import FEW_POINTS
from semigpc.report.run_record import LOOSE, Entry, Figures, Floats, RunFolder, floats, read_run, series
from semigpc.report.style import (
    BLUE,
    FONT,
    FULL,
    GREEN,
    GREY,
    INK,
    MUTED,
    NAMED,
    ORANGE,
    PAPER,
    Chart,
    chart,
    key_below,
    name_panel,
    panels,
    present,
    running_mean,
    share_axis,
    step_axis,
    write_page,
)
from semigpc.report.wording import ALGORITHMS, metric_name, number_of, short
from semigpc.text import CLASS_GROUPS, count, mean_and_spread, points

COLUMNS = ("balanced_accuracy", *CLASS_GROUPS, "top1", "macro_f1", "ece")
LOWER_IS_BETTER = ("ece", "loss")
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
PANELS_ACROSS = 3
STYLES = {"none": ("algorithms alone", BLUE), "similarity": ("with a kernel average", GREEN), "gp": ("with SemiGPC", ORANGE)}


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


Pick = Callable[[Entry, RunFolder], Sequence[Entry]]


def write_comparison_report(folder: Path) -> Path:
    """Read a comparison folder and write ``report.html`` into it, leaving out what needs files that are not there.

    Runs that have a ``report.html`` of their own are linked, by relative paths, so write theirs first.

    Returns:
        The path of the page: one file, with everything it shows inside.

    Raises:
        FileNotFoundError: if the folder holds no comparison.json.
        ValueError: if comparison.json is not a JSON object, or if files of a run disagree on the number of classes.
    """
    return write_page(folder / "report.html", "comparison.html", _context(read_comparison(folder)))


def _context(comparison: Comparison) -> dict[str, Any]:
    record = comparison.record
    seeds = record.get("seeds") or []
    labelled = comparison.reference.counts("labeled_counts")
    facts = [("Methods", count(len(comparison.cells))), ("Seeds", ", ".join(map(str, seeds)) or "none")]
    if comparison.reference.class_names:
        facts.append(("Classes", count(len(comparison.reference.class_names))))
    if labelled is not None and len(labelled):
        facts.append(("Labelled images", count(labelled.sum())))
    charts = {
        "differences": [difference_chart(comparison)],
        "curves": [curve_chart(comparison)],
        "classes": [recall_chart(comparison)],
        "pseudo": [pseudo_chart(comparison), share_chart(comparison)],
    }
    return {
        "title": str(record.get("title") or "Comparison"),
        "command": str(record.get("command") or ""),
        "metric": comparison.metric,
        "seeds": seeds,
        "facts": facts,
        "problems": [*comparison.problems, *_shortfall(comparison)],
        "columns": _columns(comparison),
        "rows": _rows(comparison),
        "pairs": [_pair(pair) for pair in record.get("pairs") or []],
        "runs": [run for cell in comparison.cells for run in _runs(comparison, cell)],
        **{name: [[one] for one in present(found)] for name, found in charts.items()},
    }


def _columns(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys((comparison.metric, *COLUMNS)))


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    """List the cells as mean and deviation by column, with the best of each column marked."""
    columns, baseline = _columns(comparison), comparison.record.get("baseline")
    means = {cell.name: {key: number_of(cell.record.get("mean") or {}, key) for key in columns} for cell in comparison.cells}
    best = {}
    for key in columns:
        known = [value for mean in means.values() if (value := mean[key]) is not None]
        if len(set(known)) > 1:
            best[key] = min(known) if key in LOWER_IS_BETTER else max(known)
    rows = []
    for cell in comparison.cells:
        mean, std, n = means[cell.name], cell.record.get("std") or {}, len(cell.results())
        start = means.get(str(baseline), {}).get(comparison.metric)
        reached = mean[comparison.metric]
        gain = None if start is None or reached is None or cell.name == baseline else reached - start
        rows.append(
            {
                "label": cell.label,
                "swatch": _swatch(cell),
                "baseline": cell.name == baseline,
                "n": n,
                "gain": points(gain),
                "numbers": [
                    (*mean_and_spread(mean[key], number_of(std, key), n), mean[key] is not None and mean[key] == best.get(key))
                    for key in columns
                ],
            }
        )
    return rows


def _pair(pair: dict[str, Any]) -> dict[str, Any]:
    differences = [value for value in pair.get("differences") or [] if value is not None]
    spread = f" \N{PLUS-MINUS SIGN} {100 * pair['std']:.1f}" if len(differences) > 1 and pair.get("std") is not None else ""
    return {
        "name": pair["name"],
        "mean": points(pair.get("mean_difference")) + spread,
        "wins": pair.get("wins", 0),
        "losses": pair.get("losses", 0),
        "differences": ", ".join(points(value) for value in differences),
    }


def _runs(comparison: Comparison, cell: Cell) -> list[dict[str, Any]]:
    rows = []
    for run in cell.record.get("runs") or []:
        folder = str(run.get("folder") or "")
        there = bool(folder) and (comparison.path / folder / "report.html").is_file()
        rows.append(
            {
                "label": cell.label,
                "seed": run.get("seed"),
                "folder": folder,
                "link": quote(f"{folder}/report.html", safe="/+") if there else "",
                "value": number_of(run.get("result") or {}, comparison.metric),
                "seconds": run.get("seconds"),
            }
        )
    return rows


def _shortfall(comparison: Comparison) -> list[str]:
    """Name the cells that have fewer results than the comparison has seeds: their means are not over the same draws."""
    wanted = len(comparison.record.get("seeds") or [])
    lacking = [f"{cell.label} ({len(cell.results())})" for cell in comparison.cells if len(cell.results()) < wanted]
    return [f"Means over fewer than the {wanted} seeds asked for: {', '.join(lacking)}."] if lacking else []


def _swatch(cell: Cell) -> Markup:
    """A short piece of the cell's line, as its charts draw it."""
    dashes = "" if isinstance(cell.dashes, str) else " ".join(f"{2 * length:g}" for length in cell.dashes[1])
    return Markup(
        '<svg class="swatch" viewBox="0 0 34 10" aria-hidden="true"><path d="M1 5H33" fill="none" stroke="{}" '
        'stroke-width="3" stroke-dasharray="{}"/></svg>'
    ).format(cell.colour, dashes or "none")


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


def difference_chart(comparison: Comparison) -> Chart | None:
    """Draw each pair's difference as a dot for each seed, and their mean as a bar."""
    pairs = [pair for pair in comparison.record.get("pairs") or [] if pair.get("differences")]
    if not pairs:
        return None
    colours = {cell.name: cell.colour for cell in comparison.cells}
    figure, (axes,) = panels(1, 1, height=0.9 + 0.42 * len(pairs))
    for row, pair in enumerate(pairs):
        colour = colours.get(str(pair.get("with")), GREY)
        differences = 100 * floats(pair["differences"])
        spread = (np.arange(len(differences)) - (len(differences) - 1) / 2) * min(0.09, 0.5 / len(differences))
        mean = 100 * float(pair["mean_difference"])
        axes.plot([mean, mean], [row - 0.33, row + 0.33], color=INK, linewidth=2.6, zorder=3)
        axes.scatter(differences, row + spread, s=38, color=colour, edgecolors=PAPER, linewidths=0.8, zorder=4)
        axes.text(1.01, row, points(mean / 100), transform=axes.get_yaxis_transform(), va="center", fontsize=FONT, color=INK)
    axes.axvline(0, color=MUTED, linewidth=1.2)
    axes.set_yticks(range(len(pairs)), [short(str(pair["name"]), 40) for pair in pairs])
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    reach = 1.12 * max(0.1, *(abs(100 * value) for pair in pairs for value in pair["differences"] if value is not None))
    axes.set_xlim(min(-0.15 * reach, axes.get_xlim()[0]), max(0.15 * reach, axes.get_xlim()[1]))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    name_panel(axes, x=f"difference in {metric_name(comparison.metric).lower()}, percentage points")
    caption = "Dots are seeds, the bar their mean; look for all dots on one side of zero, which with few seeds can be chance."
    return chart(figure, "Paired differences, seed by seed", caption)


def curve_chart(comparison: Comparison) -> Chart | None:
    """Draw the metric over training for all cells."""

    def pick(result: Entry, run: RunFolder) -> Sequence[Entry]:
        return run.curve(str(result.get("part", "test")), str(result.get("head", run.head)))

    name = metric_name(comparison.metric)
    caption = "Lines are means and bands span all seeds; look at where the lines part, and whether the bands overlap."
    return _over_steps(comparison, {name: (pick, comparison.metric)}, f"{name} over training", caption, whole=False)


def pseudo_chart(comparison: Comparison) -> Chart | None:
    """Draw coverage and precision of the pseudo-labels over training for all cells."""
    entries: Pick = lambda _, run: run.pseudo  # noqa: E731
    measures = {"Coverage": (entries, "coverage"), "Precision": (entries, "precision")}
    caption = "The better method is higher on both sides; a gain in coverage that costs precision is no gain."
    return _over_steps(comparison, measures, "Quality of the pseudo-labels", caption, whole=True)


def recall_chart(comparison: Comparison) -> Chart | None:
    """Draw the recall of each class for all cells."""
    n = len(comparison.reference.class_names)
    caption = "Classes stand from common to rare; look at how far each line falls on the right."
    return _over_classes(
        comparison, lambda cell: cell.mean_per_class("per_class_recall", n), "Recall of each class", caption, shares=False
    )


def share_chart(comparison: Comparison) -> Chart | None:
    """Draw how often each cell believes each class to occur, against the truth where it is known."""

    def believed(cell: Cell) -> Floats | None:
        found = [shares for _, run in cell.runs if (shares := class_shares(run)[1]) is not None]
        return mean_of(found) if found else None

    known = class_shares(comparison.reference)[2] is not None
    against = "the broad grey line, the truth" if known else "the dotted line, the share among the labels"
    caption = f"Pseudo-labels should follow {against}; a method that falls below it on the right overlooks rare classes."
    return _over_classes(comparison, believed, "Class counts: believed and true", caption, shares=True)


def _over_steps(
    comparison: Comparison, measures: dict[str, tuple[Pick, str]], title: str, caption: str, *, whole: bool
) -> Chart | None:
    """Draw measures of all cells over steps: a panel for each measure, and a row for each group of cells."""
    curves = {
        (name, cell.name): found
        for name, (pick, key) in measures.items()
        for cell in comparison.cells
        if (found := cell.over_steps(pick, key)) is not None
    }
    shown = [name for name in measures if any(measure == name for measure, _ in curves)]
    if not curves:
        return None
    drawn = {cell for _, cell in curves}
    groups = [(group, cells) for group, cells in comparison.groups() if any(cell.name in drawn for cell in cells)]
    places = [(group, cells, name) for group, cells in groups for name in shown]
    figure, found_panels = _grid(len(places), columns=2 if len(shown) == 2 else 3)
    for axes, (group, cells, name) in zip(found_panels, places, strict=True):
        for cell in cells:
            if (name, cell.name) in curves:
                _draw_band(axes, cell, *curves[name, cell.name])
        heading = [ALGORITHMS.get(group, group)] if group else []
        name_panel(axes, ": ".join(heading + ([name] if len(shown) > 1 else [])))
        step_axis(axes)
    _same_limits(found_panels)
    for axes in found_panels:
        share_axis(axes, whole=whole)
    key_below(figure)
    return chart(figure, title, caption)


def _over_classes(
    comparison: Comparison, values: Callable[[Cell], Floats | None], title: str, caption: str, *, shares: bool
) -> Chart | None:
    """Draw one number for each class and cell, classes by rank, a panel for each group of cells."""
    reference = comparison.reference
    n, order = len(reference.class_names), reference.order
    found = {cell.name: numbers for cell in comparison.cells if (numbers := values(cell)) is not None and len(numbers) == n}
    if not found or not n:
        return None
    groups = [(group, cells) for group, cells in comparison.groups() if any(cell.name in found for cell in cells)]
    figure, places = panels(len(groups), 1, height=3.9 if len(groups) == 1 else 1.0 + 2.1 * len(groups))
    given, _, true = class_shares(reference)
    for axes, (group, cells) in zip(places, groups, strict=True):
        if shares and true is not None:
            draw_shares(axes, true[order], color=MUTED, linewidth=6, alpha=0.45, label="true, among the unlabelled")
        elif shares and given is not None:
            draw_shares(axes, given[order], color=INK, linestyle=":", label="given, among the labelled")
        for cell in (cell for cell in cells if cell.name in found):
            numbers = found[cell.name][order]
            marks = {"marker": cell.marker} if n <= NAMED else {}
            draw_shares(axes, numbers if n <= NAMED else running_mean(numbers), **cell.line, **marks, label=_key_name(cell))
        if shares:
            share_scale(axes, [known for known in (given, true) if known is not None])
        else:
            share_axis(axes, whole=True)
        class_axis(axes, reference)
        lowest = axes is places[-1]
        axes.tick_params(axis="x", labelbottom=lowest)
        name_panel(axes, ALGORITHMS.get(group, short(group, 40)), x=f"{RANKS} (running means)" if lowest and n > NAMED else "")
    key_below(figure)
    return chart(figure, title, caption)


def _key_name(cell: Cell) -> str:
    name = short(cell.label, 40)
    return f" {name}" if name.startswith("_") else name  # matplotlib leaves a name out of keys that begins with an underscore


def _draw_band(axes: Axes, cell: Cell, steps: Floats, values: Floats) -> None:
    """Draw the mean over runs of values (runs, S), and a band around it if there are several."""
    marker = cell.marker if len(steps) <= FEW_POINTS else ""
    axes.plot(steps, values.mean(axis=0), **cell.line, marker=marker, markersize=3.5, label=_key_name(cell))
    if len(values) > 1:
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=cell.colour, alpha=0.15, linewidth=0)


def _grid(n: int, *, columns: int) -> tuple[Figure, list[Axes]]:
    """Lay out n panels in rows of at most so many columns."""
    across = min(columns, n)
    rows = -(-n // across)
    figure, found = panels(rows, across, width=FULL, height=4.2 if rows == across == 1 else 0.5 + 2.8 * rows)
    for axes in found[n:]:
        axes.remove()
    return figure, found[:n]


def _same_limits(found: Sequence[Axes]) -> None:
    limits = [axes.get_ylim() for axes in found]
    for axes in found:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def draw_class_recall(figures: Mapping[str, Any], path: Path) -> None:
    """Save :func:`class_recall_figure` as a PNG."""
    with replacing(path) as draft:
        class_recall_figure(figures).savefig(draft, format="png")


def class_recall_figure(figures: Mapping[str, Any]) -> Figure:
    """Recall of each class, a panel a group: labels only, and the mean over algorithms with each refiner.

    Thin lines are the algorithms one by one, all of them means over seeds.

    Args:
        figures: what ``semigpc reproduce`` writes as figures.json.
    """
    groups = {
        name: group for name, group in figures["groups"].items() if any("last" in cell for cell in group["cells"].values())
    }
    columns = min(PANELS_ACROSS, len(groups))
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.1 * rows + 0.5), dpi=130, layout="constrained")
    found = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axes, (name, group) in zip(found, groups.items(), strict=False):
        _draw_group(axes, name, group)
    for axes in found[len(groups) :]:
        axes.set_visible(False)
    for axes in found[::columns]:
        axes.set_ylabel("recall, %")
    handles, labels = found[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _draw_group(axes: Axes, name: str, group: Mapping[str, Any]) -> None:
    ran = {row: cell for row, cell in group["cells"].items() if "last" in cell}
    ranks = np.arange(len(group["class_names"]))
    by_refiner: dict[str, list[NDArray[np.float64]]] = {}
    for row, cell in ran.items():
        algorithm, _, refiner = row.partition("+")
        recall = np.mean(cell["last"]["per_class_recall"], axis=0)  # (C,), of the seeds
        if algorithm == "supervised":
            axes.plot(ranks, recall, color=GREY, linewidth=2.2, linestyle="--", label="labels only")
        else:
            by_refiner.setdefault(refiner, []).append(recall)
    for refiner, recalls in by_refiner.items():
        label, colour = STYLES.get(refiner, (f"with {refiner}", MUTED))
        for recall in recalls:
            axes.plot(ranks, recall, color=colour, linewidth=0.8, alpha=0.35)
        axes.plot(ranks, np.mean(recalls, axis=0), color=colour, linewidth=2.4, label=label)
    axes.set_title(name, loc="left", fontsize=FONT + 1)
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    _name_classes(axes, group["class_names"])


def _name_classes(axes: Axes, names: Sequence[str]) -> None:
    if len(names) <= NAMED // 2:
        axes.set_xticks(range(len(names)), [short(name) for name in names], rotation=45, ha="right", fontsize=FONT - 1)
    else:
        axes.set_xlabel("class, from the largest to the smallest")
