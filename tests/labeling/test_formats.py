"""Exports: each is read by the parser of its own tool, or checked against its published schema."""

import csv
import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from semigpc.data.folder import class_folders
from semigpc.io import atomic
from semigpc.io.errors import DataError, SettingsError, WriteError
from semigpc.io.tables import read_label_rows, read_labels
from semigpc.labeling import formats
from semigpc.labeling.formats import FORMATS, Exported, Labels, export_labels
from semigpc.labeling.given import given_labels
from semigpc.labeling.label import label_data
from semigpc.labeling.outputs import COLUMNS
from semigpc.labeling.project import Project
from tests.labeling.samples import settings

CLASSES = ("cat", 'dog & <"co">', "=1+1", "a/b")
# Name, width, height, label, guess, confidence, grade, status, answer, chosen.
ROWS: tuple[tuple[Any, ...], ...] = (
    ("b/1.jpg", 30, 20, "cat", "cat", 1.0, 0.0, "labelled", None, False),
    ("a/1.jpg", 17, 23, "cat", "cat", 1.0, 0.0, "labelled", "accepted", True),
    ("a/two, \"quoted\" 'x'\n.png", 5, 9, CLASSES[1], CLASSES[1], 0.75, 0.9, "pseudo", None, False),
    ("=SUM(1).png", 8, 8, "=1+1", "=1+1", 1.0, 0.0, "labelled", "corrected", True),
    ("ä/日本 1.png", 40, 3, "a/b", "a/b", 0.875, 0.0, "pseudo", None, False),
    ("open.png", 6, 6, None, "cat", 0.25, 0.0, "abstained", "skipped", False),
    ("none.png", 6, 7, None, None, 0.0, 0.0, "abstained", "none", False),
    ("out.png", 7, 6, None, "a/b", 0.5, 0.0, "outlier", None, False),
)
NAMES = [row[0] for row in ROWS]
GIVEN = {row[0]: row[3] for row in ROWS if row[3] is not None}
BY_PEOPLE = {row[0]: row[3] for row in ROWS if row[7] == "labelled"}


def labels_of(rows: tuple[tuple[Any, ...], ...], images: Path | None, **others: Any) -> Labels:
    columns = list(zip(*rows, strict=True))
    return Labels(
        id_name="file_name",
        ids=columns[0],
        classes=others.pop("classes", CLASSES),
        label=columns[3],
        guess=columns[4],
        confidence=np.array(columns[5], np.float32),
        grade=np.array(columns[6], np.float32),
        variance=np.full(len(rows), 0.5, np.float32),
        status=columns[7],
        answer=columns[8],
        chosen=np.array(columns[9], bool),
        images=images,
        **others,
    )


def save(path: Path, width: int = 4, height: int = 4, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height)).save(path, **options)


@pytest.fixture
def labels(tmp_path: Path) -> Labels:
    for name, width, height, *_ in ROWS:
        save(tmp_path / "photos" / name, width, height)
    return labels_of(ROWS, tmp_path / "photos")


def simple(tmp_path: Path, names: dict[str, str]) -> Labels:
    """Labels by people of small images."""
    rows = [
        (name, 4, 4, label, label, 1.0, 0.0, "labelled", None, False)
        for name, label in names.items()
    ]
    for name in names:
        if not (tmp_path / "photos" / name).exists():
            save(tmp_path / "photos" / name)
    return labels_of(tuple(rows), tmp_path / "photos", classes=sorted(set(names.values())))


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def tree(folder: Path) -> list[str]:
    """The images below a folder, without hidden files."""
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in files if not name.startswith("."))


# Tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_a_table_read_back_has_the_labels_by_people_and_which_of_them_were_chosen(
    labels: Labels, tmp_path: Path, name: str
) -> None:
    exported = export_labels(labels, name, tmp_path / "out")
    assert exported == Exported((tmp_path / "out" / FORMATS[name].file,), 8, 5)
    table = read_labels(exported.files[0])
    assert table.given == BY_PEOPLE
    assert list(table.labels) == NAMES
    assert table.chosen == {"a/1.jpg", "=SUM(1).png"}
    assert len(table.notes) == 1
    assert read_labels(exported.files[0], trust_pseudo=True).given == GIVEN


