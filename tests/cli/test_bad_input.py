"""What users get wrong: each is answered in one paragraph, with the right exit code and nothing
lost.
"""

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from semigpc.cli.live import RunProgress
from semigpc.training.run_folder import read_checkpoint
from tests.cli.calls import SHORT, refused, semigpc
from tests.cli.conftest import Trained
from tests.cli.own_data import CLASSES, make_class_folders, make_folder, write_table

QUICK = ("--algorithm fixmatch --refiner none --set train.threads=1",)


@pytest.mark.slow
def test_missing_folders_and_files(trained: Trained, tmp_path: Path) -> None:
    refused(
        "train",
        tmp_path / "nowhere",
        code=2,
        words=f"there is no folder or file {tmp_path / 'nowhere'}",
    )
    refused("train digts", code=2, words="Did you mean 'digits'?")
    refused(
        "train",
        trained.photos,
        "--labels nowhere.csv",
        code=2,
        words="The table of labels does not exist",
    )
    refused(
        "train", trained.root / "labels.csv", code=2, words="a folder of images or an .npz file"
    )
    refused(
        "predict", trained.run, tmp_path / "nowhere.png", code=2, words="no image and no folder"
    )
    refused("evaluate", trained.photos, code=1, words="no run was started there")
    assert semigpc("evaluate", tmp_path / "nowhere").exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["on_00.png", "tw_10.png"])  # a labelled one, an unlabelled one
def test_a_truncated_image_is_named(tmp_path: Path, name: str) -> None:
    photos = make_folder(tmp_path)
    whole = (photos / name).read_bytes()
    (photos / name).write_bytes(whole[:60])
    command = (
        "train",
        photos,
        "--labels",
        tmp_path / "labels.csv",
        "--out",
        tmp_path / "run",
        "--steps 6",
        *QUICK,
    )
    refused(*command, code=1, words=f"The image {photos / name} cannot be read")
    (photos / name).write_bytes(whole)
    assert semigpc(*command, "--resume").exit_code == 0


@pytest.mark.slow
def test_a_class_with_a_single_label_is_noted(tmp_path: Path) -> None:
    photos = make_folder(tmp_path, labels=(6, 5, 1))
    done = semigpc(
        "train",
        photos,
        "--labels",
        tmp_path / "labels.csv",
        "--out",
        tmp_path / "run",
        "--steps 1",
        *QUICK,
    )
    assert done.exit_code == 0, done.output
    assert "single labelled image: 'two'" in done.stdout
    assert "no images to evaluate on" in done.stdout


@pytest.mark.slow
def test_a_class_absent_from_the_labels(trained: Trained, tmp_path: Path) -> None:
    rows = [line.split(",") for line in (trained.root / "labels.csv").read_text().split()[1:]]
    write_table(
        tmp_path / "labels.csv", [(name, "" if label == "two" else label) for name, label in rows]
    )
    command = (
        "train",
        trained.photos,
        "--labels",
        tmp_path / "labels.csv",
        "--test",
        trained.root / "test.csv",
    )
    refused(
        *command,
        "--out",
        tmp_path / "run",
        code=2,
        words="has images of 'two', which is not a class of the training labels",
    )
    assert not (tmp_path / "run").exists()


