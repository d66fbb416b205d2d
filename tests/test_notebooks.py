"""The notebooks of examples: they run, and what they show is what they print."""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
PATIENCE = 1200  # seconds a cell, on a machine that is busy


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_was_run_from_top_to_bottom_without_an_error(path: Path) -> None:
    cells = code_cells(json.loads(path.read_text()))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds == {"stream"}
    assert all(output["name"] == "stdout" for cell in cells for output in cell["outputs"]), (
        "a warning"
    )


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_in_an_empty_folder(path: Path, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    notebook = nbformat.read(path, as_version=4)
    shown = [bool(cell["outputs"]) for cell in code_cells(notebook)]
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=PATIENCE, resources=resources).execute()
    assert [bool(cell["outputs"]) for cell in code_cells(notebook)] == shown
    assert (tmp_path / "model.onnx").exists()
