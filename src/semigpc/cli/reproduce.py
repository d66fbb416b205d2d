"""``semigpc reproduce``: a table of the paper, run cell by cell, our figures beside the published
ones.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import USAGE, reported
from semigpc.cli.tables import AsJson, say, table, verbatim
from semigpc.cli.train import Features

if TYPE_CHECKING:
    from semigpc.paper.tables import Options, PaperTable

WIDTH = 110  # characters, where there is no terminal

METRIC_NOTE = (
    "Top-1 accuracy in percent, mean and standard deviation over seeds. All test sets are balanced, so that balanced accuracy "
    "is the same number."
)
BEST_ON_TEST = (
    "* of all evaluations the one that was best on the test images themselves: not an honest figure, but maybe the paper's, "
    "which follows USB and does not say. Differences and verdicts are those of the last step."
)
VERDICTS = (
    "A figure agrees within 2 printed deviations or 0.5 points, whichever is more; a gain is reproduced by its sign and half "
    "of its size on the mean of three seeds, on CIFAR-10-LT in setting B of five."
)
CPU_SCALE = (
    "Scale cpu: these figures are NOT comparable with the published ones, since network and images are smaller and training "
    "is shorter. Differences are printed, verdicts are not."
)
CLASS_PRIOR = "SemiGPC has a class prior here (refiner.class_prior=frequency), which the paper's method does not have."

ADDONS = (
    "Nothing is published of rows with an add-on. They have the recipe of the rows beside them, and where the add-on needs a "
    "moving average of the network and the recipe has none, one with momentum 0.999. The generations of CReST share the steps."
)
GP_HEAD = (
    "GP head: the prediction judged is the GP's own, of the base algorithm it is the linear layer's; what SemiGPC adds to the "
    "linear layer stands beside it."
)


def _help_without_a_table(context: typer.Context, name: str | None) -> str | None:
    if name is None and not context.params.get("listed"):
        from semigpc.paper.tables import TABLES

        typer.echo(context.get_help())
        width = max(map(len, TABLES))
        typer.echo(
            "\n".join(
                [
                    "Tables:",
                    *(f"  {name:<{width}}  {entry.title}" for name, entry in TABLES.items()),
                ]
            )
        )
        raise typer.Exit(USAGE)
    return name


@reported("reproduce")
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            help="cifar10_lt, cifar100_lt, fgvc, balanced_cifar, algorithm_ablation or pretraining_ablation.",
            callback=_help_without_a_table,
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            "--root", metavar="DIR", help="Folder of the data, or a .zip of images; see docs."
        ),
    ] = None,
    cell: Annotated[
        list[str],
        typer.Option(
            "--cell",
            metavar="GLOB",
            help="Cells or groups to run, as in 'A/100/*'; repeat for more.",
        ),
    ] = [],  # noqa: B006 - typer reads it once
    algorithm: Annotated[
        list[str],
        typer.Option(
            "--algorithm", metavar="NAME", help="Instead of the paper's; repeat for more."
        ),
    ] = [],  # noqa: B006
    refiner: Annotated[
        list[str],
        typer.Option(
            "--refiner", metavar="NAME", help="none and gp by default; similarity is there too."
        ),
    ] = ["none", "gp"],  # noqa: B006
    addon: Annotated[
        list[str],
        typer.Option(
            "--addon",
            metavar="NAME",
            help="Rows with it too, such as crest; see semigpc list addons.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
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
            help="Seeds 0 to N - 1. By default 3, and 5 in CIFAR-10-LT B, as the claims need.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            metavar="N",
            min=1,
            help="Steps of every run, to see it work; nothing is judged.",
        ),
    ] = None,
    scale: Annotated[
        Literal["paper", "cpu"],
        typer.Option("--scale", help="In full, or cut to what a CPU can do."),
    ] = "paper",
    features: Annotated[
        Features,
        typer.Option(
            "--features", help="At scale cpu: a small network, or a frozen one's features, kept."
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
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, for every cell that has it."),
    ] = [],  # noqa: B006
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Runs at a time.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for runs and pages; reproduced/TABLE-SCALE by default.",
        ),
    ] = None,
    listed: Annotated[
        bool,
        typer.Option(
            "--list",
            is_eager=True,
            help="Only list the cells and estimate their hours; needs no data.",
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", help="Draw the recall of every class into this PNG."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a table of the paper, and print our figures beside the published ones.

    A table has groups of rows (A/100 is setting A with an imbalance ratio of
    100), and each group is a comparison on the same splits and seeds: labels
    only, the base algorithm, and the same with SemiGPC. Rows that the paper
    quotes from others are shown and not run.

    What was stopped goes on where it was: give the command again. Finished
    runs are kept; figures.json in the output folder has the rows of the
    algorithms, add-ons and refiners that were asked for last.

    What would it cost, does it work, one group of it, and a comparator:

      semigpc reproduce --list
      semigpc reproduce cifar10_lt --root data --cell B/100 --steps 3
      semigpc reproduce cifar10_lt --root data --cell B/100
      semigpc reproduce cifar10_lt --root data --cell A/100 --addon crest

    The weights that the paper starts from are looked for in data/weights;
    what is missing is named with its address. Without a GPU:

      semigpc reproduce cifar10_lt --root data --scale cpu --seeds 3 --jobs 2
    """
    from semigpc.cli.live import ComparisonProgress
    from semigpc.io.errors import SettingsError
    from semigpc.paper.reproduction import reproduce_table
    from semigpc.paper.tables import Options, find_table

    options = Options(
        root=root or Path(),
        weights=weights,
        scale=scale,
        features=features,
        algorithms=tuple(algorithm),
        refiners=tuple(refiner),
        addons=tuple(addon),
        steps=steps,
        labels_per_class=labels_per_class,
        overrides=tuple(settings),
    )
    console = Console(stderr=as_json, width=None if Console(stderr=as_json).is_terminal else WIDTH)
    if listed:
        prices = _prices(name, options, cell, seeds)
        for one in prices.values():
            console.print(_price_table(one))
        for line in _price_notes(list(prices.values()), options.scale):
            console.print(verbatim(line), soft_wrap=True)
        if as_json:
            typer.echo(json.dumps(prices, indent=2))
        return
    paper_table = find_table(name or "")
    if root is None:
        raise SettingsError(
            "the data have to come from somewhere: give their folder by --root. Only --list needs none."
        )
    figures, path = reproduce_table(
        paper_table,
        options,
        globs=cell,
        seeds=seeds,
        out=out,
        jobs=jobs,
        progress=ComparisonProgress,
        on_report=lambda page: say(f"report: {page}", err=as_json),
    )
    console.print(results_table(figures))
    console.print(gains_table(figures))
    if figures["statements"]:
        console.print(statements_table(figures))
    for line in notes(figures, paper_table):
        console.print(verbatim(line), soft_wrap=True)
    say(f"figures: {path}", err=as_json)
    if plot is not None:
        from semigpc.report.comparison_page import draw_class_recall

        draw_class_recall(figures, plot)
        say(f"classes one by one: {plot}", err=as_json)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))


