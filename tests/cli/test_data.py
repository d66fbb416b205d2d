"""``semigpc data``: the table and its exit code, JSON, and downloads."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from semigpc.data.cifar import ARCHIVES, Archive
from tests.cli.calls import semigpc, words_of, worked
from tests.paper.fgvc_samples import PUBLISHED, needs_published, write_made_up_set


def refused(*arguments: str | Path, words: str) -> str:
    """In one paragraph on standard error, as a mistake of the user's."""
    done = semigpc("data", *arguments)
    assert done.exit_code == 2, done.output
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"semigpc data {words_of(*arguments)[0]}: "), done.stderr
    assert words in last
    assert "Traceback" not in done.stderr
    return last


# verify -------------------------------------------------------------------------------------------


@needs_published
@pytest.mark.parametrize(
    ("name", "row", "sentence"),
    [
        ("semi_aves", "test: images 8000 8000 8000 ok", "Everything found is as published."),
        (
            "semi_fungi",
            "gamma over L_in + U_in 354/35 = 10.11 354/35 = 10.11 10.1 ok",
            "as published; absent: 2.",
        ),
        (
            "cub",
            "u_train_in: images 3885 3885 3853 paper is wrong",
            "11788 images of CUB-200-2011.",
        ),
    ],
)
def test_the_published_files_agree(name: str, row: str, sentence: str) -> None:
    done = worked("data verify", name, PUBLISHED)
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "what found expected paper says verdict" in rows
    assert row in rows
    assert sentence in done.stdout
    assert "differs" not in done.stdout


def test_what_differs_is_told_with_exit_code_1(tmp_path: Path) -> None:
    folder = write_made_up_set(tmp_path)
    for name in ("001.Bird_1/test 1.jpg", "199.Bird_199/test 0.jpg"):
        (folder / "images" / name).unlink()
        (folder / "images" / name).write_bytes(b"no image")
    done = semigpc("data verify cub", tmp_path, "--images decode")
    assert done.exit_code == 1, done.output
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "images that decode 405 407 - differs" in rows
    assert "test: images on disk 200 200 - ok" in rows
    assert done.stdout.count("cannot be read: its content is not one of") == 2
    assert "figures differ or are missing" in done.stdout
    (folder / "test.txt").unlink()
    done = semigpc("data verify cub", tmp_path)
    assert done.exit_code == 1
    assert "absent, needed" in done.stdout


def test_split_files_elsewhere(tmp_path: Path) -> None:
    folder = write_made_up_set(tmp_path / "lists")
    (tmp_path / "images" / "cub").mkdir(parents=True)
    (folder / "images").rename(tmp_path / "images" / "cub" / "images")
    splits = ("--splits", tmp_path / "lists", "--images exist --json")
    told = json.loads(semigpc("data verify cub", tmp_path / "images", *splits).stdout)
    verdicts = {finding["what"]: finding["verdict"] for finding in told["findings"]}
    assert verdicts["u_train_in: images on disk"] == "ok"


def test_wrong_paths_and_names_are_refused(tmp_path: Path) -> None:
    refused("verify semi_aves", tmp_path, words=f"looked for {tmp_path / 'semi_aves'} and")
    refused("verify cifar10", tmp_path, words="CIFAR-10 is not in")
    assert semigpc("data verify semi_aves", tmp_path / "nowhere").exit_code == 2
    assert semigpc("data verify cifar10", tmp_path, "--splits", tmp_path).exit_code == 2
    unknown = semigpc("data verify semi_birds", tmp_path)
    assert unknown.exit_code == 2
    assert "semi_aves" in unknown.stderr


# download -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("semi_aves", "the in-class unlabelled images (2.3 GB)"),
        ("semi_fungi", "fungi_train_val.tgz (13 GB, md5 df2b2980835668ed1d9a0e286e4bdadd)"),
        ("semi_inat", "u_train.tar.gz (5.2 GB)"),
        ("cub", "CUB_200_2011.tgz (md5 97eceeb196236b17998738112f37df78)"),
    ],
)
def test_sets_that_have_to_be_fetched_by_hand_come_with_instructions(
    tmp_path: Path, name: str, words: str
) -> None:
    told = refused("download", name, tmp_path, words=words)
    assert f"{tmp_path / name}" in told
    assert f"https://github.com/cvl-umass/ssl-evaluation, folder data/{name}" in told
    assert told.endswith(f"semigpc data verify {name} {tmp_path}")


def test_cifar_is_fetched_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "served.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        entry = tarfile.TarInfo("cifar-10-batches-bin/readme.html")
        entry.size = 5
        tar.addfile(entry, io.BytesIO(b"hello"))
    content = packed.read_bytes()
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    names = ("cifar-10-binary.tar.gz", "cifar-10-batches-bin")
    source = Archive(packed.as_uri(), names[0], digest, len(content), names[1])
    monkeypatch.setitem(ARCHIVES, "cifar10", source)
    done = worked("data download cifar10", tmp_path / "data")
    unpacked = tmp_path / "data" / "cifar10" / "cifar-10-batches-bin"
    assert done.stdout.strip() == f"cifar10 is in {unpacked}"
    assert (unpacked / "readme.html").read_text() == "hello"
    again = worked("data download cifar10", tmp_path / "data")
    assert "exists. To check it" in again.stdout
