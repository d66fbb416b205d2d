"""The page of a labelled data set: what the facts say, alone, and without what is not known."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from semigpc.report.charts import reliability_chart
from semigpc.report.labeling_page import (
    ReportImages,
    grade_rows,
    promise_sentence,
    write_labeling_report,
)
from semigpc.report.labeling_summary import LabelingSummary
from tests.report.labeled import make_facts
from tests.report.test_run_page import ODD_NAMES, assert_self_contained

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


def promise(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"target": 0.95, "probability": 0.9, "per_class": False, "labels": 40}
    made |= {"grades": grades(0, 30, 310, 6550), "reach": 9000, "without": [], "needed": {}}
    return made | changes


def grades(*counts: int) -> list[dict[str, Any]]:
    """Labels guaranteed at 99, 95, 90 and 80 %, all of them of the first of ten classes."""
    precisions = (0.99, 0.95, 0.9, 0.8)
    expected = (0.996, 0.978, 0.953, 0.894)
    return [
        {
            "precision": precision,
            "labels": labels,
            "classes": [labels, *[0] * 9],
            "expected": share if labels else None,
        }
        for precision, labels, share in zip(precisions, counts, expected, strict=True)
    ]


def test_the_page_needs_nothing_else_and_has_every_chart_with_a_caption(page: str) -> None:
    assert_self_contained(page)
    assert titles(page) == TITLES
    captions = re.findall(r"<figcaption>(.+?)</figcaption>", page)
    assert len(captions) == len(TITLES)
    assert all(caption.endswith(".") for caption in captions)


def test_the_headline_has_counts_reasons_precision_and_how_it_was_measured(page: str) -> None:
    statuses = make_facts()["statuses"]
    shares = {key: f"{number:,} ({number / 200:.1f}%)" for key, number in statuses.items()}
    assert f"Of 20,000 rows without a label, {shares['pseudo']} got one." in page
    assert f"{shares['abstained']} for lack of confidence" in page
    assert f"{shares['outlier']} because they are unlike everything labelled" in page
    assert "92.3% of the labels given out would be right (95% interval 90.0% to 94.1%)" in page
    assert "less than the 95.0% requested" in page
    assert "361 given labels, each predicted by a model that had not seen it (5 folds)" in page
    assert "weighted by the estimated share of their class" in page
    assert "biased low" in page


def test_what_is_guaranteed_and_what_is_expected_are_two_words() -> None:
    def sentence(*, new_labels: int = 2500, **changes: Any) -> str:
        facts = make_facts(promise=promise(**changes))
        facts["statuses"]["pseudo"] = new_labels
        return promise_sentence(cast("LabelingSummary", facts))

    plain = sentence()
    assert "Guaranteed: at least 95% of the 2,500 labels given out are right." in plain
    assert "Expected: 97.8%." in plain
    assert "in 90 of 100 cases" in plain
    assert plain.count("%") == 2
    assert "given out of every class are right" in sentence(per_class=True)
    nothing = sentence(new_labels=0, grades=grades(0, 0, 0, 0))
    assert nothing == "40 given labels are too few to guarantee 95% precision."


@pytest.mark.parametrize(
    ("counts", "offer"),
    [
        ((0, 0, 310, 6550), "target precision of 80% gives out 6,550."),
        ((0, 30, 3100, 6550), "target precision of 90% gives out 3,100."),
        ((0, 30, 310, 310), "target precision of 90% gives out 310."),
        ((12, 2500, 3100, 6550), None),  # more than a tenth: enough
        ((12, 30, 30, 30), None),  # nothing lower gives more
    ],
)
def test_every_grade_is_counted_and_a_lower_one_offered_where_few_labels_are_given_out(
    counts: tuple[int, ...], offer: str | None, tmp_path: Path
) -> None:
    facts = make_facts(promise=promise(grades=grades(*counts)))
    facts["statuses"]["pseudo"] = counts[1]
    sentence = promise_sentence(cast("LabelingSummary", facts))
    assert ("target precision" in sentence) == (offer is not None)
    assert (offer or "") in sentence
    rows = {row.name: row for row in grade_rows(cast("LabelingSummary", facts))}
    named = dict(zip(("99%", "95%", "90%", "80%"), counts, strict=True))
    assert {name: rows[name].labels for name in named if name in rows} == {
        name: number for name, number in named.items() if number
    }
    total = sum(facts["statuses"].values()) - facts["statuses"]["labelled"]
    outliers = facts["statuses"]["outlier"]
    assert rows["unlike everything"].labels == outliers
    assert rows["not guaranteed"].labels == total - counts[3] - outliers
    page = page_of(tmp_path, facts)
    for name, number in named.items():
        cell = f'<td class="name">{name}</td><td class="number">{number:,}</td>'
        assert (cell in page) == bool(number)
    assert "<th>Guaranteed 80%</th>" in page


@pytest.mark.slow
def test_classes_that_get_nothing_are_named_before_anything_else(page: str, tmp_path: Path) -> None:
    assert "No new labels" not in page
    needed = {"class 8": 6, "class 9": 6}
    facts = make_facts(promise=promise(without=list(needed), needed=needed))
    written = page_of(tmp_path, facts)
    line = "No new labels for: class 8, class 9. Label 6 more of each."
    assert written.index(line) < written.index('class="notice good"')
    facts = make_facts()
    facts["pseudo"][3] = 0  # without a promise, from the counts
    assert "No new labels for: class 3. Label more of it." in page_of(tmp_path, facts)


@pytest.mark.slow
def test_one_of_a_kind_is_singular(tmp_path: Path) -> None:
    facts = make_facts(rows_noun="images")
    facts["statuses"]["outlier"] = 1
    facts |= {"outliers": facts["outliers"][:1], "suspects": facts["suspects"][:1]}
    facts["evidence"]["confusions"] = facts["evidence"]["confusions"][:1]
    written = page_of(tmp_path, facts)
    for text in ("1 image is unlike", "it is unlike", "1 label to check", "1 pair of classes"):
        assert text in written
    assert not re.search(r"\b1 (images|rows|labels|pairs|classes)\b", written)


def test_counts_are_written_at_whole_numbers() -> None:
    shares: dict[str, list[float]] = {"accuracy": [0.4, 0.9], "confidence": [0.3, 0.8]}
    bins: Any = shares | {"edges": [0, 0.5, 1], "count": [3, 8]}
    chart = reliability_chart(bins, 0.1, beside=True)
    assert chart is not None
    counts = [int(text) for text in re.findall(r">(\d+)</text>", chart.svg)]
    assert len({b - a for a, b in pairwise(counts)}) == 1, "no 2 for 2.5 and 8 for 7.5"


@pytest.mark.slow
def test_images_are_inside_of_the_page_beside_their_rows(tmp_path: Path) -> None:
    facts = make_facts()
    suspect = facts["suspects"][0]["id"]
    names = (suspect, facts["outliers"][0]["id"], "a.png", "b.png", "c.png")
    address = {name: f"data:image/jpeg;base64,{i}AAA" for i, name in enumerate(names)}
    given = [("a.png", 1.0)]
    examples = {"given": given, "most sure": [("b.png", 0.994)], "least sure": [("gone.png", 0.95)]}
    confusion = facts["evidence"]["confusions"][0]
    confused = {(confusion["true"], confusion["believed"]): "c.png"}
    images = ReportImages(address, {"class 0": examples}, confused)
    record = cast("LabelingSummary", facts)
    path = write_labeling_report(tmp_path / "report.html", record, images)
    written = path.read_text(encoding="utf-8")
    assert_self_contained(written)
    shown = re.findall(r'<img class="thumb" src="([^"]+)"', written)
    assert sorted(shown) == sorted(address.values())
    assert re.search(rf'<td class="name"><img[^>]+>{re.escape(suspect)}</td>', written)
    assert "<figcaption>99.4%</figcaption>" in written


@pytest.mark.slow
def test_a_better_peer_is_named_and_limits_of_the_figures_are_stated(
    page: str, tmp_path: Path
) -> None:
    ours = "the Gaussian process does better than the best of the others, SelfTraining"
    assert re.search(ours + r" \(balanced logistic\), by 2\.0 points", page)
    failed = re.search(r"<tr><td>LabelSpreading.*?</tr>", page, re.DOTALL)
    assert failed is not None
    assert "failed: no label reaches row 17" in failed[0]

    facts = make_facts(model={"length_scale": 0.7149314404595359}, settings={"abstain": None})
    evidence = facts["evidence"]
    own = evidence["peers"][0]["balanced_accuracy"]
    evidence["peers"][1].update(balanced_accuracy=own + 0.01, accuracy=0.99)
    evidence.update(used=300, suspects=facts["suspects"], never_held_out=["class 9"])
    evidence["chosen"].update(coverage=0.0, precision=None, low=None, high=None)
    written = page_of(tmp_path, facts)
    theirs = "Nearest neighbour does better than the Gaussian process, by 1.0 points"
    assert f"{theirs} of balanced accuracy, which is less than folds differ" in written
    assert "Only 300 of the labels were used" in written
    assert "Wrong given labels lower them too" in written
    assert "cannot be held out: class 9." in written
    assert "precision is unknown" in written
    assert "<td>length_scale</td><td>0.7149</td>" in written
    assert "<td>abstain</td><td>none</td>" in written


def test_suspects_and_outliers_are_listed_by_name(page: str) -> None:
    assert "They contradict 9 of 361 given labels" in page
    assert "birds/class 0/IMG_0000.jpg" in page
    assert "240 rows are unlike everything labelled" in page
    assert "The farthest 100" in page
    assert "scans/page_99.png" in page


@pytest.mark.slow
def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    odd: Any = {"title": "<i>title</i>", "data": "<img src=x>.parquet", "notes": ["<u>note</u>"]}
    facts = make_facts(names=ODD_NAMES, **odd)
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
    why = "There are 7 labels: too few to hold any out."
    written = page_of(tmp_path, make_facts(evidence=None, why_none=why, suspects=[]))
    assert titles(written) == TITLES[:1]
    assert written.count(why) == 2
    assert "Not checked." in written
    assert "Compared with other methods" not in written


@pytest.mark.slow
def test_without_unlabelled_rows_there_was_nothing_to_label(tmp_path: Path) -> None:
    written = page_of(tmp_path, make_facts(unlabeled=0))
    assert "All 361 rows came with a label" in written
    assert titles(written) == TITLES


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 200])
def test_few_and_many_classes_have_a_page(tmp_path: Path, n_classes: int) -> None:
    written = page_of(tmp_path, make_facts(n_classes=n_classes))
    assert_self_contained(written)
    assert titles(written) == TITLES
    assert f"<summary>{n_classes} classes</summary>" in written
    assert "<details open><summary>200" not in written
    assert len(written) < 400_000
