"""``semigpc predict``: labels for images that have none."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.evaluate import Run, Which, WhichHead
from semigpc.cli.failures import reported
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import AsJson, FollowLinks, say, table, verbatim
from semigpc.io.text import as_utf8, percent, spreadsheet_cell

if TYPE_CHECKING:
    from semigpc.data import ImageSet
    from semigpc.training.inference import LoadedRun
    from semigpc.training.metrics import Head

COLUMNS = ("file", "label", "confidence", "second", "second_confidence")
SHOWN = 40  # rows on the screen
SUFFIXES = (".csv", ".parquet", ".json")

Row = dict[str, Any]


@reported("predict")
def predict(
    run: Run,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATHS...", help="Images and folders of them, or one .npz file."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a .csv, .parquet or .json file."),
    ] = None,
    head: WhichHead = "auto",
    checkpoint: Which = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Name images that cannot be read, and go on.")
    ] = False,
    follow_links: FollowLinks = False,
    as_json: AsJson = False,
) -> None:
    """Label images with a trained run.

    For each image: the class with its calibrated confidence, and the second
    best class. Of an .npz file, as semigpc train takes it, the unlabelled
    images are labelled. Without --out the table is printed.

    For example:

      semigpc predict runs/photos-simmatch-gp-seed0 new/ --out labels.csv
    """
    if out is not None and out.suffix not in SUFFIXES:
        raise typer.BadParameter(
            f"the name must end in {', '.join(SUFFIXES)}; got {out.name!r}.", param_hint="--out"
        )
    if out is not None and not out.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {out.parent}.", param_hint="--out")
    from semigpc.training.calibration import UNCALIBRATED
    from semigpc.training.inference import images_at, load_run

    skipped: list[tuple[str, str]] | None = [] if skip_bad else None
    images = images_at(paths, follow_links=follow_links, skipped=skipped)
    for name, reason in skipped or ():
        typer.echo(f"skipped: {name}: {reason}", err=True)
    if skip_bad:
        images = _readable(images)
    loaded = load_run(run, checkpoint)
    if not loaded.temperatures:
        say(
            f"Note: {UNCALIBRATED} It would take a run that ended, with validation images or two labels of a class.",
            err=True,
        )
    rows = _label(loaded, images, loaded.heads(head)[0])
    if out is not None:
        _write(rows, out)
        say(f"wrote {out}: {len(rows)} images", err=as_json)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif out is None or len(rows) <= SHOWN:
        Console().print(_table(rows))


def _readable(images: "ImageSet") -> "ImageSet":
    """Return the images that can be decoded; print the others."""
    import numpy as np

    from semigpc.io.errors import DataError

    good = []
    for i in range(len(images)):
        try:
            images[i]
            good.append(i)
        except DataError as error:
            say(f"skipped: {error}", err=True)
    if not good:
        raise DataError(f"none of the {len(images)} images can be read.")
    return images.subset(np.array(good))


def _label(run: "LoadedRun", images: "ImageSet", head: "Head") -> list[Row]:
    with StageBar() as bar:
        chosen = run.predict(images, on_batch=bar.counter("Images", len(images))).probs[head]
    rows = []
    for name, row in zip(images.names, chosen, strict=True):
        first, second = (int(c) for c in (-row).argsort(kind="stable")[:2])
        named = (
            run.class_names[first],
            float(row[first]),
            run.class_names[second],
            float(row[second]),
        )
        rows.append(dict(zip(COLUMNS, (name, *named), strict=True)))
    return rows


def _write(rows: list[Row], path: Path) -> None:
    from semigpc.io.atomic import replacing, write_json

    if path.suffix == ".json":
        write_json(path, rows)
    elif path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        with replacing(path) as draft:
            parquet.write_table(
                pyarrow.Table.from_pylist([_mapped(row, as_utf8) for row in rows]), draft
            )
    else:
        with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for row in rows:
                rounded = {key: f"{row[key]:.6f}" for key in row if key.endswith("confidence")}
                writer.writerow(_mapped(row, spreadsheet_cell) | rounded)


def _mapped(row: Row, change: Callable[[str], str]) -> Row:
    return {key: change(value) if isinstance(value, str) else value for key, value in row.items()}


def _table(rows: list[Row]) -> Table:
    made = table("", "file", "label", ">confidence", "second", ">confidence")
    for row in rows[:SHOWN]:
        words = verbatim(row["file"]), verbatim(row["label"]), verbatim(row["second"])
        made.add_row(
            words[0],
            words[1],
            percent(row["confidence"]),
            words[2],
            percent(row["second_confidence"]),
        )
    if len(rows) > SHOWN:
        made.caption = f"and {len(rows) - SHOWN} more; --out FILE.csv writes all of them"
    return made
