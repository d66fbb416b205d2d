"""Arrays of every type that NumPy has, in both byte orders."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LABELS = np.array([0, 1] * 6 + [-1] * 12)
ROWS = np.random.default_rng(0).integers(0, 20, (24, 3)) + 60 * (np.arange(24) % 2)[:, None]
IMAGES = np.random.default_rng(0).integers(0, 256, (24, 8, 8))
STRUCTURED = np.dtype([("a", "f4"), ("b", "i8")])
UNITS = {"M": ("Y", "D", "h", "ns", "as"), "m": ("Y", "D", "ns")}


def _all_types() -> dict[str, np.dtype[Any]]:
    types = [STRUCTURED, np.dtype("V8"), np.dtype("O"), np.dtype("U9"), np.dtype("S9")]
    for code in np.typecodes["All"]:
        if code in UNITS:
            types += [np.dtype(f"{code}8[{unit}]") for unit in UNITS[code]]
        elif code not in "VOUS":
            types.append(np.dtype(code))
    both = [*types, *(kind.newbyteorder(">") for kind in types)]
    return {str(kind): kind for kind in both}


TYPES = _all_types()


def of_type(values: NDArray[np.int64], name: str) -> NDArray[np.generic]:
    """Return the values in a type; zeros where it holds no numbers."""
    kind = TYPES[name]
    if kind.kind == "V":
        return np.zeros(values.shape, kind)
    with np.errstate(invalid="ignore"):
        return values.astype(kind)
