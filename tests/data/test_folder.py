"""Folders of images: class folders, tables, held-out parts, and errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semigpc.data import FolderConfig, SplitConfig, Splits
from semigpc.data.folder import load
from semigpc.data.splits import with_validation
from semigpc.io.errors import DataError, SettingsError
from tests.data.samples import write_images


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three class folders and one of unlabelled images."""
    write_images(tmp_path / "images", {"cat": 6, "ant": 3, "bee": 4, "unlabeled": 5})
    return tmp_path / "images"


def loaded(root: Path | str, *, seed: int = 0, **options: Any) -> Splits:
    return load(FolderConfig(root=str(root), **options), seed=seed)


def write_table(path: Path, rows: dict[str, str]) -> str:
    lines = ["file_name,label", *(f"{name},{label}" for name, label in rows.items())]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def names(data: Splits) -> dict[str, set[str]]:
    return {part: set(image_set.names) for part, image_set in data.parts()}


def test_every_folder_is_a_class(root: Path) -> None:
    data = loaded(root)
    assert data.class_names == ("ant", "bee", "cat")
    assert data.class_counts.tolist() == [3, 4, 6]
    assert len(data.unlabeled) == 5
    assert data.unlabeled_truth.tolist() == [-1] * 5
    assert data.labeled.names[:2] == ("ant/0.png", "ant/1.png")
    assert data.unlabeled.names[0] == "unlabeled/0.png"
    assert data.labeled[4].tobytes() == Image.open(root / "bee" / "1.png").tobytes()
    assert data.notes == ()


def test_the_folder_of_unlabelled_images_may_be_called_otherwise(root: Path) -> None:
    (root / "unlabeled").rename(root / "more")
    data = loaded(root, unlabeled="more")
    assert data.class_names == ("ant", "bee", "cat")
    assert len(data.unlabeled) == 5


def test_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    write_images(tmp_path, {"10": 2, "9": 2, "2": 2})
    assert loaded(tmp_path).class_names == ("2", "9", "10")
    write_images(tmp_path, {"x": 2})
    assert loaded(tmp_path).class_names == ("10", "2", "9", "x")


def test_images_may_lie_deeper_and_hidden_files_are_none(root: Path) -> None:
    write_images(root / "ant", {"red": 2, ".thumbs": 3})
    (root / "ant" / "._0.png").write_bytes(b"what some systems leave behind")
    (root / "ant" / "notes.txt").write_text("no image")
    (root / ".git").mkdir()
    (root / "cat" / "0.png").rename(root / "cat" / "0.PNG")
    (root / "bee" / "3.png").rename(root / "loose.png")
    data = loaded(root)
    assert data.class_counts.tolist() == [5, 3, 6]
    assert "ant/red/1.png" in data.labeled.names
    (note,) = data.notes
    assert note.endswith("in no class folder: 1.")


def test_a_table_labels_some_and_the_rest_is_unlabelled(root: Path) -> None:
    rows = dict.fromkeys(("cat/0.png", "cat/1.png"), "felis")
    rows |= dict.fromkeys(("ant/0.png", "ant/1.png"), "formica") | {"ant/2.png": ""}
    table = write_table(root.parent / "labels.csv", rows)
    data = loaded(root, labels=table)
    assert data.class_names == ("felis", "formica")
    assert data.class_counts.tolist() == [2, 2]
    assert len(data.unlabeled) == 6 + 3 + 4 + 5 - 4
    ignoring = loaded(root, labels=table, unlisted="ignored")
    assert ignoring.unlabeled.names == ("ant/2.png",)


