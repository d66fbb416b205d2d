"""A run folder to a file and what is to be known of it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from semigpc.data import Augment, AugmentConfig, DataError
from semigpc.data.images import Pixels
from semigpc.export.network import FORMATS, INPUT, ONNX_PACKAGES, Answer, ExportedNetwork, Format, NotExportableError, bare
from semigpc.files import replacing, write_json, writing
from semigpc.gp import KernelHead, NoExpansionError
from semigpc.models import Classifier, OnFrozen
from semigpc.refiners import GaussianProcessRefiner
from semigpc.training.evaluate import predict
from semigpc.training.inference import LoadedRun, load_run
from semigpc.training.run_folder import Choice, RunError
from semigpc.training.settings import SettingError
from semigpc.training.state import EvaluationNetwork
from semigpc.versions import MISSING, versions

Kind = Literal["onnx", "torch"]
Heads = Literal["both", "linear", "gp"]
Progress = Callable[[str, int, int | None], None]
ROWS = 1024  # images of a check
TOLERANCE = 1e-4  # of a probability
SMALL_BATCHES = (1, 7)
LARGE_BATCH = 256


class DifferenceError(RuntimeError):
    """What was written does not say what the run says."""


@dataclass(frozen=True)
class Exported:
    """What was written: ``path``, and the ``facts`` that stand in the JSON file beside it."""

    path: Path
    facts: dict[str, Any]


class CheckImages(NamedTuple):
    """Images to check by, ``pixels`` (ROWS, s, s, 3) bytes: ``own`` test images of the run, and then random ones.

    ``note`` says why there are none of its own.
    """

    pixels: Pixels
    own: int
    note: str = ""


def export_run(
    folder: Path,
    *,
    checkpoint: Choice | None = None,
    kind: Kind = "onnx",
    out: Path | None = None,
    heads: Heads = "both",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write a run as one file that needs no semigpc, check it, and describe it in FILE.json.

    The file appears under its name once it has answered ROWS images as the run does, to TOLERANCE in every probability.
    Images go in as RGB in [0, 1] and of the right size; the network, a frozen one below it, and the GP are inside. The GP
    answers with the buffer of the checkpoint, as in ``semigpc predict``.

    Args:
        folder: of the run.
        checkpoint: the best on validation or the last; without it the best, if there is one.
        kind: of file.
        out: ``export/model.onnx`` or ``export/model.pt2`` in the run's folder unless told.
        heads: which heads to put inside; ``both`` are those that the run has.
        overwrite: replace a file that is there.
        progress: hears the stage, how much of it is done and of how much.
    """
    form, say = FORMATS[kind], progress or (lambda *_: None)
    form.require()
    path = _free(out or folder / "export" / f"model{form.suffix}", form, overwrite=overwrite)
    say("Loading the run", 0, None)
    run = load_run(folder, checkpoint)
    network, gp = bare(run.network), None if run.gp is None else run.gp.cpu()
    exported = _assembled(run, network, heads)
    rows = rows_of(run)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent) as drafts:
        draft = Path(drafts) / path.name
        say(f"Writing {path.name}", 0, None)
        form.write(exported, run.experiment.augment.image_size, draft)
        found = differences(
            form.open(draft),
            network,
            gp,
            augment=Augment(run.experiment.augment),
            outputs=exported.outputs,
            pixels=rows.pixels,
            largest_batch=min(LARGE_BATCH, run.experiment.train.eval_batch),
            progress=lambda done, total: say("Checking", done, total),
        )
        _insist(found)
        facts = {"file": path.name, "format": kind} | facts_of(run, exported, rows, found)
        write_json(_beside(draft), facts)
        for file in sorted(Path(drafts).iterdir(), key=lambda file: file == draft):  # the model last
            with replacing(path.parent / file.name) as place:
                file.replace(place)
    return Exported(path, facts)


def _free(path: Path, form: Format, *, overwrite: bool) -> Path:
    """Where to write, if that may be done."""
    if path.suffix != form.suffix:
        raise SettingError(f"the name of the file must end in {form.suffix} for this --format; got {path.name!r}.")
    for file in (path, _beside(path)):
        if file.is_dir():
            raise SettingError(f"{file} is a folder. Give the name of a file as --out.")
        if file.exists() and not overwrite:
            raise RunError(f"{file} is there already. Give another --out, or --overwrite to replace it.")
    return path


def _beside(path: Path) -> Path:
    """The file that describes another."""
    return path.with_name(f"{path.name}.json")


def _assembled(run: LoadedRun, network: Classifier | EvaluationNetwork | OnFrozen, heads: Heads) -> ExportedNetwork:
    chosen = _chosen(run, heads)
    feature = "backbone" if run.gp is None else run.gp.config.feature
    head = _kernel_head(run) if "gp" in chosen else None
    return ExportedNetwork(network, head, gp_feature=feature, augment=run.experiment.augment, heads=chosen).eval()


def _chosen(run: LoadedRun, heads: Heads) -> tuple[str, ...]:
    """The heads to put inside, the headline one first."""
    if heads == "linear":
        return ("linear",)
    if heads == "gp":
        if run.gp is None:
            raise SettingError(f"{run.folder.path} was trained without a GP, so it has no GP head. Leave --head out.")
        if not len(run.gp.engine):
            raise SettingError(
                f"the GP of {run.folder.path} had seen no labels at step {run.step}, so it has nothing to say. "
                "Train on with --resume, or leave --head out."
            )
        return ("gp",)
    if run.gp is None or not len(run.gp.engine):
        return ("linear",)
    return ("gp", "linear") if run.head == "gp" else ("linear", "gp")


