"""One call from Python: a folder to a DataFrame, a Dataset to a Dataset."""

import csv
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
from pyarrow import parquet

import semigpc
from semigpc.io.errors import DataError, ImageError, SettingsError
from semigpc.labeling.outputs import COLUMNS
from semigpc.models import networks
from semigpc.models.networks import NETWORKS, Network
from tests.cli.calls import worked
from tests.cli.own_data import make_folder
from tests.labeling.samples import IDS, LABELS, X
from tests.models.hub_cache import add_to_hub_cache, tiny_network

VIT = "test_vit.r160_in1k"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Photographs, labels.csv, and weights of a tiny network in the cache of the hub."""
    root = tmp_path_factory.mktemp("one_call")
    add_to_hub_cache(root / "hub", f"timm/{VIT}", dict(tiny_network(VIT).state_dict()))
    make_folder(root, side=40)
    best = Network(name="best", timm=VIT, width=64, image_size=32, megabytes=1, good_for="tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(root / "hub"))
        patch.setenv("SEMIGPC_CACHE", str(root / "cache"))
        patch.setattr(networks, "NETWORKS", (best, NETWORKS[-1]))
        datasets.disable_progress_bars()
        yield root
        datasets.enable_progress_bars()


def given(root: Path) -> dict[str, str]:
    with (root / "labels.csv").open() as file:
        return {row["file_name"]: row["label"] for row in csv.DictReader(file)}


# A folder -----------------------------------------------------------------------------------------


def test_a_folder_becomes_the_table_that_the_command_writes(root: Path) -> None:
    frame = semigpc.label_images(root / "photos", root / "labels.csv")
    out = root / "by_command"
    command = ("label", root / "photos", "--labels", root / "labels.csv", "--out", out)
    worked(*command, "--no-report")
    written = parquet.read_table(out / "labels.parquet").to_pandas()
    assert [*frame.columns] == ["file_name", *COLUMNS]
    pandas.testing.assert_frame_equal(
        frame.drop(columns="reasons"), written.drop(columns="reasons")
    )
    assert frame.attrs["network"].startswith(f"network: best ({VIT})")
    labelled = frame[frame["status"] == "labelled"].set_index("file_name")["label"].to_dict()
    assert labelled == {name: label for name, label in given(root).items() if label}


def test_labels_may_be_a_dictionary_or_a_frame(root: Path) -> None:
    photos = str(root / "photos")
    by_file = semigpc.label_images(photos, str(root / "labels.csv"), target_precision=None)
    assert set(by_file["status"]) <= {"labelled", "pseudo", "outlier"}
    for labels in (given(root), pandas.read_csv(root / "labels.csv")):
        frame = semigpc.label_images(photos, labels, target_precision=None)
        assert frame["guess"].tolist() == by_file["guess"].tolist()


def test_what_comes_out_can_be_given_again(root: Path) -> None:
    photos = root / "photos"
    first = semigpc.label_images(photos, root / "labels.csv", target_precision=None)
    again = semigpc.label_images(photos, first, target_precision=None)
    assert (again["status"] == "labelled").sum() == (first["status"] == "labelled").sum()
    assert "guesses of semigpc" in again.attrs["notes"][0]
    trusted = semigpc.label_images(photos, first, trust_pseudo=True)
    assert (trusted["status"] == "labelled").sum() == first["label"].notna().sum()


def test_a_folder_that_is_kept_is_a_labelling(root: Path) -> None:
    out = root / "kept"
    frame = semigpc.label_images(root / "photos", given(root), out=out)
    assert (out / "project.json").exists()
    worked("predict", out, root / "photos", "--out", root / "again.csv")
    assert len(pandas.read_csv(root / "again.csv")) == len(frame)


def test_inputs_that_cannot_be_used(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no images below"):
        semigpc.label_images(tmp_path, {})
    with pytest.raises(DataError, match=r"labels must be a file.*list"):
        semigpc.label_images(root / "photos", [1, 2])
    with pytest.raises(DataError, match="not in"):
        semigpc.label_images(root / "photos", {"other.png": "one", "third.png": "two"})


def test_pandas_is_asked_for_before_any_image_is_embedded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr("semigpc.labeling.one_call.label_data", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        semigpc.label_images(root / "photos", root / "labels.csv")


# A Dataset ----------------------------------------------------------------------------------------


def rows_dataset(kind: str = "text") -> datasets.Dataset:
    """The sample table, with labels of a kind."""
    names = sorted(set(LABELS.values()))
    text = [LABELS.get(name) for name in IDS]
    labels: list[Any] = text
    feature = datasets.Value("string")
    if kind == "class":
        labels = [-1 if each is None else names.index(each) for each in text]
        feature = datasets.ClassLabel(names=names)
    if kind == "number":
        labels = [None if each is None else 10 * names.index(each) for each in text]
        feature = datasets.Value("int64")
    features = {
        "name": datasets.Value("string"),
        "embedding": datasets.List(datasets.Value("float32")),
        "label": feature,
    }
    columns = {"name": list(IDS), "embedding": X.tolist(), "label": labels}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.mark.parametrize("kind", ["text", "class", "number"])
def test_a_dataset_of_embeddings_gets_columns_of_its_own_kind(kind: str) -> None:
    dataset = rows_dataset(kind)
    labelled = semigpc.label_dataset(dataset)
    assert labelled.column_names == ["name", "embedding", *COLUMNS[:-1]]
    assert labelled["name"][:] == dataset["name"][:]
    for column in ("label", "guess", "second"):
        assert labelled.features[column] == dataset.features["label"]
    y = np.array([LABELS.get(name) for name in IDS], dtype=object)
    model = semigpc.SemiGPClassifier(random_state=0).fit(X, y)
    names = sorted(set(LABELS.values()))
    guesses = [names[c] for c in model.answer(X).codes]
    free = [row for row, name in enumerate(IDS) if name not in LABELS]
    if kind != "text":
        step = 10 if kind == "number" else 1
        guesses = [names.index(guess) * step for guess in guesses]
    found = labelled["guess"][:]
    assert [found[row] for row in free] == [guesses[row] for row in free]
    given_out = np.array([label is not None for label in labelled["label"]])
    assert (given_out == np.isin(labelled["status"][:], ["labelled", "pseudo"])).all()


def test_a_labelled_dataset_can_be_given_again() -> None:
    dataset = rows_dataset("class")
    first = semigpc.label_dataset(dataset, target_precision=None)
    again = semigpc.label_dataset(first, target_precision=None)
    assert again.column_names == first.column_names
    assert again["status"][:] == first["status"][:]
    trusted = semigpc.label_dataset(first, trust_pseudo=True)
    assert trusted["status"][:].count("labelled") > 2 * len(LABELS)


def test_labels_under_another_name_stay_as_they_were_given() -> None:
    dataset = rows_dataset().rename_column("label", "species")
    labelled = semigpc.label_dataset(dataset, label="species")
    assert labelled["species"][:] == dataset["species"][:]
    assert labelled["label"][:].count(None) < dataset["species"][:].count(None)
    again = semigpc.label_dataset(labelled, label="species")
    assert again["label"][:] == labelled["label"][:]


def test_rows_that_were_selected_stay_in_their_order() -> None:
    dataset = rows_dataset()
    order = np.random.default_rng(0).permutation(len(dataset))
    labelled = semigpc.label_dataset(dataset.select(order.tolist()))
    y = [LABELS.get(IDS[row]) for row in order]
    own = [
        label
        for label, status in zip(labelled["label"], labelled["status"], strict=True)
        if status == "labelled"
    ]
    assert own == [label for label in y if label is not None]


@pytest.mark.parametrize("stored", ["files", "bytes"])
def test_a_dataset_of_images(root: Path, stored: str) -> None:
    names = sorted(path.name for path in (root / "photos").iterdir())
    labels = given(root)
    files = [str(root / "photos" / name) for name in names]
    images = [{"bytes": Path(file).read_bytes(), "path": None} for file in files]
    columns = {
        "picture": files if stored == "files" else images,
        "label": [labels.get(name) or None for name in names],
    }
    dataset = datasets.Dataset.from_dict(columns).cast_column("picture", datasets.Image())
    labelled = semigpc.label_dataset(dataset, target_precision=None)
    frame = semigpc.label_images(root / "photos", root / "labels.csv", target_precision=None)
    assert labelled["guess"][:] == frame["guess"].tolist()
    assert labelled["confidence"][:] == pytest.approx(frame["confidence"].tolist(), abs=1e-5)
    assert labelled[0]["picture"].size == (40, 40)


def test_an_image_that_cannot_be_read_has_no_guess(root: Path) -> None:
    files = sorted((root / "photos").iterdir())
    labels = [given(root).get(path.name) or None for path in files]
    images: list[Any] = [{"bytes": path.read_bytes(), "path": None} for path in files]
    place = labels.index(None)
    images[place] = {"bytes": b"no image", "path": None}
    columns = {"image": images, "label": labels}
    dataset = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    with pytest.raises(ImageError, match="1 of"):
        semigpc.label_dataset(dataset)
    labelled = semigpc.label_dataset(dataset, skip_bad=True)
    assert [labelled["guess"][place], labelled["status"][place]] == [None, None]
    assert None not in labelled["guess"][:place] + labelled["guess"][place + 1 :]


def test_datasets_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = rows_dataset()
    with pytest.raises(DataError, match="no column 'species'"):
        semigpc.label_dataset(dataset, label="species")
    with pytest.raises(DataError, match="no column 'x'"):
        semigpc.label_dataset(dataset, column="x")
    with pytest.raises(DataError, match="must have one column of images"):
        semigpc.label_dataset(dataset.remove_columns("embedding"))
    with pytest.raises(SettingsError, match=r"dataset\['train'\]; got DatasetDict"):
        semigpc.label_dataset(datasets.DatasetDict({"train": dataset}))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="pip install datasets"):
        semigpc.label_dataset(dataset)
