import copy
import dataclasses
import pickle
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ppln.events import Events, Sensor, concatenate
from ppln.events import events as module
from ppln.events.events import is_sorted, whole

SENSOR = (4, 6)
many = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def some(t=(10, 20, 20, 50), **other) -> Events:
    n = len(t)
    columns = {"x": np.arange(n) % 6, "y": np.arange(n) % 4, "p": np.arange(n) % 2 == 0, **other}
    return Events(columns["x"], columns["y"], list(t), columns["p"], SENSOR)


@st.composite
def streams(draw):
    n = draw(st.integers(0, 30))
    t = np.sort(draw(hnp.arrays(np.int64, n, elements=st.integers(0, 50))))
    x = draw(hnp.arrays(np.uint16, n, elements=st.integers(0, 5)))
    y = draw(hnp.arrays(np.uint16, n, elements=st.integers(0, 3)))
    return Events(x, y, t, draw(hnp.arrays(bool, n)), SENSOR)


def test_types_and_values():
    events = Events(x=[3, 4], y=[0, 1], t=[10, 1500], p=[True, False], sensor=(180, 240))
    assert [v.dtype for v in (events.x, events.y, events.t, events.p)] == [
        np.uint16,
        np.uint16,
        np.int64,
        bool,
    ]
    assert events.x.tolist() == [3, 4]
    assert events.y.tolist() == [0, 1]
    assert events.t.tolist() == [10, 1500]
    assert events.p.tolist() == [True, False]
    assert events.sensor == Sensor(180, 240) == (180, 240)
    assert isinstance(events.sensor, Sensor)
    assert len(events) == 2
    assert events.duration_us == 1490


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("order", ["<", ">"])
def test_integers_of_every_type(dtype, order):
    v = np.array([0, 1, 2], np.dtype(dtype).newbyteorder(order))
    events = Events.adopt(v, v, v, v > 1, SENSOR)
    assert events == Events([0, 1, 2], [0, 1, 2], [0, 1, 2], [False, False, True], SENSOR)
    assert events.t.dtype == np.int64
    assert events.t.dtype.isnative
    assert events.x.dtype == np.uint16


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_floats_that_hold_integers(dtype):
    v = np.array([0, 1, 2], dtype)
    assert Events.adopt(v, v, v, v[[0, 1, 1]], SENSOR) == Events(
        [0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 1], SENSOR
    )