def _kernel_head(run: LoadedRun) -> KernelHead:
    assert run.gp is not None
    try:
        return run.gp.head()
    except NoExpansionError as error:
        raise NotExportableError(
            f"the GP of {run.folder.path} cannot be exported: {error} Or take --head linear, the linear classifier alone."
        ) from error


def _insist(found: dict[str, float]) -> None:
    worst = max(found, key=lambda name: math.inf if math.isnan(found[name]) else found[name])
    if not found[worst] <= TOLERANCE:
        raise DifferenceError(
            f"what was written differs from the run by {found[worst]:.2g} in {worst}, and {TOLERANCE:g} is allowed; "
            "it was removed. Try the other --format, or --head linear; if only the GP differs and its engine is lowrank or "
            "matrix_free, train with --set refiner.engine.dtype=float64."
        )


def rows_of(run: LoadedRun) -> CheckImages:
    """Up to ROWS of the run's test images, taken evenly since such sets are often sorted; its data need not be there."""
    augment, size = Augment(run.experiment.augment), run.experiment.augment.image_size
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, size, size, 3), dtype=np.uint8)
    if not run.has("test"):
        return CheckImages(pixels, 0, "the run had no test images")
    try:
        _, images = replace(run, gp=None).part("test")  # without a GP that would be filled anew
        own = min(ROWS, len(images))
        for row in range(own):
            pixels[row] = augment.evaluation_pixels(images[row * len(images) // own])
    except (RunError, DataError, OSError) as error:
        return CheckImages(pixels, 0, f"the test images could not be loaded ({' '.join(str(error).split())})")
    return CheckImages(pixels, own)


def differences(
    answer: Answer,
    network: nn.Module,
    gp: GaussianProcessRefiner | None,
    *,
    augment: Augment,
    outputs: Mapping[str, str],
    pixels: Pixels,
    largest_batch: int = LARGE_BATCH,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """The largest absolute difference of a probability in each output, over batches of 1, 7 and ``largest_batch`` images.

    Args:
        answer: the file, asked with images in [0, 1].
        network, gp: what it was made from, asked with the images as evaluation normalises them.
        outputs: the head of each output.
        pixels: (n, s, s, 3) bytes.
        progress: hears how many images are done, of how many.
    """
    found = dict.fromkeys(outputs, 0.0)
    start, sizes = 0, cycle((*SMALL_BATCHES, largest_batch))
    while start < len(pixels):
        batch = pixels[start : start + next(sizes)]
        rows = torch.arange(len(batch))
        expected = predict(network, gp, [(augment.normalise(batch), rows, rows)], torch.device("cpu")).probs
        given = answer(np.ascontiguousarray(batch.transpose(0, 3, 1, 2), dtype=np.float32) / np.float32(255))
        for name, head in outputs.items():
            if given[name].shape != expected[head].shape:
                raise DifferenceError(f"{name} came as {given[name].shape}, and should be {expected[head].shape}.")
            found[name] = float(np.maximum(found[name], np.abs(given[name] - expected[head]).max()))  # keeps what is no number
        start += len(batch)
        if progress is not None:
            progress(start, len(pixels))
    return found


def facts_of(run: LoadedRun, exported: ExportedNetwork, rows: CheckImages, found: dict[str, float]) -> dict[str, Any]:
    """All of it, as JSON holds it; ``found`` is the largest difference of each output."""
    augment, gp, size = run.experiment.augment, exported.gp, run.experiment.augment.image_size
    return {
        "run": str(run.folder.path),
        "checkpoint": run.checkpoint,
        "step": run.step,
        "class_names": list(run.class_names),
        "input": {
            "name": INPUT,
            "shape": ["M", 3, size, size],
            "dtype": "float32",
            "values": "RGB, a byte / 255, in [0, 1]; not normalised: that is done inside",
            "preparation": _preparation(augment),
        },
        "image_size": size,
        "normalised_inside_by": {"mean": list(augment.mean), "std": list(augment.std)},
        "outputs": {
            name: {"head": head, "shape": ["M", len(run.class_names)], "dtype": "float32"}
            for name, head in exported.outputs.items()
        },
        "gp": None if gp is None else {"kernel": repr(gp.kernel), "points": len(gp.points), "dtype": "float64"},
        "check": {
            "rows": len(rows.pixels),
            "test_images": rows.own,
            "random_images": len(rows.pixels) - rows.own,
            "largest_difference": max(found.values()),
            "of_each_output": found,
            "tolerance": TOLERANCE,
        },
        "notes": _notes(run, exported, rows),
        "versions": versions() | {name: _version(name) for name in ONNX_PACKAGES},
    }


def _notes(run: LoadedRun, exported: ExportedNetwork, rows: CheckImages) -> list[str]:
    notes = []
    if run.gp is not None and not len(run.gp.engine) and exported.gp is None:
        notes.append(f"The GP had seen no labels at step {run.step}, so the linear classifier is alone inside.")
    if rows.note:
        notes.append(f"Checked on random images alone: {rows.note}.")
    if run.experiment.train.precision != "32-true":
        notes.append(
            f"Answers in float32, and is compared with the run in float32; it trained with {run.experiment.train.precision}."
        )
    return notes


def _preparation(augment: AugmentConfig) -> str:
    size = augment.image_size
    if augment.style == "pad":
        return f"resize to {size} x {size} pixels, bilinear"
    large = math.floor(size / augment.crop_ratio)
    return f"resize the shorter side to {large} pixels, bilinear; cut {size} x {size} out of the middle"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return MISSING
