"""Text for terminals, spreadsheets and messages: safe to print, listed, the nearest known name."""

import difflib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # how formulas begin in a spreadsheet
NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)  # not a formula
APOSTROPHE = "'"
# Unicode categories: control characters, lone surrogates, separators of lines and paragraphs.
HIDDEN = ("Cc", "Cs", "Zl", "Zp")
# Overrides and isolates, which reorder a line.
DIRECTION = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: object) -> str:
    """Return the text with escape codes for what must not reach a terminal.

    These are control characters, direction overrides and lone surrogates. Joiners (U+200C, U+200D)
    stay, as several scripts and emoji are written with them.
    """
    return "".join(
        letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        if unicodedata.category(letter) in HIDDEN or letter in DIRECTION
        else letter
        for letter in str(text)
    )


def spreadsheet_cell(text: str) -> str:
    """Return the text for a CSV file that may be opened in a spreadsheet.

    A formula gets an apostrophe in front. So does text of apostrophes followed by a formula, so
    that :func:`from_spreadsheet_cell` returns the original text. Numbers stay as they are.
    """
    return (APOSTROPHE if _is_formula(text) else "") + as_utf8(text)


def from_spreadsheet_cell(text: str) -> str:
    """Return the text from which :func:`spreadsheet_cell` made a cell."""
    return text[1:] if text.startswith(APOSTROPHE) and _is_formula(text) else text


def _is_formula(text: str) -> bool:
    bare = text.lstrip(APOSTROPHE)
    return bare.startswith(FORMULA) and not NUMBER.fullmatch(bare)


def as_utf8(text: str) -> str:
    """Return the text with a question mark for each byte of a file's name that is not UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def similar_names(
    name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.5
) -> list[str]:
    """Return the known names most similar to ``name``, with a similarity of at least ``cutoff``."""
    return difflib.get_close_matches(name, list(known), n=most, cutoff=cutoff)


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name, with the most similar known one and then all."""
    names = sorted(known)
    similar = similar_names(name, names)
    hint = f" did you mean {similar[0]!r}?" if similar else ""
    return f"unknown {what} {name!r};{hint} Known: {', '.join(names)}."


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first few of some names, for a message."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def ordered(classes: Collection[str]) -> tuple[str, ...]:
    """Return class names sorted as numbers if all of them are integers, else as text."""
    if all(name.isdecimal() for name in classes):
        return tuple(sorted(classes, key=lambda name: (int(name), name)))
    return tuple(sorted(classes))


def nearly_equal(classes: Collection[str]) -> tuple[str, ...]:
    """Return a note on classes whose names differ only in case or spaces, if there are any."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in ordered(classes):
        groups["".join(name.split()).casefold()].append(name)
    alike = [" and ".join(map(repr, names)) for names in groups.values() if len(names) > 1]
    if not alike:
        return ()
    return (
        "Classes whose names differ only in case or spaces, and are different classes: "
        f"{'; '.join(alike)}. If they are one, give them one name.",
    )
