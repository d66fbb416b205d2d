"""Text from outside (names of classes, files and columns) on its way to a terminal or a spreadsheet."""

import unicodedata

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # how a spreadsheet recognises something to compute


def printable(text: object) -> str:
    """The text without control characters, direction marks and lone surrogates, each shown as its escape code."""
    return "".join(
        _code(letter) if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") else letter for letter in str(text)
    )


def _code(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def spreadsheet_cell(text: str) -> str:
    """The text for a CSV file that people open in a spreadsheet: what looks like a formula gets an apostrophe in front."""
    return f"'{text}" if text.startswith(FORMULA) else text