def test_tensors_and_strided_fields():
    v = torch.tensor([0, 1, 2])
    assert Events(v, v, v, v > 0, SENSOR) == Events([0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 1], SENSOR)
    record = np.zeros(3, [("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "?")])
    record["t"] = record["x"] = [0, 1, 2]
    events = Events.adopt(record["x"], record["y"], record["t"], record["p"], SENSOR)
    assert events.t.tolist() == events.x.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "p",
    [
        np.array([True, False, True]),
        *(np.array([1, 0, 1], kind) for kind in (np.int8, np.uint8, np.int64, np.uint64, np.float32)),
        *(np.array([1, -1, 1], kind) for kind in (np.int8, np.int64, np.float64)),
    ],
    ids=lambda p: f"{p.dtype}{p.min()}",
)
def test_polarity_of_every_type(p):
    assert some([1, 2, 3], p=p).p.tolist() == [True, False, True]


@pytest.mark.parametrize(("p", "expected"), [([-1, -1], False), ([0, 0], False), ([1, 1], True)])
def test_polarity_of_one_kind(p, expected):
    assert some([1, 2], p=p).p.tolist() == [expected] * 2


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("x", [0, 1.5], r"x\[1\] is 1.5, not an integer"),
        ("x", [0, np.nan], r"x\[1\] is nan, not an integer"),
        ("y", [np.inf, 0], r"y\[0\] is inf, not an integer"),
        ("t", [0.1, 0.2], r"t\[0\] is 0.1, not an integer; t is in microseconds"),
        ("t", [0, 2.0**63], r"t\[1\] is 9.22\d+e\+18, not an integer"),
        ("t", np.array([0, 2**63], np.uint64), "t reaches 9223372036854775808, more than int64 holds"),
        ("t", ["a", "b"], "t holds values of type <U1; give integers"),
        ("x", [True, False], "x holds values of type bool; give integers"),
        ("x", [None, 3], "x holds values of type object"),
        ("x", [[0, 1]], r"x has shape \(1, 2\); give one dimension"),
        ("t", 5, r"t has shape \(\); give one dimension"),
        ("p", [[True, False]], r"p has shape \(1, 2\); give one dimension"),
        ("p", [[1], [0]], r"p has shape \(2, 1\); give one dimension"),
        ("y", [0], "y has 1 entries where x has 2; give one for every event"),
        ("t", [0, 1, 2], "t has 3 entries where x has 2"),
        ("p", [True], "p has 1 entries where x has 2"),
        ("p", [0, 2], "p goes from 0 to 2; give bool, 0 and 1, or -1 and 1"),
        ("p", [-2, 0], "p goes from -2 to 0; give"),
        ("p", [0, np.nan], r"p\[1\] is nan, not an integer"),
        ("p", [0.5, 1], r"p\[0\] is 0.5, not an integer"),
        ("p", [0, -1], "p holds both 0 and -1; which is negative"),
        ("p", ["on", "off"], "p holds values of type <U3"),
        ("x", [0, 6], r"x\[1\] is 6, outside the sensor of 4 rows x 6 columns; give the right sensor"),
        ("x", [-1, 0], r"x\[0\] is -1, outside the sensor"),
        ("y", [3, 4], r"y\[1\] is 4, outside the sensor"),
        ("y", [0, 2**40], r"y\[1\] is 1099511627776, outside the sensor"),
        ("y", [0, 65536], r"y\[1\] is 65536, outside the sensor"),
        ("t", [-5, 0], "t starts at -5 us, before 0; shift the time stamps"),
        ("t", [7, 3], r"t goes back from 7 to 3 us at event 1 \(and at 0 more\); sort"),
    ],
)
def test_what_is_refused(name, value, message):
    arguments = {"x": [0, 1], "y": [0, 1], "t": [0, 1], "p": [0, 1], name: value}
    with pytest.raises(ValueError, match=message):
        Events(**arguments, sensor=SENSOR)
    with pytest.raises(ValueError, match=message):
        Events.adopt(*(np.asarray(arguments[key]) for key in "xytp"), SENSOR)


@pytest.mark.parametrize("sensor", [(180,), (1, 2, 3), 5, None, (180.5, 240), ("a", "b"), (0, 5), (5, 65537)])
def test_sensors_that_are_refused(sensor):
    with pytest.raises(ValueError, match="sensor is"):
        Events.empty(sensor)


def test_the_largest_sensor():
    events = Events([65535], [65535], [2**63 - 1], [1], (65536, 65536))
    assert (events.x[0], events.y[0], events.t[0]) == (65535, 65535, 2**63 - 1)


def test_going_back_is_counted():
    with pytest.raises(ValueError, match=r"from 9 to 1 us at event 2 \(and at 1 more\)"):
        some([0, 9, 1, 5, 4])


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 9, 10, 11, 12])
def test_sorted_across_blocks(size, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 4)
    t = np.arange(size)
    assert is_sorted(t)
    assert is_sorted(np.zeros(size, np.int64))
    for i in range(size - 1):
        fallen = t.copy()
        fallen[i], fallen[i + 1] = fallen[i + 1], fallen[i]
        assert not is_sorted(fallen), i


def test_the_constructor_copies():
    x, y, t, p = (
        np.array(v, d) for v, d in (([1], np.uint16), ([2], np.uint16), ([3], np.int64), ([1], bool))
    )
    events = Events(x, y, t, p, SENSOR)
    for v in (x, y, t, p):
        assert v.flags.writeable
        v[0] = 0
    assert (events.x[0], events.y[0], events.t[0], events.p[0]) == (1, 2, 3, True)


def test_adopt_copies_nothing_and_leaves_the_arrays_writeable():
    x, y, t, p = (np.zeros(3, d) for d in (np.uint16, np.uint16, np.int64, bool))
    events = Events.adopt(x, y, t, p, SENSOR)
    for mine, theirs in zip((x, y, t, p), (events.x, events.y, events.t, events.p), strict=True):
        assert np.shares_memory(mine, theirs)
        assert mine.flags.writeable


