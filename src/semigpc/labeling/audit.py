"""A sample of the pseudo-labels to check by hand; what was drawn is kept in audit.json, so that answers can be weighed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from semigpc.data.dataset import DataError, listed
from semigpc.files import write_json
from semigpc.labeling.hand_tables import own_names, write_hand_table
from semigpc.labeling.project import Project
from semigpc.labeling.strata import BANDS, PseudoLabels, Stratum, allocate

TABLE, FACTS = "audit.csv", "audit.json"
AGAIN = "Draw a new sample (semigpc audit OUT --sample N --overwrite)."


@dataclass(frozen=True)
class Design:
    """What was drawn.

    Args:
        seed: of the drawing. edges: between bands of confidence.
        strata: H of them. counts: (H,) rows drawn from each at random, so that a row of stratum h is in with the probability
            counts[h] / strata[h].rows.
        rows: label and number of the stratum of each row that was drawn, by id, in the order of the table.
    """

    seed: int
    edges: list[float]
    strata: list[Stratum]
    counts: list[int]
    rows: dict[str, tuple[str, int]]

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        strata = [stratum._asdict() | {"drawn": n} for stratum, n in zip(self.strata, self.counts, strict=True)]
        return {"seed": self.seed, "edges": self.edges, "strata": strata, "rows": self.rows}

    @classmethod
    def read(cls, project: Project) -> "Design":
        """From audit.json; an error if it is not there, or if the labels were made again since."""
        path = project.folder / FACTS
        try:
            held = json.loads(path.read_text(encoding="utf-8"))["sample"]
            design = cls(
                seed=held["seed"],
                edges=held["edges"],
                strata=[Stratum(*(entry[name] for name in Stratum._fields)) for entry in held["strata"]],
                counts=[entry["drawn"] for entry in held["strata"]],
                rows={name: (label, number) for name, (label, number) in held["rows"].items()},
            )
        except FileNotFoundError as error:
            raise DataError(f"No sample was drawn from {project.folder}: it has no {FACTS}. {AGAIN}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} cannot be read ({type(error).__name__}: {error}). {AGAIN}") from error
        design._check(project)
        return design

    def _check(self, project: Project) -> None:
        """Rows must have the labels that they were drawn with, and strata as many rows."""
        numbers = {name: row for row, name in enumerate(project.ids) if name in self.rows}
        labels, status = (project.table.column(name) for name in ("label", "status"))
        now = {name: labels[row].as_py() for name, row in numbers.items() if status[row].as_py() == "pseudo"}
        changed = [name for name, (label, _) in self.rows.items() if now.get(name) != label]
        if changed:
            raise DataError(
                f"{len(changed)} rows of the sample have another label or status in labels.parquet than when it was drawn: "
                f"{listed(changed, 3)}. Answers about the old labels say nothing of the new ones. {AGAIN}"
            )
        strata, _ = PseudoLabels.of(project).strata(self.edges)
        if [stratum[:3] for stratum in strata] != [stratum[:3] for stratum in self.strata]:
            raise DataError(f"{project.folder} was labelled again since the sample was drawn. {AGAIN}")


def draw_sample(project: Project, sample: int = 200, *, seed: int = 0, overwrite: bool = False) -> tuple[Path, Design]:
    """Draw pseudo-labelled rows at random within strata of class and confidence, and write them to audit.csv for people.

    Bands of confidence are thirds of all pseudo-labels, halves or the whole where the sample would leave fewer than two rows
    for a stratum. How many rows of each are drawn is said at :func:`semigpc.labeling.strata.allocate`.

    Args:
        project: what was labelled. sample: rows to check; all of them if there are no more.
        seed: of the drawing. overwrite: replace a sample of which some rows are answered.

    Raises:
        DataError: there is nothing to check, the sample is too small, or answers would be lost.
    """
    pseudo = PseudoLabels.of(project)
    classes, sample = len(pseudo.classes), min(sample, len(pseudo.rows))
    if sample < classes:
        raise DataError(
            f"A sample must have a row of each of the {classes} classes among the pseudo-labels; got {sample}. "
            f"Take at least {classes}, better {10 * classes}."
        )
    edges = pseudo.edges(min(max(BANDS), max(1, sample // (2 * classes))))
    strata, member = pseudo.strata(edges)
    counts = allocate(strata, sample)
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(np.flatnonzero(member == h), count, replace=False) for h, count in enumerate(counts)]
    order = rng.permutation(np.concatenate(chosen))  # the same class in a row would blunt the eye
    rows = {project.ids[pseudo.rows[i]]: (pseudo.classes[pseudo.codes[i]], int(member[i])) for i in order.tolist()}
    design = Design(seed, edges, strata, counts, rows)
    path = project.folder / TABLE
    others = own_names(("label", "confidence", "stratum", "inclusion", "truth"), project.id_name)
    table = [
        (name, label, f"{pseudo.confidence[i]:.6g}", strata[h].name, f"{counts[h] / strata[h].rows:.6g}", "")
        for i, (name, (label, h)) in zip(order.tolist(), rows.items(), strict=True)
    ]
    write_hand_table(path, [project.id_name, *others], table, blank="truth", overwrite=overwrite)
    write_facts(project, {"sample": design.plain()})
    return path, design


def write_facts(project: Project, facts: dict[str, Any]) -> Path:
    """audit.json, all at once."""
    path = project.folder / FACTS
    write_json(path, facts)
    return path
