"""Recordings of two cameras into the joints of a person, as a film, a table and a motion: `ppln pose`, in
Python `ppln.pose`.

ppln.pose(["camera2.h5", "camera3.h5"], "joints.mp4", fps=50)
for time_us, joints_mm, confidence, joints_px, true_mm in ppln.pose(["camera2.h5", "camera3.h5"], fps=50): ...
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, overload

import numpy as np

from ppln.events.io import Reading, sources
from ppln.files import check_beside, check_target
from ppln.options import POSITION, of_names
from ppln.progress import Screen, quiet
from ppln.protocols import CONFIDENCE, JOINT_NAMES

if TYPE_CHECKING:
    from ppln.joints import Joints, Skeleton

_PARTS = ("x_mm", "y_mm", "z_mm", "confidence")
COLUMNS = (
    "time_us",
    *(f"{name.replace(' ', '_')}_{part}" for name in JOINT_NAMES for part in _PARTS),
    *("network", "trained_on"),
)


@dataclass(frozen=True)
class PoseOptions:
    """Find where 13 joints of a person are in space, from the events of two cameras that see all of the
    person: as a film, a table, and a motion for animation programs (BVH). No trained network for it comes
    with the package: `ppln train pose --out runs/pose` trains one. For example: ppln pose camera2.h5
    camera3.h5 -o joints.mp4 --network runs/pose"""

    recording: Annotated[Path, POSITION]
    """The recording of a camera with events: a file, or a folder. `ppln info` tells what is in it. Or one
    file of all four cameras of DHP19, of which cameras 2 and 3 are taken, as DHP19 counts them, from 1."""
    second: Annotated[Path | None, POSITION] = None
    """The recording of the other camera, of the same time and with the same clock. Without --cameras, the
    first is camera 2 of DHP19, and this one camera 3. Default: none, but then RECORDING must hold both."""
    out: Path | None = None
    """The film: a name that ends in .mp4 or .gif, or a folder, for PNG files. Default: none, but then --csv
    or --bvh must be given."""
    csv: Path | None = None
    """The table of the joints, in mm, with how sure they are: a name that ends in .csv. Default: beside the
    film, as film.joints.csv beside film.mp4."""
    bvh: Path | None = None
    """The motion of the joints, in mm, a name that ends in .bvh. Default: beside the film, as film.joints.bvh
    beside film.mp4."""
    fps: float = 25.0
    """How many times per second of the recording joints are found, and the film has a picture."""
    network: str = "pose-ppln"
    """The network to use: the name of one for pose that `ppln models` marks as trained, the folder of a
    training (ppln train pose) or of one of its checkpoints, or a .safetensors file of `ppln export`. It must
    be given, until pose-ppln comes with trained weights."""
    cameras: Path | None = None
    """A JSON file with the projection matrices of both cameras, in the order of the recordings, each three
    lists of four numbers: from millimetres to columns and rows, in pixels from the top left. Default: those
    of DHP19."""
    play_fps: float | None = None
    """How many pictures per second the film plays. Default: as many as --fps, so that it plays as fast as it
    was recorded."""
    keep_hot_pixels: bool = False
    """Keep the events of faulty pixels, which fire more than ten times as often as their neighbours. Without
    it, they are left out."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. auto: on a GPU (cuda) where there is one."""
    overwrite: bool = False
    """Replace a film, a table and a motion that exist."""
    format: str | None = None
    """The format of the recordings, such as aedat4. Default: as their content tells."""
    reading: Reading = Reading()  # noqa: RUF009
    """How the recordings are read."""

    def __post_init__(self) -> None:
        check_beside("csv", self.csv, ".csv", self.out)
        check_beside("bvh", self.bvh, ".bvh", self.out)

    @property
    def recordings(self) -> list[Path]:
        return [self.recording] if self.second is None else [self.recording, self.second]

    @property
    def table(self) -> Path | None:
        """Where the joints are written."""
        return self._beside(self.csv, ".joints.csv")

    @property
    def motion(self) -> Path | None:
        return self._beside(self.bvh, ".joints.bvh")

    def _beside(self, path: Path | None, suffix: str) -> Path | None:
        return path if path is not None or self.out is None else self.out.with_suffix(suffix)


