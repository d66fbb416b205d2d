"""Batches: a function of seed and step, whoever makes them; and how worker processes take signals,
and errors leave them.
"""

import multiprocessing
import pickle
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset

from semigpc.data import Augment, AugmentConfig, BatchStream, EvaluationLoader, FolderConfig
from semigpc.data.folder import load
from semigpc.data.loaders import KNOWS_SENDER, InOrder, epoch_order, normalised
from semigpc.io.errors import DataError
from semigpc.types import Batch
from tests.data.samples import STREAM, plain_view, same_batch, small_splits, write_images

AUGMENT = Augment(AugmentConfig(image_size=8))
SPLITS = small_splits()


def loader(**changes: Any) -> Iterable[Batch]:
    settings = STREAM | {"total_steps": 16, "first_step": 0, "workers": 0, "prefetch": 4} | changes
    reading = {name: settings.pop(name) for name in ("first_step", "workers", "prefetch")}
    return BatchStream(SPLITS, AUGMENT, **settings).batches(**reading)


def test_a_batch_is_what_it_says() -> None:
    batch = next(iter(loader()))
    assert batch.x.shape == (6, 8, 8, 3)
    assert list(batch.views) == ["weak", "strong", "strong2"]
    for view in batch.views.values():
        assert (view.shape, view.dtype) == ((9, 8, 8, 3), torch.uint8)
    assert batch.y.tolist() == SPLITS.labeled.labels[batch.index.numpy()].tolist()
    assert batch.y.dtype == batch.index.dtype == batch.view_index.dtype == torch.int64
    assert not torch.equal(batch.views["strong"], batch.views["strong2"])


def test_rows_are_the_images_that_the_indices_name() -> None:
    plain = Augment(AugmentConfig(image_size=8, crop_ratio=1.0, flip=False))
    batch = BatchStream(SPLITS, plain, **STREAM | {"views": ("weak",)})[5]
    for row, index in enumerate(batch.index.tolist()):
        assert torch.equal(plain.normalise(batch.x[row]), plain_view(plain, SPLITS.labeled[index]))
    for row, index in enumerate(batch.view_index.tolist()):
        view = plain.normalise(batch.views["weak"][row])
        assert torch.equal(view, plain_view(plain, SPLITS.unlabeled[index]))


@pytest.mark.slow
def test_one_worker_changes_nothing_and_can_be_asked_again() -> None:
    expected, before = list(loader()), torch.get_rng_state()
    batches = loader(workers=1)
    assert same_batch(next(iter(batches)), expected[0])  # left early
    actual = list(batches)
    assert len(actual) == 16
    assert all(map(same_batch, actual, expected))
    assert torch.equal(torch.get_rng_state(), before)  # the model's random numbers are its own


@pytest.mark.slow
def test_two_workers_change_nothing_when_a_run_resumes() -> None:
    resumed = list(loader(workers=2, first_step=5, total_steps=12))
    assert len(resumed) == 7
    assert all(map(same_batch, resumed, list(loader())[5:12]))


def test_a_run_resumes_at_any_step_and_may_be_longer() -> None:
    before = torch.get_rng_state()
    expected = list(loader())
    assert all(map(same_batch, loader(total_steps=20), expected))
    for first_step in (1, 6, 7, 8, 15, 16):
        resumed = list(loader(first_step=first_step))
        assert len(resumed) == 16 - first_step
        assert all(map(same_batch, resumed, expected[first_step:]))
    stream = BatchStream(SPLITS, AUGMENT, **STREAM)
    assert all(same_batch(stream[step], expected[step]) for step in (9, 2, 15, 0))
    assert torch.equal(torch.get_rng_state(), before)  # the model's random numbers are its own


def test_an_epoch_is_whole_permutations_and_the_beginning_of_one() -> None:
    batches = list(loader(total_steps=14))
    for epoch in (batches[:7], batches[7:]):
        labeled = torch.cat([batch.index for batch in epoch])  # 42 draws of 20
        assert [sorted(labeled[i : i + 20].tolist()) for i in (0, 20)] == [list(range(20))] * 2
        assert len(set(labeled[40:].tolist())) == 2
        unlabeled = torch.cat([batch.view_index for batch in epoch])  # 63 draws of 30
        assert [sorted(unlabeled[i : i + 30].tolist()) for i in (0, 30)] == [list(range(30))] * 2
    assert not torch.equal(batches[0].index, batches[7].index)


def test_seeds_change_positions_and_views() -> None:
    one, other = next(iter(loader(seed=3))), next(iter(loader(seed=4)))
    assert not torch.equal(one.index, other.index)
    assert not torch.equal(one.view_index, other.view_index)
    assert not torch.equal(one.x, other.x)


