"""A labelled folder to review: images of coloured shapes, embedded by their own pixels."""

import csv
from pathlib import Path

import numpy as np
import pyarrow
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from pyarrow import parquet

from semigpc.labeling.label import LabelSettings, label_data

COLOURS = {"circle": (200, 60, 40), "square": (40, 150, 70), "triangle": (50, 80, 200)}
CLASSES = tuple(COLOURS)
HTML_NAME = "<img src=x onerror=alert(1)> & <b>co</b>.png"
TEXT_NAME = "text.jpg"
LINK_NAME = "link.png"
OUTSIDE = ("../secret.png", "/etc/hostname")
SIDE = 32


def draw(shape: str, rng: np.random.Generator) -> Image.Image:
    """A shape in nearly the colour of its class, on any light background."""
    image = Image.new("RGB", (SIDE, SIDE), tuple(rng.integers(190, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    r = rng.integers(7, 13)
    x, y = rng.integers(13, 20, 2)
    fill = tuple(np.clip(np.array(COLOURS[shape]) + rng.integers(-60, 61, 3), 0, 255).tolist())
    box = [x - r, y - r, x + r, y + r]
    if shape == "circle":
        pen.ellipse(box, fill=fill)
    elif shape == "square":
        pen.rectangle(box, fill=fill)
    else:
        pen.polygon([(x, y - r), (x + r, y + r), (x - r, y + r)], fill=fill)
    return image


def features(image: Image.Image) -> NDArray[np.float32]:
    """Mean colours on a grid of 4 x 4, (48,)."""
    small = image.resize((4, 4), Image.Resampling.BOX)
    return np.asarray(small, np.float32).ravel() / np.float32(255)


def make_labelled(
    root: Path,
    *,
    count: int = 90,
    each: int = 6,
    images: bool = True,
    bad: int | None = None,
    wrong: int = 0,
    names: tuple[str, ...] = CLASSES,
    target: float | None = None,
) -> Path:
    """Return ``root/out`` with labels, beside ``root/photos`` and ``root/data.parquet``.

    Among the ids are HTML, a text file with the name of an image, a link that leaves the folder,
    and paths outside of it.

    Args:
        root: folder to fill.
        count: of rows.
        each: labels per class.
        images: whether the page is to show them.
        bad: a row whose embedding is NaN.
        wrong: so many labelled circles are labelled as squares.
        names: of the classes.
        target: the precision to guarantee; labels of confidence 0.85 are given out without it.
    """
    rng = np.random.default_rng(0)
    photos = root / "photos"
    photos.mkdir(parents=True)
    ids, rows, shapes = [], [], []
    odd = (HTML_NAME, TEXT_NAME, LINK_NAME, *OUTSIDE)
    for i in range(count):
        shape = CLASSES[rng.choice(3, p=(0.5, 0.35, 0.15))]
        image = draw(shape, rng)
        name = odd[i - count] if i >= count - len(odd) else f"{'abc'[i % 3]}/{i:03d}.png"
        rows.append(features(image))
        ids.append(name)
        shapes.append(shape)
        if name not in odd or name == HTML_NAME:
            (photos / name).parent.mkdir(exist_ok=True)
            image.save(photos / name)
    draw("circle", rng).save(root / "secret.png")
    (photos / TEXT_NAME).write_text("I am no image.")
    (photos / LINK_NAME).symlink_to(root / "secret.png")
    x = np.stack(rows)
    if bad is not None:
        x[bad] = np.nan
    column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), x.shape[1])
    parquet.write_table(
        pyarrow.table({"file_name": ids, "embedding": column}), root / "data.parquet"
    )
    known = []
    for shape in CLASSES:
        of_class = [name for name, other in zip(ids, shapes, strict=True) if other == shape]
        known += of_class[:each]
    truth = dict(zip(ids, shapes, strict=True)) | dict.fromkeys(known[:wrong], "square")
    class_name = dict(zip(CLASSES, names, strict=True))
    with (root / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("file_name", "label"))
        writer.writerows((name, class_name[truth[name]]) for name in known)
    label_data(
        LabelSettings(
            data=root / "data.parquet",
            labels=root / "labels.csv",
            out=root / "out",
            images=photos if images else None,
            abstain=0.85 if target is None else None,
            target_precision=target,
            skip_bad=bad is not None,
            report=False,
        )
    )
    return root / "out"
