"""Bulk labelling on Ray: one small instance for all tests of this file."""

import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from semigpc.io.errors import DataError
from semigpc.labeling import ray as ray_engine
from semigpc.labeling import scan as scan_module
from semigpc.labeling.label import LabelSettings, label_data
from semigpc.labeling.project import Project
from semigpc.labeling.ray import Labelling, label_on_ray
from tests.cli.calls import refused, semigpc, worked
from tests.labeling.partitioned import (
    IDS,
    ROUNDING,
    X,
    assert_same_labels,
    partitioned,
    read_labels,
    write_partitions,
    write_uneven,
)
from tests.labeling.samples import labels_of, write_labels

pytestmark = pytest.mark.slow  # starting Ray takes seconds


@pytest.fixture(scope="module")
def instance() -> Iterator[Any]:
    """Two workers at most and little memory; left alone by the engine, which did not start it."""
    ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'semigpc[ray]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")
        quiet = {"include_dashboard": False, "log_to_driver": False}
        ray.init(address="local", num_cpus=2, object_store_memory=200 * 2**20, **quiet)
        yield ray
        ray.shutdown()


def call_of(data: Path | str, settings: LabelSettings) -> tuple[Path | str, ...]:
    labels = settings.labels or ""
    return ("label", data, "--labels", labels, "--out", settings.out, "--engine", "ray")