def test_guesses_in_a_table_of_semigpc_are_unlabelled_images(root: Path) -> None:
    table = root.parent / "labels.csv"
    rows = [("cat/0.png", "cat", "labelled"), ("ant/0.png", "ant", "labelled")]
    rows += [("cat/1.png", "cat", "pseudo"), ("ant/1.png", "", "abstained")]
    lines = [f"{name},{label},0.9,0.1,{status}" for name, label, status in rows]
    table.write_text("\n".join(["file_name,label,confidence,variance,status", *lines]) + "\n")
    data = loaded(root, labels=str(table))
    assert names(data)["labeled"] == {"cat/0.png", "ant/0.png"}
    assert {"cat/1.png", "ant/1.png"} < names(data)["unlabeled"]
    assert any("guesses of semigpc: 1." in note for note in data.notes)
    assert len(loaded(root, labels=str(table), trust_pseudo=True).labeled) == 3
    with pytest.raises(DataError, match=r"test part needs a label; 2 .*guesses of semigpc: 1\."):
        loaded(root, test=str(table))


def test_class_names_that_differ_only_in_case_are_noted(root: Path) -> None:
    write_images(root, {"Cat": 2})
    (note,) = loaded(root).notes
    assert "'Cat' and 'cat'" in note


def test_a_table_may_be_named_from_within_the_root(root: Path) -> None:
    write_table(root / "labels.csv", {"cat/0.png": "a", "ant/0.png": "b"})
    assert loaded(root, labels="labels.csv").n_classes == 2


def test_held_out_tables_are_kept_from_training(root: Path) -> None:
    test = write_table(root.parent / "test.csv", {"cat/0.png": "cat", "ant/0.png": "ant"})
    rows = {"cat/1.png": "cat", "unlabeled/0.png": "bee"}
    validation = write_table(root.parent / "val.csv", rows)
    data = loaded(root, test=test, validation=validation)
    parts = names(data)
    assert parts["test"] == {"cat/0.png", "ant/0.png"}
    assert parts["validation"] == {"cat/1.png", "unlabeled/0.png"}
    assert not (parts["labeled"] | parts["unlabeled"]) & (parts["test"] | parts["validation"])
    assert data.class_counts.tolist() == [2, 4, 4]
    assert data.test is not None
    assert data.test[0].tobytes() == Image.open(root / data.test.names[0]).tobytes()
    assert "Images that are not trained on, since they are in the test part: 2." in data.notes


def test_a_test_folder_inside_the_root_is_no_class_and_never_unlabelled(root: Path) -> None:
    write_images(root / "test", {"cat": 2, "bee": 1})
    data = loaded(root, test="test")
    assert data.class_names == ("ant", "bee", "cat")
    assert data.test is not None
    assert data.test.labels.tolist() == [1, 2, 2]
    assert data.test.names == ("bee/0.png", "cat/0.png", "cat/1.png")
    rows = {f"{name}/0.png": name for name in ("cat", "ant", "bee")}
    table = write_table(root.parent / "labels.csv", rows)
    listed = loaded(root, labels=table, test="test")
    assert not any(name.startswith("test/") for name in listed.unlabeled.names)


def test_a_fraction_of_the_labels_is_held_out(root: Path) -> None:
    data = loaded(root, validation=0.34)
    assert data.validation is not None
    assert np.bincount(data.validation.labels).tolist() == [1, 1, 2]
    assert data.class_counts.tolist() == [2, 3, 4]
    assert not set(data.validation.names) & set(data.labeled.names)
    assert names(data) == names(loaded(root, validation=0.34))
    assert names(data) != names(loaded(root, validation=0.34, seed=1))
    none = loaded(root, validation=0.1)
    assert none.validation is None
    assert "there is no validation part" in none.notes[0]


def test_a_benchmark_is_cut_from_class_folders(tmp_path: Path) -> None:
    write_images(tmp_path, {"0": 30, "1": 30, "2": 30})
    split = SplitConfig(labeled_head=8, labeled_ratio=4, unlabeled_head=20, unlabeled_ratio=4)
    data = loaded(tmp_path, split=split, validation=0.1)
    assert data.class_counts.tolist() == [8, 4, 2]
    assert np.bincount(data.unlabeled_truth).tolist() == [20, 10, 5]
    folders = [int(name.split("/")[0]) for name in data.unlabeled.names]
    assert folders == data.unlabeled_truth.tolist()
    assert data.validation is not None
    assert len(data.validation) == 9
    assert not set(data.validation.names) & (set(data.labeled.names) | set(data.unlabeled.names))
    assert set(data.labeled.names) <= set(data.unlabeled.names)


