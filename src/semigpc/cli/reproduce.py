"""``semigpc reproduce``: a table of the paper, with our figures beside the published ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import USAGE, reported
from semigpc.cli.options import AsJson, Features, Jobs
from semigpc.cli.tables import say, table, verbatim
from semigpc.io.errors import SettingsError

if TYPE_CHECKING:
    from semigpc.paper.reproduction import (
        Accuracy,
        CellFigures,
        GPSettings,
        ListedTable,
        PublishedFigure,
        StatementFigures,
        TableFigures,
    )
    from semigpc.paper.tables import Options, PaperTable

WIDTH = 110  # characters, where there is no terminal

METRIC_NOTE = (
    "Top-1 accuracy in percent, mean and standard deviation over seeds. All test sets are "
    "balanced, so balanced accuracy is the same number."
)
BEST_ON_TEST = (
    "* the best of all evaluations on the test images themselves: optimistic, but possibly what "
    "the paper reports, which follows USB and does not say. Differences and verdicts use the last "
    "step."
)
VERDICTS = (
    "A figure agrees within 2 printed deviations or 0.5 points, whichever is more. A gain is "
    "reproduced if the mean over three seeds (five in setting B of CIFAR-10-LT) has its sign and "
    "at least half of its size."
)
CPU_SCALE = (
    "Scale cpu: these figures are NOT comparable with the published ones: the network and the "
    "images are smaller and training is shorter. Differences are printed, verdicts are not."
)
CLASS_PRIOR = (
    "SemiGPC uses a class prior here (refiner.class_prior=frequency), which the paper's method "
    "does not have."
)
ADDONS = (
    "Rows with an add-on have no published figure. They use the recipe of the rows beside them; "
    "where the add-on needs a moving average of the network and the recipe has none, its momentum "
    "is 0.999. The generations of CReST share the steps."
)
GP_HEAD = (
    "GP head: SemiGPC is judged by the GP's own predictions, the base algorithm by the linear "
    "layer's. What SemiGPC adds to the linear layer is shown beside it."
)
PARTS = (
    "The paper's text gives numbers for whole tables. Where only a part was run, the published "
    "accuracies of that part are used beside ours."
)
SEEDS = "seeds: as many as the claims need to be judged; --seeds N runs another number."


def _help_without_a_table(context: typer.Context, name: str | None) -> str | None:
    if name is None and not context.params.get("listed"):
        from semigpc.paper.tables import TABLES

        typer.echo(context.get_help())
        width = max(map(len, TABLES))
        typer.echo("Tables:")
        for table_name, entry in TABLES.items():
            typer.echo(f"  {table_name:<{width}}  {entry.title}")
        raise typer.Exit(USAGE)
    return name


@reported("reproduce")
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            help="cifar10_lt, cifar100_lt, fgvc, balanced_cifar, algorithm_ablation or "
            "pretraining_ablation.",
            callback=_help_without_a_table,
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            "--root", metavar="DIR", help="Folder that contains the data, or a .zip of images."
        ),
    ] = None,
    cell: Annotated[
        list[str] | None,
        typer.Option(
            "--cell", metavar="GLOB", help="Run only these, as in 'A/100/*' (repeatable)."
        ),
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm", metavar="NAME", help="Instead of the paper's algorithms (repeatable)."
        ),
    ] = None,
    refiner: Annotated[
        list[str],
        typer.Option("--refiner", metavar="NAME", help="none, gp or similarity (repeatable)."),
    ] = ["none", "gp"],  # noqa: B006 - typer copies it
    addon: Annotated[
        list[str] | None,
        typer.Option(
            "--addon",
            metavar="NAME",
            help="Add rows with it; see semigpc list addons (repeatable).",
        ),
    ] = None,
    labels_per_class: Annotated[
        int | None,
        typer.Option(
            "--labels-per-class", metavar="N", min=1, help="In setting B; the paper has 4."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            metavar="N",
            min=1,
            help="Default: 3, or 5 in CIFAR-10-LT B, as the claims need.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", metavar="N", min=1, help="Steps of every run, to try it; nothing is judged."
        ),
    ] = None,
    scale: Annotated[
        Literal["paper", "cpu"],
        typer.Option("--scale", help="In full, or reduced to what a CPU can run."),
    ] = "paper",
    features: Annotated[
        Features,
        typer.Option(
            "--features",
            help="At scale cpu: train a small network, or on stored features of a frozen one.",
        ),
    ] = "live",
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            metavar="DIR",
            help="Folder of pre-trained weights; ROOT/weights by default.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting of every cell that has it."
        ),
    ] = None,
    jobs: Jobs = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for runs and reports; reproduced/TABLE-SCALE by default.",
        ),
    ] = None,
    listed: Annotated[
        bool,
        typer.Option("--list", is_eager=True, help="Only list the cells."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the recall of every class as a PNG."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a table of the paper, and print our figures beside the published ones.

    A table has groups of rows (A/100 is setting A with an imbalance ratio of
    100), and each group is a comparison on the same splits and seeds: labels
    only, the base algorithm, and the same with SemiGPC. Rows that the paper
    quotes from others are shown and not run.

    If it is stopped, run the same command to continue. Finished runs are
    kept; figures.json in the output folder has the rows of the algorithms,
    add-ons and refiners of the last command.

    List the cells, try one group, run it, and add a comparator:

      semigpc reproduce --list
      semigpc reproduce cifar10_lt --root data --cell B/100 --steps 3
      semigpc reproduce cifar10_lt --root data --cell B/100
      semigpc reproduce cifar10_lt --root data --cell A/100 --addon crest

    The weights that the paper starts from are read from data/weights; an
    error names a missing file and its address. Without a GPU:

      semigpc reproduce cifar10_lt --root data --scale cpu --seeds 3 --jobs 2
    """
    from semigpc.cli.live import ComparisonProgress
    from semigpc.paper.reproduction import reproduce_table
    from semigpc.paper.tables import Options, find_table

    options = Options(
        root=root or Path(),
        weights=weights,
        scale=scale,
        features=features,
        algorithms=tuple(algorithm or ()),
        refiners=tuple(refiner),
        addons=tuple(addon or ()),
        steps=steps,
        labels_per_class=labels_per_class,
        overrides=tuple(settings or ()),
    )
    console = Console(stderr=as_json, width=None if Console(stderr=as_json).is_terminal else WIDTH)
    if listed:
        _list_cells(name, options, cell or [], seeds, console, as_json=as_json)
        return
    paper_table = find_table(name or "")
    if root is None:
        raise SettingsError("--root is required: the folder that contains the data.")
    figures, path = reproduce_table(
        paper_table,
        options,
        globs=cell or [],
        seeds=seeds,
        out=out,
        jobs=jobs,
        progress=ComparisonProgress,
        on_report=lambda page: say(f"report: {page}", err=as_json),
    )
    console.print(results_table(figures))
    console.print(gains_table(figures))
    if figures["statements"]:
        console.print(statements_table(figures["statements"]))
    for line in notes(figures, paper_table):
        console.print(verbatim(line), soft_wrap=True)
    say(f"figures: {path}", err=as_json)
    if plot is not None:
        from semigpc.paper.plots import draw_class_recall

        draw_class_recall(figures["groups"], plot)
        say(f"recall of every class: {plot}", err=as_json)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))


