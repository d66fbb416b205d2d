"""Labels for all rows of a table, or all images of a folder, from the few that have one.

    inputs    open the data, embed images, read the labels
    scan      pass 1: check ids, gather labelled rows and a sample of the others
    fit       the estimator, on those
    outputs   pass 2: labels, confidence, variance, status and reasons, shard by shard; finished shards are kept if it stops.
              Then labels.parquet, labels.csv, label_studio.json and .xml
    evidence  cross-validation, for summary.json and report.html; project.json is written last

Memory does not grow with the rows, except for some 32 bytes each while ids are compared.
"""

import json
import time
import warnings
from collections import Counter
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from semigpc.data.folder import ordered
from semigpc.estimator import STATUSES, SemiGPClassifier
from semigpc.estimator.promise import PROBABILITY
from semigpc.io.atomic import facts_of, locked, read_json, write_json, write_text
from semigpc.io.errors import DataError
from semigpc.io.parts import Key
from semigpc.io.text import listed
from semigpc.labeling import outputs
from semigpc.labeling.evidence import gather_evidence, too_few
from semigpc.labeling.inputs import (
    Inputs,
    LabelSettings,
    check_classes,
    is_image_folder,
    open_images,
    table_inputs,
)
from semigpc.labeling.project import FILE, VERSION, fitted_values, read_settings
from semigpc.labeling.report_images import confused_rows, report_images
from semigpc.labeling.scan import SAMPLE, LabelLookup, Progress, Scan, scan, silent
from semigpc.labeling.source import TableSource, open_source
from semigpc.report.labeling_page import NO_IMAGES, write_labeling_report

SHARD, SHARD_BYTES = (
    65_536,
    2**28,
)  # most rows, and bytes of embeddings, that are labelled at a time
DATA = "data content"  # entry of the key that is known only when images are embedded
NETWORK = ("model", "pretrained", "image_size", "precision")  # options that embeddings depend on
LEARNED = (
    "length_scale",
    "noise_std",
    "logit_scale",
    "scaling",
    "self_training",
)  # parameters that fitting sets
FEW_LABELS, LEAST_MORE = (
    10,
    2,
)  # labels of a class to aim at where no class got a new one, and the fewest more to ask for
NO_REPORT = "Nothing was held out, since --no-report left the cross-validation out."


