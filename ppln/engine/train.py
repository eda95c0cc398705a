"""Training: one loop for every task and network, from one core to many machines.

A step is an update of the weights. Its samples, and all that is random about them, follow from the seed and
the number of the step alone (feed.py); everything else that a step depends on is in a checkpoint. So a run
that was killed goes on from its last checkpoint as if nothing had happened.
"""

import math
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppln.engine import checkpoint, provenance, state, stored
from ppln.engine.average import Average
from ppln.engine.config import Train, check_resumable
from ppln.engine.evaluate import evaluate, evaluate_each
from ppln.engine.fabric import distribute, first, holding, launch, unsent
from ppln.engine.feed import Feed, Held, Make, Order, batch_maker
from ppln.engine.log import Log
from ppln.engine.log_files import need_tensorboard
from ppln.engine.norm import synchronize
from ppln.engine.optimizers import clip, make_optimizer, rate_factor
from ppln.engine.trained import find, settings_of
from ppln.engine.watch import NotFinite, first_bad
from ppln.errors import Stopped
from ppln.models import create_model
from ppln.tasks import Batch, Source

PICTURED = 4  # validation samples, of which baselines' predictions are kept for pictures


class Interrupted(Stopped):
    """Asked to stop (Ctrl-C, SIGTERM, a closed terminal): the step was finished and saved."""

    def __init__(self, signum: int, step: int, advice: str) -> None:
        super().__init__(f"stopped after step {step}, which is saved; {advice}")
        self.code = 128 + signum


class Trained(NamedTuple):
    """How a run ended. What was done is saved, whatever the status."""

    out: Path
    first: bool  # whether this is the first process of the run
    step: int
    loss: float  # of the last step
    metrics: dict[str, float]  # of the last validation
    status: Literal["done", "out of time", "interrupted"]
    signal: int = 0  # by which it was interrupted


def train(
    settings: Train,
    *,
    resume: bool = False,
    from_start: bool = False,
    make: Make | None = None,
    val: Source | None = None,
    deadline: float = math.inf,
) -> Trained:
    """Train a network, or with `resume` go on with the run in its folder. Interrupted, if it is.

    from_start: where that has no checkpoint to go on from, begin at step 0 again; it is an error otherwise.
    make: what makes the training samples; by default a new `batch_maker`. One that keeps them, of the same
    data on the same device, may serve one run after the other. So may val, the validation samples.
    deadline: by time.monotonic; the run saves and ends after the step in which it passes.

    Under `torchrun` every process calls this; with `devices` above 1 and no torchrun, it starts the others
    itself.
    """
    settings.check_network()
    fabric = launch(settings.machine)
    with holding(fabric, settings.run.out):
        trained = Loop(settings, fabric, resume, make, val, from_start=from_start, deadline=deadline).run()
    if trained.status == "interrupted":
        raise Interrupted(trained.signal, trained.step, f"to go on, add --resume --out {trained.out}")
    return trained