def results_table(figures: Mapping[str, Any]) -> Table:
    """Return ours beside the published, a section for each group."""
    headings = (">ours, last", ">best on test*", ">published", ">difference", ">agrees?")
    made = table(f"{figures['title']} ({figures['scale']} scale)", "", *headings)
    for name, group in figures["groups"].items():
        count = len(group["seeds"])
        made.add_row(
            f"[bold]{name}[/bold], {count} seed{'s' if count > 1 else ''}", *[""] * len(headings)
        )
        for cell in group["cells"].values():
            made.add_row(
                f"  {cell['label']}{', GP head' if cell.get('head') == 'gp' else ''}",
                *_row(cell, spread=count > 1),
            )
        made.add_section()
    return made


def _row(cell: Mapping[str, Any], *, spread: bool) -> list[str]:
    published = cell["published"]
    printed = "-" if published is None else _figure(published["top1"], published["std"])
    if "last" not in cell:
        return ["", "", printed, "", "quoted"]
    last, best = cell["last"], cell["best_on_test"]
    verdict = {True: "yes", False: "no", None: "-"}[last.get("agrees")]
    if last.get("agrees") is False and best["agrees"]:
        verdict = "no, best* does"
    difference = f"{last['difference']:+.2f}" if "difference" in last else "-"
    return [
        *(_figure(one["mean"], one["std"] if spread else None) for one in (last, best)),
        printed,
        difference,
        verdict,
    ]


