"""Export a labelled folder to one file, check it against what it predicts, and describe it.

A folder of images becomes the frozen network with the GP behind it; a folder that was made from a
table becomes the GP alone.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semigpc.estimator.head import (
    ClassifierHead,
    example_rows,
    head_facts,
    rows_input,
)
from semigpc.export.network import (
    FORMATS,
    ROUNDED_TOLERANCE,
    SAME_IMAGE,
    TOLERANCE,
    ExportedFile,
    Floats,
    Kind,
    LabelingNetwork,
    Progress,
    as_input,
    check_free,
    largest_difference,
    network_facts,
    publish,
)
from semigpc.io.atomic import JsonObject
from semigpc.io.errors import DataError
from semigpc.io.graphs import ONNX_PACKAGES
from semigpc.io.images import read_squares
from semigpc.io.versions import versions
from semigpc.labeling.inference import LoadedLabeling, load_labeling
from semigpc.models.encoder import Encoder

CHECKED_IMAGES = 128  # with which a file is compared; a network on a CPU takes 10 to 30 ms for each
CHECKED_ROWS = 1024  # the same, of a table


def export_labeling(
    folder: Path,
    *,
    kind: Kind = "onnx",
    out: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportedFile:
    """Write a labelled folder as one file that needs no semigpc, and describe it in FILE.json.

    The file appears under its name once its probabilities agree with those that
    ``semigpc predict`` returns, on up to CHECKED_IMAGES images of the folder, or random ones where
    these are gone, or on CHECKED_ROWS rows of its table.

    Args:
        folder: that ``label``, ``open`` or ``review`` wrote. kind: of file.
        out: ``export/model.onnx`` or ``export/model.pt2`` in the folder if left out.
        overwrite: replace an existing file.
        progress: called with the stage, what is done of it, and its size.
    """
    form = FORMATS[kind]
    report = progress or (lambda *_: None)
    form.require()
    path = out or folder / "export" / f"model{form.suffix}"
    check_free(path, kind, overwrite=overwrite)
    report("Loading the model", 0, None)
    labelling = load_labeling(folder)

    def write(draft: Path) -> Mapping[str, Any]:
        return _write_draft(labelling, kind, draft, report)

    return publish(path, write)


def _write_draft(
    labelling: LoadedLabeling, kind: Kind, draft: Path, report: Progress
) -> JsonObject:
    """Write a labelling as one file, compare it with what it predicts, and return the facts."""
    form = FORMATS[kind]
    network: ClassifierHead | LabelingNetwork
    size: int | Tensor
    tolerance = TOLERANCE
    if labelling.network is None:
        network, size, facts = _of_rows(labelling)
        inputs, expected, check = _rows_to_check(labelling)
    else:
        encoder = labelling.embedding.encoder()
        if encoder.weights != labelling.network.key.weights:
            raise DataError(
                f"The weights of {encoder.name} are not those that {labelling.project.folder} was "
                f"labelled with. Put these back ({labelling.embedding.source})."
            )
        network, size, facts = _of_images(labelling, encoder)
        tolerance = ROUNDED_TOLERANCE if network.rounded else TOLERANCE
        inputs, expected, check = _images_to_check(labelling, encoder, report)
    report(f"Writing {draft.name}", 0, None)
    form.write(network.eval(), size, draft, json.dumps(facts))
    predictor = form.open(draft)
    largest = largest_difference(predictor, inputs, expected, report, tolerance=tolerance)
    return {
        **facts,
        "file": draft.name,
        "format": kind,
        "labelling": str(labelling.project.folder),
        "check": {**check, "largest_difference": largest, "tolerance": tolerance},
        "versions": versions(*ONNX_PACKAGES),
    }


def _of_rows(labelling: LoadedLabeling) -> tuple[ClassifierHead, Tensor, JsonObject]:
    """Return the classifier alone, example rows, and its facts."""
    source = labelling.project.source
    head = labelling.model.head(centre=source.centre)
    facts = head_facts(head, labelling.class_names)
    features = list(source.columns.features)
    about = rows_input(head, source.width)
    return head, example_rows(head, source.width), facts | {"input": about, "features": features}


def _of_images(
    labelling: LoadedLabeling, encoder: Encoder
) -> tuple[LabelingNetwork, int, JsonObject]:
    """Return the network with the classifier behind it, the size of images, and the facts."""
    head = labelling.model.head(tolerance=SAME_IMAGE)
    facts = network_facts(head, encoder, labelling.class_names)
    assert labelling.network is not None
    rounded = labelling.network.key.precision == "float16"
    network = LabelingNetwork(encoder.of_unit_range(), head, rounded=rounded)
    return network, encoder.image_size, facts


# The check ----------------------------------------------------------------------------------------


def _rows_to_check(labelling: LoadedLabeling) -> tuple[Floats, Floats, JsonObject]:
    """Return rows of the table as they are written there, and their probabilities."""
    project = labelling.project
    chosen = _spread(len(project.ids), CHECKED_ROWS)
    rows = project.embeddings(chosen)
    inputs: Any = rows
    if project.source.centre is not None:
        inputs = rows.astype(np.float64) + project.source.centre
    return inputs, labelling.model.predict_proba(rows), {"rows": len(rows)}


def _images_to_check(
    labelling: LoadedLabeling, encoder: Encoder, report: Progress
) -> tuple[Floats, Floats, JsonObject]:
    """Return images of the folder and the probabilities that predict returns for them."""
    project = labelling.project
    report("Reading images", 0, None)
    chosen = _spread(len(project.ids), CHECKED_IMAGES)
    if project.images is not None:
        names = [project.ids[row] for row in chosen]
        good, pixels, _ = read_squares(project.images, names, encoder.image_size)
        if good:
            place = dict(zip(names, chosen.tolist(), strict=True))
            rows = project.embeddings(np.array([place[name] for name in good]))
            check = {"images": len(good), "random_images": 0}
            return as_input(pixels), labelling.model.predict_proba(rows), check
    size = encoder.image_size
    shape = (CHECKED_IMAGES, size, size, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    parts = [encoder(torch.from_numpy(part)).half().float() for part in np.array_split(pixels, 8)]
    expected = labelling.model.predict_proba(torch.cat(parts).numpy())
    return as_input(pixels), expected, {"images": 0, "random_images": len(pixels)}


def _spread(count: int, most: int) -> Any:
    """Return at most so many rows at even distances, since such sets are often sorted."""
    own = min(most, count)
    return np.arange(own) * count // own
