"""Networks for photographs under short names, and which of them are on this disk.

``auto`` takes the weights that SEMIGPC_WEIGHTS names, or else the first of :data:`NETWORKS` whose
weights are in a cache of timm's hub, or else the embedded ones. It never downloads. A name
downloads what is not on the disk.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from semigpc.io.errors import SettingsError
from semigpc.io.tables import network_of
from semigpc.io.text import listed
from semigpc.models.backbones import EMBEDDED_MODEL, has_embedded_weights
from semigpc.models.encoder import AUTO, HUB, EmbedConfig
from semigpc.models.pretrained import hub_file

WEIGHTS_VARIABLE = "SEMIGPC_WEIGHTS"  # a weight file, or a folder of them
WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
OWN_CHOICE = f"model={EMBEDDED_MODEL} is the same on every machine"


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network for photographs.

    Args:
        name: short. timm: its name there, with the tag of the weights.
        width: numbers in a row. image_size: pixels a side that it is used with here.
        megabytes: of the weights. good_for: what it is known for, from its publication.
        milliseconds: of an image in ONNX Runtime on two cores; None if that was not measured.
    """

    name: str
    timm: str
    width: int
    image_size: int
    megabytes: int
    good_for: str
    milliseconds: float | None = None

    @property
    def weights(self) -> Path | None:
        """Return the weights of timm's hub on this disk; for the embedded network see there."""
        return hub_file(self.timm)

    @property
    def is_on_disk(self) -> bool:
        """Return whether it can be used without a download."""
        embedded = self.timm == EMBEDDED_MODEL
        return has_embedded_weights() if embedded else self.weights is not None


# Best first, the order of ``auto``: by what frozen features reached in the publications, from
# images alone before images with captions, and larger before smaller. Nothing was measured here.
NETWORKS = (
    Network(
        name="dinov2_base",
        timm="vit_base_patch14_dinov2.lvd142m",
        width=768,
        image_size=224,
        megabytes=346,
        good_for="texture, material, similar species; the larger one",
    ),
    Network(
        name="dinov2",
        timm="vit_small_patch14_dinov2.lvd142m",
        width=384,
        image_size=224,
        megabytes=88,
        good_for="texture, material, similar species; try it first",
    ),
    Network(
        name="siglip",
        timm="vit_base_patch16_siglip_224.webli",
        width=768,
        image_size=224,
        megabytes=372,
        good_for="things and scenes that captions name; writing",
    ),
    Network(
        name="clip",
        timm="vit_base_patch32_clip_224.openai",
        width=768,
        image_size=224,
        megabytes=350,
        good_for="as siglip, and quicker; drawings",
    ),
    Network(
        name="convnext",
        timm="convnext_tiny.fb_in22k",
        width=768,
        image_size=224,
        megabytes=111,
        good_for="animals, plants and things of ImageNet-22k",
    ),
    Network(
        name=EMBEDDED_MODEL,
        timm=EMBEDDED_MODEL,
        width=2024,  # with its earlier stages
        image_size=224,
        megabytes=14,
        good_for="quick on a CPU; in a Python package, never a download",
        milliseconds=6.5,  # benchmarks/embed.py, docs/results-gp.md
    ),
)


class ChosenNetwork(NamedTuple):
    """How images are embedded, and a line that names the network and where its weights are."""

    config: EmbedConfig
    line: str


def network_named(name: str) -> Network | None:
    """Return the network of a short name, or of a timm name in the table; None for others."""
    return next((one for one in NETWORKS if name in (one.name, one.timm)), None)


def choose_network(wanted: EmbedConfig, *, earlier: Path | None = None) -> ChosenNetwork:
    """Return the network of a name, or the best one whose weights are on this disk.

    Args:
        wanted: whose model is "auto", a short name of :data:`NETWORKS`, or any timm model. Weights
            of another kind than "auto" belong to the embedded network if the model is "auto".
        earlier: a table of embeddings, which may not exist; "auto" stays with its network, so that
            weights which came into a cache meanwhile change nothing.

    Raises:
        SettingsError: SEMIGPC_WEIGHTS names nothing that can be used.
    """
    if (wanted.model, wanted.pretrained) != (AUTO, AUTO):
        return _named(wanted)
    made = network_of(earlier) if earlier is not None and earlier.is_file() else None
    if made is not None:
        size = wanted.image_size or made.key.image_size
        config = replace(
            wanted, model=made.key.network, pretrained=made.pretrained or AUTO, image_size=size
        )
        return ChosenNetwork(config, f"network: {config.model}, as in {earlier}")
    own = _own_weights()
    if own:
        return _from_file(wanted, *own[0])
    cached = next((one for one in NETWORKS if one.timm != EMBEDDED_MODEL and one.is_on_disk), None)
    if cached is not None:
        line = f"network: {cached.name} ({cached.timm}), weights {cached.weights}; {OWN_CHOICE}"
        return ChosenNetwork(replace(_sized(wanted, cached.timm), pretrained=HUB), line)
    config = replace(wanted, model=EMBEDDED_MODEL)
    line = f"network: {EMBEDDED_MODEL}, embedded weights; see semigpc list networks"
    return ChosenNetwork(config, line)


def _named(wanted: EmbedConfig) -> ChosenNetwork:
    name = EMBEDDED_MODEL if wanted.model == AUTO else wanted.model
    known = network_named(name)
    config = _sized(wanted, name if known is None else known.timm)
    if config.pretrained == AUTO and config.model != EMBEDDED_MODEL:
        own = dict(_own_weights())
        if config.model in own:
            return _from_file(wanted, config.model, own[config.model])
    file = hub_file(config.model) if config.source == HUB else None
    return ChosenNetwork(config, f"network: {config.model}, weights {file or config.source}")


def _from_file(wanted: EmbedConfig, model: str, path: Path) -> ChosenNetwork:
    line = f"network: {model}, weights {path} ({WEIGHTS_VARIABLE}); {OWN_CHOICE}"
    return ChosenNetwork(replace(_sized(wanted, model), pretrained=str(path)), line)


def _sized(wanted: EmbedConfig, model: str) -> EmbedConfig:
    """Return the config of a timm model, at the size of the table unless another is wanted."""
    known = network_named(model)
    own_size = None if known is None or model == EMBEDDED_MODEL else known.image_size
    return replace(wanted, model=model, image_size=wanted.image_size or own_size)


def _own_weights() -> list[tuple[str, Path]]:
    """Return timm names and files of SEMIGPC_WEIGHTS, networks of the table first, best first."""
    import timm

    named = os.environ.get(WEIGHTS_VARIABLE)
    if not named:
        return []
    place = Path(named).expanduser()
    if not place.exists():
        raise SettingsError(f"{WEIGHTS_VARIABLE} is {place}, which does not exist. Correct it.")
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    found: dict[str, Path] = {}
    for path in files:
        if path.suffix in WEIGHT_SUFFIXES and path.is_file():
            known = network_named(path.stem)
            name = path.stem if known is None else known.timm
            if known is not None or timm.is_model(name.partition(".")[0]):
                found.setdefault(name, path)
    if not found:
        raise SettingsError(
            f"{WEIGHTS_VARIABLE} is {place}, which has no weights whose file is named after a "
            f"network ({listed([path.name for path in files], 3) or 'it is empty'}). Name the file "
            f"NAME{WEIGHT_SUFFIXES[0]}, with a name of semigpc list networks or of timm."
        )
    rank = {one.timm: place for place, one in enumerate(NETWORKS)}
    return sorted(found.items(), key=lambda each: (rank.get(each[0], len(rank)), each[0]))
