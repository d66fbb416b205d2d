"""Is `semigpc train` on photographs without a GPU ever behind `semigpc label` on the same ones?"""

import csv
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.tables import Json, Seeds, StudyFile, new_table, read_seeds, script, show
from semigpc.data import ImageSet, Splits
from semigpc.io.atomic import write_json
from semigpc.io.errors import DataError
from semigpc.labeling.inference import answer_split
from semigpc.models.encoder import EmbedConfig
from semigpc.training import train
from semigpc.training.inference import load_run
from semigpc.training.metrics import classification_metrics
from semigpc.training.presets import TrainOptions, resolve
from semigpc.training.state import DataCache

TEST_SHARE = 0.4  # of the photographs of each class
SURE = 0.95  # confidence above which labels are counted
LABEL = "semigpc label"
Record = dict[str, Any]
Report = Callable[[str], object]


def draw(
    files: Sequence[Path], labels: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of labelled and of test photographs; the rest is unlabelled.

    The test part is drawn class by class. Labels are a random sample of the rest, with two of each
    class at least.

    Args:
        files: of which the folder is the class. labels: how many.
    """
    rng = np.random.default_rng([seed, labels])
    names = [file.parent.name for file in files]
    test = []
    sure = []
    rest = []
    for name in sorted(set(names)):
        own = rng.permutation([i for i, each in enumerate(names) if each == name])
        held = round(TEST_SHARE * len(own))
        test += own[:held].tolist()
        sure += own[held : held + 2].tolist()
        rest += own[held + 2 :].tolist()
    more = rng.permutation(rest)[: labels - len(sure)]
    if len(sure) + len(more) != labels:
        raise DataError(f"there are no {labels} photographs to label beside those of the test.")
    return np.sort(np.concatenate([sure, more]).astype(np.int64)), np.sort(test)


def run_cell(root: Path, labels: int, seed: int, settings: Sequence[str] = ()) -> Record:
    """Train once and label once on the same photographs; return the figures of both on the test.

    Args:
        root: one folder per class. labels: how many photographs have one. seed: of the draw, the
            run and the labelling. settings: of the run.
    """
    files = sorted(path for path in root.rglob("*") if path.is_file())
    given, test = draw(files, labels, seed)
    with TemporaryDirectory() as folder:
        place = Path(folder)
        for name, rows in (("labels", given), ("test", test)):
            with (place / f"{name}.csv").open("w", newline="") as file:
                table = csv.writer(file)
                table.writerow(["file_name", "label"])
                table.writerows(
                    [files[i].relative_to(root).as_posix(), files[i].parent.name] for i in rows
                )
        options = TrainOptions(
            labels=place / "labels.csv", test=place / "test.csv", seed=seed, cached=True
        )
        cache = DataCache()
        experiment, _ = resolve(str(root), options, cache)
        experiment = experiment.override(settings)
        splits = cache.splits(experiment.data, experiment.seed)
        assert splits.test is not None
        summary = train(experiment, place / "run", cache=cache)
        predictions = load_run(place / "run").predict(splits.test)
    heads = {head: _figures(probs, splits.test) for head, probs in predictions.probs.items()}
    return {
        "data": root.name,
        "labels": labels,
        "seed": seed,
        "unlabelled": len(splits.unlabeled),
        "test": len(splits.test),
        "used": summary["head"],
        "heads": heads,
        LABEL: _labelled(splits, seed),
    }


def _labelled(splits: Splits, seed: int) -> Record:
    assert splits.test is not None
    probs, _ = answer_split(EmbedConfig(), splits, splits.test, seed, lambda *_: None)
    return _figures(probs, splits.test)


def _figures(probs: NDArray[np.float64], images: ImageSet) -> Record:
    sure = probs.max(axis=1) > SURE
    right = probs.argmax(axis=1) == images.labels
    figures = classification_metrics(probs, images.labels, {})
    return {
        "balanced": round(100 * figures["balanced_accuracy"], 2),
        "sure": int(sure.sum()),
        "sure_right": int((sure & right).sum()),
    }


def summarise(cells: Sequence[Record]) -> list[Record]:
    """Return means over seeds, for each data set and number of labels."""
    rows = []
    for data, labels in dict.fromkeys((cell["data"], cell["labels"]) for cell in cells):
        own = [c for c in cells if (c["data"], c["labels"]) == (data, labels)]
        by_name = {head: [c["heads"][head] for c in own] for head in own[0]["heads"]}
        by_name |= {"train": [c["heads"][c["used"]] for c in own], LABEL: [c[LABEL] for c in own]}
        behind = [c["heads"][c["used"]]["balanced"] - c[LABEL]["balanced"] for c in own]
        means = {
            name: {
                "balanced": round(float(np.mean([f["balanced"] for f in found])), 2),
                "std": round(float(np.std([f["balanced"] for f in found])), 2),
                "sure": sum(f["sure"] for f in found),
                "sure_right": sum(f["sure_right"] for f in found),
            }
            for name, found in by_name.items()
        }
        rows.append(
            {
                "data": data,
                "labels": labels,
                "seeds": len(own),
                "least_difference": round(min(behind), 2),
                "means": means,
            }
        )
    return rows


def photographs(
    folders: Annotated[
        list[Path],
        typer.Argument(exists=True, file_okay=False, help="Photographs, one folder per class."),
    ],
    labels: Annotated[
        list[int] | None, typer.Option("--labels", help="Labels; repeat. Default: 60, 120, 300.")
    ] = None,
    seeds: Seeds = "3",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the runs.")
    ] = None,
    out: StudyFile = Path("photographs.json"),
    as_json: Json = False,
) -> None:
    """Compare the heads of train with label, in balanced accuracy and above 95 % confidence.

    python benchmarks/photographs.py trashnet sign_digits --out photographs.json
    """
    cells: list[Record] = json.loads(out.read_text())["cells"] if out.exists() else []
    done = {(cell["data"], cell["labels"], cell["seed"]) for cell in cells}
    for root in folders:
        for count in labels or (60, 120, 300):
            for seed in read_seeds(seeds):
                if (root.resolve().name, count, seed) in done:
                    continue
                cells.append(run_cell(root.resolve(), count, seed, settings or ()))
                write_json(out, {"summary": summarise(cells), "cells": cells})
                latest = {head: each["balanced"] for head, each in cells[-1]["heads"].items()}
                Console(stderr=True).print(root.name, count, seed, latest)
    rows = summarise(cells)
    show({"summary": rows, "cells": cells}, lambda: [_table(rows)], as_json=as_json)


def _table(rows: Sequence[Record]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row["means"]))
    made = new_table("Balanced accuracy; right above 95 % confidence", "", *names, "least")
    for row in rows:
        cells = []
        for name in names:
            mean = row["means"].get(name)
            share = f"{100 * mean['sure_right'] / mean['sure']:.0f}" if mean["sure"] else "none"
            cells.append(f"{mean['balanced']:.1f} ± {mean['std']:.1f}; {share}")
        made.add_row(f"{row['data']} {row['labels']}", *cells, f"{row['least_difference']:+.1f}")
    return made


app = script(photographs)
if __name__ == "__main__":
    app()