def test_both_tables_have_the_same_columns_and_values(labels: Labels, tmp_path: Path) -> None:
    columns = ["file_name", *formats.TABLE_COLUMNS]
    rows = parquet.read_table(export_labels(labels, "parquet", tmp_path).files[0]).to_pylist()
    path = export_labels(labels, "csv", tmp_path).files[0]
    with path.open(newline="", encoding="utf-8") as file:
        texts = list(csv.DictReader(file))
    assert list(rows[0]) == list(texts[0]) == columns
    assert rows[2] == {
        "file_name": NAMES[2],
        "label": CLASSES[1],
        "guess": CLASSES[1],
        "confidence": 0.75,
        "variance": 0.5,
        "status": "pseudo",
        "grade": 0.9,
        "answer": None,
        "chosen": None,
    }
    assert [row["answer"] for row in rows] == [row[8] for row in ROWS]
    assert texts[2]["grade"] == "0.9"
    assert [row["chosen"] for row in rows] == ["yes" if row[9] else None for row in ROWS]
    assert [row["confidence"] for row in texts] == [
        f"{row[5]:.6g}" if row[5] % 1 else f"{row[5]:.1f}" for row in ROWS
    ]
    assert texts[3]["file_name"] == "'=SUM(1).png"
    assert texts[3]["label"] == "'=1+1"


def test_rows_of_a_table_of_embeddings_keep_the_name_of_their_ids(tmp_path: Path) -> None:
    labels = labels_of(ROWS, None)._replace(id_name="answer")
    path = export_labels(labels, "csv", tmp_path).files[0]
    table = read_label_rows(path, lambda names, _: ("answer", "label"), lambda cell, *_: str(cell))
    assert table.given == BY_PEOPLE
    for name, form in FORMATS.items():
        if form.needs_images:
            with pytest.raises(DataError, match="images"):
                export_labels(labels, name, tmp_path)


def test_only_labels_of_a_grade_are_taken_besides_those_by_people(
    labels: Labels, tmp_path: Path
) -> None:
    path = export_labels(labels, "csv", tmp_path, grade=0.9).files[0]
    expected = {name: label for name, label in GIVEN.items() if name != NAMES[4]}
    assert read_labels(path, trust_pseudo=True).given == expected
    assert export_labels(labels, "coco", tmp_path, grade=0.95).labels == 3
    assert export_labels(labels, "folders", tmp_path, grade=0.5).labels == 4
    with pytest.raises(SettingsError, match="grade"):
        export_labels(labels, "csv", tmp_path / "new", grade=90)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_a_labelling_begins_again_from_its_exported_table(tmp_path: Path, name: str) -> None:
    wanted = settings(tmp_path)
    label_data(wanted)
    first = Project.open(wanted.out)
    columns = {column: first.table.column(column).to_pylist() for column in COLUMNS}
    chosen = np.isin(np.arange(len(first.ids)), sorted(first.given)[:5])
    labels = Labels(
        id_name=first.id_name,
        ids=first.ids,
        classes=first.classes,
        label=columns["label"],
        guess=columns["guess"],
        confidence=np.array(columns["confidence"], np.float32),
        grade=np.array(columns["grade"], np.float32),  # NaN for none
        variance=np.array(columns["variance"], np.float32),
        status=columns["status"],
        answer=[None] * len(first.ids),
        chosen=chosen,
        images=None,
    )
    exported = export_labels(labels, name, tmp_path / "exports")
    assert exported.labels > len(first.given)
    again = replace(wanted, labels=exported.files[0], out=tmp_path / "again")
    label_data(again)
    second = Project.open(again.out)
    assert second.given == first.given
    assert second.chosen == frozenset(np.flatnonzero(chosen).tolist())


