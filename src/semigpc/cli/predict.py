"""``semigpc predict``: labels for images that have none."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.options import AsJson, Checkpoint, FollowLinks, Head, Run, register_data_sets
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import say, table, verbatim
from semigpc.io.text import as_utf8, spreadsheet_cell
from semigpc.report.wording import percent

if TYPE_CHECKING:
    from semigpc.data import ImageSet
    from semigpc.training.inference import LoadedRun
    from semigpc.training.metrics import Head as HeadName

ROWS_SHOWN = 40  # on the screen
SUFFIXES = (".csv", ".parquet", ".json")


class Prediction(TypedDict):
    """One image: its likeliest class and the second."""

    file: str
    label: str
    confidence: float
    second: str
    second_confidence: float


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
    head: Head = "auto",
    checkpoint: Checkpoint = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="List images that cannot be read, and continue.")
    ] = False,
    follow_links: FollowLinks = False,
    as_json: AsJson = False,
) -> None:
    """Predict the classes of images with a trained run.

    For each image: the class with its calibrated confidence, and the second
    best class. From an .npz file, as semigpc train takes it, the unlabelled
    images are used. Without --out the table is printed.

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
        say(f"skipped: {name}: {reason}", err=True)
    if skip_bad:
        images = _readable(images)
    register_data_sets()
    loaded = load_run(run, checkpoint)
    if not loaded.temperatures:
        needed = "Calibration needs a finished run with validation images or two labels of a class."
        say(f"Note: {UNCALIBRATED} {needed}", err=True)
    rows = _label(loaded, images, loaded.heads(head)[0])
    if out is not None:
        _write(rows, out)
        say(f"wrote {out}: {len(rows)} images", err=as_json)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif out is None or len(rows) <= ROWS_SHOWN:
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


def _label(run: "LoadedRun", images: "ImageSet", head: "HeadName") -> list[Prediction]:
    with StageBar() as bar:
        probs = run.predict(images, on_batch=bar.counter("Images", len(images))).probs[head]
    rows: list[Prediction] = []
    for name, row in zip(images.names, probs, strict=True):
        first, second = (int(c) for c in (-row).argsort(kind="stable")[:2])
        rows.append(
            {
                "file": name,
                "label": run.class_names[first],
                "confidence": float(row[first]),
                "second": run.class_names[second],
                "second_confidence": float(row[second]),
            }
        )
    return rows


def _write(rows: list[Prediction], path: Path) -> None:
    from semigpc.io.atomic import replacing, write_json

    if path.suffix == ".json":
        write_json(path, rows)
    elif path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        columns = pyarrow.Table.from_pylist([_with_names(row, as_utf8) for row in rows])
        with replacing(path) as draft:
            parquet.write_table(columns, draft)
    else:
        with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(Prediction.__annotations__)
            for row in rows:
                values = _with_names(row, spreadsheet_cell).values()
                writer.writerow(
                    [f"{value:.6f}" if isinstance(value, float) else value for value in values]
                )


def _with_names(row: Prediction, change: Callable[[str], str]) -> Prediction:
    """Return the row with its names changed to what a file format can hold."""
    return {
        "file": change(row["file"]),
        "label": change(row["label"]),
        "confidence": row["confidence"],
        "second": change(row["second"]),
        "second_confidence": row["second_confidence"],
    }


def _table(rows: list[Prediction]) -> Table:
    made = table("", "file", "label", ">confidence", "second", ">confidence")
    for row in rows[:ROWS_SHOWN]:
        made.add_row(
            verbatim(row["file"]),
            verbatim(row["label"]),
            percent(row["confidence"]),
            verbatim(row["second"]),
            percent(row["second_confidence"]),
        )
    if len(rows) > ROWS_SHOWN:
        made.caption = f"and {len(rows) - ROWS_SHOWN} more; --out FILE.csv writes all of them"
    return made
