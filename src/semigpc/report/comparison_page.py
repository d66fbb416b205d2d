"""The page of a comparison: which method is better, by how much, on which classes, and how sure
that is.

A method has one colour and one mark wherever it is drawn. Lines are means over seeds, bands span
all seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Required
from urllib.parse import quote

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.io.atomic import Count, read_json
from semigpc.io.errors import FileError
from semigpc.report import style
from semigpc.report.charts import class_axis, class_shares, draw_shares, share_scale
from semigpc.report.style import (
    FONT,
    GREY,
    INK,
    MUTED,
    NAMED,
    PAPER,
    Chart,
    Entry,
    Floats,
    floats,
    mean_known,
    series,
)
from semigpc.report.wording import (
    HEAD_NAMES,
    JUDGED,
    count,
    mean_and_spread,
    metric_name,
    number_of,
    percent,
    points,
    short,
)
from semigpc.training.metrics import CLASS_GROUPS, LOOSE, Figures
from semigpc.training.run_folder import HEADS, RunRecord, read_run

COLUMNS = ("balanced_accuracy", *CLASS_GROUPS, "top1", "macro_f1", "ece")
LOWER_IS_BETTER = ("ece", "loss")
MOST_IN_A_PANEL = (
    6  # methods; more cannot be told apart, so that each algorithm gets a panel of its own
)
# A dark colour, a light one and a mark for each algorithm, in the order of their registry. Without
# a refiner an algorithm is light and dashed, with SemiGPC it is dark and solid, with another
# refiner between the two.
PALETTE = (
    ("#666666", "#A3A3A3", "P"),
    ("#0072B2", "#56B4E9", "o"),
    ("#A23B92", "#D58FCB", "D"),
    ("#9A7400", "#D9B84A", "v"),
    ("#C84E00", "#F0A35C", "s"),
    ("#008F68", "#5CC9A7", "^"),
    ("#4B56C8", "#A2A9EE", "X"),
    ("#6E5A3C", "#B8A487", ">"),
    ("#00808F", "#68C4D0", "<"),
    ("#B03052", "#E795AB", "*"),
)


# Reading ------------------------------------------------------------------------------------------


class RunEntry(TypedDict, total=False):
    """One seed of a method in ``comparison.json``."""

    seed: Count | None
    folder: str | None
    result: Figures | None


class MethodEntry(TypedDict, total=False):
    """A method in ``comparison.json``, and what it was made of; ``rank`` is its algorithm's place
    in the registry.
    """

    name: Required[str]
    algorithm: str | None
    addon: str | None
    refiner: str | None
    label: str | None
    rank: Count | None
    runs: list[RunEntry] | None
    mean: dict[str, float | None] | None
    std: dict[str, float | None] | None


@with_config(LOOSE)
class ComparisonRecord(TypedDict, total=False):
    """``comparison.json``."""

    title: str | None
    command: str | None
    metric: str | None
    seeds: list[Count] | None
    cells: list[MethodEntry] | None
    pairs: list[dict[str, Any]] | None
    baseline: str | None


@dataclass(frozen=True)
class ComparedCell:
    """One method of a comparison: its entry in comparison.json, the runs whose folders could be
    read, and its looks.
    """

    record: Entry
    runs: Sequence[tuple[Entry, RunRecord]]
    colour: str
    dashes: Any
    marker: str

    @property
    def name(self) -> str:
        """As in "simmatch+gp"."""
        return str(self.record["name"])

    @property
    def label(self) -> str:
        """The name for people, as in "SimMatch + SemiGPC"."""
        return str(self.record.get("label") or self.name)

    @property
    def line(self) -> dict[str, Any]:
        """How matplotlib is to draw the cell, and its name in keys, from which a leading underscore
        would strike it.
        """
        name = short(self.label, 40)
        label = f" {name}" if name.startswith("_") else name
        return {"color": self.colour, "linestyle": self.dashes, "linewidth": 1.9, "label": label}

    def results(self) -> list[Entry]:
        """Return the result of each seed that has one."""
        return [run["result"] for run in self.record.get("runs") or [] if run.get("result")]


@dataclass(frozen=True)
class Comparison:
    """The contents of a comparison folder; ``reference`` is a run that knows the classes."""

    path: Path
    record: Entry
    cells: Sequence[ComparedCell]
    reference: RunRecord
    problems: Sequence[str]

    @property
    def metric(self) -> str:
        """The metric that methods are compared by."""
        return str(self.record.get("metric") or "balanced_accuracy")

    def groups(self, drawn: Sequence[str]) -> list[tuple[str, list[ComparedCell]]]:
        """Return the cells among ``drawn`` for each panel, with the panel's name: one panel, or one
        for each algorithm.
        """
        bases = dict.fromkeys(base_of(cell.record) for cell in self.cells)
        groups = [[cell for cell in self.cells if base_of(cell.record) == base] for base in bases]
        named = [
            (_group_name(base, cells), cells) for base, cells in zip(bases, groups, strict=True)
        ]
        choices = [("", list(self.cells))] if len(self.cells) <= MOST_IN_A_PANEL else named
        kept = [(name, [cell for cell in cells if cell.name in drawn]) for name, cells in choices]
        return [(name, cells) for name, cells in kept if cells]


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
    record: Entry = read_json(
        path, ComparisonRecord, error=FileError, remedy="Run the comparison again."
    )
    problems: list[str] = []
    entries = record.get("cells") or []
    hues = _hues(entries)
    cells = [_read_cell(folder, entry, hues[base_of(entry)], problems) for entry in entries]
    return Comparison(folder, record, cells, _reference(folder, cells), problems)


def base_of(entry: Entry) -> str:
    """Return what a refiner is put on, as in "fixmatch" or "fixmatch+darp"."""
    algorithm, addon = (
        str(entry.get("algorithm") or entry["name"].split("+")[0]),
        entry.get("addon") or "none",
    )
    return algorithm if addon == "none" else f"{algorithm}+{addon}"


def _group_name(base: str, cells: Sequence[ComparedCell]) -> str:
    plain = [cell.label for cell in cells if cell.record.get("refiner") in (None, "", "none")]
    return short(plain[0] if plain else base, 40)


def _hues(entries: Sequence[Entry]) -> dict[str, tuple[str, str, str]]:
    """Give each algorithm the colours of its rank; without a rank, or with an add-on, the last ones
    that are free.
    """
    ranks = {
        base_of(entry): entry.get("rank") if "+" not in base_of(entry) else None
        for entry in entries
    }
    hues = {base: PALETTE[rank % len(PALETTE)] for base, rank in ranks.items() if rank is not None}
    free = [hue for hue in reversed(PALETTE) if hue not in hues.values()] or PALETTE
    for place, base in enumerate(base for base, rank in ranks.items() if rank is None):
        hues[base] = free[place % len(free)]
    return hues


def _read_cell(
    folder: Path, entry: Entry, hue: tuple[str, str, str], problems: list[str]
) -> ComparedCell:
    runs: list[tuple[Entry, RunRecord]] = []
    missing: list[str] = []
    for run in entry.get("runs") or []:
        try:
            runs.append(
                (
                    run.get("result") or {},
                    read_run(folder / str(run.get("folder") or ""), bulky=False),
                )
            )
        except FileNotFoundError:
            missing.append(str(run.get("seed")))
    if missing:
        problems.append(
            f"The files of {entry['name']} for seed {', '.join(missing)} are missing: its curves leave them out."
        )
    dark, light, marker = hue
    middle = to_hex(tuple(np.mean([to_rgb(dark), to_rgb(light)], axis=0).tolist()))
    looks: dict[str, tuple[str, Any]] = {"gp": (dark, "-"), "none": (light, (0, (4, 1.6)))}
    colour, dashes = looks.get(entry.get("refiner") or "none", (middle, (0, (6, 1.6, 1.2, 1.6))))
    return ComparedCell(entry, runs, colour, dashes, marker)


def _reference(folder: Path, cells: Sequence[ComparedCell]) -> RunRecord:
    """Return a run with a split; else one that only knows how many classes there are."""
    for cell in cells:
        for _, run in cell.runs:
            if run.split.get("class_names"):
                return run
    lengths = [
        len(result["per_class_recall"])
        for cell in cells
        for result in cell.results()
        if result.get("per_class_recall")
    ]
    return RunRecord(
        folder, split={"class_names": [str(c) for c in range(max(lengths, default=0))]}
    )


# The page -----------------------------------------------------------------------------------------


def write_comparison_report(folder: Path) -> Path:
    """Read a comparison folder and write ``report.html`` into it, leaving out what needs files that
    are not there.

    Runs that have a ``report.html`` of their own are linked, by relative paths, so write theirs
    first.

    Returns:
        The path of the page: one file, with everything it shows inside.

    Raises:
        FileNotFoundError: if the folder holds no comparison.json.
        ValueError: if comparison.json is not a JSON object, or if files of a run disagree on the
            number of classes.
    """
    comparison = read_comparison(folder)
    record, reference = comparison.record, comparison.reference
    seeds = record.get("seeds") or []
    labelled = reference.counts("labeled_counts")
    facts = [
        ("Methods", count(len(comparison.cells))),
        ("Seeds", ", ".join(map(str, seeds)) or "none"),
    ]
    if reference.class_names:
        facts.append(("Classes", count(len(reference.class_names))))
    if labelled is not None and len(labelled):
        facts.append(("Labelled images", count(labelled.sum())))
    columns = list(dict.fromkeys((comparison.metric, *COLUMNS)))
    context = {
        "title": str(record.get("title") or "Comparison"),
        "command": str(record.get("command") or ""),
        "metric": comparison.metric,
        "seeds": seeds,
        "facts": facts,
        "problems": [*comparison.problems, *_shortfall(comparison, len(seeds))],
        "columns": columns,
        "rows": _rows(comparison, columns),
        "pairs": record.get("pairs") or [],
        "runs": [
            (cell.label, run, _page_of(folder, run), _by_head(comparison, cell, run))
            for cell in comparison.cells
            for run in cell.record.get("runs") or []
        ],
        "differences": style.chart_rows([difference_chart(comparison)]),
        "curves": style.chart_rows([curve_chart(comparison)]),
        "classes": style.chart_rows([recall_chart(comparison)]),
        "pseudo": style.chart_rows([pseudo_chart(comparison)], [share_chart(comparison)]),
    }
    return style.write_page(folder / "report.html", "comparison.html", context)


def _by_head(comparison: Comparison, cell: ComparedCell, run: Entry) -> str:
    """Return the metric of each head at the last evaluation of a run, and which of them is judged."""
    result, path = run.get("result") or {}, comparison.path / str(run.get("folder") or "")
    records = [record for _, record in cell.runs if record.path == path]
    last = {
        head: curve[-1]
        for record in records
        for head in HEADS
        if (curve := record.curve(str(result.get("part")), head))
    }
    return ", ".join(
        f"{HEAD_NAMES[head]} {percent(number_of(entry, comparison.metric))}{JUDGED if head == result.get('head') else ''}"
        for head, entry in last.items()
    )


def _rows(comparison: Comparison, columns: Sequence[str]) -> list[dict[str, Any]]:
    """List the cells as mean and deviation by column, with the best of each column marked."""
    metric, baseline = comparison.metric, comparison.record.get("baseline")
    means = {
        cell.name: {key: number_of(cell.record.get("mean") or {}, key) for key in columns}
        for cell in comparison.cells
    }
    best = {}
    for key in columns:
        known = [value for mean in means.values() if (value := mean[key]) is not None]
        if len(set(known)) > 1:
            best[key] = min(known) if key in LOWER_IS_BETTER else max(known)
    start = means.get(str(baseline), {}).get(metric)
    rows = []
    for cell in comparison.cells:
        mean, std, n = means[cell.name], cell.record.get("std") or {}, len(cell.results())
        reached = mean[metric]
        gain = (
            None if start is None or reached is None or cell.name == baseline else reached - start
        )
        spreads = [mean_and_spread(mean[key], number_of(std, key), n) for key in columns]
        rows.append(
            {
                "label": cell.label,
                "swatch": _swatch(cell),
                "baseline": cell.name == baseline,
                "n": n,
                "gain": points(gain),
                "numbers": [
                    (*texts, mean[key] is not None and mean[key] == best.get(key))
                    for key, texts in zip(columns, spreads, strict=True)
                ],
            }
        )
    return rows


def _page_of(folder: Path, run: Entry) -> str:
    """Return the relative address of a run's own page, or nothing if it has none."""
    page = f"{run.get('folder') or ''}/report.html"
    return quote(page, safe="/+") if run.get("folder") and (folder / page).is_file() else ""


