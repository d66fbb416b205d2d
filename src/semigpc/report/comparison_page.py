"""The page of a comparison: which method is better, by how much, on which classes, how surely.

A method has one colour and one mark wherever it is drawn. Lines are means over seeds, bands span
all seeds.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from semigpc.io.atomic import read_json
from semigpc.io.errors import FileError
from semigpc.report import style
from semigpc.report.charts import (
    TRUE_LOOK,
    ClassList,
    ClassShares,
    Look,
    class_axis,
    draw_shares,
    share_scale,
)
from semigpc.report.style import (
    FONT,
    GREY,
    INK,
    MOST_NAMED_CLASSES,
    MUTED,
    PAPER,
    Chart,
    Curve,
    Floats,
    floats,
    mean_known,
    per_class,
    series,
)
from semigpc.report.wording import (
    HEAD_NAMES,
    JUDGED,
    Record,
    count,
    mean_and_spread,
    metric_name,
    number_of,
    percent,
    points,
    short,
)
from semigpc.training.comparison import ComparisonRecord, MethodEntry, RunEntry
from semigpc.training.metrics import CLASS_GROUPS, METRIC, Figures
from semigpc.training.run_folder import HEADS, RunRecord, read_run

COLUMNS = ("balanced_accuracy", *CLASS_GROUPS, "top1", "macro_f1", "ece")
LOWER_IS_BETTER = ("ece", "loss")
MOST_IN_A_PANEL = 6  # methods; with more, each algorithm gets a panel of its own
PANELS_ACROSS = 3
LABEL_LETTERS = 40  # of a method's name beside a chart
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
SOLID: tuple[float, ...] = ()
DASHED = (4, 1.6)
DASHED_AND_DOTTED = (6, 1.6, 1.2, 1.6)
SWATCH = (
    '<svg class="swatch" viewBox="0 0 34 10" aria-hidden="true"><path d="M1 5H33" fill="none" '
    'stroke="{}" stroke-width="3" stroke-dasharray="{}"/></svg>'
)


# Reading ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """One method of a comparison: its entry, the runs that could be read, and how it is drawn.

    Attributes:
        entry: in comparison.json.
        runs: the result of each seed whose folder could be read, and what is in the folder.
        colour, dashes, marker: of its lines; no dashes for a solid line.
    """

    entry: MethodEntry
    runs: Sequence[tuple[Figures | None, RunRecord]]
    colour: str
    dashes: tuple[float, ...]
    marker: str

    @property
    def name(self) -> str:
        """As in "simmatch+gp"."""
        return self.entry["name"]

    @property
    def label(self) -> str:
        """The name for people, as in "SimMatch + SemiGPC"."""
        return self.entry.get("label") or self.name

    @property
    def base(self) -> str:
        """What a refiner is put on, as in "fixmatch" or "fixmatch+darp"."""
        return base_of(self.entry)

    @property
    def line(self) -> Look:
        """How matplotlib is to draw it, with its name in keys."""
        label = short(self.label, LABEL_LETTERS)
        if label.startswith("_"):
            label = f" {label}"  # matplotlib leaves names with a leading underscore out of keys
        linestyle = (0, self.dashes) if self.dashes else "-"
        return {"color": self.colour, "linestyle": linestyle, "linewidth": 1.9, "label": label}

    @property
    def results(self) -> list[Figures]:
        """The result of each seed that has one."""
        runs = self.entry.get("runs") or []
        return [result for run in runs if (result := run.get("result"))]


@dataclass(frozen=True)
class Comparison:
    """The contents of a comparison folder; ``reference`` is a run that knows the classes."""

    path: Path
    file: ComparisonRecord
    methods: Sequence[Method]
    reference: RunRecord
    problems: Sequence[str]

    @property
    def metric(self) -> str:
        """The metric that methods are compared by."""
        return self.file.get("metric") or METRIC

    def panels(self, drawn: Iterable[str]) -> list[tuple[str, list[Method]]]:
        """Return the title and the methods of each panel, of those whose names are ``drawn``.

        There is one panel for all methods, or one for each algorithm if they are many.
        """
        names = set(drawn)
        if len(self.methods) <= MOST_IN_A_PANEL:
            return [("", [method for method in self.methods if method.name in names])]
        panels = []
        for base in dict.fromkeys(method.base for method in self.methods):
            group = [method for method in self.methods if method.base == base]
            plain = [m.label for m in group if (m.entry.get("refiner") or "none") == "none"]
            shown = [method for method in group if method.name in names]
            if shown:
                panels.append((short(plain[0] if plain else base, LABEL_LETTERS), shown))
        return panels


def read_comparison(folder: Path) -> Comparison:
    """Read a comparison folder and whatever its runs have left.

    Raises:
        FileNotFoundError: if there is no comparison.json.
        FileError: if comparison.json is not what a comparison writes.
    """
    path = folder / "comparison.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"a comparison folder holds comparison.json; {folder} does not. Give the folder that "
            "the comparison was written to."
        )
    remedy = "Run the comparison again."
    file: ComparisonRecord = read_json(path, ComparisonRecord, error=FileError, remedy=remedy)
    problems: list[str] = []
    entries = file.get("cells") or []
    hues = _hues(entries)
    methods = [_read_method(folder, entry, hues[base_of(entry)], problems) for entry in entries]
    return Comparison(folder, file, methods, _reference(folder, methods), problems)


def base_of(entry: MethodEntry) -> str:
    """Return what a refiner is put on, as in "fixmatch" or "fixmatch+darp"."""
    algorithm = entry.get("algorithm") or entry["name"].split("+")[0]
    addon = entry.get("addon") or "none"
    return algorithm if addon == "none" else f"{algorithm}+{addon}"


def _hues(entries: Sequence[MethodEntry]) -> dict[str, tuple[str, str, str]]:
    """Return the colours of each algorithm: by its rank, or the last that are free.

    An algorithm without a rank or with an add-on gets free ones.
    """
    ranks = {base_of(entry): entry.get("rank") for entry in entries}
    hues = {
        base: PALETTE[rank % len(PALETTE)]
        for base, rank in ranks.items()
        if rank is not None and "+" not in base
    }
    free = [hue for hue in reversed(PALETTE) if hue not in hues.values()] or PALETTE
    for place, base in enumerate(base for base in ranks if base not in hues):
        hues[base] = free[place % len(free)]
    return hues


def _read_method(
    folder: Path, entry: MethodEntry, hue: tuple[str, str, str], problems: list[str]
) -> Method:
    runs: list[tuple[Figures | None, RunRecord]] = []
    missing: list[str] = []
    for run in entry.get("runs") or []:
        if "folder" not in run:
            continue  # nothing was trained
        try:
            record = read_run(folder / (run["folder"] or ""), bulky=False)
            runs.append((run.get("result"), record))
        except FileNotFoundError:
            missing.append(str(run.get("seed")))
    if missing:
        problems.append(
            f"The files of {entry['name']} for seed {', '.join(missing)} are missing: its curves "
            "leave them out."
        )
    dark, light, marker = hue
    refiner = entry.get("refiner") or "none"
    if refiner == "gp":
        return Method(entry, runs, dark, SOLID, marker)
    if refiner == "none":
        return Method(entry, runs, light, DASHED, marker)
    middle = to_hex(tuple(np.mean([to_rgb(dark), to_rgb(light)], axis=0).tolist()))
    return Method(entry, runs, middle, DASHED_AND_DOTTED, marker)


def _reference(folder: Path, methods: Sequence[Method]) -> RunRecord:
    """Return a run with a split; else one that only knows how many classes there are."""
    for method in methods:
        for _, run in method.runs:
            if run.split.get("class_names"):
                return run
    recalls = [result.get("per_class_recall") or [] for each in methods for result in each.results]
    n_classes = max(map(len, recalls), default=0)
    return RunRecord(folder, split={"class_names": [str(c) for c in range(n_classes)]})


# The page -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodRow:
    """A method in the table: each number as text, with its deviation, and whether it is best."""

    label: str
    swatch: Markup
    baseline: bool
    n: int
    gain: str
    numbers: list[tuple[str, str, bool]]


@dataclass(frozen=True)
class RunRow:
    """A run in the list of runs; ``page`` is the address of its own page, empty if it has none.

    ``folder`` is empty where nothing was trained.
    """

    label: str
    seed: int | None
    metric: float | None
    seconds: float | None
    heads: str
    folder: str
    page: str


def write_comparison_report(folder: Path) -> Path:
    """Read a comparison folder and write ``report.html`` into it, from the files that are there.

    Runs that have a ``report.html`` of their own are linked by relative paths, so write theirs
    first.

    Returns:
        The path of the page: one file, with everything it shows inside.

    Raises:
        FileNotFoundError: if the folder holds no comparison.json.
        FileError: if comparison.json is not what a comparison writes.
    """
    comparison = read_comparison(folder)
    columns = list(dict.fromkeys((comparison.metric, *COLUMNS)))
    context = {
        "title": comparison.file.get("title") or "Comparison",
        "command": comparison.file.get("command") or "",
        "metric": comparison.metric,
        "facts": _facts(comparison),
        "problems": [*comparison.problems, *_missing_seeds(comparison)],
        "columns": columns,
        "rows": _method_rows(comparison, columns),
        "pairs": comparison.file.get("pairs") or [],
        "untrained_pairs": comparison.file.get("untrained_pairs") or [],
        "runs": [
            _run_row(comparison, method, run)
            for method in comparison.methods
            for run in method.entry.get("runs") or []
        ],
        "differences": style.chart_rows([difference_chart(comparison)]),
        "curves": style.chart_rows([curve_chart(comparison)]),
        "classes": style.chart_rows([recall_chart(comparison)]),
        "pseudo": style.chart_rows([pseudo_chart(comparison)], [share_chart(comparison)]),
    }
    return style.write_page(folder / "report.html", "comparison.html", context)


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    seeds = comparison.file.get("seeds") or []
    reference = comparison.reference
    facts = [
        ("Methods", count(len(comparison.methods))),
        ("Seeds", ", ".join(map(str, seeds)) or "none"),
    ]
    if reference.class_names:
        facts.append(("Classes", count(len(reference.class_names))))
    labelled = reference.counts("labeled_counts")
    if labelled is not None and len(labelled):
        facts.append(("Labelled images", count(labelled.sum())))
    return facts


def _missing_seeds(comparison: Comparison) -> list[str]:
    """Name the methods with fewer results than seeds: their means are not over the same draws."""
    seeds = len(comparison.file.get("seeds") or [])
    counts = {method.label: len(method.results) for method in comparison.methods}
    lacking = [f"{label} ({n})" for label, n in counts.items() if n < seeds]
    if not lacking:
        return []
    return [f"Means over fewer than the {seeds} seeds requested: {', '.join(lacking)}."]


def _method_rows(comparison: Comparison, columns: Sequence[str]) -> list[MethodRow]:
    """Return mean and deviation of each method by column, with the best of each column marked."""
    means = {
        method.name: {key: number_of(method.entry.get("mean") or {}, key) for key in columns}
        for method in comparison.methods
    }
    best = _best(list(means.values()), columns)
    baseline = comparison.file.get("baseline")
    start = means.get(baseline or "", {}).get(comparison.metric)
    rows = []
    for method in comparison.methods:
        mean = means[method.name]
        std = method.entry.get("std") or {}
        n = len(method.results)
        reached = mean[comparison.metric]
        is_baseline = method.name == baseline
        gain = None
        if start is not None and reached is not None and not is_baseline:
            gain = reached - start
        numbers = []
        for key in columns:
            text, spread = mean_and_spread(mean[key], number_of(std, key), n)
            numbers.append((text, spread, mean[key] is not None and mean[key] == best.get(key)))
        swatch = _swatch(method)
        rows.append(MethodRow(method.label, swatch, is_baseline, n, points(gain), numbers))
    return rows


def _best(means: Sequence[dict[str, float | None]], columns: Sequence[str]) -> dict[str, float]:
    """Return the best value of each column in which methods differ."""
    best = {}
    for key in columns:
        known = [value for mean in means if (value := mean[key]) is not None]
        if len(set(known)) > 1:
            best[key] = min(known) if key in LOWER_IS_BETTER else max(known)
    return best


def _swatch(method: Method) -> Markup:
    """Return a short piece of the method's line, as its charts draw it."""
    dashes = " ".join(f"{2 * length:g}" for length in method.dashes) or "none"
    return Markup(SWATCH).format(method.colour, dashes)


