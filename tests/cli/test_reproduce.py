"""``semigpc reproduce``: the list, errors, and a table from its cells to figures.json."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semigpc.io.errors import RunError
from semigpc.paper import reproduction
from semigpc.paper.tables import TABLES, Options
from tests.cli.calls import refused, semigpc, worked

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SETTINGS = """
    --set data.split.labeled_head=8 --set data.split.unlabeled_head=30
    --set data.split.labeled_ratio=4 --set data.split.unlabeled_ratio=4
    --set train.steps=6 --set train.eval_steps=3 --set train.epoch_steps=2 --set train.threads=1
    --set refiner.buffer_size=40 --set refiner.warmup_steps=2"""
SMALL_NETWORK = """
    --set model.name=small_cnn --set model.pretrained=null
    --set augment.image_size=16 --set frozen.views=1"""


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10 as a copy of images: a colour for each class, with noise."""
    root = tmp_path_factory.mktemp("local-folder") / "images"
    rng = np.random.default_rng(0)
    colours = rng.integers(40, 215, size=(len(CLASSES), 1, 1, 3))
    for part, count in (("train", 40), ("test", 6)):
        for colour, name in zip(colours, CLASSES, strict=True):
            folder = root / part / name
            folder.mkdir(parents=True)
            pixels = colour + rng.normal(0, 30, size=(count, 32, 32, 3))
            for i, image in enumerate(np.clip(pixels, 0, 255).astype(np.uint8)):
                Image.fromarray(image).save(folder / f"{i:04d}.png")
    return root


# The list -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_list_has_every_cell_and_needs_no_data() -> None:
    shown = worked("reproduce --list")
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
    cells = "--cell */remixmatch+* --addon darp --seeds 1 --json"
    listed = json.loads(semigpc("reproduce algorithm_ablation --list", cells).stdout)
    facts = {"network": "vit_small_patch16_224", "seeds": 1, "steps": 204_800}
    rows = ("none", "gp", "darp+none", "darp+gp")
    expected = {f"semi_aves/remixmatch+{row}": facts for row in rows}
    assert listed["algorithm_ablation"]["cells"] == expected


def test_the_list_at_scale_cpu_has_no_table_that_needs_the_full_one() -> None:
    scale = "--scale cpu --features cached --json"
    listed = json.loads(semigpc("reproduce --list", scale).stdout)
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
    refused("reproduce cifar10 --list", code=2, words="'cifar10'; did you mean 'cifar10_lt'?")
    refused("reproduce --list --cell A/50", code=2, words="--cell needs a table")
    for options, words in (
        ("--cell A/5O/simmatch+gp", "'A/50/simmatch+gp'? Known: A/100/simmatch+gp"),
        ("--algorithm simmach", "did you mean 'simmatch'?"),
        ("--refiner pg", "did you mean 'gp'?"),
        ("--addon crst", "did you mean 'crest'?"),
        ("--addon crest --steps 3", "train.steps=3 must be at least 6"),
        ("--set train.lrr=1", "did you mean 'train.lr'?"),
        ("--features cached", "needs --scale cpu"),
    ):
        refused("reproduce cifar10_lt --root", tmp_path, *out, options, code=2, words=words)
    words = "--labels-per-class needs a table with a setting B"
    refused("reproduce fgvc --root", tmp_path, *out, "--labels-per-class 8", code=2, words=words)
    refused("reproduce cifar10_lt", *out, code=2, words="--root is required")
    assert not (tmp_path / "out").exists()


