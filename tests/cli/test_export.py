"""``semigpc export``: a file that is checked; and the example of docs/train.md."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from semigpc.export import network
from semigpc.export.run import export_run
from semigpc.labeling.inference import load_labeling
from semigpc.labeling.label import LabelSettings, label_data
from semigpc.models.encoder import EmbedConfig
from semigpc.training import train
from semigpc.training.inference import images_at, load_run
from tests.cli.calls import refused, worked
from tests.cli.conftest import Trained
from tests.labeling.samples import write_labels
from tests.training.small_runs import small_run

DOCS = Path(__file__).parents[2] / "docs" / "train.md"
ORIENTATION = 0x0112  # of EXIF


@pytest.fixture(scope="module")
def run(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that may be changed, exported once."""
    copy = tmp_path_factory.mktemp("exported") / "run"
    shutil.copytree(trained.run, copy)
    done = worked("export", copy)
    (copy / "printed").write_text(done.stdout)
    assert done.stderr == ""
    return copy


@pytest.mark.slow
def test_it_says_what_was_written_and_how_it_was_checked(run: Path) -> None:
    first, second = (run / "printed").read_text().splitlines()
    judged = json.loads((run / "summary.json").read_text())["head"]
    heads = sorted(("linear", "gp"), key=lambda head: head != judged)  # the judged one first
    each = [f"{head}_probabilities ({head})" for head in heads]
    outputs = re.escape(", ".join([f"probabilities ({judged})", *each]))
    path = re.escape(f"{run}/export/model.onnx")
    assert re.fullmatch(rf"wrote {path} \(\d+\.\d MB\): {outputs}", first)
    checked = "checked on 15 test images and 1009 random ones: largest difference "
    assert re.fullmatch(checked + r"\d\.\de-\d\d, allowed 0\.0001", second)


def odd_photographs(folder: Path) -> list[Path]:
    """Images of odd sizes, shapes and modes, as files."""
    whole = Image.fromarray(load_sample_image("china.jpg"))  # 640 x 427
    turned = Image.Exif()
    turned[ORIENTATION] = 6
    clear = whole.crop((100, 50, 190, 200)).quantize(16)
    depth = np.asarray(whole.convert("L")).astype(np.uint16)[:90, :70] * 257
    images: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "plain.png": (whole, {}),
        "large.jpg": (whole.resize((1601, 1067)), {"quality": 95}),  # decoded at a fraction
        "tall.png": (whole.crop((300, 0, 341, 420)), {}),
        "wide.png": (whole.crop((0, 200, 633, 233)), {}),
        "tiny.png": (whole.crop((200, 200, 203, 205)), {}),
        "turned.jpg": (whole, {"exif": turned}),
        "grey.png": (whole.convert("L").crop((0, 0, 101, 87)), {}),
        "palette.gif": (clear, {}),
        "palette_clear.png": (clear, {"transparency": 3}),
        "alpha.png": (whole.convert("RGBA").crop((5, 5, 130, 99)), {}),
        "grey_alpha.png": (whole.convert("LA").crop((5, 5, 99, 130)), {}),
        "black_and_white.png": (whole.convert("1"), {}),
        "cmyk.jpg": (whole.convert("CMYK"), {"quality": 95}),
        "deep.png": (Image.fromarray(depth), {}),
        "twelve_bits.png": (Image.fromarray(depth >> 4), {}),
    }
    for name, (image, options) in images.items():
        image.save(folder / name, **options)
    return [folder / name for name in images]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::semigpc.io.images.RangeNote")