def _shortfall(comparison: Comparison, seeds: int) -> list[str]:
    """Name the cells that have fewer results than the comparison has seeds: their means are not
    over the same draws.
    """
    lacking = [
        f"{cell.label} ({len(cell.results())})"
        for cell in comparison.cells
        if len(cell.results()) < seeds
    ]
    return (
        [f"Means over fewer than the {seeds} seeds asked for: {', '.join(lacking)}."]
        if lacking
        else []
    )


def _swatch(cell: ComparedCell) -> Markup:
    """Return a short piece of the cell's line, as its charts draw it."""
    dashes = (
        ""
        if isinstance(cell.dashes, str)
        else " ".join(f"{2 * length:g}" for length in cell.dashes[1])
    )
    return Markup(
        '<svg class="swatch" viewBox="0 0 34 10" aria-hidden="true"><path d="M1 5H33" fill="none" stroke="{}" '
        'stroke-width="3" stroke-dasharray="{}"/></svg>'
    ).format(cell.colour, dashes or "none")


# Charts -------------------------------------------------------------------------------------------

Pick = Callable[[Entry, RunRecord], Sequence[Entry]]


def difference_chart(comparison: Comparison) -> Chart | None:
    """Draw each pair's difference as a dot for each seed, and their mean as a bar."""
    pairs = [pair for pair in comparison.record.get("pairs") or [] if pair.get("differences")]
    if not pairs:
        return None
    colours = {cell.name: cell.colour for cell in comparison.cells}
    figure, (axes,) = style.panels(1, 1, height=0.9 + 0.42 * len(pairs))
    for row, pair in enumerate(pairs):
        colour = colours.get(str(pair.get("with")), GREY)
        differences = 100 * floats(pair["differences"])
        spread = (np.arange(len(differences)) - (len(differences) - 1) / 2) * min(
            0.09, 0.5 / len(differences)
        )
        mean = 100 * float(pair["mean_difference"])
        axes.plot([mean, mean], [row - 0.33, row + 0.33], color=INK, linewidth=2.6, zorder=3)
        axes.scatter(
            differences,
            row + spread,
            s=38,
            color=colour,
            edgecolors=PAPER,
            linewidths=0.8,
            zorder=4,
        )
        axes.text(
            1.01,
            row,
            points(mean / 100),
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=FONT,
            color=INK,
        )
    axes.axvline(0, color=MUTED, linewidth=1.2)
    axes.set_yticks(range(len(pairs)), [short(str(pair["name"]), 40) for pair in pairs])
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    reach = 1.12 * max(
        0.1,
        *(abs(100 * value) for pair in pairs for value in pair["differences"] if value is not None),
    )
    axes.set_xlim(min(-0.15 * reach, axes.get_xlim()[0]), max(0.15 * reach, axes.get_xlim()[1]))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    style.name_panel(
        axes, x=f"difference in {metric_name(comparison.metric).lower()}, percentage points"
    )
    caption = "Dots are seeds, the bar their mean; look for all dots on one side of zero, which with few seeds can be chance."
    return style.chart(figure, "Paired differences, seed by seed", caption)


