"""Text from outside: what is a label and what stands for none; names on their way to a terminal or a spreadsheet."""

import re
import unicodedata
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # how a spreadsheet recognises something to compute
NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)  # computes nothing
APOSTROPHE = "'"
HIDDEN = ("Cc", "Cs", "Zl", "Zp")  # control characters, lone surrogates, separators of lines and paragraphs
DIRECTION = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # overrides and isolates reorder a line
NO_LABEL = re.compile(r"-1(\.0*)?|nan|", re.IGNORECASE)  # what stands for no label where labels are text


def label_text(value: Any) -> str | None:
    """The name of a class as text; None where the value stands for no label: one rule for tables, folders, pages and Python.

    No label are None, NaN, pandas.NA, -1 as a number or as text, the text "nan" in any case, and empty text. Spaces around a
    name do not count. Whole floats lose their fraction, since that is how integers with gaps are often stored.
    """
    try:
        if value is None or value != value:  # NaN is not equal to itself ...
            return None
    except TypeError:  # ... and pandas.NA will not say
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    return None if NO_LABEL.fullmatch(text) else text


def printable(text: object) -> str:
    """The text with control characters, direction overrides and lone surrogates shown as their escape codes.

    Joiners (U+200C, U+200D) stay, as several scripts and emoji are written with them.
    """
    return "".join(_code(letter) if _is_hidden(letter) else letter for letter in str(text))


def _is_hidden(letter: str) -> bool:
    return unicodedata.category(letter) in HIDDEN or letter in DIRECTION


def _code(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def spreadsheet_cell(text: str) -> str:
    """The text for a CSV file that people open in a spreadsheet: what looks like a formula gets an apostrophe in front.

    So does a text that begins with apostrophes and goes on like a formula, so that :func:`from_spreadsheet_cell` gives the
    text back. Numbers stay as they are.
    """
    return (APOSTROPHE if _is_formula(text) else "") + as_utf8(text)


def from_spreadsheet_cell(text: str) -> str:
    """The text that :func:`spreadsheet_cell` wrote."""
    return text[1:] if text.startswith(APOSTROPHE) and _is_formula(text) else text


def _is_formula(text: str) -> bool:
    bare = text.lstrip(APOSTROPHE)
    return bare.startswith(FORMULA) and not NUMBER.fullmatch(bare)


def as_utf8(text: str) -> str:
    """The text with a question mark for each byte of a file's name that is not UTF-8, so that any file can hold it."""
    return text.encode("utf-8", "replace").decode("utf-8")
