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
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from semigpc.data.dataset import DataError
from semigpc.data.folder import ordered
from semigpc.estimator import SemiGPClassifier
from semigpc.files import facts_of, locked, read_json, write_json, write_text
from semigpc.labeling.facts import Summary, check_summary, summarise
from semigpc.labeling.given import Matching
from semigpc.labeling.inputs import Inputs, LabelSettings, check_classes, is_image_folder, open_inputs
from semigpc.labeling.label_studio import LabelStudio
from semigpc.labeling.out_folder import ADVICE, CHANGED, WRITTEN, Key, OutFolder, content_hash, files_hash
from semigpc.labeling.outputs import write_tables
from semigpc.labeling.parts import Labeller
from semigpc.labeling.project import FILE, VERSION, read_settings
from semigpc.labeling.scan import SAMPLE, Progress, Scan, scan
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
    summary = read_json(out.path / "summary.json", Summary, error=DataError, remedy=ADVICE, check=check_summary)
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
