"""Labels for all rows of a table, or all images of a folder, from the few that have one.

    open      a table, or images that are embedded first, and the given labels
    scan      pass 1: check ids, gather labelled rows and a sample of the others
    fit       the estimator, on those
    outputs   pass 2: label, confidence, variance, status and reasons, shard by shard; finished
              shards are kept if it stops. Then labels.parquet, labels.csv and label_studio.json
    evidence  cross-validation, for summary.json and report.html; project.json is written last

Memory does not grow with the rows, except for about 32 bytes each while ids are compared.
"""

import json
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np

from semigpc.estimator import STATUSES, SemiGPClassifier
from semigpc.estimator.promise import PROBABILITY, Promise
from semigpc.io.atomic import JsonObject, facts_of, locked, read_json, write_json, write_text
from semigpc.io.errors import DataError
from semigpc.io.parts import Key
from semigpc.io.paths import is_image_name, unusable, walk
from semigpc.io.text import listed, nearly_equal, ordered
from semigpc.labeling import outputs
from semigpc.labeling.columns import FILE_NAME, LABEL, ColumnOptions, read_label_table
from semigpc.labeling.evidence import (
    CrossValidation,
    copy_groups,
    cross_validate,
    labels_once,
    too_few,
)
from semigpc.labeling.project import (
    FILE,
    VERSION,
    ProjectSettings,
    Written,
    fitted_values,
    read_settings,
)
from semigpc.labeling.scan import (
    SAMPLE,
    LabelLookup,
    Progress,
    Scan,
    check_classes,
    check_spread,
    scan,
    silent,
)
from semigpc.labeling.source import TableSource, open_source
from semigpc.models.encoder import EmbedConfig, embed_folder
from semigpc.report.labeling_summary import (
    CopyGroup,
    GradeFacts,
    LabelingSummary,
    PromiseFacts,
)

SHARD_ROWS = 65_536  # labelled at a time at most ...
SHARD_BYTES = 2**28  # ... and fewer if their embeddings take more memory than this
EMBEDDINGS = "embeddings.parquet"  # of images, inside the folder of the labels
# Parameters that fitting sets.
LEARNED = ("length_scale", "noise_std", "logit_scale", "sharpness", "scaling", "self_training")
LABELS_TO_AIM_AT = 10  # of a class, where no class got a new label
LEAST_MORE_LABELS = 2  # to ask for
NO_REPORT = "Nothing was held out: cross-validation was skipped."
CONFLICTS_NAMED = 3  # groups of copies with different labels that a note names