def test_the_hash_does_not_depend_on_where_the_folder_is(root: Path, tmp_path: Path) -> None:
    before = loaded(root).sha256
    root.rename(tmp_path / "elsewhere")
    assert load(FolderConfig(root=str(tmp_path / "elsewhere")), seed=0).sha256 == before


def test_what_is_missing_is_named(root: Path) -> None:
    with pytest.raises(DataError, match=r"The folder of the.*does not exist: looked for /nowhere"):
        load(FolderConfig(root="/nowhere"), seed=0)
    with pytest.raises(DataError, match=r"The table of labels does not exist:.*and .*images/l.csv"):
        loaded(root, labels="l.csv")
    with pytest.raises(DataError, match="The test part does not exist"):
        loaded(root, test="tset")
    table = write_table(root.parent / "l.csv", {f"cat/{i}.png": "cat" for i in range(12)})
    with pytest.raises(DataError, match=r"lists 6 images.*'cat/7.png', 'cat/8.png' and 3 more"):
        loaded(root, labels=table)


def test_folders_without_classes_or_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no class folders. Make.*sub-folder for each class"):
        loaded(tmp_path)
    (tmp_path / "ant").mkdir()
    (tmp_path / "bee").mkdir()
    with pytest.raises(DataError, match=r"no images in the class folders.*Known endings: .bmp"):
        loaded(tmp_path)
    write_images(tmp_path, {"ant": 2})
    with pytest.raises(DataError, match="there is none of 'bee'"):
        loaded(tmp_path)
    (tmp_path / "bee").rmdir()
    with pytest.raises(DataError, match="at least two classes; the labels name 'ant'"):
        loaded(tmp_path)
    with pytest.raises(DataError, match="it is a file"):
        load(FolderConfig(root=str(tmp_path / "ant" / "0.png")), seed=0)


def test_held_out_parts_that_do_not_fit_are_refused(root: Path) -> None:
    test = write_table(root.parent / "t.csv", {"cat/0.png": "cat", "ant/0.png": "wasp"})
    with pytest.raises(DataError, match=r"test part has images of.*a class of the training labels"):
        loaded(root, test=test)
    bare = write_table(root.parent / "b.csv", {"cat/0.png": "cat", "ant/0.png": ""})
    with pytest.raises(DataError, match=r"validation part needs a.*1 in .* have none: 'ant/0.png'"):
        loaded(root, validation=bare)
    first = write_table(root.parent / "1.csv", {"cat/0.png": "cat", "cat/1.png": "cat"})
    second = write_table(root.parent / "2.csv", {"cat/1.png": "cat", "cat/2.png": "cat"})
    with pytest.raises(DataError, match=r"must not share images.*1 are.*both, such as .*cat/1.png"):
        loaded(root, validation=first, test=second)


def test_a_benchmark_and_a_table_need_labels(root: Path) -> None:
    with pytest.raises(DataError, match=r"5 are not, such as unlabeled/0.png"):
        loaded(root, split=SplitConfig(labeled_head=2, unlabeled_head=3))
    table = write_table(root.parent / "l.csv", {"cat/0.png": ""})
    with pytest.raises(DataError, match="at least two classes; the labels name none"):
        loaded(root, labels=table)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unlisted": "drop"}, "unlisted must be 'unlabeled' or 'ignored'; got 'drop'"),
        ({"validation": 1.0}, r"fraction in \[0, 1\) of the labels; got 1.0"),
        ({"cache_bytes": -1}, "cache_bytes must be 0 or more; got -1"),
    ],
)
def test_configs_check_their_ranges(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        FolderConfig(**({"root": "x"} | changes))  # type: ignore[arg-type]


def test_holding_out_validation_later_is_the_same_as_at_once(root: Path) -> None:
    listed = loaded(root, seed=3)
    later = with_validation(listed, 0.34, 3)
    at_once = loaded(root, validation=0.34, seed=3)
    assert later.sha256 == at_once.sha256
    assert names(later) == names(at_once)
    assert later.notes == at_once.notes