@pytest.mark.parametrize(("size", "draws"), [(20, 42), (20, 40), (20, 7), (1, 3)])
def test_orders_have_the_length_asked_for(size: int, draws: int) -> None:
    order = epoch_order(size, draws, seed=0, epoch=0, stream=0)
    assert order.shape == (draws,)
    assert np.bincount(order, minlength=size).max() == -(-draws // size)


def test_streams_epochs_and_seeds_have_orders_of_their_own() -> None:
    triples = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    orders = {tuple(epoch_order(50, 50, seed=s, epoch=e, stream=k)) for s, e, k in triples}
    assert len(orders) == 4


def test_supervised_batches_have_no_views() -> None:
    for splits in (SPLITS, small_splits(u=0)):
        stream = BatchStream(splits, AUGMENT, **STREAM | {"views": ()})
        assert stream[0].views == {}
        assert stream[0].view_index.shape == (0,)
        assert len(stream[0].x) == 6


def test_a_batch_is_normalised_in_all_its_parts() -> None:
    batch = BatchStream(SPLITS, AUGMENT, balanced=True, **STREAM)[4]
    ready = normalised(batch, AUGMENT)
    assert batch.balanced is not None
    assert ready.balanced is not None
    pairs = [(batch.views[name], view) for name, view in ready.views.items()]
    pairs += [(batch.x, ready.x), (batch.balanced.x, ready.balanced.x)]
    assert len(pairs) == 5
    mean, std = torch.tensor(AUGMENT.config.mean), torch.tensor(AUGMENT.config.std)
    for views, images in pairs:
        expected = (views / 255 - mean) / std
        torch.testing.assert_close(images, expected.permute(0, 3, 1, 2), rtol=0, atol=1e-5)
    assert torch.equal(ready.index, batch.index)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_stops_the_run_with_its_path(tmp_path: Path, workers: int) -> None:
    write_images(tmp_path, {"ant": 4, "bee": 4})
    (tmp_path / "bee" / "2.png").write_bytes(b"no image")
    splits = load(FolderConfig(root=str(tmp_path)), seed=0)
    settings = STREAM | {"views": (), "labeled_batch": 8}
    stream = BatchStream(splits, AUGMENT, **settings, total_steps=2)
    with pytest.raises(DataError, match=r"^The image .*bee/2.png cannot be.*it from the data.$"):
        list(stream.batches(first_step=0, workers=workers))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labeled_batch": 0}, "labeled_batch must be at least 1; got 0"),
        ({"unlabeled_batch": 0}, "unlabeled_batch must be at least 1; got 0"),
        ({"epoch_steps": 0}, "epoch_steps must be at least 1; got 0"),
        ({"seed": -1}, "seed must be at least 0; got -1"),
        ({"first_step": 17}, r"first_step must lie in \[0, 16\].*got 17"),
        ({"workers": -1}, "workers must be 0 or more"),
        ({"prefetch": 0}, "prefetch 1 or more; got 0 and 0"),
    ],
)
def test_impossible_loaders_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        loader(**changes)


def test_views_need_unlabelled_images_and_known_names() -> None:
    with pytest.raises(DataError, match=r"views weak, strong, strong2.*images, and there are none"):
        BatchStream(small_splits(u=0), AUGMENT, **STREAM)
    with pytest.raises(ValueError, match="unknown view 'medium'; known: weak, strong, strong2"):
        loader(views=("medium",))
    cpu = torch.device("cpu")
    with pytest.raises(DataError, match="batch_size must be at least 1; got 0"):
        EvaluationLoader([SPLITS.labeled], AUGMENT, batch_size=0, workers=0, device=cpu)


def test_true_labels_of_unlabelled_images_are_nowhere_in_a_batch() -> None:
    known = replace(SPLITS, unlabeled_truth=np.arange(30) % 4)
    ours, theirs = (BatchStream(splits, AUGMENT, **STREAM)[0] for splits in (known, SPLITS))
    assert same_batch(ours, theirs)


# Worker processes ---------------------------------------------------------------------------------


class Squares(Dataset[int]):
    def __getitem__(self, item: int) -> int:
        if item == 13:
            raise DataError("Thirteen has no square here.")
        return item * item


@pytest.mark.skipif(not KNOWS_SENDER, reason="the sender of a signal cannot be told here")
@pytest.mark.slow
def test_workers_stop_for_nobody_but_the_main_process() -> None:
    before = set(multiprocessing.active_children())
    squares = InOrder(Squares(), range(12), workers=1, prefetch=1)
    passing = iter(squares)
    assert next(passing) == 0
    (worker,) = set(multiprocessing.active_children()) - before
    for signal_name in ("INT", "TERM"):
        subprocess.run(["kill", f"-{signal_name}", str(worker.pid)], check=True)
    assert list(passing) == [i * i for i in range(1, 12)]
    assert worker.is_alive()
    worker.terminate()
    worker.join(10)
    assert worker.exitcode == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_leaves_the_stream_as_the_paragraph_it_is(workers: int) -> None:
    squares = InOrder(Squares(), range(10, 16), workers, prefetch=2)
    seen: list[int] = []
    with pytest.raises(DataError, match=r"^Thirteen has no square here.$"):
        seen.extend(squares)
    assert len(squares) == 6


def test_a_data_error_also_survives_torchs_own_way_between_processes() -> None:
    try:
        raise DataError("The image x.png cannot be read.")
    except DataError:
        wrapped = pickle.loads(pickle.dumps(ExceptionWrapper(where="in a worker")))
    with pytest.raises(DataError, match=r"in a worker(.|\n)*The image x.png cannot be read."):
        wrapped.reraise()


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(DataError, match=r"workers must be 0.*and prefetch 1 or more; got -1 and 0"):
        InOrder(Squares(), range(3), workers=-1, prefetch=0)
