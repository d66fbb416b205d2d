from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semigpc.addons import ADDONS
from semigpc.io.errors import SettingsError
from semigpc.paper import tables as paper
from semigpc.paper.published import PUBLISHED
from semigpc.paper.tables import TABLES, Options, find_table, select

OPTIONS = Options(root=Path("/data"))


def test_every_published_row_is_a_cell_and_every_group_starts_with_labels_only() -> None:
    assert TABLES.keys() == PUBLISHED.keys()
    for name, table in TABLES.items():
        assert table.groups.keys() == PUBLISHED[name].keys()
        for group, rows in PUBLISHED[name].items():
            cells = table.cells(group, OPTIONS)
            assert cells[0].row == "supervised+none"
            assert cells[0].published is None
            assert {cell.row: cell.published for cell in cells[1:]} == rows
            quoted = [row for row in rows if rows[row].quoted]
            assert [cell.row for cell in cells if cell.experiment is None] == quoted


def test_cells_have_the_experiments_of_their_keys() -> None:
    for table in TABLES.values():
        cells = table.all_cells(OPTIONS)
        assert len({cell.key for cell in cells}) == len(cells)
        for cell in cells:
            if cell.experiment is not None:
                made = cell.experiment
                assert cell.key == f"{cell.group}/{made.algorithm_name}+{made.refiner_name}"


def experiment(table: str, key: str, options: Options = OPTIONS) -> Any:
    (found,) = [cell.experiment for cell in TABLES[table].all_cells(options) if cell.key == key]
    return found


def test_groups_decide_the_data() -> None:
    split = experiment("cifar10_lt", "A/150/simmatch+gp").data.split
    assert (split.labeled_head, split.labeled_ratio, split.unlabeled_ratio) == (1500, 150, 150)
    split = experiment("cifar100_lt", "B/20/simmatch+gp").data.split
    assert (split.labeled_head, split.labeled_ratio) == (4, 1)
    assert (split.unlabeled_head, split.unlabeled_ratio) == (500, 20)
    assert experiment("fgvc", "semi_inat/simmatch+none").data.benchmark == "semi_inat"
    assert experiment("balanced_cifar", "cifar100/400/simmatch+gp").data.split.labeled_head == 4
    assert "dino" in experiment("pretraining_ablation", "dino/supervised+none").model.pretrained
    freematch = experiment("algorithm_ablation", "semi_aves/freematch+gp").algorithm
    assert freematch.fairness_weight == 0.001


def test_only_setting_b_of_cifar_10_wants_five_seeds() -> None:
    wanted = {
        (name, key): group.seeds
        for name, table in TABLES.items()
        for key, group in table.groups.items()
    }
    five = {place for place, seeds in wanted.items() if seeds == 5}
    assert five == {("cifar10_lt", f"B/{ratio}") for ratio in (50, 100, 150)}
    assert set(wanted.values()) == {3, 5}


def test_other_algorithms_and_refiners_have_no_published_number() -> None:
    options = Options(algorithms=("fixmatch", "supervised"), refiners=("none", "similarity", "gp"))
    cells = TABLES["fgvc"].cells("semi_aves", options)
    rows = ["supervised+none", "FixMatch", "fixmatch+none", "fixmatch+similarity", "fixmatch+gp"]
    assert [cell.row for cell in cells] == rows
    # quoted, of another network
    assert [cell.row for cell in cells if cell.published] == ["FixMatch"]


def test_addons_are_rows_beside_those_of_the_paper() -> None:
    cells = TABLES["cifar10_lt"].cells("A/100", Options(addons=("crest", "balanced_sampling")))
    bases = ("simmatch", "simmatch+crest", "simmatch+balanced_sampling")
    rows = [f"{base}+{refiner}" for base in bases for refiner in ("none", "gp")]
    assert [cell.row for cell in cells] == ["supervised+none", "CoSSL", *rows]
    assert [cell.row for cell in cells if cell.published] == ["CoSSL", *rows[:2]]
    plain, crest = (
        cell.experiment for cell in cells if cell.row in ("simmatch+gp", "simmatch+crest+gp")
    )
    assert plain is not None
    assert crest == replace(plain, addon=ADDONS["crest"].config())


@pytest.mark.parametrize("addon", [name for name in ADDONS if name != "none"])
@pytest.mark.parametrize(
    "options",
    [{}, {"scale": "cpu"}, {"scale": "cpu", "features": "cached"}],
    ids=["paper", "live", "cached"],
)
def test_every_addon_goes_with_every_base_of_the_paper(addon: str, options: Any) -> None:
    for name in ("fgvc", "algorithm_ablation"):
        for cell in TABLES[name].all_cells(Options(addons=(addon,), **options)):
            if cell.experiment is not None and cell.experiment.addon.needs_average:
                assert cell.experiment.train.ema == (0.99 if options else 0.999)


def test_labels_only_takes_addons_for_labels() -> None:
    options = Options(
        algorithms=("supervised", "fixmatch"), addons=("effective_number",), refiners=("none",)
    )
    rows = [cell.row for cell in TABLES["fgvc"].cells("cub", options) if cell.cell is not None]
    methods = ("supervised", "supervised+effective_number", "fixmatch", "fixmatch+effective_number")
    assert rows == [f"{method}+none" for method in methods]
    with pytest.raises(SettingsError, match="crest acts on unlabelled images, and supervised"):
        TABLES["fgvc"].cells("cub", Options(algorithms=("supervised",), addons=("crest",)))