def _run_row(comparison: Comparison, method: Method, run: RunEntry) -> RunRow:
    folder = run.get("folder") or ""
    page = f"{folder}/report.html"
    has_page = folder and (comparison.path / page).is_file()
    result = run.get("result")
    return RunRow(
        label=method.label,
        seed=run.get("seed"),
        metric=number_of(result or {}, comparison.metric),
        seconds=run.get("seconds"),
        heads=_by_head(comparison, method, result, comparison.path / folder),
        folder=folder,
        page=quote(page, safe="/+") if has_page else "",
    )


def _by_head(comparison: Comparison, method: Method, result: Figures | None, path: Path) -> str:
    """Return the metric of each head at the step of a run's result, and which one is judged."""
    record = next((record for _, record in method.runs if record.path == path), None)
    if record is None or result is None:
        return ""
    texts = []
    for head in HEADS:
        lines = record.curve(result.get("part", ""), head)
        for line in lines:
            if line["step"] == number_of(result, "step"):
                judged = JUDGED if head == result.get("head") else ""
                metric = percent(number_of(line, comparison.metric))
                texts.append(f"{HEAD_NAMES[head]} {metric}{judged}")
    return ", ".join(texts)


# Charts -------------------------------------------------------------------------------------------


def difference_chart(comparison: Comparison) -> Chart | None:
    """Draw each pair's difference as a dot for each seed, and their mean as a bar."""
    pairs = [pair for pair in comparison.file.get("pairs") or [] if pair.get("differences")]
    if not pairs:
        return None
    colours = {method.name: method.colour for method in comparison.methods}
    figure, (axes,) = style.panels(1, 1, height=0.9 + 0.42 * len(pairs))
    largest = 0.1  # percentage points
    for row, pair in enumerate(pairs):
        differences = 100 * floats(pair["differences"] or [])
        largest = np.nanmax(np.abs(differences), initial=largest)
        n = len(differences)
        places = row + (np.arange(n) - (n - 1) / 2) * min(0.09, 0.5 / n)
        mean = number_of(pair, "mean_difference")
        middle = np.nan if mean is None else 100 * mean
        axes.plot([middle, middle], [row - 0.33, row + 0.33], color=INK, linewidth=2.6, zorder=3)
        dots: Look = {"s": 38, "edgecolors": PAPER, "linewidths": 0.8, "zorder": 4}
        axes.scatter(differences, places, color=colours.get(pair.get("with", ""), GREY), **dots)
        beside = axes.get_yaxis_transform()
        text: Look = {"va": "center", "fontsize": FONT, "color": INK}
        axes.text(1.01, row, points(mean), transform=beside, **text)
    axes.axvline(0, color=MUTED, linewidth=1.2)
    style.name_places(axes, [short(pair["name"], LABEL_LETTERS) for pair in pairs])
    room = 0.15 * 1.12 * largest
    axes.set_xlim(min(-room, axes.get_xlim()[0]), max(room, axes.get_xlim()[1]))
    metric = metric_name(comparison.metric).lower()
    style.name_panel(axes, x=f"difference in {metric}, percentage points")
    caption = (
        "Dots are seeds, the bar their mean; look for all dots on one side of zero, which with few "
        "seeds can be chance."
    )
    return style.chart(figure, "Paired differences, seed by seed", caption)