def test_more_classes_in_the_checkpoint_than_in_the_data(trained: Trained, tmp_path: Path) -> None:
    two = make_class_folders(tmp_path / "two", {"zero": 3, "one": 3})
    words = "the run has 3 classes, and " + f"{two} has images of 2: none of 'two'"
    refused("evaluate", trained.run, "--data", two, code=2, words=words)
    done = semigpc("evaluate", trained.run, "--data", two, "--partial --json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["heads"]["linear"]["per_class_recall"][1] is None


def test_more_classes_in_the_data_than_in_the_checkpoint(trained: Trained, tmp_path: Path) -> None:
    more = make_class_folders(tmp_path / "more", dict.fromkeys(CLASSES, 2))
    (more / "one").rename(more / "uno")
    refused(
        "evaluate",
        trained.run,
        "--data",
        more,
        code=2,
        words="images of 'uno', and the run was trained on",
    )


def test_own_data_that_changed_since(trained: Trained, tmp_path: Path) -> None:
    run = shutil.copytree(trained.run, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    rows = (trained.root / "test.csv").read_text().splitlines()
    (tmp_path / "test.csv").write_text("\n".join(rows[:-1]))
    config["data"]["test"] = str(tmp_path / "test.csv")
    (run / "config.json").write_text(json.dumps(config))
    refused("evaluate", run, code=1, words="3 classes and 15 images then, 3 and 14 now")


def test_misspelt_options(trained: Trained) -> None:
    refused("train digits --set train.lrr=1", code=2, words="did you mean 'train.lr'?")
    refused("train digits --set train.lr", code=2, words="must be written key=value")
    refused(
        "train digits --set train.lr=fast",
        code=2,
        words='train.lr must be a valid number; got "fast"',
    )
    refused("train digits --algorithm fixmach", code=2, words="did you mean 'fixmatch'?")
    refused(
        "train",
        trained.photos,
        "--labels",
        trained.root / "labels.csv",
        "--refiner pg",
        code=2,
        words="'gp'?",
    )
    refused("list settings digits --algorithm fixmach", code=2, words="did you mean 'fixmatch'?")
    for arguments, words in (
        (("train digits --algoritm fixmatch",), "--algorithm"),
        (("evaluate", str(trained.run), "--part tests"), "test"),
        (("trane", "digits"), "train"),
    ):
        done = semigpc(*arguments)
        assert done.exit_code == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_options_that_do_not_belong_together(trained: Trained, tmp_path: Path) -> None:
    refused("train digits --labels labels.csv", code=2, words="labels apply to your own data")
    refused("train", trained.photos, "--ratio 10", code=2, words="does not apply to your own data")
    for arguments in (("--partial",), ("--data", str(tmp_path), "--part test")):
        assert semigpc("evaluate", trained.run, *arguments).exit_code == 2
    for out in ("labels.txt", str(tmp_path / "no" / "labels.csv")):
        assert semigpc("predict", trained.run, trained.photos, "--out", out).exit_code == 2


def test_what_cannot_train_leaves_no_folder_behind(tmp_path: Path) -> None:
    photos = make_class_folders(tmp_path / "photos", dict.fromkeys(CLASSES, 5))
    out = tmp_path / "run"
    refused(
        "train",
        photos,
        "--out",
        out,
        code=2,
        words="Add unlabelled images, or train with labels alone",
    )
    unknown = ("--algorithm supervised --model resnet81",)
    refused(
        "train",
        photos,
        "--out",
        out,
        *unknown,
        code=2,
        words="unknown model 'resnet81'; did you mean",
    )
    refused("train digits --out", out, "--set refiner.buffer_size=0", code=2, words="refiner: ")
    assert not out.exists()


def test_a_folder_that_holds_a_run_is_not_overwritten(trained: Trained, tmp_path: Path) -> None:
    refused("train digits --out", trained.run, code=1, words="already holds a run")
    (tmp_path / "file").write_text("")
    refused(
        "train digits --out",
        tmp_path / "file" / "run",
        "--steps 1",
        *QUICK,
        code=1,
        words="Not a directory",
    )


@pytest.mark.slow
def test_resuming_with_other_settings(trained: Trained) -> None:
    tables = ("--labels", trained.root / "labels.csv", "--test", trained.root / "test.csv")
    command = ("train", trained.photos, *tables, "--out", trained.run, "--resume", SHORT)
    refused(*command, "--steps 60", code=1, words="train.steps was 30, now 60")
    again = semigpc(*command, "--steps 30")  # the same once more: nothing left to do
    assert again.exit_code == 0, again.output
    assert "best on test*" in again.stdout


@contextmanager
def files_no_larger_than(limit: int) -> Iterator[None]:
    """A disk that is full for anything larger: the system itself refuses to write on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
def test_a_full_disk_while_checkpointing(tmp_path: Path) -> None:
    """The first half of a run is saved, the next checkpoint finds no room, and later the run goes
    on from where it was.
    """
    half = (
        "train digits --out",
        tmp_path,
        "--steps 6 --set train.checkpoint_steps=2",
        *QUICK,
        "--resume",
    )
    last = tmp_path / "checkpoints" / "last.safetensors"

    def stop_in_step_two(self: RunProgress, step: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunProgress, "step", stop_in_step_two)
        refused(
            *half,
            code=130,
            words="interrupted; what was saved before is intact. Run the same command",
        )
    before = last.read_bytes()
    with files_no_larger_than(len(before) // 2):
        told = refused(*half, code=1, words=f"the checkpoint {last} could not be written")
    assert "The previous file was not modified." in told
    assert "MB. Run the same command with --resume to continue." in told
    assert last.read_bytes() == before
    assert [path.name for path in last.parent.iterdir()] == [last.name]

    done = semigpc(*half)
    assert done.exit_code == 0, done.output
    assert "Resuming after step 2 of 6." in done.stdout
    assert read_checkpoint(last).state["step"] == 6


def test_a_broken_checkpoint(trained: Trained, tmp_path: Path) -> None:
    run = shutil.copytree(trained.run, tmp_path / "run")
    last = run / "checkpoints" / "last.safetensors"
    last.write_bytes(last.read_bytes()[:1000])
    refused("evaluate", run, code=1, words="last.safetensors is damaged")
    refused("evaluate", run, "--checkpoint best", code=1, words="it had no validation images")


@pytest.mark.slow
def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    wild = ("--set train.lr=1e30 --set train.warmup_steps=0 --steps 20",)
    refused("train digits --out", tmp_path / "run", *wild, *QUICK, code=1, words="a lower train.lr")


def test_debug_shows_the_traceback_before_the_verb_and_after_it() -> None:
    for arguments in (
        ("--debug train digits --set x=1",),
        ("train digits --set x=1 --debug",),
    ):
        done = semigpc(*arguments)
        assert done.exit_code == 2
        assert "Traceback (most recent call last)" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("semigpc train: unknown setting 'x'")
