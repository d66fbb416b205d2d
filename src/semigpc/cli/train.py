"""``semigpc train``: a classifier from few labels and many unlabelled images."""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.tables import HEADS, AsJson, accuracy_table, option, say, table, verbatim

if TYPE_CHECKING:
    from semigpc.training import Experiment
    from semigpc.training.run_folder import RunSummary

CHOICES = {"best_on_validation": "best on validation", "best_on_test": "best on test*"}
OPTIMISTIC = "* chosen on the test set itself, so better than new images will be"
OWN = "Your own data"
MANY = "Many processes"


# Options that train shares with compare, and the first with reproduce.
Features = Literal["live", "cached"]
FeatureChoice = Annotated[
    Features | None,
    typer.Option(
        "--features", help="live trains the network; cached, for photos on a CPU, on its features."
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        "--root", metavar="PATH", help="Data of the recipes mnist; short for --set data.root=PATH."
    ),
]
Labels = Annotated[
    Path | None, option("--labels", OWN, "FILE", "CSV or Parquet: file_name, label.")
]
Test = Annotated[
    Path | None, option("--test", OWN, "PATH", "Labelled images: such a file, or class folders.")
]
Validation = Annotated[
    str | None,
    option(
        "--validation",
        OWN,
        "PATH",
        "The same, or a fraction of the labels: 0.2 if each class has 5.",
    ),
]
ModelName = Annotated[
    str | None, option("--model", OWN, "NAME", "See semigpc list models; pre-trained for photos.")
]
ImageSize = Annotated[
    int | None,
    option("--image-size", OWN, "PIXELS", "Side; by default what suits the network.", min=2),
]
OwnLinks = Annotated[
    bool, option("--follow-links", OWN, None, "Use links that lead out of a folder.")
]