# Label Studio -------------------------------------------------------------------------------------


def test_label_studio_has_annotations_by_people_and_predictions(
    labels: Labels, tmp_path: Path
) -> None:
    exported = export_labels(labels, "label-studio", tmp_path)
    tasks = json.loads(exported.files[0].read_text())
    assert [task["data"]["id"] for task in tasks] == NAMES
    by_people = {task["data"]["id"]: task["annotations"] for task in tasks if "annotations" in task}
    choices = {name: each[0]["result"][0]["value"]["choices"] for name, each in by_people.items()}
    assert choices == {name: [label] for name, label in BY_PEOPLE.items()}
    scores = {
        task["data"]["id"]: task["predictions"][0]["score"]
        for task in tasks
        if "predictions" in task
    }
    assert scores == {NAMES[2]: 0.75, NAMES[4]: 0.875, "open.png": 0.25, "out.png": 0.5}
    offered = ElementTree.parse(exported.files[1]).iter("Choice")
    assert tuple(choice.get("value") for choice in offered) == CLASSES


@pytest.mark.filterwarnings("ignore")
def test_label_studio_itself_accepts_the_tasks(labels: Labels, tmp_path: Path) -> None:
    interfaces = pytest.importorskip("label_studio_sdk.label_interface")
    for each in (labels, labels._replace(images=None)):
        exported = export_labels(each, "label-studio", tmp_path, overwrite=True)
        interface = interfaces.LabelInterface(exported.files[1].read_text())
        interface.validate()
        for task in json.loads(exported.files[0].read_text()):
            assert interface.validate_task({"data": task["data"]})
            for annotation in task.get("annotations", ()):
                assert interface.validate_annotation(annotation)
            for prediction in task.get("predictions", ()):
                assert interface.validate_prediction(prediction, return_errors=True) == []


# COCO ---------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_coco_is_read_by_pycocotools(labels: Labels, tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    exported = export_labels(labels, "coco", tmp_path)
    with redirect_stdout(io.StringIO()):
        read = coco.COCO(exported.files[0])
    names = {number: each["name"] for number, each in read.cats.items()}
    assert list(names.values()) == list(CLASSES)
    found = {}
    for annotation in read.loadAnns(read.getAnnIds()):
        image = read.imgs[annotation["image_id"]]
        found[image["file_name"]] = names[annotation["category_id"]]
        assert read.annToMask(annotation).shape == (image["height"], image["width"])
        assert read.annToMask(annotation).all()
        assert annotation["area"] == image["height"] * image["width"]
        assert ("score" in annotation) == (image["file_name"] not in BY_PEOPLE)
    assert found == GIVEN
    sizes = {each["file_name"]: (each["width"], each["height"]) for each in read.imgs.values()}
    assert sizes == {row[0]: row[1:3] for row in ROWS if row[3] is not None}
    assert read.getImgIds(catIds=read.getCatIds(catNms=["cat"]))