def curve_chart(comparison: Comparison) -> Chart | None:
    """Draw the metric over training for all methods."""

    def evaluations(result: Figures | None, run: RunRecord) -> Sequence[Record]:
        figures: Figures = result or {}
        return run.curve(figures.get("part", "test"), figures.get("head", run.standing.head))

    name = metric_name(comparison.metric)
    caption = (
        "Lines are means and bands span all seeds; look at where the lines part, and whether the "
        "bands overlap."
    )
    measures = {name: comparison.metric}
    title = f"{name} over training"
    return _over_steps(comparison, measures, evaluations, title, caption, whole=False)


def pseudo_chart(comparison: Comparison) -> Chart | None:
    """Draw coverage, precision and calibration error of the pseudo-labels for all methods."""

    def windows(_: Figures | None, run: RunRecord) -> Sequence[Record]:
        return run.pseudo

    measures = {"Coverage": "coverage", "Precision": "precision", "Calibration error": "ece"}
    caption = (
        "The better method has higher coverage and precision; a gain in coverage that costs "
        "precision is no gain."
    )
    title = "Quality of the pseudo-labels"
    return _over_steps(comparison, measures, windows, title, caption, whole=True)


def recall_chart(comparison: Comparison) -> Chart | None:
    """Draw the recall of each class for all methods."""
    n = len(comparison.reference.class_names)

    def recall(method: Method) -> list[Floats | None]:
        return [per_class(result, "per_class_recall", n) for result in method.results]

    caption = "Classes stand from common to rare; look at how far each line falls on the right."
    return _over_classes(comparison, recall, "Recall of each class", caption)