def changed(events: Events) -> list[Events]:
    return [
        events,
        events[1:3],
        events[events.t > 10],
        events.between(0, 30),
        events.region(0, 0, 2, 3),
        events.shifted(5),
        concatenate([events, events.shifted(100)]),
        pickle.loads(pickle.dumps(events)),
        copy.copy(events),
        copy.deepcopy(events),
        Events.empty(SENSOR),
    ]


@pytest.mark.parametrize("which", range(len(changed(some()))))
def test_nothing_can_be_changed(which):
    events = changed(some())[which]
    for name in ("x", "y", "t", "p"):
        array = getattr(events, name)
        assert not array.flags.writeable, name
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(events, name, array)
    with pytest.raises(dataclasses.FrozenInstanceError):
        events.sensor = (1, 1)


def test_pickle_and_copies_are_equal():
    events = some()[1:]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(events, protocol))
        assert again == events
        assert isinstance(again.sensor, Sensor)
    assert copy.deepcopy(events) == copy.copy(events) == events
    assert len(pickle.dumps(some([1] * 1000)[:2])) < 2000  # of a part, only the part


def test_equality():
    assert some() == some()
    assert some() != some([10, 20, 20, 51])
    assert some() != some(p=[True] * 4)
    assert some() != some()[:3]
    assert Events.empty((1, 2)) != Events.empty((2, 1))
    assert some() != "events"
    with pytest.raises(TypeError, match="unhashable"):
        hash(some())


def test_slices_share_memory():
    events = some()
    assert np.shares_memory(events[1:3].t, events.t)
    assert events[1:3].t.tolist() == [20, 20]
    assert events[::2].t.tolist() == [10, 20]
    assert events[-1:].t.tolist() == [50]
    assert len(events[3:1]) == 0
    assert events[:].sensor == SENSOR


def test_masks():
    events = some()
    assert events[np.array([True, False, False, True])].t.tolist() == [10, 50]
    assert events[[True, False, False, True]].x.tolist() == [0, 3]


@pytest.mark.parametrize(
    "which", [0, [0, 1], [0, 1, 1, 0], np.array([True]), True, np.ones((4, 1), bool), 1.5, "t"]
)
def test_other_indices_are_refused(which):
    with pytest.raises(TypeError, match="takes a slice or a boolean mask of 4 entries"):
        some()[which]


def test_no_way_back_in_time():
    with pytest.raises(ValueError, match="positive step"):
        some()[::-1]
    with pytest.raises(ValueError, match="positive step"):
        some()[::0]


def test_no_single_events():
    with pytest.raises(TypeError, match="not a sequence of single events"):
        list(some())


@many
@given(streams(), st.integers(-5, 60), st.integers(0, 60))
def test_between(events, start, length):
    part = events.between(start, start + length)
    inside = (events.t >= start) & (events.t < start + length)
    assert part == events[inside]
    assert not len(part) or np.shares_memory(part.t, events.t)


def test_between_takes_whole_numbers_in_order():
    with pytest.raises(ValueError, match="end_us 1 lies before start_us 2"):
        some().between(2, 1)
    with pytest.raises(TypeError, match=r"start_us is 1\.5; give a whole number"):
        some().between(1.5, 2)
    assert len(some().between(np.int32(10), np.uint8(20))) == 1


@many
@given(streams(), st.data())
def test_region(events, data):
    top, left = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 5))
    height, width = data.draw(st.integers(1, 4 - top)), data.draw(st.integers(1, 6 - left))
    part = events.region(top, left, height, width)
    kept = [
        (x - left, y - top, t, p)
        for x, y, t, p in zip(*(getattr(events, name).tolist() for name in "xytp"), strict=True)
        if top <= y < top + height and left <= x < left + width
    ]
    assert list(zip(*(getattr(part, name).tolist() for name in "xytp"), strict=True)) == kept
    assert part.sensor == (height, width)


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ((-1, 0, 2, 2), "rows -1 to 1"),
        ((3, 0, 2, 2), "rows 3 to 5"),
        ((0, -1, 2, 2), "columns -1 to 1"),
        ((0, 5, 2, 2), "columns 5 to 7"),
        ((0, 0, 0, 2), "height is 0; give 1 or more"),
        ((0, 0, 2, -1), "width is -1; give 1 or more"),
    ],
)
def test_regions_off_the_sensor(region, message):
    with pytest.raises(ValueError, match=message):
        some().region(*region)


