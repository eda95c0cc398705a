import itertools
import os
import signal
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from line import Line, Lines

from ppln.engine.feed import Feed, Held, Order, batch_maker

CPU = torch.device("cpu")


def test_an_epoch_takes_every_sample_once_and_the_next_in_another_order():
    order = Order(12, 4, seed=3)
    epochs = [
        list(itertools.chain(*(order.take(step, 0)[1] for step in range(3 * e, 3 * e + 3)))) for e in range(2)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(12))
    assert epochs[0] != epochs[1] != list(range(12))


def test_what_does_not_fill_a_batch_differs_from_epoch_to_epoch():
    order = Order(10, 4)
    assert order.steps_per_epoch == 2
    left = [
        set(range(10)) - {i for step in (2 * e, 2 * e + 1) for i in order.take(step, 0)[1]} for e in range(5)
    ]
    assert all(len(rest) == 2 for rest in left)
    assert len(set().union(*left)) > 2


@given(
    world=st.sampled_from([1, 2, 3]),
    accumulate=st.sampled_from([1, 2, 4]),
    size=st.integers(1, 3),
    step=st.integers(0, 50),
    seed=st.integers(0, 2**32),
)
def test_processes_share_the_samples_of_one(world, accumulate, size, step, seed):
    batch = world * accumulate * size
    samples = 2 * batch + 1
    whole = Order(samples, batch, seed=seed).take(step, 0)
    pieces = [
        Order(samples, batch, accumulate=accumulate, rank=rank, world=world, seed=seed).take(step, part)
        for part in range(accumulate)
        for rank in range(world)
    ]
    assert tuple(list(itertools.chain(*(piece[k] for piece in pieces))) for k in (0, 1)) == whole


def test_a_position_does_not_depend_on_what_was_taken_before():
    straight, jumped = Order(9, 2, seed=1), Order(9, 2, seed=1)
    taken = [straight.take(step, 0) for step in range(20)]
    assert [jumped.take(step, 0) for step in (17, 3, 4, 0)] == [taken[k] for k in (17, 3, 4, 0)]


def test_bad_batches():
    with pytest.raises(ValueError, match="batch is 8, but there are only 5 samples"):
        Order(5, 8)
    with pytest.raises(
        ValueError, match=r"batch is 6, which 2 processes with 2 accumulated parts.*multiple of 4"
    ):
        Order(10, 6, accumulate=2, world=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_feed_goes_on_from_any_step(workers):
    task, order = Line(), Order(20, 4, accumulate=2, seed=5)
    source = task.source("train").batch
    whole = list(Feed(task, source, order, range(0, 8), device=CPU))
    rest = list(Feed(task, source, order, range(3, 8), device=CPU, workers=workers))
    assert len(whole) == 16
    assert len(rest) == 10
    for a, b in zip(whole[6:], rest, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.t, b.t)
        assert torch.equal(a.extra["number"], b.extra["number"])


def test_the_feed_leaves_random_numbers_alone():
    task = Line()
    before = torch.get_rng_state()
    list(Feed(task, task.source("train").batch, Order(20, 4), range(2), device=CPU, workers=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_error_in_a_worker_is_raised():
    class Broken(Lines):
        def batch(self, indices, device="cpu"):
            raise ValueError("no such sample")

    with pytest.raises(ValueError, match=r"^no such sample$"):
        list(Feed(Line(), Broken(20, 0).batch, Order(20, 4), range(2), device=CPU, workers=1))


def test_batches_of_a_lost_worker_are_made_here():
    class Deadly(Lines):
        def batch(self, indices, device="cpu"):
            if torch.utils.data.get_worker_info() is not None and 3 in indices:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().batch(indices, device)

    task, order, handler = Line(), Order(20, 4), signal.getsignal(signal.SIGCHLD)
    feeds = [
        Feed(task, source(20, 0).batch, order, range(5), device=CPU, workers=workers)
        for source, workers in ((Lines, 0), (Deadly, 2))
    ]
    for a, b in zip(*feeds, strict=True):
        assert (
            signal.getsignal(signal.SIGCHLD) is handler
        )  # a death raises nothing where it is not waited for
        assert torch.equal(a.x, b.x)
    assert [bool(feed.lost) for feed in feeds] == [False, True]


def test_kept_samples_are_made_once():
    made = []

    class Counted(Lines):
        def batch(self, indices, device="cpu"):
            made.extend(indices)
            return super().batch(indices, device)

    plain, kept = Lines(9, 0), batch_maker(Counted(9, 0), 3, CPU, keep=True)
    for indices in ([3, 1, 4], [1, 5, 1], [0, 1, 2, 3], list(range(9))):
        expected, got = plain.batch(indices), kept(indices)
        assert torch.equal(got.number, expected.number)
        assert torch.equal(got.numbers, expected.numbers)
    assert sorted(made) == list(range(9))


def test_held_batches_are_made_once():
    task = Line(val_samples=5)
    held, plain = Held(task, "val"), task.source("val")
    assert len(held) == 5
    held.fill(2, CPU)
    held.source.batch = None  # type: ignore[method-assign]
    for part in ([0, 1], [2, 3], [4]):
        assert torch.equal(held.batch(part).numbers, plain.batch(part).numbers)
    with pytest.raises(TypeError):  # another batch would have to be made
        held.batch([0])


def test_what_makes_samples_is_gone_when_all_are_kept():
    source = Lines(9, 0)
    kept, gone = batch_maker(source, 3, CPU, keep=True), weakref.ref(source)
    del source
    kept(list(range(8)))
    assert gone() is not None
    kept([8])
    assert gone() is None
    assert torch.equal(kept([2, 8]).number, Lines(9, 0).batch([2, 8]).number)
