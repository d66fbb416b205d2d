"""Export a run folder to one file, check it against the run, and describe it."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from semigpc.data import Augment
from semigpc.export.network import (
    FORMATS,
    PROBABILITIES,
    ROUNDED_TOLERANCE,
    SAME_IMAGE,
    SMALL_BATCHES,
    TOLERANCE,
    Bare,
    CheckFacts,
    Exported,
    ExportedNetwork,
    ExportFacts,
    Kind,
    LabelingNetwork,
    ModelFacts,
    Predictor,
    Progress,
    as_input,
    bare,
    check_free,
    largest_difference,
    network_facts,
    publish,
)
from semigpc.gp import NoExpansionError
from semigpc.io.errors import DataError, DifferenceError, NotExportableError, RunError
from semigpc.io.graphs import IMAGES, ONNX_PACKAGES
from semigpc.io.images import DRAFT_FACTOR, Pixels, square_of
from semigpc.io.versions import versions
from semigpc.models.encoder import Encoder
from semigpc.refiners import GaussianProcessRefiner
from semigpc.training.evaluate import predict
from semigpc.training.inference import HeadChoice, LoadedRun, load_run
from semigpc.training.label_head import LabelHead
from semigpc.training.metrics import Head
from semigpc.training.run_folder import Choice

CHECK_IMAGES = 1024  # on which a file is compared with its run
# The same, of a label head: its network takes 10 to 30 ms for each on a CPU.
PHOTOGRAPHS_CHECKED = 128
Doubles = NDArray[np.float64]
LARGE_BATCH = 256  # images


def export_run(
    folder: Path,
    *,
    checkpoint: Choice | None = None,
    kind: Kind = "onnx",
    out: Path | None = None,
    head: HeadChoice = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write a run as one file that needs no semigpc, check it, and describe it in FILE.json.

    The file appears under its name once its probabilities for CHECK_IMAGES images agree with those
    of the run to TOLERANCE. Its input is RGB images in [0, 1] of the right size; it contains the
    network, a frozen one below it, the GP with the buffer of the checkpoint, as in ``semigpc
    predict``, and its :class:`ModelFacts`.

    Args:
        folder: of the run.
        checkpoint: the best on validation or the last; without it the best, if there is one.
        kind: of file.
        out: ``export/model.onnx`` or ``export/model.pt2`` in the run's folder if left out.
        head: to export; ``auto`` exports all heads of the run, and ``probabilities`` are those of
            the head by which it is evaluated. A label head, on images of another size, is exported
            alone, if it is that head.
        overwrite: replace an existing file.
        progress: called with the stage, what is done of it, and its size.
    """
    form = FORMATS[kind]
    report = progress or (lambda *_: None)
    form.require()
    path = out or folder / "export" / f"model{form.suffix}"
    check_free(path, kind, overwrite=overwrite)
    report("Loading the run", 0, None)
    run = load_run(folder, checkpoint)
    heads = run.heads(head)
    facts: list[ExportFacts] = []

    def write(draft: Path) -> Mapping[str, Any]:
        write_run = _write_label_head if heads[0] == "label" else _write_network
        facts.append(write_run(run, heads, kind, draft, report))
        return facts[0]

    publish(path, write)
    return Exported(path, facts[0])


def _write_network(
    run: LoadedRun, heads: Sequence[Head], kind: Kind, draft: Path, report: Progress
) -> ExportFacts:
    """Write what was trained as one file, compare it with the run, and return the facts about it.

    A label head among ``heads`` is left out: it is on images of another size.
    """
    form = FORMATS[kind]
    if run.gp is not None:
        run.gp.cpu()
    network = bare(run.network)
    exported = _exported_network(run, network, [head for head in heads if head != "label"])
    images = _check_images(run)
    facts = _model_facts(run, exported)
    report(f"Writing {draft.name}", 0, None)
    form.write(exported, run.experiment.augment.image_size, draft, json.dumps(facts))
    largest = differences(
        form.open(draft),
        network,
        run.gp,
        augment=Augment(run.experiment.augment),
        outputs=exported.outputs,
        temperatures=run.temperatures,
        pixels=images.pixels,
        largest_batch=min(LARGE_BATCH, run.experiment.train.eval_batch),
        progress=lambda done, total: report("Checking", done, total),
    )
    _check_differences(largest)
    return {
        **facts,
        "file": draft.name,
        "format": kind,
        "run": str(run.folder.path),
        "check": {
            "rows": len(images.pixels),
            "test_images": images.own,
            "random_images": len(images.pixels) - images.own,
            "largest_difference": max(largest.values()),
            "of_each_output": largest,
            "tolerance": TOLERANCE,
        },
        "notes": _notes(run, exported, images),
        "versions": versions(*ONNX_PACKAGES),
    }


