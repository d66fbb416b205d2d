"""Convolutional networks: a small one for tests, examples and laptops, and the wide ResNet."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMALLEST_MAP = 2  # pixels a side: halving stops before a map gets smaller
LARGEST_MAP = 16  # pixels a side: larger images are halved first
SLOPE = 0.1  # of the leaky ReLUs of the wide ResNet
MOMENTUM = 0.001  # of its batch norms: running statistics move by a thousandth in each step


class SmallCNN(nn.Module):
    """Three 3x3 convolutions for small images, such as 8x8 to 32x32; larger ones are halved first.

        x -> [conv 3x3, batch norm, ReLU, halve] x 2 -> [conv 3x3, batch norm, ReLU] -> mean over
        the map

    A map is halved only while 2x2 or more is left, so 8x8 images reach the last block as 2x2 and
    32x32 ones as 4x4. Images above 16x16 are halved first: so few convolutions would cover only a
    small part of them, and take five times as long. A step (forward and backward) over 150 images
    of 8x8 takes about 9 ms on one CPU thread.

    Args:
        width: channels of the first block; the next two have twice and four times as many.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.num_features = 4 * width
        channels = (3, width, 2 * width, 4 * width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            )
            for before, after in pairwise(channels)
        )
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (M, 3, H, W) to features (M, 4 * width)."""
        # Channels last: convolutions over so few pixels run a third faster on a CPU.
        while min(images.shape[-2:]) > LARGEST_MAP:
            images = F.avg_pool2d(images, 2)
        maps = images.contiguous(memory_format=torch.channels_last)
        for number, block in enumerate(self.blocks):
            if number and min(maps.shape[-2:]) >= 2 * SMALLEST_MAP:
                maps = F.max_pool2d(maps, 2)
            maps = block(maps)
        return maps.mean(dim=(2, 3))

    def layer_ids(self) -> dict[str, int]:
        """Return the depth of each parameter by name: one id per block, 0 for the first."""
        return {name: int(name.split(".")[1]) for name, _ in self.named_parameters()}


class Unit(nn.Module):
    """x -> shortcut(x) + conv2(act(bn2(conv1(act(bn1(x)))))).

    Where the shape changes the shortcut is a 1x1 convolution, of x itself or, with
    ``activate_shortcut``, of act(bn1(x)). The input of conv1 is act(bn1(x)) in every unit; in USB
    it is x where the shape changes without ``activate_shortcut``.

    Args:
        before, after: channels.
        stride: of the first convolution and of the shortcut.
        activate_shortcut: see above; true in the first unit of the network only.
    """

    def __init__(self, before: int, after: int, *, stride: int, activate_shortcut: bool) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before, momentum=MOMENTUM)
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after, momentum=MOMENTUM)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            self.shortcut = nn.Conv2d(before, after, 1, stride=stride, bias=False)
        self.activate_shortcut = activate_shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Map (M, before, H, W) to (M, after, H / stride, W / stride)."""
        activated = F.leaky_relu(self.bn1(x), SLOPE)
        residual: Tensor = self.conv2(F.leaky_relu(self.bn2(self.conv1(activated)), SLOPE))
        skipped: Tensor = self.shortcut(activated if self.activate_shortcut else x)
        return skipped + residual


class WideResNet(nn.Module):
    """WRN-depth-widen: a 3x3 convolution, three blocks of (depth - 4) / 6 units, norm and mean.

    Blocks have 16, 32 and 64 times ``widen`` channels; the second and third halve the map.
    Convolutions are initialised Kaiming normal (fan out), and the classifier on top Xavier normal
    with zero bias.

    Args:
        depth: 6 n + 4.
        widen: 2 gives the 128 features of WRN-28-2.
    """

    def __init__(self, depth: int = 28, widen: int = 2) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(
                f"depth must be 6 n + 4, for n >= 1 units in each of three blocks; got {depth}. "
                "Try 28."
            )
        n_units = (depth - 4) // 6
        channels = (16, 16 * widen, 32 * widen, 64 * widen)
        self.num_features = channels[-1]
        self.stem = nn.Conv2d(3, channels[0], 3, padding=1)
        self.blocks = nn.ModuleList()
        for number, (before, after) in enumerate(pairwise(channels)):
            stride = 1 if number == 0 else 2
            activate = number == 0 and before != after
            units = [Unit(before, after, stride=stride, activate_shortcut=activate)]
            for _ in range(n_units - 1):
                units.append(Unit(after, after, stride=1, activate_shortcut=False))
            self.blocks.append(nn.Sequential(*units))
        self.norm = nn.BatchNorm2d(channels[-1], momentum=MOMENTUM, eps=1e-3)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="leaky_relu")

    def forward(self, images: Tensor) -> Tensor:
        """Map images (M, 3, H, W) to features (M, 64 * widen)."""
        maps = self.stem(images)
        for block in self.blocks:
            maps = block(maps)
        return F.leaky_relu(self.norm(maps), SLOPE).mean(dim=(2, 3))

    def layer_ids(self) -> dict[str, int]:
        """Return the depth of each parameter: 0 the stem, 1 to 3 the blocks, 3 the last norm."""
        ids = {}
        for name, _ in self.named_parameters():
            part, number, *_rest = name.split(".")
            if part == "blocks":
                ids[name] = int(number) + 1
            else:
                ids[name] = 0 if part == "stem" else len(self.blocks)
        return ids

    def init_classifier(self, layer: nn.Linear) -> None:
        """Initialise the linear layer on top as the published recipes do."""
        nn.init.xavier_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
