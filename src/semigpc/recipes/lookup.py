"""From names and options to an experiment: a recipe by its name, or your own data by their path."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from semigpc.data import DataError
from semigpc.recipes import RECIPES
from semigpc.recipes.cpu_scale import EMBEDDED, FROZEN, on_cached_features
from semigpc.recipes.own import own_arrays, own_folder
from semigpc.text import unknown_name
from semigpc.training import Experiment, SettingError
from semigpc.training.experiment import config_type


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What a user may choose about an experiment; None where the recipe or the data decide."""

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
        """The options that only apply to own data, by the name of their flag."""
        named = {
            "--labels": self.labels,
            "--test": self.test,
            "--validation": self.validation,
            "--model": self.model,
            "--image-size": self.image_size,
            "--follow-links": self.follow_links or None,
        }
        return {option: value for option, value in named.items() if value is not None}


def resolve(data: str, options: TrainOptions) -> tuple[Experiment, str]:
    """Return the experiment that ``data`` and the options describe, and a short name for it."""
    experiment, name = _without_addon(data, options)
    return with_addon(experiment, options.addon), name


def with_addon(experiment: Experiment, name: str) -> Experiment:
    """Return the experiment with an add-on by its name."""
    return replace(experiment, addon=config_type("addon", name)())


def _without_addon(data: str, options: TrainOptions) -> tuple[Experiment, str]:
    if options.cached:
        return _on_cached_features(data, options)
    if data in RECIPES:
        return _recipe(data, options), data
    path = Path(data).expanduser()
    if not path.exists():
        if path.suffix or "/" in data:
            raise DataError(f"there is no folder or file {data}. Check the path.")
        raise SettingError(f"there is no folder {data!r}, nor a recipe of that name. {_recipes(data)}")
    if options.ratio is not None:
        raise SettingError("--ratio cuts a recipe's long tail; your own data have the tail they have. Leave it out.")
    return (_folder(path, options) if path.is_dir() else _arrays(path, options)), path.resolve().stem


def _on_cached_features(data: str, options: TrainOptions) -> tuple[Experiment, str]:
    """Return the experiment with a frozen network: the embedded one, or any of timm's with the weights of its hub."""
    size = options.image_size or FROZEN
    own: dict[str, Any] = {} if data in RECIPES else {"model": options.model or EMBEDDED.name, "image_size": size}
    experiment, name = _without_addon(data, replace(options, cached=False, **own))
    frozen = EMBEDDED if options.model in (None, EMBEDDED.name) else replace(experiment.model, pretrained="timm")
    return on_cached_features(experiment, frozen, size), name


def _recipe(name: str, options: TrainOptions) -> Experiment:
    if options.of_own_data:
        raise SettingError(
            f"{', '.join(options.of_own_data)} belong to your own data, and {name!r} is a recipe that brings its own. Change it "
            f"with --set, as in --set model.name=wrn_28_2, or write ./{name} if you mean a folder of that name."
        )
    ratio = {} if options.ratio is None else {"imbalance_ratio": options.ratio}
    return RECIPES[name](algorithm=options.algorithm, refiner=options.refiner, seed=options.seed, **ratio)


def _folder(path: Path, options: TrainOptions) -> Experiment:
    validation: float | str | None = options.validation
    if options.validation is not None:
        number = _number(options.validation)
        validation = _absolute(Path(options.validation)) if number is None else number
    return own_folder(
        path.resolve(),
        labels=_absolute(options.labels),
        test=_absolute(options.test),
        validation=validation,
        algorithm=options.algorithm,
        refiner=options.refiner,
        model=options.model,
        image_size=options.image_size,
        seed=options.seed,
        follow_links=options.follow_links,
    )


def _arrays(path: Path, options: TrainOptions) -> Experiment:
    if path.suffix != ".npz":
        raise DataError(f"data are a folder of images or an .npz file of arrays; {path} is neither.")
    if options.labels is not None or options.test is not None:
        raise SettingError(f"{path} holds its own labels and test images; leave --labels and --test out.")
    number = None if options.validation is None else _number(options.validation)
    if options.validation is not None and number is None:
        raise SettingError(f"--validation must be a fraction of the labels, as in 0.2, for arrays; got {options.validation!r}.")
    return own_arrays(
        path.resolve(),
        validation=number,
        algorithm=options.algorithm,
        refiner=options.refiner,
        model=options.model,
        image_size=options.image_size,
        seed=options.seed,
    )


def _absolute(path: Path | None) -> str | None:
    """Return an absolute path; one that does not exist here is kept, to be looked up below the folder of the images."""
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
