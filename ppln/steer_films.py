"""A recording into angles of the steering wheel, as a film and a table: `ppln steer`, in Python `ppln.steer`.

ppln.steer("rec.hdf5", "wheel.mp4", hz=100)
for time_us, angle_deg, true_deg in ppln.steer("rec.hdf5", hz=100): ...
"""

from collections import deque
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, overload

from ppln.events.events import whole
from ppln.events.io import Options, sources
from ppln.files import check_beside, check_target
from ppln.options import POSITION, of_names
from ppln.progress import Screen, quiet

if TYPE_CHECKING:
    from ppln.angles import Angle, Angles

COLUMNS = ("time_us", "angle_deg", "true_angle_deg", "network", "trained_on")


@dataclass(frozen=True)
class SteerOptions:
    """Find the angle of a car's steering wheel in a recording of a camera behind the windscreen, from its
    frames and events. The film shows these and the wheel; a table has the angles. steering-ppln, the network
    of the package, was trained on synthetic drives only. For example: ppln steer recording.hdf5 -o
    wheel.mp4"""

    recording: Annotated[Path, POSITION]
    """A recording with frames: a file, or a folder. `ppln info` tells what is in it. Or, with
    --simulate-events, a video file or a folder of pictures."""
    out: Path | None = None
    """The film: a name that ends in .mp4 or .gif, or a folder, for PNG files. Default: none, but then --csv
    must be given."""
    csv: Path | None = None
    """The table of the angles, in degrees, positive to the left; beside them, those that were recorded, if
    they were. A name that ends in .csv. Default: beside the film, as film.angles.csv beside film.mp4."""
    hz: float = 20.0
    """How many angles the table has for each second of the recording. It may be more than frames were
    recorded: the network is asked for any time."""
    network: str = "steering-ppln"
    """The network to use: the name of one for steering that `ppln models` marks as trained, the folder of a
    training or of one of its checkpoints, or a .safetensors file of `ppln export`."""
    simulate_events: bool = False
    """Instead of events that were recorded, take those that an event camera would have seen between the
    frames: for videos, and recordings without events."""
    seed: int = 0
    """With --simulate-events: seed of the camera's noise, and of how its pixels differ."""
    fps: float | None = None
    """With --simulate-events, of the input: how many frames of the video are one second of the scene. Give it
    for a folder of pictures, and for a video that plays in slow motion. For the output, see --hz and
    --film-hz. Default: as the video tells."""
    film_hz: float = 20.0
    """How many pictures the film has for each second of the recording."""
    play_fps: float | None = None
    """How many pictures per second the film plays. Default: as many as --film-hz, so that it plays as fast as
    it was recorded."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. auto: on a GPU (cuda) where there is one."""
    overwrite: bool = False
    """Replace a film and a table that exist."""
    format: str | None = None
    """The format of the recording, such as aedat4; docs/howto-events.md lists them. Default: as its content
    tells."""
    reading: Options = Options()  # noqa: RUF009
    """How the recording is read."""

    def __post_init__(self) -> None:
        check_beside("csv", self.csv, ".csv", self.out)

    @property
    def table(self) -> Path | None:
        """Where the angles are written."""
        if self.csv is not None or self.out is None:
            return self.csv
        return self.out.with_suffix(".angles.csv")


class Steered(NamedTuple):
    """What was written, and how far it is from what was recorded."""

    film: Path | None
    pictures: int
    table: Path
    angles: int
    with_truth: int  # of the angles
    rmse_deg: float | None  # of these
    network: str
    trained_on: str

    def text(self) -> str:
        lines = [] if self.film is None else [f"wrote {self.film}: {self.pictures:,} pictures"]
        lines += [
            f"wrote {self.table}: {self.angles:,} angles",
            f"network: {self.network}, trained on {self.trained_on}",
        ]
        if self.rmse_deg is not None:
            lines.append(
                f"RMSE: {self.rmse_deg:.2f} degrees, of {self.with_truth:,} angles with a recorded one"
            )
        return "\n".join(lines)


@overload
def steer(recording: str | Path, out: str | Path, **options: Any) -> Steered: ...


@overload
def steer(recording: str | Path, out: None = None, *, csv: str | Path, **options: Any) -> Steered: ...


@overload
def steer(recording: str | Path, **options: Any) -> "Angles": ...


def steer(recording: str | Path, out: str | Path | None = None, **options: Any) -> "Steered | Angles":
    """The angle of a car's steering wheel, from the frames and events of a recording.

        made = ppln.steer("rec.hdf5", "wheel.mp4", hz=100)
        print(made.text())

        angles = ppln.steer("rec.hdf5", hz=100)
        print(angles.network_name, "trained on", angles.trained_on)
        for time_us, angle_deg, true_deg in angles: ...

    out       the film to write: .mp4, .gif, or a folder of PNG files
    options   those of `ppln steer`, by the names that SteerOptions and ppln.events.io.Options give them, such
              as csv="angles.csv", hz=100, simulate_events=True, network="runs/mine"

    With out, or csv, it is written, and it is told what was; with neither, nothing is written, and one can
    iterate over the angles, in degrees and positive to the left: time_us, angle_deg, and true_deg, which is
    None where it was not recorded. What is iterated over has the attributes network_name and trained_on, the
    data that the network was trained on. What is left out, or in doubt, is a warning.
    """
    given = {**options, "recording": recording, "out": out}
    if given.get("hz", 0) is None:
        del given["hz"]
    how = of_names(SteerOptions, given)
    with quiet() as screen:
        return write(how, screen) if how.table is not None else _Work(how).angles(screen)


