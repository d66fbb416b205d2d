import os
from pathlib import Path

import pytest

from semigpc.io.errors import DataError
from semigpc.review.journal import Change, Entry, History, ReviewJournal, now


def entry(step: int, name: str = "a", after: str | None = "cat", **more: object) -> Entry:
    return Entry(step, now(), "accept", (Change(name, "cat", after, "pseudo", 0.75),), **more)  # type: ignore[arg-type]


def write(path: Path, *entries: Entry) -> None:
    journal = ReviewJournal(path)
    for each in entries:
        journal.append(each)
    journal.close()


def test_what_was_appended_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "reviews.jsonl"
    entries = [
        entry(1, 'a "quoted" \u2028 name\n'),
        entry(2, "b", "tit"),
        entry(3, "c", "Schnäpel"),
    ]
    write(path, *entries)
    journal = ReviewJournal(path)
    assert journal.entries == entries
    assert journal.torn is None
    assert path.read_bytes().count(b"\n") == 3
    journal.close()


def test_a_last_line_that_was_cut_off_is_taken_out_and_told(tmp_path: Path) -> None:
    path = tmp_path / "reviews.jsonl"
    write(path, entry(1), entry(2, "b"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    reading = ReviewJournal(path, read_only=True)
    assert [each.step for each in reading.entries] == [1]
    assert path.read_bytes() == whole[:-20], "reading leaves the file as it is"
    journal = ReviewJournal(path)
    assert journal.torn is not None
    assert journal.torn.startswith('{"step": 2')
    journal.append(entry(2, "c"))
    journal.close()
    assert [each.changes[0].id for each in ReviewJournal(path, read_only=True).entries] == [
        "a",
        "c",
    ]


def test_a_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "reviews.jsonl"
    write(path, entry(1))
    path.write_bytes(path.read_bytes()[:-1])
    write(path, entry(2, "b"))
    assert [each.step for each in ReviewJournal(path, read_only=True).entries] == [1, 2]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{no json}\n", "Line 2"),
        (
            '{"step": 2, "time": "", "action": "praise", "changes": []}\n',
            "action must be .*'undo'; got \"praise\"",
        ),
        (
            '{"step": 2, "time": "", "action": "undo", "changes": []}\n',
            "undoes must be there for an undo",
        ),
        (
            '{"step": 2, "time": "", "action": "skip", "changes": [{"id": "a"}]}\n',
            r"changes\[0\]\.before is missing",
        ),
        ("\xff\n", "Line 2"),
        (
            entry(2, "b", "-1.0").line(),
            "after must name a class; got '-1.0', which stands for no label",
        ),
    ],
)
def test_a_line_that_cannot_be_understood_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "reviews.jsonl"
    write(path, entry(1))
    path.write_bytes(path.read_bytes() + line.encode("latin-1") + entry(3).line().encode())
    with pytest.raises(DataError, match=words) as caught:
        ReviewJournal(path)
    assert "move the file away" in str(caught.value)
    path.write_bytes(b"")
    ReviewJournal(path).close()


def test_the_file_can_be_read_while_another_appends(tmp_path: Path) -> None:
    path = tmp_path / "reviews.jsonl"
    first = ReviewJournal(path)
    first.append(entry(1))
    assert len(ReviewJournal(path, read_only=True).entries) == 1
    first.close()


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reviews.jsonl"
    journal = ReviewJournal(path)
    journal.append(entry(1))
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            journal.append(entry(2))
    assert path.read_bytes() == before
    assert len(journal.entries) == 1
    journal.append(entry(2, "b"))
    journal.close()
    assert len(ReviewJournal(path, read_only=True).entries) == 2


def test_ids_that_are_not_among_the_data_are_refused() -> None:
    with pytest.raises(DataError, match="about 'gone', which is not among the data"):
        History({"a": 0}).apply(entry(1, "gone"))


def test_an_undo_that_does_not_follow_is_refused() -> None:
    history = History({"a": 0, "b": 1})
    history.apply(entry(1))
    history.apply(entry(2, "b"))
    with pytest.raises(DataError, match="undoes step 1, which is not the last one"):
        history.apply(Entry(3, now(), "undo", (), 1))
