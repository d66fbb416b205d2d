"""The files that are exported: what stands in them and beside them, and how they appear."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, TypedDict

from semigpc.export.network import FORMATS
from semigpc.io.atomic import replacing, write_json, writing
from semigpc.io.errors import RunError, SettingsError
from semigpc.training.metrics import Head
from semigpc.training.run_folder import Choice

Kind = Literal["onnx", "torch"]
Progress = Callable[[str, int, int | None], None]
TOLERANCE = 1e-4  # largest difference of a probability
SMALL_BATCHES = (1, 7)  # images; sizes at which a traced network may go wrong


class InputFacts(TypedDict):
    """The input of an exported file."""

    name: str
    shape: list[str | int]
    dtype: str
    values: str


class OutputFacts(TypedDict):
    """One output of an exported file: probabilities by a head, with its temperature."""

    head: Head
    temperature: float
    shape: list[str | int]
    dtype: str


class CheckFacts(TypedDict):
    """How far the file's probabilities are from those of the run, and on how many images."""

    rows: int
    test_images: int
    random_images: int
    largest_difference: float
    of_each_output: dict[str, float]
    tolerance: float


class ModelFacts(TypedDict):
    """What a user of an exported file must know; the file contains it, under METADATA.

    ``preparation`` has the fields of :class:`semigpc.data.augment.Preparation`.
    """

    checkpoint: Choice
    step: int
    class_names: list[str]
    preparation: dict[str, int | None]
    input: InputFacts
    normalised_inside_by: dict[str, list[float]]
    outputs: dict[str, OutputFacts]
    gp: dict[str, str | int] | None


class ExportFacts(ModelFacts):
    """The JSON file beside an exported one: the facts in it, and what its check showed."""

    file: str
    format: Kind
    run: str
    check: CheckFacts
    notes: list[str]
    versions: dict[str, str]


class ExportedFile(NamedTuple):
    """The file that was written, and the facts in the JSON file beside it."""

    path: Path
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Exported:
    """The file that was written, and the ``facts`` in the JSON file beside it."""

    path: Path
    facts: ExportFacts


def publish(path: Path, write: Callable[[Path], Mapping[str, Any]]) -> ExportedFile:
    """Let ``write`` make a file and return its facts, then put both in place, the file last."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent) as drafts:
        draft = Path(drafts) / path.name
        facts = write(draft)
        write_json(beside(draft), facts)
        for file in sorted(Path(drafts).iterdir(), key=lambda file: file == draft):  # model last
            with replacing(path.parent / file.name) as place:
                file.replace(place)
    return ExportedFile(path, facts)


def check_free(path: Path, kind: Kind, *, overwrite: bool) -> None:
    """Raise if a file of this kind cannot be written there."""
    suffix = FORMATS[kind].suffix
    if path.suffix != suffix:
        raise SettingsError(
            f"the name of the file must end in {suffix} for kind={kind}; got {path.name!r}."
        )
    for file in (path, beside(path)):
        if file.is_dir():
            raise SettingsError(f"{file} is a folder. Give the name of a file by out=...")
        if file.exists() and not overwrite:
            raise RunError(
                f"{file} exists. Give another name by out=..., or replace it by overwrite=True."
            )


def beside(path: Path) -> Path:
    """Return the path of the JSON file that describes the exported one."""
    return path.with_name(f"{path.name}.json")
