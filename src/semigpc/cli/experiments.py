"""From words on the command line to an experiment: a recipe by its name, or your own data by their path."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from semigpc.data import DataError
from semigpc.recipes import RECIPES
from semigpc.recipes.own import own_arrays, own_folder
from semigpc.recipes.scales import EMBEDDED, FROZEN, on_cached_features
from semigpc.text import unknown_name
from semigpc.training import Experiment, SettingError
from semigpc.training.experiment import config_type


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a user may say of an experiment; None where nothing was said."""

    algorithm: str = "simmatch"
    refiner: str = "gp"
    addon: str = "none"
    seed: int = 0
    ratio: float | None = None
    labels: Path | None = None
    test: Path | None = None
    validation: str | None = None
    model: str | None = None
    image_size: int | None = None
    cached: bool = False
    follow_links: bool = False

    @property
    def of_own_data(self) -> dict[str, object]:
        """Those that only own data understand, by the name of their option."""
        named = {
            "--labels": self.labels,
            "--test": self.test,
            "--validation": self.validation,
            "--model": self.model,
            "--image-size": self.image_size,
            "--follow-links": self.follow_links or None,
        }
        return {option: value for option, value in named.items() if value is not None}


def resolve(data: str, wishes: Wishes) -> tuple[Experiment, str]:
    """The experiment that ``data`` and the wishes describe, and a short name for it."""
    experiment, name = _without_addon(data, wishes)
    return with_addon(experiment, wishes.addon), name


def with_addon(experiment: Experiment, name: str) -> Experiment:
    """The same with an add-on by its name."""
    return replace(experiment, addon=config_type("addon", name)())


def _without_addon(data: str, wishes: Wishes) -> tuple[Experiment, str]:
    if wishes.cached:
        return _on_cached_features(data, wishes)
    if data in RECIPES:
        return _recipe(data, wishes), data
    path = Path(data).expanduser()
    if not path.exists():
        if path.suffix or "/" in data:
            raise DataError(f"there is no folder or file {data}. Check the path.")
        raise SettingError(f"there is no folder {data!r}, nor a recipe of that name. {_recipes(data)}")
    if wishes.ratio is not None:
        raise SettingError("--ratio cuts a recipe's long tail; your own data have the tail they have. Leave it out.")
    return (_folder(path, wishes) if path.is_dir() else _arrays(path, wishes)), path.resolve().stem


def _on_cached_features(data: str, wishes: Wishes) -> tuple[Experiment, str]:
    """The same with a frozen network: the embedded one, or any of timm's, which brings the weights of its hub."""
    size = wishes.image_size or FROZEN
    own: dict[str, Any] = {} if data in RECIPES else {"model": wishes.model or EMBEDDED.name, "image_size": size}
    experiment, name = _without_addon(data, replace(wishes, cached=False, **own))
    frozen = EMBEDDED if wishes.model in (None, EMBEDDED.name) else replace(experiment.model, pretrained="timm")
    return on_cached_features(experiment, frozen, size), name


def _recipe(name: str, wishes: Wishes) -> Experiment:
    if wishes.of_own_data:
        raise SettingError(
            f"{', '.join(wishes.of_own_data)} belong to your own data, and {name!r} is a recipe that brings its own. Change it "
            f"with --set, as in --set model.name=wrn_28_2, or write ./{name} if you mean a folder of that name."
        )
    ratio = {} if wishes.ratio is None else {"imbalance_ratio": wishes.ratio}
    return RECIPES[name](algorithm=wishes.algorithm, refiner=wishes.refiner, seed=wishes.seed, **ratio)


def _folder(path: Path, wishes: Wishes) -> Experiment:
    validation: float | str | None = wishes.validation
    if wishes.validation is not None:
        number = _number(wishes.validation)
        validation = _absolute(Path(wishes.validation)) if number is None else number
    return own_folder(
        path.resolve(),
        labels=_absolute(wishes.labels),
        test=_absolute(wishes.test),
        validation=validation,
        algorithm=wishes.algorithm,
        refiner=wishes.refiner,
        model=wishes.model,
        image_size=wishes.image_size,
        seed=wishes.seed,
        follow_links=wishes.follow_links,
    )


def _arrays(path: Path, wishes: Wishes) -> Experiment:
    if path.suffix != ".npz":
        raise DataError(f"data are a folder of images or an .npz file of arrays; {path} is neither.")
    if wishes.labels is not None or wishes.test is not None:
        raise SettingError(f"{path} holds its own labels and test images; leave --labels and --test out.")
    number = None if wishes.validation is None else _number(wishes.validation)
    if wishes.validation is not None and number is None:
        raise SettingError(f"--validation must be a fraction of the labels, as in 0.2, for arrays; got {wishes.validation!r}.")
    return own_arrays(
        path.resolve(),
        validation=number,
        algorithm=wishes.algorithm,
        refiner=wishes.refiner,
        model=wishes.model,
        image_size=wishes.image_size,
        seed=wishes.seed,
    )


def _absolute(path: Path | None) -> str | None:
    """A path that means the same from anywhere; one that is not here is left to be found below the folder of the images."""
    if path is None:
        return None
    return str(path.expanduser().resolve() if path.expanduser().exists() else path)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _recipes(name: str) -> str:
    return unknown_name("recipe", name, RECIPES).partition("; ")[2] or f"known are {', '.join(RECIPES)}."
