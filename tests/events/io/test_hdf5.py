"""HDF5 files that reach for other files or for all memory, and large ones that are as they should be."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from hostile import deflated, outcome, outcomes
from recorder import packed_rows

from ppln.datasets.prepare import prepare
from ppln.datasets.windows import Windows
from ppln.events import (
    Events,
    Frames,
    Recording,
    RecordingError,
    Signal,
    Triggers,
    read_events,
    read_recording,
)
from ppln.events.io import detect, hdf5, native

SECRET = bytes(range(200)) * 5
N = len(SECRET)


def opened(path):
    return h5py.File(path, "r+", libver=("v110", "v110"))


@pytest.fixture
def path(tmp_path):
    """A recording of ours, with 14 frames and a signal."""
    t = np.arange(N, dtype=np.int64)
    events = Events(t % 6, t % 4, t, t % 2, (4, 6))
    frames = Frames(np.arange(14 * 24, dtype=np.uint16).reshape(14, 4, 6).astype(np.uint8), t[:14] * 50)
    signal = Signal("s", t, np.frombuffer(SECRET, np.uint8))
    recording = Recording("made", (4, 6), events, frames, Triggers(t, np.uint8(t % 3)), {"s": signal})
    native.write_recording(recording, tmp_path / "some.h5")
    return tmp_path / "some.h5"


def external_storage(file, name, elsewhere):
    like = file[name]
    shape, dtype = like.shape, like.dtype
    del file[name]
    file.create_dataset(name, shape, dtype, external=[(elsewhere, 0, h5py.h5f.UNLIMITED)])


def external_link(file, name, elsewhere):
    del file[name]
    file[name] = h5py.ExternalLink(elsewhere, name)


def soft_link_to_external(file, name, elsewhere):
    del file[name]
    file[name], file["there"] = h5py.SoftLink(f"/there/{name}"), h5py.ExternalLink(elsewhere, "/")


def virtual(file, name, elsewhere):
    like = file[name]
    shape, dtype = like.shape, like.dtype
    del file[name]
    layout = h5py.VirtualLayout(shape, dtype, maxshape=(None, *shape[1:]))
    layout[: h5py.h5s.UNLIMITED] = h5py.VirtualSource(
        elsewhere, name, shape, dtype, maxshape=(None, *shape[1:])
    )[: h5py.h5s.UNLIMITED]
    file.create_virtual_dataset(name, layout)


REACHES = [external_storage, external_link, soft_link_to_external, virtual]
NAMES = [
    "events/x",
    "events/t",
    "frames/images",
    "frames/t",
    "triggers/kind",
    "signals/s/t",
    "signals/s/values",
]


@pytest.mark.parametrize("reach", REACHES)
def test_no_dataset_may_lie_in_another_file(tmp_path, path, reach):
    for i, name in enumerate(NAMES):
        copy = tmp_path / f"{i}.h5"
        copy.write_bytes(path.read_bytes())
        with opened(copy) as file:
            reach(file, name, str(path))
        with pytest.raises(RecordingError, match=f"{name}.* (other files|another file)"):
            read_recording(copy)
        with pytest.raises(RecordingError, match=f"{name}.* (other files|another file)"):
            native.convert(copy, tmp_path / "out.h5")
        assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("name", ["events", "frames", "triggers", "signals", "signals/s"])
def test_no_group_may_lie_in_another_file(tmp_path, path, name):
    copy = tmp_path / "copy.h5"
    copy.write_bytes(path.read_bytes())
    with opened(copy) as file:
        external_link(file, name, str(path))
    with pytest.raises(
        RecordingError, match=f"{name}.* is a link to another file; give a file that holds it"
    ):
        read_recording(copy)


def test_a_pipe_elsewhere_is_not_waited_for(tmp_path, path):
    os.mkfifo(tmp_path / "pipe")
    copies = [tmp_path / f"{reach.__name__}.h5" for reach in REACHES]
    for copy, reach in zip(copies, REACHES, strict=True):
        copy.write_bytes(path.read_bytes())
        with opened(copy) as file:
            reach(file, "signals/s/values", str(tmp_path / "pipe"))
    said = outcomes("read", *copies)
    assert [text.partition(":")[0] for text in said] == ["refused"] * len(REACHES)


def layout_of_cups(file):
    file["frames"], file["frame_index"] = np.zeros((2, 4, 6), np.uint8), np.arange(2)
    file["exposure_us"], file["event_offset"] = np.array([[0, 5], [5, 9]]), np.array([0, 1, 3])
    for name, dtype in (("x", "u2"), ("y", "u2"), ("t_us", "i8"), ("p", "u1")):
        file[f"events/{name}"] = np.zeros(3, dtype)


def layout_of_dsec(file):
    for name, dtype in (("x", "u2"), ("y", "u2"), ("t", "u4"), ("p", "u1")):
        file[f"events/{name}"] = np.zeros(3, dtype)
    file["t_offset"], file["ms_to_idx"] = np.int64(5), np.zeros(1, np.uint64)


def layout_of_export(file):
    file["aps_frame"], file["dvs_frame"] = np.zeros((2, 4, 6), np.uint8), np.zeros((2, 4, 6), np.int16)
    file["steering_wheel_angle"], file["vehicle_speed"] = np.zeros(2), np.zeros(2)


def layout_of_ddd20(file):
    packed_rows(file, [np.array([1 << 16, 8, 4, 0, 0, 0, 0], "<i4").tobytes()], [5])
    file["speed/data"], file["speed/timestamp"] = np.ones((2, 2)), np.ones(2, np.int64)


LAYOUTS = [layout_of_cups, layout_of_dsec, layout_of_export, layout_of_ddd20]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reach", [external_storage, external_link])
def test_nor_in_any_other_format(tmp_path, layout, reach):
    with h5py.File(tmp_path / "good.h5", "w") as file:
        layout(file)
        names: list[str] = []
        file.visititems(lambda name, found: names.append(name) if isinstance(found, h5py.Dataset) else None)
    read_recording(tmp_path / "good.h5")
    for name in names:
        if name == "ms_to_idx" or (reach is external_storage and name in ("t_offset", "dvs/data")):
            continue  # it is not read; and those cannot be stored so
        bad = tmp_path / "bad.h5"
        bad.write_bytes((tmp_path / "good.h5").read_bytes())
        with opened(bad) as file:
            reach(file, name, str(tmp_path / "good.h5"))
        with pytest.raises(RecordingError, match=f"{name}.* (other files|another file)"):
            read_recording(bad)


def test_links_within_a_file_are_followed_but_not_in_a_circle(tmp_path, path):
    whole = read_recording(path)
    with opened(path) as file:
        file.move("events", "deep/inside/events")
        file["deep/other"] = h5py.SoftLink("inside")
        file["events"] = h5py.SoftLink("/deep/other/events")
    assert read_events(path) == whole.events
    with opened(path) as file:
        del file["events"]
        file["events"], file["back"] = h5py.SoftLink("/back"), h5py.SoftLink("events")
    with pytest.raises(RecordingError, match="events/x leads in a circle"):
        read_events(path)
    with opened(path) as file:
        del file["events"]
        file["events"] = h5py.SoftLink("/nowhere")
    with pytest.raises(RecordingError, match="has no dataset events/x"):
        read_events(path)


def test_prepared_windows_do_not_reach_for_other_files(tmp_path, path):
    prepare(path, tmp_path / "out")
    made = tmp_path / "out" / "some.h5"
    assert Windows(tmp_path / "out", "test").batch([0]).sharp.shape == (1, 14, 4, 6)
    (tmp_path / "other.h5").write_bytes(made.read_bytes())
    with opened(made) as file:
        external_link(file, "frames", str(tmp_path / "other.h5"))
    with pytest.raises(ValueError, match="frames is a link to another file"):
        Windows(tmp_path / "out", "test").batch([0])
    made.unlink()
    os.mkfifo(made)
    with pytest.raises(ValueError, match="is not a file"):
        Windows(tmp_path / "out", "test").batch([0])
    with pytest.raises(RecordingError, match="is not a file"):
        prepare(made, tmp_path / "again")


def events_in_chunks(path, n, rows, content=None):
    """n events in chunks of so many rows, of zeros; content: of a chunk of x, whatever it should be."""
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file.attrs.update({"format": np.bytes_(native.NAME), "version": 1, "sensor": (4, 6)})
        for name, dtype in (("x", "u2"), ("y", "u2"), ("t", "i8"), ("p", "u1")):
            data = file.create_dataset(f"events/{name}", (n,), dtype, chunks=(rows,), compression="gzip")
            packed = deflated(b"", rows * data.dtype.itemsize >> 20)
            for first in range(0, n, rows):
                data.id.write_direct_chunk((first,), content if content and name == "x" else packed)


def test_a_chunk_larger_than_memory_is_refused(tmp_path):
    events_in_chunks(tmp_path / "a.h5", 1 << 28, 1 << 28)
    assert (tmp_path / "a.h5").stat().st_size < 4 << 20
    said = outcome("info", tmp_path / "a.h5")
    assert said.startswith("refused: ")
    assert (
        "events/x of shape (268435456,) has chunks of (268435456,); rows and chunks of up to 64 MiB" in said
    )


def test_a_chunk_that_inflates_to_more_than_a_chunk_is_refused(tmp_path):
    events_in_chunks(tmp_path / "a.h5", 1 << 20, 1 << 20, deflated(b"", 1 << 10))
    said = outcome("read", tmp_path / "a.h5")
    assert said.startswith("refused: ")
    assert f"there are more than {(2 << 20) + 4} bytes in it" in said


def test_large_chunks_are_inflated_once(tmp_path, monkeypatch):
    """One chunk of 16 parts as they are read; libhdf5 would not keep it by itself."""
    monkeypatch.setattr(hdf5, "CHUNK", 1 << 18)
    events_in_chunks(tmp_path / "a.h5", 1 << 22, 1 << 22)
    looked = []
    monkeypatch.setattr(hdf5, "decompressed", lambda *_: looked.append(1))
    monkeypatch.setattr(hdf5, "HARMLESS_BYTES", 0)
    with hdf5.opened(tmp_path / "a.h5") as file:
        t = hdf5.dataset(file, "events/t", 1, "i")
        before = _bytes_read()
        for first in range(0, len(t), 1 << 18):
            assert not t[first : first + (1 << 18)].any()
        after = _bytes_read()
    assert len(looked) == 1
    size = (tmp_path / "a.h5").stat().st_size
    assert after - before < 3 * size


def _bytes_read() -> int:
    """By this process so far, from files."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("filters", [[1, 1], [1, 2], [6], [5]])
