"""The fine-grained sets: published parts, labels that stay away from training, and what is said
when something is wrong.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semigpc.algorithms import FixMatchConfig
from semigpc.data import AugmentConfig, Splits
from semigpc.io.errors import DataError, SettingsError
from semigpc.models import ModelConfig
from semigpc.paper.fgvc import BENCHMARKS, FGVCConfig, load
from semigpc.refiners import GPConfig
from semigpc.training import Experiment, TrainConfig, last_result, train
from tests.paper.fgvc_samples import (
    NAMES,
    PUBLISHED,
    lines,
    needs_published,
    write_images_of,
    write_lines,
    write_made_up_set,
    write_small_set,
)

# labelled, unlabelled, test, classes, most and fewest labels of a class
SIZES = {
    "semi_aves": (5959, 26640, 8000, 200, 53, 15),
    "semi_fungi": (4141, 13166, 4000, 200, 78, 6),
    "cub": (1000, 3885, 1000, 100, 10, 10),
}


def config(benchmark: str, root: Path, **changes: Any) -> FGVCConfig:
    return FGVCConfig(**{"benchmark": benchmark, "root": str(root), **changes})


def check_sound(data: Splits) -> None:
    """No label on an unlabelled image, and no image in two parts."""
    assert (data.unlabeled.labels == -1).all()
    sets = [image_set for _, image_set in data.parts()]
    positions = np.concatenate([image_set.positions for image_set in sets])
    assert len(np.unique(positions)) == len(positions) == len(sets[0].images)
    names = [name for image_set in sets for name in image_set.names]
    assert len(set(names)) == len(names)


# The published parts ------------------------------------------------------------------------------


@needs_published
@pytest.mark.parametrize("name", SIZES)
def test_the_published_parts_are_loaded_whole(tmp_path: Path, name: str) -> None:
    rows = [row for split in ("l_train_val", "u_train_in", "test") for row in lines(name, split)]
    write_images_of(tmp_path / name / BENCHMARKS[name].image_folder, rows)
    data = load(config(name, tmp_path, splits=str(PUBLISHED)), seed=0)
    assert data.test is not None
    sizes = (len(data.labeled), len(data.unlabeled), len(data.test))
    counts = data.class_counts
    assert (*sizes, data.n_classes, counts.max(), counts.min()) == SIZES[name]
    check_sound(data)
    assert (np.bincount(data.test.labels) == len(data.test) // data.n_classes).all()
    assert data.validation is None
    assert data.notes == ()
    assert data.labeled[0].size == (20, 18)
    spaced = [i for i, path in enumerate(data.unlabeled.names) if " " in path]
    assert len(spaced) == (372 if name == "semi_fungi" else 0)
    assert all(data.unlabeled[i].size == (20, 18) for i in spaced)


@needs_published
def test_semi_inat_is_loaded_whole_but_for_its_unlabelled_images(tmp_path: Path) -> None:
    folder = tmp_path / "semi_inat"
    for split in ("l_train", "val", "l_train_val", "test"):
        write_lines(folder / f"{split}.txt", lines("semi_inat", split))
    made_up = [f"u_train/{i}.jpg {label}" for i, label in enumerate((-1, 0, 809))]
    write_lines(folder / "u_train_in.txt", made_up)
    published = [*lines("semi_inat", "l_train_val"), *lines("semi_inat", "test")]
    write_images_of(folder, [*published, *made_up])
    data = load(config("semi_inat", tmp_path), seed=0)
    check_sound(data)
    assert data.test is not None
    assert (len(data.labeled), len(data.test), data.n_classes) == (13771, 16200, 810)
    assert (data.class_counts.max(), data.class_counts.min()) == (85, 10)
    assert data.unlabeled_truth.tolist() == [-1, 0, 809]
    assert (data.class_names[0], data.class_names[809]) == ("0", "809")

    held_out = load(config("semi_inat", tmp_path, labels="l_train"), seed=0)
    check_sound(held_out)
    assert held_out.validation is not None
    assert (len(held_out.labeled), len(held_out.validation)) == (9721, 4050)
    assert np.bincount(held_out.validation.labels).tolist() == [5] * 810


@needs_published
def test_cub_with_all_its_oddities(tmp_path: Path) -> None:
    folder = tmp_path / "cub"
    splits = ("l_train", "val", "u_train_in", "u_train_out", "test")
    for split in splits:
        write_lines(folder / f"{split}.txt", lines("cub", split))
    write_images_of(folder / "images", [row for split in splits for row in lines("cub", split)])
    data = load(config("cub", tmp_path, labels="l_train", unlabeled="in+out"), seed=0)
    check_sound(data)
    assert sum(len(image_set) for _, image_set in data.parts()) == 11788  # all of CUB-200-2011
    assert data.validation is not None
    assert (len(data.labeled), len(data.validation), len(data.unlabeled)) == (500, 500, 3885 + 5903)
    # Seen classes have odd numbers in CUB; the label column of U_in tells them, and is the truth
    # and nothing else.
    assert data.class_names[:2] == ("001.Black_footed_Albatross", "003.Sooty_Albatross")
    folders = np.array([int(name[:3]) for name in data.unlabeled.names])
    assert (folders[:3885] == 2 * data.unlabeled_truth[:3885] + 1).all()
    assert (data.unlabeled_truth[3885:] == -1).all()
    assert (folders[3885:] % 2 == 0).all()


@needs_published
def test_the_truth_comes_from_the_oracle_whose_order_is_another(tmp_path: Path) -> None:
    folder = write_small_set(tmp_path, "semi_fungi", unlabeled=300)
    data = load(config("semi_fungi", tmp_path), seed=0)
    told = dict(row.rsplit(" ", 1) for row in lines("semi_fungi", "u_train_in_oracle"))
    assert data.unlabeled_truth.tolist() == [int(told[name]) for name in data.unlabeled.names]
    folders = [name.split("/")[1] for name in data.unlabeled.names]
    assert [data.class_names[c] for c in data.unlabeled_truth] == folders
    assert data.unlabeled.names[0].endswith(".JPG")

    (folder / "u_train_in_oracle.txt").unlink()
    assert (load(config("semi_fungi", tmp_path), seed=0).unlabeled_truth == -1).all()


@needs_published
def test_images_of_other_classes_have_no_truth(tmp_path: Path) -> None:
    for name in ("semi_aves", "semi_inat"):
        write_small_set(tmp_path, name)
        data = load(config(name, tmp_path, unlabeled="in+out"), seed=0)
        check_sound(data)
        assert len(data.unlabeled) == 80
        assert (data.unlabeled_truth[:40] >= 0).any()
        assert (data.unlabeled_truth[40:] == -1).all()
        assert data.unlabeled_out is not None
        # also where the class of U_in is not known
        assert data.unlabeled_out.tolist() == [False] * 40 + [True] * 40
        only_in = load(config(name, tmp_path), seed=0)
        assert only_in.unlabeled_out is None
        assert only_in.unlabeled.names == data.unlabeled.names[:40]


def test_the_label_column_of_unlabelled_images_changes_nothing_but_the_truth(
    tmp_path: Path,
) -> None:
    folder = write_made_up_set(tmp_path)
    before = load(config("cub", tmp_path), seed=0)
    assert before.unlabeled_truth.tolist() == list(range(7))
    rows = (folder / "u_train_in.txt").read_text().splitlines()
    write_lines(folder / "u_train_in.txt", [f"{row.rpartition(' ')[0]} -1" for row in rows])
    after = load(config("cub", tmp_path), seed=1)
    assert (after.unlabeled_truth == -1).all()
    assert after.sha256 == before.sha256


def test_both_layouts_and_split_files_elsewhere(tmp_path: Path) -> None:
    folder = write_made_up_set(tmp_path / "one")
    plain = load(config("cub", tmp_path / "one"), seed=0)
    assert plain.class_names[57] == "115.Bird_115"
    shutil.copytree(folder, tmp_path / "two" / "semi_fgvc" / "cub")
    assert load(config("cub", tmp_path / "two"), seed=0).sha256 == plain.sha256
    for path in (tmp_path / "two" / "semi_fgvc" / "cub").glob("*.txt"):
        path.unlink()
    apart = load(config("cub", tmp_path / "two", splits=str(tmp_path / "one")), seed=0)
    assert apart.sha256 == plain.sha256
    assert apart.labeled[3].size == (20, 18)


# Training -----------------------------------------------------------------------------------------


@needs_published
@pytest.mark.parametrize("name", NAMES)
def test_every_set_trains(tmp_path: Path, name: str) -> None:
    write_small_set(tmp_path, name)
    experiment = Experiment(
        data=config(name, tmp_path, unlabeled="in+out" if name == "cub" else "in"),
        augment=AugmentConfig(image_size=16),
        model=ModelConfig(name="small_cnn"),
        algorithm=FixMatchConfig(),
        refiner=GPConfig(buffer_size=64, warmup_steps=1),
        train=TrainConfig(steps=4, epoch_steps=2, warmup_steps=1, workers=0, threads=1),
    ).override(["train.eval_steps=4", "train.checkpoint_steps=4"])
    assert Experiment.from_plain(json.loads(json.dumps(experiment.to_plain()))) == experiment
    summary = train(experiment, tmp_path / "run")
    assert last_result(summary)["step"] == 4
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    assert len(split["class_names"]) == BENCHMARKS[name].classes
    assert split["unlabeled"] == (80 if name == "cub" else 40)


# What is wrong ------------------------------------------------------------------------------------


def test_folders_and_split_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"SemiCUB .*: looked for .*/cub and .*/semi_fgvc/cub\. "):
        load(config("cub", tmp_path), seed=0)
    folder = write_made_up_set(tmp_path)
    with pytest.raises(DataError, match="seems to be the folder of the set itself"):
        load(config("cub", folder), seed=0)
    (folder / "u_train_in.txt").unlink()
    with pytest.raises(DataError, match=r"cub/u_train_in.txt does not .*, folder data/cub: put"):
        load(config("cub", tmp_path), seed=0)


def test_a_missing_image_is_named_with_its_line_and_archive(tmp_path: Path) -> None:
    folder = write_made_up_set(tmp_path)
    for i in (4, 5):
        name = (folder / "test.txt").read_text().splitlines()[i].rpartition(" ")[0]
        (folder / "images" / name).unlink()
    with pytest.raises(DataError) as refused:
        load(config("cub", tmp_path), seed=0)
    images = folder / "images"
    for words in (
        f"Line 5 of {folder / 'test.txt'} lists 005.Bird_5/test 0.jpg, which is not below {images}",
        "2 of its 200 images are missing",
        "CUB_200_2011.tgz (md5 97eceeb196236b17998738112f37df78) from https://data.caltech.edu/",
        f"so that {images / '005.Bird_5/test 0.jpg'} exists",
    ):
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("name", "path", "words"),
    [
        ("semi_aves", "u_train_in/3.jpg", "in-class unlabelled images (2.3 GB)"),
        ("semi_inat", "l_train/0/0.jpg", "l_train.tar.gz (164 MB)"),
        ("semi_inat", "u_train_in/0.jpg", "u_train.tar.gz (5.2 GB)"),
        ("semi_fungi", "images/16022_Langermannia_gigantea/a b.JPG", "fungi_train_val.tgz (13 GB"),
    ],
)
def test_every_image_has_an_archive(name: str, path: str, words: str) -> None:
    assert words in BENCHMARKS[name].archive_of(path)


def test_a_image_in_two_parts_is_refused(tmp_path: Path) -> None:
    folder = write_made_up_set(tmp_path)
    with (folder / "l_train_val.txt").open("a") as file:
        file.write("007.Bird_7/test 0.jpg 3\n")
    words = r"line 7 of .*test.txt lists 007.Bird_7/test 0.jpg, which line 201 of .*l_train_val"
    with pytest.raises(DataError, match=words):
        load(config("cub", tmp_path), seed=0)


def test_a_malformed_line_is_refused(tmp_path: Path) -> None:
    with (write_made_up_set(tmp_path) / "l_train_val.txt").open("a") as file:
        file.write("001.Bird_1/more.jpg 100\n")
    words = r"Line 201 of .*l_train_val.txt cannot be used: labels here must be in \[0, 100\)"
    with pytest.raises(DataError, match=words):
        load(config("cub", tmp_path), seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"benchmark": "aves"}, "benchmark must be one of semi_aves, .*, cub; got 'aves'"),
        ({"labels": "val"}, "labels must be one of l_train_val, l_train; got 'val'"),
        ({"unlabeled": "out"}, r"unlabeled must be one of in, in\+out; got 'out'"),
        ({"benchmark": "semi_fungi", "labels": "l_train"}, "SemiFungi has no .*at 'l_train_val'"),
        ({"cache_bytes": -1}, "cache_bytes must be 0 or more; got -1"),
    ],
)
def test_configs_check_their_ranges(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        FGVCConfig(**({"benchmark": "cub", "root": "x"} | changes))
