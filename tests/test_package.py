"""The package as it is released: what importing it loads, its extras, its version, and what is in
the wheel.
"""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import semigpc

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "semigpc"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_importing_the_package_loads_nothing_that_takes_time() -> None:
    slow = {"torch", "numpy", "sklearn", "timm", "matplotlib"}
    code = f"import sys, semigpc; print({slow} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_every_public_name_is_there_and_an_unknown_one_is_not() -> None:
    assert dir(semigpc) == sorted(semigpc.__all__)
    for name in semigpc.__all__:
        assert getattr(semigpc, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'semigpc' has no attribute 'Refiner2'"):
        semigpc.Refiner2  # noqa: B018


def test_every_extra_that_a_message_names_exists() -> None:
    places = [*SOURCE.rglob("*.py"), *(ROOT / "benchmarks").glob("*.py"), ROOT / "README.md"]
    texts = [path.read_text() for path in (*places, *(ROOT / "docs").glob("*.md"))]
    groups = re.findall(r"semigpc\\{0,2}\[([a-z,]+)\]", "\n".join(texts))
    named = {extra for group in groups for extra in group.split(",")}
    assert {"export", "ray", "review"} <= named <= set(PROJECT["optional-dependencies"])


@pytest.mark.slow
def test_the_main_verbs_import_no_extra() -> None:
    extras = "gpytorch onnx onnxruntime onnxscript pandas polars pytorch_lightning ray river"
    extras += " starlette uvicorn"
    rooms = "cli training training.presets paper.reproduction estimator labeling.label"
    rooms += " models.encoder export"
    code = (
        "import sys, importlib\n"
        # Importing a module that is None raises ImportError.
        f"for name in {extras.split()}: sys.modules[name] = None\n"
        f"for room in {rooms.split()}: importlib.import_module('semigpc.' + room)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_version_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "semigpc", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("semigpc 0.")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("build") is None, reason="build is not installed: pip install build")
def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"semigpc-{PROJECT['version']}-py3-none-any.whl"
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = (
        path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    assert inside == {str(path.relative_to(SOURCE.parent)) for path in files}
    data = ("py.typed", "report/templates/run.html", "review/static/index.html")
    assert {f"semigpc/{name}" for name in data} <= inside
