"""``semigpc evaluate``: the accuracy of a run, on its own images or on others."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from semigpc.cli.failures import reported
from semigpc.cli.options import (
    AsJson,
    Checkpoint,
    FollowLinks,
    Run,
    TrustPseudo,
    register_data_sets,
)
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import accuracy_table, say
from semigpc.report.wording import used_sentence


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
        bool, typer.Option("--partial", help="Allow classes of the run to be absent from --data.")
    ] = False,
    part: Annotated[
        Literal["test", "validation"] | None,
        typer.Option(
            "--part",
            metavar="test|validation",
            help="Part of the run's own images; test by default, if it has any.",
        ),
    ] = None,
    trust_pseudo: TrustPseudo = False,
    follow_links: FollowLinks = False,
    checkpoint: Checkpoint = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run on its own test or validation images, or on others.

    Classes of other images are matched by name. A class that the run does
    not know is an error, and so is one without images, unless --partial.

    For example:

      semigpc evaluate runs/photos-simmatch-gp-seed0
      semigpc evaluate runs/photos-simmatch-gp-seed0 --data new/ --partial
    """
    if data is None and (labels is not None or partial):
        raise typer.BadParameter("it needs --data.", param_hint="--labels or --partial")
    if data is not None and part is not None:
        raise typer.BadParameter(
            "pass the run's own part, or other images with --data; not both.", param_hint="--part"
        )
    from semigpc.training.evaluate import evaluate as judge
    from semigpc.training.inference import images_to_evaluate, load_run

    register_data_sets()
    loaded = load_run(run, checkpoint)
    if data is None:
        part = part or ("test" if loaded.has("test") else "validation")
        loaded, images = loaded.part(part)
        source: str = part
    else:
        images, notes = images_to_evaluate(
            loaded,
            data,
            labels,
            partial=partial,
            follow_links=follow_links,
            trust_pseudo=trust_pseudo,
        )
        for note in notes:
            say(f"note: {note}", err=True)
        source = str(data)
    with StageBar() as bar:
        predictions = loaded.predict(images, on_batch=bar.counter("Images", len(images)))
    heads = judge(predictions, loaded.groups)
    if as_json:
        facts = {
            "run": str(run),
            "checkpoint": loaded.checkpoint,
            "step": loaded.step,
            "images": source,
            "head": loaded.head,
            "class_names": loaded.class_names,
            "heads": heads,
        }
        typer.echo(json.dumps(facts, indent=2))
    place = {"step": loaded.step, "part": f"{source} ({len(images)})"}
    rows = [
        (loaded.checkpoint, {**figures, **place, "head": head}) for head, figures in heads.items()
    ]
    console = Console(stderr=as_json)
    console.print(accuracy_table(rows))
    condition = "" if checkpoint is None else f"With --checkpoint {checkpoint}, "
    used = used_sentence(loaded.checkpoint, loaded.step, loaded.head)
    console.print(f"{condition}{used}", soft_wrap=True, highlight=False)
