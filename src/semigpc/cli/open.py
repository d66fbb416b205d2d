"""``semigpc open``: from a folder of images, or a table, to labels and a model, on one page."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from semigpc.cli.failures import as_options, reported
from semigpc.cli.live_page import naming_the_page, serve_session
from semigpc.cli.options import FollowLinks, NetworkName, announced
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import say

SERVER = ("starlette", "uvicorn")


@reported("open")
def open_command(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="Folder of images, table of embeddings, or folder of labels."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Folder of the labels; DATA-labelled by default."
        ),
    ] = None,
    labels: Annotated[
        list[Path] | None,
        typer.Option("--labels", metavar="FILE", help="Table of ids and labels (repeatable)."),
    ] = None,
    class_folders: Annotated[
        bool,
        typer.Option(
            "--class-folders/--no-class-folders", help="Take names of folders for classes."
        ),
    ] = True,
    model: NetworkName = "auto",
    pretrained: Annotated[
        str,
        typer.Option("--pretrained", metavar="SOURCE", help="Its weights; see semigpc embed."),
    ] = "auto",
    images: Annotated[
        Path | None,
        typer.Option("--images", metavar="FOLDER", help="Folder of the images that a table lists."),
    ] = None,
    follow_links: FollowLinks = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of 127.0.0.1; 0 for a free one.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Label images from nothing, on a page that learns from every answer.

    For few labels, or none, and no GPU: the page asks about the images that
    teach most, labels all others, and says how many of these labels are
    guaranteed to be right. Labels that are there are used: --labels, a column
    label, labels.csv or metadata.csv in the folder, folders named by class.
    Every answer is saved; the same command goes on where you left. With a GPU
    and thousands of unlabelled images, see semigpc train.

      semigpc open photos
      semigpc predict photos-labelled new_photos --out new.csv
    """
    if not all(importlib.util.find_spec(name) for name in SERVER):
        raise ImportError("The page needs an extra: pip install 'semigpc[review]'.")
    with StageBar() as bar:
        bar.show("starting", 0, None)  # the imports take seconds
        from semigpc.labeling.label import EMBEDDINGS, LabelSettings, is_image_folder
        from semigpc.labeling.start import folder_for, start
        from semigpc.models.encoder import EmbedConfig

    data = data.expanduser()
    folder = out.expanduser() if out else folder_for(data)
    network = EmbedConfig()
    if is_image_folder(data, follow_links=follow_links):
        network = announced(EmbedConfig(model=model, pretrained=pretrained), folder / EMBEDDINGS)
    tables = [path.expanduser() for path in labels or []]
    settings = LabelSettings(
        data=data,
        labels=tables[0] if tables else None,
        more_labels=tuple(tables[1:]),
        out=folder,
        images=images.expanduser() if images else None,
        embed=network,
        follow_links=follow_links,
        skip_bad=True,
    )
    with naming_the_page(folder), StageBar() as bar:
        started = start(settings, class_folders=class_folders, progress=bar.show)
    for note in started.notes:
        say(f"note: {as_options(note)}", err=True)
    serve_session(started.folder, images=settings.images, port=port, browser=browser)