class Posed(NamedTuple):
    """What was written, and how far it is from what was recorded."""

    written: dict[Path, str]  # and what each has
    skeletons: int
    sure: float  # the share of joints that both cameras are sure of
    never_sure: tuple[str, ...]  # joints of which they never are
    with_truth: int  # of the skeletons
    mpjpe_mm: float | None  # of these
    network: str
    trained_on: str
    cameras: str

    def text(self) -> str:
        lines = [f"wrote {path}: {self.skeletons:,} {what}" for path, what in self.written.items()]
        lines.append(f"network: {self.network}, trained on {self.trained_on}; cameras: {self.cameras}")
        others = (
            "; others stay where they were last sure; before they first are, each time's own guess is given"
        )
        lines.append(f"sure: {100 * self.sure:.1f} % of the joints{others if self.sure < 1 else ''}")
        if self.never_sure:
            every = len(self.never_sure) == len(JOINT_NAMES)
            lines.append(f"never sure: {'any joint' if every else ', '.join(self.never_sure)}")
        if self.mpjpe_mm is not None:
            lines.append(
                f"MPJPE: {self.mpjpe_mm:.1f} mm, of {self.with_truth:,} skeletons with a recorded one"
            )
        return "\n".join(lines)


Recordings = str | Path | Sequence[str | Path]


@overload
def pose(recordings: Recordings, out: str | Path, **options: Any) -> Posed: ...


@overload
def pose(recordings: Recordings, out: None = None, *, csv: str | Path, **options: Any) -> Posed: ...


@overload
def pose(recordings: Recordings, out: None = None, *, bvh: str | Path, **options: Any) -> Posed: ...


@overload
def pose(recordings: Recordings, **options: Any) -> "Joints": ...


def pose(recordings: Recordings, out: str | Path | None = None, **options: Any) -> "Posed | Joints":
    """Where 13 joints of a person are in space, from the events of two cameras.

        made = ppln.pose(["camera2.h5", "camera3.h5"], "joints.mp4", fps=50)
        print(made.text())

        for time_us, joints_mm, confidence, joints_px, true_mm in ppln.pose(recordings, fps=50): ...

    recordings  of two cameras, or one file of DHP19's four
    out         the film to write: .mp4, .gif, or a folder of PNG files
    options     those of `ppln pose`, by the names that PoseOptions and ppln.events.io.Options give them, such
                as csv="joints.csv", bvh="joints.bvh", network="runs/mine". cameras may be an array [2, 3, 4]

    With out, csv or bvh, it is written, and it is told what was; with none, nothing is written, and one can
    iterate over the skeletons: time_us, joints_mm [13, 3], confidence [13], joints_px [2, 13, 2], and
    true_mm, which is None where joints were not recorded. What is left out, or in doubt, is a warning.
    """
    paths = [recordings] if isinstance(recordings, str | PathLike) else list(recordings)
    if len(paths) not in (1, 2):
        raise ValueError(f"recordings are {len(paths)}; give two, or one file of several cameras")
    given = {**dict(zip(("recording", "second"), paths, strict=False)), "out": out, **options}
    how = of_names(PoseOptions, given)
    with quiet() as screen:
        return write(how, screen) if how.table or how.motion else _Work(how).joints(screen)


def run(how: PoseOptions, screen: Screen) -> str:
    """What `ppln pose` does."""
    if how.table is None and how.motion is None:
        raise ValueError("nothing to write; give -o FILM, --csv TABLE or --bvh MOTION")
    return write(how, screen).text()


