"""``semigpc embed`` as a user sees it."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.cli.calls import check_paragraph, refused, semigpc, start, worked
from tests.data.samples import write_images

TINY = "--model test_resnet --pretrained none --image-size 32"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_images(tmp_path / "photos", {"b": 2, "a": 2}, size=(9, 9))
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))


def test_embed_writes_a_table_and_says_what_it_holds(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.parquet"
    done = worked("embed", photos, "--out", out, TINY)
    contents = "4 images, 96 numbers each (test_resnet, 32 px, float16)"
    assert done.stdout == f"wrote {out}: {contents}\n"
    assert done.stderr.startswith("embedding 4 images at 32 px with test_resnet on torch, about ")
    names = parquet.read_table(out).column("file_name").to_pylist()
    assert names == ["a/0.png", "a/1.png", "b/0.png", "b/1.png"]
    again = semigpc("embed", photos, "--out", out, TINY)
    assert again.stdout.startswith(f"{out} exists already: 4 images")


def test_embed_as_json_with_images_left_out(photos: Path, tmp_path: Path) -> None:
    for i in range(12):
        (photos / f"text{i:02d}.jpg").write_text("no image")
    out = tmp_path / "x.parquet"
    done = worked("embed", photos, "--out", out, TINY, "--skip-bad --json --precision float32")
    facts = json.loads(done.stdout)
    made = {"rows": 4, "made": 4, "network": "test_resnet", "precision": "float32"}
    assert facts | made == facts
    name, reason = facts["bad"][0]
    assert name == "text00.jpg"
    assert "is not one of BMP, GIF" in reason
    assert len(facts["bad"]) == 12
    assert f"skipped: text00.jpg: {reason}\n" in done.stderr
    assert f"skipped: 2 more, listed in {out}.bad.txt" in done.stderr


def test_embed_refuses_in_one_paragraph(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.parquet"
    refused("embed", photos, "--out", tmp_path / "x.csv", TINY, code=2, words=".parquet file")
    (tmp_path / "bad.safetensors").write_bytes(bytes(100))
    weights = ("--model test_resnet --image-size 32 --pretrained", tmp_path / "bad.safetensors")
    refused("embed", photos, "--out", out, *weights, code=2, words="is not a weight file")
    (photos / "text.jpg").write_text("no image")
    command = ("embed", photos, "--out", out, TINY)
    words = "1 of 5 images cannot be read (text.jpg: its content is not one of"
    refused(*command, code=1, words=words)
    worked(*command, "--skip-bad")
    refused(*command, "--skip-bad --precision float32", code=2, words="--overwrite")


COMMAND = "embed photos --out x.parquet --model test_resnet --pretrained none --image-size 96"


def interrupt_when_there_is(pattern: str, folder: Path) -> str:
    """Start, press Ctrl-C as soon as such a file is there, and answer with what was said."""
    process = start(COMMAND, cwd=folder)
    deadline = time.monotonic() + 300
    while not list(folder.glob(pattern)) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(folder.glob(pattern)), f"{pattern} never came to be"
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    check_paragraph(stderr, "embed", "interrupted; what was saved before is intact.")
    assert "run the same command to continue" in stderr
    assert not (folder / "x.parquet").exists()
    return stderr


@pytest.mark.nightly
def test_ctrl_c_is_quiet_at_any_time_and_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "photos", {"a": 1200}, size=(32, 32))
    interrupt_when_there_is("cache/embeddings/*/rows-*", tmp_path)
    monkeypatch.chdir(tmp_path)
    facts = json.loads(worked(COMMAND, "--json").stdout)
    assert facts["rows"] == 1200
    assert 0 < facts["made"] <= 1200 - 512
