"""``semigpc bench field``: what the field puts on top of an algorithm, each with and without SemiGPC."""

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from semigpc.cli.failures import reported
from semigpc.cli.tables import say, verbatim

if TYPE_CHECKING:
    from semigpc.bench.field import Field

Names = list[str] | None


@reported("bench field")
def field(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of runs; what it holds is not run again.")],
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="CIFAR-10, a folder or a .zip; without it digits alone.")
    ] = None,
    problem: Annotated[Names, typer.Option(metavar="NAME", help="cifar10_a, cifar10_b, digits_a, digits_b; repeat.")] = None,
    base: Annotated[Names, typer.Option(metavar="NAME", help="Algorithm; repeat for several.")] = None,
    addon: Annotated[
        Names, typer.Option(metavar="NAME", help="Or none; repeat. All of semigpc list addons without it.")
    ] = None,
    refiner: Annotated[
        Names, typer.Option(metavar="NAME", help="none, gp or similarity; repeat. The first two without it.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Splits of each problem.", metavar="N", min=1)] = 3,
    steps: Annotated[int | None, typer.Option(help="Of a run, for a trial.", metavar="N", min=10)] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time.", metavar="N", min=1)] = 1,
    only_summary: Annotated[bool, typer.Option("--only-summary", help="Run nothing more; tell what is finished.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the mean ranks to this PNG.", metavar="FILE", dir_okay=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on standard output.")] = False,
) -> None:
    """Compare add-ons against imbalance, on several algorithms, with and without SemiGPC.

    Every algorithm with every add-on and refiner, in short runs on the same
    splits and seeds: long-tailed labels (setting A) or four of each class (B),
    of CIFAR-10 as features of a frozen network and of digits as images.
    Labels only, NP-Match and, on features, label propagation stand beside
    them. Then mean ranks, and each method with SemiGPC against without.

    What was stopped goes on where it was: give the command again. The figures
    of all runs are in field.json in the output folder.

      semigpc bench field --root cifar10.zip --out field --jobs 2
    """
    from semigpc.bench.addon_steps import addon_steps
    from semigpc.bench.field import SEMIGPC, run_field
    from semigpc.bench.field_summary import summarise
    from semigpc.cli.comparison_bars import ComparisonProgress
    from semigpc.cli.field_tables import field_remarks, problem_table, rank_table
    from semigpc.files import write_json

    if plot is not None and not plot.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {plot.parent}.", param_hint="--plot")
    chosen = _chosen(root, problem, base, addon, refiner, seeds, steps)
    command = shlex.join(["semigpc", *sys.argv[1:]])
    total, result = chosen.runs(), out / "field.json"
    if not only_summary:
        with ComparisonProgress(total, f"{total} runs") as progress:
            run_field(chosen, out, command=command, jobs=jobs, listener=progress, advance=progress.beside)
    summary: dict[str, Any] = {"command": command} | summarise(chosen, out)
    held = json.loads(result.read_text()).get("step_times", {}) if result.exists() else {}
    missing = [name for name in chosen.bases if not set(chosen.addons) <= set(held.get(name, ()))]
    if missing and not only_summary:
        with Console(stderr=True).status("step times"):
            held |= addon_steps(missing, chosen.addons)
    summary["step_times"] = held
    out.mkdir(parents=True, exist_ok=True)
    write_json(result, summary)
    if plot is not None and summary["ranks"]["mean_ranks"]:
        from semigpc.report.rank_figure import draw_mean_ranks

        draw_mean_ranks(summary["ranks"], plot, marked=SEMIGPC, title="Add-ons against imbalance, with and without SemiGPC")
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    console = Console(width=None if Console().is_terminal else 140)
    for one in summary["problems"].values():
        console.print(problem_table(one, summary["bases"]))
    if summary["ranks"]["mean_ranks"]:
        console.print(rank_table(summary))
    for line in field_remarks(summary):
        console.print(verbatim(line), soft_wrap=True)
    say(f"figures: {result}")


def _chosen(
    root: Path | None, problem: Names, base: Names, addon: Names, refiner: Names, seeds: int, steps: int | None
) -> "Field":
    """What is asked for, with every name known before anything is run."""
    from semigpc.addons import ADDONS
    from semigpc.algorithms import ALGORITHMS
    from semigpc.bench.field import Field
    from semigpc.recipes.field import BASES, PROBLEMS, REFINERS
    from semigpc.refiners import REFINERS as KNOWN
    from semigpc.text import unknown_name
    from semigpc.training import SettingError

    at_hand = [name for name, one in PROBLEMS.items() if root is not None or not one.cached]
    asked: dict[str, tuple[Iterable[str], Mapping[str, Any]]] = {
        "problem": (problem or at_hand, PROBLEMS),
        "algorithm": (base or BASES, ALGORITHMS),
        "addon": (addon or ADDONS, ADDONS),
        "refiner": (refiner or REFINERS, KNOWN),
    }
    for kind, (names, known) in asked.items():
        for name in names:
            if name not in known:
                raise SettingError(unknown_name(kind, name, known))
    problems, bases, addons, refiners = (tuple(dict.fromkeys(names)) for names, _ in asked.values())
    needy = [name for name in problems if name not in at_hand]
    if needy:
        raise SettingError(f"{needy[0]} is made of images: say where CIFAR-10 is by --root, a folder or a .zip.")
    return Field(
        problems=problems, bases=bases, addons=addons, refiners=refiners, root=root or Path(), seeds=seeds, steps=steps
    )
