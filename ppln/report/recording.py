"""What is in a recording, as text and as a picture; read in a stream, so that it need not fit in memory."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppln.errors import printable
from ppln.events import Events, Frames, Imu, Sensor, Signal, Triggers, concatenate
from ppln.events.io import Header, Options, Unread, detect, iter_packets, listed, sources
from ppln.files import check_target, put_in_place
from ppln.imports import require
from ppln.progress import Screen

_RATE_BIN_US = 10_000
_GAP_US = 100_000  # no event anywhere on the sensor for so long is worth a line
_PICTURE_US = 20_000  # of events in one picture
_MOST_PIXELS = 1 << 24  # of a sensor, to be counted one by one; the largest there are have a few million
_MOST_BINS = 1 << 24  # of time in a picture: two days
_SUFFIXES = (".png", ".jpg", ".jpeg", ".svg", ".pdf")  # of plots


@dataclass(frozen=True)
class Info:
    """Print what is in a recording: sensor; events, their rates and gaps; frames; triggers, which mark
    moments, such as pulses from outside (their kinds are numbers of the file's format); signals, such as the
    angle of a steering wheel; samples of an IMU, which measures how the camera accelerates and turns.
    For example: ppln info recording.aedat4 --plot recording.png"""

    recording: Path
    """The recording: a file, or a folder."""
    plot: Path | None = None
    """Also draw its events, rates and frames, as this PNG, JPEG, SVG or PDF file. Default: draw nothing."""
    overwrite: bool = False
    """Replace a picture that exists."""
    format: str | None = None
    """The format of the recording, such as aedat4; docs/howto-events.md lists them. Default: as its content
    tells."""
    reading: Options = Options()  # noqa: RUF009
    """How the recording is read."""


def show(info: Info, screen: Screen) -> str:
    """What `ppln info` does."""
    options = asdict(info.reading)
    if info.plot is not None:
        check_plot(info.plot, info.recording, format=info.format, overwrite=info.overwrite)
    summary = summarize(info.recording, format=info.format, **options)
    if info.plot is None:
        return text(summary)
    screen.say(text(summary))
    plot(summary, info.plot, overwrite=info.overwrite, **options)
    return f"wrote {info.plot}"


@dataclass
class Summary:
    """Counted while the packets of a recording pass."""

    path: Path
    format: str
    sensor: Sensor
    has_events: bool
    per_pixel: NDArray[np.int64] | None  # [height * width] events; None: there are too many pixels
    events: int = 0
    positive: int = 0
    start_us: int = 0
    end_us: int = 0
    rate: dict[int, int] = field(default_factory=dict)  # events by time bin of _RATE_BIN_US
    gaps: list[tuple[int, int]] = field(default_factory=list)  # (begin, end) us, in order of time
    backward: int = 0  # how often a packet begins before the last one ended
    frame_times: list[int] = field(default_factory=list)
    frame_kind: str = ""
    exposures_us: list[int] = field(default_factory=list)
    triggers: dict[int, int] = field(default_factory=dict)  # how many of each kind
    signals: dict[str, list[Any]] = field(
        default_factory=dict
    )  # name: count, shape of a value, least, largest
    imu: dict[str, list[Any]] = field(default_factory=dict)  # as signals, by what is measured
    imu_rate: dict[int, NDArray] = field(
        default_factory=dict
    )  # by time bin: samples, sums of acceleration and angular velocity along x, y, z
    unread: list[str] = field(default_factory=list)

    @property
    def duration_us(self) -> int:
        return self.end_us - self.start_us

    def peak(self) -> tuple[int, float]:
        """When the most events came (us), and how many a second."""
        best = max(self.rate, key=lambda i: self.rate[i])
        return best * _RATE_BIN_US, self.rate[best] / _RATE_BIN_US * 1e6


def summarize(path: str | Path, *, format: str | None = None, **options: Any) -> Summary:
    """Read all of a recording and count what there is. `options`: see ppln.events.io.Options."""
    format = format or detect(path)
    packets = iter_packets(path, format=format, **options)
    header = next(packets)
    assert isinstance(header, Header)
    size = header.sensor.height * header.sensor.width
    pixels = np.zeros(size, np.int64) if size <= _MOST_PIXELS else None
    summary = Summary(Path(path), format, header.sensor, header.has_events, pixels)
    for packet in packets:
        match packet:
            case Events():
                _count_events(summary, packet)
            case Frames():
                _count_frames(summary, packet)
            case Triggers():
                for kind, count in zip(*np.unique(packet.kind, return_counts=True), strict=True):
                    summary.triggers[int(kind)] = summary.triggers.get(int(kind), 0) + int(count)
            case Signal():
                _count_values(summary.signals, packet.name, packet.values)
            case Imu():
                _count_imu(summary, packet)
            case Unread():
                summary.unread.append(packet.what)
    return summary


def _count_events(summary: Summary, events: Events) -> None:
    if not len(events):
        return
    first, last = int(events.t[0]), int(events.t[-1])
    if not summary.events:
        summary.start_us = summary.end_us = first
    summary.backward += first < summary.end_us
    quiet = np.diff(events.t, prepend=summary.end_us)
    for i in np.flatnonzero(quiet >= _GAP_US):
        summary.gaps.append((int(events.t[i] - quiet[i]), int(events.t[i])))
    summary.events += len(events)
    summary.positive += int(events.p.sum())
    summary.end_us = max(summary.end_us, last)
    if summary.per_pixel is not None:
        place = events.y.astype(np.int64) * summary.sensor.width + events.x
        np.add.at(summary.per_pixel, place, 1)  # a packet may be of few events, on many pixels
    for i, count in zip(*np.unique(events.t // _RATE_BIN_US, return_counts=True), strict=True):
        summary.rate[int(i)] = summary.rate.get(int(i), 0) + int(count)


def _count_frames(summary: Summary, frames: Frames) -> None:
    height, width, *colour = frames.images.shape[1:]
    summary.frame_kind = f"{height} x {width}, {'colour' if colour else 'grey'}, {frames.images.dtype}"
    summary.frame_times.extend(frames.t.tolist())
    if frames.exposure is not None:
        summary.exposures_us.extend((frames.exposure[:, 1] - frames.exposure[:, 0]).tolist())


def _count_values(counted: dict[str, list[Any]], name: str, values: NDArray) -> None:
    if not values.size:
        return
    low, high = values.min(), values.max()
    known = counted.setdefault(name, [0, values.shape[1:], low, high])
    known[0] += len(values)
    known[2:] = min(known[2], low), max(known[3], high)


def _count_imu(summary: Summary, imu: Imu) -> None:
    for name, values in imu.measured().items():
        _count_values(summary.imu, name, values)
    bins, which = np.unique(imu.t // _RATE_BIN_US, return_inverse=True)
    sums = np.zeros((len(bins), 7))
    np.add.at(sums, which, np.column_stack([np.ones(len(imu)), imu.accelerometer, imu.gyroscope]))
    for i, row in zip(bins.tolist(), sums, strict=True):
        summary.imu_rate[i] = summary.imu_rate.get(i, 0) + row


def text(summary: Summary) -> str:
    """A line for each thing that is there."""
    lines = [f"{summary.path}: {summary.format}", f"sensor     {_size(summary.sensor)} (height x width)"]
    if summary.events:
        seconds = summary.duration_us / 1e6
        when, rate = summary.peak()
        mean = f"{_short(summary.events / seconds)} events/s on average, " if seconds else ""
        lines += [
            f"events     {summary.events:,}, {100 * summary.positive / summary.events:.0f} % positive",
            f"time       {summary.start_us:,} to {summary.end_us:,} us: {seconds:.6g} s",
            f"rate       {mean}{_short(rate)} events/s at most ({_RATE_BIN_US // 1000} ms from {when:,} us)",
            f"pixels     {_pixels(summary)}",
            f"gaps       {_gaps(summary)}",
        ]
        if summary.backward:
            lines.append(f"order      t goes back between packets {summary.backward} times")
    else:
        lines.append("events     none" if summary.has_events else "events     this format holds none")
    lines.append(f"frames     {_frames(summary)}")
    kinds = ", ".join(f"{count} of kind {kind}" for kind, count in sorted(summary.triggers.items()))
    lines.append(f"triggers   {kinds or 'none'}")
    lines += [f"signal     {_values(name, *counted)}" for name, counted in summary.signals.items()]
    lines += [f"imu        {_values(name, *of)} {Imu.UNITS[name]}" for name, of in summary.imu.items()]
    if summary.unread:
        lines.append(f"not read   {listed(summary.unread)}")
    return "\n".join(map(printable, lines))


def _pixels(summary: Summary) -> str:
    if summary.per_pixel is None:
        return f"more than {_MOST_PIXELS:,}: their events are not counted one by one"
    silent = int((summary.per_pixel == 0).sum())
    return f"{summary.per_pixel.max():,} events in the busiest, {silent:,} without any"


def _values(name: str, count: int, shape: tuple[int, ...], low: Any, high: Any) -> str:
    each = f"{' x '.join(map(str, shape))} each, " if shape else ""
    return f"{name}: {count:,} values, {each}{low:.6g} to {high:.6g}"


def _gaps(summary: Summary) -> str:
    if not summary.gaps:
        return f"none of {_GAP_US // 1000} ms or more"
    begin, end = max(summary.gaps, key=lambda gap: gap[1] - gap[0])
    longest = f"the longest from {begin:,} to {end:,} us: {(end - begin) / 1e6:.3g} s"
    return f"{len(summary.gaps)} of {_GAP_US // 1000} ms or more, {longest}"


def _frames(summary: Summary) -> str:
    times = np.sort(np.asarray(summary.frame_times))
    if not times.size:
        return "none"
    line = f"{times.size:,} of {summary.frame_kind}, {times[0]:,} to {times[-1]:,} us"
    apart = np.diff(times)
    if apart.size and np.median(apart) > 0:
        line += f", {1e6 / np.median(apart):.3g} a second"
    if summary.exposures_us:
        low, high = min(summary.exposures_us), max(summary.exposures_us)
        return f"{line}, exposed for {low:,} us" + f" to {high:,} us" * (low < high)
    return f"{line}, exposure not in the file"


def _size(sensor: Sensor) -> str:
    return f"{sensor.height} x {sensor.width}"


def _short(rate: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate:.3g}"


def check_plot(out: Path, path: Path, *, format: str | None = None, overwrite: bool = False) -> None:
    """An error now, rather than when all is read, if a picture of the recording at `path` cannot go there."""
    require("matplotlib", "matplotlib>=3.8", "drawing a recording")
    if out.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"plot is {out}; give a name that ends in {', '.join(_SUFFIXES)}")
    check_target(out, overwrite=overwrite, inputs=sources(path, format=format))


def plot(summary: Summary, out: Path, *, overwrite: bool = False, **options: Any) -> None:
    """Draw events of the busiest moment, the frame nearest to it, events per pixel; rate and IMU by time."""
    check_plot(out, summary.path, format=summary.format, overwrite=overwrite)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    if not summary.events:
        raise ValueError(f"{summary.path} holds no events to draw")
    if summary.per_pixel is None:
        raise ValueError(f"{summary.path} is of a sensor of {_size(summary.sensor)}, too large to be drawn")
    first, last = min(summary.rate), max(summary.rate)
    if last - first >= _MOST_BINS:
        raise ValueError(f"{summary.path} lasts {summary.duration_us / 1e6:.6g} s, too long to be drawn")
    begin = max(summary.peak()[0], summary.start_us)
    events, frame, frame_time = _moment(summary, begin, options)

    def seconds(t: Any) -> Any:  # from the first event on
        return (t - summary.start_us) / 1e6

    inertial = (
        {"accelerometer, g": 1, "gyroscope, deg/s": 4} if summary.imu_rate else {}
    )  # first of three columns
    figure = Figure(figsize=(11, 5.2 + 1.5 * len(inertial)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2 + len(inertial), 3, height_ratios=(2.4, *[1] * (1 + len(inertial))))
    panels = [figure.add_subplot(grid[0, i]) for i in range(3)]
    panels[0].imshow(events_picture(events))
    panels[0].set_title(f"{len(events):,} events in {_PICTURE_US // 1000} ms from {seconds(begin):.3f} s")
    panels[0].set_xlabel("red: brighter, blue: darker")
    if frame is None:
        panels[1].text(0.5, 0.5, "no frames in the file", ha="center", va="center")
    else:
        panels[1].imshow(frame, cmap="gray")
        panels[1].set_title(f"frame at {seconds(frame_time):.3f} s")
    counts = summary.per_pixel.reshape(summary.sensor) + 1
    shown = panels[2].imshow(counts, cmap="magma", norm=LogNorm(1, max(2, counts.max())))
    panels[2].set_title("events per pixel, plus 1")
    figure.colorbar(shown, ax=panels[2], shrink=0.8)
    for panel in panels:
        panel.set_xticks([])
        panel.set_yticks([])
    below = figure.add_subplot(grid[1, :])
    rate = np.zeros(last - first + 1)
    for i, count in summary.rate.items():
        rate[i - first] = count / _RATE_BIN_US * 1e3
    middles = (np.arange(first, last + 1) + 0.5) * _RATE_BIN_US
    below.plot(seconds(middles), rate, color="0.2", linewidth=0.8)
    below.axvspan(seconds(begin), seconds(begin + _PICTURE_US), color="tab:orange", alpha=0.4, linewidth=0)
    for time in summary.frame_times:
        below.axvline(seconds(time), ymax=0.06, color="tab:blue", linewidth=0.8)
    frames = "; blue: frames" if summary.frame_times else ""
    below.set_xlabel(f"seconds from the first event; orange: the events above{frames}")
    below.set_ylabel("thousand events/s")
    below.set_ylim(bottom=0)
    bins = sorted(summary.imu_rate)
    for row, (label, column) in enumerate(inertial.items(), start=2):
        panel = figure.add_subplot(grid[row, :], sharex=below)
        sums = np.array([summary.imu_rate[i] for i in bins])
        middles = (np.array(bins) + 0.5) * _RATE_BIN_US
        for i, colour in enumerate(("tab:red", "tab:green", "tab:blue")):
            panel.plot(
                seconds(middles),
                sums[:, column + i] / sums[:, 0],
                color=colour,
                linewidth=0.8,
                label="xyz"[i],
            )
        panel.set_ylabel(label)
        # Above the panel: within, it would lie over the curves.
        panel.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize="small", frameon=False)
    figure.suptitle(
        f"{summary.path.name}: {summary.format}, {_size(summary.sensor)}, {summary.events:,} events"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with put_in_place(out, overwrite=overwrite) as aside:
        figure.savefig(aside, format=out.suffix[1:], dpi=100)


def _moment(summary: Summary, begin: int, options: dict[str, Any]) -> tuple[Events, NDArray | None, int]:
    """The events of one picture, and the frame whose time stamp is nearest to their middle."""
    parts: list[Events] = []
    frame: NDArray | None = None
    frame_time = 0
    middle = begin + _PICTURE_US // 2
    for packet in iter_packets(summary.path, format=summary.format, **options):
        if isinstance(packet, Events):
            parts.append(packet.between(begin, begin + _PICTURE_US))
        elif isinstance(packet, Frames) and len(packet):
            i = int(np.abs(packet.t - middle).argmin())
            if frame is None or abs(int(packet.t[i]) - middle) < abs(frame_time - middle):
                frame, frame_time = packet.images[i].copy(), int(packet.t[i])
    return concatenate(parts), frame, frame_time


def events_picture(events: Events) -> NDArray[np.uint8]:
    """Where brighter came more often red, where darker did blue, on white -> [H, W, 3]."""
    height, width = events.sensor
    place = events.y.astype(np.int64) * width + events.x
    up = np.bincount(place[events.p], minlength=height * width)
    down = np.bincount(place[~events.p], minlength=height * width)
    strength = np.clip((up - down) / 2, -1, 1)[:, None]
    red, blue = np.array([214, 39, 40]), np.array([31, 80, 180])
    colour = np.where(strength > 0, red, blue)
    picture = 255 + np.abs(strength) * (colour - 255)
    return picture.round().astype(np.uint8).reshape(height, width, 3)
