import pytest

from semigpc.algorithms import SimMatchConfig
from semigpc.recipes import digits
from semigpc.refiners import GPConfig
from semigpc.training import Experiment, SettingError, TrainConfig


def test_an_experiment_survives_json() -> None:
    experiment = digits(imbalance_ratio=100, algorithm="freematch", refiner="gp", seed=3)
    assert Experiment.from_plain(experiment.to_plain()) == experiment


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("train.lr=3e-4", 3e-4),
        ("train.steps=1e3", 1000),
        ("train.tensorboard=true", True),
        ("train.optimizer=sgd", "sgd"),
        ("refiner.logit_scale=none", None),
        ("refiner.logit_scale=7", 7.0),
        ("data.split.overlap=usb", "usb"),
        ("augment.mean=[0.1, 0.2, 0.3]", (0.1, 0.2, 0.3)),
    ],
)
def test_settings_reach_the_part_they_name(assignment: str, value: object) -> None:
    changed: object = digits().override([assignment.replace("=none", "=null")])
    for part in assignment.split("=", maxsplit=1)[0].split("."):
        changed = getattr(changed, part)
    assert changed == value


def test_later_settings_win() -> None:
    assert digits().override(["train.lr=1e-3", "train.lr=1e-4"]).train.lr == 1e-4


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.lrr=1", r"unknown setting 'train\.lrr'; did you mean 'train\.lr'\?"),
        ("lr=1", r"did you mean 'train\.lr'\?"),
        ("refiner.lenght_scale=1", r"did you mean 'refiner\.length_scale'\?"),
        ("train.lr", r"written key=value"),
        ("train.lr=fast", r"train\.lr must be a number; got 'fast'"),
        ("train.steps=1.5", r"train\.steps must be a whole number; got 1\.5"),
        ("train.steps=true", r"train\.steps must be a whole number; got True"),
        ("train.optimizer=adam", r"train\.optimizer must be one of 'adamw', 'sgd'; got 'adam'"),
        ("train.tensorboard=1", r"train\.tensorboard must be true or false; got 1"),
        ("train.lr=-1", r"train: lr must be positive; got -1\.0"),
        ("augment.mean=[1, 2]", r"augment\.mean must be a list of 3 values"),
        ("data.split=4", r"data\.split"),
        ("algorithm.name=fixmach", r"unknown algorithm 'fixmach'; did you mean 'fixmatch'\?"),
        ("algorithm.threshold=7", r"algorithm: threshold must lie in \[0, 1\]; got 7\.0"),
        ("algorithm.temperature=0", r"algorithm: temperature must be positive"),
        ("algorithm.unlabeled_weight=-1", r"algorithm: unlabeled_weight must not be negative"),
        ("seed=1.5", r"seed must be a whole number"),
    ],
)
def test_a_wrong_setting_is_answered_with_the_right_one(assignment: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        digits().override([assignment])


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("fixmatch", ["refiner.site=aggregate"], "fixmatch has no site 'aggregate'"),
        ("comatch", ["refiner.site=final"], "comatch has no site 'final'"),
        ("fixmatch", ["refiner.feature=projection"], "fixmatch has no projection head"),
        ("fixmatch", ["refiner.source=ema", "train.ema=0"], "needs a moving average"),
        ("simmatch", ["algorithm.bank=teacher", "train.ema=0"], "needs a moving average"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(algorithm: str, settings: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        digits(algorithm=algorithm).override(settings)


def test_configs_of_another_kind_are_refused() -> None:
    with pytest.raises(SettingError, match="algorithm must be a config out of"):
        Experiment(algorithm=TrainConfig())
    assert Experiment(algorithm=SimMatchConfig(), refiner=GPConfig()).algorithm_name == "simmatch"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train", 5, r"train is a group of settings"),
        ("train", {"lr": float("nan")}, r"train\.lr must be a number; got nan"),
        ("train", {"lr": float("inf")}, r"train\.lr must be a number; got inf"),
        ("train", {"steps": 10**400}, r"train\.steps must be a whole number"),
        ("train", {"optimizer": ["sgd"]}, r"train\.optimizer must be one of"),
        ("algorithm", "fixmatch", r"algorithm must be a group of settings, of which one is its name"),
        ("algorithm", {"threshold": 0.5}, r"algorithm must be a group of settings, of which one is its name"),
        ("algorithm", {"name": ["fixmatch"]}, r"algorithm must be a group of settings, of which one is its name"),
        ("augment", None, r"augment is a group of settings"),
        ("seed", "x" * 1000, r"seed must be a whole number; got 'x{79}\."),
        ("sead", 1, r"unknown setting 'sead'; did you mean 'seed'\?"),
    ],
)
def test_a_config_file_that_was_edited_is_refused(key: str, value: object, message: str) -> None:
    plain = digits().to_plain()
    with pytest.raises(SettingError, match=message):
        Experiment.from_plain(plain | {key: value})
