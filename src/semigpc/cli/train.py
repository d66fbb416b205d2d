"""``semigpc train``: a classifier from few labels and many unlabelled images."""

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.options import (
    AsJson,
    FeatureChoice,
    ImageSize,
    Labels,
    ModelName,
    OwnLinks,
    OwnTrustPseudo,
    Root,
    Settings,
    Test,
    TrainingData,
    Validation,
    option,
    short_settings,
)
from semigpc.cli.tables import HEADS, accuracy_table, say, table, verbatim
from semigpc.report.wording import used_sentence

if TYPE_CHECKING:
    from semigpc.training import Experiment
    from semigpc.training.run_folder import RunSummary

CHOICES = {"best_on_validation": "best on validation", "best_on_test": "best on test*"}
OPTIMISTIC = "* chosen on the test set itself, so better than on new images"
SEVERAL = "Several processes"  # panel of the help


@reported("train")
def train(
    data: TrainingData,
    algorithm: Annotated[
        str, typer.Option("--algorithm", metavar="NAME", help="See semigpc list algorithms.")
    ] = "simmatch",
    refiner: Annotated[
        str,
        typer.Option(
            "--refiner", metavar="NAME", help="gp is SemiGPC; none is the algorithm alone."
        ),
    ] = "gp",
    addon: Annotated[
        str, typer.Option("--addon", metavar="NAME", help="See semigpc list addons.")
    ] = "none",
    ratio: Annotated[
        float | None,
        typer.Option(
            "--ratio", metavar="GAMMA", help="Largest class over smallest, of a recipe's labels."
        ),
    ] = None,
    root: Root = None,
    features: FeatureChoice = None,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", min=0, help="Seed of split, weights and batch order."),
    ] = 0,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=1, help="Short for --set train.steps=N."),
    ] = None,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Run folder; runs/NAME by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in that folder.")
    ] = False,
    labels: Labels = None,
    trust_pseudo: OwnTrustPseudo = False,
    test: Test = None,
    validation: Validation = None,
    model: ModelName = None,
    image_size: ImageSize = None,
    follow_links: OwnLinks = False,
    devices: Annotated[
        int,
        option("--devices", SEVERAL, "N", "Processes that share a batch, one per GPU; 1.", min=1),
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Train a classifier from few labels and many unlabelled images.

    For thousands of unlabelled images and a GPU; else see semigpc open.
    Settings come from the defaults, then from the recipe, then from --set.
    The run folder stores them with the split, all metrics, the checkpoints
    and report.html. Ctrl-C saves; the same command with --resume goes on.

    For your own images of more than 32 pixels the network is
    EfficientNet-Lite0, pre-trained (extra 'embedded'). On a GPU it is
    fine-tuned. On a CPU, or with --features cached, it is frozen, and the
    model of semigpc label is one more head, which predicts by default.
    --model selects another. Smaller images train a small CNN from scratch.

    With --devices several processes on this machine share each batch; the
    result depends on their number only by rounding. On several machines run
    the same command under torchrun (docs/scale.md).

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
    from semigpc.training.state import DataCache

    options = TrainOptions(
        algorithm=algorithm,
        refiner=refiner,
        addon=addon,
        seed=seed,
        ratio=ratio,
        labels=labels,
        trust_pseudo=trust_pseudo,
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
    parts = [f"{name}-cached" if features == "cached" else name, experiment.algorithm_name]
    parts += [] if addon == "none" else [addon]
    parts += [experiment.refiner_name, f"seed{experiment.seed}"]
    folder = out or Path("runs", "-".join(parts))

    console = Console(stderr=as_json)
    several = devices > 1 or has_rank()
    group = process_group(experiment, folder, devices, resume=resume) if several else nullcontext()
    with RunProgress(RunFolder(folder), console) as progress, group as fabric:
        first = fabric is None or fabric.is_global_zero
        if first and resume and not RunFolder(folder).config.exists():
            line = f"There is no run in {folder} to resume; starting a new one."
            console.print(verbatim(line), soft_wrap=True)
        if first and data not in RECIPES:
            console.print(verbatim(describe_network(experiment)), soft_wrap=True)
            for line in advice(experiment, data):
                console.print(verbatim(line), soft_wrap=True)
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
    name = experiment.model.name
    size = experiment.augment.image_size
    source = experiment.model.pretrained
    weights = "" if source == "embedded" else f" ({source})"
    if experiment.frozen is not None:
        return (
            f"Network: {name}, pre-trained{weights} and frozen; an adapter trains on its cached "
            f"features at {size} px. Options: --model NAME, such as small_cnn, trained from "
            "scratch; --image-size for larger images."
        )
    if experiment.model.pretrained:
        return (
            f"Network: {name}, pre-trained{weights}, fine-tuned at {size} px. Options: --features "
            "cached keeps it frozen and takes seconds; --model NAME selects another."
        )
    return (
        f"Network: {name}, trained from scratch at {size} px. Option: --features cached for a "
        "pre-trained, frozen one."
    )


def advice(experiment: "Experiment", data: str) -> Iterator[str]:
    """Yield what to use instead, where training is not expected to add anything."""
    import torch

    if experiment.has_label_head and not torch.cuda.is_available():
        yield (
            f"Without a GPU, semigpc open {data} and semigpc label are as good, sooner, and "
            "guarantee labels: this run predicts by the same model (label head), unless validation "
            "images say that a trained head is better."
        )


def _print_results(folder: Path, summary: "RunSummary", console: Console) -> None:
    from semigpc.training.run_folder import RunFolder, read_run

    run = read_run(folder, bulky=False)
    if run.screening:
        console.print(screening_table(run.screening[-1]))
    results = summary["results"]
    if results["last"] is None:
        line = "There were no images to evaluate on. Pass some to semigpc evaluate --data."
        console.print(line, soft_wrap=True)
    else:
        curves = [run.curve(results["last"]["part"], head) for head in HEADS]
        rows = [("last", curve[-1]) for curve in curves if curve]
        rows += [(name, best) for key, name in CHOICES.items() if (best := results.get(key))]
        console.print(accuracy_table(rows, OPTIMISTIC if results.get("best_on_test") else None))
    console.print(used_sentence(*run.standing), soft_wrap=True, highlight=False)
    path = RunFolder(folder).best
    if run.standing.checkpoint == "best" and not path.exists():
        say(f"That checkpoint is missing: {path}. Put it back, or pass --checkpoint last to them.")


def screening_table(entry: Mapping[str, Any]) -> Table:
    """Return how well unlabelled images of no class are detected, one row per score."""
    from semigpc.report.wording import SCORE_NAMES

    caption = (
        f"{entry['n_in']} unlabelled images of the classes, {entry['n_out']} of none, "
        f"step {entry['step']}"
    )
    made = table("Detection of images of no class, AUROC", "by", ">AUROC", caption=caption)
    for key, name in SCORE_NAMES.items():
        if key in entry:
            made.add_row(name, f"{entry[key]:.3f}")
    return made
