"""Text: class labels, names for a terminal or a spreadsheet, messages for unknown names, formatted
numbers, versions.
"""

import difflib
import math
import platform
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # how formulas begin in a spreadsheet
NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)  # not a formula
APOSTROPHE = "'"
HIDDEN = (
    "Cc",
    "Cs",
    "Zl",
    "Zp",
)  # control characters, lone surrogates, separators of lines and paragraphs
DIRECTION = frozenset(
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)  # overrides and isolates reorder a line
PACKAGES = (
    "semigpc",
    "torch",
    "torchvision",
    "timm",
    "lightning-fabric",
    "numpy",
    "scikit-learn",
    "safetensors",
    "pyarrow",
)
MISSING = "not installed"  # in place of a version
CLASS_GROUPS = ("many", "medium", "few")  # thirds of the classes, by their number of labels
ABSENT = "\N{EN DASH}"
MINUS, PLUS_MINUS = "\N{MINUS SIGN}", "\N{PLUS-MINUS SIGN}"


def printable(text: object) -> str:
    """Return the text with control characters, direction overrides and lone surrogates as escape
    codes.

    Joiners (U+200C, U+200D) stay, as several scripts and emoji are written with them.
    """
    return "".join(
        letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        if unicodedata.category(letter) in HIDDEN or letter in DIRECTION
        else letter
        for letter in str(text)
    )


def spreadsheet_cell(text: str) -> str:
    """Return the text for a CSV file that may be opened in a spreadsheet: a formula gets an
    apostrophe in front.

    So does a text of apostrophes followed by a formula, so that :func:`from_spreadsheet_cell`
    returns the original text. Numbers stay as they are.
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
    """Return up to ``most`` known names whose similarity to ``name`` is at least ``cutoff``, the
    most similar first.
    """
    return difflib.get_close_matches(name, list(known), n=most, cutoff=cutoff)


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for a name that is not on a list: the most similar known name, then all of
    them.
    """
    names = sorted(known)
    similar = similar_names(name, names)
    hint = f" did you mean {similar[0]!r}?" if similar else ""
    return f"unknown {what} {name!r};{hint} Known: {', '.join(names)}."


def no_new_labels(needed: Mapping[str, int | None], *, most: int = 12) -> str:
    """Return a sentence on the classes that get no new label and how many labels each needs, None
    where that is not known.

    For example "No new labels for: heron, egret. Label 6 more of each."; nothing if there are no
    such classes.
    """
    if not needed:
        return ""
    names, numbers = list(needed), sorted({number for number in needed.values() if number})
    rest = f" and {len(names) - most} more classes" if len(names) > most else ""
    if not numbers:
        return f"No new labels for: {', '.join(names[:most])}{rest}. Label more of {'it' if len(names) == 1 else 'each'}."
    many = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"No new labels for: {', '.join(names[:most])}{rest}. Label {many} more{' of each' if len(names) > 1 else ''}."


def percent(share: float | None) -> str:
    """Write a share with one decimal, and a dash where there is none."""
    return ABSENT if share is None or not math.isfinite(share) else f"{100 * share:.1f}%"


def mean_and_spread(mean: float | None, std: float | None, n: int) -> tuple[str, str]:
    """Write a mean share and its deviation in percent, without the sign; one seed has no deviation."""
    spread = f"{PLUS_MINUS} {100 * std:.1f}" if std is not None and n > 1 else ""
    return (ABSENT, "") if mean is None else (f"{100 * mean:.1f}", spread)


def points(difference: float | None) -> str:
    """Write a difference of shares in percentage points, with its sign."""
    if difference is None or not math.isfinite(difference):
        return ABSENT
    written = f"{100 * difference:+.1f}"
    return "0.0" if float(written) == 0 else written.replace("-", MINUS)


def count(value: float | None) -> str:
    """Write a whole number with thousands set apart."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """Write a time in its two largest units."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def versions(*more: str) -> dict[str, str]:
    """Return the versions of Python, of the packages that figures depend on and of ``more``
    packages, by name.

    None of them is imported, so that a broken installation can be examined too.
    """
    installed = {"python": platform.python_version(), "platform": platform.platform()}
    for name in (*PACKAGES, *more):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            installed[name] = MISSING
    return installed


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first few of some names, for a message."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
