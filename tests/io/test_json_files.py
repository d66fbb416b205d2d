"""Reading JSON returns the content, or an error with file, key, value and remedy."""

import os
from pathlib import Path

import pytest
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.io.atomic import RELAXED, Count, PathText, Sha256, Share, read_json


class Inner(TypedDict):
    share: Share
    names: list[str]


@with_config(RELAXED)
class Outer(TypedDict):
    rows: Count
    hash: Sha256
    path: PathText | None
    inner: Inner


GOOD = (
    '{"rows": 3, "hash": "%s", "path": null, "inner": {"share": 1, "names": ["a"]}, "more": {}}'
    % ("ab" * 32)
)


class OwnError(Exception):
    """What a caller raises."""


def read(path: Path) -> Outer:
    def check(found: Outer) -> None:
        if found["rows"] > 5:
            raise ValueError(f"rows must be at most 5; got {found['rows']}")

    return read_json(path, Outer, error=OwnError, remedy="Write it again.", check=check)


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n  "])
def test_what_is_right_is_read(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "own.json"
    path.write_bytes(before + GOOD.encode())
    assert read(path)["inner"] == {"share": 1.0, "names": ["a"]}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("3", "-1", r"rows must be greater than or equal to 0; got -1"),
        ("3", "9", r"rows must be at most 5; got 9"),
        ("3", "true", r"rows must be a valid integer; got true"),
        ("3", '"3"', r'rows must be a valid integer; got "3"'),
        ("3", "3.5", r"rows must be a valid integer; got 3\.5"),
        ("3", "1" * 30, r"rows must be less than 9007199254740992; got 1{30}"),
        ("3", "1" * 5000, r"it is not JSON"),
        ('"rows": 3', '"row": 3', r"rows is missing"),
        ('"rows": 3', '"rows": 3, "rows": 4', r"it has the key 'rows' more than once"),
        ("abab", "xyxy", r"hash must match pattern .*; got \"xyxy"),
        ("null", '""', r"path must have at least 1 character; got \"\""),
        ("null", '"\\u0000"', r"path must match pattern"),
        ('"share": 1', '"share": NaN', r"inner\.share must be"),
        ('"share": 1', '"share": 1e999', r"inner\.share must be"),
        ('["a"]', '["a", 1]', r"inner\.names\[1\] must be a valid string; got 1"),
        ('["a"]', "{}", r"inner\.names must be a valid list; got \{\}"),
        (GOOD, "[]", r"the content must be a valid dictionary; got \[\]"),
        (GOOD, GOOD[:40], r"it is not JSON"),
        (GOOD, " ", r"it is empty"),
        (GOOD, "[" * 100_000, r"it is nested too deeply"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "own.json"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    message = rf"^{path} cannot be (used|read): {words}.*\. Write it again\.$"
    with pytest.raises(OwnError, match=message) as caught:
        read(path)
    assert len(str(caught.value)) < len(str(path)) + 250


@pytest.mark.parametrize("kind", ["bytes", "folder", "pipe", "missing", "locked"])
def test_what_is_no_text_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "own.json"
    if kind == "missing":
        with pytest.raises(FileNotFoundError):
            read(path)
        return
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b'{"rows": "\xff"}')
    if kind == "locked":
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("nothing is locked for this user")
    with pytest.raises(OwnError, match=rf"^{path} cannot be read: .*\. Write it again\.$"):
        read(path)