def label_data(
    settings: LabelSettings, *, overwrite: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Label all rows, write the folder, and return the content of summary.json.

    An identical call that was stopped continues where it was; after one that has finished, the
    summary is read from the folder.

    Args:
        settings: what to label, and how. overwrite: replace labels that were made otherwise.
        progress: called with (stage, how much is done, of how much if that is known).

    Raises:
        DataError: an input is missing or cannot be used, or other labels would be replaced.
        InUseError: another process writes that folder. WriteError: the disk is full, or the folder
            is read-only.
    """
    if settings.out.exists() and not settings.out.is_dir():
        raise DataError(f"--out must be a folder; {settings.out} is a file.")
    with locked(settings.out):
        return _label_data(settings, overwrite, progress or silent)


def _label_data(settings: LabelSettings, overwrite: bool, progress: Progress) -> dict[str, Any]:
    began = time.monotonic()
    of_images = is_image_folder(settings.data, follow_links=settings.follow_links)
    key = labels_key(settings) | {
        "network": [getattr(settings.embed, name) for name in NETWORK] if of_images else None
    }
    if not overwrite:
        outputs.OutFolder(settings.out, key).check(ignoring=DATA)  # before images are embedded
    if of_images:
        inputs = open_images(settings, overwrite=overwrite, progress=progress)
    else:
        source = open_source(
            settings.data, settings.data_columns, follow_links=settings.follow_links
        )
        inputs = table_inputs(settings, source, settings.data.resolve())
    out = outputs.OutFolder(settings.out, key | {DATA: outputs.files_hash(inputs.source.files)})
    written = {
        "images": inputs.images and str(inputs.images),
        "image_url": settings.image_url,
        "report": settings.report,
    }
    finished = not overwrite and out.check()
    changed = out.altered() if finished else []
    earlier = _earlier_summary(out, written) if finished and not changed else None
    if earlier is not None:
        return earlier

    size = shard_rows(inputs.source, settings.shard)
    lookup = LabelLookup(inputs.labels, settings.labels)
    gathered = scan(
        inputs.source,
        lookup,
        size=size,
        seed=settings.seed,
        skip_bad=settings.skip_bad,
        progress=progress,
    )
    check_classes(gathered.labels, settings.labels or settings.data)
    progress("fitting", 0, None)
    model, notes = fit(gathered, settings)
    kept = [name for name in changed if (settings.out / name).exists()]
    inputs.notes.extend(notes)
    inputs.notes.extend(
        f"{name} was not as it had been written; it is kept as {name}{outputs.CHANGED}."
        for name in kept
    )

    out.begin(
        afresh=overwrite or finished
    )  # not before: input that cannot be labelled must neither replace nor leave anything
    parts = _label_parts(out, inputs, model, gathered, size, progress)
    studio = outputs.LabelStudio(inputs.images, settings.image_url, f"semigpc-{version('semigpc')}")
    tally = outputs.write_tables(
        map(out.read_part, range(parts)), out.parts, inputs.source.id_name, studio
    )
    classes = ordered(set(gathered.labels))
    write_text(out.parts / "label_studio.xml", studio.interface(classes))
    summary = summarise(settings, inputs, gathered, model, tally, progress) | {
        "seconds": round(time.monotonic() - began, 3)
    }
    write_json(out.parts / "summary.json", summary)
    if settings.report:
        images = NO_IMAGES
        if inputs.images:
            about = (
                out.parts / "labels.parquet",
                summary,
                confused_rows(model, gathered, settings.seed),
            )
            images = report_images(inputs.images, *about, follow_links=settings.follow_links)
        write_labeling_report(out.parts / "report.html", summary, images)
    inside = inputs.path.is_relative_to(settings.out.resolve())
    project = {
        "version": VERSION,
        "data": str(inputs.path.relative_to(settings.out.resolve()) if inside else inputs.path),
        "labels": settings.labels and str(settings.labels.resolve()),
        "columns": asdict(inputs.columns),
        "id_name": inputs.source.id_name,
        "images": written["images"],
        "rows": gathered.rows,
        "width": inputs.source.width,
        "bad_rows": gathered.bad.tolist(),
        "sample": SAMPLE,
        "seed": settings.seed,
        "follow_links": settings.follow_links,
        "parameters": parameters(model),
        "fitted": fitted_values(model),
        "classes": classes,
        "counts": summary["statuses"],
        "written": written,
        "key": out.key,
        "files": facts_of(out.parts, (name for name in outputs.WRITTEN if name != FILE)),
    }
    write_json(out.parts / FILE, project)
    out.publish(kept)
    return summary


def _earlier_summary(out: outputs.OutFolder, written: dict[str, Any]) -> dict[str, Any] | None:
    """Return the summary of a finished folder, whose hash was verified, if it has all outputs that
    are wanted now.
    """
    earlier = read_settings(out.path)["written"]
    needed = [name for name in outputs.WRITTEN if name != "report.html" or written["report"]]
    same = all(earlier.get(name) == written[name] for name in ("images", "image_url"))
    if not same or not all((out.path / name).is_file() for name in needed):
        return None
    out.remove_parts()
    return read_json(
        out.path / "summary.json", dict[str, Any], error=DataError, remedy=outputs.ADVICE
    )


def shard_rows(source: TableSource, shard: int | None = None) -> int:
    """Return how many rows to label at a time: ``shard``, or as many as fit SHARD_BYTES."""
    return shard or max(1, min(SHARD, SHARD_BYTES // (4 * source.width)))


def fit(gathered: Scan, settings: LabelSettings) -> tuple[SemiGPClassifier, list[str]]:
    """Fit the estimator on the labelled rows and the sample, by their row numbers; return it and
    notes for the user.
    """
    model = SemiGPClassifier(
        target_precision=settings.target_precision,
        per_class=settings.per_class,
        abstain=settings.abstain,
        class_prior=settings.class_prior,
        random_state=settings.seed,
    )
    labels = np.array([*gathered.labels, *[None] * len(gathered.sample)], dtype=object)
    rows = np.concatenate([gathered.labelled, gathered.sample])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model.fit(np.concatenate([gathered.x, gathered.sample_x]), labels, rows=rows)
    notes = [
        str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)
    ]
    notes += [] if model.engine_ == "exact" else [model.engine_reason_]
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
        "data": str(settings.data.resolve()),
        DATA: content,
        "labels content": [
            outputs.content_hash(path) for path in (settings.labels, *settings.more_labels)
        ],
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


def parameters(model: SemiGPClassifier) -> dict[str, Any]:
    """Return the parameters that make the same model without tuning: the learned values in place of
    "auto".
    """
    learned = {name: getattr(model, f"{name}_") for name in LEARNED}
    fixed = {"abstain": None, "target_precision": None}
    plain: dict[str, Any] = json.loads(
        json.dumps(model.get_params() | learned | fixed, default=float)
    )
    return plain


def summarise(
    settings: LabelSettings,
    inputs: Inputs,
    gathered: Scan,
    model: SemiGPClassifier,
    tally: outputs.Tally,
    progress: Progress,
) -> dict[str, Any]:
    """Return summary.json as plain values, with the keys that :mod:`semigpc.report.labeling_page`
    lists and a few more.

    Cross-validates if ``settings.report`` is set.
    """
    labels = np.array(gathered.labels, dtype=object)
    evidence = None
    if settings.report:
        report = partial(progress, "cross-validating")
        evidence = gather_evidence(
            model, gathered.x, labels, gathered.sample_x, seed=settings.seed, progress=report
        )
    classes = [str(name) for name in model.classes_]
    counts = Counter(gathered.labels)
    ids = dict(zip(gathered.labelled.tolist(), gathered.ids, strict=True))
    return {
        "title": f"Labels for {settings.data.name}",
        "data": str(settings.data),
        "rows": gathered.rows,
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
        "promise": promise_facts(model, settings, tally),
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
        "notes": _notes(inputs, gathered),
        "outliers": tally.outliers,
        "suspects": [
            {"id": ids[entry["row"]]} | entry for entry in (evidence or {}).get("suspects", [])
        ],
        "evidence": evidence,
        "why_none": too_few(labels) if settings.report else NO_REPORT,
    }


def promise_facts(
    model: SemiGPClassifier, settings: LabelSettings, tally: outputs.Tally
) -> dict[str, Any] | None:
    """Return what is promised of the labels given out, as plain values; None if nothing was asked
    for.

    ``target`` is asked for and kept with ``probability``; ``supported``, ``expected`` and
    ``possible`` are those of :class:`semigpc.estimator.Promise`. ``without`` are the classes of
    which no row got a label, and ``needed`` how many more labels would give each of them as many as
    the classes have that got some; 10 in all where none did.
    """
    promise = model.promise_
    if promise.target is None:
        return None
    counts = dict(zip(map(str, model.classes_), model.class_counts_.tolist(), strict=True))
    without = [name for name in ordered(counts) if not tally.pseudo[name]]
    enough = int(np.median([n for name, n in counts.items() if tally.pseudo[name]] or [FEW_LABELS]))
    return {
        "target": promise.target,
        "probability": PROBABILITY,
        "per_class": settings.per_class,
        "supported": promise.supported,
        "expected": promise.expected,
        "possible": promise.possible,
        "labels": sum(counts.values()),
        "without": without,
        "needed": {name: max(LEAST_MORE, enough - counts[name]) for name in without},
    }


def _settings_facts(settings: LabelSettings, source: TableSource) -> dict[str, Any]:
    names = source.columns.features
    tables = ", ".join(str(path) for path in (settings.labels, *settings.more_labels))
    return {
        "labels": tables if settings.labels else f"column {source.columns.label!r} of the data",
        "ids": source.id_name if source.has_ids else "row numbers",
        "features": names[0]
        if len(names) == 1
        else f"{len(names)} columns, {names[0]} to {names[-1]}",
        "target precision": settings.target_precision,
        "for each class": settings.per_class,
        "abstain below": settings.abstain,
        "seed": settings.seed,
        "skip bad rows": settings.skip_bad,
    }


def _notes(inputs: Inputs, gathered: Scan) -> list[str]:
    """Return sentences that the reader should see first."""
    notes, counts = list(inputs.notes), Counter(gathered.labels)
    single = [name for name in ordered(counts) if counts[name] == 1]
    if single:
        notes.append(f"Classes with a single label, of which little can be said: {listed(single)}.")
    if len(gathered.bad):
        kept = (
            f"; {len(gathered.bad_labels)} of them keep the label that was given"
            if gathered.bad_labels
            else ""
        )
        notes.append(
            f"Rows whose embedding is no finite number, and which were not labelled: {len(gathered.bad)}{kept}."
        )
    if len(gathered.labelled) + len(gathered.bad) == gathered.rows:
        notes.append("Every row has a label already: nothing was left to label.")
    return notes
