"""Names from outside, on their way to terminals and spreadsheets."""

import csv
import io
import random

import pytest

from semigpc.io.text import as_utf8, from_spreadsheet_cell, printable, spreadsheet_cell

PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain größe 猫 кот", "plain größe 猫 кот"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\nb\r\tc\x00\x7f", r"a\nb\r\tc\x00\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("right\u202eleft \u2066x\u2069", r"right\u202eleft \u2066x\u2069"),
        ("line\u2028paragraph\u2029", r"line\u2028paragraph\u2029"),
        ("latin\udce9", r"latin\udce9"),
        (PERSIAN, PERSIAN),
        ("\U0001f469\u200d\U0001f52c", "\U0001f469\u200d\U0001f52c"),  # one sign of two, joined
        (r"C:\new", r"C:\new"),
    ],
)
def test_control_characters_are_shown_as_codes_and_letters_stay(text: str, expected: str) -> None:
    assert printable(text) == expected
    assert printable(printable(text)) == expected


@pytest.mark.parametrize(
    "text",
    ["=cmd|' /C calc'!A0", "+1+1", "-x", "@SUM(1)", "\tx", "\rx", "\n=x", "'=x", "''-x", "-"],
)
def test_a_cell_that_looks_like_a_formula_is_quoted_and_comes_back(text: str) -> None:
    assert spreadsheet_cell(text) == f"'{text}"
    assert from_spreadsheet_cell(f"'{text}") == text


@pytest.mark.parametrize(
    "text",
    ["", "cat", "'quoted'", "'", "a=b", "-1", "+3.5", "-1e-7", "'-5", "[/b]", 'a,b"c', "5 - 3"],
)
def test_all_else_stays_as_it_is(text: str) -> None:
    assert spreadsheet_cell(text) == text
    assert from_spreadsheet_cell(text) == text


def test_any_text_comes_back_through_a_csv_file() -> None:
    rng = random.Random(0)
    texts = ["".join(rng.choices("'=+-@\t\r\n1e.,\"x é", k=rng.randrange(6))) for _ in range(2000)]
    file = io.StringIO(newline="")
    csv.writer(file).writerows([spreadsheet_cell(text), "end"] for text in texts)
    file.seek(0)
    assert [from_spreadsheet_cell(row[0]) for row in csv.reader(file)] == texts


def test_a_name_that_is_not_utf8_can_be_written() -> None:
    assert as_utf8("latin\udce9.png") == spreadsheet_cell("latin\udce9.png") == "latin?.png"
