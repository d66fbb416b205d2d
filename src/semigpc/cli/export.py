"""``semigpc export``: a run as one file that answers without semigpc."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from semigpc.cli.evaluate import Run, Which
from semigpc.cli.failures import reported
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import say


class Kind(StrEnum):
    """Of file."""

    onnx = "onnx"
    torch = "torch"


class Heads(StrEnum):
    """Who answers in it."""

    both = "both"
    linear = "linear"
    gp = "gp"


@reported("export")
def export(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="RUN/export/model.onnx, or .pt2 for torch, unless told."),
    ] = None,
    kind: Annotated[
        Kind, typer.Option("--format", help="ONNX, for ONNX Runtime and its like, or a program of torch.export.")
    ] = Kind.onnx,
    head: Annotated[
        Heads, typer.Option("--head", help="The linear classifier, the GP, or both as far as the run has them.")
    ] = Heads.both,
    checkpoint: Which = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what stands in the .json file, with its path.")] = False,
) -> None:
    """Write a run as one file that needs neither semigpc nor its data.

    The whole network is inside, a frozen one too, and the GP with the labels
    it remembers. RGB images in [0, 1] of the right size go in, any number
    at a time; probabilities come out. FILE.json beside it says what size,
    which class is which, and how the file was checked: it must answer 1024
    images as the run does, to 1e-4, or it is not written.

    For example:

      semigpc export runs/photos-simmatch-gp-seed0
      semigpc export runs/photos-simmatch-gp-seed0 --format torch --head gp
    """
    from semigpc.export.run import export_run

    with StageBar() as bar:
        done = export_run(
            run,
            checkpoint=None if checkpoint is None else checkpoint.value,
            kind=kind.value,
            out=out,
            heads=head.value,
            overwrite=overwrite,
            progress=bar.show,
        )
    for note in done.facts["notes"]:
        say(f"Note: {note}", err=True)
    if as_json:
        typer.echo(json.dumps({"path": str(done.path), **done.facts}, indent=2))
        return
    check = done.facts["check"]
    outputs = ", ".join(f"{name} ({facts['head']})" for name, facts in done.facts["outputs"].items())
    rows = f"{check['test_images']} test images and {check['random_images']} random ones"
    say(f"wrote {done.path} ({done.path.stat().st_size / 1e6:.1f} MB): {outputs}")
    say(f"checked on {rows}: largest difference {check['largest_difference']:.1e}, allowed {check['tolerance']:g}")