@pytest.mark.parametrize("style", ["pad", "resize"])
def test_the_script_of_the_docs_returns_what_predict_returns_for_odd_images(
    style: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    imported = set(re.findall(r"^(?:import|from) (\w+)", script, flags=re.MULTILINE))
    assert imported == {"json", "sys", "numpy", "onnxruntime", "PIL"}
    size = (f"augment.style={style}", "augment.image_size=28", "train.ema=0", "train.lr=0.01")
    train(small_run("simmatch", "gp", *size, "refiner.eval_head=gp"), tmp_path / "run")
    export_run(tmp_path / "run", out=tmp_path / "model.onnx")
    paths = odd_photographs(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["script.py", *map(str, paths)])
    names: dict[str, Any] = {}
    exec(compile(script, "docs/train.md", "exec"), names)
    run = load_run(tmp_path / "run")
    images = images_at(paths)
    seen = run.source.plain(images, np.arange(len(paths))).numpy().transpose(0, 3, 1, 2)
    assert np.array_equal(np.rint(255 * names["images"]), seen)
    expected = run.predict(images).probs[run.head]
    assert np.abs(names["probabilities"] - expected).max() <= 1e-4
    assert np.ptp(expected, axis=0).max() > 0.05  # images do not all look alike to this network
    printed = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert printed == [run.class_names[c] for c in expected.argmax(axis=1)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::semigpc.io.images.RangeNote")
def test_the_script_does_so_for_a_labelled_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_labelling(tmp_path)
    file = tmp_path / "model.onnx"
    done = worked("export", out, "--out", file)
    assert f"wrote {file}" in done.stdout
    assert "checked on 24 images: largest difference" in done.stdout
    (tmp_path / "odd").mkdir()
    paths = odd_photographs(tmp_path / "odd")
    predicted = json.loads(worked("predict", out, tmp_path / "odd", "--json").stdout)
    labelling = load_labeling(out)
    expected = labelling.model.predict_proba(labelling.embed(paths)[0])
    (script,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["script.py", *map(str, paths)])
    names: dict[str, Any] = {}
    exec(compile(script, "docs/train.md", "exec"), names)
    assert np.abs(names["probabilities"] - expected).max() <= 1e-4
    assert np.ptp(expected, axis=0).max() > 0.05
    guesses = {row["file_name"]: row["guess"] for row in predicted}
    printed = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert printed == [guesses[path.name] for path in paths]


def make_labelling(folder: Path) -> Path:
    """24 images of two classes by their colour, half of them labelled."""
    rng = np.random.default_rng(0)
    photos = folder / "photos"
    photos.mkdir()
    labels = {}
    for number in range(24):
        name = ("dark", "light")[number % 2]
        pixels = rng.integers(0, 128, (50, 40, 3)) + 128 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(photos / f"{number:02d}.png")
        if number < 12:
            labels[f"{number:02d}.png"] = name
    write_labels(folder / "labels.csv", labels, "file_name")
    network = EmbedConfig(model="test_resnet", pretrained="none", image_size=32)
    out = folder / "out"
    labels_file = folder / "labels.csv"
    label_data(LabelSettings(data=photos, labels=labels_file, out=out, embed=network, report=False))
    return out


@pytest.mark.slow
def test_the_other_format_and_head_as_json(run: Path) -> None:
    done = worked("export", run, "--format torch --head gp --checkpoint last --json")
    told = json.loads(done.stdout)
    path = run / "export" / "model.pt2"
    assert told == json.loads(path.with_name("model.pt2.json").read_text()) | {"path": str(path)}
    assert told["outputs"]["probabilities"]["head"] == "gp"
    assert (run / "export" / "model.onnx").exists()  # the two live side by side


@pytest.mark.slow
def test_nothing_is_replaced_unless_asked(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.pt2"
    out.write_text("mine")
    command = ("export", run, "--format torch --head linear --out", out)
    refused(*command, code=1, words="exists. Give another name by --out")
    assert out.read_text() == "mine"
    worked(*command, "--overwrite")
    assert out.stat().st_size > 1000


def test_a_run_without_a_checkpoint_is_refused(trained: Trained, tmp_path: Path) -> None:
    checkpoints = shutil.ignore_patterns("*.safetensors")
    copy = shutil.copytree(trained.run, tmp_path / "run", ignore=checkpoints)
    refused("export", copy, code=1, words="has no last checkpoint: it was stopped too early.")
    refused("export", trained.run, "--checkpoint best", code=1, words="has no best checkpoint")
    refused("export", tmp_path, code=2, words="neither a run nor a labelled folder")
    assert not (copy / "export").exists()


def test_without_the_extra_it_says_what_to_install(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "find_spec", lambda name: None if name == "onnxruntime" else name)
    words = "needs onnxruntime, an extra: pip install 'semigpc[export]'."
    refused("export", trained.run, code=1, words=words)


def test_a_name_that_will_not_do_is_a_usage_error(trained: Trained, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "model.pb")
    refused("export", trained.run, *out, code=2, words="must end in .onnx")
    assert list(tmp_path.iterdir()) == []
