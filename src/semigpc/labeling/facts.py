"""Figures about a labelled data set: what summary.json holds and the report shows."""

import json
from collections import Counter
from typing import Any

import numpy as np
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.data.dataset import listed
from semigpc.data.folder import ordered
from semigpc.estimator import SemiGPClassifier
from semigpc.files import RELAXED, Count, Share
from semigpc.labeling.evidence import gather_evidence, too_few
from semigpc.labeling.inputs import Inputs, LabelSettings
from semigpc.labeling.outputs import Tally
from semigpc.labeling.parts import ALL_STATUSES
from semigpc.labeling.scan import Progress, Scan


class Statuses(TypedDict):
    """Rows of each status."""

    labelled: Count
    pseudo: Count
    abstained: Count
    outlier: Count


@with_config(RELAXED)
class Summary(TypedDict):
    """``summary.json``, as far as it is read again."""

    title: str
    notes: list[str]
    classes: list[str]
    given: list[Count]
    pseudo: list[Count]
    believed: list[Share]
    statuses: Statuses


def check_summary(summary: Summary) -> None:
    """Every class has its figures."""
    for name, values in (("given", summary["given"]), ("pseudo", summary["pseudo"]), ("believed", summary["believed"])):
        if len(values) != len(set(summary["classes"])):
            raise ValueError(f"{name} must have one number for each of the classes; got {len(values)}")


NOT_ASKED = "Nothing was held out, since --no-report left the cross-validation out."
FOLDS = 5


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
