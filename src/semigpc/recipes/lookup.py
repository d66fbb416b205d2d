"""From names and options to an experiment: a recipe by its name, or your own data by their path."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from semigpc.data import DataError
from semigpc.recipes import RECIPES
from semigpc.recipes.own import OwnData, own_arrays, own_folder
from semigpc.recipes.scales import EMBEDDED, FROZEN, on_cached_features
from semigpc.text import similar_names
from semigpc.training import Experiment, SettingError
from semigpc.training.experiment import config_type

ExperimentMaker = Callable[[str, str, str], Experiment]  # from the names of algorithm, add-on and refiner


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
    """Return the experiment that ``data`` and the options describe, and a short name for the data."""
    make, name = experiments_on(data, options)
    return make(options.algorithm, options.addon, options.refiner), name


def experiments_on(data: str, options: TrainOptions, *, judged: bool = False) -> tuple[ExperimentMaker, str]:
    """Look ``data`` up once; return a function from the names of a method to its experiment, and a short name for the data.

    Args:
        data: a recipe's name, a folder of images, or an ``.npz`` file.
        options: all but the names of the method.
        judged: raise DataError for own data without a single labelled image for test or validation.
    """
    size = options.image_size or FROZEN
    if options.cached and data not in RECIPES:
        options = replace(options, model=options.model or EMBEDDED.name, image_size=size)
    without_addon, name = _experiments(data, options, judged=judged)

    def make(algorithm: str, addon: str, refiner: str) -> Experiment:
        experiment = without_addon(algorithm=algorithm, refiner=refiner)
        if options.cached:
            # The embedded network, or any of timm's with the weights of its hub.
            frozen = EMBEDDED if options.model in (None, EMBEDDED.name) else replace(experiment.model, pretrained="timm")
            experiment = on_cached_features(experiment, frozen, size)
        return replace(experiment, addon=config_type("addon", addon)())

    return make, name


def _experiments(data: str, options: TrainOptions, *, judged: bool) -> tuple[Callable[..., Experiment], str]:
    if data in RECIPES:
        return _recipe(data, options), data
    path = Path(data).expanduser()
    if not path.exists():
        if path.suffix or "/" in data:
            raise DataError(f"there is no folder or file {data}. Check the path.")
        hint = "".join(f"Did you mean {name!r}? " for name in similar_names(data, RECIPES))
        raise SettingError(f"there is no folder {data!r}, nor a recipe of that name. {hint}Known: {', '.join(RECIPES)}.")
    if options.ratio is not None:
        raise SettingError("--ratio cuts a recipe's long tail; your own data have the tail they have. Leave it out.")
    own = _folder(path, options) if path.is_dir() else _arrays(path, options)
    if judged and not own.judged:
        raise DataError(
            f"there is nothing to compare by: {data} has no test images, and some class has too few labels to hold one out. "
            "Give labelled images by --test, or a fraction of the labels by --validation."
        )
    return partial(own.experiment, model=options.model, image_size=options.image_size, seed=options.seed), path.resolve().stem


def _recipe(name: str, options: TrainOptions) -> Callable[..., Experiment]:
    if options.of_own_data:
        raise SettingError(
            f"{', '.join(options.of_own_data)} belong to your own data, and {name!r} is a recipe that brings its own. "
            f"Change it with --set, as in --set model.name=wrn_28_2, or write ./{name} if you mean a folder of that name."
        )
    ratio = {} if options.ratio is None else {"imbalance_ratio": options.ratio}
    return partial(RECIPES[name], seed=options.seed, **ratio)


def _folder(path: Path, options: TrainOptions) -> OwnData:
    validation: float | str | None = options.validation
    if options.validation is not None:
        number = _number(options.validation)
        validation = _absolute(Path(options.validation)) if number is None else number
    return own_folder(
        path.resolve(),
        labels=_absolute(options.labels),
        test=_absolute(options.test),
        validation=validation,
        seed=options.seed,
        follow_links=options.follow_links,
    )


def _arrays(path: Path, options: TrainOptions) -> OwnData:
    if path.suffix != ".npz":
        raise DataError(f"data are a folder of images or an .npz file of arrays; {path} is neither.")
    if options.labels is not None or options.test is not None:
        raise SettingError(f"{path} holds its own labels and test images; leave --labels and --test out.")
    number = None if options.validation is None else _number(options.validation)
    if options.validation is not None and number is None:
        raise SettingError(f"--validation must be a fraction of the labels, as in 0.2, for arrays; got {options.validation!r}.")
    return own_arrays(path.resolve(), validation=number, seed=options.seed)


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
