import json

import pytest

from semigpc.algorithms import SimMatchConfig
from semigpc.io.errors import SettingsError
from semigpc.refiners import AutoOptions, EnsembleOptions, ExactOptions, GPConfig, MatrixFreeOptions
from semigpc.refiners.gp_config import ENGINES, EngineOptions
from semigpc.training import Experiment, TrainConfig
from semigpc.training.experiment import REMOVED_SETTINGS, override_all, upgraded
from semigpc.training.presets import digits


def test_an_experiment_survives_json() -> None:
    experiment = digits(imbalance_ratio=100, algorithm="freematch", refiner="gp", seed=3)
    assert Experiment.from_plain(json.loads(json.dumps(experiment.to_plain()))) == experiment


@pytest.mark.parametrize(
    "engine", [*(kind() for kind in ENGINES.values()), MatrixFreeOptions(rank=9, dtype="float64")]
)
def test_an_engine_survives_json_with_its_options(engine: EngineOptions) -> None:
    experiment = Experiment(refiner=GPConfig(engine=engine))
    plain = json.loads(json.dumps(experiment.to_plain()))
    assert plain["refiner"]["engine"] == {"name": engine.name, **vars(engine)}
    assert Experiment.from_plain(plain) == experiment


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("train.lr=3e-4", 3e-4),
        ("train.steps=1e3", 1000),
        ("train.tf32=true", True),
        ("train.optimizer=sgd", "sgd"),
        ("train.workers=none", None),
        ("refiner.logit_scale=auto", "auto"),
        ("refiner.logit_scale=7", 7.0),
        ("data.split.overlap=usb", "usb"),
        ("augment.mean=[0.1, 0.2, 0.3]", (0.1, 0.2, 0.3)),
    ],
)
def test_settings_reach_the_part_they_name_and_later_ones_win(
    assignment: str, value: object
) -> None:
    changed: object = digits().override(["train.lr=1", assignment.replace("=none", "=null")])
    for part in assignment.split("=", maxsplit=1)[0].split("."):
        changed = getattr(changed, part)
    assert changed == value


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (["refiner.engine=exact"], ExactOptions()),
        (["refiner.engine.members=8"], AutoOptions(members=8)),
        (["refiner.engine=matrix_free", "refiner.engine.rank=64"], MatrixFreeOptions(rank=64)),
        (["refiner.engine.rank=64", "refiner.engine=matrix_free"], MatrixFreeOptions(rank=64)),
        (
            ['refiner.engine="matrix_free"', "refiner.engine.dtype=float64"],
            MatrixFreeOptions(dtype="float64"),
        ),
        (["refiner.engine.name=ensemble", "refiner.engine.members=3"], EnsembleOptions(members=3)),
        (["refiner.engine=ensemble", "refiner.engine=matrix_free"], MatrixFreeOptions()),
    ],
)
def test_an_engine_is_chosen_by_name_and_its_options_are_set_in_any_order(
    settings: list[str], options: EngineOptions
) -> None:
    assert digits().override(settings).refiner.engine == options


def test_choosing_the_engine_that_there_is_keeps_its_options() -> None:
    experiment = digits().override(["refiner.engine=matrix_free", "refiner.engine.rank=64"])
    assert experiment.override(
        ["refiner.engine=matrix_free", "seed=3"]
    ).refiner.engine == MatrixFreeOptions(rank=64)
    assert experiment.override(["refiner.engine=auto"]).refiner.engine == AutoOptions()


