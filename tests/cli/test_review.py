"""``semigpc review``: errors and the export; tests/review tests the page itself."""

import importlib.util
import json
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest

from semigpc.review.session import open_session
from tests.cli.calls import refused, semigpc
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
    shown = semigpc("review --help")
    assert shown.exit_code == 0
    assert "semigpc label photos --labels out/reviewed_labels.csv" in shown.output


def test_a_folder_that_was_not_labelled_is_refused(tmp_path: Path) -> None:
    refused("review", tmp_path, "--no-browser", code=2, words="has no project.json")
    refused("review", tmp_path / "none", "--no-browser", code=2, words="There is no folder")


def test_images_that_are_not_there_are_refused(out: Path) -> None:
    refused(
        "review",
        out,
        "--images",
        out / "none",
        "--no-browser",
        code=2,
        words="The folder of images does not exist",
    )


def test_without_the_extra_it_says_what_to_install(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "uvicorn" else found(name, *rest),
    )
    refused("review", out, "--no-browser", code=1, words="pip install 'semigpc[review]'")
    assert semigpc("review", out, "--export").exit_code == 0, "which needs no server"


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
    shown = semigpc("review", out, "--export")
    assert shown.exit_code == 0, shown.output
    assert f"wrote {out / 'reviewed.parquet'}" in shown.stdout
    told = r"\n2 of \d+ reviewed: 2 accepted, 0 corrected, 0 skipped; 20 of 90 rows are labelled"
    assert re.search(told, shown.stdout)
    as_json = json.loads(semigpc("review", out, "--export --json").stdout)
    assert (as_json["rows"], as_json["labels"], as_json["reviewed"]) == (90, 20, 2)


def test_a_line_that_a_crash_cut_off_is_told(out: Path) -> None:
    session = open_session(out)
    session.accept([30])
    session.accept([31])
    session.close()
    path = out / "reviews.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    shown = semigpc("review", out, "--export")
    assert (
        "The last line of reviews.jsonl was cut off by a crash; all others are intact."
        in shown.stderr
    )
    assert "\n1 of " in shown.stdout


def test_reviews_that_do_not_fit_are_refused(out: Path) -> None:
    (out / "reviews.jsonl").write_text("nonsense\n")
    refused("review", out, "--export", code=2, words="Line 1 of")


@pytest.mark.slow
def test_one_folder_is_reviewed_by_one_server_and_exported_meanwhile(out: Path) -> None:
    server = Server(out)
    try:
        assert server.address.startswith("http://127.0.0.1:")
        assert len(server.address.rstrip("/").rsplit("/", 1)[1]) >= 32, "the secret"
        holder = f"(process {server.process.pid} on "
        refused("review", out, "--no-browser", code=2, words=holder)
        refused(
            "label", out.parent / "data.parquet", "--out", out, "--overwrite", code=2, words=holder
        )
        assert semigpc("review", out, "--export").exit_code == 0
    finally:
        told, complaints = server.end(signal.SIGTERM)
    assert re.search(r"^0 of \d+ reviewed", told, re.MULTILINE)
    assert (server.process.returncode, complaints) == (0, "")
