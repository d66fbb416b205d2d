"""``semigpc label``: labels for a table of embeddings or a folder of images, from a few that were given."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.evaluate import FollowLinks
from semigpc.cli.failures import reported
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import say, table, verbatim
from semigpc.text import percent

CLASSES_LISTED = 30  # on the screen


class Prior(StrEnum):
    """How frequent classes are taken to be."""

    estimated = "estimated"
    balanced = "balanced"


class EngineChoice(StrEnum):
    """What does the work."""

    local = "local"
    ray = "ray"


@reported("label")
def label(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A .parquet, .arrow, .feather, .csv or .npz file of embeddings, a folder of .parquet shards, "
            "or a folder of images.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", metavar="FOLDER", help="The folder to write.")],
    labels: Annotated[
        list[Path] | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help="A .csv or .parquet file: the ids and label; empty or -1 is none. Repeat for several; the last word counts.",
        ),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", metavar="NAME", help="Column of ids; file_name or id unless told.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            "--features",
            metavar="NAMES",
            help="A column of lists, or columns of numbers: names and patterns, separated by commas. Unless told: embedding, "
            "the only column of lists, or all columns of numbers.",
        ),
    ] = None,
    label_column: Annotated[
        str | None, typer.Option("--label-column", metavar="NAME", help="Column of labels; label unless told.")
    ] = None,
    target_precision: Annotated[
        float,
        typer.Option(
            "--target-precision", min=0.0, max=1.0, help="Share of the labels that are to be right; abstains from others."
        ),
    ] = 0.95,
    abstain: Annotated[
        float | None,
        typer.Option("--abstain", min=0.0, max=1.0, help="Abstain below this confidence, whatever the precision."),
    ] = None,
    answer_all: Annotated[bool, typer.Option("--answer-all", help="Never abstain; outliers are still marked.")] = False,
    prior: Annotated[
        Prior,
        typer.Option(
            "--prior",
            help="Decide for the likeliest class, as frequent as classes seem to be among the rest (estimated), or as if "
            "all were equally frequent (balanced), which finds more of the rare ones.",
        ),
    ] = Prior.estimated,
    self_training: Annotated[
        bool,
        typer.Option(
            "--self-training",
            help="Let rows that are sure help to decide: better guesses where labels are few and confidence low.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the sample and of cross-validation.")] = 0,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Go on without images that cannot be read and rows that are not finite.")
    ] = False,
    images: Annotated[
        Path | None, typer.Option("--images", metavar="FOLDER", help="Where the images of a table are, by their ids.")
    ] = None,
    image_url: Annotated[
        str | None,
        typer.Option("--image-url", metavar="PREFIX", help="What Label Studio is to find before the name of an image."),
    ] = None,
    follow_links: FollowLinks = False,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="The network that sees images: any timm backbone.")
    ] = "tf_efficientnet_lite0",
    pretrained: Annotated[
        str, typer.Option("--pretrained", metavar="SOURCE", help="Its weights, as for semigpc embed.")
    ] = "auto",
    engine: Annotated[
        EngineChoice,
        typer.Option(
            "--engine",
            help="Label in this process (local), or a folder of .parquet partitions by many (ray). RAY_ADDRESS names a "
            "cluster; DATA and --out may then be addresses such as s3://bucket/folder.",
        ),
    ] = EngineChoice.local,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Cross-validate and write the page, or leave that out to be quick.")
    ] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace labels that were made otherwise.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on standard output.")] = False,
) -> None:
    """Label every row from the few that have a label, and say why.

    Writes to --out: labels.parquet and labels.csv (id, label, confidence,
    variance, status, reasons), report.html with the precision to expect, and
    label_studio.json to import. The status says what a label is worth:
    labelled (given by you), pseudo, abstained (a guess below the
    threshold) or outlier (unlike all that is labelled).

    Rows are streamed: DATA may be larger than memory, except .npz. Stopped,
    the same command goes on. Images are embedded first, as by semigpc embed.

    With --engine ray every partition of DATA becomes one of --out/labels with
    the same numbers; _complete.json is there when all are. No CSV, no Label
    Studio.

    For example:

      semigpc label photos --labels labels.csv --out labelled
      semigpc label photos --labels labels.csv --labels more.csv --out better
      semigpc label x.parquet --labels labels.csv --out labelled --abstain 0.8
      semigpc label x.csv --features 'f_*' --label-column kind --out labelled
      semigpc label parts --labels labels.csv --out labelled --engine ray
    """
    if answer_all and abstain is not None:
        raise typer.BadParameter("--answer-all and --abstain exclude each other.", param_hint="--abstain")
    if engine is EngineChoice.ray and (images is not None or image_url is not None):
        raise typer.BadParameter("images and Label Studio are for --engine local.", param_hint="--images, --image-url")
    from semigpc.data.dataset import DataError
    from semigpc.labeling.bulk import Address, place_of
    from semigpc.labeling.columns import ColumnOptions
    from semigpc.labeling.embed import EmbedConfig
    from semigpc.labeling.inputs import LabelSettings
    from semigpc.labeling.label import label_data

    place, folder = place_of(data), place_of(out)
    if engine is EngineChoice.local and any(isinstance(path, Address) for path in (place, folder)):
        raise DataError("Addresses are for --engine ray; without it DATA and --out are files and folders of this machine.")
    settings = LabelSettings(
        data=place,
        labels=labels[0].expanduser() if labels else None,
        more_labels=tuple(path.expanduser() for path in (labels or [])[1:]),
        out=folder,
        columns=ColumnOptions(id=id_column, features=features, label=label_column),
        images=images.expanduser() if images else None,
        image_url=image_url,
        target_precision=None if answer_all or abstain is not None else target_precision,
        abstain=abstain,
        class_prior="balanced" if prior is Prior.balanced else "estimated",
        self_training=self_training,
        seed=seed,
        skip_bad=skip_bad,
        report=report,
        embed=EmbedConfig(model=model, pretrained=pretrained),
        follow_links=follow_links,
    )
    try:
        with StageBar() as bar:
            if engine is EngineChoice.ray:
                from semigpc.labeling.ray_engine import label_on_ray

                summary = label_on_ray(settings, overwrite=overwrite, progress=bar.show)
            else:
                summary = label_data(settings, overwrite=overwrite, progress=bar.show)
    except KeyboardInterrupt:
        say("finished parts are kept; the same command goes on with them", err=True)
        raise
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        written = ["labels.parquet", "labels.csv", "label_studio.json"]
        if engine is EngineChoice.ray:
            written = [f"labels/ ({summary['partitions']} partitions)", "summary.json"]
        console = Console()
        for note in summary["notes"]:
            console.print(verbatim(f"note: {note}"))
        console.print(_classes_table(summary))
        say(f"wrote {', '.join([*written, *(['report.html'] if report else [])])} to {folder}")


def _classes_table(summary: dict[str, Any]) -> Table:
    """Labels given and made of each class, and how many rows got none."""
    from semigpc.data.folder import ordered

    counts = summary["statuses"]
    words = (("labelled", "given"), ("pseudo", "pseudo-labelled"), ("abstained", "abstained"), ("outlier", "outliers"))
    caption = ", ".join(f"{counts[key]} {word}" for key, word in words)
    headings = ("class", ">given", ">pseudo-labelled", ">believed share")
    made = table(verbatim(summary["title"]), *headings, caption=caption)
    order = ordered(summary["classes"])
    rows = list(zip(*(summary[key] for key in ("classes", "given", "pseudo", "believed")), strict=True))
    rows.sort(key=lambda row: order.index(row[0]))
    for name, given, pseudo, believed in rows[:CLASSES_LISTED]:
        made.add_row(verbatim(name), str(given), str(pseudo), percent(believed))
    if len(rows) > CLASSES_LISTED:
        made.add_row(f"and {len(rows) - CLASSES_LISTED} more", "", "", "")
    return made
