"""A sample of the pseudo-labels to check by hand; what was drawn is kept in audit.json, so that answers can be weighed."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, with_config
from typing_extensions import TypedDict

from semigpc.data.dataset import DataError, listed
from semigpc.files import RELAXED, Count, Positive, Share, read_json, shown, write_json
from semigpc.labeling.hand_tables import own_names, write_hand_table
from semigpc.labeling.project import Project
from semigpc.labeling.strata import BANDS, PseudoLabels, Stratum, allocate

TABLE, FACTS = "audit.csv", "audit.json"
AGAIN = "Draw a new sample (semigpc audit OUT --sample N --overwrite)."


class StratumFacts(TypedDict):
    """A stratum, and how many of its rows were drawn."""

    label: str
    band: Literal["all", "low", "middle", "high"]
    rows: Positive
    confidence: Share
    drawn: Count


class SampleFacts(TypedDict):
    """A :class:`Design` as JSON holds it."""

    seed: Count
    edges: list[Share]
    strata: list[StratumFacts]
    rows: dict[str, Annotated[tuple[str, Count], Field(strict=False)]]  # a list in JSON


@with_config(RELAXED)
class AuditFacts(TypedDict):
    """``audit.json``; what was found, under "result", is written again and never read."""

    sample: SampleFacts


def _check_facts(facts: AuditFacts) -> None:
    sample = facts["sample"]
    if len(sample["edges"]) not in {bands - 1 for bands in BANDS} or sample["edges"] != sorted(set(sample["edges"])):
        raise ValueError(f"sample.edges must be at most {max(BANDS) - 1} rising numbers; got {shown(sample['edges'])}")
    drawn = Counter(number for _, number in sample["rows"].values())
    for number, stratum in enumerate(sample["strata"]):
        if drawn.pop(number, 0) != stratum["drawn"] or stratum["drawn"] > stratum["rows"]:
            raise ValueError(f"sample.strata[{number}].drawn must be how many of its rows are listed; got {stratum['drawn']}")
    if drawn:
        raise ValueError(f"sample.rows must be of the {len(sample['strata'])} strata; got number {max(drawn)}")


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
            held = read_json(path, AuditFacts, error=DataError, remedy=AGAIN, check=_check_facts)["sample"]
        except FileNotFoundError as error:
            raise DataError(f"No sample was drawn from {project.folder}: it has no {FACTS}. {AGAIN}") from error
        design = cls(
            seed=held["seed"],
            edges=held["edges"],
            strata=[Stratum(entry["label"], entry["band"], entry["rows"], entry["confidence"]) for entry in held["strata"]],
            counts=[entry["drawn"] for entry in held["strata"]],
            rows=held["rows"],
        )
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
                f"{len(changed)} rows of the sample in {FACTS} have another label or status in labels.parquet than when "
                f"it was drawn: {listed(changed, 3)}. Answers about the old labels say nothing of the new ones. {AGAIN}"
            )
        strata, _ = PseudoLabels.of(project).strata(self.edges)
        if [stratum[:3] for stratum in strata] != [stratum[:3] for stratum in self.strata]:
            raise DataError(f"{project.folder} was labelled again since the sample of {FACTS} was drawn. {AGAIN}")


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
