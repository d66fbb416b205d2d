"""Images in the report: those that matter, small, few, and only from below the folder of images."""

import io
import re
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from semigpc.labeling.label import LabelSettings, label_data
from semigpc.report import labeling_page
from semigpc.report.labeling_page import class_examples
from tests.report.test_run_page import assert_self_contained
from tests.review.shapes import LINK_NAME, OUTSIDE, TEXT_NAME, make_labelled


def shown(page: str) -> dict[str, bytes]:
    """Titles and content of the images of a page."""
    found = re.findall(
        r'<img class="thumb" src="data:image/jpeg;base64,([^"]+)" alt="" title="([^"]*)">', page
    )
    return {name: b64decode(content) for content, name in found}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> LabelSettings:
    root = tmp_path_factory.mktemp("shapes")
    make_labelled(root, wrong=1)
    return LabelSettings(
        data=root / "data.parquet",
        labels=root / "labels.csv",
        out=root / "report",
        images=root / "photos",
        abstain=0.6,
        target_precision=None,
    )


def test_the_report_has_images_of_suspects_outliers_and_every_class(
    settings: LabelSettings,
) -> None:
    summary = label_data(settings)
    page = (settings.out / "report.html").read_text(encoding="utf-8")
    assert_self_contained(page)
    images = shown(page)
    wanted = {row["id"] for row in [*summary["suspects"], *summary["outliers"]]}
    unreadable = {TEXT_NAME, LINK_NAME, *OUTSIDE}
    assert summary["suspects"]
    assert {name for name in wanted - unreadable if "<" not in name} <= images.keys()
    assert not unreadable & images.keys()
    assert all(max(Image.open(io.BytesIO(content)).size) <= 96 for content in images.values())
    labels = parquet.read_table(settings.out / "labels.parquet").to_pylist()
    table = {row["file_name"]: row["guess"] for row in labels}
    assert {table[name] for name in images if name in table} == set(summary["classes"])
    assert summary["evidence"] is not None
    pairs = summary["evidence"]["confusions"]
    rows = re.findall(
        r"<tr><td>(<img.*?)?</td><td class=\"name\">(\w+)</td><td class=\"name\">(\w+)</td>", page
    )
    named = [(pair["true"], pair["believed"]) for pair in pairs]
    assert [(true, believed) for _, true, believed in rows] == named
    assert all(image for image, _, _ in rows), "an example of each pair"
    assert "base64" not in (settings.out / "summary.json").read_text()


def test_there_are_never_more_images_than_the_limit(
    settings: LabelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("IMAGES_SHOWN", 9), ("SUSPECTS_PICTURED", 2), ("OUTLIERS_PICTURED", 2)):
        monkeypatch.setattr(labeling_page, name, most)
    few = replace(settings, out=settings.out.with_name("few"))
    label_data(few)
    assert 2 <= len(shown((few.out / "report.html").read_text(encoding="utf-8"))) <= 9


def test_without_images_there_are_none(settings: LabelSettings) -> None:
    plain = replace(settings, images=None, out=settings.out.with_name("plain"))
    label_data(plain)
    assert "<img" not in (plain.out / "report.html").read_text(encoding="utf-8")


def test_examples_are_the_surest_and_least_sure_of_a_class_in_any_number_of_parts(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    n = 300
    confidence = rng.permutation(np.linspace(0.5, 1, n)).astype(np.float32)
    labels = rng.choice(["ant", "bee"], n)
    status = rng.choice(["pseudo", "abstained", "labelled"], n)
    ids = [f"{i}" for i in range(n)]
    table = pyarrow.table({"id": ids, "label": labels, "confidence": confidence, "status": status})
    parquet.write_table(table, tmp_path / "labels.parquet", row_group_size=40)
    found = class_examples(tmp_path / "labels.parquet", "id", ["ant"], 3)
    new = sorted(
        np.flatnonzero((labels == "ant") & (status == "pseudo")), key=lambda row: -confidence[row]
    )
    assert list(found) == ["ant"]
    assert [name for name, _ in found["ant"]["most sure"]] == [ids[row] for row in new[:3]]
    assert [name for name, _ in found["ant"]["least sure"]] == [ids[row] for row in new[-3:]]
    assert len(found["ant"]["given"]) == 3
    given = [int(name) for name, _ in found["ant"]["given"]]
    assert (labels[given] == "ant").all()
    assert (status[given] == "labelled").all()