@pytest.fixture(scope="module")
def both(instance: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same partitions, labelled locally into ``local`` and on Ray into ``out``."""
    assert instance.is_initialized()
    folder = tmp_path_factory.mktemp("both")
    settings = partitioned(folder, report=True)
    label_data(replace(settings, out=folder / "local"))
    label_on_ray(settings)
    assert instance.is_initialized()
    return folder


def test_labels_are_those_of_the_local_engine(both: Path) -> None:
    local = both / "local"
    assert_same_labels(read_labels(both / "out"), labels_of(local), Project.open(local))
    assert names_in(both / "data") == names_in(both / "out" / "labels")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def timeless(value: Any) -> Any:
    """The same without how long anything took."""
    if isinstance(value, dict):
        return {name: timeless(held) for name, held in value.items() if name != "seconds"}
    return [timeless(held) for held in value] if isinstance(value, list) else value


def assert_close(ours: Any, local: Any) -> None:
    """The same but for the rounding of numbers."""
    if isinstance(local, dict):
        assert ours.keys() == local.keys()
        for name, value in local.items():
            assert_close(ours[name], value)
    elif isinstance(local, list):
        assert len(ours) == len(local)
        for one, other in zip(ours, local, strict=True):
            assert_close(one, other)
    else:
        assert ours == (pytest.approx(local, abs=ROUNDING) if isinstance(local, float) else local)


def test_the_summary_is_that_of_the_local_engine_and_there_is_a_report(both: Path) -> None:
    paths = [both / name / "summary.json" for name in ("out", "local")]
    ours, local = (json.loads(path.read_text()) for path in paths)
    own = {name: ours.pop(name) for name in ("engine", "partitions")}
    assert_close(timeless(ours), timeless(local))
    assert (own["engine"], own["partitions"]) == ("ray", 5)
    assert "<html" in (both / "out" / "report.html").read_text()


def test_a_complete_folder_says_so_and_is_not_opened_as_a_project(both: Path) -> None:
    held = json.loads((both / "out" / "_complete.json").read_text())
    assert (held["rows"], held["partitions"]) == (3000, 5)
    written = ["_complete.json", "labels", "report.html", "summary.json"]
    assert names_in(both / "out") == written
    with pytest.raises(DataError, match=r"labelled on Ray: its labels are .* partitions"):
        Project.open(both / "out")


def test_a_finished_run_is_answered_from_the_folder_without_ray(
    both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "_ray", None)
    assert label_on_ray(partitioned(both, report=True))["rows"] == 3000
    with pytest.raises(DataError, match="seed is 0 there and 3 here"):
        label_on_ray(partitioned(both, report=True, seed=3))


def test_a_stopped_run_is_marked_and_goes_on_with_what_is_missing(
    both: Path, tmp_path: Path
) -> None:
    settings = partitioned(tmp_path)

    def stop(stage: str, done: int, total: int | None) -> None:
        assert stage != "labelling" or total == 5
        if stage == "labelling" and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        label_on_ray(settings, progress=stop)
    held = json.loads((settings.out / "_partial.json").read_text())
    assert (held["partitions_done"], held["partitions"]) == (2, 5)
    assert not (settings.out / "_complete.json").exists()
    with pytest.raises(DataError, match="is not complete: labelling on Ray was stopped"):
        Project.open(settings.out)
    with pytest.raises(DataError, match=r"target precision is 0\.95 there and 0\.9 here"):
        label_on_ray(replace(settings, target_precision=0.9))

    made = (settings.out / "labels").glob("[!.]*.parquet")
    before = {path: path.stat().st_mtime_ns for path in made}
    stages: list[str] = []
    label_on_ray(settings, progress=lambda stage, *_: stages.append(stage))
    assert len(before) >= 2
    assert "reading" not in stages
    assert stages.count("labelling") == 5 - len(before)
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    assert read_labels(settings.out).equals(read_labels(both / "out"))
    assert names_in(settings.out) == ["_complete.json", "labels", "summary.json"]


@dataclass(frozen=True)
class Dying(Labelling):
    """Its worker is killed once, at the second partition."""

    def __call__(self, number: int) -> dict[str, Any]:
        died = self.out.folder.place / "died"
        if number == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(number)


@pytest.mark.nightly
def test_a_killed_worker_costs_its_partition_and_nothing_else(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "Labelling", Dying)
    label_on_ray(partitioned(tmp_path))
    assert (tmp_path / "out" / "died").exists()
    assert read_labels(tmp_path / "out").equals(read_labels(both / "out"))
    assert (tmp_path / "out" / "_complete.json").exists()


@pytest.mark.usefixtures("instance")
def test_what_a_worker_refuses_arrives_as_it_was_said_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    labels = write_labels(tmp_path / "few.csv", {"0-0": "ant", "0-1": "bee"})
    odd = write_uneven(tmp_path / "odd")
    settings = partitioned(tmp_path, data=odd, labels=labels, out=tmp_path / "new")
    with pytest.raises(DataError, match=r"^All embeddings must be.*2 of .*1\.parquet has 1 values"):
        label_on_ray(settings)
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("instance")
def test_labels_of_no_row_and_rows_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    settings = partitioned(tmp_path)
    nobody = write_labels(tmp_path / "nobody.csv", {IDS[0]: "ant", IDS[1]: "bee", "nobody": "ant"})
    with pytest.raises(DataError, match=r"labels for 1 ids that are not in .*data: 'nobody'"):
        label_on_ray(replace(settings, labels=nobody))
    x = X.copy()
    x[2650] = float("nan")
    write_partitions(tmp_path / "data", x=x)
    with pytest.raises(DataError, match=r"row 51 of .*\(id 'row-02650'\).*skip_bad=True"):
        label_on_ray(settings)
    assert label_on_ray(replace(settings, skip_bad=True))["statuses"]["abstained"] >= 1


@pytest.mark.usefixtures("instance")
def test_the_command_labels_partitions_and_replaces_others_when_told(tmp_path: Path) -> None:
    settings = partitioned(tmp_path)
    words = call_of(settings.data.as_uri(), settings)
    done = worked(*words, "--no-report")
    assert "labels/ (5 partitions), summary.json" in done.output
    refused(*words, "--seed", "4", code=2, words="seed is 0 there and 4 here")
    done = semigpc(*words, "--no-report", "--seed", "4", "--overwrite", "--json")
    assert json.loads(done.stdout)["settings"]["seed"] == 4


def test_a_sample_that_the_bound_cut_short_is_drawn_again(
    instance: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "sample_bound", lambda *_: 0.01)
    monkeypatch.setattr(scan_module, "SAMPLE", 3000)
    stages: list[str] = []
    label_on_ray(partitioned(tmp_path), progress=lambda stage, *_: stages.append(stage))
    assert stages.count("reading") == 10
    assert instance.is_initialized()


# Without Ray --------------------------------------------------------------------------------------


def test_without_ray_the_command_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    settings = partitioned(tmp_path)
    call = call_of(settings.data, settings)
    refused(*call, code=1, words="needs Ray, which is not installed: pip install 'semigpc[ray]'")


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    settings = partitioned(tmp_path)
    call = ("label", settings.data, "--labels", settings.labels or "")
    refused("label", "s3://bucket/x", "--out", tmp_path / "o", code=2, words="need --engine ray")
    on_ray = (*call, "--engine", "ray", "--out")
    refused(*on_ray, settings.data / "labels", code=2, words="--out must not be inside the data")
    images = semigpc(*on_ray, tmp_path / "o", "--images", tmp_path)
    assert images.exit_code == 2
    assert "--engine local" in " ".join(images.stderr.replace("│", " ").split())