def test_settings_of_an_engine_concern_the_experiments_with_a_gp() -> None:
    changed = override_all(
        [digits(), digits(refiner="none")], ["refiner.engine=matrix_free", "refiner.engine.rank=64"]
    )
    assert changed[0].refiner.engine == MatrixFreeOptions(rank=64)
    assert changed[1] == digits(refiner="none")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.lrr=1", r"unknown setting 'train\.lrr'; did you mean 'train\.lr'\?"),
        ("lr=1", r"did you mean 'train\.lr'\?"),
        ("refiner.lenght_scale=1", r"did you mean 'refiner\.length_scale'\?"),
        ("train.lr", r"written key=value"),
        ("train.lr=fast", r'train\.lr must be a valid number; got "fast"'),
        (
            "refiner.logit_scale=often",
            r"logit_scale must be a valid number, or 'auto'; got \"often\"",
        ),
        ("refiner.length_scale=null", r"length_scale must be a valid number, or 'auto'; got null"),
        ("train.steps=1.5", r"train\.steps must be a valid integer; got 1\.5"),
        ("train.steps=true", r"train\.steps must be a valid integer; got true"),
        ("train.optimizer=adam", r"train\.optimizer must be 'adamw' or 'sgd'; got \"adam\""),
        ("train.tf32=1", r"train\.tf32 must be a valid boolean; got 1"),
        ("train.lr=-1", r"train: lr must be positive; got -1\.0"),
        ("augment.mean=[1, 2]", r"augment\.mean\[2\] is missing"),
        ("data.split=4", r"data\.split"),
        ("algorithm.name=fixmach", r"unknown algorithm 'fixmach'; did you mean 'fixmatch'\?"),
        ("algorithm.threshold=7", r"algorithm: threshold must lie in \[0, 1\]; got 7\.0"),
        ("algorithm.temperature=0", r"algorithm: temperature must be positive"),
        ("algorithm.unlabeled_weight=-1", r"algorithm: unlabeled_weight must not be negative"),
        ("algorithm.rotation_weight=1", r"belongs to algorithm=remixmatch; the run has algorithm="),
        ("refiner.engine=matrixfree", r"did you mean 'matrix_free'\? Known: auto"),
        ("refiner.engine=5", r"unknown refiner\.engine '5'"),
        ("refiner.engine.rank=3", r"rank belongs to engine=matrix_free; the run has engine=auto\."),
        ("refiner.engine.membres=3", r"did you mean 'refiner\.engine\.members'\?"),
        ("refiner.engine.members=many", r'members must be a valid integer; got "many"'),
        ("refiner.engine.members=0", r"refiner\.engine: members must be at least 1; got 0"),
        (
            "refiner.engine.members.x=0",
            r"unknown setting 'refiner\.engine\.members\.x'; did you mean",
        ),
        ("refiner.rank=64", r"did you mean 'refiner\.engine\.rank'\?"),
        ("refiner.members=3", r"did you mean 'refiner\.engine\.members'\?"),
        ("seed=1.5", r"seed must be a valid integer"),
    ],
)
def test_a_wrong_setting_is_answered_with_the_right_one(assignment: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        digits().override([assignment])


@pytest.mark.parametrize("setting", REMOVED_SETTINGS)
def test_a_removed_setting_is_answered_with_its_successor(setting: str) -> None:
    assignment = setting if "=" in setting else f"{setting}=1"
    with pytest.raises(SettingsError) as raised:
        digits().override([assignment])
    assert REMOVED_SETTINGS[setting].instead in str(raised.value)


def test_settings_of_an_old_run_that_changed_nothing_are_dropped() -> None:
    experiment = digits(algorithm="simmatch")
    old = experiment.to_plain()
    old["refiner"] |= {"output_scale": 1.0, "learn_per_class": False}
    old["refiner"]["engine"] = {"name": "auto", "rank": None, "landmark_steps": 0}
    old["train"] |= {"compat_usb_order": False, "tensorboard": True}
    old["algorithm"]["compat_usb"] = False
    assert Experiment.from_plain(upgraded(old)) == experiment
    old["refiner"]["output_scale"] = 2.0
    new = experiment.to_plain()
    new["refiner"] |= {"output_scale": 1.0}
    for plain in (new, upgraded(old)):
        with pytest.raises(SettingsError, match=r"refiner\.output_scale was removed; .*noise_std"):
            Experiment.from_plain(plain)


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("fixmatch", ["refiner.site=aggregate"], "fixmatch has no site 'aggregate'"),
        ("comatch", ["refiner.site=final"], "comatch has no site 'final'"),
        ("fixmatch", ["refiner.feature=projection"], "fixmatch has no projection head"),
        ("simmatch", ["algorithm.bank=teacher", "train.ema=0"], "needs a moving average"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(
    algorithm: str, settings: list[str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        digits(algorithm=algorithm).override(settings)


def test_configs_of_another_kind_are_refused() -> None:
    with pytest.raises(SettingsError, match="algorithm must be a config out of"):
        Experiment(algorithm=TrainConfig())
    assert Experiment(algorithm=SimMatchConfig(), refiner=GPConfig()).algorithm_name == "simmatch"


MATRIX_FREE = {"name": "matrix_free"}
NUMBER = r"must be a number of at most .*"
NAMED = "must be a group of settings with a name"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train", 5, r"train is a group of settings"),
        ("train", {"lr": float("nan")}, rf"train\.lr {NUMBER}; got nan"),
        ("train", {"lr": float("inf")}, rf"train\.lr {NUMBER}; got inf"),
        ("train", {"steps": 10**400}, rf"train\.steps {NUMBER}1e\+300 in size; got 10000"),
        ("train", {"threads": 10**30}, rf"train\.threads {NUMBER}2\*\*63 - 1.*; got 1000"),
        ("train", {"threads": 10**6}, "threads must be at most 1024; got 1000000"),
        ("train", {"workers": 10**6}, "workers must be at most 1024; got 1000000"),
        ("seed", 10**30, rf"seed {NUMBER}2\*\*63 - 1 .*; got 1000"),
        ("train", {"optimizer": ["sgd"]}, r"optimizer must be 'adamw' or 'sgd'; got \[\"sgd\"\]"),
        ("algorithm", "fixmatch", f"algorithm {NAMED}"),
        ("algorithm", {"threshold": 0.5}, f"algorithm {NAMED}"),
        ("algorithm", {"name": ["fixmatch"]}, f"algorithm {NAMED}"),
        ("augment", None, r"augment is a group of settings"),
        ("seed", "x" * 1000, r'seed must be a valid integer; got "x{79}\.\.\.'),
        ("sead", 1, r"unknown setting 'sead'; did you mean 'seed'\?"),
        ("engine", "ensemble", rf"refiner\.engine {NAMED}; got 'ensemble'"),
        ("engine", None, rf"refiner\.engine {NAMED}; got None"),
        ("engine", {"rank": 3}, rf"refiner\.engine {NAMED}"),
        ("engine", {"name": ["ensemble"]}, rf"refiner\.engine {NAMED}"),
        ("engine", {"name": "exakt"}, r"refiner\.engine 'exakt'; did you mean 'exact'\?"),
        ("engine", {"name": "exact", "rank": 3}, r"\.rank belongs to engine=matrix_free; the"),
        ("engine", MATRIX_FREE | {"rank": "x"}, r'engine\.rank must be a valid integer; got "x"'),
        ("engine", MATRIX_FREE | {"dtype": "half"}, r"'float32' or 'float64'; got \"half\""),
        ("engine", MATRIX_FREE | {"tolerance": [1]}, r"tolerance must be a valid .*; got \[1\]"),
    ],
)
def test_a_config_file_that_was_edited_is_refused(key: str, value: object, message: str) -> None:
    plain = digits().to_plain()
    if key == "engine":
        plain["refiner"] |= {"engine": value}
    else:
        plain |= {key: value}
    with pytest.raises(SettingsError, match=message):
        Experiment.from_plain(plain)