def test_missing_weights_are_told_before_anything_runs(tmp_path: Path) -> None:
    file = "vit_tiny_patch2_32_mlp_im_1k_32.pth"
    table = ("reproduce cifar10_lt --root", tmp_path, "--out", tmp_path / "out")
    words = f"the weights {file} are not in {tmp_path.resolve() / 'weights'}"
    told = refused(*table, code=2, words=words)
    place = "https://github.com/microsoft/Semi-supervised-learning/releases/download/v.0.0.0"
    assert f"{place}/{file}" in told
    assert "--weights" in told
    mine = tmp_path / "mine"
    refused(*table, "--weights", mine, code=2, words=f"are not in {mine.resolve()}")
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
    scale = "--scale cpu --seeds 1 --out"
    command = ("reproduce cifar10_lt --root", cifar, scale, out, SETTINGS)
    shown = " ".join(worked(*command, "--cell A/100/simmatch+*").stdout.split())
    told = ("A/100", "CoSSL", "quoted", "95.74 ± 0.37", "best on test*", "NOT comparable")
    for words in (*told, "balanced accuracy is the same"):
        assert words in shown
    assert "labels only" not in shown
    assert (out / "A-100" / "report.html").exists()
    assert not (out / "A-50").exists()

    text = (out / "figures.json").read_text()
    figures = json.loads(text)
    facts = {"table": "cifar10_lt", "scale": "cpu", "features": "live", "judged": False}
    assert figures | facts == figures
    assert figures["command"].startswith(
        "semigpc reproduce cifar10_lt --root images --cell 'A/100/simmatch+*' --seeds 1"
    )
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
    # Labels have a long tail.
    assert (refined["head"], set(refined["last_by_head"])) == ("gp", {"linear", "gp"})
    assert refined["last"]["difference"] == pytest.approx(refined["last"]["mean"] - 95.74)
    assert base["split_sha256"] == refined["split_sha256"]
    config = refined["config"]
    assert config["train"]["steps"] == 6
    assert config["data"]["root"] == "images"
    chosen = {"class_prior": "frequency", "balanced": False, "length_scale": "auto"}
    assert config["refiner"] | chosen | {"buffer_size": 40} == config["refiner"]
    (gain,) = group["gains"]
    assert gain["mean"] == pytest.approx(refined["last"]["mean"] - base["last"]["mean"])
    assert (gain["published"], gain["claim"]) == (1.15, None)
    assert {"python", "torch", "semigpc"} <= figures["environments"][0].keys()
    for folder in (cifar.parent, tmp_path):
        assert str(folder) not in text
        assert folder.name not in text

    before = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    plot = tmp_path / "classes.png"
    again = worked(*command, "--cell A/100/supervised+none --json --plot", plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = json.loads(again.stdout)
    cells = found["groups"]["A/100"]["cells"]  # earlier runs are shown too
    assert list(cells) == ["supervised+none", "CoSSL", "simmatch+none", "simmatch+gp"]
    assert cells["simmatch+gp"] == refined
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert found == json.loads((out / "figures.json").read_text())
    (line,) = [line for line in again.stderr.splitlines() if ", seed 0: " in line]
    assert line.startswith("labels only")


@pytest.mark.slow
@pytest.mark.parametrize("features", ["live", "cached"])
def test_comparators_are_run_on_the_same_recipe_with_live_and_with_cached_features(
    features: str, cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    addons = "--addon crest --addon effective_number"
    rows = "--cell A/50/simmatch+crest+* --cell A/50/simmatch+effective_number+*"
    command = ("reproduce cifar10_lt --root", cifar, "--scale cpu --features", features, addons)
    settings = SETTINGS + (SMALL_NETWORK if features == "cached" else "")
    worked(*command, rows, "--seeds 1 --plot classes.png", settings)
    assert (tmp_path / "classes.png").exists()
    name = "cifar10_lt-cpu-cached" if features == "cached" else "cifar10_lt-cpu"
    text = (tmp_path / "reproduced" / name / "figures.json").read_text()
    assert str(tmp_path) not in text
    figures = json.loads(text)
    assert figures["features"] == features
    assert addons in figures["command"]
    group = figures["groups"]["A/50"]
    crest = ["simmatch+crest+none", "simmatch+crest+gp"]
    effective = ["simmatch+effective_number+none", "simmatch+effective_number+gp"]
    assert [row for row in group["cells"] if "+" in row] == [*crest, *effective]
    for row in (*crest, *effective):
        frozen = group["cells"][row]["config"]["frozen"]
        assert (frozen is None) == (features == "live")
        assert frozen is None or frozen["views"] == 1
    for gain, (without, refined) in zip(group["gains"], (crest, effective), strict=True):
        assert (gain["without"], gain["with"], gain["published"]) == (without, refined, None)
    assert figures["statements"] == []  # the paper says nothing of them
