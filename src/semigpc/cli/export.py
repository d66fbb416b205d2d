"""``semigpc export``: a run as one file that works without semigpc."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from semigpc.cli.evaluate import Run, Which, WhichHead
from semigpc.cli.failures import reported
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import AsJson, say


@reported("export")
def export(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="RUN/export/model.onnx, or .pt2 for torch, by default."
        ),
    ] = None,
    kind: Annotated[
        Literal["onnx", "torch"],
        typer.Option(
            "--format", help="For ONNX Runtime and its like, or a program of torch.export."
        ),
    ] = "onnx",
    head: WhichHead = "auto",
    checkpoint: Which = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there already.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run as one file that needs neither semigpc nor its data.

    It holds the whole network, also a frozen one, and the GP with its labelled
    features. Input: any number of RGB images in [0, 1] of the right size;
    output: probabilities. FILE.json beside it has the size, the classes and
    the check: predictions for 1024 images must equal the run's to 1e-4, or
    the file is not written.

    For example:

      semigpc export runs/photos-simmatch-gp-seed0
      semigpc export runs/photos-simmatch-gp-seed0 --format torch --head gp
    """
    from semigpc.export.run import export_run

    with StageBar() as bar:
        done = export_run(
            run,
            checkpoint=checkpoint,
            kind=kind,
            out=out,
            head=head,
            overwrite=overwrite,
            progress=bar.show,
        )
    for note in done.facts["notes"]:
        say(f"Note: {note}", err=True)
    if as_json:
        typer.echo(json.dumps({"path": str(done.path), **done.facts}, indent=2))
        return
    check = done.facts["check"]
    outputs = ", ".join(
        f"{name} ({facts['head']})" for name, facts in done.facts["outputs"].items()
    )
    rows = f"{check['test_images']} test images and {check['random_images']} random ones"
    say(f"wrote {done.path} ({done.path.stat().st_size / 1e6:.1f} MB): {outputs}")
    say(
        f"checked on {rows}: largest difference {check['largest_difference']:.1e}, allowed {check['tolerance']:g}"
    )