@reported("train")
def train(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A recipe, a folder of images, or an .npz file.")
    ],
    algorithm: Annotated[
        str, typer.Option("--algorithm", metavar="NAME", help="See semigpc list algorithms.")
    ] = "simmatch",
    refiner: Annotated[
        str,
        typer.Option("--refiner", metavar="NAME", help="gp is SemiGPC; none the plain algorithm."),
    ] = "gp",
    addon: Annotated[
        str, typer.Option("--addon", metavar="NAME", help="See semigpc list addons.")
    ] = "none",
    ratio: Annotated[
        float | None,
        typer.Option("--ratio", metavar="GAMMA", help="Imbalance of a recipe, head over tail."),
    ] = None,
    root: Root = None,
    features: FeatureChoice = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Of split, weights and order.")
    ] = 0,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=1, help="Short for --set train.steps=N."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any setting: see semigpc list settings DATA."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Run folder; runs/NAME by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in that folder.")
    ] = False,
    labels: Labels = None,
    test: Test = None,
    validation: Validation = None,
    model: ModelName = None,
    image_size: ImageSize = None,
    follow_links: OwnLinks = False,
    devices: Annotated[
        int,
        option("--devices", MANY, "N", "Processes that share each batch, one per GPU; 1.", min=1),
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Train a classifier from few labels and many unlabelled images.

    Settings come from the defaults, then from the recipe, then from --set.
    The run folder keeps them with the split, every figure, the checkpoints
    and report.html. Ctrl-C saves and stops; the same command with --resume
    goes on, and ends with the same bits as a run that was not stopped.

    Your images of more than 32 pixels are seen by EfficientNet-Lite0, which
    is pre-trained (extra 'embedded'). With a GPU it is fine-tuned. Without,
    as with --features cached, it stays as it is: features of all images are
    computed once, and training takes seconds. --model takes
    any other network. Smaller images train a small CNN from scratch.

    With --devices the batch is shared by so many processes on this machine,
    and the result does not depend on their number but for rounding. For
    several machines run the same command under torchrun (docs/scale.md).

    For example:

      semigpc train digits --ratio 30 --algorithm simmatch --refiner gp
      semigpc train photos --labels labels.csv --test test.csv
      semigpc train photos --labels labels.csv --model small_cnn
    """
    from semigpc.cli.live import RunProgress
    from semigpc.report.run_page import write_run_report
    from semigpc.training import RunFolder
    from semigpc.training import train as run_training
    from semigpc.training.presets import RECIPES, TrainOptions, resolve
    from semigpc.training.processes import has_rank, process_group
    from semigpc.training.run_data import DataCache

    options = TrainOptions(
        algorithm=algorithm,
        refiner=refiner,
        addon=addon,
        seed=seed,
        ratio=ratio,
        labels=labels,
        test=test,
        validation=validation,
        model=model,
        image_size=image_size,
        cached=None if features is None else features == "cached",
        follow_links=follow_links,
    )
    cache = DataCache()
    changes = [*(settings or []), *short_settings(data, steps, root)]
    experiment, name = resolve(data, options, cache)
    experiment = experiment.override(changes)
    name = f"{name}-cached" if features == "cached" else name
    parts = [
        experiment.algorithm_name,
        *([] if addon == "none" else [addon]),
        experiment.refiner_name,
    ]
    folder = out or Path("runs", f"{name}-{'-'.join(parts)}-seed{experiment.seed}")

    console = Console(stderr=as_json)
    several = devices > 1 or has_rank()
    group = process_group(experiment, folder, devices, resume=resume) if several else nullcontext()
    with RunProgress(RunFolder(folder), console) as progress, group as fabric:
        first = fabric is None or fabric.is_global_zero
        if first and resume and not RunFolder(folder).config.exists():
            console.print(
                verbatim(f"There is no run in {folder} to resume: a new one begins."),
                soft_wrap=True,
            )
        if first and data not in RECIPES:
            console.print(verbatim(describe_network(experiment)), soft_wrap=True)
        listener = progress if first else None
        summary = run_training(
            experiment, folder, resume=resume, listener=listener, fabric=fabric, cache=cache
        )
    if not first:
        return
    page = write_run_report(folder)
    if as_json:
        typer.echo(json.dumps({"run": str(folder), "report": str(page), **summary}, indent=2))
    _print_results(folder, summary, console)
    say(f"run: {folder}", err=as_json)
    say(f"report: {page}", err=as_json)


def describe_network(experiment: "Experiment") -> str:
    """Return one line: the network, what of it trains, at which size, and how to choose another."""
    name, size = experiment.model.name, experiment.augment.image_size
    if experiment.frozen is not None:
        return (
            f"Network: {name}, pre-trained and frozen; an adapter trains on its cached features at {size} px. "
            "Another: --model NAME, such as small_cnn, trained from scratch; larger images: --image-size."
        )
    if experiment.model.pretrained:
        return (
            f"Network: {name}, pre-trained, all of it trains, at {size} px. Keep it frozen, in seconds: --features cached; "
            "another: --model NAME."
        )
    return f"Network: {name}, trained from scratch at {size} px. A pre-trained one, frozen: --features cached."


def short_settings(data: str, steps: int | None, root: Path | None) -> list[str]:
    """Return the settings that ``--steps`` and ``--root`` are short for."""
    from semigpc.io.errors import SettingsError
    from semigpc.training.presets import RECIPES

    if root is not None and data not in RECIPES:
        raise SettingsError(
            f"--root is where the data of a recipe are; your own data are {data}. Leave it out."
        )
    paths = [] if root is None else [f"data.root={root.expanduser().resolve()}"]
    return paths if steps is None else [*paths, f"train.steps={steps}"]


def _print_results(folder: Path, summary: "RunSummary", console: Console) -> None:
    from semigpc.training.run_folder import read_run

    evaluations = read_run(folder, bulky=False)
    if evaluations.screening:
        console.print(screening_table(evaluations.screening[-1]))
    results = summary["results"]
    if results["last"] is None:
        console.print(
            "There were no images to judge by. Give some with semigpc evaluate --data.",
            soft_wrap=True,
        )
        return
    curves = [evaluations.curve(results["last"]["part"], head) for head in HEADS]
    rows = [("last", curve[-1]) for curve in curves if curve]
    rows += [(name, best) for key, name in CHOICES.items() if (best := results.get(key))]
    console.print(accuracy_table(rows, OPTIMISTIC if results.get("best_on_test") else None))


def screening_table(entry: Mapping[str, Any]) -> Table:
    """Return how well unlabelled images of no class are told from the others, one row per score."""
    from semigpc.report.wording import SCORE_NAMES

    caption = f"{entry['n_in']} unlabelled images of the classes, {entry['n_out']} of none, step {entry['step']}"
    made = table("Images of no class told apart, AUROC", "by", ">AUROC", caption=caption)
    for key, name in SCORE_NAMES.items():
        if key in entry:
            made.add_row(name, f"{entry[key]:.3f}")
    return made