def _exported_network(run: LoadedRun, network: Bare, heads: Sequence[Head]) -> ExportedNetwork:
    """Return the network with the GP of a run, as one function from images to probabilities."""
    gp = run.gp
    try:
        kernel = gp.head() if gp is not None and "gp" in heads else None
    except NoExpansionError as error:
        raise NotExportableError(
            f"the GP of {run.folder.path} cannot be exported: {error} Or use head=linear, the "
            "linear classifier alone."
        ) from error
    return ExportedNetwork(
        network,
        kernel,
        gp_feature="backbone" if gp is None else gp.config.feature,
        augment=run.experiment.augment,
        outputs_of=heads,
        temperatures=run.temperatures,
    ).eval()


# The check ----------------------------------------------------------------------------------------


class CheckImages(NamedTuple):
    """Images for the check, ``pixels`` (n, s, s, 3) bytes: ``own`` of the run, then random ones.

    ``note`` is the reason if there are none of its own.
    """

    pixels: Pixels
    own: int
    note: str = ""


def _check_images(run: LoadedRun) -> CheckImages:
    """Return test images of the run at even distances, since such sets are often sorted.

    Where they are too few or missing, random images take their place.
    """
    augment = Augment(run.experiment.augment)
    size = run.experiment.augment.image_size
    shape = (CHECK_IMAGES, size, size, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    if not run.has("test"):
        return CheckImages(pixels, 0, "the run had no test images")
    try:
        _, images = replace(run, gp=None).part("test")  # a GP would be filled again
        own = min(CHECK_IMAGES, len(images))
        for row in range(own):
            pixels[row] = augment.evaluation_pixels(images[row * len(images) // own])
    except (RunError, DataError, OSError) as error:
        reason = " ".join(str(error).split())
        return CheckImages(pixels, 0, f"the test images could not be loaded ({reason})")
    return CheckImages(pixels, own)


def differences(
    predictor: Predictor,
    network: nn.Module,
    gp: GaussianProcessRefiner | None,
    *,
    augment: Augment,
    outputs: Mapping[str, Head],
    temperatures: Mapping[Head, float],
    pixels: Pixels,
    largest_batch: int = LARGE_BATCH,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Return the largest absolute difference of a probability in each output.

    Batches have 1, 7 and ``largest_batch`` images in turn.

    Args:
        predictor: the exported file as a function of images in [0, 1].
        network, gp: from which it was made, called with normalised images as in evaluation.
        outputs: the head of each output.
        temperatures: of each head.
        pixels: (n, s, s, 3) bytes.
        progress: called with the number of images done, and of all.
    """
    largest = dict.fromkeys(outputs, 0.0)
    start = 0
    sizes = cycle((*SMALL_BATCHES, largest_batch))
    while start < len(pixels):
        batch = pixels[start : start + next(sizes)]
        rows = torch.arange(len(batch))
        expected = (
            predict(network, gp, [(augment.normalise(torch.from_numpy(batch)), rows, rows)])
            .calibrated(temperatures)
            .probs
        )
        channels_first = np.ascontiguousarray(batch.transpose(0, 3, 1, 2), dtype=np.float32)
        probs = predictor(channels_first / np.float32(255))
        for name, head in outputs.items():
            if probs[name].shape != expected[head].shape:
                raise DifferenceError(
                    f"{name} has shape {probs[name].shape}, and should have {expected[head].shape}."
                )
            difference = np.abs(probs[name] - expected[head]).max()
            largest[name] = float(np.maximum(largest[name], difference))  # keeps NaN
        start += len(batch)
        if progress is not None:
            progress(start, len(pixels))
    return largest


def _check_differences(largest: dict[str, float]) -> None:
    """Raise if the largest difference of an output is above the tolerance, or NaN."""
    worst = max(largest, key=lambda name: math.inf if math.isnan(largest[name]) else largest[name])
    if not largest[worst] <= TOLERANCE:
        raise DifferenceError(
            f"the file differs from the run by {largest[worst]:.2g} in {worst}, and {TOLERANCE:g} "
            "is allowed; it was removed. Try the other kind=..., or head=linear; if only the GP "
            "differs and its engine is matrix_free, train with refiner.engine.dtype=float64."
        )


# The label head ----------------------------------------------------------------------------------


def _write_label_head(
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
    check, note = _check_label_head(run, label_head, encoder, form.open(draft), report)
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


def _check_label_head(
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
    rounded = label_head.key.precision == "float16"
    tolerance = ROUNDED_TOLERANCE if rounded else TOLERANCE
    inputs = as_input(pixels)
    largest = largest_difference(predictor, inputs, expected, report, tolerance=tolerance)
    check: CheckFacts = {
        "rows": len(pixels),
        "test_images": own,
        "random_images": len(pixels) - own,
        "largest_difference": largest,
        "of_each_output": {PROBABILITIES: largest},
        "tolerance": tolerance,
    }
    return check, note


def _of_test(run: LoadedRun, label_head: LabelHead, size: int) -> tuple[Pixels, Doubles]:
    """Return test images at even distances, and the probabilities that predict returns."""
    if not run.has("test"):
        raise RunError("the run had no test images")
    _, images = replace(run, gp=None).part("test")  # a GP would be filled again
    own = min(PHOTOGRAPHS_CHECKED, len(images))
    chosen = images.subset(np.arange(own) * len(images) // own)
    squares = [
        square_of(chosen.read(i, at_least=DRAFT_FACTOR * size), size) for i in range(len(chosen))
    ]
    return np.array(squares), label_head.probs(chosen)


def _of_noise(label_head: LabelHead, encoder: Encoder) -> tuple[Pixels, Doubles]:
    """Return random images and their probabilities."""
    shape = (PHOTOGRAPHS_CHECKED, encoder.image_size, encoder.image_size, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    parts = [encoder(torch.from_numpy(part)).half().float() for part in np.array_split(pixels, 8)]
    return pixels, label_head.of_rows(torch.cat(parts))


# The description ----------------------------------------------------------------------------------


def _model_facts(run: LoadedRun, exported: ExportedNetwork) -> ModelFacts:
    augment = run.experiment.augment
    size = augment.image_size
    return {
        "checkpoint": run.checkpoint,
        "step": run.step,
        "class_names": list(run.class_names),
        "preparation": Augment(augment).preparation._asdict(),
        "input": {
            "name": IMAGES,
            "shape": ["M", 3, size, size],
            "dtype": "float32",
            "values": "RGB, a byte / 255, in [0, 1]; not normalised: that is done inside",
        },
        "normalised_inside_by": {"mean": list(augment.mean), "std": list(augment.std)},
        "outputs": {
            name: {
                "head": head,
                "temperature": exported.temperatures.get(head, 1.0),
                "shape": ["M", len(run.class_names)],
                "dtype": "float32",
            }
            for name, head in exported.outputs.items()
        },
        "gp": _kernel_facts(exported),
    }


def _kernel_facts(exported: ExportedNetwork) -> dict[str, str | int] | None:
    """Return kernel and size of the GP inside; None without one."""
    gp = exported.gp
    if gp is None:
        return None
    return {"kernel": repr(gp.kernel), "points": len(gp.points), "dtype": "float64"}


def _notes(run: LoadedRun, exported: ExportedNetwork, images: CheckImages) -> list[str]:
    notes = []
    if run.gp is not None and not len(run.gp.engine) and exported.gp is None:
        notes.append(
            f"The GP had no labels at step {run.step}, so the file has the linear classifier only."
        )
    if images.note:
        notes.append(f"Checked on random images alone: {images.note}.")
    precision = run.experiment.train.precision
    if precision != "32-true":
        notes.append(
            "Computes in float32 and is compared with the run in float32, which was trained in "
            f"{precision}."
        )
    return notes
