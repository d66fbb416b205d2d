"""The weights that the paper's networks start from: official files, where they are published, how they are laid out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from semigpc.models.backbones import EMBEDDED
from semigpc.models.pretrained import Layout
from semigpc.training import Experiment, SettingError

Pretraining = Literal["supervised", "dino", "msn"]
USB = "https://github.com/microsoft/Semi-supervised-learning/releases/download/v.0.0.0/"
DINO = "https://dl.fbaipublicfiles.com/dino/dino_deitsmall16_pretrain/"
MSN = "https://dl.fbaipublicfiles.com/msn/"


@dataclass(frozen=True)
class WeightFile:
    """A published file: its name, the address of the folder it lies in, how it names its parts, and of which network."""

    file: str
    address: str
    layout: Layout
    backbone: str

    @property
    def url(self) -> str:
        """Where to fetch it."""
        return self.address + self.file


WEIGHTS: tuple[WeightFile, ...] = (
    WeightFile("vit_tiny_patch2_32_mlp_im_1k_32.pth", USB, "usb", "vit_tiny_patch2_32"),
    WeightFile("vit_small_patch2_32_mlp_im_1k_32.pth", USB, "usb", "vit_small_patch2_32"),
    WeightFile("vit_small_patch16_224_mlp_im_1k_224.pth", USB, "usb", "vit_small_patch16_224"),
    WeightFile("dino_deitsmall16_pretrain.pth", DINO, "dino", "vit_small_patch16_224"),
    WeightFile("vits16_800ep.pth.tar", MSN, "msn", "vit_small_patch16_224"),
)
LAYOUTS: dict[str, Layout] = {"supervised": "usb", "dino": "dino", "msn": "msn"}


def weight_file(backbone: str, pretraining: Pretraining) -> WeightFile:
    """The file that a network starts from."""
    for known in WEIGHTS:
        if (known.backbone, known.layout) == (backbone, LAYOUTS.get(pretraining)):
            return known
    offered = ", ".join(
        name for name, layout in LAYOUTS.items() if (backbone, layout) in {(w.backbone, w.layout) for w in WEIGHTS}
    )
    raise SettingError(f"{backbone} has published weights by {offered or 'nobody'}; got {pretraining!r}.")


def weights_folder(root: str | Path, weights: str | Path | None) -> Path:
    """Where the files lie: the folder given, else ``weights`` below the data, or beside them if those are one file."""
    if weights is not None:
        return Path(weights).expanduser().resolve()
    place = Path(root).expanduser().resolve()
    return (place.parent if place.is_file() else place) / "weights"


def check_weights(experiment: Experiment | None) -> None:
    """Refuse an experiment whose weights are not there, with the address to fetch them from."""
    given = None if experiment is None else experiment.model.pretrained
    if given is None or given in ("timm", EMBEDDED) or Path(given).expanduser().is_file():
        return
    path = Path(given)
    known = next((weights for weights in WEIGHTS if weights.file == path.name), None)
    if known is None:
        raise SettingError(f"model.pretrained must be 'timm', 'embedded' or a file that exists; got {given}.")
    other = ", or take other ones by --set model.pretrained=timm" if known.backbone == "vit_small_patch16_224" else ""
    raise SettingError(
        f"the weights {known.file} are not in {path.parent}. Fetch {known.url} into it, or give the folder that holds "
        f"the file by --weights{other}."
    )
