"""What a class may be called when somebody types its name."""

import unicodedata
from collections.abc import Collection

from semigpc.data import DataError
from semigpc.text import label_text, printable

LONGEST = 100


def checked_name(name: str, known: Collection[str]) -> str:
    """The name of a class as it is kept; one of the ``known`` ones stays as it is.

    Raises:
        DataError: it is empty, too long, has control characters or lone surrogates, means "no label" in a table, or differs
            from a known one in case alone.
    """
    if name in known:
        return name
    tidy = " ".join(unicodedata.normalize("NFC", name).split())
    if tidy in known:
        return tidy
    if not tidy or len(tidy) > LONGEST or printable(name.strip()) != name.strip():
        raise DataError(
            f"The name of a class is one line of 1 to {LONGEST} characters without control characters; got "
            f"{printable(name[: LONGEST + 1])!r}."
        )
    if label_text(tidy) is None:
        raise DataError(f"{tidy!r} stands for no label. Give the class another name.")
    alike = [other for other in known if other.casefold() == tidy.casefold()]
    if alike:
        raise DataError(f"There is a class {alike[0]!r} already, which differs from {tidy!r} in case alone. Choose that one.")
    return tidy
