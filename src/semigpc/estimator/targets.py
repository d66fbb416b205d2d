"""Reading y: which rows are labelled, and the classes they have."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from semigpc.text import label_text


class Targets(NamedTuple):
    """Labels of n rows: their codes (n,), -1 where there is none, and the classes (C,) that codes count in."""

    codes: NDArray[np.int64]
    classes: NDArray[Any]


def read_targets(y: Any, classes: NDArray[Any] | None = None) -> Targets:
    """Labels as people give them.

    Unlabelled rows are marked as :func:`semigpc.text.label_text` says: by -1, NaN, None or empty text. A sparse matrix of one
    column is its dense self; one of several columns is an indicator, whose rows without an entry are unlabelled.

    Args:
        y: (n,) or a sparse matrix of n rows.
        classes: (C,) sorted, if they are known already; labels that are not among them are added.
    """
    values = _dense(y)
    known = ~_missing(values)
    given = values[known]
    if values.dtype.kind == "O":
        given = _plain(given)
    if given.dtype.kind == "f" and len(given) and not np.isfinite(given).all():
        raise ValueError("y contains infinity; a label is a class, and NaN or -1 stand for none.")
    if len(given):
        check_classification_targets(given)
    if classes is not None and len(given) and (classes.dtype.kind in "OUST") != (given.dtype.kind in "OUST"):
        raise ValueError(f"labels must be of the kind of the classes, such as {classes[0]!r}; got {given.tolist()[0]!r}.")
    found = np.unique(given) if classes is None else np.unique(np.concatenate([np.asarray(classes), given]))
    codes = np.full(len(values), -1, dtype=np.int64)
    codes[known] = np.searchsorted(found, given)
    return Targets(codes, found)


def unlabeled_like(classes: NDArray[Any], count: int) -> NDArray[Any]:
    """(count,) of what stands for "no label" beside such classes: -1, NaN or None, in a type that can hold both."""
    kind = classes.dtype.kind
    if kind in "iu":
        return np.full(count, -1, dtype=np.result_type(classes.dtype, np.int8))
    if kind == "f":
        return np.full(count, np.nan, dtype=classes.dtype)
    return np.full(count, None, dtype=object)


def codes_of(wanted: Any, classes: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Codes (count,) of classes by name, one or as many as asked for."""
    names = np.broadcast_to(np.asarray(wanted), (count,))
    codes = np.searchsorted(classes, names).clip(0, len(classes) - 1)
    unknown = classes[codes] != names
    if unknown.any():
        raise ValueError(f"classes must be among classes_; {names[unknown].tolist()[0]!r} is not.")
    return codes.astype(np.int64)


def _dense(y: Any) -> NDArray[Any]:
    if sparse.issparse(y):
        if y.shape[1] == 1:
            return np.asarray(y.toarray()).ravel()
        matrix = y.tocsr()
        entries = np.asarray((matrix != 0).sum(axis=1)).ravel()
        if entries.max(initial=0) > 1:
            raise ValueError(
                f"a sparse y of several columns must have one entry a row at most; row {entries.argmax()} has more."
            )
        return np.where(entries == 1, np.asarray(matrix.argmax(axis=1)).ravel(), -1)
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    values = column_or_1d(y, warn=True, dtype=None) if not _is_plain_text(y) else np.asarray(y)
    return np.asarray(values)


def _is_plain_text(y: Any) -> bool:
    return isinstance(y, np.ndarray) and y.ndim == 1


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which entries are no label."""
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values) | (values == -1))
    if values.dtype.kind in "iu":
        return np.asarray(values == -1)
    if values.dtype.kind == "b":
        return np.zeros(len(values), dtype=bool)
    if values.dtype.kind == "O":
        return np.array([label_text(value) is None for value in values], dtype=bool)
    names, places = np.unique(values, return_inverse=True)
    return np.array([label_text(name) is None for name in names], dtype=bool)[places]


def _plain(given: NDArray[Any]) -> NDArray[Any]:
    """Objects of one kind as an array of that kind: text stays objects, so that None can stand beside it."""
    if all(isinstance(value, str) for value in given):
        return given
    if any(isinstance(value, str) for value in given):
        raise ValueError("labels must be all text or all numbers; got both. Turn the numbers into text first.")
    return np.array(given.tolist())
