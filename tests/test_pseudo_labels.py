"""Sharpening and distribution alignment (algorithms section 1)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from semigpc.pseudo_labels import (
    EMAAlignment,
    QueueAlignment,
    align,
    count_classes,
    last_of_each,
    one_hot,
    sharpen,
)

TARGET = torch.tensor([0.5, 0.25, 0.25])
TRACKERS: dict[str, Callable[[Tensor], EMAAlignment | QueueAlignment]] = {
    "ema": EMAAlignment,
    "queue": lambda target: QueueAlignment(target, 4),
}
every_tracker = pytest.mark.parametrize("make", TRACKERS.values(), ids=TRACKERS)


def draw(generator: torch.Generator, rows: int = 6, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.softmax(2 * torch.randn(rows, 3, generator=generator, dtype=dtype), dim=1)


def test_sharpening_a_softmax_divides_its_logits_by_the_temperature(
    generator: torch.Generator,
) -> None:
    logits = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    for temperature in (0.25, 0.5, 1.0, 2.0):
        expected = torch.softmax(logits / temperature, dim=1)
        torch.testing.assert_close(sharpen(torch.softmax(logits, dim=1), temperature), expected)
    assert sharpen(torch.tensor([[0.8, 0.2]]), 0.5)[0, 0].item() == pytest.approx(0.64 / 0.68)


def test_alignment_follows_its_equation(generator: torch.Generator) -> None:
    probs = draw(generator)
    average = draw(generator, 1)[0]
    aligned = align(probs, TARGET.double(), average)
    for row, answer in zip(probs.tolist(), aligned.tolist(), strict=True):
        moved = [
            p * (float(q) + 1e-6) / (float(r) + 1e-6)
            for p, q, r in zip(row, TARGET, average, strict=True)
        ]
        assert answer == pytest.approx([value / sum(moved) for value in moved], abs=1e-12)


def test_an_average_at_its_target_is_a_fixed_point(generator: torch.Generator) -> None:
    probs = draw(generator)
    torch.testing.assert_close(align(probs, TARGET.double(), TARGET.double()), probs)
    rolled = torch.stack([probs[0].roll(shift) for shift in range(3)])  # their mean is uniform
    for make in TRACKERS.values():
        tracker = make(torch.full((3,), 1 / 3)).double()
        torch.testing.assert_close(tracker(rolled), rolled, rtol=0, atol=1e-7)


@every_tracker
def test_aligned_rows_sum_to_one_and_carry_no_gradient(
    make: Callable[[Tensor], EMAAlignment | QueueAlignment], generator: torch.Generator
) -> None:
    tracker = make(TARGET)
    for _ in range(6):
        aligned = tracker(draw(generator, dtype=torch.float32).requires_grad_())
        torch.testing.assert_close(aligned.sum(dim=1), torch.ones(6))
        assert aligned.dtype == torch.float32, "a target in float64 would silently promote the loss"
        assert not aligned.requires_grad


@every_tracker
def test_a_batch_is_counted_before_it_is_aligned(
    make: Callable[[Tensor], EMAAlignment | QueueAlignment], generator: torch.Generator
) -> None:
    probs = draw(generator)
    expected = align(probs, TARGET.double(), probs.mean(dim=0))
    torch.testing.assert_close(make(TARGET).double()(probs), expected)


def test_the_moving_average_starts_at_the_first_batch(generator: torch.Generator) -> None:
    tracker = EMAAlignment(TARGET, 0.9).double()
    average = None
    for _ in range(5):
        probs = draw(generator)
        average = probs.mean(dim=0) if average is None else 0.9 * average + 0.1 * probs.mean(dim=0)
        torch.testing.assert_close(tracker(probs), align(probs, TARGET.double(), average))
    assert EMAAlignment(TARGET).momentum == 0.999


def test_the_queue_forgets_and_counts_only_what_it_has_seen(generator: torch.Generator) -> None:
    tracker = QueueAlignment(TARGET, 3).double()
    means: list[Tensor] = []
    for _ in range(7):
        # so small that zeros in unused slots would show beside the 1e-6
        probs = 1e-5 * draw(generator)
        means = [*means, probs.mean(dim=0)][-3:]
        expected = align(probs, TARGET.double(), torch.stack(means).mean(dim=0))
        torch.testing.assert_close(tracker(probs), expected, rtol=0, atol=1e-12)


@every_tracker
def test_a_tracker_resumes_from_its_state(
    make: Callable[[Tensor], EMAAlignment | QueueAlignment], generator: torch.Generator
) -> None:
    first = make(TARGET)
    second = make(torch.full((3,), 1 / 3))
    for _ in range(6):
        first(draw(generator, dtype=torch.float32))
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        probs = draw(generator, dtype=torch.float32)
        assert torch.equal(first(probs), second(probs))


def test_a_table_written_by_last_of_each_holds_what_a_loop_leaves(
    generator: torch.Generator,
) -> None:
    for _ in range(20):
        index = torch.randint(6, (9,), generator=generator)
        values = torch.randint(100, (9,), generator=generator)
        mask = torch.rand(9, generator=generator) < 0.5
        expected = torch.full((6,), -1)
        masked = torch.full((6,), -1)
        rows = zip(index.tolist(), values.tolist(), mask.tolist(), strict=True)
        for position, value, sure in rows:
            expected[position] = value
            masked[position] = value if sure else masked[position]
        table = torch.full((6,), -1)
        table[index.flip(0)] = values[last_of_each(index)].flip(0)  # in any order of writing
        assert torch.equal(table, expected)
        last = last_of_each(index, mask)
        table = torch.full((6,), -1)
        table[index] = torch.where(last >= 0, values[last], -1)
        assert torch.equal(table, masked)


def test_classes_are_counted_and_one_hot_encoded_as_torch_does(generator: torch.Generator) -> None:
    labels = torch.randint(4, (30,), generator=generator)
    mask = labels.roll(1) > 1
    assert torch.equal(one_hot(labels, 6).long(), torch.nn.functional.one_hot(labels, 6))
    assert torch.equal(count_classes(labels, 6), torch.bincount(labels, minlength=6))
    assert torch.equal(count_classes(labels, 6, mask), torch.bincount(labels[mask], minlength=6))
