"""``semigpc doctor``: sound here, and a clear answer where something is broken."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import semigpc.cli.doctor  # noqa: F401 - as a module; in its package the name is the verb's
from tests.cli.calls import semigpc as call

doctor = sys.modules["semigpc.cli.doctor"]
INDEX = " --index-url https://download.pytorch.org/whl"


@pytest.mark.slow
def test_this_installation_is_sound() -> None:
    done = call("doctor", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["ok"]
    names = {finding["name"] for finding in told["findings"]}
    parts = {"python", "torch", "devices", "threads", "checkpoints", "training"}
    assert parts | {"torch and torchvision"} <= names
    assert "Everything needed works." in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("package", ["torchvision", "torch"])
def test_a_package_that_cannot_be_imported_comes_with_the_command_that_mends_it(
    package: str, tmp_path: Path
) -> None:
    broken = "raise RuntimeError('operator torchvision::nms does not exist')"
    (tmp_path / f"{package}.py").write_text(broken)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "semigpc", "doctor"]
    env = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 1
    assert "incompatible: RuntimeError: operator torchvision::nms does not exist" in done.stdout
    assert "pip install --force-reinstall torch==" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("version", "words"),
    [("2.6.0+cpu", f"{INDEX}/cpu"), ("2.6.0+cu126", f"{INDEX}/cu126"), ("2.6.0", "")],
)
def test_both_packages_come_from_one_index(
    monkeypatch: pytest.MonkeyPatch, version: str, words: str
) -> None:
    monkeypatch.setattr(doctor, "versions", lambda: {"torch": version})
    assert doctor.reinstall_command().endswith(f"torch==2.6.0 torchvision{words}")


def test_what_fails_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path) -> str:
        raise OSError(30, "Read-only file system", str(folder))

    finding = doctor._attempt("checkpoints", broken, "look elsewhere")
    assert finding.status == "bad"
    assert doctor._enough("free disk here", 0.5, "delete old runs").status == "warn"
    monkeypatch.setattr(doctor, "examine", lambda: iter([finding]))
    done = call("doctor")
    assert done.exit_code == 1
    assert "fix: look elsewhere" in done.stdout
