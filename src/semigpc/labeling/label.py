"""Labels for all rows of a table, or all images of a folder, from the few that have one.

    inputs    the data are opened, images embedded, given labels read
    scan      pass 1: ids checked, labelled rows and a sample of the others gathered
    fit       the estimator, on those
    parts     pass 2: labels, confidence, variance, status and reasons, shard by shard; finished shards are kept if it stops
    outputs   labels.parquet, labels.csv, label_studio.json and .xml
    facts     cross-validation, summary.json, report.html; project.json at the very end

Memory does not grow with the rows, but for some 32 bytes each while ids are compared.
"""

import json
import time
import warnings
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.data.dataset import DataError, listed
from semigpc.data.folder import ordered
from semigpc.estimator import SemiGPClassifier
from semigpc.files import RELAXED, Count, Share, facts_of, locked, read_json, write_json, write_text
from semigpc.labeling.evidence import gather_evidence, too_few
from semigpc.labeling.inputs import Inputs, LabelSettings, check_classes, is_image_folder, open_inputs
from semigpc.labeling.outputs import (
    ADVICE,
    ALL_STATUSES,
    CHANGED,
    WRITTEN,
    Key,
    Labeller,
    LabelStudio,
    OutFolder,
    Tally,
    content_hash,
    files_hash,
    write_tables,
)
from semigpc.labeling.project import FILE, VERSION, read_settings
from semigpc.labeling.scan import SAMPLE, Matching, Progress, Scan, scan
from semigpc.labeling.source import Source
from semigpc.report.labeling_page import write_labeling_report

SHARD, SHARD_BYTES = 65_536, 2**28  # rows and bytes of embeddings that are labelled at a time, at most
DATA = "data content"
NETWORK = ("model", "pretrained", "image_size", "precision")  # what embeddings depend on
LEARNED = (
    "length_scale",
    "noise_std",
    "logit_scale",
    "scaling",
    "self_training",
)  # hyper-parameters that fitting sets, with a trailing _
NOT_ASKED = "Nothing was held out, since --no-report left the cross-validation out."
FOLDS = 5


