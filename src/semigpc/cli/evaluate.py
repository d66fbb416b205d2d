"""``semigpc evaluate``: how good a run is, on its own images or on others."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from semigpc.cli.failures import reported
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import AsJson, FollowLinks, accuracy_table

Part = Literal["test", "validation"]
Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        exists=True,
        file_okay=False,
        help="Folder of a run, as semigpc train made it.",
    ),
]
Which = Annotated[
    Literal["best", "last"] | None,
    typer.Option(
        "--checkpoint", metavar="best|last", help="Best on validation, if there is one, or last."
    ),
]
WhichHead = Annotated[
    Literal["auto", "linear", "gp"],
    typer.Option("--head", help="Linear classifier or GP; auto: as the run was judged."),
]


@reported("evaluate")
def evaluate(
    run: Run,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="Other images: a folder of class folders, a table, or an .npz file.",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels", metavar="FILE", help="CSV or Parquet with the labels of the folder --data."
        ),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Let classes of the run be absent from --data.")
    ] = False,
    part: Annotated[
        Part | None,
        typer.Option(
            "--part",
            metavar="test|validation",
            help="Own images; test by default, if there are any.",
        ),
    ] = None,
    follow_links: FollowLinks = False,
    checkpoint: Which = None,
    as_json: AsJson = False,
) -> None:
    """Judge a run on its own test or validation images, or on others.

    Classes of other images are matched by name. One that the run does not
    know is an error, and so is one that has no image, unless --partial.

    For example:

      semigpc evaluate runs/photos-simmatch-gp-seed0
      semigpc evaluate runs/photos-simmatch-gp-seed0 --data new/ --partial
    """
    if data is None and (labels is not None or partial):
        raise typer.BadParameter(
            "it says something of --data, which is missing.", param_hint="--labels or --partial"
        )
    if data is not None and part is not None:
        raise typer.BadParameter(
            "the run's own part, or other images with --data; not both.", param_hint="--part"
        )
    from semigpc.training.evaluate import evaluate as judge
    from semigpc.training.inference import images_to_evaluate, load_run

    loaded = load_run(run, checkpoint)
    if data is None:
        part = part or ("test" if loaded.has("test") else "validation")
        loaded, images = loaded.part(part)
        source: str = part
    else:
        images = images_to_evaluate(
            loaded, data, labels, partial=partial, follow_links=follow_links
        )
        source = str(data)

    with StageBar() as bar:
        heads = judge(
            loaded.predict(images, on_batch=bar.counter("Images", len(images))), loaded.groups
        )
    if as_json:
        facts = {
            "run": str(run),
            "checkpoint": loaded.checkpoint,
            "step": loaded.step,
            "images": source,
            "head": loaded.head,
        }
        typer.echo(
            json.dumps({**facts, "class_names": loaded.class_names, "heads": heads}, indent=2)
        )
    place = {"step": loaded.step, "part": f"{source} ({len(images)})"}
    rows = [
        (loaded.checkpoint, {**figures, **place, "head": head, "judged": head == loaded.head})
        for head, figures in heads.items()
    ]
    Console(stderr=as_json).print(accuracy_table(rows))
