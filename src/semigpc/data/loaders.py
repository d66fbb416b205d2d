"""Batches for training, a pure function of seed and step; and images in order, for evaluation."""

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from multiprocessing import resource_tracker
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.random import Generator, Philox
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from semigpc.data.augment import Augment, ViewSource, check_views
from semigpc.data.dataset import ImageSet, Integers, Splits
from semigpc.io.errors import DataError
from semigpc.io.images import Images, RangeNote
from semigpc.io.threads import cores, hold
from semigpc.types import Batch, Labeled

# Streams of positions.
LABELED = 0
UNLABELED = 1
BALANCED = 2
# A fork copies locks that torch or OpenMP threads may be holding, and can hang. Behind a fork
# server a worker does not notice that the main process was killed, and would live on. A fresh
# process costs the seconds that importing torch takes, once a run.
START_METHOD = "spawn"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
KNOWS_SENDER = hasattr(signal, "sigwaitinfo")  # on Linux
MOST_WORKERS = 8  # at 340 images of 224 pixels a second each, where every image is decoded
CHEAP_WORKERS = 2  # 6700 images of 32 pixels a second
TINY_SIDE = 32  # pixels; views of this size take 0.2 ms per image
WORKER_IMAGES = 1024  # fewer are evaluated before workers would have started

Item = TypeVar("Item")
Power = Callable[[float], float]  # p of a labelled draw, by the share of training done


