"""``semigpc review``: errors and the export; tests/review tests the page itself."""

import importlib.util
import json
import re
import shutil
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow import parquet

from semigpc.cli.live_page import _guaranteed
from semigpc.labeling.start import Started
from semigpc.review.session import open_session
from tests.cli.calls import refused, semigpc, worked
from tests.review.browser import Server
from tests.review.shapes import make_labelled


@pytest.fixture(scope="module")
def labelled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("review")
    make_labelled(root)
    return root


@pytest.fixture
def out(labelled_once: Path, tmp_path: Path) -> Path:
    shutil.copytree(labelled_once, tmp_path / "shapes", symlinks=True)
    return tmp_path / "shapes" / "out"


def test_help_teaches_the_whole_round() -> None:
    help_text = worked("review --help").output
    assert "semigpc review out --export" in help_text


def test_without_the_extra_it_says_what_to_install(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec

    def without(name: str, *rest: str) -> object:
        return None if name == "uvicorn" else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    refused("review", out, "--no-browser", code=1, words="pip install 'semigpc[review]'")
    worked("review", out, "--export")  # which needs no server


def test_a_port_that_is_taken_is_refused(out: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused("review", out, "--port", str(port), "--no-browser", code=2, words=str(port))


def test_export_writes_and_says_what(out: Path) -> None:
    session = open_session(out)
    first = [row for row in range(len(session)) if row not in session.project.given]
    session.accept(first[:2])
    session.close()
    shown = worked("review", out, "--export")
    assert f"wrote {out / 'exports' / 'labels.parquet'}" in shown.stdout
    told = r"\n2 of \d+ reviewed: 2 accepted, 0 corrected, 0 skipped, 0 none; \d+ of 90 rows"
    assert re.search(told, shown.stdout)
    as_json = json.loads(semigpc("review", out, "--export --json").stdout)
    table = parquet.read_table(out / "exports" / "labels.parquet")
    assert as_json["rows"] == 90
    assert as_json["labels"] == 90 - table["label"].null_count


def test_a_line_that_a_crash_cut_off_is_told(out: Path) -> None:
    session = open_session(out)
    session.accept([30])
    session.accept([31])
    session.close()
    path = out / "reviews.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    shown = semigpc("review", out, "--export")
    assert "The last line of reviews.jsonl was cut off by a crash" in shown.stderr
    assert "\n1 of " in shown.stdout


@pytest.mark.slow
def test_one_folder_is_reviewed_by_one_server_and_exported_meanwhile(out: Path) -> None:
    server = Server(out)
    try:
        assert server.address.startswith("http://127.0.0.1:")
        assert len(server.address.rstrip("/").rsplit("/", 1)[1]) >= 32, "the secret"
        holder = f"(process {server.process.pid} on "
        told = refused("review", out, "--no-browser", code=2, words=holder)
        assert told.strip().endswith(server.address), "the page is there"
        data = out.parent / "data.parquet"
        refused("label", data, "--out", out, "--overwrite", code=2, words=holder)
        worked("review", out, "--export")
    finally:
        told, complaints = server.end(signal.SIGTERM)
    assert re.search(r"^0 of \d+ reviewed", told, re.MULTILINE)
    assert (server.process.returncode, complaints) == (0, "")


def test_a_note_of_open_names_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = "Folders are taken for classes. If they are none, pass class_folders=False."
    started = Started(tmp_path, [note], continued=False)
    monkeypatch.setattr("semigpc.labeling.start.start", lambda *_, **__: started)
    monkeypatch.setattr(sys.modules["semigpc.cli.open"], "serve_session", lambda *_, **__: None)
    done = worked("open", tmp_path, "--no-browser")
    assert "note: Folders are taken for classes. If they are none, pass --no-class-folders." in (
        done.stderr
    )


def test_in_the_end_it_says_how_many_labels_are_guaranteed(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semigpc.review.app.serve", lambda session, **_: session.accept([0]))
    said = worked("review", out, "--no-browser").stdout
    assert "\nbeside yours, no label is guaranteed yet" in said
    grades = [{"precision": 0.95, "labels": 0}, {"precision": 0.9, "labels": 21}]
    counted = SimpleNamespace(refresh_progress=lambda: {"grades": grades})
    assert "guaranteed right: 21 at 90%" in _guaranteed(counted)  # type: ignore[arg-type]