def test_shifted():
    assert some().shifted(-10).t.tolist() == [0, 10, 10, 40]
    assert some().shifted(3).shifted(-3) == some()
    with pytest.raises(ValueError, match="t starts at -1 us"):
        some().shifted(-11)
    with pytest.raises(ValueError, match="t goes back"):
        some().shifted(2**63 - 30)
    with pytest.raises(TypeError, match=r"by_us is 0\.5"):
        some().shifted(0.5)


@many
@given(streams(), st.lists(st.integers(0, 30), max_size=5))
def test_concatenate_undoes_cuts(events, cuts):
    cuts = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    parts = [events[a:b] for a, b in pairwise(cuts)]
    assert concatenate(iter(parts)) == events


def test_concatenate_refuses():
    with pytest.raises(ValueError, match="parts is empty"):
        concatenate([])
    with pytest.raises(ValueError, match=r"different sizes \[\(1, 2\), \(2, 1\)\]"):
        concatenate([Events.empty((1, 2)), Events.empty((2, 1))])
    with pytest.raises(ValueError, match="t goes back from 50 to 10 us between two parts"):
        concatenate([some(), Events.empty(SENSOR), some()])
    assert len(concatenate([some(), some().shifted(40)])) == 8


def test_repair_says_what_it_does():
    x, y, t, p = map(np.array, ([0, 6, 1, 2, 3], [0, 0, -1, 1, 1], [9, -3, 4, -2, 5], [0, 0, 1, 1, 1]))
    message = (
        r"repaired: left out 2 events outside the sensor of \(4, 6\); left out 1 events before time 0; "
        "sorted the events by time, which went back 1 times"
    )
    with pytest.warns(UserWarning, match=message) as caught:
        events = Events.adopt(x, y, t, p, SENSOR, repair=True)
    assert events == Events([3, 0], [1, 0], [5, 9], [1, 0], SENSOR)
    assert caught[0].filename == __file__


def test_repair_sorts_stably():
    with pytest.warns(UserWarning, match="went back 1 times"):
        events = Events.adopt(
            np.arange(5), np.zeros(5), np.array([7, 7, 7, 2, 2]), np.ones(5), SENSOR, repair=True
        )
    assert events.x.tolist() == [3, 4, 0, 1, 2]


def test_repair_leaves_good_events_alone():
    events = some()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = Events.adopt(events.x, events.y, events.t, events.p, SENSOR, repair=True)
    assert again == events
    assert np.shares_memory(again.t, events.t)


def test_repair_mends_no_nonsense():
    with pytest.raises(ValueError, match="not an integer"):
        Events.adopt(np.array([0.5]), np.array([0]), np.array([0]), np.array([True]), SENSOR, repair=True)


def test_empty():
    events = Events.empty(SENSOR)
    assert len(events) == events.duration_us == 0
    assert (events.x.dtype, events.t.dtype, events.p.dtype) == (np.uint16, np.int64, bool)
    assert events[:5] == events.between(0, 9) == events.shifted(-9) == events


def test_repr():
    assert repr(Events.empty(SENSOR)) == "Events(0 events, 4 x 6)"
    assert repr(Events([3, 4], [0, 1], [10, 1500], [True, False], (180, 240))) == (
        "Events(2 events, 180 x 240, 10 us to 1500 us: 0.00149 s, 1.34e+03 events/s, 50 % positive)"
    )
    assert "0 s, inf events/s, 100 % positive" in repr(some([5]))


def test_whole():
    assert whole("n", np.uint8(3)) == whole("n", torch.tensor(3)) == 3
    with pytest.raises(TypeError, match="n is '3'; give a whole number"):
        whole("n", "3")
    with pytest.raises(ValueError, match="n is 0; give 1 or more"):
        whole("n", 0, least=1)