def test_addons_that_cannot_act_are_errors() -> None:
    with pytest.raises(SettingsError, match="did you mean 'crest'"):
        Options(addons=("crst",))
    with pytest.raises(SettingsError, match=r"train\.steps=3 must be at least 6"):
        TABLES["cifar10_lt"].cells("A/50", Options(addons=("crest",), steps=3))


@pytest.mark.parametrize("scale", ["paper", "cpu"])
def test_a_run_of_three_steps_is_evaluated_and_saved_and_refined(scale: Any) -> None:
    options = Options(scale=scale, steps=3)
    made = experiment("cifar10_lt", "A/50/simmatch+gp", options)
    train = made.train
    for name in ("steps", "eval_steps", "checkpoint_steps", "log_steps", "epoch_steps"):
        assert getattr(train, name) == 3
    assert (made.refiner.warmup_steps, train.warmup_steps) == (1, 0)
    assert options.changed == ["train.steps=3"]
    long = experiment("cifar10_lt", "A/50/simmatch+gp", Options(steps=20_480)).train
    # as often as in full, and the same share of the run
    assert (long.eval_steps, long.warmup_steps) == (2048, 512)


def test_other_counts_of_labels_have_no_published_number() -> None:
    options, usual = Options(labels_per_class=25), Options(labels_per_class=4)
    for group, these, printed in (("B/50", options, 0), ("A/50", options, 1), ("B/50", usual, 1)):
        cells = TABLES["cifar10_lt"].cells(group, these)
        assert any(cell.published for cell in cells) == printed
    assert experiment("cifar10_lt", "B/50/simmatch+gp", options).data.split.labeled_head == 25


def test_settings_concern_the_cells_that_have_them() -> None:
    settings = ("refiner.buffer_size=64", "train.steps=6", "algorithm.temperature=0.3")
    listed = TABLES["fgvc"].cells("cub", Options(overrides=settings))
    cells: dict[str, Any] = {cell.row: cell.experiment for cell in listed}
    assert all(made is None or made.train.steps == 6 for made in cells.values())
    gp, base = cells["simmatch+gp"], cells["simmatch+none"]
    assert gp.refiner.buffer_size == 64
    assert gp.algorithm.temperature == base.algorithm.temperature == 0.3
    with pytest.raises(SettingsError, match=r"did you mean 'refiner\.buffer_size'"):
        TABLES["fgvc"].cells("cub", Options(overrides=("refiner.bufer_size=64",)))


def test_settings_that_decide_nothing_change_nothing() -> None:
    assert Options(overrides=("train.workers=8", "train.eval_batch=256")).changed == []
    assert Options(overrides=("train.workers=8", "train.lr=1e-4")).changed == ["train.lr=1e-4"]


def test_patterns_pick_cells_and_groups() -> None:
    cells = TABLES["cifar10_lt"].all_cells(OPTIONS)
    assert len(select(cells, [])) == 18
    chosen = [cell.key for cell in select(cells, ["A/50/simmatch+*"])]
    assert chosen == ["A/50/simmatch+none", "A/50/simmatch+gp"]
    assert len(select(cells, ["B/150"])) == 3
    mixed = {cell.key for cell in select(cells, ["*/simmatch+gp", "A/50"])}
    assert mixed >= {"B/100/simmatch+gp", "A/50/supervised+none"}
    with pytest.raises(SettingsError, match=r"'A/5O/simmatch\+gp'; .*'A/50/simmatch\+gp'.*B/150"):
        select(cells, ["A/5O/simmatch+gp"])
    with pytest.raises(SettingsError, match="unknown cell 'A/50/CoSSL'"):  # shown, but not run
        select(cells, ["A/50/CoSSL"])


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(SettingsError, match="unknown table 'cifar10'; did you mean 'cifar10_lt'"):
        find_table("cifar10")
    with pytest.raises(SettingsError, match="did you mean 'simmatch'"):
        Options(algorithms=("simmach",))
    with pytest.raises(SettingsError, match="did you mean 'gp'"):
        Options(refiners=("pg",))
    with pytest.raises(SettingsError, match="scale=cpu"):
        Options(features="cached")


def test_pre_trainings_cannot_be_told_apart_at_scale_cpu() -> None:
    with pytest.raises(SettingsError, match="pretraining_ablation compares pre-trainings"):
        TABLES["pretraining_ablation"].all_cells(Options(scale="cpu"))


@pytest.mark.parametrize("features", ["live", "cached"])
@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if not table.full_scale])
def test_every_other_table_can_be_cut_to_scale_cpu(name: str, features: Any) -> None:
    full = TABLES[name].all_cells(OPTIONS)
    cut = TABLES[name].all_cells(Options(root=Path("/data"), scale="cpu", features=features))
    assert [cell.key for cell in cut] == [cell.key for cell in full]
    for ours, whole in zip(cut, full, strict=True):
        if ours.experiment is not None and whole.experiment is not None:
            assert ours.experiment.train.steps < whole.experiment.train.steps
            assert (ours.experiment.frozen is None) == (features == "live")


def test_at_scale_cpu_experiments_are_cut_before_settings_are_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half(made: Any, options: Options) -> Any:
        assert options.features == "live"
        return made.override(["train.steps=100", "train.eval_steps=50"])

    monkeypatch.setattr(paper, "_at_scale", half)
    options = Options(scale="cpu", overrides=("train.steps=10",))
    made = experiment("cifar10_lt", "A/50/simmatch+gp", options)
    assert (made.train.steps, made.train.eval_steps) == (10, 50)
