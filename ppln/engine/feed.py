"""Which samples a process takes, and batches made before they are needed.

Nothing here has a state that would have to be saved: a position in the run decides its sample, and sample and
position decide everything that is random about it. A run goes on exactly from any step.

Dimensions: B samples of one batch in one process.
"""

import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ppln.tasks import Batch, Source, Task


class Order:
    """The samples of every step: a new permutation each epoch, cut into batches of `batch`.

    What does not fill a batch at the end of an epoch is left out. Each of `accumulate` parts of a batch is
    cut into `world` equal pieces, one for each process: together they take the same samples, however many
    there are.
    """

    def __init__(
        self, samples: int, batch: int, *, accumulate: int = 1, rank: int = 0, world: int = 1, seed: int = 0
    ) -> None:
        if samples < batch:
            raise ValueError(f"batch is {batch}, but there are only {samples} samples to train on; lower it")
        if batch % (accumulate * world):
            raise ValueError(
                f"batch is {batch}, which {world} processes with {accumulate} accumulated parts each cannot "
                f"share equally; give a multiple of {accumulate * world}"
            )
        self.samples, self.batch, self.seed = samples, batch, seed
        self.parts, self.rank, self.world = accumulate, rank, world
        self.size = batch // (accumulate * world)  # of a part in one process
        self.steps_per_epoch = samples // batch
        self._epoch, self._permutation = -1, np.empty(0, np.int64)

    def take(self, step: int, part: int) -> tuple[list[int], list[int]]:
        """Positions in the run and numbers of samples, for this process."""
        size = self.size
        epoch, within = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._permutation = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
            self._epoch = epoch
        start = within * self.batch + (part * self.world + self.rank) * size
        first = step * self.batch + (part * self.world + self.rank) * size
        return list(range(first, first + size)), self._permutation[start : start + size].tolist()


Make = Callable[[list[int]], Any]  # samples by their numbers

AT_ONCE = 256  # samples that a GPU makes together: of few, it would be idle between small kernels


def per_making(size: int) -> int:
    """How many batches of a size a GPU makes together."""
    return max(1, AT_ONCE // size)


def batch_maker(source: Source, size: int, device: torch.device, *, keep: bool = False) -> Make:
    """How to make batches of `size` samples on a device; keep: each is made once, and kept there."""
    # Some sources have a faster way for many batches of one size on a GPU.
    fast = getattr(source, "captured", None) if device.type == "cuda" else None
    make = fast(size * per_making(size), device) if fast else partial(source.batch, device=device)
    return Kept(make, len(source), device) if keep else make


class Feed(Dataset[Batch]):
    """The batches of a run, in order: iterate over it. Item i is part i % accumulate of step i // accumulate.

    On a GPU a thread makes them ahead of time, on a stream of its own; on a CPU `workers` processes do, or,
    if there are none, they are made when they are asked for. So they are, too, once a worker is lost: a step
    that was begun can be ended, and saved.
    """

    def __init__(
        self, task: Task, make: Make, order: Order, steps: range, *, device: torch.device, workers: int = 0
    ) -> None:
        self.task, self.make, self.order, self.workers = task, make, order, workers
        self.items = range(steps.start * order.parts, steps.stop * order.parts)
        self.device = device
        self.waited_s = 0.0  # until batches were there, so far
        self.lost: str | None = None  # why workers make no more of them

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, item: int) -> Batch:
        (batch,) = self.several([item])
        return batch

    def several(self, items: Sequence[int]) -> Iterator[Batch]:
        """The batches of some items, their samples made all at once."""
        taken = [self.order.take(*divmod(item, self.order.parts)) for item in items]
        samples = self.make([index for _, indices in taken for index in indices])
        size = self.order.size
        for k, (positions, _) in enumerate(taken):
            part = type(samples)(*(x[k * size : (k + 1) * size] for x in samples))
            yield self.task.batch(part, _sent(positions, self.device), self.order.seed)

    def __iter__(self) -> Generator[Batch, None, None]:
        batches = iter(self._made_ahead() if self.device.type == "cuda" else self._loaded())
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            self.waited_s += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    def _loaded(self) -> Iterator[Batch]:
        made = 0
        if self.workers:
            try:
                loader = self._loader()  # kept to the end: to end workers may take seconds
                for batch in loader:
                    made += 1
                    yield batch
            except Exception as error:  # if it is not the workers', it is raised again below
                self.lost = str(error).strip().rpartition("\n")[2] or repr(error)
        yield from (self[item] for item in self.items[made:])

    def _loader(self) -> Iterator[Batch]:
        options: dict[str, Any] = {"num_workers": self.workers, "prefetch_factor": 2, "collate_fn": _as_it_is}
        # A generator of its own: the loader draws a number, which must not come from the run's.
        generator = torch.Generator()
        loader = DataLoader(self, batch_size=None, sampler=self.items, generator=generator, **options)
        before = signal.getsignal(signal.SIGCHLD) or signal.SIG_DFL
        if getattr(before, "__module__", "").startswith("torch."):  # of another loader in this process
            before = signal.SIG_DFL
        batches = iter(loader)
        if threading.current_thread() is threading.main_thread():
            # Else a worker's death would raise an error in the middle of anything, such as an update of the
            # weights. The loader looks for it, too, while it waits.
            signal.signal(signal.SIGCHLD, before)
        return batches

    def _made_ahead(self) -> Iterator[Batch]:
        stream = torch.cuda.Stream(self.device)
        together = per_making(self.order.size)
        # Room for what is made at once and more: else the thread would wait while those are used up.
        made: queue.Queue[Any] = queue.Queue(maxsize=2 * together)
        stop = threading.Event()

        def put(what: Any) -> None:
            while not stop.is_set():
                try:
                    return made.put(what, timeout=0.1)
                except queue.Full:
                    continue

        def make() -> None:
            try:
                torch.cuda.set_device(self.device)
                with torch.cuda.stream(stream):
                    for first in range(0, len(self.items), together):
                        for batch in self.several(self.items[first : first + together]):
                            put((batch, stream.record_event()))
                        if stop.is_set():
                            return
                put(None)
            except BaseException as error:  # it is raised where the batch is asked for
                put(error)

        thread = threading.Thread(target=make, name="feed", daemon=True)
        thread.start()
        try:
            while (what := made.get()) is not None:
                if isinstance(what, BaseException):
                    raise what
                batch, ready = what
                current = torch.cuda.current_stream(self.device)
                current.wait_event(ready)
                for tensor in (*batch[:3], *batch.extra.values()):
                    tensor.record_stream(current)
                yield batch
        finally:
            stop.set()
            thread.join()