def share_chart(comparison: Comparison) -> Chart | None:
    """Draw how often each method predicts each class, against the truth where it is known."""

    def believed(method: Method) -> list[Floats | None]:
        return [ClassShares.of_run(run).believed for _, run in method.runs]

    shares = ClassShares.of_run(comparison.reference)
    against = "the broad grey line, the truth"
    if shares.true is None:
        against = "the dotted line, the share among the labels"
    caption = (
        f"Pseudo-labels should follow {against}; a method that falls below it on the right "
        "overlooks rare classes."
    )
    title = "Class counts: predicted and true"
    return _over_classes(comparison, believed, title, caption, shares=shares)


def _over_steps(
    comparison: Comparison,
    measures: dict[str, str],
    pick: Callable[[Figures | None, RunRecord], Sequence[Record]],
    title: str,
    caption: str,
    *,
    whole: bool,
) -> Chart | None:
    """Draw measures over the steps, one panel for each measure and group of methods.

    Args:
        comparison: whose methods are drawn.
        measures: keys of the records, by name.
        pick: returns the records of a run, with its result.
        title, caption: of the chart.
        whole: draw the scale from 0 to 100 %.
    """
    curves: dict[tuple[str, str], Curve] = {}  # by measure and method
    for name, key in measures.items():
        for method in comparison.methods:
            of_runs = [series(pick(result, run), key) for result, run in method.runs]
            if (curve := _shared_steps(of_runs)) is not None:
                curves[name, method.name] = curve
    if not curves:
        return None
    shown = [name for name in measures if any(measure == name for measure, _ in curves)]
    groups = comparison.panels(method for _, method in curves)
    places = [(group, methods, name) for group, methods in groups for name in shown]
    figure, grid = _grid(len(places), columns=2 if len(shown) == 2 else PANELS_ACROSS)
    for axes, (group, methods, name) in zip(grid, places, strict=True):
        for method in methods:
            if (name, method.name) in curves:
                _draw_band(axes, method, *curves[name, method.name])
        parts = [group, name if len(shown) > 1 else ""]
        style.name_panel(axes, ": ".join(filter(None, parts)))
        style.step_axis(axes)
    limits = [axes.get_ylim() for axes in grid]
    for axes in grid:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        style.share_axis(axes, whole=whole)
    style.key_below(figure)
    return style.chart(figure, title, caption)


