"""The images that a report shows: suspects, confusions, outliers and examples of each class, small
and inside of the page.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import compute, parquet

from semigpc.estimator import SemiGPClassifier, Status
from semigpc.io.errors import ImageError
from semigpc.io.images import thumbnail
from semigpc.labeling.evidence import FOLDS, STAYS, assign_folds
from semigpc.labeling.project import image_path
from semigpc.labeling.scan import Scan
from semigpc.labeling.source import Rows
from semigpc.report.labeling_page import Examples, ReportImages

SIZE, QUALITY = 96, 75  # pixels along the longer side, and of JPEG: some 3 kB each
MOST = 150  # images of a report
SUSPECTS, PAIRS, OUTLIERS = 30, 15, 20  # of these at most; examples of classes have the rest
EACH = 3  # examples of a class and kind at most

Confused = dict[tuple[str, str], str]  # an id for a pair of classes, given and predicted


def report_images(
    folder: Path, table: Path, summary: Mapping[str, Any], confused: Confused, *, follow_links: bool
) -> ReportImages:
    """Return the images of a report, of at most MOST rows; rows without an image that can be read
    have none.

    Args:
        folder: of the images, by the ids. table: labels.parquet.
        summary: content of summary.json. confused: see :func:`confused_rows`.
    """
    suspects = [row["id"] for row in summary["suspects"][:SUSPECTS]]
    pairs = [
        (pair["true"], pair["believed"])
        for pair in (summary["evidence"] or {}).get("confusions", [])
    ]
    shown = {pair: confused[pair] for pair in pairs[:PAIRS] if pair in confused}
    outliers = [row["id"] for row in summary["outliers"][:OUTLIERS]]
    ids = [*suspects, *shown.values(), *outliers]
    room = (MOST - len(ids)) // 3  # examples of each of the three kinds
    rarest = [summary["classes"][c] for c in np.argsort(summary["given"], kind="stable")[:room]]
    each = min(EACH, room // max(1, len(rarest)))
    examples = class_examples(table, summary["id_name"], rarest, each) if each else {}
    ids += [name for kinds in examples.values() for rows in kinds.values() for name, _ in rows]
    root = folder.resolve()
    thumbnails = {
        name: text for name in dict.fromkeys(ids) if (text := _embedded(root, name, follow_links))
    }
    return ReportImages(thumbnails, examples, shown)


def confused_rows(model: SemiGPClassifier, gathered: Scan, seed: int) -> Confused:
    """Return for each pair of classes, given and predicted for held-out labels, the id of the row
    where that is surest.

    Args:
        model: fitted on what was gathered. seed: of the folds, as for
            :func:`semigpc.labeling.evidence.gather_evidence`.
    """
    names, ids = (
        [str(name) for name in model.classes_],
        dict(zip(gathered.labelled.tolist(), gathered.ids, strict=True)),
    )
    folds = assign_folds(np.searchsorted(names, gathered.labels).astype(np.int64), FOLDS, seed)
    left = model.leave_one_out(folds if model.engine_ == "exact" else None)
    wrong = np.flatnonzero((left.decided != left.codes) & (folds != STAYS))
    wrong = wrong[np.argsort(left.confidence[wrong], kind="stable")]  # the surest last, which stays
    return {(names[left.codes[i]], names[left.decided[i]]): ids[int(left.rows[i])] for i in wrong}


def class_examples(
    table: Path, id_name: str, classes: Sequence[str], each: int
) -> dict[str, Examples]:
    """Return for each class ids and confidences of ``each`` rows with a given label, and of the
    surest and least sure new ones.

    Reads the table once, a part at a time.
    """
    examples: dict[str, Examples] = {
        name: {"given": [], "most sure": [], "least sure": []} for name in classes
    }
    for batch in parquet.ParquetFile(table).iter_batches(
        columns=[id_name, "label", "confidence", "status"]
    ):
        ids, confidence = batch.column(id_name), batch.column("confidence").to_numpy()
        labels = batch.column("label").dictionary_encode()
        codes = labels.indices.fill_null(-1).to_numpy()
        is_given, is_new = (
            np.asarray(compute.equal(batch.column("status"), name))
            for name in (Status.LABELLED.text, Status.PSEUDO.text)
        )

        def entries(
            rows: Rows, ids: Any = ids, confidence: Any = confidence
        ) -> list[tuple[str, float]]:
            return [(ids[int(row)].as_py(), float(confidence[row])) for row in rows]

        for code, name in enumerate(labels.dictionary.to_pylist()):
            if name in examples:
                found, new = examples[name], np.flatnonzero((codes == code) & is_new)
                new = new[np.argsort(-confidence[new], kind="stable")]
                found["given"] += entries(
                    np.flatnonzero((codes == code) & is_given)[: each - len(found["given"])]
                )
                found["most sure"] = _surest_first(found["most sure"] + entries(new[:each]))[:each]
                found["least sure"] = _surest_first(
                    found["least sure"] + entries(new[each:][-each:])
                )[-each:]
    return examples


def _surest_first(rows: list[tuple[str, float]]) -> list[tuple[str, float]]:
    return sorted(rows, key=lambda row: -row[1])


def _embedded(folder: Path, name: str, follow_links: bool) -> str | None:
    """Return the image of an id as the address of an <img>; None if there is none that can be read."""
    path = image_path(folder, name, follow_links)
    try:
        return (
            None
            if path is None
            else f"data:image/jpeg;base64,{b64encode(thumbnail(path, SIZE, QUALITY)).decode()}"
        )
    except ImageError:
        return None
