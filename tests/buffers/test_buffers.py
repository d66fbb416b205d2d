"""One battery over every buffer, then what each is for."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from semigpc.refiners.buffers import BalancedBuffer, Buffer, FIFOBuffer, Written

BUFFERS: dict[str, type[Buffer]] = {"fifo": FIFOBuffer, "balanced": BalancedBuffer}
every_buffer = pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)


class Slow:
    """What the buffers promise, kept as plain lists: (label, number of arrival), newest last."""

    def __init__(self, kind: str, capacity: int, n_classes: int) -> None:
        self.kind, self.capacity, self.n_classes = kind, capacity, n_classes
        self.held: list[tuple[int, int]] = []
        self.arrived = 0

    def write(self, labels: list[int]) -> None:
        for label in labels:
            self.held.append((label, self.arrived))
            self.arrived += 1
        if self.kind == "fifo":
            self.held = self.held[-self.capacity :]
            return
        limit = self.capacity // self.n_classes
        for label in range(self.n_classes):
            own = [entry for entry in self.held if entry[0] == label]
            for entry in own[: max(0, len(own) - limit)]:
                self.held.remove(entry)


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize(("capacity", "n_classes"), [(20, 3), (21, 3), (7, 7), (40, 5)])
def test_holds_what_it_promises_through_many_writes(
    kind: str, capacity: int, n_classes: int, generator: torch.Generator
) -> None:
    buffer, slow = BUFFERS[kind](capacity, n_classes), Slow(kind, capacity, n_classes)
    # what somebody who follows the answers holds: numbers of arrival
    contents = torch.full((capacity,), -1)
    for step in range(120):
        most = 50 if step % 10 == 9 else 9  # now and then > capacity
        size = int(torch.randint(1, most, (), generator=generator))
        classes = n_classes - 1 if step < 60 else n_classes  # the last class is late
        labels = torch.randint(classes, (size,), generator=generator)
        arrivals = torch.arange(size) + slow.arrived
        slow.write(labels.tolist())
        written = buffer.write(labels, arrivals)
        assert len(set(written.slots.tolist())) == len(written.slots)
        contents[written.slots] = arrivals[written.rows]

        held = sorted(arrival for _, arrival in slow.held)
        assert sorted(contents[contents >= 0].tolist()) == held
        assert torch.equal(buffer.entries.indices, contents)
        assert torch.equal(buffer.entries.times, contents)
        assert len(buffer) == len(slow.held)
        labels_held = [label for label, _ in slow.held]
        counts = [labels_held.count(label) for label in range(n_classes)]
        assert buffer.entries.class_counts().tolist() == counts


@every_buffer
def test_goes_on_after_a_save_as_if_nothing_had_happened(
    make: Callable[[int, int], Buffer], generator: torch.Generator
) -> None:
    buffer, copy = make(20, 4), make(20, 4)
    for _ in range(15):
        buffer.write(torch.randint(4, (6,), generator=generator))
    copy.load_state_dict(buffer.state_dict())
    for _ in range(15):
        labels = torch.randint(4, (6,), generator=generator)
        for one, other in zip(buffer.write(labels), copy.write(labels), strict=True):
            assert torch.equal(one, other)


@every_buffer
@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (torch.tensor([0, 4]), ValueError, r"labels must lie in \[0, 4\); got 0\.\.4"),
        (torch.tensor([-1, 2]), ValueError, r"got -1\.\.2\. Leave unlabelled rows out"),
        (torch.tensor([], dtype=torch.int64), ValueError, r"at least one label; got shape \(0,\)"),
        (torch.eye(4).long(), ValueError, r"labels must be a vector.*got shape \(4, 4\)"),
        (torch.tensor([0.0, 1.0]), TypeError, r"labels must be integers; got torch\.float32"),
        ([0, 1], TypeError, r"labels must be a torch\.Tensor; got list"),
    ],
    ids=["too large", "negative", "empty", "one-hot", "float", "list"],
)
def test_refuses_bad_labels_and_stays_as_it_was(
    make: Callable[[int, int], Buffer], labels: Tensor, error: type[Exception], message: str
) -> None:
    buffer = make(20, 4)
    buffer.write(torch.tensor([0, 1, 2, 3, 3, 1]))
    before = {name: value.clone() for name, value in buffer.state_dict().items()}
    with pytest.raises(error, match=message):
        buffer.write(labels)
    assert all(torch.equal(value, before[name]) for name, value in buffer.state_dict().items())
    written = buffer.write(torch.tensor([2]))
    assert len(written.slots) == 1


@every_buffer
def test_a_plan_changes_nothing_and_a_commit_is_a_write(
    make: Callable[[int, int], Buffer], generator: torch.Generator
) -> None:
    planned, written = make(20, 4), make(20, 4)
    for _ in range(20):
        labels = torch.randint(4, (6,), generator=generator)
        # of a batch that something else could not accept
        planned.plan(torch.randint(4, (9,), generator=generator))
        plan = planned.plan(labels)
        planned.commit(plan, labels, None)
        for one, other in zip(plan, written.write(labels), strict=True):
            assert torch.equal(one, other)
        for name, value in planned.state_dict().items():
            assert torch.equal(value, written.state_dict()[name]), name


@every_buffer
def test_stays_on_the_cpu_when_the_module_moves(make: Callable[[int, int], Buffer]) -> None:
    buffer = make(20, 4).to("meta")
    written = buffer.write(torch.tensor([0, 1, 2, 3], dtype=torch.int32), torch.arange(4))
    assert {part.device.type for part in (*written, *buffer.state_dict().values())} == {"cpu"}
    assert len(buffer) == 4


@every_buffer
def test_refuses_indices_that_do_not_fit(make: Callable[[int, int], Buffer]) -> None:
    with pytest.raises(ValueError, match=r"indices .* shape \(2,\), .*; got torch\.int64 \(3,\)"):
        make(20, 4).write(torch.tensor([0, 1]), torch.tensor([5, 6, 7]))


@every_buffer
def test_sizes_must_be_positive(make: Callable[[int, int], Buffer]) -> None:
    for capacity, n_classes in ((0, 2), (10, 0)):
        with pytest.raises(ValueError, match="must be at least 1; got 0"):
            make(capacity, n_classes)


def test_fifo_overwrites_the_oldest_and_wraps_around() -> None:
    buffer = FIFOBuffer(5, 2)
    assert buffer.write(torch.tensor([0, 1, 0])).slots.tolist() == [0, 1, 2]
    assert buffer.write(torch.tensor([1, 1, 0])).slots.tolist() == [3, 4, 0]
    written = buffer.write(torch.tensor([0] * 7))
    assert written.rows.tolist() == [2, 3, 4, 5, 6]
    assert sorted(written.slots.tolist()) == [0, 1, 2, 3, 4]


def test_balanced_takes_the_place_of_the_oldest_of_the_same_class() -> None:
    buffer = BalancedBuffer(6, 3)  # two a class
    first = buffer.write(torch.tensor([0, 0, 1]))
    written = buffer.write(torch.tensor([0]))
    assert written.slots.tolist() == first.slots[:1].tolist()
    assert buffer.entries.class_counts().tolist() == [2, 1, 0]


def test_balanced_uses_no_more_slots_than_it_holds_entries() -> None:
    buffer = BalancedBuffer(100, 10)
    for label in (3, 3, 7, 3, 7, 7, 3):
        buffer.write(torch.tensor([label]))
    assert buffer.entries.occupied.nonzero().squeeze(1).tolist() == list(range(7))


def test_capacities_of_the_papers_rings() -> None:
    for n_classes, expected in ((10, 1630), (100, 163), (200, 81), (810, 20)):
        assert BalancedBuffer(16300, n_classes).class_capacity == expected


def test_balanced_needs_a_slot_for_every_class() -> None:
    with pytest.raises(ValueError, match="at least n_classes, one slot per class; got 3 < 4"):
        BalancedBuffer(3, 4)


def test_written_unpacks_in_the_order_that_it_documents() -> None:
    slots, rows = FIFOBuffer(4, 2).write(torch.tensor([1, 0]))
    assert Written(slots, rows).rows.tolist() == [0, 1]
