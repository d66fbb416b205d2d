"""Files written whole or not at all, locks between processes, hashes that show damage, JSON."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.io.atomic import (
    RELAXED,
    Count,
    PathText,
    Sha256,
    Share,
    altered,
    facts_of,
    is_sealed,
    locked,
    read_json,
    remove_drafts,
    replacing,
    sealed,
    write_json,
    write_text,
    writing,
)
from semigpc.io.errors import InUseError, WriteError

HOLDS = """
import sys, time
from pathlib import Path
from semigpc.io.atomic import locked
with locked(Path(sys.argv[1]), *sys.argv[2:]):
    print("held", flush=True)
    time.sleep(600)
"""


def holder(*arguments: object) -> subprocess.Popen[str]:
    """A process that holds a lock."""
    command = [sys.executable, "-c", HOLDS, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


# Writing ------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), replacing(path) as draft:
        draft.write_text(str(1 / (draft.write_text("half") - 4)))
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_a_full_disk_is_told_with_path_and_way_out_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_text(path, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # Python ignores the signal: writing is an error
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(WriteError, match=r"table\.csv.*written: .*not modified.*another place"):
            write_text(path, "x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]


def test_an_error_of_something_that_was_read_meanwhile_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "a.txt"):
        (tmp_path / "elsewhere" / "missing").read_text()


def test_a_draft_that_was_never_written_is_an_error_and_not_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(WriteError, match=r"a\.txt could not be written"), replacing(path):
        pass
    assert not path.exists()


def test_a_folder_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    for place in (tmp_path, Path(os.devnull)):
        with pytest.raises(WriteError, match=r"could not be written: it is a (folder|pipe, a)"):
            write_text(place, "text")


def test_a_link_keeps_pointing_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_names_that_are_not_utf8_survive_in_json(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    write_json(tmp_path / "names.json", [name, "café"])
    assert json.loads((tmp_path / "names.json").read_text(encoding="utf-8")) == [name, "café"]


def test_long_names_have_drafts_too(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 120 + ".csv")  # 244 bytes of 255
    write_text(path, "text")
    assert path.read_text() == "text"


def test_only_drafts_are_removed(tmp_path: Path) -> None:
    others = (".semigpc.lock", ".hidden", ".a.csv.part")
    for name in others:
        (tmp_path / name).write_text("")
    with replacing(tmp_path / "a.csv") as draft, replacing(tmp_path / "b.csv") as other:
        draft.write_text("")
        other.write_text("")
        remove_drafts(tmp_path, "b.csv")
        assert (draft.exists(), other.exists()) == (True, False)
        other.write_text("")
    with replacing(tmp_path / "a.csv") as draft:
        draft.write_text("")
        remove_drafts(tmp_path)
        assert not draft.exists()
        draft.write_text("")
    assert {file.name for file in tmp_path.iterdir()} == {*others, "a.csv", "b.csv"}


def test_all_files_can_be_read_by_those_who_may(tmp_path: Path) -> None:
    """Whatever the library that writes them thinks of it: colleagues share run folders."""
    with replacing(tmp_path / "model.safetensors") as draft:
        draft.write_bytes(b"")
        draft.chmod(0o600)
    (tmp_path / "usual").write_text("")
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("number", [28, 30, 13, 17, 20, 36])
def test_it_is_known_whether_the_same_call_may_succeed_later(tmp_path: Path, number: int) -> None:
    words = "The previous file was not modified"
    with pytest.raises(WriteError, match=words) as caught, writing(tmp_path / "a"):
        raise OSError(number, "said by a library, with the name of a draft")
    assert caught.value.passing is (number in (28, 30, 13))
    assert "draft" not in str(caught.value)


# Locking ------------------------------------------------------------------------------------------


def test_a_second_process_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    process = holder(tmp_path / "run")
    try:
        words = rf"run is in use by -c \S+ \(process {process.pid} on .*, since 2"
        with pytest.raises(InUseError, match=words), locked(tmp_path / "run"):
            pytest.fail("two processes hold one lock")
        with locked(tmp_path / "other"):
            pass
    finally:
        end(process)


def test_the_lock_of_a_process_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    end(holder(tmp_path))
    assert list(tmp_path.iterdir())  # its lock file is still there
    with locked(tmp_path):
        pass


UNGUARDED = """
import multiprocessing
from pathlib import Path
from semigpc.io.atomic import locked