def label_data(settings: LabelSettings, *, overwrite: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Label everything, write the folder, and answer with what summary.json holds.

    An identical call that was stopped goes on where it was; one that was finished is answered from the folder.

    Args:
        settings: what to label, and how. overwrite: replace labels that were made otherwise.
        progress: told (what is being done, how much is done, of how much if that is known).

    Raises:
        DataError: something is not there, cannot be meant, or would replace other labels.
        InUseError: another process writes that folder. WriteError: the disk is full, or the folder is read-only.
    """
    if settings.out.exists() and not settings.out.is_dir():
        raise DataError(f"--out must be a folder; {settings.out} is a file.")
    with locked(settings.out):
        return _label_data(settings, overwrite, progress)


def _label_data(settings: LabelSettings, overwrite: bool, progress: Progress | None) -> dict[str, Any]:
    began = time.monotonic()
    if not overwrite:
        OutFolder(settings.out, _key(settings, "")).check(ignoring=DATA)  # before images are embedded
    inputs = open_inputs(settings, overwrite=overwrite, progress=progress)
    out = OutFolder(settings.out, _key(settings, files_hash(inputs.source.files)))
    written = {"images": _text(inputs.images), "image_url": settings.image_url, "report": settings.report}
    finished = not overwrite and out.check()
    changed = out.altered() if finished else []
    held = _held_summary(out, written) if finished and not changed else None
    if held is not None:
        return held

    size = shard_rows(inputs.source, settings.shard)
    found = scan(
        inputs.source,
        Matching(inputs.given),
        size=size,
        seed=settings.seed,
        skip_bad=settings.skip_bad,
        labels_path=settings.labels,
        progress=progress,
    )
    check_classes(found.labels, settings.labels or settings.data)
    if progress is not None:
        progress("fitting", 0, None)
    model, notes = fit(found, settings)
    kept = [name for name in changed if (settings.out / name).exists()]
    inputs.notes.extend(notes)
    inputs.notes.extend(f"{name} was not as it had been written; it is kept as {name}{CHANGED}." for name in kept)

    out.begin(afresh=overwrite or finished)  # not before: what cannot be labelled replaces nothing, and leaves nothing behind
    parts = _label_parts(out, inputs, model, found, size, progress)
    studio = LabelStudio(inputs.images, settings.image_url, f"semigpc-{version('semigpc')}")
    tally = write_tables(map(out.read_part, range(parts)), out.parts, inputs.source.id_name, studio)
    classes = ordered(set(found.labels))
    write_text(out.parts / "label_studio.xml", studio.interface(classes))
    summary = summarise(settings, inputs, found, model, tally, progress) | {"seconds": round(time.monotonic() - began, 3)}
    write_json(out.parts / "summary.json", summary)
    if settings.report:
        write_labeling_report(out.parts / "report.html", summary)
    own = {"classes": classes, "counts": summary["statuses"], "written": written, "key": out.key}
    files = facts_of(out.parts, (name for name in WRITTEN if name != FILE))
    write_json(out.parts / FILE, _project(settings, inputs, found, model) | own | {"files": files})
    out.publish(kept)
    return summary


def _held_summary(out: OutFolder, written: dict[str, Any]) -> dict[str, Any] | None:
    """What a finished folder says, if it has all that is wanted now; a report too many does no harm."""
    held = read_settings(out.path)["written"]
    same = (held["images"], held["image_url"]) == (written["images"], written["image_url"])
    needed = [name for name in WRITTEN if name != "report.html" or written["report"]]
    if not same or not all((out.path / name).is_file() for name in needed):
        return None
    out.remove_parts()
    summary = read_json(out.path / "summary.json", LabelSummary, error=DataError, remedy=ADVICE, check=check_summary)
    return dict(summary)


def shard_rows(source: Source, asked: int | None = None) -> int:
    """Rows that are labelled at a time."""
    return asked or max(1, min(SHARD, SHARD_BYTES // (4 * source.width)))


def fit(found: Scan, settings: LabelSettings) -> tuple[SemiGPClassifier, list[str]]:
    """The estimator on the labelled rows and the sample, by their row numbers; and what a reader should know of it."""
    model = SemiGPClassifier(
        target_precision=settings.target_precision,
        abstain=settings.abstain,
        class_prior=settings.class_prior,
        self_training="auto" if settings.self_training else 0,
        random_state=settings.seed,
    )
    labels = np.array([*found.labels, *[None] * len(found.sample)], dtype=object)
    rows = np.concatenate([found.labelled, found.sample])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model.fit(np.concatenate([found.x, found.sample_x]), labels, rows=rows)
    told = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    told += [] if model.engine_ == "exact" else [model.engine_reason_]
    return model, [f"{text[:1].upper()}{text[1:]}" for text in told]


def parameters(model: SemiGPClassifier) -> dict[str, Any]:
    """What makes the same model again without tuning: all parameters, the learned ones in place of "auto"."""
    learned = {name: getattr(model, f"{name}_") for name in LEARNED}
    threshold = float(model.threshold_)
    settled = {"abstain": threshold if threshold > 0 else None, "target_precision": None}
    plain: dict[str, Any] = json.loads(json.dumps(model.get_params() | learned | settled, default=float))
    return plain


def _label_parts(
    out: OutFolder, inputs: Inputs, model: SemiGPClassifier, found: Scan, size: int, progress: Progress | None
) -> int:
    """Label the shards that are not there yet; returns how many there are in all."""
    parts = [out.part(number) for number in range(-(-found.rows // size))]
    if all(part.exists() for part in parts):
        return len(parts)
    labeller = Labeller(model, found, inputs.source.id_name)
    for number, batch in enumerate(inputs.source.batches(size)):
        if not parts[number].exists():
            out.write_part(number, labeller.table(batch))
        if progress is not None:
            progress("labelling", batch.first + len(batch.ids), found.rows)
    return len(parts)


def _key(settings: LabelSettings, data: str) -> Key:
    """What the labels depend on, besides the code."""
    of_images = is_image_folder(settings.data, follow_links=settings.follow_links)
    return {
        "data": str(settings.data.resolve()),
        DATA: data,
        "labels content": [content_hash(path) for path in (settings.labels, *settings.more_labels)],
        **{f"column of {name}": value for name, value in asdict(settings.columns).items()},
        "target precision": settings.target_precision,
        "abstain": settings.abstain,
        "class prior": settings.class_prior,
        "self-training": settings.self_training,
        "seed": settings.seed,
        "skip_bad": settings.skip_bad,
        "shard": settings.shard,
        "network": [getattr(settings.embed, name) for name in NETWORK] if of_images else None,
        "semigpc": version("semigpc"),
    }


def _project(settings: LabelSettings, inputs: Inputs, found: Scan, model: SemiGPClassifier) -> dict[str, Any]:
    """project.json, by which the folder is opened again."""
    inside = inputs.path.is_relative_to(settings.out.resolve())
    return {
        "version": VERSION,
        "data": str(inputs.path.relative_to(settings.out.resolve()) if inside else inputs.path),
        "labels": _text(settings.labels.resolve() if settings.labels else None),
        "columns": asdict(inputs.columns),
        "id_name": inputs.source.id_name,
        "images": _text(inputs.images),
        "rows": found.rows,
        "width": inputs.source.width,
        "bad_rows": found.bad.tolist(),
        "sample": SAMPLE,
        "seed": settings.seed,
        "follow_links": settings.follow_links,
        "parameters": parameters(model),
    }


def _text(path: Path | None) -> str | None:
    return str(path) if path is not None else None


class Statuses(TypedDict):
    """Rows of each status."""

    labelled: Count
    pseudo: Count
    abstained: Count
    outlier: Count


@with_config(RELAXED)
class LabelSummary(TypedDict):
    """``summary.json``, as far as it is read again."""

    title: str
    notes: list[str]
    classes: list[str]
    given: list[Count]
    pseudo: list[Count]
    believed: list[Share]
    statuses: Statuses


def check_summary(summary: LabelSummary) -> None:
    """Every class has its figures."""
    for name, values in (("given", summary["given"]), ("pseudo", summary["pseudo"]), ("believed", summary["believed"])):
        if len(values) != len(set(summary["classes"])):
            raise ValueError(f"{name} must have one number for each of the classes; got {len(values)}")


def summarise(
    settings: LabelSettings, inputs: Inputs, found: Scan, model: SemiGPClassifier, tally: Tally, progress: Progress | None
) -> dict[str, Any]:
    """Plain values, with the keys that :mod:`semigpc.report.labeling_page` lists and a few more; cross-validates if asked.

    Args:
        settings: what was asked for. inputs, found, model, tally: what became of it.
        progress: as for ``label_data``.
    """
    labels = np.array(found.labels, dtype=object)
    evidence = _evidence(settings, found, model, labels, progress) if settings.report else None
    classes = [str(name) for name in model.classes_]
    given = Counter(found.labels)
    ids = dict(zip(found.labelled.tolist(), found.ids, strict=True))
    summary = {
        "title": f"Labels for {settings.data.name}",
        "data": str(settings.data),
        "rows": found.rows,
        "width": inputs.source.width,
        "id_name": inputs.source.id_name,
        "rows_noun": "images" if inputs.images else "rows",
        "classes": classes,
        "given": [given[name] for name in classes],
        "pseudo": [tally.pseudo[name] for name in classes],
        "believed": [float(share) for share in model.class_shares_],
        "statuses": {status: tally.statuses[status] for status in ALL_STATUSES},
        "threshold": float(model.threshold_),
        "target_precision": settings.target_precision,
        "model": _model(model, found),
        "settings": _settings(settings, inputs),
        "notes": _notes(inputs, found),
        "outliers": tally.outliers,
        "suspects": [{"id": ids[entry["row"]]} | entry for entry in (evidence or {}).get("suspects", [])],
        "evidence": evidence,
        "why_none": too_few(labels) if settings.report else NOT_ASKED,
    }
    plain: dict[str, Any] = json.loads(json.dumps(summary, default=_plain))
    return plain


def _evidence(
    settings: LabelSettings, found: Scan, model: SemiGPClassifier, labels: Any, progress: Progress | None
) -> dict[str, Any] | None:
    def told(done: int, total: int) -> None:
        if progress is not None:
            progress("cross-validating", done, total)

    return gather_evidence(model, found.x, labels, found.sample_x, folds=FOLDS, seed=settings.seed, progress=told)


def _model(model: SemiGPClassifier, found: Scan) -> dict[str, Any]:
    return {
        "kernel": str(model.get_params()["kernel"]),
        "scaling": str(model.scaling_),
        "length_scale": float(model.length_scale_),
        "noise_std": float(model.noise_std_),
        "logit_scale": float(model.logit_scale_),
        "self_training": int(model.self_training_),
        "engine": str(model.engine_),
        "labels used": len(model.labeled_rows_),
        "rows in the sample": len(found.sample),
    }


def _settings(settings: LabelSettings, inputs: Inputs) -> dict[str, Any]:
    columns, source = inputs.source.columns, inputs.source
    return {
        "labels": ", ".join(str(path) for path in (settings.labels, *settings.more_labels))
        if settings.labels
        else f"column {columns.label!r} of the data",
        "ids": source.id_name if source.has_ids else "row numbers",
        "features": _few(columns.features),
        "target precision": settings.target_precision,
        "abstain below": settings.abstain,
        "seed": settings.seed,
        "skip bad rows": settings.skip_bad,
    }


def _notes(inputs: Inputs, found: Scan) -> list[str]:
    """Sentences that the reader should see first."""
    notes, counts = list(inputs.notes), Counter(found.labels)
    single = [name for name in ordered(counts) if counts[name] == 1]
    if single:
        notes.append(f"Classes with a single label, of which little can be said: {listed(single)}.")
    if len(found.bad):
        kept = f"; {len(found.bad_labels)} of them keep the label that was given" if found.bad_labels else ""
        notes.append(f"Rows whose embedding is no finite number, and which were not labelled: {len(found.bad)}{kept}.")
    if len(found.labelled) + len(found.bad) == found.rows:
        notes.append("Every row has a label already: nothing was left to label.")
    return notes


def _few(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} columns, {names[0]} to {names[-1]}"


def _plain(value: Any) -> Any:
    """NumPy values as JSON holds them."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
