"""``benchmarks/field.py`` as a user calls it, and the short runs it makes."""

import json
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import field
from benchmarks.field import BASES, PROBLEMS, Field, field_experiment, rows_of
from benchmarks.peers import GRAPH_BASELINES
from semigpc.addons import ADDONS
from semigpc.data import CachedFeatures, Splits
from semigpc.files import sealed
from semigpc.training import SettingError
from semigpc.training.run_data import RunData, load_splits
from tests.benchmarks.calls import bench, refused, start

SMALL = ("--problem", "digits_a", "--base", "fixmatch", "--base", "remixmatch")
ADDED = ("--addon", "none", "--addon", "darp", "--seeds", "1", "--steps", "10")
METHODS = ["no add-on", "SemiGPC", "DARP", "DARP + SemiGPC"]


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    out = tmp_path_factory.mktemp("field")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(field.addon_steps, "__kwdefaults__", {"repetitions": 1, "advance": lambda _: None})
        done = bench("field", *SMALL, *ADDED, "--out", out, "--plot", out / "ranks.png")
    assert done.exit_code == 0, done.output
    return out, json.loads((out / "field.json").read_text()), done.stdout


@pytest.mark.slow
def test_the_table_has_every_cell_and_what_stands_beside_them(studied: tuple[Path, dict[str, Any], str]) -> None:
    out, summary, printed = studied
    rows = summary["problems"]["digits_a"]["rows"]
    found = [(row["base"], row["method"]) for row in rows]
    beside = [("supervised", METHODS[0]), ("npmatch", METHODS[0]), ("npmatch", METHODS[1])]
    assert found == beside + [(base, method) for base in ("fixmatch", "remixmatch") for method in METHODS]
    for row in rows:
        assert row["seeds"] == [0]
        assert row["mean"] == row["balanced_accuracy"][0]
        assert set(row["groups"]) == {"many", "medium", "few"}
        assert row["seconds"] > 0
    assert all(method in printed for method in (*METHODS, "NP-Match + SemiGPC", "labels only"))
    assert summary["step_times"]["fixmatch"]["none"]["ratio"] == 1
    assert summary["step_times"]["remixmatch"]["darp"]["step_s"] > 0
    assert (out / "ranks.png").stat().st_size > 1000
    assert (summary["refused"], summary["unfinished"]) == ([], 0)


@pytest.mark.slow
def test_ranks_and_gains_are_those_of_the_rows(studied: tuple[Path, dict[str, Any], str]) -> None:
    _, summary, printed = studied
    table = {
        (name, row["base"], row["method"]): row["mean"] for name, one in summary["problems"].items() for row in one["rows"]
    }
    blocks = [(name, base) for name in ("digits_a",) for base in ("fixmatch", "remixmatch")]
    for method in METHODS:
        ranks = []
        for block in blocks:
            mine = table[(*block, method)]
            others = [table[(*block, other)] for other in METHODS]
            ranks.append(1 + sum(other > mine for other in others) + (sum(other == mine for other in others) - 1) / 2)
        assert summary["ranks"]["mean_ranks"][method] == pytest.approx(np.mean(ranks))
    gains = [
        table[(*block, after)] - table[(*block, before)] for block in blocks for before, after in (METHODS[:2], METHODS[2:])
    ]
    assert summary["with_gp"]["all"]["pairs"] == 4
    assert summary["with_gp"]["all"]["mean_gain"] == pytest.approx(np.mean(gains))
    assert summary["with_gp"]["by_addon"]["darp"]["pairs"] == 2
    assert "SemiGPC without an add-on has mean rank" in printed
    assert summary["by_network"] == {"ranks": summary["ranks"], "with_gp": summary["with_gp"]}  # digits have no GP head


