"""``semigpc reproduce``: the list, errors, and a table from its cells to figures.json."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semigpc.io.errors import RunError
from semigpc.paper import reproduction
from semigpc.paper.tables import TABLES, Options
from tests.cli.calls import refused, semigpc

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHORT = {
    "data.split.labeled_head": "8",
    "data.split.unlabeled_head": "30",
    "data.split.labeled_ratio": "4",
    "data.split.unlabeled_ratio": "4",
    "train.steps": "6",
    "train.eval_steps": "3",
    "train.epoch_steps": "2",
    "train.threads": "1",
    "refiner.buffer_size": "40",
    "refiner.warmup_steps": "2",
}
SETTINGS = [word for key, value in SHORT.items() for word in ("--set", f"{key}={value}")]


def make_cifar(root: Path) -> Path:
    """CIFAR-10 as a copy of images: a colour for each class, with noise."""
    rng = np.random.default_rng(0)
    colours = rng.integers(40, 215, size=(len(CLASSES), 1, 1, 3))
    for part, count in (("train", 40), ("test", 6)):
        for colour, name in zip(colours, CLASSES, strict=True):
            folder = root / part / name
            folder.mkdir(parents=True)
            pixels = np.clip(colour + rng.normal(0, 30, size=(count, 32, 32, 3)), 0, 255).astype(
                np.uint8
            )
            for i, image in enumerate(pixels):
                Image.fromarray(image).save(folder / f"{i:04d}.png")
    return root


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cifar(tmp_path_factory.mktemp("local-folder") / "images")


# The list -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_list_has_every_cell_and_needs_no_data() -> None:
    shown = semigpc("reproduce --list")
    assert shown.exit_code == 0, shown.output
    listed = json.loads(semigpc("reproduce --list --json").stdout)
    assert listed.keys() == TABLES.keys()
    lines = [line.split() for line in shown.stdout.splitlines()]
    for name, table in TABLES.items():
        keys = [cell.key for cell in table.all_cells(Options()) if cell.experiment is not None]
        cells = listed[name]["cells"]
        assert list(cells) == keys
        for key in keys:
            seeds = 5 if name == "cifar10_lt" and key.startswith("B/") else 3
            assert [key, cells[key]["network"], "204800", str(seeds)] in lines
    assert "cub l^2 = 0.2, sigma^2 = 0.1, lambda = 9.42" in shown.stdout


def test_the_list_of_one_table_can_be_cut_down() -> None:
    cells = ("--cell */remixmatch+* --addon darp --seeds 1 --json",)
    listed = json.loads(semigpc("reproduce algorithm_ablation --list", *cells).stdout)
    assert listed["algorithm_ablation"]["cells"] == {
        f"semi_aves/remixmatch+{row}": {
            "network": "vit_small_patch16_224",
            "seeds": 1,
            "steps": 204_800,
        }
        for row in ("none", "gp", "darp+none", "darp+gp")
    }


def test_the_list_at_scale_cpu_has_no_table_that_needs_the_full_one() -> None:
    scale = ("--scale cpu --features cached --json",)
    listed = json.loads(semigpc("reproduce --list", *scale).stdout)
    assert listed.keys() == TABLES.keys() - {"pretraining_ablation"}
    assert len(listed["cifar10_lt"]["cells"]) == 18


# Refusals -----------------------------------------------------------------------------------------


def test_without_a_table_the_tables_are_named() -> None:
    for arguments in ((), ("--scale cpu",)):
        done = semigpc("reproduce", *arguments)
        assert done.exit_code == 2
        assert "Usage" in done.stdout
        for name, table in TABLES.items():
            assert f"{name} " in done.stdout
            assert table.title in done.stdout


def test_what_does_not_exist_is_answered_with_what_does(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    refused(
        "reproduce cifar10 --list",
        code=2,
        words="unknown table 'cifar10'; did you mean 'cifar10_lt'?",
    )
    refused("reproduce --list --cell A/50", code=2, words="--cell needs a table")
    table = ("reproduce cifar10_lt --root", tmp_path, *out)
    refused(
        *table,
        "--cell A/5O/simmatch+gp",
        code=2,
        words="did you mean 'A/50/simmatch+gp'? Known: A/100/simmatch+gp",
    )
    refused(*table, "--algorithm simmach", code=2, words="did you mean 'simmatch'?")
    refused(*table, "--refiner pg", code=2, words="did you mean 'gp'?")
    refused(*table, "--addon crst", code=2, words="did you mean 'crest'?")
    refused(*table, "--addon crest --steps 3", code=2, words="train.steps=3 must be at least 6")
    refused(*table, "--set train.lrr=1", code=2, words="did you mean 'train.lr'?")
    refused(*table, "--features cached", code=2, words="needs --scale cpu")
    refused(
        "reproduce fgvc --root",
        tmp_path,
        *out,
        "--labels-per-class 8",
        code=2,
        words="--labels-per-class needs a table with a setting B",
    )
    refused("reproduce cifar10_lt", *out, code=2, words="--root is required")
    assert not (tmp_path / "out").exists()


def test_missing_weights_are_told_before_anything_runs(tmp_path: Path) -> None:
    file = "vit_tiny_patch2_32_mlp_im_1k_32.pth"
    table = ("reproduce cifar10_lt --root", tmp_path, "--out", tmp_path / "out")
    told = refused(
        *table, code=2, words=f"the weights {file} are not in {tmp_path.resolve() / 'weights'}"
    )
    assert (
        f"https://github.com/microsoft/Semi-supervised-learning/releases/download/v.0.0.0/{file}"
        in told
    )
    assert "--weights" in told
    refused(
        *table,
        "--weights",
        tmp_path / "mine",
        code=2,
        words=f"are not in {tmp_path.resolve() / 'mine'}",
    )
    assert not (tmp_path / "out").exists()


# Running ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "seeds"), [("A/50", 3), ("B/50", 5)])
def test_each_group_is_run_with_the_seeds_that_its_claims_need(
    group: str, seeds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object, run: range, *__: object, **___: object) -> None:
        raise RunError(f"asked for {len(run)} seeds.")

    monkeypatch.setattr(reproduction, "compare", stop)
    table = ("reproduce cifar10_lt --root", tmp_path, "--scale cpu --out", tmp_path)
    refused(*table, "--cell", group, code=1, words=f"asked for {seeds} seeds")


@pytest.mark.slow
def test_a_table_from_its_cells_to_its_figures(cifar: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command: tuple[str | Path, ...] = (
        "reproduce cifar10_lt --root",
        cifar,
        "--scale cpu --seeds 1",
    )
    command = (*command, "--out", out, *SETTINGS)
    done = semigpc(*command, "--cell A/100/simmatch+*")
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    for words in (
        "A/100",
        "CoSSL",
        "quoted",
        "95.74 ± 0.37",
        "best on test*",
        "NOT comparable",
        "balanced accuracy is the same",
    ):
        assert words in shown
    assert "labels only" not in shown
    assert (out / "A-100" / "report.html").exists()
    assert not (out / "A-50").exists()

    text = (out / "figures.json").read_text()
    figures = json.loads(text)
    assert (figures["table"], figures["scale"], figures["features"]) == (
        "cifar10_lt",
        "cpu",
        "live",
    )
    assert figures["command"].startswith(
        "semigpc reproduce cifar10_lt --root images --cell 'A/100/simmatch+*' --seeds 1"
    )
    assert not figures["judged"]
    group = figures["groups"]["A/100"]
    assert group["seeds"] == [0]
    assert list(group["cells"]) == ["CoSSL", "simmatch+none", "simmatch+gp"]
    base, refined = group["cells"]["simmatch+none"], group["cells"]["simmatch+gp"]
    for cell in (base, refined):
        (top1,), (balanced,) = cell["last"]["top1"], cell["last"]["balanced_accuracy"]
        assert top1 == pytest.approx(balanced, abs=0.02)  # as many test images of each class
        assert cell["best_on_test"]["top1"][0] >= top1
        assert len(cell["last"]["per_class_recall"][0]) == 10
        assert {"many", "medium", "few"} <= cell["last"].keys()
        assert cell["last"]["agrees"] is None
        assert cell["seconds"][0] > 0
        assert cell["last_by_head"][cell["head"]] == cell["last"]["balanced_accuracy"]
        assert len(cell["mean_of_last_20"]) == 1
    assert (base["head"], set(base["last_by_head"])) == ("linear", {"linear"})
    assert (refined["head"], set(refined["last_by_head"])) == (
        "gp",
        {"linear", "gp"},
    )  # labels have a long tail
    assert refined["last"]["difference"] == pytest.approx(refined["last"]["mean"] - 95.74)
    assert base["split_sha256"] == refined["split_sha256"]
    assert (refined["config"]["train"]["steps"], refined["config"]["refiner"]["buffer_size"]) == (
        6,
        40,
    )
    assert refined["config"]["data"]["root"] == "images"
    refiner = refined["config"]["refiner"]
    assert (refiner["class_prior"], refiner["balanced"], refiner["length_scale"]) == (
        "frequency",
        False,
        "auto",
    )
    (gain,) = group["gains"]
    assert gain["mean"] == pytest.approx(refined["last"]["mean"] - base["last"]["mean"])
    assert (gain["published"], gain["claim"]) == (1.15, None)
    assert {"python", "torch", "semigpc"} <= figures["environments"][0].keys()
    for folder in (cifar.parent, tmp_path):
        assert str(folder) not in text
        assert folder.name not in text

    before = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    plot = tmp_path / "classes.png"
    again = semigpc(
        *command, "--cell A/100/supervised+none --json --plot", str(plot)
    )  # earlier runs are shown too
    assert again.exit_code == 0, again.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = json.loads(again.stdout)
    assert list(found["groups"]["A/100"]["cells"]) == [
        "supervised+none",
        "CoSSL",
        "simmatch+none",
        "simmatch+gp",
    ]
    assert found["groups"]["A/100"]["cells"]["simmatch+gp"] == refined
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert found == json.loads((out / "figures.json").read_text())
    (line,) = [line for line in again.stderr.splitlines() if ", seed 0: " in line]
    assert line.startswith("labels only")


@pytest.mark.slow
def test_cached_features_are_a_reproduction_of_their_own(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    small = (
        "model.name=small_cnn",
        "model.pretrained=null",
        "augment.image_size=16",
        "frozen.views=1",
    )
    command: tuple[str | Path, ...] = (
        "reproduce cifar10_lt --root",
        cifar,
        "--scale cpu --features cached",
    )
    settings = [word for setting in small for word in ("--set", setting)]
    done = semigpc(*command, "--seeds 1 --cell A/50/supervised+none", *SETTINGS, *settings)
    assert done.exit_code == 0, done.output
    text = (tmp_path / "reproduced" / "cifar10_lt-cpu-cached" / "figures.json").read_text()
    figures = json.loads(text)
    assert figures["features"] == "cached"
    assert figures["groups"]["A/50"]["cells"]["supervised+none"]["config"]["frozen"]["views"] == 1
    assert str(tmp_path) not in text


@pytest.mark.slow
@pytest.mark.parametrize("features", ["live", "cached"])
def test_comparators_are_run_on_the_same_recipe(
    features: str, cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))
    small = (
        "model.name=small_cnn",
        "model.pretrained=null",
        "augment.image_size=16",
        "frozen.views=1",
    )
    settings = [word for setting in small if features == "cached" for word in ("--set", setting)]
    command: tuple[str | Path, ...] = (
        "reproduce cifar10_lt --root",
        cifar,
        "--scale cpu --features",
        features,
    )
    rows = [
        word
        for row in ("simmatch+crest", "simmatch+effective_number")
        for word in ("--cell", f"A/50/{row}+*")
    ]
    command = (
        *command,
        "--addon crest --addon effective_number",
        *rows,
        "--seeds 1 --out",
        tmp_path / "out",
    )
    plot = tmp_path / "classes.png"
    done = semigpc(*command, *SETTINGS, *settings, "--plot", plot)
    assert done.exit_code == 0, done.output
    assert plot.exists()
    figures = json.loads((tmp_path / "out" / "figures.json").read_text())
    assert "--addon crest --addon effective_number" in figures["command"]
    group = figures["groups"]["A/50"]
    assert [row for row in group["cells"] if "+" in row] == [
        f"simmatch+{addon}+{refiner}"
        for addon in ("crest", "effective_number")
        for refiner in ("none", "gp")
    ]
    for gain, addon in zip(group["gains"], ("crest", "effective_number"), strict=True):
        assert (gain["with"], gain["without"]) == (f"simmatch+{addon}+gp", f"simmatch+{addon}+none")
        assert gain["published"] is None
    assert figures["statements"] == []  # the paper says nothing of them