class Loop:
    """A run: what it is made of, and how it goes. `run` is the whole of it; `step` is one update."""

    def __init__(
        self,
        settings: Train,
        fabric: Any,
        resume: bool,
        make: Make | None = None,
        val: Source | None = None,
        *,
        from_start: bool = False,
        deadline: float = math.inf,
    ) -> None:
        self.settings, self.fabric, self.deadline = settings, fabric, deadline
        self.task, self.out = settings.task, settings.run.out
        found = self._open_folder(resume, from_start)
        optimizer, machine, seed = settings.optimizer, settings.machine, settings.run.seed

        source = self.task.source("train")
        self.order = Order(
            len(source),
            optimizer.batch,
            accumulate=optimizer.accumulate,
            rank=fabric.global_rank,
            world=fabric.world_size,
            seed=seed,
        )
        make = make or batch_maker(source, self.order.size, fabric.device, keep=machine.keep_samples)
        if val is None:
            val = Held(self.task, "val") if machine.keep_samples else self.task.source("val")
        len(val)  # data that are not there are told now
        self.val: dict[str, Any] = {"source": val, "device": fabric.device}  # how networks are validated
        self.val |= {"rank": fabric.global_rank, "world": fabric.world_size}
        self.steps = optimizer.steps or (optimizer.epochs or 0) * self.order.steps_per_epoch

        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)  # the same in every process: they begin with the same weights
        self.net = create_model(settings.model.name, **settings.model.options)  # type: ignore[arg-type]
        torch.manual_seed(seed + fabric.global_rank)  # what networks draw in training differs
        if settings.model.weights is not None and found is None:
            self._begin_with(settings.model.weights)
        if fabric.world_size > 1:
            self.net = synchronize(self.net, fabric.device.type)
        if machine.channels_last:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model = distribute(fabric, self.net, compiled=machine.compile)
        self.optimizer = make_optimizer(optimizer, self.model.parameters())
        self.average = Average(self.net, optimizer.ema) if optimizer.ema else None
        self.parameters = [p for p in self.net.parameters() if p.requires_grad]
        self.done, self.loss = 0, math.nan  # steps, and the loss of the last
        self.saved: int | None = None  # the last step that is
        self.best: float | None = None
        self.metrics: dict[str, float] = {}
        self.beside: dict[str, NDArray[Any]] = {}  # what baselines predict for the first validation samples
        self.asked = self.stop = 0  # the signal that asked this process to stop; that for which all do
        self.late = False  # whether the deadline has passed, by the clock of any process
        if found is not None:
            self._restore(found)
        remaining = range(self.done, self.steps)
        self.feed = Feed(
            self.task, make, self.order, remaining, device=fabric.device, workers=machine.workers
        )
        self.batches = iter(self.feed)
        # The last line: when, how long had been waited for data, after which step.
        self.since: tuple[float, float, int] | None = None
        # Last: a run that could not begin does not stand in the way of the next.
        if self.done < self.steps:  # else it is told by what it was trained with, whatever is asked for now
            first(self.fabric, lambda: stored.write(self.out / "config.yaml", settings, provenance.about()))

    def _begin_with(self, weights: Path) -> None:
        found = find(weights, task=self.task.name, argument="weights")
        try:
            self.net.load_state_dict(found.net.state_dict())
        except RuntimeError:
            raise ValueError(
                f"weights is {weights}, which is {found.card.name} with {dict(found.card.options)}; "
                f"it does not fit {self.settings.model.name} with {self.settings.model.options}"
            ) from None

    def run(self) -> Trained:
        run = self.settings.run
        self.net.train()
        with self.log() as log, closing(self.batches):
            if run.baselines and self.done < self.steps:  # nothing is begun that a signal would have to end
                self._judge_baselines(log)
            with self._signals():
                self._steps(log)
        by = self.stop or self.asked  # this process may be asked after the last step
        status: Any = "interrupted" if by else "done" if self.done == self.steps else "out of time"
        return Trained(self.out, self.fabric.is_global_zero, self.done, self.loss, self.metrics, status, by)

    def _steps(self, log: Log) -> None:
        run = self.settings.run
        while self.done < self.steps and not (self.stop or self.late):
            self.advance(log)
            last = self.done == self.steps
            improved = self._validate(log) if last or self.done % run.validate_every == 0 else False
            if last or improved or self.stop or self.late or self.done % run.checkpoint_every == 0:
                log.checkpoint(self.done, self._save(improved))
            if self.feed.lost and not self.asked:
                raise ChildProcessError(
                    f"workers is {self.settings.machine.workers}, and one of them ended "
                    f"({self.feed.lost}); step {self.done} is saved: add --resume --out {self.out}, and "
                    "lower --workers if memory is short"
                )

    def advance(self, log: Log) -> None:
        """One step, and a line about it when it is time for one."""
        self.since = self.since or (time.perf_counter(), self.feed.waited_s, self.done)
        self.loss, norm, rate = self.step(self.batches)
        if self.done % self.settings.run.log_every and self.done < self.steps:
            return
        now, (then, waited_s, done) = time.perf_counter(), self.since
        log.train(
            self.done,
            loss=self.loss,
            learning_rate=rate,
            grad_norm=norm,
            samples_per_s=(self.done - done) * self.order.batch / (now - then),
            data_wait=(self.feed.waited_s - waited_s) / (now - then),
            gpu_memory_bytes=torch.cuda.max_memory_allocated() if self.fabric.device.type == "cuda" else None,
        )
        self.since = now, self.feed.waited_s, self.done

    def step(self, batches: Iterator[Batch]) -> tuple[float, float, float]:
        """One update -> its loss, the norm of its gradient, the learning rate."""
        settings, fabric, parts = self.settings.optimizer, self.fabric, self.order.parts
        rate = settings.learning_rate * rate_factor(
            settings, self.done, self.steps, self.order.steps_per_epoch
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total: Any = 0
        taken = []
        for part in range(parts):
            batch = next(batches)
            taken.append(batch)
            with unsent(self.model) if part < parts - 1 else nullcontext():
                with fabric.autocast():
                    prediction = self.task.predict(self.model, batch)
                loss = self.task.loss(prediction, batch)
                if parts > 1:
                    loss = loss / parts
                loss.backward()
            total = total + loss.detach()
        norm = clip(self.parameters, settings.clip_norm)
        asked = self.asked or (signal.SIGTERM if self.feed.lost else 0)
        late = time.monotonic() >= self.deadline
        numbers = [total, norm]
        if fabric.world_size > 1:
            mine = torch.stack([total, total.new_tensor(float(asked > 0)), total.new_tensor(float(late))])
            total, *others = fabric.all_reduce(mine, reduce_op="mean").unbind()
            numbers = [total, norm, *others]
        # The only look at the GPU's numbers in a step. The weights are still those that gave them.
        value, size, *told = torch.stack(numbers).tolist()
        others_asked, others_late = told or (0.0, 0.0)
        if asked or others_asked:  # if one process was asked to stop, all do, after the same step
            self.stop = asked or signal.SIGTERM
        self.late = late or others_late > 0
        if not (math.isfinite(value) and math.isfinite(size)):
            bad = first_bad(self.net, self.task, taken, self._predict)
            raise NotFinite(self.done + 1, bad, self.saved)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.net)
        self.done += 1
        return value, size, rate

    def _predict(self, batch: Batch) -> Tensor:
        with self.fabric.autocast():
            return self.task.predict(self.net, batch)

    def _judge_baselines(self, log: Log) -> None:
        baselines = {title: net.to(self.fabric.device) for title, net in self.task.baselines().items()}
        if not baselines:
            return
        log.say(f"first, what needs no training is validated: {', '.join(baselines)}")
        found = evaluate_each(baselines, self.task, "val", predictions=PICTURED, **self.val)
        self.beside = {title: of.predictions["prediction"] for title, of in found.items() if of.predictions}
        log.baselines({title: of.metrics for title, of in found.items()})

    def _validate(self, log: Log) -> bool:
        """Whether the network is the best one so far."""
        run, fabric = self.settings.run, self.fabric
        averaged = self.average.swapped(self.net) if self.average is not None else nullcontext()
        with averaged, fabric.autocast():
            found = evaluate(self.net, self.task, "val", beside=self.beside, **self.val)
        self.metrics = fabric.broadcast(found.metrics)
        log.validation(self.done, self.metrics)
        if run.pictures and found.picture is not None:
            log.picture(self.done, found.picture)
        name, better = next(iter(self.task.metrics.items()))
        value = self.metrics[name] if better == "higher" else -self.metrics[name]
        improved = math.isfinite(value) and (self.best is None or value > self.best)
        if improved:
            self.best = value
        return improved

    def _save(self, best: bool) -> Path:
        """All processes take part; the first one writes."""
        memory, rule = state.optimizer_state(self.optimizer, self.net)
        generators, more = state.random_state()
        tensors = {"model": state.model_state(self.net), "optimizer": memory, "random": generators}
        if self.average is not None:
            tensors["ema"] = self.average.state()
        info = {
            "step": self.done,
            "config": stored.plain(self.settings),
            "about": provenance.about(),
            "optimizer": rule,
            "random": more,
            "best": self.best,
            "metrics": self.metrics,
            "loss": self.loss,
        }
        root, keep = self.out / "checkpoints", self.settings.run.keep
        path = first(
            self.fabric, lambda: checkpoint.save(root, self.done, tensors, info, keep=keep, best=best)
        )
        self.saved = self.done
        return path

    def _restore(self, found: checkpoint.Checkpoint) -> None:
        tensors, info = found.tensors, found.state
        try:
            state.load_model_state(self.net, tensors["model"])
            state.load_optimizer_state(self.optimizer, self.net, tensors["optimizer"], info["optimizer"])
            lost = state.set_random_state(tensors["random"], info["random"])
            if self.average is not None:
                self.average.load(tensors.get("ema", {}), info["step"])
        except ValueError as error:
            raise ValueError(f"{found.path}: {error}") from None
        if lost or len(info["random"]["ranks"]) != self.fabric.world_size:
            self.news.append(
                "some random numbers begin anew: the run was saved with other processes or GPUs than now"
            )
        self.done, self.best, self.metrics, self.loss = (
            info[name] for name in ("step", "best", "metrics", "loss")
        )
        self.saved = self.done
        if self.done > self.steps:
            raise ValueError(f"steps is {self.steps}, but the run has done {self.done} already; give more")

    def _open_folder(self, resume: bool, from_start: bool) -> checkpoint.Checkpoint | None:
        """The checkpoint to go on from, if there is one."""
        self.news: list[str] = []  # for the log, which is not open yet
        root = self.out / "checkpoints"

        def check() -> None:
            if not resume and (root.exists() or (self.out / "config.yaml").exists()):
                raise ValueError(
                    f"out is {self.out}, where there is a run already; add --resume to go on with it, "
                    "or give another --out"
                )
            if self.settings.run.tensorboard:
                need_tensorboard()

        first(self.fabric, check)
        found = None
        if resume:
            found = checkpoint.newest(root, self.news.append)
            if found is not None:
                check_resumable(settings_of(found), self.settings)
                state.check(found)
            elif not from_start:
                raise ValueError(
                    "; ".join([f"there is no checkpoint to go on from in {root}", *self.news])
                    + "; add --from-start to begin at step 0 again"
                )
            self.news.append(
                f"going on from {found.path}" if found else f"no checkpoint in {root}: from the start"
            )
        return found

    def log(self) -> Log:
        """Where the run is told of: in the first process."""
        if not self.fabric.is_global_zero:
            return Log.silent()
        log = Log(
            self.out,
            total_steps=self.steps,
            steps_per_epoch=self.order.steps_per_epoch,
            tensorboard=self.settings.run.tensorboard,
            first_step=self.done,
        )
        for line in self.news:
            log.say(line)
        return log

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C, SIGTERM and SIGHUP end the run after the step and a checkpoint; a second one, at once."""
        before: dict[signal.Signals, Any] = {}

        def ask(number: int, frame: Any) -> None:
            self.asked = number
            for name, handler in before.items():
                signal.signal(name, handler)

        if threading.current_thread() is threading.main_thread():
            for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(name) is not signal.SIG_IGN:  # as scripts do for `ppln train ... &`
                    before[name] = signal.signal(name, ask)
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)
