"""A recording into films of sharp frames: `ppln deblur`, and in Python `ppln.deblur`.

ppln.deblur("rec.aedat4", "sharp.mp4", fps=1000)
for time_us, sharp, blurry in ppln.deblur("rec.aedat4", fps=1000): ...
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast, overload

from ppln.events.io import Options, RecordingError, sources
from ppln.image_files import PICTURES
from ppln.options import POSITION, of_names
from ppln.progress import Screen, quiet

if TYPE_CHECKING:
    from ppln.restore import Plan, Restoration


@dataclass(frozen=True)
class DeblurOptions:
    """Make a film of sharp frames out of the blurry frames of a recording and the events that fell into
    their exposures. For example: ppln deblur recording.aedat4 -o sharp.mp4 --frames 10 11 12"""

    recording: Annotated[Path | None, POSITION] = None
    """A recording with events and frames: a file, or a folder. `ppln info` tells what is in it."""
    out: Path | None = None
    """The film of the sharp frames: a name that ends in .mp4 or .gif, or a folder, for PNG files. The times
    of its frames are written beside it, as film.times.csv beside film.mp4. Default: none, but then --compare
    must be given."""
    compare: Path | None = None
    """A second film, which shows the blurry frames and the sharp ones side by side. Default: none."""
    edi: bool = False
    """In the film of --compare, also show the frames of EDI, the event-based double integral, which needs no
    training."""
    network: str = "deblur-ppln-head-small"
    """The network to use: the name of one for deblurring that `ppln models` marks as trained, or as needing
    no training, the folder of a training or of one of its checkpoints, or a .safetensors file of `ppln
    export`."""
    frame: Path | None = None
    """Instead of a recording, one blurry picture; it needs --events and --exposure-us. Default: none."""
    events: Path | None = None
    """With --frame: the recording that has its events. Default: none."""
    exposure_us: Annotated[tuple[int, int] | None, "BEGIN END"] = None
    """When an exposure begins and ends, in microseconds after the time stamp of its frame, so that 0 20000 is
    the 20 ms from there on; with --frame, on the clock of the recording. Files that do not tell need it.
    Default: as the file tells."""
    frames: tuple[int, ...] | None = None
    """Only these blurry frames, counted from 0. Default: all."""
    fps: float | None = None
    """How many sharp frames to make of each second of recorded time: with 500, ten of an exposure of 20 ms,
    and never less than one. Between exposures there are none, unless --between is given. Default: 14 of each
    exposure."""
    between: Literal["leave", "hold", "carry"] = "leave"
    """What the film shows of the time from one exposure to the next, where the camera took no picture. leave:
    nothing, so the film jumps. hold: the nearest sharp frame, which stands still. carry: new frames, made of
    the sharp ones on both sides and of the events in between; where there are hardly any events, or that time
    is more than 1 s, the same as hold. hold and carry need --fps."""
    play_fps: float = 25.0
    """How many frames of the film are shown per second. With fewer than --fps, it plays in slow motion."""
    project: bool = True
    """Correct the sharp frames of an exposure so that their mean is the blurry frame."""
    keep_hot_pixels: bool = False
    """Keep the events of faulty pixels, which fire more than ten times as often as their neighbours. Without
    it, they are left out."""
    tile: int | None = None
    """To save memory, restore pictures in square tiles of N by N pixels: 128 or more, a multiple of 16.
    Default: in tiles only where the picture is large, or memory is short."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. auto: on a GPU (cuda) where there is one."""
    overwrite: bool = False
    """Replace films that exist."""
    format: str | None = None
    """The format of the recording, such as aedat4; docs/howto-events.md lists them. Default: as its content
    tells."""
    reading: Options = Options()  # noqa: RUF009
    """How the recording is read."""

    def __post_init__(self) -> None:
        if self.recording is not None and self.frame is not None:
            raise ValueError(
                f"frame is {self.frame}, but there is a RECORDING, too; frame=PICTURE is for a picture "
                "without one; to choose frames of a recording, give frames=NUMBERS"
            )
        file = self.recording
        if file is not None and file.suffix.lower() in PICTURES and file.is_file():
            raise ValueError(
                f"{file} is a picture, and no recording; give it as frame=PICTURE, with events=FILE and "
                "exposure_us=(BEGIN, END)"
            )
        if (self.recording is None) == (self.frame is None) or (self.frame is None) != (self.events is None):
            raise ValueError(
                "give a RECORDING, or frame=PICTURE with events=FILE and exposure_us=(BEGIN, END)"
            )
        if self.frame is not None and self.exposure_us is None:
            raise ValueError(
                "frame needs exposure_us=(BEGIN, END), in microseconds on the clock of the events"
            )
        if self.between != "leave" and (self.fps is None or self.frame is not None):
            raise ValueError(
                f"between={self.between!r} is for the time between the exposures of a recording, and needs "
                "fps=NUMBER; give both, or leave it out"
            )
        if self.edi and self.compare is None:
            raise ValueError("edi needs compare=FILM, where it is shown")
        if self.out is not None and self.compare is not None:
            places = self.out.resolve(), self.compare.resolve()
            if places[0] == places[1] or places[0] in places[1].parents or places[1] in places[0].parents:
                raise ValueError(
                    f"out is {self.out} and compare is {self.compare}, the same or one inside the other; "
                    "give two places"
                )

    @property
    def source(self) -> Path:
        """Where the events are."""
        return cast(Path, self.events if self.recording is None else self.recording)