# The list of cells --------------------------------------------------------------------------------


def _list_cells(
    name: str | None,
    options: "Options",
    globs: list[str],
    seeds: int | None,
    console: Console,
    *,
    as_json: bool,
) -> None:
    """Print what each cell of one table, or of all, would run."""
    from semigpc.paper.reproduction import list_cells
    from semigpc.paper.tables import TABLES, find_table

    if name is None and globs:
        known = ", ".join(TABLES)
        raise SettingsError(f"--cell needs a table, named before --list. Known: {known}.")
    if name is None:
        chosen = [one for one in TABLES.values() if options.scale == "paper" or not one.full_scale]
    else:
        chosen = [find_table(name)]
    tables = {one.name: list_cells(one, options, globs, seeds) for one in chosen}
    gp_settings: GPSettings = {}
    for one in tables.values():
        console.print(_cells_table(one))
        gp_settings |= one["gp_settings"]
    for line in (SEEDS, *_gp_note(gp_settings)):
        console.print(verbatim(line), soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(tables, indent=2))


def _cells_table(listed: "ListedTable") -> Table:
    headings = ("cell", "network", ">steps", ">seeds")
    made = table(f"{listed['table']}: {listed['title']}", *headings)
    for key, cell in listed["cells"].items():
        made.add_row(key, cell["network"], str(cell["steps"]), str(cell["seeds"]))
    return made


# Results ------------------------------------------------------------------------------------------


def results_table(figures: "TableFigures") -> Table:
    """Return our accuracies beside the published ones, one section per group."""
    headings = (">ours, last", ">best on test*", ">published", ">difference", ">agrees?")
    made = table(f"{figures['title']} ({figures['scale']} scale)", "", *headings)
    for name, group in figures["groups"].items():
        count = len(group["seeds"])
        title = f"[bold]{name}[/bold], {count} seed{'s' if count > 1 else ''}"
        made.add_row(title, *[""] * len(headings))
        for cell in group["cells"].values():
            head = ", GP head" if cell.get("head") == "gp" else ""
            made.add_row(f"  {cell['label']}{head}", *_row(cell, spread=count > 1))
        made.add_section()
    return made