@pytest.mark.slow
def test_what_the_network_itself_says_is_told_beside_the_gp(studied: tuple[Path, dict[str, Any], str], tmp_path: Path) -> None:
    out, summary, _ = studied
    shutil.copytree(out, tmp_path / "copy")
    path = tmp_path / "copy" / "digits_a" / "cells" / "fixmatch+gp" / "seed0" / "summary.json"
    run = json.loads(path.read_text())
    run["results"]["last"] |= {"head": "gp", "balanced_accuracy": 0.99}
    del run["sha256"]
    path.write_text(json.dumps(sealed(run)))
    call = ("field", *SMALL, *ADDED, "--only-summary", "--out", tmp_path / "copy")
    found = json.loads(bench(*call, "--json").stdout)
    assert found["by_network"]["ranks"] == summary["ranks"]
    assert found["with_gp"]["all"]["mean_gain"] > summary["with_gp"]["all"]["mean_gain"]
    assert found["by_network"]["with_gp"] == summary["with_gp"]
    assert "By the network's own answer everywhere instead:" in bench(*call).stdout


@pytest.mark.slow
def test_runs_leave_figures_and_no_weights(studied: tuple[Path, dict[str, Any], str]) -> None:
    out, _, _ = studied
    runs = list(out.glob("*/cells/*/seed0"))
    assert len(runs) == 11
    assert not list(out.rglob("*.safetensors"))
    assert max(sum(file.stat().st_size for file in run.iterdir()) for run in runs) < 200_000


@pytest.mark.slow
def test_what_is_finished_is_told_without_running_more(studied: tuple[Path, dict[str, Any], str]) -> None:
    out, summary, _ = studied
    more = ("--base", "freematch", "--only-summary", "--json")
    done = bench("field", *SMALL, *ADDED, *more, "--out", out)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["unfinished"] == 4
    assert found["ranks"]["mean_ranks"] == summary["ranks"]["mean_ranks"]
    assert found["ranks"]["dropped"] == ["digits_a, freematch"]
    told = bench("field", *SMALL, *ADDED, *more[:3], "--out", out)
    assert "1 block was not ranked, as runs are missing: digits_a, freematch." in told.stdout
    assert "4 runs are not finished" in told.stdout