def test_filters_that_hide_a_size_are_refused(tmp_path, path, filters):
    with opened(path) as file:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((N,))
        for code in filters:
            settings.set_filter(code, h5py.h5z.FLAG_OPTIONAL, {1: (4,), 6: (2, 0)}.get(code, ()))
        del file["signals/s/t"]
        space = h5py.h5s.create_simple((N,))
        h5py.h5d.create(file.id, b"signals/s/t", h5py.h5t.STD_I64LE, space, settings)
        file["signals/s/t"][:] = np.arange(N)
    with pytest.raises(
        RecordingError, match=r"signals/s/t is stored with the (unknown filter|filters \[1, .*one)"
    ):
        read_recording(path)


def test_a_row_of_many_chunks_is_not_read_again_and_again(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        layout_of_export(file)
        del file["aps_frame"]
        file.create_dataset("aps_frame", (1 << 20, 32, 32), "u1", chunks=(1 << 20, 1, 1), compression="gzip")
    with pytest.raises(RecordingError, match=r"aps_frame .* has chunks of \(1048576, 1, 1\)"):
        read_recording(tmp_path / "a.h5")


@pytest.mark.parametrize("compression", ["gzip", "lzf", None])
def test_chunks_as_h5py_chooses_them(tmp_path, compression):
    images = np.random.default_rng(0).integers(0, 4, (300, 90, 110), np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        layout_of_export(file)
        for name, values in (("aps_frame", images), ("dvs_frame", images.astype(np.float64))):
            del file[name]
            file.create_dataset(name, data=values, chunks=True, compression=compression, shuffle=True)
        for name in ("steering_wheel_angle", "vehicle_speed"):
            del file[name]
            file[name] = np.arange(300.0)
    recording = read_recording(tmp_path / "a.h5")
    assert (recording.frames.images == images).all()
    assert (recording.signals["dvs_frame"].values == images).all()
    assert recording.signals["dvs_frame"].t.tolist() == [50_000 * i for i in range(300)]


def test_a_recording_in_which_nothing_changes_is_read(tmp_path):
    """It is compressed as much as deflate can."""
    n = 1 << 23
    still = Events(np.zeros(n, int), np.zeros(n, int), np.zeros(n, int), np.zeros(n, bool), (4, 6))
    frames = Frames(np.zeros((100, 512, 512), np.uint8), np.zeros(100, np.int64))
    native.write_recording(Recording("made", (4, 6), still, frames), tmp_path / "a.h5", compression=9)
    size = (tmp_path / "a.h5").stat().st_size
    assert n * 13 + frames.images.nbytes > 500 * size
    assert len(read_events(tmp_path / "a.h5")) == n


def test_the_same_signal_under_many_names(tmp_path, path):
    """Links are small: a few bytes each could stand for all that is in the file."""
    with opened(path) as file:
        data = file.create_dataset(
            "signals/0/values", (1 << 24,), "u1", chunks=(1 << 20,), compression="gzip"
        )
        times = file.create_dataset("signals/0/t", (1 << 24,), "i8", chunks=(1 << 20,), compression="gzip")
        for first in range(0, 1 << 24, 1 << 20):
            data.id.write_direct_chunk((first,), deflated(b"", 1))
            times.id.write_direct_chunk((first,), deflated(b"", 8))
        for i in range(1, 100):
            file[f"signals/{i}"] = file["signals/0"]
    said = outcome("info", path)
    assert said.startswith("refused: ")
    assert "more comes out of its" in said


def test_detection_opens_nothing_else(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("frames", "events", "dvs", "aps_frame"):
            file[name] = h5py.ExternalLink(str(tmp_path / "pipe"), "/")
    with pytest.raises(RecordingError, match="is a link to another file"):
        detect(tmp_path / "a.h5")