def _row(cell: "CellFigures", *, spread: bool) -> list[str]:
    printed = _published(cell["published"])
    if "last" not in cell:
        return ["", "", printed, "", "quoted"]
    last = cell["last"]
    best = cell["best_on_test"]
    difference = f"{last['difference']:+.2f}" if "difference" in last else "-"
    verdict = {True: "yes", False: "no", None: "-"}[last.get("agrees")]
    if last.get("agrees") is False and best["agrees"]:
        verdict = "no, best* does"
    return [_mean(last, spread=spread), _mean(best, spread=spread), printed, difference, verdict]


def _published(published: "PublishedFigure | None") -> str:
    if published is None:
        return "-"
    return _figure(published["top1"], published["std"])


def _mean(accuracy: "Accuracy", *, spread: bool) -> str:
    return _figure(accuracy["mean"], accuracy["std"] if spread else None)


def _figure(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def gains_table(figures: "TableFigures") -> Table:
    """Return what each refiner adds to its base at the last step."""
    headings = (">ours", ">by the linear layer", ">published", ">claim")
    made = table("What the refiner adds, in points at the last step", "", *headings)
    for name, group in figures["groups"].items():
        for gain in group["gains"]:
            ours = f"{gain['mean']:+.2f}"
            if len(group["seeds"]) > 1:
                ours += f" ± {gain['std']:.2f}"
            linear = "same" if gain["linear"] is None else f"{gain['linear']:+.2f}"
            printed = "-"
            if gain["published"] is not None:
                printed = f"{gain['published']:+.2f}"
                if gain["claimed"] != gain["published"]:
                    printed += f" (meant: {gain['claimed']:+.2f})"
            made.add_row(f"{name}: {gain['label']}", ours, linear, printed, gain["claim"] or "-")
    return made


def statements_table(statements: "list[StatementFigures]") -> Table:
    """Return the numbers of the paper's text: from ours, from its tables, and as printed."""
    headings = ("over", ">ours", ">published accuracies give", ">text says")
    made = table("What the paper says of the table as a whole, by the linear layer", "", *headings)
    for one in statements:
        over = "; ".join(one["over"]) if one["missing"] else "all"
        ours = "-" if one["ours"] is None else f"{one['ours']:.2f}"
        if one["published"] is None:
            made.add_row(one["name"], over, ours, "-", "-")
        else:
            made.add_row(one["name"], over, ours, f"{one['published']:.2f}", f"{one['printed']:g}")
    return made


def notes(figures: "TableFigures", paper_table: "PaperTable") -> list[str]:
    """Return what a reader of the tables has to know."""
    cells = [cell for group in figures["groups"].values() for cell in group["cells"].values()]
    configs = [cell["config"] for cell in cells if "config" in cell]
    lines = [METRIC_NOTE, BEST_ON_TEST]
    if figures["scale"] == "cpu":
        lines.append(CPU_SCALE)
        if any(config["refiner"].get("class_prior") == "frequency" for config in configs):
            lines.append(CLASS_PRIOR)
    elif not figures["changed"]:
        lines.append(VERDICTS)
    if figures["changed"]:
        changed = ", ".join(figures["changed"])
        lines.append(f"Settings were changed ({changed}), so nothing is compared with the paper.")
    if any(cell.get("head") == "gp" for cell in cells):
        lines.append(GP_HEAD)
    if any(config["addon"]["name"] != "none" for config in configs):
        lines.append(ADDONS)
    lines += _gp_note(figures["gp_settings"])
    if any(one["missing"] for one in figures["statements"]):
        lines.append(PARTS)
    lines += [f"In print: {note}" for note in paper_table.notes]
    groups_of_note: dict[tuple[str, str], list[str]] = {}
    for name, group in figures["groups"].items():
        for cell in group["cells"].values():
            if cell["published"] and cell["published"]["note"]:
                key = (cell["label"], cell["published"]["note"])
                groups_of_note.setdefault(key, []).append(name)
    return lines + [
        f"{', '.join(names)}: {label}: {note}" for (label, note), names in groups_of_note.items()
    ]


def _gp_note(settings: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the GP's hyper-parameters by data set, as one line."""
    if not settings:
        return []
    values = [
        f"{suite} " + ", ".join(f"{name} = {value:g}" for name, value in own.items())
        for suite, own in settings.items()
    ]
    return [f"l, sigma and lambda are ours, the paper does not print its own: {'; '.join(values)}."]
