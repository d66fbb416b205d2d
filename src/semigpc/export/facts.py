"""What a user of an exported file must know, and what its check showed."""

import math
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from semigpc.data import AugmentConfig
from semigpc.export.check import TOLERANCE, Rows
from semigpc.export.formats import ONNX_PACKAGES
from semigpc.export.network import INPUT, ExportedNetwork
from semigpc.training.inference import LoadedRun
from semigpc.versions import MISSING, versions


def facts_of(run: LoadedRun, exported: ExportedNetwork, rows: Rows, found: dict[str, float]) -> dict[str, Any]:
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


def _notes(run: LoadedRun, exported: ExportedNetwork, rows: Rows) -> list[str]:
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