def _shared_steps(curves: Sequence[Curve]) -> Curve | None:
    """Return the steps (S,) that all runs share and their values (runs, S); None if none are."""
    runs = [dict(zip(steps, values, strict=True)) for steps, values in curves if len(steps)]
    shared = sorted(set.intersection(*map(set, runs))) if runs else []
    if not shared:
        return None
    return np.array(shared), np.array([[run[step] for step in shared] for run in runs])


def _draw_band(axes: Axes, method: Method, steps: Floats, values: Floats) -> None:
    """Draw the mean over runs of values (runs, S), and a band around it if there are several."""
    marker = method.marker if len(steps) <= style.MOST_MARKED_POINTS else ""
    axes.plot(steps, values.mean(axis=0), **method.line, marker=marker, markersize=3.5)
    if len(values) > 1:
        low = values.min(axis=0)
        high = values.max(axis=0)
        axes.fill_between(steps, low, high, color=method.colour, alpha=0.15, linewidth=0)


def _grid(n: int, *, columns: int) -> tuple[Figure, list[Axes]]:
    """Lay out n panels in rows of at most so many columns."""
    across = min(columns, n)
    rows = -(-n // across)
    height = 4.2 if rows == across == 1 else 0.5 + 2.8 * rows
    figure, grid = style.panels(rows, across, height=height)
    for axes in grid[n:]:
        axes.remove()
    return figure, grid[:n]


def _over_classes(
    comparison: Comparison,
    values: Callable[[Method], list[Floats | None]],
    title: str,
    caption: str,
    *,
    shares: ClassShares | None = None,
) -> Chart | None:
    """Draw a mean over runs for each class and method, one panel for each group of methods.

    Args:
        comparison: whose methods are drawn.
        values: returns the numbers (C,) of each run, None where they are not known.
        title, caption: of the chart.
        shares: those of the reference, if the numbers are shares of the classes.
    """
    classes = ClassList.of_run(comparison.reference)
    n = len(classes.names)
    means = {}
    for method in comparison.methods:
        known = [row for row in values(method) if row is not None and len(row) == n]
        if known:
            means[method.name] = mean_known(known)[classes.order]
    if not means or not n:
        return None
    groups = comparison.panels(means)
    height = 3.9 if len(groups) == 1 else 1.0 + 2.1 * len(groups)
    figure, grid = style.panels(len(groups), 1, height=height)
    for axes, (group, methods) in zip(grid, groups, strict=True):
        if shares is not None:
            _draw_reference(axes, classes, shares)
        for method in methods:
            row = means[method.name]
            if n <= MOST_NAMED_CLASSES:
                draw_shares(axes, row, marker=method.marker, **method.line)
            else:
                draw_shares(axes, style.running_mean(row), **method.line)
        if shares is None:
            style.share_axis(axes, whole=True)
        else:
            share_scale(axes, shares.known)
        class_axis(axes, classes, group, averaged=True)
        if axes is not grid[-1]:
            axes.tick_params(axis="x", labelbottom=False)
            axes.set_xlabel("")
    style.key_below(figure)
    return style.chart(figure, title, caption)


def _draw_reference(axes: Axes, classes: ClassList, shares: ClassShares) -> None:
    """Draw the true shares, or those among the labels where the truth is not known."""
    if shares.true is not None:
        true = shares.true[classes.order]
        draw_shares(axes, true, **TRUE_LOOK, label="true, among the unlabelled")
    elif shares.given is not None:
        given = shares.given[classes.order]
        draw_shares(axes, given, color=INK, linestyle=":", label="given, among the labelled")