with locked(Path("out")):
    worker = multiprocessing.get_context("spawn").Process(target=print)
    worker.start()
    worker.join()
"""


def test_a_worker_that_runs_the_script_again_says_how_to_write_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Put what it does below: if __name__ == '__main__':" in done.stderr


FORKS = """
import os, sys, time
from pathlib import Path
from semigpc.io.atomic import locked
with locked(Path(sys.argv[1])):
    if not os.fork():
        print(os.getpid(), flush=True)  # what happens in a child at a fork is done by now
    time.sleep(600)
"""


def test_a_child_that_outlives_the_process_does_not_hold_its_lock(tmp_path: Path) -> None:
    """Loading workers are forks, which the operating system would otherwise count as holders."""
    command = [sys.executable, "-c", FORKS, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        with locked(tmp_path):
            os.kill(child, 0)  # it is still there
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_one_file_of_a_folder_can_be_locked_alone(tmp_path: Path) -> None:
    process = holder(tmp_path, "a.parquet")
    try:
        words = r"a\.parquet is in use"
        with pytest.raises(InUseError, match=words), locked(tmp_path, "a.parquet"):
            pass
        with locked(tmp_path, "b.parquet"), locked(tmp_path):
            pass
    finally:
        end(process)


def test_a_process_may_wait_for_another(tmp_path: Path) -> None:
    process, messages = holder(tmp_path), []

    def waiting(message: str) -> None:
        messages.append(message)
        end(process)

    with locked(tmp_path, waiting=waiting):
        pass
    assert len(messages) == 1
    assert str(process.pid) in messages[0]


def test_nothing_is_left_of_a_lock(tmp_path: Path) -> None:
    with locked(tmp_path / "made" / "for it"):
        assert list((tmp_path / "made" / "for it").iterdir())
    assert not (tmp_path / "made" / "for it").exists()
    with locked(tmp_path / "used"):
        (tmp_path / "used" / "file").write_text("")
    assert [file.name for file in (tmp_path / "used").iterdir()] == ["file"]


COUNTS = """
import sys, time
from pathlib import Path
from semigpc.io.atomic import locked
path = Path(sys.argv[1])
for _ in range(40):
    with locked(path, waiting=lambda message: None):
        count = int((path / "count").read_text())
        time.sleep(0.001)
        (path / "count").write_text(str(count + 1))
"""


def test_processes_that_take_turns_never_overlap(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNTS, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "120"


def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="file system without locks"), locked(tmp_path):
        pass


# Verifying ----------------------------------------------------------------------------------------


def test_every_change_of_a_file_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(256)))
    (tmp_path / "b").write_text("same")
    facts = facts_of(tmp_path, ["a", "b", "missing"])
    assert sorted(facts) == ["a", "b"]
    os.utime(tmp_path / "a", (1, 1))  # times do not matter
    assert altered(tmp_path, json.loads(json.dumps(facts))) == []
    content = bytearray(range(256))
    content[17] ^= 1
    (tmp_path / "a").write_bytes(content)
    assert altered(tmp_path, facts) == ["a"]
    (tmp_path / "b").unlink()
    assert altered(tmp_path, facts) == ["a", "b"]
    assert altered(tmp_path, {"a": {"bytes": "many"}}) == ["a"]


def test_values_that_were_sealed_are_known(tmp_path: Path) -> None:
    values = sealed({"accuracy": 0.0775, "names": ["é"], "none": None})
    write_json(tmp_path / "summary.json", values)
    values = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert is_sealed(values)
    assert not is_sealed(values | {"accuracy": 0.8775})
    assert not is_sealed({"accuracy": 0.0775})


# Reading JSON -------------------------------------------------------------------------------------


class Inner(TypedDict):
    share: Share
    names: list[str]


@with_config(RELAXED)
class Outer(TypedDict):
    rows: Count
    hash: Sha256
    path: PathText | None
    inner: Inner


HASH = "ab" * 32
REST = '"path": null, "inner": {"share": 1, "names": ["a"]}, "more": {}'
GOOD = f'{{"rows": 3, "hash": "{HASH}", {REST}}}'


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
