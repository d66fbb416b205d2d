"""Do several processes train as one does? The same run twice, and how far the two are apart."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.tables import Json, new_table, script, show
from semigpc.algorithms import ALGORITHMS
from semigpc.io.errors import RunError
from semigpc.io.text import unknown_name
from semigpc.training import RunFolder
from semigpc.training.run_folder import read_checkpoint


def compare_processes(
    algorithm: str, folder: Path, *, devices: int, steps: int, settings: Sequence[str]
) -> dict[str, Any]:
    """Train an algorithm with a GP on digits in one process and in several, by the command line,
    and compare.

    Args:
        folder: for the two runs. devices: processes of the second one. settings: of both, such as
            train.precision=64-true.
    """
    paths = {count: folder / f"{algorithm}-{count}" for count in (1, devices)}
    for count, path in paths.items():
        _train(algorithm, path, devices=count, steps=steps, settings=settings)
    losses = [_losses(path) for path in paths.values()]
    ours, theirs = (read_checkpoint(RunFolder(path).last).tensors for path in paths.values())
    apart = {
        name: float((ours[name].double() - theirs[name].double()).abs().max())
        for name in ours
        if ours[name].numel()
    }
    return {
        "algorithm": algorithm,
        "processes": devices,
        "steps": steps,
        "settings": list(settings),
        "loss": max(abs(a - b) for a, b in zip(*losses, strict=True)),
        "first_loss_apart": next(
            (i for i, (a, b) in enumerate(zip(*losses, strict=True)) if abs(a - b) > 1e-5), None
        ),
        "weights": max(value for name, value in apart.items() if name.startswith("model.")),
        "gp_rows": max(value for name, value in apart.items() if "engine" in name),
    }


def _train(
    algorithm: str, path: Path, *, devices: int, steps: int, settings: Sequence[str]
) -> None:
    rare = (f"train.{name}={steps}" for name in ("eval_steps", "checkpoint_steps"))
    # A network without batch normalisation, which processes can share on GPUs only.
    network = ("model.name=test_vit", "model.image_size=8", "model.patch_size=4")
    wanted = ["train.log_steps=1", "train.workers=0", *rare, *network, *settings]
    command = [
        sys.executable,
        "-m",
        "semigpc",
        "train",
        "digits",
        "--algorithm",
        algorithm,
        "--refiner",
        "gp",
    ]
    command += ["--steps", str(steps), "--devices", str(devices), "--out", str(path)]
    for setting in wanted:
        command += ["--set", setting]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        raise RunError(
            f"{devices} processes of {algorithm} ended with code {done.returncode}: "
            f"{done.stderr.strip()[-500:]}"
        )


def _losses(path: Path) -> list[float]:
    entries = map(json.loads, RunFolder(path).metrics.read_text().splitlines())
    return [entry["loss"] for entry in entries if entry["kind"] == "train"]


def processes(
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            help="See semigpc list algorithms; all without it. Repeat for several.", metavar="NAME"
        ),
    ] = None,
    devices: Annotated[int, typer.Option(help="Processes beside one.", min=2)] = 2,
    steps: Annotated[int, typer.Option(help="Of each run.", min=1)] = 50,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of both runs, repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train on digits in one process and in several, and compare.

    Losses of every step, weights at the end, and the rows in the GP's buffer,
    largest difference each. Sums are made in another order, so float32 runs
    drift apart; in float64 they should agree to the last digits:

      python benchmarks/processes.py --algorithm fixmatch --set train.precision=64-true
    """
    for name in algorithm or []:
        if name not in ALGORITHMS:
            raise typer.BadParameter(
                unknown_name("algorithm", name, ALGORITHMS), param_hint="--algorithm"
            )
    records = []
    with tempfile.TemporaryDirectory() as folder, Console(stderr=True).status("starting") as status:
        for name in algorithm or list(ALGORITHMS):
            status.update(f"{name} in 1 and in {devices} processes")
            records.append(
                compare_processes(
                    name, Path(folder), devices=devices, steps=steps, settings=settings or []
                )
            )
    show(records, lambda: [_table(records)], as_json=as_json)


def _table(records: Sequence[dict[str, Any]]) -> Table:
    first = records[0]
    title = f"1 and {first['processes']} processes, {first['steps']} steps: largest differences"
    table = new_table(title, "algorithm", "loss", "weights", "rows of the GP")
    for record in records:
        table.add_row(
            record["algorithm"], *(f"{record[key]:.1e}" for key in ("loss", "weights", "gp_rows"))
        )
    return table


app = script(processes)
if __name__ == "__main__":
    app()
