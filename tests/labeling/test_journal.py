import os
from pathlib import Path

import pytest

from semigpc.io.errors import DataError
from semigpc.labeling.journal import Answer, Change, Entry, History, ReviewJournal, now


def entry(step: int, name: str = "a", after: str | None = "cat") -> Entry:
    return Entry(step, now(), "accept", (Change(name, "cat", after, "pseudo", 0.75),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reviews.jsonl"


def write(path: Path, *entries: Entry) -> None:
    journal = ReviewJournal(path)
    for each in entries:
        journal.append(each)
    journal.close()


def read(path: Path) -> list[Entry]:
    return ReviewJournal(path, read_only=True).entries


def test_what_was_appended_is_read_again_also_meanwhile(path: Path) -> None:
    entries = [
        entry(1, 'a "quoted" \u2028 name\n'),
        entry(2, "b", "tit"),
        entry(3, "c", "Schnäpel"),
    ]
    journal = ReviewJournal(path)
    for number, each in enumerate(entries, 1):
        journal.append(each)
        assert read(path) == entries[:number]
    journal.close()
    assert path.read_bytes().count(b"\n") == 3


def test_a_last_line_that_was_cut_off_is_removed_and_reported(path: Path) -> None:
    write(path, entry(1), entry(2, "b"))
    cut_off = path.read_bytes()[:-20]
    path.write_bytes(cut_off)
    assert [each.step for each in read(path)] == [1]
    assert path.read_bytes() == cut_off, "reading leaves the file as it is"
    journal = ReviewJournal(path)
    assert journal.torn is not None
    assert journal.torn.startswith('{"step": 2')
    journal.append(entry(2, "c"))
    journal.close()
    assert [each.changes[0].id for each in read(path)] == ["a", "c"]


def test_a_last_line_without_its_newline_is_kept(path: Path) -> None:
    write(path, entry(1))
    path.write_bytes(path.read_bytes()[:-1])
    write(path, entry(2, "b"))
    assert [each.step for each in read(path)] == [1, 2]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{no json}\n", "Line 2"),
        ("\xff\n", "Line 2"),
        ('{"step": 2, "time": "", "action": "praise", "changes": []}\n', 'action .* "praise"'),
        ('{"step": 2, "time": "", "action": "undo", "changes": []}\n', "undoes"),
        (
            '{"step": 2, "time": "", "action": "skip", "changes": [{"id": "a"}]}\n',
            r"changes\[0\]\.before is missing",
        ),
        (entry(2, "b", "tit").line().replace("tit", r"\ud800"), r"UTF-8, which has no \\ud800"),
        (entry(2, "b", "-1.0").line(), r"changes\[0\]\.after .* '-1.0'"),
    ],
)
def test_an_invalid_line_is_named(path: Path, line: str, words: str) -> None:
    write(path, entry(1))
    path.write_bytes(path.read_bytes() + line.encode("latin-1") + entry(3).line().encode())
    with pytest.raises(DataError, match=words) as caught:
        ReviewJournal(path)
    assert "move the file away" in str(caught.value)
    path.write_bytes(b"")
    ReviewJournal(path).close()


def test_a_full_disk_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert len(read(path)) == 2


def test_lines_that_do_not_fit_the_data_or_each_other_are_rejected() -> None:
    history = History({"a": 0, "b": 1})
    with pytest.raises(DataError, match="'gone'"):
        history.apply(entry(1, "gone"))
    history.apply(entry(1))
    history.apply(entry(2, "b"))
    with pytest.raises(DataError, match="undoes step 1"):
        history.apply(Entry(3, now(), "undo", (), 1))
    with pytest.raises(DataError, match="comes after step 2"):
        history.apply(entry(2))


def test_an_answer_shows_whether_the_reviewer_agreed() -> None:
    assert Answer("a", "a", "pseudo").kind == "accepted"
    assert Answer("b", "a", "pseudo").kind == "corrected"
    assert Answer(None, "a", "pseudo").kind == "skipped"