@pytest.mark.slow
def test_refused_combinations_are_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field.addon_steps, "__kwdefaults__", {"repetitions": 1, "advance": lambda _: None})
    few = ("--problem", "digits_a", "--base", "supervised", "--addon", "effective_number", "--addon", "darp")
    done = bench("field", *few, "--refiner", "none", "--seeds", "1", "--steps", "10", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "Left out: supervised+darp+none on digits_a: darp acts on unlabelled images" in " ".join(done.stdout.split())
    summary = json.loads((tmp_path / "field.json").read_text())
    assert [one["addon"] for one in summary["refused"]] == ["darp"]
    assert "effective_number" in {row.get("addon") for row in summary["problems"]["digits_a"]["rows"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--problem", "cifar10_a"), "cifar10_a is made of images: say where CIFAR-10 is by --root"),
        (("--problem", "cifar"), "unknown problem 'cifar'"),
        (("--base", "fixmach"), "unknown algorithm 'fixmach'; did you mean 'fixmatch'?"),
        (("--addon", "drap"), "unknown addon 'drap'; did you mean 'darp'?"),
        (("--refiner", "pg"), "unknown refiner 'pg'; did you mean 'gp'?"),
        (("--base", "supervised", "--addon", "darp"), "nothing of this can be run on digits_a"),
        (("--plot", "nowhere/ranks.png"), "there is no folder nowhere"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    refused("field", "--out", tmp_path / "out", *arguments, words=words)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_study_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    call = ("field", "--problem", "digits_a", "--base", "fixmatch", "--addon", "none", "--seeds", "1", "--steps", "60")
    with start(*call, "--jobs", "2", "--out", "out", cwd=tmp_path) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("out/digits_a/cells/*/seed0/summary.json")) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/digits_a/cells/*/seed0/summary.json")}
    kept = {path: when for path, when in before.items() if json.loads(path.read_text())["status"] == "finished"}
    assert 0 < len(kept) < 5
    done = bench(*call, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())
    assert json.loads((tmp_path / "out" / "field.json").read_text())["unfinished"] == 0


def test_graph_baselines_are_judged_on_the_same_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On digits whose features are their pixels: further rows, with the figures that a decision has."""
    chosen = Field(problems=("digits_a",), bases=("fixmatch",), addons=("none",), refiners=("none",), seeds=1, steps=10)
    splits = load_splits(chosen.cells("digits_a")[0][0].experiment)
    material = RunData(splits, pixels(splits))
    for name in GRAPH_BASELINES:
        field._judge_graph(name, material, tmp_path / "digits_a", 0)
    monkeypatch.setattr(Field, "graphs", lambda *_: tuple(GRAPH_BASELINES))
    rows = {row["base"]: row for row in rows_of(chosen, "digits_a", tmp_path)}
    assert list(rows) == ["knn", "label_spreading", "diffusion"]
    assert all(row["mean"] > 0.3 for row in rows.values())  # three times chance, on one to 36 labels of a class
    assert splits.test is not None
    known, codes, test = (field.features_of(part, material.source) for part in (splits.labeled, splits.unlabeled, splits.test))
    answers = GRAPH_BASELINES["diffusion"].fit(known, splits.labeled.labels, codes, splits.n_classes)(test)
    recall = [float((answers[splits.test.labels == c] == c).mean()) for c in range(10)]
    assert rows["diffusion"]["mean"] == pytest.approx(np.mean(recall))


def pixels(splits: Splits) -> CachedFeatures:
    """A source whose plain features are the pixels, of 192 columns."""
    sets, tables, first = [], [], 0
    for _, images in splits.parts():
        tables.append(np.stack([np.asarray(images[i], dtype=np.float32).ravel() / 255 for i in range(len(images))]))
        sets.append((images, np.arange(first, first + len(images))))
        first += len(images)
    plain = torch.from_numpy(np.concatenate(tables)).half()
    return CachedFeatures(weak=plain[:, None], strong=plain[:, None], plain=plain, sets=sets)


# The short runs

IMAGES = Path("images.zip")


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("base", [*BASES, "npmatch"])
def test_every_combination_is_an_experiment_that_is_judged_once(problem: str, base: str) -> None:
    for addon in ADDONS:
        for refiner in ("none", "gp"):
            found = field_experiment(problem, base, addon, refiner, root=IMAGES, seed=2)
            assert (found.algorithm_name, found.addon_name, found.refiner_name) == (base, addon, refiner)
            assert found.train.eval_steps == found.train.checkpoint_steps == found.train.steps
            assert found.seed == 2
            assert (found.frozen is not None) == PROBLEMS[problem].cached


def test_each_generation_is_as_long_as_a_run_of_the_others() -> None:
    plain, crest = (field_experiment("digits_a", "fixmatch", addon, "gp") for addon in ("none", "crest"))
    assert crest.addon.generations == 3
    assert crest.train.steps == 3 * plain.train.steps
    assert crest.train.epoch_steps == plain.train.epoch_steps
    assert crest.refiner == plain.refiner


def test_counts_that_the_labels_do_not_tell_are_estimated_in_setting_b() -> None:
    kinds = [field_experiment(problem, "fixmatch", "darp", "none").addon.counts for problem in ("digits_a", "digits_b")]
    assert kinds == ["labeled", "estimated"]


def test_a_trial_is_as_short_as_asked() -> None:
    found = field_experiment("digits_b", "simmatch", "debiaspl", "gp", steps=20)
    assert (found.train.steps, found.refiner.warmup_steps, found.train.epoch_steps) == (20, 2, 3)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("digits", "fixmatch", "none", "none"), "unknown problem 'digits'; did you mean 'digits_"),
        (("digits_a", "fixmatch", "drap", "none"), "unknown addon 'drap'; did you mean 'darp'?"),
        (("digits_a", "fixmach", "none", "none"), "unknown algorithm 'fixmach'; did you mean 'fixmatch'?"),
        (("digits_a", "supervised", "darp", "none"), "darp acts on unlabelled images"),
    ],
)
def test_what_there_is_not_is_refused(names: tuple[str, str, str, str], message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        field_experiment(*names)
