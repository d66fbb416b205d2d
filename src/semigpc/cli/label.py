"""``semigpc label``: labels for a table of embeddings or a folder of images, from a few labels."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.options import NETWORK_HELP, AsJson, TrustPseudo, announced, option
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import say, say_use, table, use_commands, verbatim
from semigpc.io.errors import DataError
from semigpc.report.wording import counted, no_new_labels, percent

if TYPE_CHECKING:
    from semigpc.report.labeling_summary import LabelingSummary

CLASSES_LISTED = 30  # on the screen
STATUSES = {  # as the caption of the table calls them
    "labelled": "given",
    "pseudo": "pseudo-labelled",
    "abstained": "abstained",
    "outlier": "outliers",
}
# Panels of the help.
DECISIONS = "Which labels to give out"
COLUMNS = "Columns of a table"
IMAGES = "Images"
WORK = "How to run"


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise typer.BadParameter(f"must be between 0 and 1; got {text}.")
    return value


@reported("label")
def label(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Table of embeddings, or folder of images.")
    ],
    out: Annotated[str, typer.Option("--out", metavar="FOLDER", help="Folder to write.")],
    labels: Annotated[
        list[Path] | None,
        typer.Option("--labels", metavar="FILE", help="Table of ids and labels (repeatable)."),
    ] = None,
    trust_pseudo: TrustPseudo = False,
    target_precision: Annotated[
        float,
        option(
            "--target-precision",
            DECISIONS,
            "SHARE",
            "Precision of the new labels; 0.95.",
            parser=_fraction,
        ),
    ] = 0.95,
    per_class: Annotated[
        bool, option("--per-class", DECISIONS, None, "Guarantee it for each class separately.")
    ] = False,
    abstain: Annotated[
        float | None,
        option(
            "--abstain",
            DECISIONS,
            "SHARE",
            "Leave rows below this confidence unlabelled.",
            parser=_fraction,
        ),
    ] = None,
    answer_all: Annotated[
        bool, option("--answer-all", DECISIONS, None, "Label every row except outliers.")
    ] = False,
    prior: Annotated[
        Literal["balanced", "estimated"],
        option("--prior", DECISIONS, "PRIOR", "estimated, or balanced: for rare classes."),
    ] = "estimated",
    id_column: Annotated[
        str | None, option("--id", COLUMNS, "NAME", "Ids; file_name or id by default.")
    ] = None,
    features: Annotated[
        str | None,
        option("--features", COLUMNS, "NAMES", "Features, comma-separated or as in 'f_*'."),
    ] = None,
    label_column: Annotated[
        str | None, option("--label-column", COLUMNS, "NAME", "Labels; label by default.")
    ] = None,
    model: Annotated[str, option("--model", IMAGES, "NAME", f"{NETWORK_HELP} auto.")] = "auto",
    pretrained: Annotated[
        str, option("--pretrained", IMAGES, "SOURCE", "Its weights; see semigpc embed --help.")
    ] = "auto",
    images: Annotated[
        Path | None,
        option("--images", IMAGES, "FOLDER", "Folder of the images that a table lists."),
    ] = None,
    image_url: Annotated[
        str | None,
        option("--image-url", IMAGES, "PREFIX", "Put before image names in Label Studio."),
    ] = None,
    follow_links: Annotated[
        bool, option("--follow-links", IMAGES, None, "Follow links that lead out of a folder.")
    ] = False,
    engine: Annotated[
        Literal["local", "ray"],
        option("--engine", WORK, "ENGINE", "local, or ray for folders of .parquet files."),
    ] = "local",
    no_report: Annotated[
        bool, option("--no-report", WORK, None, "Skip cross-validation and the page.")
    ] = False,
    seed: Annotated[
        int, option("--seed", WORK, "N", "Seed of sampling and cross-validation; 0.", min=0)
    ] = 0,
    skip_bad: Annotated[
        bool, option("--skip-bad", WORK, None, "Skip unreadable images and rows with NaN.")
    ] = False,
    overwrite: Annotated[
        bool, option("--overwrite", WORK, None, "Begin from the start; replace what is there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Label every row from the few that have a label, with reasons.

    For few labels and no GPU; without any, see semigpc open. Writes labels.csv,
    labels.parquet, label_studio.json and report.html. A row is labelled (by
    you), pseudo (a new label), abstained or outlier (a guess). If it is
    stopped, run the same command to continue. More: docs/label.md.

      semigpc label photos --labels labels.csv --out labelled
      semigpc label x.parquet --labels labels.csv --out labelled --abstain 0.8
    """
    if answer_all and abstain is not None:
        raise typer.BadParameter("it cannot be combined with --answer-all.", param_hint="--abstain")
    if engine == "ray" and (images is not None or image_url is not None):
        raise typer.BadParameter("they need --engine local.", param_hint="--images, --image-url")
    from semigpc.io.parts import Address, place_of
    from semigpc.labeling.columns import ColumnOptions
    from semigpc.labeling.label import EMBEDDINGS, LabelSettings, is_image_folder, label_data
    from semigpc.models.encoder import EmbedConfig

    place = place_of(data)
    folder = place_of(out)
    if engine == "local" and any(isinstance(path, Address) for path in (place, folder)):
        raise DataError(
            "Addresses need --engine ray; DATA and --out must be local paths without it."
        )
    network = EmbedConfig()
    if engine == "local" and is_image_folder(place, follow_links=follow_links):
        wanted = EmbedConfig(model=model, pretrained=pretrained)
        network = announced(wanted, folder / EMBEDDINGS, quiet=as_json)
    settings = LabelSettings(
        data=place,
        labels=labels[0].expanduser() if labels else None,
        more_labels=tuple(path.expanduser() for path in (labels or [])[1:]),
        trust_pseudo=trust_pseudo,
        out=folder,
        columns=ColumnOptions(id=id_column, features=features, label=label_column),
        images=images.expanduser() if images else None,
        image_url=image_url,
        target_precision=None if answer_all or abstain is not None else target_precision,
        abstain=abstain,
        per_class=per_class,
        class_prior=prior,
        seed=seed,
        skip_bad=skip_bad,
        report=not no_report,
        embed=network,
        follow_links=follow_links,
    )
    try:
        with StageBar() as bar:
            if engine == "ray":
                from semigpc.labeling.ray import label_on_ray

                summary = label_on_ray(settings, overwrite=overwrite, progress=bar.show)
            else:
                summary = label_data(settings, overwrite=overwrite, progress=bar.show)
    except KeyboardInterrupt:
        if not overwrite:
            say("finished parts are kept; run the same command to continue", err=True)
        raise
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    written = ["labels.parquet", "labels.csv", "label_studio.json"]
    if engine == "ray":
        written = [f"labels/ ({summary['partitions']} partitions)", "summary.json"]
    written += [] if no_report else ["report.html"]
    console = Console()
    for note in summary["notes"]:
        console.print(verbatim(f"note: {note}"))
    if summary["promise"]:
        console.print(_grades_table(summary))
    console.print(_classes_table(summary))
    for sentence in _sentences(summary):
        say(sentence)
    say(f"wrote {', '.join(written)} to {folder}")
    if engine != "ray":
        say_use(use_commands(folder, of_images=summary["rows_noun"] != "rows"))