def curve_chart(comparison: Comparison) -> Chart | None:
    """Draw the metric over training for all cells."""

    def pick(result: Entry, run: RunRecord) -> Sequence[Entry]:
        return run.curve(str(result.get("part", "test")), str(result.get("head", run.head)))

    name = metric_name(comparison.metric)
    caption = "Lines are means and bands span all seeds; look at where the lines part, and whether the bands overlap."
    return _over_steps(
        comparison, {name: comparison.metric}, pick, f"{name} over training", caption, whole=False
    )


def pseudo_chart(comparison: Comparison) -> Chart | None:
    """Draw coverage, precision and calibration error of the accepted pseudo-labels over training
    for all cells.
    """
    measures = {"Coverage": "coverage", "Precision": "precision", "Calibration error": "ece"}
    caption = "The better method has higher coverage and precision; a gain in coverage that costs precision is no gain."
    title = "Quality of the pseudo-labels"
    return _over_steps(comparison, measures, lambda _, run: run.pseudo, title, caption, whole=True)


def recall_chart(comparison: Comparison) -> Chart | None:
    """Draw the recall of each class for all cells."""
    n = len(comparison.reference.class_names)

    def recall(cell: ComparedCell) -> Floats | None:
        known = [
            floats(values)
            for result in cell.results()
            if len(values := result.get("per_class_recall") or ()) == n
        ]
        return mean_known(known) if known else None

    caption = "Classes stand from common to rare; look at how far each line falls on the right."
    return _over_classes(comparison, recall, "Recall of each class", caption, shares=False)


