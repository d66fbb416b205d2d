"""The page of a labelled data set says what the facts say, needs nothing else, and does without
what is not known.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from semigpc.gp.certainty import ReliabilityBins
from semigpc.report.charts import reliability_chart
from semigpc.report.labeling_page import ReportImages, write_labeling_report
from semigpc.report.labeling_summary import LabelingSummary
from tests.report.labeled import make_facts
from tests.report.test_run_page import assert_self_contained

TITLES = [
    "Shares of the classes",
    "Recall and precision of each class",
    "Coverage against precision",
    "Reliability",
    "Most frequent confusions",
    "The same folds, by other methods",
]


def page_of(folder: Path, facts: dict[str, Any]) -> str:
    record = cast("LabelingSummary", facts)
    return write_labeling_report(folder / "report.html", record).read_text(encoding="utf-8")


def titles(page: str) -> list[str]:
    return re.findall(r"<h3>([^<]+)</h3>\s*<svg", page)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(tmp_path_factory.mktemp("page"), make_facts())


def test_the_page_needs_nothing_else_and_has_every_chart_with_a_caption(page: str) -> None:
    assert_self_contained(page)
    assert titles(page) == TITLES
    captions = re.findall(r"<figcaption>(.+?)</figcaption>", page)
    assert len(captions) == len(TITLES)
    assert all(caption.endswith(".") for caption in captions)


def test_the_headline_says_how_many_got_a_label_and_why_others_did_not(page: str) -> None:
    facts = make_facts()
    pseudo, left, outlier = (facts["statuses"][key] for key in ("pseudo", "abstained", "outlier"))
    assert f"Of 20,000 rows without a label, {pseudo:,} ({pseudo / 200:.1f}%) got one." in page
    assert (
        f"{left:,} ({left / 200:.1f}%) because no class was sure enough (confidence below 62.0%, or two classes compete)"
        in page
    )
    assert f"{outlier:,} ({outlier / 200:.1f}%) because they are unlike everything labelled" in page


def test_the_expected_precision_comes_with_its_interval_and_how_it_is_known(page: str) -> None:
    assert "92.3% of the labels given out would be right (95% interval 90.0% to 94.1%)" in page
    assert "This is less than the 95.0% requested." in page
    assert "361 given labels, each predicted by a model that had not seen it (5 folds)" in page
    assert "labels are weighted by the estimated share of their class" in page


PROMISE: dict[str, Any] = {
    "target": 0.95,
    "probability": 0.9,
    "per_class": False,
    "supported": 0.889,
    "expected": 0.971,
    "possible": None,
}
PROMISE |= {"labels": 40, "without": [], "needed": {}}


@pytest.mark.slow
def test_promise_and_confidence_are_stated_apart(tmp_path: Path) -> None:
    written = page_of(tmp_path, make_facts(promise=PROMISE))
    assert "95% of the labels given out are right, with probability 90%" in written
    assert "support 88% (40 given labels)." in written
    assert (
        "Apart from the promise, the mean confidence of the labels given out is 97.1%." in written
    )
    written = page_of(
        tmp_path, make_facts(promise=PROMISE | {"per_class": True, "supported": 0.95})
    )
    assert "95% of the labels given out of every class are right" in written
    assert "taken alone, support" not in written
    facts = make_facts(promise=PROMISE | {"expected": None, "supported": None, "possible": 0.8})
    facts["statuses"] |= {
        "pseudo": 0,
        "abstained": facts["statuses"]["abstained"] + facts["statuses"]["pseudo"],
    }
    written = page_of(tmp_path, facts)
    assert "40 given labels are too few to guarantee 95% precision." in written
    assert "A guarantee of 80% would be possible." in written


@pytest.mark.slow
def test_classes_that_get_nothing_are_named_before_anything_else(page: str, tmp_path: Path) -> None:
    assert "No new labels" not in page
    promise = PROMISE | {"without": ["class 8", "class 9"], "needed": {"class 8": 6, "class 9": 6}}
    written = page_of(tmp_path, make_facts(promise=promise))
    line = "No new labels for: class 8, class 9. Label 6 more of each."
    assert written.index(line) < written.index('class="notice good"')
    facts = make_facts()
    facts["pseudo"][3] = 0  # without a promise, from the counts
    assert "No new labels for: class 3. Label more of it." in page_of(tmp_path, facts)


def test_one_of_a_kind_is_singular(tmp_path: Path) -> None:
    facts = make_facts(rows_noun="images")
    facts["statuses"]["outlier"] = 1
    facts |= {"outliers": facts["outliers"][:1], "suspects": facts["suspects"][:1]}
    facts["evidence"]["confusions"] = facts["evidence"]["confusions"][:1]
    written = page_of(tmp_path, facts)
    for text in (
        "1 image is unlike",
        "because it is unlike",
        "<summary>1 label to check",
        "<summary>1 pair of classes",
    ):
        assert text in written
    assert not re.search(r"\b1 (images|rows|labels|pairs|classes)\b", written)


def test_ticks_are_written_as_they_stand() -> None:
    bins: ReliabilityBins = {
        "edges": [0, 0.5, 1],
        "accuracy": [0.4, 0.9],
        "confidence": [0.3, 0.8],
        "count": [3, 8],
    }
    chart = reliability_chart(bins, 0.1, beside=True)
    assert chart is not None
    counts = [int(text) for text in re.findall(r">(\d+)</text>", chart.svg)]
    assert len({b - a for a, b in pairwise(counts)}) == 1, "no 2 for 2.5 and 8 for 7.5"


@pytest.mark.slow
def test_images_are_inside_of_the_page_beside_their_rows(tmp_path: Path) -> None:
    facts = make_facts()
    suspect, outlier = facts["suspects"][0]["id"], facts["outliers"][0]["id"]
    pair = (
        facts["evidence"]["confusions"][0]["true"],
        facts["evidence"]["confusions"][0]["believed"],
    )
    address = {
        name: f"data:image/jpeg;base64,{i}AAA"
        for i, name in enumerate((suspect, outlier, "a.png", "b.png", "c.png"))
    }
    examples = {
        "class 0": {
            "given": [("a.png", 1.0)],
            "most sure": [("b.png", 0.994)],
            "least sure": [("gone.png", 0.95)],
        }
    }
    images = ReportImages(address, examples, {pair: "c.png"})
    record = cast("LabelingSummary", facts)
    path = write_labeling_report(tmp_path / "report.html", record, images)
    written = path.read_text(encoding="utf-8")
    assert_self_contained(written)
    assert sorted(re.findall(r'<img class="thumb" src="([^"]+)"', written)) == sorted(
        address.values()
    )
    assert re.search(rf'<td class="name"><img[^>]+>{re.escape(suspect)}</td>', written)
    assert "<figcaption>99.4%</figcaption>" in written


@pytest.mark.slow
def test_which_way_the_figures_lean_is_said(page: str, tmp_path: Path) -> None:
    assert (
        "A rare class loses a good part of its labels while some are held out, so these figures are rather too low."
        in page
    )
    facts = make_facts()
    facts["evidence"].update(used=300, suspects=facts["suspects"])
    written = page_of(tmp_path, facts)
    assert "Only 300 of the labels took part" in written
    assert "Given labels that are wrong lower them too" in written


@pytest.mark.slow
def test_a_peer_that_does_better_is_named_plainly(page: str, tmp_path: Path) -> None:
    assert (
        "the Gaussian process does better than the best of the others, SelfTraining (balanced logistic), by 2.0 points"
        in page
    )
    facts = make_facts()
    facts["evidence"]["peers"][1].update(balanced_accuracy=0.99, accuracy=0.99)
    better = page_of(tmp_path, facts)
    assert re.search(
        r"Nearest neighbour does better than the Gaussian process, by \d+\.\d points of balanced accuracy",
        better,
    )


@pytest.mark.slow
def test_a_gap_that_folds_could_make_is_called_so(tmp_path: Path) -> None:
    facts = make_facts()
    ours, peer = facts["evidence"]["peers"][:2]
    peer["balanced_accuracy"] = ours["balanced_accuracy"] + 0.01
    assert (
        "1.0 points of balanced accuracy, which is less than folds differ among themselves"
        in page_of(tmp_path, facts)
    )


def test_a_peer_that_failed_is_shown_with_its_reason(page: str) -> None:
    row = re.search(r"<tr><td>LabelSpreading.*?</tr>", page, re.DOTALL)
    assert row is not None
    assert "failed: no label reaches row 17" in row[0]


def test_suspects_and_outliers_are_listed_by_name(page: str) -> None:
    assert "They contradict 9 of 361 given labels" in page
    assert "birds/class 0/IMG_0000.jpg" in page
    assert "240 rows are unlike everything labelled" in page
    assert "The farthest 100" in page
    assert "scans/page_99.png" in page


@pytest.mark.slow
def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    names = [
        '<b>&"',
        "<script>alert(1)</script>",
        "$a$b$",
        "猫",
        "a very long name of a very rare bird",
        "",
    ]
    facts = make_facts(
        names=names, title="<i>title</i>", data="<img src=x>.parquet", notes=["<u>note</u>"]
    )
    facts["suspects"][0]["id"] = '"><script>alert(2)</script>.jpg'
    facts["outliers"][0]["id"] = "<svg onload=alert(3)>"
    facts["evidence"]["peers"][0]["remarks"] = ["<em>"]
    written = page_of(tmp_path, facts)
    assert_self_contained(written)
    for tag in ("<b>", "<i>", "<u>", "<em>", "<img", "<svg onload"):
        assert tag not in written
    assert "&lt;svg onload=alert(3)&gt;" in written
    assert "猫" in written


def test_without_evidence_the_page_says_why(tmp_path: Path) -> None:
    facts = make_facts(
        evidence=None, why_none="There are 7 labels: too few to hold any out.", suspects=[]
    )
    written = page_of(tmp_path, facts)
    assert titles(written) == TITLES[:1]
    assert written.count("There are 7 labels: too few to hold any out.") == 2
    assert "Not checked." in written
    assert "Compared with other methods" not in written


@pytest.mark.slow
def test_without_unlabelled_rows_there_was_nothing_to_label(tmp_path: Path) -> None:
    facts = make_facts(unlabeled=0)
    written = page_of(tmp_path, facts)
    assert "All 361 rows came with a label: there was nothing to label." in written
    assert titles(written) == TITLES


@pytest.mark.slow
def test_a_threshold_that_accepts_nothing_claims_nothing(tmp_path: Path) -> None:
    facts = make_facts()
    facts["evidence"]["chosen"].update(coverage=0.0, precision=None, low=None, high=None)
    assert "precision is unknown" in page_of(tmp_path, facts)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 200])
def test_few_and_many_classes_have_a_page(tmp_path: Path, n_classes: int) -> None:
    written = page_of(tmp_path, make_facts(n_classes=n_classes))
    assert_self_contained(written)
    assert titles(written) == TITLES
    assert f"<summary>{n_classes} classes</summary>" in written
    assert ("<details open><summary>200" in written) is False
    assert len(written) < 400_000


@pytest.mark.slow
def test_classes_with_one_label_are_named_as_not_measured(tmp_path: Path) -> None:
    facts = make_facts()
    facts["evidence"]["never_held_out"] = ["class 9"]
    assert "Not measured, as their only label is needed to know them: class 9." in page_of(
        tmp_path, facts
    )


@pytest.mark.slow
def test_settings_are_listed_with_numbers_that_can_be_read(tmp_path: Path) -> None:
    written = page_of(
        tmp_path,
        make_facts(
            model={"length_scale": 0.7149314404595359}, settings={"seed": 0, "abstain": None}
        ),
    )
    assert "<td>length_scale</td><td>0.7149</td>" in written
    assert "<td>abstain</td><td>none</td>" in written