def _figure(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def gains_table(figures: Mapping[str, Any]) -> Table:
    """Return what a refiner adds to its base, at the last step."""
    headings = (">ours", ">by the linear layer", ">published", ">claim")
    made = table("What the refiner adds, in points at the last step", "", *headings)
    for name, group in figures["groups"].items():
        for gain in group["gains"]:
            ours = f"{gain['mean']:+.2f}" + (
                f" ± {gain['std']:.2f}" if len(group["seeds"]) > 1 else ""
            )
            linear = "same" if gain["linear"] is None else f"{gain['linear']:+.2f}"
            printed = "-" if gain["published"] is None else f"{gain['published']:+.2f}"
            if gain["published"] is not None and gain["claimed"] != gain["published"]:
                printed += f" (meant: {gain['claimed']:+.2f})"
            made.add_row(f"{name}: {gain['label']}", ours, linear, printed, gain["claim"] or "-")
    return made


def statements_table(figures: Mapping[str, Any]) -> Table:
    """Return what the paper's text says of the whole table: from ours, from the published
    accuracies, and as printed.
    """
    headings = ("over", ">ours", ">published accuracies give", ">text says")
    made = table("What the paper says of the table as a whole, by the linear layer", "", *headings)
    for one in figures["statements"]:
        over = "; ".join(one["over"]) if one["missing"] else "all"
        ours, published = (
            "-" if one[whose] is None else f"{one[whose]:.2f}" for whose in ("ours", "published")
        )
        made.add_row(
            one["name"],
            over,
            ours,
            published,
            "-" if one["published"] is None else f"{one['printed']:g}",
        )
    return made


def notes(figures: Mapping[str, Any], paper_table: "PaperTable") -> list[str]:
    """Return what has to be known to read the tables."""
    cells = [cell for group in figures["groups"].values() for cell in group["cells"].values()]
    lines = [METRIC_NOTE, BEST_ON_TEST]
    if figures["scale"] == "cpu":
        lines.append(CPU_SCALE)
        priors = [
            cell["config"]["refiner"].get("class_prior") for cell in cells if "config" in cell
        ]
        lines += [CLASS_PRIOR] if "frequency" in priors else []
    elif not figures["changed"]:
        lines.append(VERDICTS)
    if figures["changed"]:
        lines.append(
            f"Settings were changed ({', '.join(figures['changed'])}), so nothing is compared with the paper."
        )
    if any(cell.get("head") == "gp" for cell in cells):
        lines.append(GP_HEAD)
    if any("config" in cell and cell["config"]["addon"]["name"] != "none" for cell in cells):
        lines.append(ADDONS)
    lines += _gp_note(figures["gp_settings"])
    if any(one["missing"] for one in figures["statements"]):
        lines.append(
            "The text speaks of whole tables; where a part was run, the accuracies published of that part stand beside ours."
        )
    lines += [f"In print: {note}" for note in paper_table.notes]
    about: dict[tuple[str, str], list[str]] = {}
    for name, group in figures["groups"].items():
        for cell in group["cells"].values():
            if cell["published"] and cell["published"]["note"]:
                about.setdefault((cell["label"], cell["published"]["note"]), []).append(name)
    return lines + [
        f"{', '.join(names)}: {label}: {note}" for (label, note), names in about.items()
    ]


# Costs --------------------------------------------------------------------------------------------


def _prices(
    name: str | None, options: "Options", globs: list[str], seeds: int | None
) -> dict[str, dict[str, Any]]:
    """Return what each cell of one table or of all would cost."""
    from semigpc.io.errors import SettingsError
    from semigpc.paper.reproduction import prices_of
    from semigpc.paper.tables import TABLES, find_table, select

    if name is None and globs:
        raise SettingsError(
            f"--cell picks from one table: name it before --list. Known: {', '.join(TABLES)}."
        )
    able = [one for one in TABLES.values() if options.scale == "paper" or not one.full_scale]
    chosen = able if name is None else [find_table(name)]
    return {
        one.name: prices_of(one, select(one.all_cells(options), globs), options.scale, seeds)
        for one in chosen
    }


def _price_table(prices: Mapping[str, Any]) -> Table:
    frozen = any(cell["hours"]["features"] for cell in prices["cells"].values())
    parts = ("network", "gp", "evaluation", *(["features"] if frozen else []))
    columns = ("steps", *parts, *([] if frozen else ["loading-bound"]), "total", "seeds")
    made = table(
        f"{prices['table']}: {prices['title']}", "cell", *(f">{column}" for column in columns)
    )
    for key, cell in prices["cells"].items():
        hours = cell["hours"]
        times = [_time(hours[part]) if hours[part] else "-" for part in parts]
        bound = (
            [] if frozen else ["yes" if hours["loading"] > hours["network"] + hours["gp"] else "no"]
        )
        made.add_row(
            key, str(cell["steps"]), *times, *bound, _time(hours["total"]), str(cell["seeds"])
        )
    made.add_section()
    made.add_row("all of it, all seeds", *[""] * (len(columns) - 2), _time(prices["hours"]), "")
    return made


def _price_notes(prices: Sequence[Mapping[str, Any]], scale: str) -> list[str]:
    """Return what the numbers mean, and their sum."""
    from semigpc.paper.cost import EVALUATION_IMAGES, MACHINES, TRAINING_VIEWS

    machine, hours = MACHINES[scale], sum(one["hours"] for one in prices)
    loading = (
        f"beside {machine.workers} loading processes"
        if machine.workers
        else "which loads its images itself"
    )
    memory = max(cell["gp_bytes"] for one in prices for cell in one["cells"].values()) / 1e9
    lines = [
        f"These are ESTIMATES for one run on {machine.name}, {loading}. Its peaks are {machine.float32 / 1e9:,.0f} GFLOP/s "
        f"in float32, {machine.float64 / 1e9:,.0f} in float64 and {machine.bandwidth / 1e9:,.0f} GB/s, of which "
        f"{100 * machine.share:.0f} % are ASSUMED to be reached; nothing was measured on it.",
        "network: operations counted, three times the forward pass for images with a gradient. gp: operations and memory "
        f"traffic of the exact engine, in float64, with a full buffer ({memory:.2g} GB). evaluation: of all "
        "test images, each time. features: once for all cells of a group, if the network is frozen.",
        f"loading-bound: loading takes longer than computing. Each core makes {TRAINING_VIEWS['pad']:.0f} views a second at "
        f"32 px and {TRAINING_VIEWS['resize']:.0f} at 224 px, and reads {EVALUATION_IMAGES['resize']:.0f} images of 224 px for "
        "evaluation, by python -m benchmarks.loader. With loading processes a step takes the longer of the two, otherwise "
        "their sum. What add-ons compute is not counted.",
        "seeds: as many as the claims need to be judged, unless --seeds N asks for others.",
    ]
    settings = {suite: values for one in prices for suite, values in one["gp_settings"].items()}
    return [*lines, *_gp_note(settings), f"In all {_time(hours)}, that is {hours / 24:.3g} days."]


def _gp_note(settings: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the GP's hyper-parameters by data set, as one line."""
    values = [
        f"{suite} " + ", ".join(f"{name} = {value:g}" for name, value in own.items())
        for suite, own in settings.items()
    ]
    return (
        [f"l, sigma and lambda are ours, the paper does not print its own: {'; '.join(values)}."]
        if values
        else []
    )


def _time(hours: float) -> str:
    return (
        f"{hours:.0f} h"
        if hours >= 100
        else f"{hours:.3g} h"
        if hours >= 1
        else f"{60 * hours:.2g} min"
    )
