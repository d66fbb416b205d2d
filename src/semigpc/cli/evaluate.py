"""``semigpc evaluate``: the accuracy of a run, on its own images or on others, or of a labelled
folder on others.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from semigpc.cli.failures import reported
from semigpc.cli.options import (
    AsJson,
    Checkpoint,
    FollowLinks,
    ModelFolder,
    TrustPseudo,
    is_labelling,
    register_data_sets,
)
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import accuracy_table, say, table
from semigpc.report.wording import percent, used_sentence

if TYPE_CHECKING:
    from rich.table import Table

    from semigpc.labeling.inference import GradeCheck


@reported("evaluate")
def evaluate(
    model: ModelFolder,
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
    """Evaluate a run on its own images or on others, or a labelled folder.

    Classes of other images are matched by name. A class that the run does
    not know is an error, and so is one without images, unless --partial.

    A labelled folder is evaluated on --data: images, or a table of embeddings
    if it was made from one. The second table says how many of the labels that
    it guarantees at each precision are right.

    For example:

      semigpc evaluate runs/photos-simmatch-gp-seed0
      semigpc evaluate runs/photos-simmatch-gp-seed0 --data new/ --partial
      semigpc evaluate out --data new/
    """
    if data is None and (labels is not None or partial):
        raise typer.BadParameter("it needs --data.", param_hint="--labels or --partial")
    if data is not None and part is not None:
        raise typer.BadParameter(
            "pass the run's own part, or other images with --data; not both.", param_hint="--part"
        )
    if is_labelling(model, part=part, checkpoint=checkpoint):
        _evaluate_labelling(model, data, labels, partial, follow_links, trust_pseudo, as_json)
        return
    register_data_sets()
    from semigpc.training.evaluate import evaluate as judge
    from semigpc.training.inference import images_to_evaluate, load_run

    loaded = load_run(model, checkpoint)
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
            "run": str(model),
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


def _evaluate_labelling(
    folder: Path,
    data: Path | None,
    labels: Path | None,
    partial: bool,
    follow_links: bool,
    trust_pseudo: bool,
    as_json: bool,
) -> None:
    from semigpc.labeling.inference import grade_checks, is_rows, load_labeling
    from semigpc.training.metrics import class_groups, classification_metrics

    if data is None:
        raise typer.BadParameter(
            f"{folder} is a labelled folder, which has no test images of its own: give some.",
            param_hint="--data",
        )
    labelling = load_labeling(folder)
    if labelling.network is None or (is_rows(data) and data.suffix.lower() != ".csv"):
        rows = labelling.rows_to_evaluate(data, labels, partial=partial, trust_pseudo=trust_pseudo)
    else:
        with StageBar("images") as bar:
            rows = labelling.images_to_evaluate(
                data,
                labels,
                partial=partial,
                follow_links=follow_links,
                trust_pseudo=trust_pseudo,
                progress=bar.show,
            )
    for note in rows.notes:
        say(f"note: {note}", err=True)
    probs = labelling.model.predict_proba(rows.x).astype("float64")
    groups = class_groups(labelling.model.class_counts_)
    figures = classification_metrics(probs, rows.codes, groups)
    checks = grade_checks(labelling.model, rows)
    if as_json:
        facts = {
            "labelling": str(folder),
            "images": str(data),
            "head": "gp",
            "class_names": labelling.class_names,
            "heads": {"gp": figures},
            "grades": checks,
        }
        typer.echo(json.dumps(facts, indent=2))
    console = Console(stderr=as_json)
    about = {"step": "", "part": f"{data} ({len(rows.codes)})", "head": "gp"}
    console.print(accuracy_table([("labelling", {**figures, **about})]))
    if checks:
        console.print(_grades_table(checks))


def _grades_table(checks: "list[GradeCheck]") -> "Table":
    made = table("Guaranteed labels", "guaranteed right", ">labels", ">right")
    for check in checks:
        right = percent(check["right"] / check["labels"]) if check["labels"] else ""
        made.add_row(f"{100 * check['precision']:g}%", str(check["labels"]), right)
    return made
