"""The network as it is judged: with the logits that an algorithm or an add-on answers by, where these are not its own."""

from collections.abc import Callable

from torch import Tensor, nn

from semigpc.addons import AddOn
from semigpc.algorithms import Algorithm
from semigpc.types import ModelOutput

Answer = Callable[[ModelOutput], Tensor]


class Answering(nn.Module):
    """A network whose logits are replaced.

    Args:
        network: images (M, 3, H, W) to a :class:`ModelOutput`.
        own: the algorithm's answer, from such an output to logits (M, C), if it has one.
        addon: whose answer comes last, if it has one.
    """

    def __init__(self, network: nn.Module, own: Answer | None, addon: AddOn | None) -> None:
        super().__init__()
        self.network, self.own, self.addon = network, own, addon
        self.training = network.training

    def replaced(self, output: ModelOutput) -> ModelOutput:
        """The same output with the logits that are answered by."""
        if self.own is not None:
            output = output._replace(logits=self.own(output))
        if self.addon is not None:
            output = output._replace(logits=self.addon.answer(output))
        return output

    def forward(self, images: Tensor) -> ModelOutput:
        """What the network says, with other logits."""
        return self.replaced(self.network(images))


def answering(network: nn.Module, algorithm: Algorithm, addon: AddOn) -> nn.Module:
    """The network itself, unless the algorithm has a method ``answer`` or the add-on ``answers``."""
    own: Answer | None = getattr(algorithm, "answer", None)
    if own is None and not addon.answers:
        return network
    return Answering(network, own, addon if addon.answers else None)
