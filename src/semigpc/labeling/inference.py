"""Use a labelled folder as a model: the classes of new images or rows, and of labelled ones.

The model has learned the given labels and all answers of the review page. New images are embedded
by the network that embedded the others, which is known by the hash of its weights.

:func:`answer_split` does without a folder: a comparison of trained networks shows beside them what
labelling reaches on the same images.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import pyarrow
from numpy.typing import NDArray

from semigpc.data.dataset import ImageSet, Splits
from semigpc.data.folder import Listing, class_folders, from_table
from semigpc.estimator import SemiGPClassifier
from semigpc.io.errors import DataError, ImageError
from semigpc.io.images import FileImages
from semigpc.io.paths import existing
from semigpc.io.tables import TableNetwork, is_table, network_of
from semigpc.io.text import listed
from semigpc.labeling.columns import ColumnOptions, Floats, read_label_table
from semigpc.labeling.label import LabelSettings, fit, is_image_folder
from semigpc.labeling.outputs import Labeller
from semigpc.labeling.project import Project
from semigpc.labeling.scan import SAMPLE, LabelLookup, Progress, Sample, Scan, silent
from semigpc.labeling.source import FILE_TYPES, RowBatch, TableSource, open_source
from semigpc.models.encoder import EmbedConfig, embed_files, encoder_key

ROWS_AT_ONCE = 8192  # predicted and written together
OWN_EMBEDDINGS = "Give images, or a table that the same network made (semigpc embed)."


class LabelledRows(NamedTuple):
    """Rows (n, D) whose classes (n,) are known, as places in ``classes_``; notes for the user."""

    x: Floats
    codes: NDArray[np.int64]
    notes: tuple[str, ...]


class GradeCheck(TypedDict):
    """Rows with a label that is guaranteed at a precision or a higher one; how many are right."""

    precision: float
    labels: int
    right: int


@dataclass(frozen=True)
class LoadedLabeling:
    """A labelled folder, ready to predict.

    Args:
        project: the folder. model: that has learned all labels and answers.
        network: what embedded the images; None for a table of other origin.
    """

    project: Project
    model: SemiGPClassifier
    network: TableNetwork | None

    @property
    def class_names(self) -> list[str]:
        """(C,), in the order of probabilities."""
        return [str(name) for name in self.model.classes_]

    @cached_property
    def embedding(self) -> EmbedConfig:
        """Return how images are embedded.

        Raises:
            DataError: the rows do not come from a network that is known.
        """
        if self.network is None:
            raise DataError(
                f"{self.project.folder} was made from a table of embeddings, and the network "
                f"behind them is not known. Give a table ({', '.join(FILE_TYPES)}, or a folder of "
                f".parquet files) with {self.project.settings['width']} features."
            )
        key = self.network.key
        return EmbedConfig(
            model=key.network,
            pretrained=self.network.pretrained or EmbedConfig().pretrained,
            image_size=key.image_size,
            precision="float32" if key.precision == "float32" else "float16",
        )

    def embed(
        self, paths: Sequence[Path], *, progress: Progress = silent
    ) -> tuple[Floats, dict[int, str]]:
        """Return rows (n, D) of images, and why some cannot be read, by position."""
        config = self.embedding
        assert self.network is not None
        return embed_files(paths, config, self.network.key, progress=progress)

    def open_table(self, path: Path, columns: ColumnOptions | None = None) -> TableSource:
        """Open a table of rows like those that were labelled.

        Raises:
            DataError: its features are not the same, or another network made it.
        """
        own = self.project.source
        source = open_source(path, columns or self.project.settings["columns"])
        network = network_of(source.files[0])
        if self.network is not None and network is not None:
            difference = self.network.key.difference(network.key.__dict__)
            if difference is not None:
                raise DataError(f"{path} was made differently: {difference}. {OWN_EMBEDDINGS}")
        source.read_as(own)
        return source

    def tables(self, batches: Iterable[RowBatch], id_name: str) -> Iterator[pyarrow.Table]:
        """Yield a table for each batch of new rows, with the columns of labels.csv.

        Rows whose embedding is not finite have no guess.
        """
        known = self.project.known()
        first = len(self.project.ids)  # new rows are numbered from here
        empty = np.empty((0, self.project.settings["width"]), np.float32)
        for batch in batches:
            bad = np.flatnonzero(~np.isfinite(batch.x).all(axis=1)) + first + batch.first
            about = Scan(
                rows=len(batch.ids),
                labelled=known.rows,
                ids=[self.project.ids[row] for row in known.rows.tolist()],
                labels=known.labels.tolist(),
                x=empty,
                sample=np.empty(0, np.int64),
                sample_x=empty,
                bad=bad,
                bad_labels={},
            )
            labeller = Labeller(self.model, about, id_name)
            yield labeller.table(batch._replace(first=first + batch.first))

    def images_to_evaluate(
        self,
        data: Path,
        labels: Path | None = None,
        *,
        partial: bool = False,
        follow_links: bool = False,
        trust_pseudo: bool = False,
        progress: Progress = silent,
    ) -> LabelledRows:
        """Return the rows and classes of labelled images, matched by class name.

        Args:
            data: a folder of class folders, or a table beside its images.
            labels: a table for a folder whose sub-folders are no classes.
            partial: let classes of the labelling be absent.
            follow_links: use links that lead out of the folder.
            trust_pseudo: take labels of the table that semigpc itself gave out.
        """
        listing = _listing(data, labels, follow_links=follow_links, trust_pseudo=trust_pseudo)
        named = {name: label for name, label in listing.labels.items() if label is not None}
        codes = self._codes(list(named.values()), data, partial=partial)
        rows, bad = self.embed([listing.root / name for name in named], progress=progress)
        if bad:
            place, reason = next(iter(bad.items()))
            raise DataError(
                f"{len(bad)} of {len(named)} images cannot be read "
                f"({list(named)[place]}: {reason}). Replace or remove them."
            )
        return LabelledRows(rows, codes, listing.notes)

    def rows_to_evaluate(
        self,
        data: Path,
        labels: Path | None = None,
        *,
        partial: bool = False,
        trust_pseudo: bool = False,
    ) -> LabelledRows:
        """Return the labelled rows of a table; the labels are a column of it, or a table.

        Args:
            data: the table. labels: a table of ids and labels.
            partial, trust_pseudo: as of :meth:`images_to_evaluate`.
        """
        source = self.open_table(data)
        notes: tuple[str, ...] = ()
        given: dict[str, str] | None = None
        if labels is not None:
            table = read_label_table(labels, source.id_name, trust_pseudo=trust_pseudo)
            given = table.given
            notes = table.notes
        elif not source.has_labels:
            raise DataError(f"{data} has no column of labels. Give a table with labels=...")
        lookup = LabelLookup(given, labels)
        parts: list[Floats] = []
        names: list[str] = []
        for batch in source.batches(ROWS_AT_ONCE):
            own = lookup.of(batch.ids, batch.labels)
            known = [row for row, label in enumerate(own) if label is not None]
            parts.append(batch.x[known])
            names += [label for label in own if label is not None]
        codes = self._codes(names, data, partial=partial)
        return LabelledRows(np.concatenate(parts), codes, notes)

    def _codes(self, names: Sequence[str], data: Path, *, partial: bool) -> NDArray[np.int64]:
        if not names:
            raise DataError(f"{data} has no label to evaluate on. Fill in the labels.")
        known = {name: c for c, name in enumerate(self.class_names)}
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise DataError(
                f"the data have labels {listed(unknown)}, and {self.project.folder} has "
                f"{listed(self.class_names)}. Rename the class, leave it out, or label some."
            )
        absent = sorted(set(known) - set(names))
        if absent and not partial:
            raise DataError(
                f"{self.project.folder} has {len(known)} classes, and {data} has none of "
                f"{listed(absent)}. Add some, or use partial=True to evaluate on the classes that "
                "are there."
            )
        return np.array([known[name] for name in names], dtype=np.int64)


def load_labeling(folder: Path) -> LoadedLabeling:
    """Open a folder that ``semigpc label``, ``open`` or ``review`` wrote, with its model.

    Raises:
        DataError: it is no such folder, its data have changed, or it has no labels of two classes.
    """
    project = Project.open(folder, images_needed=False)
    return LoadedLabeling(project, project.taught(), network_of(project.source.files[0]))


def is_rows(path: Path) -> bool:
    """Return whether a path is a table of rows, or a folder of Parquet shards, and no images."""
    if path.is_dir():
        return any(path.glob("*.parquet")) and not is_image_folder(path)
    return path.suffix.lower() in FILE_TYPES


def new_batches(rows: Floats, names: Sequence[str]) -> Iterator[RowBatch]:
    """Yield rows (n, D) with their names, some thousand at a time."""
    for first in range(0, len(names), ROWS_AT_ONCE):
        own = slice(first, first + ROWS_AT_ONCE)
        yield RowBatch(first, list(names[own]), rows[own], None)


def checked_batches(source: TableSource, *, skip_bad: bool) -> Iterator[RowBatch]:
    """Yield the rows of a table.

    Raises:
        DataError: an embedding is not finite, unless ``skip_bad``.
    """
    for batch in source.batches(ROWS_AT_ONCE):
        bad = np.flatnonzero(~np.isfinite(batch.x).all(axis=1))
        if len(bad) and not skip_bad:
            place = source.place(batch.first + int(bad[0]))
            raise DataError(
                f"The embedding in {place} contains NaN or infinity. Correct it, or leave such "
                "rows without a guess by skip_bad=True."
            )
        yield batch


def grade_checks(model: SemiGPClassifier, rows: LabelledRows) -> list[GradeCheck]:
    """Return for each precision that the model guarantees how many labels are right."""
    answers = model.answer(rows.x, top=0)
    right = answers.codes == rows.codes
    checks: list[GradeCheck] = []
    for precision in model.promise_.grades:
        graded = answers.grade >= np.float32(precision)
        counts = (int(graded.sum()), int((graded & right).sum()))
        checks.append({"precision": precision, "labels": counts[0], "right": counts[1]})
    return checks


def _listing(data: Path, labels: Path | None, *, follow_links: bool, trust_pseudo: bool) -> Listing:
    path = existing(data, "The data to evaluate on")
    if labels is None and not is_table(path):
        return class_folders(path, follow_links=follow_links)
    table = path if labels is None else existing(labels, "The table of labels", path)
    root = path.parent if labels is None else path
    return from_table(table, root, follow_links=follow_links, trust_pseudo=trust_pseudo)


# Beside trained networks --------------------------------------------------------------------------


def answer_split(
    config: EmbedConfig,
    splits: Splits,
    images: ImageSet,
    seed: int,
    progress: Callable[[int, int], None],
) -> tuple[NDArray[np.float64], float]:
    """Return what labelling says of images from the parts that a network would be trained on.

    It is fitted as by ``semigpc label``, on the labelled images and at most SAMPLE unlabelled ones.
    Validation images are not learned from.

    Args:
        config: the network. splits: n labelled and u unlabelled images. images: M, to be judged.
        seed: of the sample. progress: called with images embedded, of those without an embedding.

    Returns:
        Probabilities (M, C), and the seconds of fitting and answering: embeddings are cached.

    Raises:
        DataError: the images are not files, or all alike. ImageError: one cannot be read.
    """

    def embedded(stage: str, done: int, total: int | None) -> None:
        if stage == "embedding" and total:
            progress(done, total)

    labeled = _by_name(splits.labeled)
    parts = (labeled, _by_name(splits.unlabeled), images)
    paths = [path for part in parts for path in _files(part)]
    rows, bad = embed_files(paths, config, encoder_key(config.encoder(), config), progress=embedded)
    if bad:
        place, reason = next(iter(bad.items()))
        raise ImageError(
            f"{len(bad)} images cannot be read ({paths[place]}: {reason}). Replace or remove them."
        )
    began = time.monotonic()
    learned = len(labeled) + len(splits.unlabeled)
    gathered = _scan_of(labeled, splits.class_names, rows[:learned], seed)
    folder = paths[0].parent
    model, _ = fit(gathered, LabelSettings(data=folder, labels=None, out=folder, seed=seed))
    probs = model.predict_proba(rows[learned:]).astype(np.float64)
    column = {str(name): c for c, name in enumerate(model.classes_)}
    ordered = probs[:, [column[name] for name in splits.class_names]]
    return ordered, round(time.monotonic() - began, 3)


def _scan_of(labeled: ImageSet, class_names: Sequence[str], rows: Floats, seed: int) -> Scan:
    """Return labelled rows, which come first, and a sample of the others as :func:`fit` needs."""
    n = len(labeled)
    sample = Sample(SAMPLE, rows.shape[1], seed)
    sample.add(n, np.ones(len(rows) - n, dtype=np.bool_), rows[n:])
    return Scan(
        rows=len(rows),
        labelled=np.arange(n),
        ids=list(labeled.names),
        labels=[class_names[c] for c in labeled.labels.tolist()],
        x=rows[:n],
        sample=sample.rows,
        sample_x=sample.x,
        bad=np.empty(0, np.int64),
        bad_labels={},
    )


def _by_name(images: ImageSet) -> ImageSet:
    """Return images as ``semigpc label`` has them: left-out parts depend on the order of rows."""
    order = sorted(range(len(images)), key=images.names.__getitem__)
    return images.subset(np.array(order, dtype=np.int64))


def _files(images: ImageSet) -> list[Path]:
    pool = images.images
    if not isinstance(pool, FileImages):
        raise DataError("labelling without training needs images in files; these are in memory.")
    return [pool.paths[position] for position in images.positions.tolist()]
