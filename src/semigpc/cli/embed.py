"""``semigpc embed``: images to a table of embeddings."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from semigpc.cli.failures import reported
from semigpc.cli.options import AsJson, FollowLinks, NetworkName, announced
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import say

if TYPE_CHECKING:
    from semigpc.models.encoder import EmbedResult

SKIPPED_SHOWN = 10  # images left out that are named on the screen


@reported("embed")
def embed(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", exists=True, file_okay=False, help="Images, in folders of any depth."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Parquet file to write.")],
    model: NetworkName = "auto",
    pretrained: Annotated[
        str,
        typer.Option(
            "--pretrained",
            metavar="SOURCE",
            help="Weights: embedded, timm (a download), a file, none, or auto: the first found.",
        ),
    ] = "auto",
    image_size: Annotated[
        int | None,
        typer.Option(
            "--image-size",
            metavar="PIXELS",
            min=2,
            help="Side of the images; that of the network by default.",
        ),
    ] = None,
    precision: Annotated[
        Literal["float16", "float32"],
        typer.Option("--precision", help="Precision of the stored features."),
    ] = "float16",
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, help="Images per batch.")
    ] = 16,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip images that cannot be read.")
    ] = False,
    follow_links: FollowLinks = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin from the start; replace a table.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Turn a folder of images into a table of embeddings, for semigpc label.

    Writes one row for each image: file_name, relative to FOLDER, and
    embedding, the features of a frozen network for its central square.
    Hidden files are ignored. If it is stopped, run the same command to
    continue. Without a GPU the network runs in ONNX Runtime;
    OMP_NUM_THREADS sets the threads.

    All images that cannot be read are listed in FILE.bad.txt with the
    reason; the table is then written only with --skip-bad.

    For example:

      semigpc embed photos --out photos.parquet
      semigpc embed photos --out photos.parquet --model resnet50 --skip-bad
    """
    from semigpc.models.encoder import EmbedConfig, embed_folder

    wanted = EmbedConfig(
        model=model, pretrained=pretrained, image_size=image_size, precision=precision, batch=batch
    )
    config = announced(wanted, out, quiet=as_json)
    with StageBar("images", line_at_end=True) as bar:
        try:
            result = embed_folder(
                folder,
                out,
                config,
                skip_bad=skip_bad,
                overwrite=overwrite,
                follow_links=follow_links,
                progress=bar.show,
            )
        except KeyboardInterrupt:
            if not overwrite:
                say("finished parts are kept; run the same command to continue", err=True)
            raise
    _print_result(result, quiet=as_json)
    if as_json:
        facts = {
            "path": str(result.path),
            "rows": result.rows,
            "made": result.made,
            **asdict(result.key),
            "bad": result.bad,
        }
        typer.echo(json.dumps(facts, indent=2))


def _print_result(result: "EmbedResult", *, quiet: bool) -> None:
    for name, reason in result.bad[:SKIPPED_SHOWN]:
        say(f"skipped: {name}: {reason}", err=True)
    if len(result.bad) > SKIPPED_SHOWN:
        more = len(result.bad) - SKIPPED_SHOWN
        say(f"skipped: {more} more, listed in {result.path}.bad.txt", err=True)
    key = result.key
    network = f"{key.network}, {key.image_size} px, {key.precision}"
    contents = f"{result.rows} images, {key.width} numbers each ({network})"
    if result.made is None:
        say(f"{result.path} exists already: {contents}", err=quiet)
        return
    before = result.rows - result.made
    suffix = f"; {before} were embedded before" if before else ""
    say(f"wrote {result.path}: {contents}{suffix}", err=quiet)
