"""``semigpc export``: a run, or a labelled folder, as one file that works without semigpc."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from semigpc.cli.failures import reported
from semigpc.cli.options import (
    AsJson,
    Checkpoint,
    Head,
    ModelFolder,
    is_labelling,
    register_data_sets,
)
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import say


@reported("export")
def export(
    model: ModelFolder,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="MODEL/export/model.onnx, or .pt2 for torch, by default."
        ),
    ] = None,
    kind: Annotated[
        Literal["onnx", "torch"],
        typer.Option("--format", help="onnx for ONNX Runtime, or torch for torch.export."),
    ] = "onnx",
    head: Head = "auto",
    checkpoint: Checkpoint = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run or a labelled folder as one file that needs neither semigpc nor its data.

    It contains the whole network, frozen or not, and the GP with its labelled
    features. Input: any number of RGB images in [0, 1] of the right size;
    output: probabilities. Its metadata have the classes and how to prepare
    images, which docs/train.md does in a few lines. FILE.json beside it has
    the same and the check: predictions for 1024 images must equal the run's
    to 1e-4, or the file is not written.

    A labelled folder of images becomes its frozen network with the GP behind
    it; one that was made from a table becomes the GP alone, from rows to
    probabilities. Both also return label, grade, status and variance.

    For example:

      semigpc export runs/photos-simmatch-gp-seed0
      semigpc export runs/photos-simmatch-gp-seed0 --format torch --head gp
      semigpc export out --out model.onnx
    """
    if is_labelling(model, head=head, checkpoint=checkpoint):
        _export_labelling(model, kind, out, overwrite, as_json)
        return
    from semigpc.export.run import export_run

    register_data_sets()
    with StageBar() as bar:
        done = export_run(
            model,
            checkpoint=checkpoint,
            kind=kind,
            out=out,
            head=head,
            overwrite=overwrite,
            progress=bar.show,
        )
    facts = done.facts
    for note in facts["notes"]:
        say(f"Note: {note}", err=True)
    if as_json:
        typer.echo(json.dumps({"path": str(done.path), **facts}, indent=2))
        return
    check = facts["check"]
    outputs = ", ".join(f"{name} ({one['head']})" for name, one in facts["outputs"].items())
    say(f"wrote {done.path} ({done.path.stat().st_size / 1e6:.1f} MB): {outputs}")
    images = f"{check['test_images']} test images and {check['random_images']} random ones"
    difference = f"{check['largest_difference']:.1e}, allowed {check['tolerance']:g}"
    say(f"checked on {images}: largest difference {difference}")


def _export_labelling(
    folder: Path,
    kind: Literal["onnx", "torch"],
    out: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    from semigpc.export.labeling import export_labeling

    with StageBar() as bar:
        done = export_labeling(folder, kind=kind, out=out, overwrite=overwrite, progress=bar.show)
    if as_json:
        typer.echo(json.dumps({"path": str(done.path), **done.facts}, indent=2))
        return
    check = done.facts["check"]
    outputs = ", ".join(done.facts["outputs"])
    say(f"wrote {done.path} ({done.path.stat().st_size / 1e6:.1f} MB): {outputs}")
    counts = {
        name.replace("_", " "): check.get(name) for name in ("images", "random_images", "rows")
    }
    checked = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    difference = f"{check['largest_difference']:.1e}, allowed {check['tolerance']:g}"
    say(f"checked on {checked}: largest difference {difference}")
