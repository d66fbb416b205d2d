"""Tables of labels (CSV or Parquet; ``file_name`` and ``label``) and of embeddings (Parquet;
``file_name`` and ``embedding``).
"""

import csv
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from semigpc.io.atomic import replacing, trouble
from semigpc.io.errors import DataError
from semigpc.io.paths import Bad, checked
from semigpc.io.text import from_spreadsheet_cell, listed, printable

if TYPE_CHECKING:
    import numpy as np
    import pandas
    import pyarrow
    from numpy.typing import NDArray

COLUMNS = ("file_name", "label")
SUFFIXES = (".csv", ".parquet")
METADATA = b"semigpc"  # key of our facts in the metadata of a Parquet file
NO_LABEL = re.compile(r"-1(\.0*)?|nan|", re.IGNORECASE)  # text that counts as no label
WHOLE = re.compile(r"(0|-?[1-9][0-9]*)\.0*")  # a whole number, written as a float
LONGEST_LABEL = 1000  # characters; a longer text is not a name but another column
# In a unit of Arrow's dates and times.
SECONDS = {"date32[day]": 86400.0, "date64[ms]": 1e-3, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
FARTHEST_DATE = 9.5e11  # seconds before or after 1970 that Arrow can write; its years have 16 bits
# Errors of values that Python cannot represent: dates, and time zones.
NOT_IN_PYTHON = (OverflowError, LookupError)

# Tables that semigpc writes are known by their columns, also after others were added.
LABELS_COLUMNS = frozenset(("label", "confidence", "variance", "status"))  # labels.*, reviewed.*
PREDICTIONS_COLUMNS = frozenset(("label", "confidence", "second", "second_confidence"))
SAMPLE_COLUMNS = frozenset(("label", "confidence", "stratum", "inclusion"))  # audit.csv
GUESSED = frozenset(("label", "guess", "second"))  # their columns of classes
STATUS = "status"
BY_PEOPLE = frozenset(("labelled", "reviewed"))  # statuses of labels that people gave
PSEUDO = "pseudo"
TRUTH = "truth"  # column of audit.csv that people fill in: with a class, or one of these words
RIGHT = frozenset(("y", "yes", "correct", "right", "true", "ok"))
WRONG = frozenset(("n", "no", "wrong", "false"))
CHOSEN = "chosen"  # column that says whether semigpc chose the row to be labelled ...
YES = "yes"  # ... in this word

# Selects the columns to read, given those of a file.
Choose = Callable[[Sequence[str], Path], tuple[str, ...]]


def label_text(value: Any) -> str | None:
    """Return the name of a class as text, or None for no label: the rule for all sources.

    None, NaN, pandas.NA, -1 as a number or as text, the text "nan" in any case, and empty text mean
    no label. Spaces around a name are removed. 3.0 becomes "3", as a number and as text, since
    columns of integers with gaps are often stored as floats; "03" stays as it is.
    """
    try:
        if value is None or value != value:  # NaN is not equal to itself ...
            return None
    except TypeError:  # ... and pandas.NA has no truth value
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    if NO_LABEL.fullmatch(text):
        return None
    whole = WHOLE.fullmatch(text)
    return whole[1] if whole else text


def is_table(path: Path) -> bool:
    """Return whether a path ends like a table."""
    return path.suffix.lower() in SUFFIXES


class LabelTable(NamedTuple):
    """The label of each name in a table, None where it has none, in its order; notes for users.

    ``chosen`` are the names that semigpc chose to be labelled, so that they are no random sample.
    """

    labels: dict[str, str | None]
    notes: tuple[str, ...]
    chosen: frozenset[str] = frozenset()

    @property
    def given(self) -> dict[str, str]:
        """Return the labels of the names that have one."""
        return {name: label for name, label in self.labels.items() if label is not None}


def read_labels(path: Path, *, trust_pseudo: bool = False) -> LabelTable:
    """Return the class of each file in a table; see :func:`read_label_rows`."""
    table = read_label_rows(path, _check_columns, path_below, trust_pseudo=trust_pseudo)
    if not table.labels:
        raise DataError(
            f"{path} lists no images. It needs one row for each, with the columns "
            f"{' and '.join(COLUMNS)}."
        )
    return table


def read_label_rows(
    path: Path,
    choose: Choose,
    name_of: Callable[[Any, int, Path], str],
    *,
    trust_pseudo: bool = False,
) -> LabelTable:
    """Return the label of each name in a table.

    :func:`label_text` defines what counts as no label. A row may be repeated, but not with another
    label. In a table that semigpc wrote, only labels that people gave count: those with a status of
    BY_PEOPLE, or answers of an audit. Guesses are left out, and a note says how many.

    Args:
        path: of the table. choose: selects the columns of names and labels.
        name_of: returns a name, given its cell, the number of its row and the path.
        trust_pseudo: also take labels with the status "pseudo", and those of ``semigpc predict``.

    Raises:
        DataError: it cannot be read, a name has two labels, or all labels are guesses.
    """
    labels: dict[str, str | None] = {}
    chosen: set[str] = set()
    conflicts: dict[str, set[str]] = {}
    trusted = BY_PEOPLE | {PSEUDO} if trust_pseudo else BY_PEOPLE
    left_out = 0
    found: list[str] = []  # columns besides name and label

    def columns(names: Sequence[str], where: Path) -> tuple[str, ...]:
        selected = _with_status(names, where, choose, trust_pseudo)
        selected += (CHOSEN,) if CHOSEN in names and CHOSEN not in selected else ()
        found[:] = selected[2:]
        return selected

    for number, (cell, value, *others) in enumerate(read_columns(path, columns), start=1):
        name = name_of(cell, number, path)
        guess = as_label(value, path)
        about = dict(zip(found, map(label_text, others), strict=True))
        label = _by_people(guess, about, trusted)
        left_out += guess is not None and label is None
        if about.get(CHOSEN) == YES:
            chosen.add(name)
        if labels.setdefault(name, label) != label:
            conflicts.setdefault(name, {labels[name] or "no label"}).add(label or "no label")
    if conflicts:
        raise _different_labels(path, conflicts)
    if left_out and not any(labels.values()):
        raise _only_guesses(path)
    note = f"Labels of {path.name} that were left out, since they are guesses of semigpc:"
    return LabelTable(labels, (f"{note} {left_out}.",) if left_out else (), frozenset(chosen))


def _different_labels(path: Path, conflicts: Mapping[str, set[str]]) -> DataError:
    first, different = next(iter(conflicts.items()))
    return DataError(
        f"{path} has different labels for {len(conflicts)} of its ids: {first!r} is "
        f"{' and '.join(sorted(different))}. Keep one row for each id."
    )


def _by_people(
    label: str | None, about: Mapping[str, str | None], trusted: Collection[str]
) -> str | None:
    """Return the label of a row if somebody gave it, or the class that an audit found.

    Args:
        about: what other columns say of the row. trusted: statuses of labels to take.
    """
    if STATUS in about:
        # Predictions of a run have no status, and are trusted where new labels are.
        return label if (about[STATUS] or PSEUDO) in trusted else None
    if TRUTH not in about:
        return label
    truth = about[TRUTH]
    if truth is None or truth.casefold() in WRONG:
        return None
    return label if truth.casefold() in RIGHT else truth


def _with_status(
    names: Sequence[str], path: Path, choose: Choose, trust_pseudo: bool
) -> tuple[str, ...]:
    """Return the columns to read, with that of the status in a table of semigpc's own labels."""
    predicted = set(names) >= PREDICTIONS_COLUMNS and STATUS not in names
    if predicted and not trust_pseudo:  # which need not have ids for us
        raise _only_guesses(path)
    chosen = choose(names, path)
    if chosen[1] not in GUESSED:
        return chosen
    if set(names) >= SAMPLE_COLUMNS and not trust_pseudo:
        if TRUTH not in names:
            raise _only_guesses(path)
        return (*chosen, TRUTH)
    return (*chosen, STATUS) if set(names) >= LABELS_COLUMNS else chosen


def _only_guesses(path: Path) -> DataError:
    return DataError(
        f"{path} was written by semigpc, and its labels are guesses: no person gave them. Give the "
        "labels that the guesses were made from, check them with semigpc review, or use them as "
        "they are with trust_pseudo=True."
    )


def read_columns(path: Path, choose: Choose) -> Iterator[tuple[Any, ...]]:
    """Yield some columns of a CSV or Parquet file, row by row, as they are written there."""
    checked(path)
    if path.suffix.lower() == ".parquet":
        return _parquet_rows(path, choose)
    return _csv_rows(path, choose)


def _csv_rows(path: Path, choose: Choose) -> Iterator[tuple[Any, ...]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = [from_spreadsheet_cell(name) for name in reader.fieldnames or []]
            columns = choose(reader.fieldnames, path)
            for row in reader:
                cells = (row[name] for name in columns)
                yield tuple(cell and from_spreadsheet_cell(cell) for cell in cells)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read as CSV: {error}. Save it as comma-separated UTF-8 text."
        ) from error


def _parquet_rows(path: Path, choose: Choose) -> Iterator[tuple[Any, ...]]:
    from pyarrow import parquet  # takes a third of a second, and most data have no Parquet file

    with _readable(path, "Write it again, or save it as CSV."):
        columns = choose(parquet.read_schema(path).names, path)
        table = parquet.read_table(
            path, columns=list(columns), partitioning=None, page_checksum_verification=True
        )
        # Before any value is read: damaged offsets point outside of the buffers.
        table.validate(full=True)
        values = [plain_values(table.column(name)) for name in columns]
    yield from zip(*values, strict=True)


def plain_values(column: "pyarrow.Array | pyarrow.ChunkedArray") -> list[Any]:
    """Return the values of a column; dates and times as text.

    Python's have neither nanoseconds nor the year 10000.

    Raises:
        ValueError: a date is beyond FARTHEST_DATE.
    """
    import pyarrow
    from pyarrow import compute, types

    kind = column.type
    if types.is_date(kind) or types.is_timestamp(kind):
        unit = str(kind.unit) if types.is_timestamp(kind) else str(kind)
        number = pyarrow.int32() if types.is_date32(kind) else pyarrow.int64()
        extremes = compute.min_max(compute.cast(column, number)).as_py().values()
        if any(abs(value or 0) * SECONDS[unit] > FARTHEST_DATE for value in extremes):
            raise ValueError("a date is out of range, the years -28 000 to 32 000")
    if types.is_temporal(kind):
        column = compute.cast(column, pyarrow.string())
    values: list[Any] = column.to_pylist()
    return values


@contextmanager
def _readable(path: Path, remedy: str) -> Iterator[None]:
    """Turn an error of reading a Parquet file into a DataError that names it."""
    import pyarrow

    try:
        yield
    except DataError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, *NOT_IN_PYTHON) as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise DataError(f"{path} cannot be read as Parquet: {reason}. {remedy}") from error