def test_sizes_are_of_upright_images_and_unreadable_ones_are_left_out(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    save(tmp_path / "photos/turned.jpg", 30, 20, exif=exif)
    save(tmp_path / "photos/turned.png", 12, 5, exif=exif)
    (tmp_path / "photos/broken.jpg").write_bytes(b"nothing")
    save(tmp_path / "elsewhere.png")
    (tmp_path / "photos/link.png").symlink_to("../elsewhere.png")
    names = ("turned.jpg", "turned.png", "broken.jpg", "link.png")
    labels = simple(tmp_path, dict.fromkeys(names, "cat"))
    missing = labels._replace(ids=("turned.jpg", "turned.png", "broken.jpg", "gone.png"))
    for each, absent in ((labels, "link.png"), (missing, "gone.png")):
        exported = export_labels(each, "coco", tmp_path / "out", overwrite=True)
        images = json.loads(exported.files[0].read_text())["images"]
        assert [(one["width"], one["height"]) for one in images] == [(20, 30), (5, 12)]
        assert exported.rows == exported.labels == 2
        assert "broken.jpg" in exported.notes[0]
        assert absent in exported.notes[0]
    followed = export_labels(labels._replace(follow_links=True), "coco", tmp_path / "more")
    assert followed.rows == 3


# FiftyOne -----------------------------------------------------------------------------------------


def test_fiftyone_labels_are_as_published(labels: Labels, tmp_path: Path) -> None:
    """Keys of FiftyOneImageClassificationDataset, in FiftyOne's guide on importing datasets."""
    content = json.loads(export_labels(labels, "fiftyone", tmp_path).files[0].read_text())
    assert content["classes"] == list(CLASSES)
    photos = tmp_path / "photos"
    classes = {path: CLASSES[each["label"]] for path, each in content["labels"].items()}
    assert classes == {str(photos / name): label for name, label in GIVEN.items()}
    assert content["labels"][str(photos / NAMES[2])] == {
        "label": 1,
        "confidence": 0.75,
        "attributes": {"status": "pseudo", "grade": 0.9},
    }
    assert all(Path(path).is_file() for path in content["labels"])


@pytest.mark.filterwarnings("ignore")
def test_fiftyone_reads_its_labels(labels: Labels, tmp_path: Path) -> None:
    importers = pytest.importorskip("fiftyone.utils.data.importers")
    save(tmp_path / "photos/a/1.png")  # with the name of another image but for the ending
    (path,) = export_labels(labels, "fiftyone", tmp_path).files
    with importers.FiftyOneImageClassificationDatasetImporter(labels_path=str(path)) as importer:
        samples = {file: label for file, _, label in importer}
        assert importer.get_dataset_info() == {"classes": list(CLASSES)}
    found = {
        Path(file).relative_to(tmp_path / "photos").as_posix(): label.label
        for file, label in samples.items()
    }
    assert found == GIVEN
    pseudo = samples[str(tmp_path / "photos" / NAMES[2])]
    assert (pseudo.confidence, pseudo["status"], pseudo["grade"]) == (0.75, "pseudo", 0.9)


# CVAT ---------------------------------------------------------------------------------------------


def test_cvat_images_are_in_the_order_of_a_task_and_labels_are_tags(
    labels: Labels, tmp_path: Path
) -> None:
    """Elements and attributes are those of docs.cvat.ai, "XML annotation format", version 1.1."""
    exported = export_labels(labels, "cvat", tmp_path)
    root = ElementTree.parse(exported.files[0]).getroot()
    assert (root.tag, root.findtext("version")) == ("annotations", "1.1")
    assert root.findtext("meta/task/mode") == "annotation"
    assert [label.findtext("name") for label in root.iter("label")] == list(CLASSES)
    assert {label.findtext("type") for label in root.iter("label")} == {"tag"}
    images = root.findall("image")
    assert [image.get("name") for image in images] == sorted(NAMES)
    assert [image.get("id") for image in images] == [str(number) for number in range(8)]
    tags = {image.get("name"): image.find("tag") for image in images}
    found = {name: tag.get("label") for name, tag in tags.items() if tag is not None}
    assert found == GIVEN
    source = {name: tag.get("source") for name, tag in tags.items() if tag is not None}
    assert source == {name: "manual" if name in BY_PEOPLE else "auto" for name in GIVEN}
    sizes = {
        image.get("name"): (int(image.get("width", 0)), int(image.get("height", 0)))
        for image in images
    }
    assert sizes == {row[0]: row[1:3] for row in ROWS}
    task = json.loads(exported.files[1].read_text())
    assert task == [{"name": name, "type": "tag", "attributes": []} for name in CLASSES]


@pytest.mark.filterwarnings("ignore")
def test_datumaro_reads_the_tags_for_cvat(labels: Labels, tmp_path: Path) -> None:
    base = pytest.importorskip("datumaro.plugins.data_formats.cvat.base")
    annotation = pytest.importorskip("datumaro.components.annotation")
    (tmp_path / "images").symlink_to("photos")  # where it requires them
    dataset = base.CvatBase(str(export_labels(labels, "cvat", tmp_path).files[0]))
    categories = dataset.categories()[annotation.AnnotationType.label]
    found = {}
    for item in dataset:
        for one in item.annotations:
            assert one.type == annotation.AnnotationType.label
            found[item.id] = categories[one.label].name
    assert found == {
        PurePosixPath(name).with_suffix("").as_posix(): label for name, label in GIVEN.items()
    }


@pytest.mark.filterwarnings("ignore")
def test_fiftyone_reads_the_tags_for_cvat(labels: Labels, tmp_path: Path) -> None:
    cvat = pytest.importorskip("fiftyone.utils.cvat")
    path = export_labels(labels, "cvat", tmp_path).files[0]
    _, task, images = cvat.load_cvat_image_annotations(str(path))
    assert [label["name"] for label in task.labels] == list(CLASSES)
    found = {image.name: image.tags[0].label for image in images if image.tags}
    assert found == GIVEN
    assert len(images) == 8


def test_control_characters_that_xml_cannot_hold_are_named(tmp_path: Path) -> None:
    labels = simple(tmp_path, {"bell\x07.png": "cat", "b.png": "dog"})
    with pytest.raises(DataError, match=r"bell\\x07"):
        export_labels(labels, "cvat", tmp_path / "out")
    labels = simple(tmp_path, {"a.png": "c\x01t", "b.png": "dog"})
    for name in ("cvat", "label-studio"):
        with pytest.raises(DataError, match=r"c\\x01t"):
            export_labels(labels, name, tmp_path / "out")
    assert export_labels(labels, "csv", tmp_path / "out").labels == 2
    assert tree(export_labels(labels, "folders", tmp_path / "out").files[0]) == [
        "c_t/a.png",
        "dog/b.png",
    ]


# Class folders ------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [False, True])
def test_class_folders_hold_every_labelled_image_once(
    labels: Labels, tmp_path: Path, copy: bool
) -> None:
    exported = export_labels(labels, "folders", tmp_path / "out", copy=copy)
    (folder,) = exported.files
    assert tree(folder) == [
        "=1+1/=SUM(1).png",
        "a_b/日本 1.png",
        "cat/a-1.jpg",
        "cat/b-1.jpg",
        "dog & __co__/two, \"quoted\" 'x'\n.png",
    ]
    assert (exported.rows, exported.labels) == (5, 5)
    assert "'a/b' is 'a_b'" in exported.notes[0]
    file = folder / "cat/b-1.jpg"
    assert size_of(file) == (30, 20)
    assert file.is_symlink() != copy
    if not copy:
        assert not file.readlink().is_absolute()
        moved = tmp_path / "moved"
        moved.mkdir()
        for name in ("out", "photos"):
            (tmp_path / name).rename(moved / name)
        assert size_of(moved / "out/classes/cat/b-1.jpg") == (30, 20)


def test_class_folders_are_read_by_torchvision(labels: Labels, tmp_path: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    (folder,) = export_labels(labels, "folders", tmp_path / "out").files
    read = datasets.ImageFolder(str(folder))
    assert read.classes == ["=1+1", "a_b", "cat", "dog & __co__"]
    assert sorted(image.size for image, _ in read) == sorted(
        row[1:3] for row in ROWS if row[3] is not None
    )
    assert [read.classes[code] for code in read.targets].count("cat") == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_class_folders_are_read_by_hugging_face(
    labels: Labels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    (folder,) = export_labels(labels, "folders", tmp_path / "out").files
    read = datasets.load_dataset(
        "imagefolder", data_dir=str(folder), cache_dir=str(tmp_path / "cache")
    )
    assert set(read) == {"train"}
    classes = read["train"].features["label"].names
    assert classes == ["=1+1", "a_b", "cat", "dog & __co__"]
    found = [(classes[each["label"]], each["image"].size) for each in read["train"]]
    assert sorted(found) == sorted(
        (label.replace("/", "_").replace('<"', "__").replace('">', "__"), tuple(size))
        for _, *size, label in (row[:4] for row in ROWS)
        if label is not None
    )


def test_class_folders_are_read_by_semigpc(labels: Labels, tmp_path: Path) -> None:
    (folder,) = export_labels(labels, "folders", tmp_path / "out", copy=True).files
    listing = class_folders(folder)
    assert listing.classes == {"=1+1", "a_b", "cat", "dog & __co__"}
    given = given_labels(folder)
    assert given is not None
    assert given.labels == listing.labels


def test_names_that_no_folder_can_have_stay_apart(tmp_path: Path) -> None:
    classes = (
        "a/b",
        "a_b",
        "CON",
        ".",
        "..",
        "__x",
        ".hidden",
        "unlabeled",
        "Ab",
        "ab",
        "x.",
        "y" * 300,
        "nul.txt",
    )
    labels = simple(tmp_path, {f"{number}.png": name for number, name in enumerate(classes)})
    exported = export_labels(labels, "folders", tmp_path / "out")
    (folder,) = exported.files
    names = {path.name: path.parent.name for path in folder.rglob("*.png")}
    found = [names[f"{number}.png"] for number in range(len(classes))]
    assert len({name.casefold() for name in found}) == len(classes)
    assert found[1] == "a_b"
    assert found[0] == "a_b-2"
    assert found[2] == "CON_"
    assert found[12] == "nul.txt_"
    assert not {name for name in found if name.startswith((".", "__")) or name.endswith(".")}
    given = given_labels(folder, follow_links=True)
    assert given is not None
    assert len(given.labels) == len(classes)
    marker = json.loads((folder / formats.MARKER).read_text())
    assert {
        name: marker["classes"][folder] for name, folder in zip(classes, found, strict=True)
    } == {name: name for name in classes}


def test_images_of_one_name_in_one_class_stay_apart(tmp_path: Path) -> None:
    names = ("x/1.png", "y/1.png", "Y/1.PNG", "x-1.png", "z/ä.png", "w/a\u0308.png", "only/2.png")
    long = ["n" * 240 + f"/{side}/" + "m" * 240 + ".png" for side in "lr"]
    for number, name in enumerate((*names, *long), start=3):
        save(tmp_path / "photos" / name, number, 1, format="PNG")
    labels = simple(tmp_path, dict.fromkeys((*names, *long), "cat") | {"other.png": "dog"})
    exported = export_labels(labels, "folders", tmp_path / "out")
    folder = exported.files[0] / "cat"
    files = [path.name for path in folder.iterdir()]
    assert sorted(size_of(folder / name)[0] for name in files) == list(range(3, 12))
    assert len({name.casefold() for name in files}) == 9
    assert {"x-1.png", "2.png"} <= set(files)


def test_links_that_lead_out_are_followed_only_if_the_labelling_did(tmp_path: Path) -> None:
    save(tmp_path / "secret/a.png", 9, 9)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.png").symlink_to("../secret/a.png")
    labels = simple(tmp_path, {"a.png": "cat", "b.png": "dog"})
    out = tmp_path / "out"
    for copy in (False, True):
        exported = export_labels(labels, "folders", out, copy=copy, overwrite=True)
        assert tree(exported.files[0]) == ["dog/b.png"]
        assert "a.png" in exported.notes[0]
    followed = labels._replace(follow_links=True)
    assert export_labels(followed, "folders", out, overwrite=True).labels == 2
    outside = labels._replace(ids=("../secret/a.png", "b.png"))
    assert export_labels(outside, "folders", out, overwrite=True).labels == 1


def test_names_that_datasets_takes_for_parts_are_noted(tmp_path: Path) -> None:
    labels = simple(tmp_path, {"a.png": "test", "latest.png": "contest"})
    (note,) = export_labels(labels, "folders", tmp_path / "out").notes
    assert "test/a.png" in note
    assert "data_files" in note
    labels = simple(tmp_path, {"a.png": "tests", "latest.png": "contest"})
    assert export_labels(labels, "folders", tmp_path / "new").notes == ()


# What is there already ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_replaced_unless_it_is_to_be(labels: Labels, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    first = export_labels(labels, name, out)
    assert first.files[0] == out / FORMATS[name].file
    assert {path.name for path in out.iterdir()} == {FORMATS[name].file, *FORMATS[name].beside}
    with pytest.raises(DataError, match="overwrite=True"):
        export_labels(labels, name, out)
    fewer = labels._replace(status=["abstained"] * 4 + list(labels.status[4:]))
    second = export_labels(fewer, name, out, overwrite=True)
    assert second.labels == 1
    assert second.files == first.files
    assert {path.name for path in out.iterdir()} == {FORMATS[name].file, *FORMATS[name].beside}


def test_a_folder_of_classes_that_is_not_ours_or_has_more_is_never_replaced(
    labels: Labels, tmp_path: Path
) -> None:
    save(tmp_path / "out/classes/cat/mine.png")
    with pytest.raises(DataError, match="not written by semigpc"):
        export_labels(labels, "folders", tmp_path / "out", overwrite=True)
    assert tree(tmp_path / "out") == ["classes/cat/mine.png"]
    (folder,) = export_labels(labels, "folders", tmp_path / "new").files
    save(folder / "cat/mine.png")
    before = tree(folder)
    with pytest.raises(DataError, match=r"cat/mine\.png"):
        export_labels(labels, "folders", tmp_path / "new", overwrite=True)
    assert tree(folder) == before
    (tmp_path / "link").mkdir()
    (tmp_path / "link/classes").symlink_to(folder)
    (folder / "cat/mine.png").unlink()
    with pytest.raises(DataError, match="link"):
        export_labels(labels, "folders", tmp_path / "link", overwrite=True)


def test_class_folders_that_fail_leave_the_earlier_ones(
    labels: Labels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    (folder,) = export_labels(labels, "folders", out).files
    before = tree(folder)

    def no_links(self: Path, target: str) -> None:
        raise OSError("links are not supported")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "symlink_to", no_links)
        with pytest.raises(WriteError, match="copy=True"):
            export_labels(labels, "folders", out, overwrite=True)
    assert tree(folder) == before
    left = out / f".classes.00000000{atomic.DRAFT}"
    save(left / "cat/half.png")  # of a process that was killed
    export_labels(labels, "folders", out, overwrite=True)
    assert [path.name for path in out.iterdir()] == ["classes"]


def test_the_folder_of_a_labelling_is_left_alone(labels: Labels, tmp_path: Path) -> None:
    (tmp_path / "project.json").write_text("{}")
    (tmp_path / "labels.csv").write_text("ours")
    with pytest.raises(DataError, match="exports"):
        export_labels(labels, "csv", tmp_path, overwrite=True)
    assert (tmp_path / "labels.csv").read_text() == "ours"


def test_wrong_arguments_are_named(labels: Labels, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="coco"):
        export_labels(labels, "cocoo", tmp_path)
    with pytest.raises(SettingsError, match="copy"):
        export_labels(labels, "csv", tmp_path, copy=True)
    with pytest.raises(ValueError, match="bird"):
        export_labels(labels._replace(label=["bird", *labels.label[1:]]), "csv", tmp_path)
    for name in FORMATS:
        ids = ["\udcff.png", *labels.ids[1:]]
        with pytest.raises(DataError, match=r"\\udcff"):
            export_labels(labels._replace(ids=ids), name, tmp_path / "out")
    nothing = labels._replace(status=["abstained"] * 8)
    for name in ("coco", "fiftyone", "folders"):
        with pytest.raises(DataError, match="label"):
            export_labels(nothing, name, tmp_path / "out")
    assert not (tmp_path / "out").exists()
