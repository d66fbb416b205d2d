"""Options that several verbs share, each with its one name, type and help text."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from semigpc.cli.tables import say
from semigpc.io.errors import DataError, SettingsError

if TYPE_CHECKING:
    from semigpc.models.encoder import EmbedConfig

DEFAULT_RATIO = 30.0  # largest class over smallest, of a recipe in demo and compare
OWN_DATA = "Your own data"  # panel of the help

Features = Literal["live", "cached"]


def option(name: str, panel: str, metavar: str | None, text: str, **more: Any) -> Any:
    """Return an option in a named panel of the help.

    The text mentions the default itself, so that each option fits on one line.
    """
    return typer.Option(
        name, metavar=metavar, help=text, rich_help_panel=panel, show_default=False, **more
    )


# All verbs ----------------------------------------------------------------------------------------

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Follow symbolic links that lead out of a folder.")
]
Jobs = Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Number of runs at a time.")]
TRUST_PSEUDO = "--trust-pseudo"
TRUST_PSEUDO_HELP = "Take guesses of semigpc for labels."
TrustPseudo = Annotated[bool, typer.Option(TRUST_PSEUDO, help=TRUST_PSEUDO_HELP)]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change any setting (repeatable); semigpc list settings DATA shows them.",
    ),
]

# embed, label and open ----------------------------------------------------------------------------

NETWORK_HELP = "Network; see semigpc list networks;"
NetworkName = Annotated[str, typer.Option("--model", metavar="NAME", help=f"{NETWORK_HELP[:-1]}.")]


def announced(wanted: "EmbedConfig", earlier: Path, *, quiet: bool = False) -> "EmbedConfig":
    """Return how images are embedded; unless the user named network and weights, print them.

    Args:
        wanted: by the options. earlier: a table of embeddings, if it exists; without a model of the
            user's choice its network is used. quiet: print on standard error.
    """
    from semigpc.models.networks import choose_network

    chosen = choose_network(wanted, earlier=earlier)
    if wanted.pretrained == "auto" or chosen.config.model != wanted.model:
        say(chosen.line, err=quiet)
    return chosen.config


# train and compare --------------------------------------------------------------------------------

TrainingData = Annotated[
    str, typer.Argument(metavar="DATA", help="A recipe, a folder of images, or an .npz file.")
]
FeatureChoice = Annotated[
    Features | None,
    typer.Option(
        "--features",
        help="live: train the whole network. cached: train on stored features of a frozen one, "
        "the default for photos on a CPU.",
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        "--root", metavar="PATH", help="Folder of a recipe's data; short for --set data.root=PATH."
    ),
]
Labels = Annotated[
    Path | None, option("--labels", OWN_DATA, "FILE", "CSV or Parquet: file_name, label.")
]
OwnTrustPseudo = Annotated[bool, option(TRUST_PSEUDO, OWN_DATA, None, TRUST_PSEUDO_HELP)]
Test = Annotated[
    Path | None, option("--test", OWN_DATA, "PATH", "Test images: such a table, or class folders.")
]
Validation = Annotated[
    str | None,
    option(
        "--validation",
        OWN_DATA,
        "PATH",
        "The same, or a fraction of the labels: 0.2 if each class has 5.",
    ),
]
ModelName = Annotated[
    str | None,
    option("--model", OWN_DATA, "NAME", "See semigpc list networks; auto: the best here."),
]
ImageSize = Annotated[
    int | None,
    option("--image-size", OWN_DATA, "PIXELS", "Side; by default what suits the network.", min=2),
]
OwnLinks = Annotated[
    bool, option("--follow-links", OWN_DATA, None, "Follow links that lead out of a folder.")
]


def short_settings(data: str, steps: int | None, root: Path | None) -> list[str]:
    """Return the settings that ``--steps`` and ``--root`` are short for."""
    from semigpc.training.presets import RECIPES

    if root is not None and data not in RECIPES:
        raise SettingsError(
            f"--root is the folder of a recipe's data; yours are read from {data}. Leave it out."
        )
    settings = []
    if root is not None:
        settings.append(f"data.root={root.expanduser().resolve()}")
    if steps is not None:
        settings.append(f"train.steps={steps}")
    return settings


# evaluate, predict and export ---------------------------------------------------------------------

ModelFolder = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        exists=True,
        file_okay=False,
        help="Run folder of semigpc train, or folder of label, open or review.",
    ),
]
Checkpoint = Annotated[
    Literal["best", "last"] | None,
    typer.Option(
        "--checkpoint",
        metavar="best|last",
        help="Best on validation (the default if there is one), or last.",
    ),
]
Head = Annotated[
    Literal["auto", "linear", "gp", "label"],
    typer.Option("--head", help="Head (docs/train.md); auto: the one the run chose."),
]


RUN_FILES = ("config.json", "checkpoints")
LABELLING_FILES = (
    *("project.json", "summary.json", "labels.parquet", "parts", "embeddings.parquet"),
    *("reviews.jsonl", "_partial.json", "_complete.json"),
)


def is_labelling(folder: Path, **of_runs: object) -> bool:
    """Return whether label, open or review wrote a folder; otherwise it is a run's.

    Args:
        folder: that a verb for both kinds received.
        of_runs: options that only runs have; for a labelling they must be None or "auto".

    Raises:
        DataError: it is neither.
    """
    if any((folder / name).exists() for name in RUN_FILES):
        return False
    if not any((folder / name).exists() for name in LABELLING_FILES):
        raise DataError(
            f"{folder} is neither a run nor a labelled folder: it has no config.json, which "
            "semigpc train writes, and no project.json, which label and open write. Check the path."
        )
    for name, value in of_runs.items():
        if value not in (None, "auto"):
            raise SettingsError(
                f"{folder} is a labelled folder, and the parameter {name} is for runs. Leave it "
                "out."
            )
    return True


def register_data_sets() -> None:
    """Register the data sets that are not in semigpc.data, so that a run's config may name them."""
    if find_spec("semigpc.paper"):
        import semigpc.paper.fgvc  # noqa: F401 - importing it registers the set


# label, suggest, audit and review -----------------------------------------------------------------

LabelledFolder = Annotated[
    Path, typer.Argument(metavar="OUT", help="Folder that semigpc label wrote.")
]