def write(how: PoseOptions, screen: Screen) -> Posed:
    """Write the film, the table and the motion."""
    from ppln.report.bvh import bvh
    from ppln.report.film import Film
    from ppln.report.skeleton import Studio
    from ppln.report.table import table

    work = _Work(how)  # what can be told before anything is read or written
    about: dict[str, Any] = {"overwrite": how.overwrite, "inputs": work.inputs}
    for path in (how.table, how.motion):
        if path is not None:
            check_target(path, **about)
    play_fps = how.fps if how.play_fps is None else how.play_fps
    film, error, written = None, _Error(), dict[Path, str]()
    adds: list[Callable[[Skeleton], Any]] = []
    with ExitStack() as targets:
        if how.out is not None:
            film = targets.enter_context(Film(how.out, play_fps=play_fps, argument="out", **about))
            written[how.out] = "pictures"
        if how.table is not None:
            add_row = targets.enter_context(table(how.table, COLUMNS, **about))
            adds.append(lambda found: add_row(work.row(found)))
            written[how.table] = "skeletons"
        if how.motion is not None:
            add_pose = targets.enter_context(bvh(how.motion, work.about, how.fps, **about))
            adds.append(lambda found: add_pose(found.joints_mm))
            written[how.motion] = "skeletons"
        joints = work.joints(screen)
        studio = Studio([work.about, f"cameras: {work.cameras_are}"], work.labels, joints.seen_by, play_fps)
        begin, end = joints.views.span_us
        for found, frame in joints.shown():
            for add in adds:
                add(found)
            error.add(found)
            if film is not None:
                film.add(studio.draw(*found, frame.counts), found.time_us)
            screen.progress("ms of the recording", (found.time_us - begin) // 1000, (end - begin) // 1000)
        if film is not None:
            film.finish()  # neither table nor motion without it
    return Posed(
        written,
        error.skeletons,
        error.sure / max(error.skeletons, 1),
        error.never_sure,
        error.known,
        error.mpjpe_mm,
        work.name,
        work.training.data,
        work.cameras_are,
    )


class _Work:
    """The network, and what it is told to do. Mistakes in that are told before a recording is read."""

    def __init__(self, how: PoseOptions) -> None:
        from ppln import devices, joints
        from ppln.engine import trained
        from ppln.tasks.pose import Pose
        from ppln.tasks.trained_on import training

        where = devices.choose(how.device)
        joints.check_fps(how.fps)
        self.how = how
        self.cameras, self.cameras_are = None, "2 and 3 of DHP19"
        if isinstance(how.cameras, Path):
            self.cameras, self.cameras_are = joints.read_cameras(how.cameras), f"of {how.cameras.name}"
        elif how.cameras is not None:
            self.cameras, self.cameras_are = joints.check_cameras(how.cameras), "as given"
        found = trained.find(how.network, task="pose")
        self.name = found.card.name
        self.network: Any = found.net.to(where)
        joints.check_network(self.network, self.name)
        self.task = found.task if isinstance(found.task, Pose) else Pose()
        self.training = training(found.card)
        read = [file for path in how.recordings for file in sources(path, format=how.format)]
        given = [found.file, how.cameras if isinstance(how.cameras, Path) else None]
        self.inputs = [*read, *(path for path in given if path is not None)]

    @property
    def about(self) -> str:
        """What every output says."""
        return f"{self.name}, trained on {self.training.data}"

    @property
    def labels(self) -> list[str]:
        paths = self.how.recordings
        numbers = (2, 3) if len(paths) == 1 or self.cameras is None else (1, 2)
        return [f"events of camera {number}" for number in numbers]

    def row(self, found: "Skeleton") -> list[Any]:
        """The network and its data are in each line: a reader of CSV needs no more."""
        joints = [
            word
            for place, confidence in zip(found.joints_mm, found.confidence, strict=True)
            for word in (*(f"{x:.3f}" for x in place), f"{confidence:.4f}")
        ]
        return [found.time_us, *joints, self.name, self.training.data]

    def joints(self, screen: Screen) -> "Joints":
        """Look through the recordings; what is left out or in doubt is noted."""
        from ppln.datasets.views import open_views
        from ppln.joints import Joints

        views = open_views(
            self.how.recordings,
            keep_hot_pixels=self.how.keep_hot_pixels,
            progress=screen.progress,
            format=self.how.format,
            **asdict(self.how.reading),
        )
        if left_out := views.of_hot_pixels:
            events = f"{left_out:,} of {views.of_events:,} events, those of hot pixels"
            screen.note(f"note: left out: {events}; keep_hot_pixels=True keeps them")
        joints = Joints(self.network, views, self.training.size, self.cameras, self.how.fps, self.task)
        if (size := self.training.size) is None:
            screen.note(
                f"note: the size of pictures that {self.name} was trained on is not known; they are taken as "
                "recorded"
            )
        elif joints.picture != views.sensor:
            height, width = views.sensor
            squeezed = abs(1 - width * size.height / (height * size.width)) > 0.1
            screen.note(
                f"note: pictures of {height} x {width} are {'squeezed' if squeezed else 'scaled'} to "
                f"{size.height} x {size.width}, on which {self.name} was trained"
            )
        return joints


class _Error:
    """Of the skeletons, where the true ones are known."""

    def __init__(self) -> None:
        self.skeletons = self.known = self.joints = 0
        self.sure = self.distance_mm = 0.0
        self.ever_sure = np.zeros(len(JOINT_NAMES), bool)

    def add(self, found: "Skeleton") -> None:
        self.skeletons += 1
        sure = found.confidence > CONFIDENCE
        self.sure += float(sure.mean())
        self.ever_sure |= sure
        if found.true_mm is not None:
            far = np.linalg.norm(found.joints_mm - found.true_mm, axis=1)
            known = np.isfinite(far)  # of some joints, the place may not have been recorded
            self.known += bool(known.any())
            self.joints += int(known.sum())
            self.distance_mm += float(far[known].sum())

    @property
    def never_sure(self) -> tuple[str, ...]:
        return tuple(name for name, ever in zip(JOINT_NAMES, self.ever_sure, strict=True) if not ever)

    @property
    def mpjpe_mm(self) -> float | None:
        return self.distance_mm / self.joints if self.joints else None