# Settings and inputs ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """Options of ``semigpc label``.

    Args:
        data: a table, a folder of Parquet shards, or a folder of images. out: the folder to write.
        labels: a table of labels; None if the data have a column of labels.
        more_labels: further tables; a later one overrides the labels of earlier ones.
        trust_pseudo: take labels of these tables that semigpc itself gave out.
        columns: names of columns, where they are not the usual ones.
        images: folder of the images of a table, by the ids.
        image_url: text that Label Studio puts before the name of an image.
        target_precision, per_class, abstain, class_prior: those of
            :class:`semigpc.estimator.SemiGPClassifier`.
        seed: of the sample and the folds. skip_bad: leave out images and rows that cannot be used.
        report: cross-validate, and write the page.
        shard: rows labelled at a time; None chooses by memory.
        embed: the network for images. follow_links: use links that lead out of ``data``.
    """

    data: Path
    labels: Path | None
    out: Path
    more_labels: tuple[Path, ...] = ()
    trust_pseudo: bool = False
    columns: ColumnOptions = field(default_factory=ColumnOptions)
    images: Path | None = None
    image_url: str | None = None
    target_precision: float | None = 0.95
    per_class: bool = False
    abstain: float | None = None
    class_prior: Literal["balanced", "estimated"] = "estimated"
    seed: int = 0
    skip_bad: bool = False
    report: bool = True
    shard: int | None = None
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    follow_links: bool = False

    @property
    def data_columns(self) -> ColumnOptions:
        """Return the columns of the data; its labels are not read if there is a table of labels."""
        return self.columns if self.labels is None else replace(self.columns, label=None)

    @property
    def label_files(self) -> tuple[Path, ...]:
        """Return all tables of labels, in their order."""
        return () if self.labels is None else (self.labels, *self.more_labels)


class Inputs(NamedTuple):
    """Opened inputs.

    Attributes:
        source: the rows. path, columns: to open the same rows again.
        labels: by id; None if they are in the data. images: the folder of the images, or None.
        notes: messages for the user. chosen: ids that semigpc chose to be labelled.
    """

    source: TableSource
    path: Path
    columns: ColumnOptions
    labels: dict[str, str] | None
    images: Path | None
    notes: list[str]
    chosen: frozenset[str] = frozenset()


def is_image_folder(path: Path, *, follow_links: bool = False) -> bool:
    """Return whether a folder contains an image, at any depth."""
    if not path.is_dir():
        return False
    return any(is_image_name(name) for name, _ in walk(path, follow_links=follow_links))


def open_images(
    settings: LabelSettings, *, overwrite: bool = False, progress: Progress = silent
) -> Inputs:
    """Check the labels of a folder of images, then embed the images, which may take hours.

    Without ``overwrite``, images that have an embedding already are not embedded again.

    Raises:
        DataError: an input is missing or cannot be used. ImageError: an image cannot be read.
    """
    if settings.labels is None:
        raise DataError(
            f"Images need a table of labels with the columns {FILE_NAME} and {LABEL}: labels=... "
            "Without any label, begin with: semigpc open"
        )
    if settings.columns.id or settings.columns.features:
        raise DataError(
            "The parameter id and the parameter features name columns of a table; "
            f"{settings.data} is a folder of images."
        )
    root = settings.data.resolve()
    notes: list[str] = []
    labels, chosen = _image_labels(settings, root, notes)
    table = settings.out / EMBEDDINGS
    result = embed_folder(
        root,
        table,
        settings.embed,
        skip_bad=settings.skip_bad,
        overwrite=overwrite,
        follow_links=settings.follow_links,
        progress=progress,
    )
    bad = {name for name, _ in result.bad}
    if bad:
        notes.append(
            f"Images that could not be read and were left out: {len(bad)}; "
            f"{EMBEDDINGS}.bad.txt lists them."
        )
    labels = {name: label for name, label in labels.items() if name not in bad}
    source = open_source(table)
    return Inputs(source, table.resolve(), ColumnOptions(), labels, root, notes, chosen)


def _image_labels(
    settings: LabelSettings, root: Path, notes: list[str]
) -> tuple[dict[str, str], frozenset[str]]:
    """Return the labels of images, all of which must exist, and which images were chosen."""
    labels, chosen = read_all_labels(settings, FILE_NAME, notes, images=True)
    missing = [
        name
        for name in labels
        if not is_image_name(name) or unusable(root, name, follow_links=True) is not None
    ]
    if missing:
        raise DataError(
            f"{settings.labels} has labels for {len(missing)} images that are not in "
            f"{settings.data}: {listed(missing, 3)}. Names must be relative to that folder; "
            "correct them, add the files or delete the rows."
        )
    check_classes(list(labels.values()), settings.labels)
    return labels, chosen


def table_inputs(settings: LabelSettings, source: TableSource, path: Path) -> Inputs:
    """Return a table that was opened at ``path`` together with its labels.

    Raises:
        DataError: there are no labels, or a column cannot be used.
    """
    if source.has_ids and source.id_name in outputs.COLUMNS:
        raise DataError(
            f"Column {source.id_name!r} cannot hold the ids: labels.csv has a column of that name. "
            "Rename it."
        )
    if settings.images is not None and not settings.images.is_dir():
        raise DataError(
            f"The folder of images does not exist: {settings.images}. Check the parameter images."
        )
    notes: list[str] = []
    labels = None
    chosen: frozenset[str] = frozenset()
    if settings.labels is not None:
        labels, chosen = read_all_labels(settings, source.id_name, notes)
        if source.has_labels:
            notes.append(
                f"Labels were read from {settings.labels.name}; the column of labels in the data "
                "was ignored."
            )
    elif not source.has_labels:
        raise DataError(
            f"There are no labels: {settings.data} has no column {LABEL!r}. Give a table of "
            "labels with labels=..., or name the column with label_column=..."
        )
    images = settings.images.resolve() if settings.images is not None else None
    return Inputs(source, path, settings.data_columns, labels, images, notes, chosen)


def read_all_labels(
    settings: LabelSettings, id_name: str, notes: list[str], *, images: bool = False
) -> tuple[dict[str, str], frozenset[str]]:
    """Return the labels of all tables, and the ids that semigpc chose to be labelled.

    The last table that has an id decides.
    """
    labels: dict[str, str] = {}
    chosen: set[str] = set()
    for path in settings.label_files:
        table = read_label_table(
            path,
            id_name,
            label_column=settings.columns.label,
            images=images,
            trust_pseudo=settings.trust_pseudo,
        )
        labels |= table.given
        chosen = (chosen - table.given.keys()) | (table.chosen & table.given.keys())
        notes += table.notes
    if chosen:
        notes.append(
            f"Labels of rows that semigpc chose, on the review page or by suggest: {len(chosen)}. "
            "They teach, but count for no guarantee, since they are not a random sample."
        )
    return labels, frozenset(chosen)


# Labelling ----------------------------------------------------------------------------------------


def label_data(
    settings: LabelSettings, *, overwrite: bool = False, progress: Progress | None = None
) -> LabelingSummary:
    """Label all rows, write the folder, and return the content of summary.json.

    An identical call that was stopped continues where it was; after one that has finished, the
    summary is read from the folder.

    Args:
        settings: what to label, and how.
        overwrite: begin from the start, and replace what the folder holds.
        progress: called with (stage, how much is done, of how much if that is known).

    Raises:
        DataError: an input is missing or cannot be used, or other labels would be replaced.
        InUseError: another process writes that folder. WriteError: the disk is full, or the folder
            is read-only.
    """
    if settings.out.exists() and not settings.out.is_dir():
        raise DataError(f"The parameter out must be a folder; {settings.out} is a file.")
    with locked(settings.out):
        return _label_data(settings, overwrite, progress or silent)


def _label_data(settings: LabelSettings, overwrite: bool, progress: Progress) -> LabelingSummary:
    began = time.monotonic()
    inputs, key = _open_inputs(settings, overwrite, progress)
    out = outputs.OutFolder(settings.out, key)
    written = Written(
        images=str(inputs.images) if inputs.images else None,
        image_url=settings.image_url,
        report=settings.report,
    )
    finished = not overwrite and out.check()
    changed = out.altered() if finished else []
    earlier = _earlier_summary(out, written) if finished and not changed else None
    if earlier is not None:
        return earlier

    size = shard_rows(inputs.source, settings.shard)
    gathered = scan(
        inputs.source,
        LabelLookup(inputs.labels, settings.labels),
        size=size,
        seed=settings.seed,
        skip_bad=settings.skip_bad,
        progress=progress,
    )
    check_classes(gathered.labels, settings.labels or settings.data)
    progress("fitting", 0, None)
    model, notes = fit(gathered, settings, inputs.chosen)
    inputs.notes.extend(notes)

    # Not before: input that cannot be labelled must neither replace nor leave anything.
    out.begin(afresh=overwrite or finished)
    parts = _label_parts(out, inputs, model, gathered, size, progress)
    studio = outputs.LabelStudio(inputs.images, settings.image_url, f"semigpc-{version('semigpc')}")
    tables = map(out.read_part, range(parts))
    tally = outputs.write_tables(tables, out.parts, inputs.source.id_name, studio)
    write_text(out.parts / "label_studio.xml", studio.interface(ordered(set(gathered.labels))))
    measured = measure(model, gathered, settings, progress)
    kept = [name for name in changed if (settings.out / name).exists()]
    outdated = out.outdated(settings.label_files)
    inputs.notes.extend([*_changed_notes(kept), *outputs.renaming_notes(outdated)])
    summary = summarise(settings, inputs, gathered, model, tally, measured)
    summary["seconds"] = round(time.monotonic() - began, 3)
    write_json(out.parts / "summary.json", summary)
    if settings.report:
        _write_page(out.parts, inputs, gathered, summary, measured, settings)
    project = _project_settings(out, settings, inputs, gathered, model, summary, written)
    write_json(out.parts / FILE, {**project, "columns": asdict(project["columns"])})
    out.publish(kept, outdated)
    return summary


def _changed_notes(kept: Sequence[str]) -> list[str]:
    return [
        f"{name} was changed since it was written; it is kept as {name}{outputs.CHANGED}."
        for name in kept
    ]


def _open_inputs(
    settings: LabelSettings, overwrite: bool, progress: Progress
) -> tuple[Inputs, Key]:
    """Open the data and the labels; return also the key, all that the labels depend on."""
    of_images = is_image_folder(settings.data, follow_links=settings.follow_links)
    network = settings.embed.facts if of_images else None
    key = labels_key(settings) | {"network": network}
    if not overwrite:
        outputs.OutFolder(settings.out, key).check(
            ignoring=outputs.DATA
        )  # before images are embedded
    if of_images:
        inputs = open_images(settings, overwrite=overwrite, progress=progress)
    else:
        columns = settings.data_columns
        source = open_source(settings.data, columns, follow_links=settings.follow_links)
        inputs = table_inputs(settings, source, settings.data.resolve())
    return inputs, key | {outputs.DATA: outputs.files_hash(inputs.source.files)}


def _earlier_summary(out: outputs.OutFolder, written: Written) -> LabelingSummary | None:
    """Return the summary of a finished folder if it has all outputs that are wanted now."""
    earlier = read_settings(out.path)["written"]
    if (earlier["images"], earlier["image_url"]) != (written["images"], written["image_url"]):
        return None
    needed = [name for name in outputs.WRITTEN if name != "report.html" or written["report"]]
    if not all((out.path / name).is_file() for name in needed):
        return None
    out.remove_parts()
    path = out.path / "summary.json"  # its hash was verified
    summary = read_json(path, JsonObject, error=DataError, remedy=outputs.ADVICE)
    return cast("LabelingSummary", summary)


def shard_rows(source: TableSource, shard: int | None = None) -> int:
    """Return how many rows to label at a time: ``shard``, or as many as fit SHARD_BYTES."""
    return shard or max(1, min(SHARD_ROWS, SHARD_BYTES // (4 * source.width)))


def fit(
    gathered: Scan, settings: LabelSettings, chosen: frozenset[str] = frozenset()
) -> tuple[SemiGPClassifier, list[str]]:
    """Fit the estimator on the labelled rows and the sample; return it and notes for the user.

    Args:
        chosen: ids of rows that were not drawn at random to be labelled.
    """
    model = SemiGPClassifier(**options(settings))
    labels = np.array([*gathered.labels, *[None] * len(gathered.sample)], dtype=object)
    rows = np.concatenate([gathered.labelled, gathered.sample])
    x = np.concatenate([gathered.x, gathered.sample_x])
    check_spread(x, settings.data)
    drawn = np.ones(len(x), dtype=bool)
    drawn[: len(gathered.ids)] = [name not in chosen for name in gathered.ids]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model.fit(x, labels, rows=rows, drawn=drawn, transduce=False)
    notes = [str(each.message) for each in caught if issubclass(each.category, UserWarning)]
    if model.engine_ != "exact":
        notes.append(model.engine_reason_)
    return model, [f"{note[:1].upper()}{note[1:]}" for note in notes]


def _label_parts(
    out: outputs.OutFolder,
    inputs: Inputs,
    model: SemiGPClassifier,
    gathered: Scan,
    size: int,
    progress: Progress,
) -> int:
    """Label the shards that do not exist yet; return how many there are in all."""
    total = -(-gathered.rows // size)
    if all(out.has_part(number) for number in range(total)):
        return total
    labeller = outputs.Labeller(model, gathered, inputs.source.id_name)
    for number, batch in enumerate(inputs.source.batches(size)):
        if not out.has_part(number):
            out.write_part(number, labeller.table(batch))
        progress("labelling", batch.first + len(batch.ids), gathered.rows)
    return total


def labels_key(settings: LabelSettings, content: str = "") -> Key:
    """Return what the labels depend on besides the code; ``content`` is a hash of the data."""
    return {
        "columns": list(outputs.COLUMNS),
        "data": str(settings.data.resolve()),
        outputs.DATA: content,
        "labels content": [outputs.content_hash(path) for path in settings.label_files],
        "trust_pseudo": settings.trust_pseudo,
        **{f"column of {name}": value for name, value in asdict(settings.columns).items()},
        "target precision": settings.target_precision,
        "per class": settings.per_class,
        "abstain": settings.abstain,
        "class prior": settings.class_prior,
        "seed": settings.seed,
        "skip_bad": settings.skip_bad,
        "shard": settings.shard,
        "semigpc": version("semigpc"),
    }


def _write_page(
    folder: Path,
    inputs: Inputs,
    gathered: Scan,
    summary: LabelingSummary,
    measured: CrossValidation | None,
    settings: LabelSettings,
) -> None:
    """Write report.html, with thumbnails if the rows are images."""
    # Its charts are those of trained runs, and importing training takes as long as torch does.
    from semigpc.report.labeling_page import NO_IMAGES, report_images, write_labeling_report

    images = NO_IMAGES
    if inputs.images:
        id_of = dict(zip(gathered.labelled.tolist(), gathered.ids, strict=True))
        confused = measured.confused if measured else {}
        images = report_images(
            inputs.images,
            folder / "labels.parquet",
            summary,
            {pair: id_of[row] for pair, row in confused.items()},
            follow_links=settings.follow_links,
        )
    write_labeling_report(folder / "report.html", summary, images)


# What is written about the labels -----------------------------------------------------------------


def _project_settings(
    out: outputs.OutFolder,
    settings: LabelSettings,
    inputs: Inputs,
    gathered: Scan,
    model: SemiGPClassifier,
    summary: LabelingSummary,
    written: Written,
) -> ProjectSettings:
    """Return the content of project.json."""
    folder = settings.out.resolve()
    data = inputs.path.relative_to(folder) if inputs.path.is_relative_to(folder) else inputs.path
    return {
        "version": VERSION,
        "data": str(data),
        "labels": str(settings.labels.resolve()) if settings.labels else None,
        "columns": inputs.columns,
        "id_name": inputs.source.id_name,
        "images": written["images"],
        "rows": gathered.rows,
        "width": inputs.source.width,
        "bad_rows": gathered.bad.tolist(),
        "sample": SAMPLE,
        "seed": settings.seed,
        "follow_links": settings.follow_links,
        "chosen": [
            row
            for row, name in zip(gathered.labelled.tolist(), gathered.ids, strict=True)
            if name in inputs.chosen
        ],
        "options": options(settings),
        "parameters": parameters(model),
        "fitted": fitted_values(model),
        "grades": {f"{each:.6g}": at.tolist() for each, at in model.promise_.grades.items()},
        "classes": list(ordered(set(gathered.labels))),
        "counts": summary["statuses"],
        "written": written,
        "key": out.key,
        "files": facts_of(out.parts, (name for name in outputs.WRITTEN if name != FILE)),
    }


def options(settings: LabelSettings) -> JsonObject:
    """Return the parameters of the estimator that the user chose."""
    return {
        "target_precision": settings.target_precision,
        "per_class": settings.per_class,
        "abstain": settings.abstain,
        "class_prior": settings.class_prior,
        "random_state": settings.seed,
    }


def parameters(model: SemiGPClassifier) -> JsonObject:
    """Return parameters that make the same model: the learned values in place of "auto"."""
    learned = {name: getattr(model, f"{name}_") for name in LEARNED}
    fixed = {"abstain": None, "target_precision": None}
    text = json.dumps(model.get_params() | learned | fixed, default=float)
    plain: JsonObject = json.loads(text)
    return plain


def measure(
    model: SemiGPClassifier, gathered: Scan, settings: LabelSettings, progress: Progress
) -> CrossValidation | None:
    """Cross-validate if ``settings.report`` is set and there are enough labels."""
    labels = np.array(gathered.labels, dtype=object)
    if not settings.report or too_few(labels_once(model, gathered.labels)):
        return None
    report = partial(progress, "cross-validating")
    return cross_validate(
        model, gathered.x, labels, gathered.sample_x, seed=settings.seed, progress=report
    )


def summarise(
    settings: LabelSettings,
    inputs: Inputs,
    gathered: Scan,
    model: SemiGPClassifier,
    tally: outputs.Tally,
    measured: CrossValidation | None,
) -> LabelingSummary:
    """Return the content of summary.json; ``measured`` is the result of :func:`measure`."""
    classes = [str(name) for name in model.classes_]
    counts = Counter(gathered.labels)
    id_of = dict(zip(gathered.labelled.tolist(), gathered.ids, strict=True))
    evidence = measured.evidence if measured else None
    suspects = evidence["suspects"] if evidence else []
    copies = copy_groups(model, gathered.ids, gathered.labels)
    why_none = too_few(labels_once(model, gathered.labels)) if settings.report else NO_REPORT
    unlabelled = gathered.rows - len(gathered.labelled) - len(gathered.bad)
    return {
        "title": f"Labels for {settings.data.name}",
        "data": str(settings.data),
        "rows": gathered.rows,
        "unlabelled": unlabelled,
        "width": inputs.source.width,
        "id_name": inputs.source.id_name,
        "rows_noun": "images" if inputs.images else "rows",
        "classes": classes,
        "given": [counts[name] for name in classes],
        "pseudo": [tally.pseudo[name] for name in classes],
        "believed": [float(share) for share in model.class_shares_],
        "statuses": {status: tally.statuses[status] for status in STATUSES},
        "threshold": float(np.average(model.threshold_, weights=model.class_shares_)),
        "target_precision": settings.target_precision,
        "promise": promise_facts(model, settings, tally, unlabelled) if unlabelled else None,
        "model": {
            "kernel": str(model.get_params()["kernel"]),
            "scaling": str(model.scaling_),
            "length_scale": float(model.length_scale_),
            "noise_std": float(model.noise_std_),
            "logit_scale": float(model.logit_scale_),
            "self_training": int(model.self_training_),
            "engine": str(model.engine_),
            "labels used": len(model.labeled_rows_),
            "rows in the sample": len(gathered.sample),
        },
        "settings": _settings_facts(settings, inputs.source),
        "notes": [*_notes(inputs, gathered, unlabelled), *_copy_notes(copies)],
        "outliers": tally.outliers,
        "suspects": [{"id": id_of[suspect["row"]], **suspect} for suspect in suspects],
        "copies": copies,
        "evidence": evidence,
        "why_none": why_none,
    }


def promise_facts(
    model: SemiGPClassifier, settings: LabelSettings, tally: outputs.Tally, unlabelled: int
) -> PromiseFacts | None:
    """Return what is promised about the new labels; None if no precision was requested.

    A class without new labels needs as many labels as the other classes have (their median), or
    LABELS_TO_AIM_AT where no class got new labels.
    """
    promise = model.promise_
    if promise.target is None:
        return None
    counts = dict(zip(map(str, model.classes_), model.class_counts_.tolist(), strict=True))
    without = [name for name in ordered(counts) if not tally.pseudo[name]]
    successful = [count for name, count in counts.items() if tally.pseudo[name]]
    enough = int(np.median(successful or [LABELS_TO_AIM_AT]))
    return {
        "target": promise.target,
        "probability": PROBABILITY,
        "per_class": settings.per_class,
        "grades": grade_facts(promise, tally, list(counts)),
        "reach": round(promise.reach.get(promise.target, 0.0) * unlabelled),
        "labels": sum(counts.values()),
        "without": without,
        "needed": {name: max(LEAST_MORE_LABELS, enough - counts[name]) for name in without},
    }


def grade_facts(promise: Promise, tally: outputs.Tally, classes: Sequence[str]) -> list[GradeFacts]:
    """Return which labels each precision is guaranteed for, those of higher ones included."""
    facts: list[GradeFacts] = []
    total: Counter[str] = Counter()
    for precision in promise.grades:
        total.update(tally.grades.get(f"{precision:.6g}", {}))
        facts.append(
            {
                "precision": precision,
                "labels": total.total(),
                "classes": [total[name] for name in classes],
                "expected": promise.expected.get(precision) if total else None,
            }
        )
    return facts


def _settings_facts(settings: LabelSettings, source: TableSource) -> dict[str, float | str | None]:
    names = source.columns.features
    features = names[0]
    if len(names) > 1:
        features = f"{len(names)} columns, {names[0]} to {names[-1]}"
    labels = f"column {source.columns.label!r} of the data"
    if settings.labels:
        labels = ", ".join(map(str, settings.label_files))
    return {
        "labels": labels,
        "ids": source.id_name if source.has_ids else "row numbers",
        "features": features,
        "target precision": settings.target_precision,
        "for each class": settings.per_class,
        "abstain below": settings.abstain,
        "seed": settings.seed,
        "skip bad rows": settings.skip_bad,
    }


def _notes(inputs: Inputs, gathered: Scan, unlabelled: int) -> list[str]:
    """Return sentences that the reader should see first."""
    notes = list(inputs.notes)
    counts = Counter(gathered.labels)
    single = [name for name in ordered(counts) if counts[name] == 1]
    if single:
        notes.append(f"Classes with a single label cannot be validated: {listed(single)}.")
    notes += nearly_equal(counts)
    if len(gathered.bad):
        kept = len(gathered.bad_labels)
        exception = f"; {kept} of them keep their given label" if kept else ""
        notes.append(
            f"Rows left unlabelled, since their embedding contains NaN or infinity: "
            f"{len(gathered.bad)}{exception}."
        )
    if not unlabelled:
        rest = "other row" if len(gathered.bad) else "row"
        notes.append(f"Every {rest} already has a label: there was nothing to label.")
    return notes


def _copy_notes(copies: list[CopyGroup]) -> list[str]:
    """Return what to know about labelled rows that are copies of each other."""
    if not copies:
        return []
    rows = sum(len(group["ids"]) for group in copies)
    notes = [
        f"Labelled rows that are copies of each other: {rows}, in {len(copies)} groups. Copies "
        "with the same label count as one label, and are left out together wherever labels are."
    ]
    conflicts = [group for group in copies if len(set(group["labels"])) > 1]
    if conflicts:
        named = "; ".join(
            " and ".join(f"{name} ({label})" for name, label in _one_each(group))
            for group in conflicts[:CONFLICTS_NAMED]
        )
        notes.append(
            f"Groups of copies with different labels: {len(conflicts)}, such as {named}. Correct "
            "the wrong labels; report.html and summary.json list the groups."
        )
    return notes


def _one_each(group: CopyGroup) -> list[tuple[str, str]]:
    """Return id and label of the first row with each label."""
    first = dict(zip(reversed(group["labels"]), reversed(group["ids"]), strict=True))
    return [(first[label], label) for label in dict.fromkeys(group["labels"])]
