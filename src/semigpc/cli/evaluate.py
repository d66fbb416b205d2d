"""``semigpc evaluate``: how good a run is, on its own images or on others."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from semigpc.cli.failures import reported


class Checkpoint(StrEnum):
    """Which state of a run to take."""

    best = "best"
    last = "last"


class Part(StrEnum):
    """Which of the run's own images to judge by."""

    test = "test"
    validation = "validation"


Run = Annotated[
    Path, typer.Argument(metavar="RUN", exists=True, file_okay=False, help="Folder of a run, as semigpc train made it.")
]
Which = Annotated[
    Checkpoint | None,
    typer.Option("--checkpoint", help="State of the run: best on validation (the default, if there is one) or last."),
]
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Use links that lead out of a given folder, which are an error otherwise.")
]


@reported("evaluate")
def evaluate(
    run: Run,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="PATH", help="Other images: a folder of class folders, a table, or an .npz file."),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", metavar="FILE", help="CSV or Parquet with the labels of the folder --data.")
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Let classes of the run be absent from --data.")] = False,
    part: Annotated[Part | None, typer.Option("--part", help="Own images: test (the default, if there are any).")] = None,
    follow_links: FollowLinks = False,
    checkpoint: Which = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Judge a run on its own test or validation images, or on others.

    Classes of other images are matched by name. One that the run does not
    know is an error, and so is one that has no image, unless --partial.

    For example:

      semigpc evaluate runs/photos-simmatch-gp-seed0
      semigpc evaluate runs/photos-simmatch-gp-seed0 --data new/ --partial
    """
    if data is None and (labels is not None or partial):
        raise typer.BadParameter("it says something of --data, which is missing.", param_hint="--labels or --partial")
    if data is not None and part is not None:
        raise typer.BadParameter("the run's own part, or other images with --data; not both.", param_hint="--part")
    from semigpc.cli.run_tables import heads_table
    from semigpc.training.evaluate import evaluate as judge
    from semigpc.training.inference import images_to_judge, load_run

    loaded = load_run(run, None if checkpoint is None else checkpoint.value)
    if data is None:
        chosen = part or (Part.test if loaded.has("test") else Part.validation)
        loaded, images = loaded.part(chosen.value)
        source = chosen.value
    else:
        images = images_to_judge(loaded, data, labels, partial=partial, follow_links=follow_links)
        source = str(data)

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("Images", total=len(images))
        heads = judge(loaded.predict(images, on_batch=lambda done: bar.advance(task, done)), loaded.groups)
    if as_json:
        facts = {"run": str(run), "checkpoint": loaded.checkpoint, "step": loaded.step, "images": source}
        typer.echo(json.dumps({**facts, "class_names": loaded.class_names, "heads": heads}, indent=2))
    table = heads_table(loaded.checkpoint, loaded.step, f"{source} ({len(images)})", heads)
    Console(stderr=as_json).print(table)
