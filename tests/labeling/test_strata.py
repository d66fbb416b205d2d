"""Which pseudo-labels are alike, and how many of each kind to check."""

from pathlib import Path

import numpy as np
import pytest
from pyarrow import compute

from semigpc.io.errors import DataError
from semigpc.labeling.audit import PseudoRows, Stratum, allocate
from tests.labeling.pseudo import CLASSES, pseudo_project


def test_every_pseudo_label_is_in_one_stratum_and_no_other_row_is(tmp_path: Path) -> None:
    project, _ = pseudo_project(tmp_path)
    pseudo = PseudoRows.of(project)
    status = np.array(project.table.column("status").to_pylist())
    assert pseudo.rows.tolist() == np.flatnonzero(status == "pseudo").tolist()
    strata, member = pseudo.strata(pseudo.edges(3))
    assert [stratum.name for stratum in strata[:4]] == [
        "heron, low",
        "heron, middle",
        "heron, high",
        "stork, low",
    ]
    assert sum(stratum.rows for stratum in strata) == len(pseudo.rows)
    for number, stratum in enumerate(strata):
        assert (pseudo.codes[member == number] == CLASSES.index(stratum.label)).all()
        assert stratum.confidence == pytest.approx(pseudo.confidence[member == number].mean())
    assert len({stratum.rows for stratum in strata if stratum.label == "heron"}) > 1
    by_band = [sum(s.rows for s in strata if s.band == band) for band in ("low", "middle", "high")]
    assert max(by_band) - min(by_band) <= 2


def test_rows_that_are_all_equally_sure_are_one_band(tmp_path: Path) -> None:
    project, _ = pseudo_project(tmp_path)
    pseudo = PseudoRows.of(project)._replace(confidence=np.ones(len(PseudoRows.of(project).rows)))
    assert pseudo.edges(3) == []
    assert [stratum.name for stratum in pseudo.strata([])[0]] == CLASSES


def test_every_class_gets_a_few_and_the_rest_go_where_most_is_unsure() -> None:
    strata = [
        Stratum("a", "low", 1000, 0.6),
        Stratum("a", "high", 1000, 0.99),
        Stratum("b", "low", 3, 0.6),
        Stratum("b", "high", 40, 0.99),
        Stratum("c", "high", 2, 0.99),
    ]
    drawn = allocate(strata, 100)
    assert sum(drawn) == 100
    assert drawn[2:] == [3, 3, 2]
    assert drawn[0] / drawn[1] == pytest.approx(
        0.49 / 0.3, rel=0.1
    )  # sqrt(0.6 * 0.4) and sqrt(0.9 * 0.1)
    assert allocate(strata, 2045) == [stratum.rows for stratum in strata]


@pytest.mark.parametrize("sample", [12, 24, 60, 200])
def test_a_sample_of_any_size_is_spent_to_the_last_row(sample: int) -> None:
    rng = np.random.default_rng(sample)
    bands = min(3, sample // 12)
    strata = [
        Stratum(str(c), str(b), int(rng.integers(1, 400)), 0.9)
        for c in range(6)
        for b in range(bands)
    ]
    drawn = np.array(allocate(strata, sample))
    assert drawn.sum() == sample
    assert (drawn >= 1).all()
    assert (drawn <= [stratum.rows for stratum in strata]).all()


def test_no_pseudo_labels_at_all(tmp_path: Path) -> None:
    project, _ = pseudo_project(tmp_path)
    project.table = project.table.filter(
        compute.not_equal(project.table.column("status"), "pseudo")
    )
    with pytest.raises(
        DataError,
        match="has no pseudo-labels to check: every row is labelled by you, an outlier or abstained",
    ):
        PseudoRows.of(project)
