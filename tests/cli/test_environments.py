"""Every verb that prints names, where they cannot be shown, where nobody reads them, and without a
home: it succeeds, and prints what the stream can hold.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pytest
from pyarrow import parquet
from sklearn.datasets import load_digits

from tests.batteries import combinations
from tests.cli.calls import SHORT, check_paragraph, words_of, worked
from tests.cli.own_data import CLASSES, make_folder, write_table

NAMES = dict(zip(CLASSES, ("café", "猫", "Œuvre"), strict=True))
PATIENCE = 300  # seconds
STREAMS = ("stdout", "stderr")
# Variables that would hide what is tested.
UNSET = (
    *("LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "HF_HOME", "TORCH_HOME"),
)


class Environment(NamedTuple):
    """Variables (None: not set), how ``café`` is printed ("" if nobody reads it), and in which
    encoding; ``own`` are the streams to a terminal, or else to a pipe without a reader.
    """

    variables: dict[str, str | None]
    shown: str = "café"
    encoding: str = "utf-8"
    own: tuple[str, ...] = ()
    terminal: bool = False


# In an order that puts the environments that once were a problem beside the verbs that print names.
ENVIRONMENTS = {
    "ASCII": Environment(
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "caf?", "ascii"
    ),
    "no reader": Environment({}, "", own=("stdout",)),
    "cp1252": Environment({"PYTHONIOENCODING": "cp1252"}, encoding="cp1252"),
    "C": Environment({"LC_ALL": "C"}),
    "dumb terminal": Environment({"TERM": "dumb", "COLUMNS": "100"}, own=STREAMS, terminal=True),
    "no home": Environment({"HOME": None}),
    "read-only home": Environment({"HOME": "/proc"}),
    "no reader of both": Environment({}, "", own=STREAMS),
}
FOLDER = f"photos --labels labels.csv --test test.csv --validation 0 --steps 2 {SHORT}"
VERBS = {  # a command, and whether it surely prints all classes; OUT is a new folder
    "train": (f"train {FOLDER} --out OUT", True),
    "label": ("label x.parquet --labels known.csv --answer-all --out OUT", True),
    "suggest": ("suggest labelled", True),
    "audit": ("audit labelled --answers answers.csv", True),
    "predict": ("predict run photos", False),
    "evaluate": ("evaluate run", False),
    "compare": (f"compare {FOLDER} --algorithm fixmatch --seeds 1 --out OUT", False),
    "review": ("review labelled --export", False),
    "list": ("list recipes", False),
    "doctor": ("doctor", False),
    "demo": ("demo --help", False),
}
PRODUCT = combinations(list(ENVIRONMENTS), list(VERBS), costly=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder of all commands: images, embeddings, a run, a labelled folder."""
    root = tmp_path_factory.mktemp("environments")
    make_folder(root)
    for table in (root / "labels.csv", root / "test.csv"):
        text = table.read_text(encoding="utf-8")
        for name, other in NAMES.items():
            text = text.replace(f",{name}\n", f",{other}\n")
        table.write_text(text, encoding="utf-8")
    digits = load_digits(n_class=len(NAMES))
    names = list(NAMES.values())
    ids = [f"{i:03d}.png" for i in range(90)]
    x = pyarrow.array(digits.data[:90].astype("float32").ravel())
    column = pyarrow.FixedSizeListArray.from_arrays(x, digits.data.shape[1])
    parquet.write_table(pyarrow.table({"file_name": ids, "embedding": column}), root / "x.parquet")
    write_table(root / "known.csv", [(ids[i], names[digits.target[i]]) for i in range(30)])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for line in (
            VERBS["train"][0].replace("OUT", "run"),
            VERBS["label"][0].replace("OUT", "labelled"),
            "audit labelled --sample 10",
        ):
            worked(line)
        sample = (root / "labelled/audit.csv").read_text(encoding="utf-8")
        (root / "answers.csv").write_text(sample.replace(",\n", ",y\n"), encoding="utf-8")
        yield root


def run(root: Path, command: str, environment: Environment) -> tuple[int, str, str]:
    """Return the exit code, and what the real entry point printed on both streams."""
    changes = dict.fromkeys(UNSET) | {"OMP_NUM_THREADS": "1"} | environment.variables
    variables = {key: value for key, value in (os.environ | changes).items() if value is not None}
    reader, writer = os.openpty() if environment.terminal else os.pipe()
    streams = [writer if name in environment.own else subprocess.PIPE for name in STREAMS]
    if not environment.terminal:
        os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-m", "semigpc", *words_of(command)],
        cwd=root,
        env=variables,
        stdout=streams[0],
        stderr=streams[1],
    )
    os.close(writer)
    shown = read_all(reader) if environment.terminal else b""
    stdout, stderr = process.communicate(timeout=PATIENCE)
    encoding = environment.encoding
    return (
        process.returncode,
        (stdout or shown).decode(encoding),
        (stderr or b"").decode(encoding),
    )


def read_all(terminal: int) -> bytes:
    """Return what is printed on a terminal until the process that has it ends."""
    content = b""
    with suppress(OSError):  # it has ended
        while received := os.read(terminal, 65536):
            content += received
    os.close(terminal)
    return content


@pytest.mark.parametrize(("environment", "verb"), PRODUCT)
def test_no_verb_fails_for_printing(
    root: Path, tmp_path: Path, environment: str, verb: str
) -> None:
    around = ENVIRONMENTS[environment]
    command, prints_classes = VERBS[verb]
    code, stdout, stderr = run(root, command.replace("OUT", str(tmp_path / "out")), around)
    assert code == 0, stdout + stderr
    assert not {"Traceback", "Error", "Exception ignored"} & set(stderr.replace(":", " ").split())
    assert prints_classes <= (around.shown in stdout)
    if verb == "label":
        assert "café" in (tmp_path / "out" / "labels.csv").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["label", "suggest", "audit", "predict"])
def test_json_is_ascii_with_exact_names(root: Path, verb: str) -> None:
    command = VERBS[verb][0].replace("OUT", "labelled")
    done = worked(f"{command} --json")
    assert done.stdout.isascii()
    exact = json.dumps(json.loads(done.stdout), ensure_ascii=False)
    assert any(name in exact for name in NAMES.values())


@pytest.mark.slow
def test_a_deleted_current_folder_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "semigpc", "list", "recipes")  # imports torch
    done = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    check_paragraph(done.stderr, "list", "current folder")
    assert "(cd)" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_is_lost_to_a_full_disk_is_an_error_without_a_traceback() -> None:
    command = (sys.executable, "-m", "semigpc", "list", "recipes")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1, done.stderr
    check_paragraph(done.stderr, "list", "No space left")
