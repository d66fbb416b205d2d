"""``semigpc toy``: what it writes, where it writes it, and what it refuses."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from semigpc.cli import app as semigpc_app
from semigpc.cli.toy import toy
from semigpc.paper.plots import CLASSIFIER_NAMES
from semigpc.paper.toy import toy_figures

app = typer.Typer()
app.command()(toy)
runner = CliRunner(env={"COLUMNS": "80"})


@pytest.fixture(autouse=True, scope="module")
def coarse_maps() -> Iterator[None]:
    """The maps are not looked at here, so a few points a side will do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("semigpc.paper.plots.MAP_POINTS", 12)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy") / "new" / "folder"


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    done = runner.invoke(app, ["--out", str(folder), "--seed", "3"])
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return done.stdout


def test_images_are_written_and_tables_hold_every_figure_in_80_characters(
    printed: str, folder: Path
) -> None:
    for name in ("propagation.png", "figure1.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
        assert f"wrote {folder / name}" in printed
    table = [line for line in printed.splitlines() if not line.startswith("wrote")]
    assert max(map(len, table)) <= 80
    assert "…" not in printed
    rows = [" ".join(line.split()) for line in table]
    figures = toy_figures(3)
    for entry in figures.confidence:
        values = (entry.disagreement, entry.minority, entry.outlier, min(entry.centres))
        numbers = " ".join(f"{value:.3f}" for value in values)
        assert f"{entry.length_scale:g} {CLASSIFIER_NAMES[entry.classifier]} {numbers}" in rows
    for one, mean in zip(figures.propagation, figures.propagation_mean, strict=True):
        name = CLASSIFIER_NAMES[one.classifier]
        accuracies = f"{100 * one.accuracy:.1f} ({100 * mean.accuracy:.1f})"
        start = f"{one.length_scale:g} {name} {accuracies} "
        assert any(row.startswith(start) for row in rows)


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    done = runner.invoke(app, ["--out", str(tmp_path / "taken")])
    assert done.exit_code == 1
    path = tmp_path / "taken" / "propagation.png"
    assert done.stderr.startswith(f"semigpc toy: {path} could not be written: File exists.")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_negative_seed_is_refused(tmp_path: Path) -> None:
    done = runner.invoke(app, ["--out", str(tmp_path / "none"), "--seed", "-1"])
    assert done.exit_code == 2
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_json_stands_alone_on_standard_output_and_holds_every_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(semigpc_app, ["toy", "--seed", "3", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads(json.dumps(asdict(toy_figures(3))))
    assert "SemiGPC" in done.stderr
    for name in ("propagation.png", "figure1.png"):
        assert f"wrote {Path('toy', name)}" in done.stderr
        assert (tmp_path / "toy" / name).exists()
