"""``semigpc doctor``: check the installation, and print how to fix what is broken."""

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
from semigpc.cli.options import AsJson
from semigpc.cli.tables import verbatim
from semigpc.io.versions import MISSING, versions

GIGABYTE = 2**30
LEAST_FREE = 1  # gigabytes of disk or memory, below which a warning is given
MARKS = {"ok": "[green]ok  [/]", "warn": "[yellow]warn[/]", "bad": "[red]bad [/]"}
BFLOAT16 = "import torch; torch.nn.Linear(64, 64).bfloat16()(torch.ones(64, 64).bfloat16())"
# Incompatible builds fail when torchvision registers its operators, on import.
PAIR = "import torch, torchvision; torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)"


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check; ``remedy`` is the command or the change that fixes it."""

    name: str
    status: Literal["ok", "warn", "bad"]
    found: str
    remedy: str = ""


@reported("doctor")
def doctor(as_json: AsJson = False) -> None:
    """Check the installation: versions, devices, and whether training works.

    Looks for incompatible packages, such as a torchvision built for another
    torch, writes and reads a checkpoint, and trains one step. For what is
    broken it prints the command that fixes it; the exit code is then 1.
    """
    console = Console(stderr=as_json)
    findings: list[Diagnosis] = []
    for finding in examine():
        findings.append(finding)
        console.print(f"{MARKS[finding.status]} {finding.name}:", end=" ", highlight=False)
        console.print(verbatim(finding.found), soft_wrap=True)
        if finding.remedy:
            console.print(verbatim(f"     fix: {finding.remedy}"), soft_wrap=True)
    sound = all(finding.status != "bad" for finding in findings)
    if as_json:
        facts = {"ok": sound, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(facts, indent=2))
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
        "check the temporary folder (TMPDIR), and pip show safetensors.",
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
        return Diagnosis("torch and torchvision", "ok", "compatible")
    errors = done.stderr.strip().splitlines()
    reason = errors[-1] if errors else "no message"
    return Diagnosis("torch and torchvision", "bad", f"incompatible: {reason}", reinstall_command())


def reinstall_command() -> str:
    """Return the command that installs a torchvision for this torch, from the same index."""
    release, _, build = versions()["torch"].partition("+")
    index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
    return f"{sys.executable} -m pip install --force-reinstall torch=={release} torchvision{index}"


# Machine ------------------------------------------------------------------------------------------


def _machine() -> Iterator[Diagnosis]:
    import torch

    from semigpc.io.threads import allowed, cores

    gpus = []
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        gpus.append("Apple GPU (mps)")
    yield Diagnosis("devices", "ok", ", ".join(gpus) or "no GPU; training runs on the CPU")
    threads = f"{allowed()} of torch on {cores()} cores"
    if allowed() > cores():  # by OMP_NUM_THREADS
        remedy = f"OMP_NUM_THREADS={cores()} before the command"
        yield Diagnosis("threads", "warn", threads, remedy)
    else:
        yield Diagnosis("threads", "ok", threads)
    disk = shutil.disk_usage(Path.cwd()).free / GIGABYTE
    yield _enough("free disk here", disk, "delete old runs, or write elsewhere with --out")
    memory = _free_memory()
    if memory is not None:
        yield _enough("free memory", memory, "close other programs, or lower train.labeled_batch")


def _bfloat16() -> Diagnosis:
    """Try bfloat16 in a process of its own.

    Some virtual machines report instructions that the processor lacks, and the process then dies.
    """
    done = subprocess.run([sys.executable, "-c", BFLOAT16], capture_output=True, text=True)
    if done.returncode == 0:
        return Diagnosis("bfloat16 on the CPU", "ok", "works")
    remedy = "leave train.precision at 32-true when training on this CPU"
    return Diagnosis("bfloat16 on the CPU", "warn", "crashes", remedy)


def _enough(name: str, gigabytes: float, remedy: str) -> Diagnosis:
    status: Literal["ok", "warn"] = "ok" if gigabytes >= LEAST_FREE else "warn"
    return Diagnosis(name, status, f"{gigabytes:.1f} GB", "" if status == "ok" else remedy)


def _free_memory() -> float | None:
    """Return gigabytes of free memory, or None if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024 / GIGABYTE
    return None


# Trying -------------------------------------------------------------------------------------------


def _attempt(name: str, work: Callable[[Path], str], remedy: str) -> Diagnosis:
    try:
        with tempfile.TemporaryDirectory(prefix="semigpc-doctor-") as folder:
            return Diagnosis(name, "ok", work(Path(folder)))
    except Exception as error:
        reason = " ".join(str(error).split())
        return Diagnosis(name, "bad", f"{type(error).__name__}: {reason}", remedy)


def _write_and_read(folder: Path) -> str:
    import torch

    from semigpc.training.run_folder import read_checkpoint, write_checkpoint

    weights = torch.arange(6.0).reshape(2, 3)
    write_checkpoint(folder / "a.safetensors", {"model": {"weight": weights}}, {"step": 1})
    if not torch.equal(read_checkpoint(folder / "a.safetensors").part("model")["weight"], weights):
        raise RuntimeError("a checkpoint was read back with different numbers")
    return "written and read back"


def _train_a_step(folder: Path) -> str:
    from semigpc.training import train
    from semigpc.training.presets import digits

    tiny = digits().override(
        ["train.steps=1", "data.test_per_class=1", "data.validation_per_class=0"]
    )
    summary = train(tiny, folder / "run")
    return f"one step of SimMatch with the GP in {summary['seconds']:.1f} s"
