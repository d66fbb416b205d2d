"""``semigpc doctor``: check the installation, and say how to mend what is broken."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer
from rich.console import Console

from semigpc.cli.failures import reported
from semigpc.cli.tables import AsJson, verbatim
from semigpc.io.text import MISSING, versions

GIGABYTE = 2**30
LITTLE = 1  # gigabytes; less disk or memory than that is worth a warning
MARKS = {"ok": "[green]ok  [/]", "warn": "[yellow]warn[/]", "bad": "[red]bad [/]"}
# Builds that do not fit each other say so when the operators of torchvision are registered, which
# is on import.
BFLOAT16 = "import torch; torch.nn.Linear(64, 64).bfloat16()(torch.ones(64, 64).bfloat16())"
PAIR = "import torch, torchvision; torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)"


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was checked; ``remedy`` is the command or the change that mends it."""

    name: str
    status: Literal["ok", "warn", "bad"]
    found: str
    remedy: str = ""


@reported("doctor")
def doctor(
    as_json: AsJson = False,
) -> None:
    """Check the installation: versions, devices, and whether training works.

    Looks for packages that do not fit each other, such as a torchvision made
    for another torch, writes and reads a checkpoint, and trains one step.
    What is broken comes with the command that mends it; the exit code is
    then 1.
    """
    console = Console(stderr=as_json)
    findings: list[Diagnosis] = []
    for finding in examine():
        findings.append(finding)
        console.print(f"{MARKS[finding.status]} {finding.name}:", end=" ", highlight=False)
        console.print(verbatim(finding.found), soft_wrap=True)
        if finding.remedy:
            console.print(verbatim(f"     mend it: {finding.remedy}"), soft_wrap=True)
    sound = all(finding.status != "bad" for finding in findings)
    if as_json:
        typer.echo(
            json.dumps(
                {"ok": sound, "findings": [asdict(finding) for finding in findings]}, indent=2
            )
        )
    console.print("Everything needed works." if sound else "Something is broken; see above.")
    if not sound:
        raise typer.Exit(1)


def examine() -> Iterator[Diagnosis]:
    """Yield every check, in the order in which one depends on the other."""
    yield from _versions()
    pair = _pair()
    yield pair
    if pair.status == "bad":
        return  # all other checks would fail for the same reason
    yield from _machine()
    yield _bfloat16()
    yield _attempt(
        "checkpoints",
        _write_and_read,
        "look at the temporary folder (TMPDIR), and at pip show safetensors.",
    )
    yield _attempt(
        "training",
        _train_a_step,
        "semigpc --debug train digits --steps 1 shows where it fails; report it.",
    )


# Packages -----------------------------------------------------------------------------------------


def _versions() -> Iterator[Diagnosis]:
    for name, found in versions().items():
        if found == MISSING:
            yield Diagnosis(name, "bad", found, f"{sys.executable} -m pip install {name}")
        else:
            yield Diagnosis(name, "ok", found)


def _pair() -> Diagnosis:
    """Import torchvision in a process of its own, so that a failure cannot break this one."""
    done = subprocess.run([sys.executable, "-c", PAIR], capture_output=True, text=True)
    if done.returncode == 0:
        return Diagnosis("torch and torchvision", "ok", "fit each other")
    errors = done.stderr.strip().splitlines()
    return Diagnosis(
        "torch and torchvision",
        "bad",
        f"do not fit each other: {errors[-1] if errors else 'no message'}",
        reinstall_command(),
    )


def reinstall_command() -> str:
    """Return the command that installs the torchvision of this torch, from one index, for the same
    CPU or CUDA.
    """
    release, _, build = versions()["torch"].partition("+")
    index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
    return f"{sys.executable} -m pip install --force-reinstall torch=={release} torchvision{index}"


# Machine ------------------------------------------------------------------------------------------


def _machine() -> Iterator[Diagnosis]:
    import torch

    from semigpc.io.threads import allowed, cores

    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    if torch.backends.mps.is_available():
        gpus.append("Apple GPU (mps)")
    yield Diagnosis("devices", "ok", ", ".join(gpus) or "no GPU; training runs on the CPU")
    if allowed() > cores():  # by OMP_NUM_THREADS
        yield Diagnosis(
            "threads",
            "warn",
            f"{allowed()} of torch on {cores()} cores",
            f"OMP_NUM_THREADS={cores()} before the command",
        )
    else:
        yield Diagnosis("threads", "ok", f"{allowed()} of torch on {cores()} cores")
    disk = shutil.disk_usage(Path.cwd()).free / GIGABYTE
    yield _enough("free disk here", disk, "delete old runs, or write elsewhere with --out")
    memory = _free_memory()
    if memory is not None:
        yield _enough("free memory", memory, "close other programs, or lower train.labeled_batch")


def _bfloat16() -> Diagnosis:
    """Try bfloat16: some virtual machines announce instructions that the processor lacks, and the
    process then dies.
    """
    done = subprocess.run([sys.executable, "-c", BFLOAT16], capture_output=True, text=True)
    if done.returncode == 0:
        return Diagnosis("bfloat16 on the CPU", "ok", "works")
    return Diagnosis(
        "bfloat16 on the CPU",
        "warn",
        "crashes",
        "leave train.precision at 32-true when training on this CPU",
    )


def _enough(name: str, gigabytes: float, remedy: str) -> Diagnosis:
    status: Literal["ok", "warn"] = "ok" if gigabytes >= LITTLE else "warn"
    return Diagnosis(name, status, f"{gigabytes:.1f} GB", "" if status == "ok" else remedy)


def _free_memory() -> float | None:
    """Return gigabytes, where the system says so."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next(
        (
            int(line.split()[1]) * 1024 / GIGABYTE
            for line in lines
            if line.startswith("MemAvailable")
        ),
        None,
    )


# Trying -------------------------------------------------------------------------------------------


def _attempt(name: str, work: Callable[[Path], str], remedy: str) -> Diagnosis:
    try:
        with tempfile.TemporaryDirectory(prefix="semigpc-doctor-") as folder:
            return Diagnosis(name, "ok", work(Path(folder)))
    except Exception as error:
        return Diagnosis(
            name, "bad", f"{type(error).__name__}: {' '.join(str(error).split())}", remedy
        )


def _write_and_read(folder: Path) -> str:
    import torch

    from semigpc.training.run_folder import read_checkpoint, write_checkpoint

    weights = torch.arange(6.0).reshape(2, 3)
    write_checkpoint(folder / "a.safetensors", {"model": {"weight": weights}}, {"step": 1})
    if not torch.equal(read_checkpoint(folder / "a.safetensors").part("model")["weight"], weights):
        raise RuntimeError("a checkpoint was read back with other numbers than were written")
    return "written and read back"


def _train_a_step(folder: Path) -> str:
    from semigpc.training import train
    from semigpc.training.presets import digits

    tiny = digits().override(
        ["train.steps=1", "data.test_per_class=1", "data.validation_per_class=0"]
    )
    summary = train(tiny, folder / "run")
    return f"one step of SimMatch with the GP in {summary['seconds']:.1f} s"
