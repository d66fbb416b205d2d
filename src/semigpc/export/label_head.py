"""Export the label head of a run: the frozen network with the classifier on its rows."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from semigpc.estimator.head import PROBABILITIES
from semigpc.export.embedded import (
    SAME_IMAGE,
    LabelingNetwork,
    as_input,
    largest_difference,
    network_facts,
)
from semigpc.export.files import TOLERANCE, CheckFacts, ExportFacts, Kind, Progress
from semigpc.export.network import FORMATS, Predictor
from semigpc.io.errors import DataError, RunError
from semigpc.io.graphs import ONNX_PACKAGES
from semigpc.io.images import DRAFT_FACTOR, Pixels, square_of
from semigpc.io.versions import versions
from semigpc.models.encoder import Encoder
from semigpc.training.inference import LoadedRun
from semigpc.training.label_head import LabelHead
from semigpc.training.metrics import Head

Doubles = NDArray[np.float64]
CHECKED_IMAGES = 128  # with which a file is compared; a network on a CPU takes 10 to 30 ms for each


def write_label_head(
    run: LoadedRun, heads: Sequence[Head], kind: Kind, draft: Path, report: Progress
) -> ExportFacts:
    """Write the label head as one file, compare it with the run, and return the facts about it.

    Args:
        heads: of which the first is the label head; the others are not written.
        kind: of file. draft: where to. report: called with stage, what is done, and its size.
    """
    form = FORMATS[kind]
    label_head = run.label_head
    assert label_head is not None
    encoder = label_head.config.encoder()
    if encoder.weights != label_head.key.weights:
        raise RunError(
            f"the weights of {encoder.name} are not those that {run.folder.path} was trained with. "
            f"Put these back ({label_head.config.source})."
        )
    classifier = label_head.classifier
    classifier.tolerance = SAME_IMAGE
    facts = network_facts(classifier, encoder, list(run.class_names))
    outputs = {
        name: {"head": heads[0], "temperature": 1.0, **about}
        for name, about in facts["outputs"].items()
    }
    facts |= {"checkpoint": run.checkpoint, "step": run.step, "outputs": outputs}
    rounded = label_head.key.precision == "float16"
    network = LabelingNetwork(encoder.of_unit_range(), classifier, rounded=rounded).eval()
    report(f"Writing {draft.name}", 0, None)
    form.write(network, encoder.image_size, draft, json.dumps(facts))
    check, note = _check(run, label_head, encoder, form.open(draft), report)
    whole = {
        **facts,
        "file": draft.name,
        "format": kind,
        "run": str(run.folder.path),
        "check": check,
        "notes": [note] if note else [],
        "versions": versions(*ONNX_PACKAGES),
    }
    return cast("ExportFacts", whole)


def _check(
    run: LoadedRun,
    label_head: LabelHead,
    encoder: Encoder,
    predictor: Predictor,
    report: Progress,
) -> tuple[CheckFacts, str]:
    """Compare the file with the run on test images, or on random ones; return what it showed.

    The note says why there are no test images, where there are none.
    """
    note = ""
    try:
        pixels, expected = _of_test(run, label_head, encoder.image_size)
        own = len(pixels)
    except (RunError, DataError, OSError) as error:
        note = f"Checked on random images alone: {' '.join(str(error).split())}."
        pixels, expected = _of_noise(label_head, encoder)
        own = 0
    largest = largest_difference(predictor, as_input(pixels), expected, report)
    check: CheckFacts = {
        "rows": len(pixels),
        "test_images": own,
        "random_images": len(pixels) - own,
        "largest_difference": largest,
        "of_each_output": {PROBABILITIES: largest},
        "tolerance": TOLERANCE,
    }
    return check, note


def _of_test(run: LoadedRun, label_head: LabelHead, size: int) -> tuple[Pixels, Doubles]:
    """Return test images at even distances, and the probabilities that predict returns."""
    if not run.has("test"):
        raise RunError("the run had no test images")
    _, images = replace(run, gp=None).part("test")  # a GP would be filled again
    own = min(CHECKED_IMAGES, len(images))
    chosen = images.subset(np.arange(own) * len(images) // own)
    squares = [
        square_of(chosen.read(i, at_least=DRAFT_FACTOR * size), size) for i in range(len(chosen))
    ]
    return np.array(squares), label_head.probs(chosen)


def _of_noise(label_head: LabelHead, encoder: Encoder) -> tuple[Pixels, Doubles]:
    """Return random images and their probabilities."""
    shape = (CHECKED_IMAGES, encoder.image_size, encoder.image_size, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    parts = [encoder(torch.from_numpy(part)).half().float() for part in np.array_split(pixels, 8)]
    return pixels, label_head.of_rows(torch.cat(parts))
