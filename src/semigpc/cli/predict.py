"""``semigpc predict``: labels for images, or rows, that have none."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semigpc.cli.failures import reported
from semigpc.cli.options import (
    AsJson,
    Checkpoint,
    FollowLinks,
    Head,
    ModelFolder,
    is_labelling,
    register_data_sets,
)
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import say, table, verbatim
from semigpc.io.atomic import JsonObject
from semigpc.io.text import as_utf8
from semigpc.report.wording import percent

if TYPE_CHECKING:
    import pyarrow

    from semigpc.data import ImageSet
    from semigpc.labeling.inference import LoadedLabeling
    from semigpc.training.inference import LoadedRun
    from semigpc.training.metrics import Head as HeadName

ROWS_SHOWN = 40  # on the screen
SUFFIXES = (".csv", ".parquet", ".json")
FILE_NAME = "file_name"


class Predicted(NamedTuple):
    """The name of the ids, and tables with the columns of labels.csv."""

    id_name: str
    tables: "Iterable[pyarrow.Table]"
    noun: str


@reported("predict")
def predict(
    model: ModelFolder,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATHS...", help="Images and folders of them, or one table."),
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
    """Predict the classes of images with a trained run or a labelled folder.

    The columns are those of labels.csv: label, guess, confidence, the second
    best class and, for a labelled folder, variance, status, grade and
    reasons. A labelled folder gives out only labels that meet its precision;
    guess is always there. Names are relative to PATHS if that is one folder.

    A folder that was made from a table of embeddings takes such a table. A
    run takes an .npz file, as semigpc train does, of which the unlabelled
    images are used. Without --out the result is printed.

    For example:

      semigpc predict runs/photos-simmatch-gp-seed0 new/ --out new.csv
      semigpc predict out new/ --out new.csv
    """
    if out is not None and out.suffix not in SUFFIXES:
        raise typer.BadParameter(
            f"the name must end in {', '.join(SUFFIXES)}; got {out.name!r}.", param_hint="--out"
        )
    if out is not None and not out.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {out.parent}.", param_hint="--out")
    from semigpc.labeling.outputs import write_predictions

    if is_labelling(model, head=head, checkpoint=checkpoint):
        found = _by_labelling(model, paths, skip_bad=skip_bad, follow_links=follow_links)
    else:
        images = _images(paths, skip_bad=skip_bad, follow_links=follow_links)
        found = _by_run(model, images, checkpoint, head)
    shown: list[JsonObject] = []
    statuses: Counter[str] = Counter()
    grades: Counter[float] = Counter()

    def noted() -> "Iterator[pyarrow.Table]":
        for each in found.tables:
            statuses.update(each.column("status").to_pylist())
            grades.update(grade for grade in each.column("grade").to_pylist() if grade)
            if as_json or len(shown) <= ROWS_SHOWN:
                shown.extend(each.to_pylist())
            yield each

    if out is None:
        for _ in noted():
            pass
    else:
        write_predictions(noted(), out, found.id_name)
        say(f"wrote {out}: {_counted(statuses, found.noun)}", err=as_json)
        if statuses["abstained"] and not statuses["pseudo"]:
            say(_lower_grades(grades), err=True)
    if as_json:
        typer.echo(json.dumps(shown, indent=2))
    elif out is None or statuses.total() <= ROWS_SHOWN:
        Console().print(_table(shown, found.id_name, statuses.total()))


# A run --------------------------------------------------------------------------------------------


def _images(paths: list[Path], *, skip_bad: bool, follow_links: bool) -> "ImageSet":
    from semigpc.training.inference import images_at

    skipped: list[tuple[str, str]] | None = [] if skip_bad else None
    images = images_at(paths, follow_links=follow_links, skipped=skipped)
    _say_skipped(skipped or ())
    return _readable(images) if skip_bad else images


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


def _by_run(folder: Path, images: "ImageSet", checkpoint: Checkpoint, head: Head) -> Predicted:
    from semigpc.training.calibration import UNCALIBRATED
    from semigpc.training.inference import load_run

    register_data_sets()
    run = load_run(folder, checkpoint)
    if not run.is_calibrated:
        needed = "Calibration needs a finished run with validation images or two labels of a class."
        say(f"Note: {UNCALIBRATED} {needed}", err=True)
    return Predicted(FILE_NAME, [_run_table(run, images, run.heads(head)[0])], "images")


def _run_table(run: "LoadedRun", images: "ImageSet", head: "HeadName") -> "pyarrow.Table":
    """Return predictions; a run knows neither variance nor status, grade and reasons."""
    import pyarrow

    from semigpc.labeling.outputs import schema_of

    with StageBar() as bar:
        counter = bar.counter("Images", len(images))
        probs = run.predict(images, heads=[head], on_batch=counter).probs[head]
    names = [as_utf8(name) for name in run.class_names]
    rows = []
    for name, row in zip(images.names, probs, strict=True):
        first, second = (int(c) for c in (-row).argsort(kind="stable")[:2])
        found = {
            FILE_NAME: as_utf8(name),
            "label": names[first],
            "guess": names[first],
            "confidence": float(row[first]),
            "second": names[second],
            "second_confidence": float(row[second]),
            "reasons": [],
        }
        rows.append(found)
    return pyarrow.Table.from_pylist(rows, schema=schema_of(FILE_NAME))


# A labelled folder --------------------------------------------------------------------------------


def _by_labelling(
    folder: Path, paths: list[Path], *, skip_bad: bool, follow_links: bool
) -> Predicted:
    from semigpc.labeling.inference import checked_batches, is_rows, load_labeling

    with Console(stderr=True).status(f"Fitting the model of {folder} to its labels"):
        labelling = load_labeling(folder)
    if len(paths) == 1 and is_rows(paths[0]):
        source = labelling.open_table(paths[0])
        batches = checked_batches(source, skip_bad=skip_bad)
        return Predicted(source.id_name, labelling.tables(batches, source.id_name), "rows")
    tables = _image_tables(labelling, paths, skip_bad=skip_bad, follow_links=follow_links)
    return Predicted(FILE_NAME, tables, "images")


def _image_tables(
    labelling: "LoadedLabeling", paths: list[Path], *, skip_bad: bool, follow_links: bool
) -> "Iterator[pyarrow.Table]":
    import numpy as np

    from semigpc.io.errors import ImageError
    from semigpc.io.paths import files_at
    from semigpc.labeling.inference import new_batches

    skipped: list[tuple[str, str]] | None = [] if skip_bad else None
    files = files_at(paths, follow_links=follow_links, skipped=skipped)
    _say_skipped(skipped or ())
    with StageBar("images") as bar:
        rows, bad = labelling.embed(list(files), progress=bar.show)
    errors = [f"The image {list(files)[place]} cannot be read: {bad[place]}." for place in bad]
    if errors and not skip_bad:
        raise ImageError(f"{errors[0]} Replace it, or leave out such images by skip_bad=True.")
    for error in errors:
        say(f"skipped: {error}", err=True)
    good = np.array([place for place in range(len(files)) if place not in bad], dtype=np.int64)
    if not len(good):
        raise ImageError(f"none of the {len(files)} images can be read.")
    names = [as_utf8(name) for name in files.values()]
    return labelling.tables(new_batches(rows[good], [names[i] for i in good]), FILE_NAME)


# What is printed ----------------------------------------------------------------------------------


def _say_skipped(skipped: Iterable[tuple[str, str]]) -> None:
    for name, reason in skipped:
        say(f"skipped: {name}: {reason}", err=True)


def _counted(statuses: Counter[str], noun: str) -> str:
    """Say how many rows there are, and how many have each status."""
    words = {"pseudo": "labels given out", "abstained": "left open", "outlier": "unlike everything"}
    known = [f"{statuses[name]:,} {word}" for name, word in words.items() if statuses[name]]
    return f"{statuses.total():,} {noun}" + (f" ({', '.join(known)})" if known else "")


def _lower_grades(grades: Counter[float]) -> str:
    """Say why the column label is empty, and what is guaranteed instead."""
    at_least = [
        f"{sum(n for each, n in grades.items() if each >= grade):,} at {grade:.0%}"
        for grade in sorted(grades, reverse=True)
    ]
    return (
        "No label is guaranteed at the target precision of this folder, so the column label is "
        f"empty. Guaranteed right by the column grade: {', '.join(at_least) or 'none'}. The column "
        "guess has a class for every row."
    )


def _table(rows: list[JsonObject], id_name: str, total: int) -> Table:
    has_status = any(row["status"] for row in rows)
    extra = ("status", ">guaranteed") if has_status else ()
    made = table("", id_name, "guess", ">confidence", "second", ">confidence", *extra)
    for row in rows[:ROWS_SHOWN]:
        cells: list[Text | str] = [
            verbatim(row[id_name]),
            verbatim(row["guess"] or ""),
            percent(row["confidence"]),
            verbatim(row["second"] or ""),
            percent(row["second_confidence"]),
        ]
        if has_status:
            grade = row["grade"]
            cells += [str(row["status"]), f"{100 * grade:g}%" if grade else ""]
        made.add_row(*cells)
    if total > ROWS_SHOWN:
        made.caption = f"and {total - ROWS_SHOWN} more; --out FILE.csv writes all of them"
    return made