def _check_columns(columns: Sequence[str], path: Path) -> tuple[str, str]:
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise DataError(
            f"{path} must have the columns {' and '.join(COLUMNS)}; it has "
            f"{listed(columns) or 'none'}, not {listed(missing)}. Rename the columns, and separate "
            "them by commas if the file is CSV."
        )
    return COLUMNS


def path_below(value: Any, number: int, path: Path) -> str:
    """Return the file's path below the root, always with forward slashes."""
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"Row {number} of {path} has no file_name. Fill it in, or delete the row.")
    name = PurePosixPath(value.strip())
    if name.is_absolute():
        raise DataError(
            f"Row {number} of {path} has the absolute path {value}; a file_name must be relative "
            "to the root of the images, so that the data mean the same on another machine."
        )
    if ".." in name.parts:
        raise DataError(
            f"Row {number} of {path} has the path {value}, which leads out of the root of the "
            "images. Move the file into it."
        )
    return str(name)


def as_label(value: Any, where: object = "a table of labels") -> str | None:
    """Return the class in a cell, or None; see :func:`label_text`.

    Raises:
        DataError: it is a list, or too long for the name of a class.
    """
    if isinstance(value, list | dict):
        raise DataError(
            f"A label in {where} is a list, {printable(str(value)[:40])}, and a row has one class. "
            "Name another column of labels."
        )
    label = label_text(value)
    if label is not None and len(label) > LONGEST_LABEL:
        raise DataError(
            f"A label in {where} has {len(label)} characters, and {LONGEST_LABEL} is the most: it "
            f"begins with {printable(label[:40])!r}. Shorten it, or name another column of labels."
        )
    return label