def share_chart(comparison: Comparison) -> Chart | None:
    """Draw how often each cell believes each class to occur, against the truth where it is known."""

    def believed(cell: ComparedCell) -> Floats | None:
        known = [shares for _, run in cell.runs if (shares := class_shares(run)[1]) is not None]
        return mean_known(known) if known else None

    true = class_shares(comparison.reference)[2]
    against = (
        "the dotted line, the share among the labels"
        if true is None
        else "the broad grey line, the truth"
    )
    caption = f"Pseudo-labels should follow {against}; a method that falls below it on the right overlooks rare classes."
    return _over_classes(
        comparison, believed, "Class counts: believed and true", caption, shares=True
    )


def _over_steps(
    comparison: Comparison,
    measures: dict[str, str],
    pick: Pick,
    title: str,
    caption: str,
    *,
    whole: bool,
) -> Chart | None:
    """Draw measures, keys by name, of the entries that ``pick`` returns: a panel for each measure
    and group of cells.
    """
    curves = {
        (name, cell.name): curve
        for name, key in measures.items()
        for cell in comparison.cells
        if (curve := _shared_steps([series(pick(result, run), key) for result, run in cell.runs]))
        is not None
    }
    if not curves:
        return None
    shown = [name for name in measures if any(measure == name for measure, _ in curves)]
    places = [
        (group, cells, name)
        for group, cells in comparison.groups([cell for _, cell in curves])
        for name in shown
    ]
    figure, grid = _grid(len(places), columns=2 if len(shown) == 2 else 3)
    for axes, (group, cells, name) in zip(grid, places, strict=True):
        for cell in cells:
            if (name, cell.name) in curves:
                _draw_band(axes, cell, *curves[name, cell.name])
        style.name_panel(
            axes, ": ".join(part for part in (group, name if len(shown) > 1 else "") if part)
        )
        style.step_axis(axes)
    limits = [axes.get_ylim() for axes in grid]
    for axes in grid:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        style.share_axis(axes, whole=whole)
    style.key_below(figure)
    return style.chart(figure, title, caption)