def _some(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


class Films(NamedTuple):
    """What was written."""

    frames: dict[Path, int]  # of each film
    blurry: int  # frames that they were made of
    deviation: float  # of the mean of an exposure's sharp frames from the blurry one, at most, of 0 to 1

    def text(self) -> str:
        lines = [
            f"wrote {path}: {_some(count, 'frame')} of {_some(self.blurry, 'blurry one')}"
            for path, count in self.frames.items()
        ]
        off = f"{255 * self.deviation:.2g} of 255 grey levels"
        check = f"check: the mean of an exposure's sharp frames differs from the blurry one by {off}, at most"
        return "\n".join([*lines, check])


@overload
def deblur(recording: str | Path | None, out: str | Path, **options: Any) -> Films: ...


@overload
def deblur(
    recording: str | Path | None = None, out: None = None, *, compare: str | Path, **options: Any
) -> Films: ...


@overload
def deblur(recording: str | Path | None = None, **options: Any) -> "Restoration": ...


def deblur(
    recording: str | Path | None = None, out: str | Path | None = None, **options: Any
) -> "Films | Restoration":
    """Make sharp frames out of the blurry frames of a recording and the events of their exposures.

    out       the film to write: .mp4, .gif, or a folder of PNG files
    options   those of `ppln deblur`, by the names that DeblurOptions and ppln.events.io.Options give them,
              such as compare="beside.mp4", fps=1000, between="carry", frames=[10, 11], network="deblur-edi"

    With out, or compare, the films are written, and it is told what was; with neither, nothing is written,
    and one can iterate over the sharp frames: time_us, frame and blurry, of each. They are made one by one.
    What is left out, or in doubt, is a warning.
    """
    how = of_names(DeblurOptions, {**options, "recording": recording, "out": out})
    with quiet() as screen:
        if how.out is not None or how.compare is not None:
            return write(how, screen)
        _, made = _begin(how)
        made.shots = _plan(how, screen).shots
        return made


def run(how: DeblurOptions, screen: Screen) -> str:
    """What `ppln deblur` does."""
    if how.out is None and how.compare is None:
        raise ValueError("nothing to write; give -o FILM, or --compare FILM, or both")
    return write(how, screen).text()


def write(how: DeblurOptions, screen: Screen) -> Films:
    """Write the films."""
    from ppln import devices
    from ppln.engine import trained
    from ppln.report.film import Film, beside

    network, work = _begin(how)  # what can be told before anything is read or written
    inputs = [path for path in (how.frame, network.file) if path] + sources(how.source, format=how.format)
    with ExitStack() as films:

        def film(argument: str) -> Film | None:
            path = getattr(how, argument)
            if path is None:
                return None
            about: dict[str, Any] = {"play_fps": how.play_fps, "overwrite": how.overwrite}
            return films.enter_context(Film(path, inputs=inputs, argument=argument, **about))

        sharp, both = film("out"), film("compare")
        plan = _plan(how, screen)
        work.shots = plan.shots
        shown = {network.card.name: work}
        if how.edi:
            other: Any = trained.find("deblur-edi").net.to(devices.choose(how.device))
            shown = {"EDI": replace(work, network=other), **shown}
        total = len(work)
        screen.progress("frames", 0, total)
        for done, found in enumerate(zip(*shown.values(), strict=True), start=1):
            time_us, picture, blurry = found[-1]
            if sharp is not None:
                sharp.add(picture, time_us)
            if both is not None:
                panels = {name: one.frame for name, one in zip(shown, found, strict=True)}
                both.add(beside({"blurry": blurry, **panels}), time_us)
            screen.progress("frames", done, total)
        for made in (sharp, both):
            if made is not None:
                made.finish()  # neither without the other
    written = {made.path: made.frames for made in (sharp, both) if made is not None}
    return Films(written, len(plan.shots), work.deviation)


def _begin(how: DeblurOptions) -> "tuple[Any, Restoration]":
    """The network, and its work, but for the frames."""
    from ppln import devices, restore
    from ppln.engine import trained

    where = devices.choose(how.device)
    restore.check_fps(how.fps, how.between)
    network: Any = trained.find(how.network, task="deblur")
    restore.check_network(network.net, network.card.name)
    return network, restore.Restoration(network.net.to(where), [], project=how.project, tile=how.tile)


def _plan(how: DeblurOptions, screen: Screen) -> "Plan":
    """Read what is needed of the recording, and plan its frames; what is left out or in doubt is noted."""
    from ppln import restore
    from ppln.events.excerpt import read_excerpt
    from ppln.events.picture import picture_frame

    taken = None if how.frame is None else picture_frame(how.frame)
    with _named(how.recording or how.frame):
        needed = read_excerpt(
            how.source,
            frames=how.frames,
            picture=taken,
            gaps=how.between == "carry",
            keep_hot_pixels=how.keep_hot_pixels,
            progress=screen.progress,
            format=how.format,
            exposure_us=how.exposure_us,
            **asdict(how.reading),
        )
        if left_out := needed.of_hot_pixels:
            events = f"{left_out:,} of {needed.of_events:,} events, those of hot pixels"
            screen.note(f"note: left out: {events}; keep_hot_pixels=True keeps them")
        plan = restore.plan(
            needed, frames=how.frames, exposure_us=how.exposure_us, fps=how.fps, between=how.between
        )
    for line in _notes(how, plan):
        screen.note(line)
    return plan


@contextmanager
def _named(path: Path | None) -> Iterator[None]:
    """Errors name the file; those of reading do."""
    try:
        yield
    except RecordingError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _notes(how: DeblurOptions, plan: "Plan") -> Iterator[str]:
    yield from (f"left out: {reason}" for reason in plan.left_out.values())
    yield from (f"note: {shot.doubt}" for shot in plan.shots if shot.doubt)
    if how.fps is not None and how.between == "leave" and plan.unexposed >= 0.005:
        part = f"{100 * plan.unexposed:.0f} % of the time from the first exposure to the last"
        fill = "between='carry' or between='hold' fills it"
        yield f"note: {part} lies between exposures and gets no frames; {fill}"
    gaps = [shot.gap for shot in plan.shots if shot.gap is not None]
    if how.between == "carry" and (held := sum(gap.events is None for gap in gaps)):
        few = f"{held} of {len(gaps)} gaps between exposures have hardly an event, or last over 1 s"
        yield f"note: {few}; the nearest sharp frame is held there"
