"""``semigpc export``: a file that answers without semigpc, checked; and the example of
docs/train.md.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from semigpc.export import network
from tests.cli.calls import refused, semigpc
from tests.cli.conftest import Trained

DOCS = Path(__file__).parents[2] / "docs" / "train.md"


@pytest.fixture(scope="module")
def run(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that may be changed, exported once."""
    copy = tmp_path_factory.mktemp("exported") / "run"
    shutil.copytree(trained.run, copy)
    done = semigpc("export", copy)
    assert done.exit_code == 0, done.output
    (copy / "printed").write_text(done.stdout)
    assert done.stderr == ""
    return copy


@pytest.mark.slow
def test_it_says_what_was_written_and_how_it_was_checked(run: Path) -> None:
    first, second = (run / "printed").read_text().splitlines()
    judged = json.loads((run / "summary.json").read_text())["head"]
    heads = sorted(("linear", "gp"), key=lambda head: head != judged)  # the judged one first
    outputs = ", ".join(
        [f"probabilities ({judged})", *(f"{head}_probabilities ({head})" for head in heads)]
    )
    assert re.fullmatch(
        rf"wrote {re.escape(str(run))}/export/model\.onnx \(\d+\.\d MB\): {re.escape(outputs)}",
        first,
    )
    checked = "checked on 15 test images and 1009 random ones: largest difference "
    assert re.fullmatch(checked + r"\d\.\de-\d\d, allowed 0\.0001", second)


@pytest.mark.slow
def test_the_example_of_the_docs_says_what_predict_says(
    run: Path,
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    for name in ("model.onnx", "model.onnx.json"):
        shutil.copy(run / "export" / name, tmp_path)
    image = min(trained.photos.iterdir())
    shutil.copy(image, tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs/train.md", "exec"), {})
    label, confidence = capsys.readouterr().out.split()
    (row,) = json.loads(semigpc("predict", trained.run, image, "--json").stdout)
    assert label == row["label"]
    assert float(confidence) == pytest.approx(row["confidence"], abs=1e-4)


@pytest.mark.slow
def test_the_other_format_and_head_as_json(run: Path) -> None:
    done = semigpc("export", run, "--format torch --head gp --checkpoint last --json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["path"] == str(run / "export" / "model.pt2")
    assert {**told, "path": None} == {
        **json.loads((run / "export" / "model.pt2.json").read_text()),
        "path": None,
    }
    assert told["outputs"]["probabilities"]["head"] == "gp"
    assert (run / "export" / "model.onnx").exists()  # the two live side by side


@pytest.mark.slow
def test_nothing_is_replaced_unless_asked(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.pt2"
    out.write_text("mine")
    command = ("export", run, "--format torch --head linear --out", out)
    refused(
        *command,
        code=1,
        words="exists. Give another name by --out",
    )
    assert out.read_text() == "mine"
    assert semigpc(*command, "--overwrite").exit_code == 0
    assert out.stat().st_size > 1000


@pytest.mark.slow
def test_images_that_are_gone_are_noted(trained: Trained, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(trained.run, copy)
    config = (copy / "config.json").read_text()
    assert str(trained.photos) in config
    (copy / "config.json").write_text(config.replace(str(trained.photos), str(tmp_path / "gone")))
    done = semigpc("export", copy, "--format torch --head linear")
    assert done.exit_code == 0, done.output
    assert (
        "Note: Checked on random images alone: the test images could not be loaded (" in done.stderr
    )
    assert "checked on 0 test images and 1024 random ones" in done.stdout


def test_a_run_without_a_checkpoint_is_refused(trained: Trained, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(trained.run, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    refused("export", copy, code=1, words="has no last checkpoint: it was stopped too early.")
    refused("export", trained.run, "--checkpoint best", code=1, words="has no best checkpoint")
    refused(
        "export", tmp_path, code=1, words="config.json does not exist: no run was started there."
    )
    assert not (copy / "export").exists()


def test_without_the_extra_it_says_what_to_install(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "find_spec", lambda name: None if name == "onnxruntime" else name)
    refused(
        "export",
        trained.run,
        code=1,
        words="needs onnxruntime, an extra: pip install 'semigpc[export]'.",
    )


def test_names_and_engines_that_will_not_do_are_usage_errors(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semigpc.gp import ExactGP, NoExpansionError

    refused(
        "export", trained.run, "--out", tmp_path / "model.pb", code=2, words="must end in .onnx"
    )

    def none_such(_engine: ExactGP, **_: object) -> None:
        raise NoExpansionError("its mean is no sum.")

    monkeypatch.setattr(ExactGP, "expansion", none_such)
    words = "cannot be exported: its mean is no sum. Or use --head linear"
    refused("export", trained.run, "--out", tmp_path / "model.onnx", code=2, words=words)
    assert list(tmp_path.iterdir()) == []