def _shared_steps(curves: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats] | None:
    """Return the steps (S,) that all runs share and their values (runs, S), or None if there are
    none.
    """
    runs = [
        dict(zip(steps.tolist(), values.tolist(), strict=True))
        for steps, values in curves
        if len(steps)
    ]
    shared = sorted(set.intersection(*map(set, runs))) if runs else []
    return (
        (np.array(shared), np.array([[run[step] for step in shared] for run in runs]))
        if shared
        else None
    )


def _draw_band(axes: Axes, cell: ComparedCell, steps: Floats, values: Floats) -> None:
    """Draw the mean over runs of values (runs, S), and a band around it if there are several."""
    marker = cell.marker if len(steps) <= style.FEW_POINTS else ""
    axes.plot(steps, values.mean(axis=0), **cell.line, marker=marker, markersize=3.5)
    if len(values) > 1:
        axes.fill_between(
            steps,
            values.min(axis=0),
            values.max(axis=0),
            color=cell.colour,
            alpha=0.15,
            linewidth=0,
        )


def _grid(n: int, *, columns: int) -> tuple[Figure, list[Axes]]:
    """Lay out n panels in rows of at most so many columns."""
    across = min(columns, n)
    rows = -(-n // across)
    figure, grid = style.panels(
        rows, across, height=4.2 if rows == across == 1 else 0.5 + 2.8 * rows
    )
    for axes in grid[n:]:
        axes.remove()
    return figure, grid[:n]


def _over_classes(
    comparison: Comparison,
    values: Callable[[ComparedCell], Floats | None],
    title: str,
    caption: str,
    *,
    shares: bool,
) -> Chart | None:
    """Draw one number for each class and cell, classes by rank, a panel for each group of cells."""
    reference = comparison.reference
    n, order = len(reference.class_names), reference.order
    known = {
        cell.name: row
        for cell in comparison.cells
        if (row := values(cell)) is not None and len(row) == n
    }
    if not known or not n:
        return None
    groups = comparison.groups(list(known))
    figure, grid = style.panels(
        len(groups), 1, height=3.9 if len(groups) == 1 else 1.0 + 2.1 * len(groups)
    )
    given, _, true = class_shares(reference)
    for axes, (group, cells) in zip(grid, groups, strict=True):
        if shares and true is not None:
            draw_shares(
                axes,
                true[order],
                color=MUTED,
                linewidth=6,
                alpha=0.45,
                label="true, among the unlabelled",
            )
        elif shares and given is not None:
            draw_shares(
                axes, given[order], color=INK, linestyle=":", label="given, among the labelled"
            )
        for cell in cells:
            row = known[cell.name][order]
            row, marker = (row, cell.marker) if n <= NAMED else (style.running_mean(row), "")
            draw_shares(axes, row, marker=marker, **cell.line)
        if shares:
            share_scale(axes, [counts for counts in (given, true) if counts is not None])
        else:
            style.share_axis(axes, whole=True)
        class_axis(axes, reference, group, averaged=True)
        if axes is not grid[-1]:
            axes.tick_params(axis="x", labelbottom=False)
            axes.set_xlabel("")
    style.key_below(figure)
    return style.chart(figure, title, caption)