def _sentences(summary: "LabelingSummary") -> list[str]:
    """Which classes got nothing, what is promised of the others, and what would give out more."""
    from semigpc.report.labeling_page import (
        grade_that_gives_more,
        promise_sentence,
        reach_sentence,
    )

    needed = summary["promise"]["needed"] if summary["promise"] else {}
    more = grade_that_gives_more(summary)
    option = ""
    if more is not None:
        option = f"To give these out, add --target-precision {more['precision']:g} --overwrite."
    sentences = (no_new_labels(needed), promise_sentence(summary), option, reach_sentence(summary))
    return [sentence for sentence in sentences if sentence]


def _grades_table(summary: "LabelingSummary") -> Table:
    """How many labels are guaranteed at each precision, and what to expect of them."""
    from semigpc.report.labeling_page import grade_rows

    made = table("", "guaranteed right", f">{summary['rows_noun']}", ">expected right")
    for row in grade_rows(summary):
        expected = "" if row.expected is None else percent(row.expected)
        made.add_row(row.name, str(row.labels), expected)
    return made


def _classes_table(summary: "LabelingSummary") -> Table:
    """Labels given and made of each class, and how many are guaranteed at each precision."""
    from semigpc.io.text import ordered

    caption = ", ".join(counted(summary["statuses"][key], word) for key, word in STATUSES.items())
    grades = summary["promise"]["grades"] if summary["promise"] else []
    grades = [grade for grade in grades if grade["labels"]]
    names = [f">at {100 * grade['precision']:g}%" for grade in grades]
    headings = ("class", ">given", ">new", *names, ">believed share")
    made = table(verbatim(summary["title"]), *headings, caption=caption)
    place = {name: c for c, name in enumerate(summary["classes"])}
    classes = ordered(summary["classes"])
    for name in classes[:CLASSES_LISTED]:
        c = place[name]
        counts = (summary["given"][c], summary["pseudo"][c], *(g["classes"][c] for g in grades))
        made.add_row(verbatim(name), *map(str, counts), percent(summary["believed"][c]))
    if len(classes) > CLASSES_LISTED:
        made.add_row(f"and {len(classes) - CLASSES_LISTED} more")
    return made
