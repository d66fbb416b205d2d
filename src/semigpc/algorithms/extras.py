"""The add-on's own loss beside that of an algorithm."""

from dataclasses import replace

from semigpc.addons import AddOn, Step
from semigpc.types import ModelOutput, StepOutput


def add_extra(
    output: StepOutput, addon: AddOn, step: Step, x: ModelOutput, weak: ModelOutput, strong: ModelOutput
) -> StepOutput:
    """The same output with the add-on's loss and its parts in it; the very same one where there is none."""
    extra = addon.extra_loss(step, x, weak, strong) if addon.learns else None
    if extra is None:
        return output
    return replace(output, loss=output.loss + extra.loss, metrics={**output.metrics, **extra.metrics})