def run(how: SteerOptions, screen: Screen) -> str:
    """What `ppln steer` does."""
    if how.table is None:
        raise ValueError("nothing to write; give -o FILM, or --csv TABLE, or both")
    return write(how, screen).text()


def write(how: SteerOptions, screen: Screen) -> Steered:
    """Write the film and the table."""
    from ppln.report.film import Film
    from ppln.report.table import table
    from ppln.report.wheel import Dashboard

    assert how.table is not None
    work = _Work(how)  # what can be told before anything is read or written
    check_target(how.table, overwrite=how.overwrite, inputs=work.inputs)
    film, error = None, _Error()
    with ExitStack() as targets:
        if how.out is not None:
            about: dict[str, Any] = {"overwrite": how.overwrite, "inputs": work.inputs, "argument": "out"}
            play_fps = how.film_hz if how.play_fps is None else how.play_fps
            film = Film(how.out, play_fps=play_fps, **about)
            targets.enter_context(film)
        add = targets.enter_context(table(how.table, COLUMNS, overwrite=how.overwrite, inputs=work.inputs))
        angles = work.angles(screen, film_hz=None if film is None else how.film_hz)
        panel = Dashboard(work.notes, work.labels)
        total = len(angles.footage)
        screen.progress("rows", 0, total)
        for part in angles.parts():
            for angle in part.angles:
                true = "" if angle.true_deg is None else f"{angle.true_deg:.4f}"
                # The network and its data are in each line: a reader of CSV needs no more.
                add([angle.time_us, f"{angle.angle_deg:.4f}", true, work.name, work.training.data])
                error.add(angle)
            waiting = deque(part.angles)
            for angle, row in part.views:
                assert film is not None
                while waiting and waiting[0].time_us < angle.time_us:
                    panel.add(*waiting.popleft())
                film.add(panel.draw(*angle, row.image, row.counts), angle.time_us)
            if film is not None:
                for angle in waiting:
                    panel.add(*angle)
            screen.progress("rows", part.rows, total)
        if film is not None:
            film.finish()  # no table without it
    return Steered(
        film=how.out,
        pictures=film.frames if film else 0,
        table=how.table,
        angles=error.angles,
        with_truth=error.known,
        rmse_deg=error.rmse_deg,
        network=work.name,
        trained_on=work.training.data,
    )


class _Work:
    """The network, and what it is told to do. Mistakes in that are told before the recording is read."""

    def __init__(self, how: SteerOptions) -> None:
        from ppln import angles, devices
        from ppln.datasets.footage import is_video
        from ppln.engine import trained
        from ppln.tasks.trained_on import training

        where = devices.choose(how.device)
        angles.check_hz(how.hz, how.film_hz)
        whole("seed", how.seed, least=0)
        found = trained.find(how.network, task="steering")
        self.how, self.name = how, found.card.name
        self.network: Any = found.net.to(where)
        angles.check_network(self.network, self.name)
        self.training = training(found.card)
        self.is_video = how.format is None and is_video(how.recording)
        read = [how.recording] if self.is_video else sources(how.recording, format=how.format)
        self.inputs = [*read, *([found.file] if found.file else [])]

    @property
    def notes(self) -> list[str]:
        """What a film says of it."""
        simulated = self.how.simulate_events and self.network.inputs != "frames"
        about = f"{self.name}, trained on {self.training.data}"
        return [about, "events simulated"] if simulated else [about]

    @property
    def labels(self) -> tuple[str, str]:
        unused = ", not given to the network" if self.network.inputs == "events" else ""
        return f"frame{unused}", "events of 50 ms: + red, - blue"

    def angles(self, screen: Screen, film_hz: float | None = None) -> "Angles":
        """Look through the recording; what is left out or in doubt is noted."""
        from ppln.angles import Angles
        from ppln.datasets.footage import open_footage

        how = self.how
        footage = open_footage(
            how.recording,
            events=self.network.inputs != "frames",
            simulate_events=how.simulate_events,
            fps=how.fps,
            seed=how.seed,
            largest=self.training.size,
            progress=screen.progress,
            format=how.format,
            **asdict(how.reading),
        )
        if footage.left_out:
            screen.note(f"left out: {footage.left_out} parts of the recording of less than 0.5 s, by pauses")
        if footage.quiet_s >= 0.5:
            screen.note(f"left out: {footage.quiet_s:.1f} s before the first event or after the last")
        if (size := self.training.size) is None:
            screen.note(
                f"note: the size of pictures that {self.name} was trained on is not known; they are taken as "
                "recorded"
            )
        elif abs(1 - footage.size.width * size.height / (footage.size.height * size.width)) > 0.1:
            screen.note(
                f"note: pictures of {footage.size.height} x {footage.size.width} are squeezed to "
                f"{size.height} x {size.width}, on which {self.name} was trained"
            )
        return Angles(self.network, footage, size, how.hz, film_hz, self.name, self.training.data)


class _Error:
    """Of the angles, where the true ones are known."""

    def __init__(self) -> None:
        self.angles = self.known = 0
        self.squares = 0.0

    def add(self, angle: "Angle") -> None:
        self.angles += 1
        if angle.true_deg is not None:
            self.known += 1
            self.squares += (angle.angle_deg - angle.true_deg) ** 2

    @property
    def rmse_deg(self) -> float | None:
        return (self.squares / self.known) ** 0.5 if self.known else None