def data_frame(columns: Mapping[str, Any]) -> "pandas.DataFrame":
    """Return columns (n,) as a DataFrame of pandas, which is no dependency of semigpc.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("A DataFrame needs pandas: pip install pandas.") from error
    return pandas.DataFrame(dict(columns))


# Embeddings ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableKey:
    """What embeddings depend on besides the images.

    Args:
        network: its name. weights: a hash of them.
        image_size: pixels a side. precision: float16 or float32. width: D.
    """

    network: str
    weights: str
    image_size: int
    precision: str
    width: int

    def difference(self, facts: Mapping[str, Any]) -> str | None:
        """Return how the facts of a file differ, for a message; None if they do not."""
        for name, value in asdict(self).items():
            if facts.get(name) != value:
                return f"its {name} is {facts.get(name)!r} and not {value!r}"
        return None


class EmbeddingTable:
    """A table of embeddings, which has its name only when it is complete.

    The metadata of the file hold the key, a hash of the images and the images that were left out.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() != ".parquet":
            raise DataError(f"Embeddings are written to a .parquet file; got {path.name!r}.")
        if path.is_dir():
            raise DataError(f"{path} is a folder. Give the name of a file.")
        if not path.parent.is_dir():
            raise DataError(f"{path} cannot be written: {path.parent} does not exist. Create it.")
        if (reason := trouble(path)) is not None:
            raise DataError(f"{path} cannot be written: {reason}.")
        self.path = path

    def finished(self, key: TableKey, images: str) -> tuple[int, list[Bad]] | None:
        """Return the number of rows and the images left out; None if there is no file.

        Every checksum of the file is verified.

        Raises:
            DataError: the file was made differently, of other images or by another program.
        """
        from pyarrow import parquet

        if not self.path.exists():
            return None
        remedy = "Delete that file; its embeddings will be computed again."
        with (
            _readable(self.path, remedy),
            parquet.ParquetFile(self.path, page_checksum_verification=True) as file,
        ):
            facts = json.loads((file.schema_arrow.metadata or {}).get(METADATA, b"null"))
            rows = file.metadata.num_rows
            self._check(facts, key, images, rows)
            for _ in file.iter_batches():  # reading verifies the checksums
                pass
        return rows, [(name, reason) for name, reason in facts["bad"]]

    def _check(self, facts: Any, key: TableKey, images: str, rows: int) -> None:
        exists = f"{self.path} exists already"
        remedy = "Pass overwrite=True to replace it, or write to another file."
        if not isinstance(facts, dict):
            raise DataError(f"{exists} and was not made by semigpc embed. {remedy}")
        if (difference := key.difference(facts)) is not None:
            raise DataError(f"{exists} and was made differently: {difference}. {remedy}")
        if facts.get("images") != images:
            raise DataError(
                f"{exists}, with {rows} rows, and was made of other images: some were added, "
                f"removed or changed since. {remedy}"
            )

    def write(
        self,
        groups: Iterator[tuple[list[str], "NDArray[np.floating[Any]]"]],
        key: TableKey,
        *,
        images: str,
        bad: list[Bad],
        pretrained: str,
    ) -> None:
        """Write names and embeddings, one row group at a time.

        Args:
            groups: names and rows. key: what the rows depend on besides the images.
            images: a hash of these. bad: those that were left out.
            pretrained: where the weights of the network come from.
        """
        import pyarrow
        from pyarrow import parquet

        number = pyarrow.float16() if key.precision == "float16" else pyarrow.float32()
        fields = [("file_name", pyarrow.string()), ("embedding", pyarrow.list_(number, key.width))]
        facts = asdict(key) | {"images": images, "bad": bad, "pretrained": pretrained}
        schema = pyarrow.schema(fields, metadata={METADATA: json.dumps(facts)})
        with (
            replacing(self.path) as draft,
            # Embeddings look like noise to a compressor; checksums make damage known.
            parquet.ParquetWriter(
                draft, schema, compression="none", use_dictionary=False, write_page_checksum=True
            ) as writer,
        ):
            for names, rows in groups:
                values = pyarrow.array(rows.ravel())
                column = pyarrow.FixedSizeListArray.from_arrays(values, key.width)
                columns = [pyarrow.array(names, pyarrow.string()), column]
                writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


class TableNetwork(NamedTuple):
    """The network that made a table of embeddings: its key, and where the weights came from."""

    key: TableKey
    pretrained: str | None


def network_of(path: Path) -> TableNetwork | None:
    """Return the network that made a table, if :class:`EmbeddingTable` wrote it; else None."""
    from pyarrow import parquet

    if path.suffix.lower() != ".parquet":
        return None
    with _readable(path, "Delete that file; its embeddings will be computed again."):
        metadata = parquet.read_schema(path).metadata or {}
        facts = json.loads(metadata.get(METADATA, b"null"))
    names = [field.name for field in fields(TableKey)]
    if not isinstance(facts, dict) or not facts.keys() >= set(names):
        return None
    return TableNetwork(TableKey(**{name: facts[name] for name in names}), facts.get("pretrained"))