def epoch_order(size: int, draws: int, *, seed: int, epoch: int, stream: int) -> Integers:
    """Return the positions of one epoch, (draws,), by (seed, epoch, stream).

    They are whole random permutations of ``size``, and the beginning of one more.
    """
    rounds = -(-draws // size)
    generator = np.random.default_rng([seed, epoch, stream])
    permutations = [generator.permutation(size) for _ in range(rounds)]
    return np.concatenate(permutations)[:draws].astype(np.int64)


def drawn_order(
    labels: Integers, draws: int, power: float, *, seed: int, epoch: int, stream: int
) -> Integers:
    """Return the positions of one epoch, (draws,), of class c with probability n_c^p / sum_j n_j^p.

    Within a class whole random permutations follow each other, so that no image is drawn twice
    before all were drawn once. p = 1 gives the shares of the data, p = 0 equal shares.

    Args:
        labels: (n,) of the labelled images.
        power: p.
    """
    generator = np.random.default_rng([seed, epoch, stream])
    members = [np.flatnonzero(labels == c) for c in range(int(labels.max()) + 1)]
    shares = np.array([len(rows) ** power if len(rows) else 0.0 for rows in members])
    classes = generator.choice(len(members), size=draws, p=shares / shares.sum())
    order = np.empty(draws, dtype=np.int64)
    for c, rows in enumerate(members):
        places = np.flatnonzero(classes == c)
        if len(places):
            rounds = [generator.permutation(rows) for _ in range(-(-len(places) // len(rows)))]
            order[places] = np.concatenate(rounds)[: len(places)]
    return order


@dataclass(eq=False)
class BatchStream(Dataset[Batch]):
    """Batch k of a run, for any k, in any order and in any process.

    Positions come from :func:`epoch_order`; views from a counter-based generator with the key
    (seed, k). No state passes from one batch to the next, so a run resumes from its step number
    alone: there is no state of a sampler or of a worker's generator to save, and the number of
    workers changes nothing.

    Args:
        splits: the data.
        source: makes the views: an :class:`Augment`, or cached features.
        views: names of the unlabelled views, none for supervised training.
        labeled_batch: B.
        unlabeled_batch: U, not used if there are no views.
        seed: of positions and views, 0 or more.
        epoch_steps: steps per epoch, which is not a pass over the data.
        total_steps: of the run.
        power: exponent of the class counts in labelled draws, see :func:`drawn_order`, by the share
            of training done; called once per epoch. 1 is a plain shuffle.
        balanced: whether batches have a second labelled part, with every class equally likely.
    """

    splits: InitVar[Splits]  # workers receive only the two training parts
    source: ViewSource
    _: KW_ONLY
    views: tuple[str, ...]
    labeled_batch: int
    unlabeled_batch: int
    seed: int
    epoch_steps: int
    total_steps: int = 1
    power: Power | None = None
    balanced: bool = False

    def __post_init__(self, splits: Splits) -> None:
        self.labeled = splits.labeled
        self.unlabeled = splits.unlabeled
        self._orders: dict[int, tuple[int, Integers]] = {}
        for image_set in (self.labeled, self.unlabeled):
            self.source.keep(image_set, plain=False)
        check_views(self.views)
        for name, value, least in (
            ("labeled_batch", self.labeled_batch, 1),
            ("unlabeled_batch", self.unlabeled_batch, 1 if self.views else 0),
            ("epoch_steps", self.epoch_steps, 1),
            ("seed", self.seed, 0),
        ):
            if value < least:
                raise DataError(f"{name} must be at least {least}; got {value}.")
        check_unlabeled(self.views, self.unlabeled)

    def batches(self, *, first_step: int, workers: int, prefetch: int = 4) -> "InOrder[Batch]":
        """Return batches ``first_step`` to ``total_steps - 1``, the same for any number of workers.

        Their views are not normalised yet, see :func:`normalised`.

        Args:
            first_step: 0, or where a run resumes.
            workers: processes that make batches ahead of time, each with its own copy of images
                held in memory; 0 makes a batch when it is needed. See :func:`worker_count`.
            prefetch: batches that each worker keeps ready.
        """
        if not 0 <= first_step <= self.total_steps:
            raise DataError(
                f"first_step must lie in [0, {self.total_steps}], the steps of the run; got "
                f"{first_step}."
            )
        return InOrder(self, range(first_step, self.total_steps), workers, prefetch)

    def __getitem__(self, step: int) -> Batch:
        rng = Generator(Philox(key=np.array([self.seed, step], dtype=np.uint64)))
        labeled = self._labeled(LABELED, step, rng)
        view_index = self._positions(step, UNLABELED, self.unlabeled_batch if self.views else 0)
        images = self.source.fetch(self.unlabeled, view_index)
        return Batch(
            *labeled,
            views={name: self.source.cut(name, images, rng) for name in self.views},
            view_index=torch.from_numpy(view_index),
            balanced=self._labeled(BALANCED, step, rng) if self.balanced else None,
        )

    def _labeled(self, stream: int, step: int, rng: Generator) -> Labeled:
        index = self._positions(step, stream, self.labeled_batch)
        x = self.source.cut("weak", self.source.fetch(self.labeled, index), rng)
        return Labeled(x, torch.from_numpy(self.labeled.labels[index]), torch.from_numpy(index))

    def _positions(self, step: int, stream: int, batch: int) -> Integers:
        if not batch:
            return np.empty(0, dtype=np.int64)
        epoch, within = divmod(step, self.epoch_steps)
        if stream not in self._orders or self._orders[stream][0] != epoch:
            self._orders[stream] = epoch, self._epoch(epoch, stream, self.epoch_steps * batch)
        return self._orders[stream][1][within * batch : (within + 1) * batch].copy()

    def _epoch(self, epoch: int, stream: int, draws: int) -> Integers:
        power = 0.0 if stream == BALANCED else 1.0
        if stream == LABELED and self.power is not None:
            power = self.power(epoch * self.epoch_steps / self.total_steps)
        if power != 1:
            return drawn_order(
                self.labeled.labels, draws, power, seed=self.seed, epoch=epoch, stream=stream
            )
        size = len(self.unlabeled if stream == UNLABELED else self.labeled)
        return epoch_order(size, draws, seed=self.seed, epoch=epoch, stream=stream)


def check_unlabeled(views: Sequence[str], unlabeled: ImageSet) -> None:
    """Raise a DataError if views of unlabelled images are needed and there are none."""
    if views and not len(unlabeled):
        raise DataError(
            f"The views {', '.join(views)} are made of unlabelled images, and there are none. "
            "Add unlabelled images, or train with labels alone: algorithm=supervised."
        )


def normalised(batch: Batch, source: ViewSource) -> Batch:
    """Return a batch of :class:`BatchStream` with the network's input, on the batch's device."""
    balanced = batch.balanced
    if balanced is not None:
        balanced = balanced._replace(x=source.normalise(balanced.x))
    views = {name: source.normalise(view) for name, view in batch.views.items()}
    return batch._replace(x=source.normalise(batch.x), views=views, balanced=balanced)


def worker_count(
    wanted: int | None,
    images: Images,
    source: ViewSource,
    *,
    processes: int = 1,
    device: torch.device | None = None,
) -> int:
    """Return ``wanted`` or, if that is None, the number of worker processes that pays off.

    That is the number of cores minus one, and at most 8. Views of 32 pixels or less and views of
    images in memory take so little time that 2 are enough for a GPU, and none is best elsewhere.
    Features need none.

    Args:
        wanted: such as ``train.workers``.
        images: to load.
        source: of their views.
        processes: that share the cores; each has its own workers.
        device: on which a network trains with these views, if it does.
    """
    if wanted is not None:
        return wanted
    if not isinstance(source, Augment):
        return 0
    most = MOST_WORKERS
    if source.config.image_size <= TINY_SIDE or not images.is_encoded:
        most = CHEAP_WORKERS if device is not None and device.type == "cuda" else 0
    return min(most, max(0, cores() // processes - 1))


class EvaluationBatch(NamedTuple):
    """``images`` (M, 3, H, W) or features (M, D); labels and positions (M,) on the CPU."""

    images: Tensor
    labels: Tensor
    positions: Tensor


@dataclass
class _EvaluationStream(Dataset[EvaluationBatch]):
    sets: Sequence[ImageSet]
    source: ViewSource

    def __getitem__(self, item: tuple[int, Integers]) -> EvaluationBatch:
        number, positions = item
        image_set = self.sets[number]
        views = self.source.plain(image_set, positions)
        labels = torch.from_numpy(image_set.labels[positions])
        return EvaluationBatch(views, labels, torch.from_numpy(positions))


class EvaluationLoader:
    """Plain views of images of some sets, in order, on the device that evaluates them.

    Worker processes start with the first pass and stay alive until :meth:`close`, or the end of a
    ``with`` block.

    Args:
        sets: all that will be passed to :meth:`batches`.
        source: makes the views.
        batch_size: images at a time; the last batch may be smaller.
        workers: processes; they are not used for a pass over a few images.
        device: of the batches.
    """

    def __init__(
        self,
        sets: Iterable[ImageSet],
        source: ViewSource,
        *,
        batch_size: int,
        workers: int,
        device: torch.device,
    ) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size must be at least 1; got {batch_size}.")
        self.sets = tuple(sets)
        self.source = source
        self.batch_size = batch_size
        self.device = device
        for image_set in self.sets:
            source.keep(image_set, plain=True)
        self._items: list[tuple[int, Integers]] = []  # of the current pass
        stream = _EvaluationStream(self.sets, source)
        self._here = InOrder(stream, self._items, workers=0, prefetch=1)
        self._workers = InOrder(stream, self._items, workers=workers, prefetch=1)

    def batches(
        self, image_set: ImageSet, positions: Integers | None = None
    ) -> Iterator[EvaluationBatch]:
        """Yield the images of a set in order, or those at positions (m,); one pass at a time."""
        number = next(number for number, known in enumerate(self.sets) if known is image_set)
        wanted = np.arange(len(image_set)) if positions is None else positions
        cuts = range(self.batch_size, len(wanted), self.batch_size)
        self._items[:] = [(number, part) for part in np.split(wanted, cuts)]
        for batch in self._workers if len(wanted) > WORKER_IMAGES else self._here:
            views = batch.images.to(self.device, non_blocking=True)
            yield batch._replace(images=self.source.normalise(views))

    def close(self) -> None:
        """End the worker processes."""
        self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InOrder(Generic[Item]):
    """``stream[i]`` for i in ``items``, in that order for any number of workers.

    Workers stay alive between passes. A worker returns a DataError as a value, and it is raised
    here unchanged; torch would wrap it into two tracebacks.

    Args:
        stream: makes the items; each worker gets a copy.
        items: their numbers, read at the beginning of each pass.
        workers: processes; with 0 an item is made when it is needed.
        prefetch: items that each worker keeps ready.
    """

    def __init__(
        self, stream: Dataset[Item], items: Sequence[Any], workers: int, prefetch: int
    ) -> None:
        if workers < 0 or prefetch < 1:
            raise DataError(
                f"workers must be 0 or more and prefetch 1 or more; got {workers} and {prefetch}."
            )
        with_workers = {
            "prefetch_factor": prefetch,
            "persistent_workers": True,
            "multiprocessing_context": START_METHOD,
        }
        options: dict[str, Any] = with_workers if workers else {}
        self._loader: DataLoader[Item | DataError] = DataLoader(
            _Guarded(stream),
            batch_size=None,
            sampler=items,
            collate_fn=_as_it_is,
            num_workers=workers,
            worker_init_fn=_prepare_worker,
            pin_memory=torch.cuda.is_available(),  # so that copies to a GPU are asynchronous
            # A generator of its own: the loader would otherwise advance torch's global one, and so
            # change the numbers that the model draws next.
            generator=torch.Generator(),
            **options,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Item]:
        for item in _start(self._loader):
            if isinstance(item, DataError):
                try:
                    raise item
                finally:
                    del item  # else the error and this frame keep each other and the workers alive
            yield item

    def close(self) -> None:
        """End the worker processes, which otherwise end with the last reference to the loader."""
        if self._loader.num_workers and (iterator := self._loader._iterator) is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]  # torch has no public way, and libraries use this one
            # The threads that sent numbers to the workers give back their locks as they end. Ended
            # half-way by the end of the program, they leave a warning of a leaked semaphore.
            for queue in iterator._index_queues:  # type: ignore[attr-defined]
                if (sender := queue._thread) is not None:
                    sender.join(timeout=1)
            self._loader._iterator = None


@dataclass
class _Guarded(Dataset[Item | DataError]):
    stream: Dataset[Item]

    def __getitem__(self, item: Any) -> Item | DataError:
        try:
            return self.stream[item]
        except DataError as error:
            return error


def _as_it_is(item: Item) -> Item:
    return item


def _start(loader: DataLoader[Item]) -> Iterator[Item]:
    """Begin a pass; workers that are started for it block the stop signals from the start.

    Ctrl-C reaches every process of a terminal, and a batch system's SIGTERM every process of a job.
    The main process decides when to stop; the workers end when it does.
    """
    if not loader.num_workers or not KNOWS_SENDER:
        return iter(loader)
    resource_tracker.ensure_running()  # first, since it unblocks these signals when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare_worker(_worker: int) -> None:
    """Use one thread, print no notes, and end only on a SIGTERM from the main process."""
    hold(1)
    warnings.simplefilter("ignore", RangeNote)
    if KNOWS_SENDER:
        threading.Thread(target=_wait_for_the_end, daemon=True).start()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _wait_for_the_end() -> None:
    """End on a SIGTERM from the main process, and ignore those of other processes."""
    while signal.sigwaitinfo((signal.SIGTERM,)).si_pid != os.getppid():
        pass
    os._exit(0)