def _sent(numbers: list[int], device: torch.device) -> Tensor:
    """On the device, for which nobody waits."""
    values = torch.tensor(numbers)
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def _as_it_is(batch: Batch) -> Batch:
    return batch


class Held:
    """The samples of a split, for many evaluations on one device: a source whose batches are made once."""

    def __init__(self, task: Task, split: str) -> None:
        self.task, self.split = task, split
        self._held: dict[tuple[int, ...], Any] = {}

    @cached_property
    def source(self) -> Source:
        return self.task.source(self.split)

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, indices: Iterable[int], device: torch.device | str = "cpu") -> Any:
        key = tuple(indices)
        if key not in self._held:
            self._held[key] = self.source.batch(key, device)
        return self._held[key]

    def fill(self, size: int, device: torch.device | str) -> None:
        """Make what an evaluation with batches of `size` asks for."""
        for first in range(0, len(self), size):
            self.batch(range(first, min(first + size, len(self))), device)


class Kept:
    """Keeps every sample that was made, on the device."""

    def __init__(self, make: Make, length: int, device: torch.device) -> None:
        self._make: Make | None = make
        self._device = device
        self._have = np.zeros(length, dtype=bool)
        self._kept: Any = None  # like what is made, [length, ...]

    def __call__(self, indices: list[int]) -> Any:
        missing = [index for index in dict.fromkeys(indices) if not self._have[index]]
        if missing:
            self._add(missing)
        where = _sent(indices, self._device)
        return type(self._kept)(*(kept[where] for kept in self._kept))

    def _add(self, missing: list[int]) -> None:
        assert self._make is not None
        made = self._make(missing)
        if self._kept is None:
            self._kept = type(made)(*(x.new_empty(len(self._have), *x.shape[1:]) for x in made))
        where = _sent(missing, self._device)
        for kept, new in zip(self._kept, made, strict=True):
            kept[where] = new
        self._have[missing] = True
        if self._have.all():
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self._make = None  # what a GPU makes samples with takes as much memory as they do
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
