"""A run folder to a file and what is to be known of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from semigpc.data import Augment
from semigpc.export.check import LARGE_BATCH, TOLERANCE, DifferenceError, differences, rows_of
from semigpc.export.facts import facts_of
from semigpc.export.formats import FORMATS, Format, NotExportableError
from semigpc.export.network import ExportedNetwork, bare
from semigpc.files import replacing, write_json, writing
from semigpc.gp import KernelHead, NoExpansionError
from semigpc.models import Classifier, OnFrozen
from semigpc.training.inference import LoadedRun, load_run
from semigpc.training.run_folder import Choice, RunError
from semigpc.training.settings import SettingError
from semigpc.training.state import Answering

Kind = Literal["onnx", "torch"]
Heads = Literal["both", "linear", "gp"]
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Exported:
    """What was written: ``path``, and the ``facts`` that stand in the JSON file beside it."""

    path: Path
    facts: dict[str, Any]


def export_run(
    folder: Path,
    *,
    checkpoint: Choice | None = None,
    kind: Kind = "onnx",
    out: Path | None = None,
    heads: Heads = "both",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write a run as one file that needs no semigpc, check it, and describe it in FILE.json.

    The file appears under its name once it has answered ROWS images as the run does, to TOLERANCE in every probability.
    Images go in as RGB in [0, 1] and of the right size; the network, a frozen one below it, and the GP are inside. The GP
    answers with the buffer of the checkpoint, as in ``semigpc predict``.

    Args:
        folder: of the run.
        checkpoint: the best on validation or the last; without it the best, if there is one.
        kind: of file.
        out: ``export/model.onnx`` or ``export/model.pt2`` in the run's folder unless told.
        heads: which heads to put inside; ``both`` are those that the run has.
        overwrite: replace a file that is there.
        progress: hears the stage, how much of it is done and of how much.
    """
    form, say = FORMATS[kind], progress or (lambda *_: None)
    form.require()
    path = _free(out or folder / "export" / f"model{form.suffix}", form, overwrite=overwrite)
    say("Loading the run", 0, None)
    run = load_run(folder, checkpoint)
    network, gp = bare(run.network), None if run.gp is None else run.gp.cpu()
    exported = _assembled(run, network, heads)
    rows = rows_of(run)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent) as drafts:
        draft = Path(drafts) / path.name
        say(f"Writing {path.name}", 0, None)
        form.write(exported, run.experiment.augment.image_size, draft)
        found = differences(
            form.open(draft),
            network,
            gp,
            augment=Augment(run.experiment.augment),
            outputs=exported.outputs,
            pixels=rows.pixels,
            largest_batch=min(LARGE_BATCH, run.experiment.train.eval_batch),
            progress=lambda done, total: say("Checking", done, total),
        )
        _insist(found)
        facts = {"file": path.name, "format": kind} | facts_of(run, exported, rows, found)
        write_json(_beside(draft), facts)
        for file in sorted(Path(drafts).iterdir(), key=lambda file: file == draft):  # the model last
            with replacing(path.parent / file.name) as place:
                file.replace(place)
    return Exported(path, facts)


def _free(path: Path, form: Format, *, overwrite: bool) -> Path:
    """Where to write, if that may be done."""
    if path.suffix != form.suffix:
        raise SettingError(f"the name of the file must end in {form.suffix} for this --format; got {path.name!r}.")
    for file in (path, _beside(path)):
        if file.is_dir():
            raise SettingError(f"{file} is a folder. Give the name of a file as --out.")
        if file.exists() and not overwrite:
            raise RunError(f"{file} is there already. Give another --out, or --overwrite to replace it.")
    return path


def _beside(path: Path) -> Path:
    """The file that describes another."""
    return path.with_name(f"{path.name}.json")


def _assembled(run: LoadedRun, network: Classifier | Answering | OnFrozen, heads: Heads) -> ExportedNetwork:
    chosen = _chosen(run, heads)
    feature = "backbone" if run.gp is None else run.gp.config.feature
    head = _kernel_head(run) if "gp" in chosen else None
    return ExportedNetwork(network, head, gp_feature=feature, augment=run.experiment.augment, heads=chosen).eval()


def _chosen(run: LoadedRun, heads: Heads) -> tuple[str, ...]:
    """The heads to put inside, the headline one first."""
    if heads == "linear":
        return ("linear",)
    if heads == "gp":
        if run.gp is None:
            raise SettingError(f"{run.folder.path} was trained without a GP, so it has no GP head. Leave --head out.")
        if not len(run.gp.engine):
            raise SettingError(
                f"the GP of {run.folder.path} had seen no labels at step {run.step}, so it has nothing to say. "
                "Train on with --resume, or leave --head out."
            )
        return ("gp",)
    if run.gp is None or not len(run.gp.engine):
        return ("linear",)
    return ("gp", "linear") if run.head == "gp" else ("linear", "gp")


def _kernel_head(run: LoadedRun) -> KernelHead:
    assert run.gp is not None
    try:
        return run.gp.head()
    except NoExpansionError as error:
        raise NotExportableError(
            f"the GP of {run.folder.path} cannot be exported: {error} Or take --head linear, the linear classifier alone."
        ) from error


def _insist(found: dict[str, float]) -> None:
    worst = max(found, key=lambda name: math.inf if math.isnan(found[name]) else found[name])
    if not found[worst] <= TOLERANCE:
        raise DifferenceError(
            f"what was written differs from the run by {found[worst]:.2g} in {worst}, and {TOLERANCE:g} is allowed; "
            "it was removed. Try the other --format, or --head linear; if only the GP differs and its engine is lowrank or "
            "matrix_free, train with --set refiner.engine.dtype=float64."
        )
