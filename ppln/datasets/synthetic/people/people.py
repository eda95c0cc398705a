"""People before the four cameras of DHP19: event frames, and where 13 joints are.

    people = People("train")                                 # motions that the package makes
    people = People("train", motions="cmu_bvh.zip")          # motions that were measured
    sample = people.batch(range(16), "cuda")                 # or a DataLoader around it
    people.recording(7, camera=2, seconds=3)                 # the same person as a stream of events

Event frames are those of DHP19's own tool. A frame ends when all cameras together have seen as many times
`events_per_frame` events as they are, so it ends for all at the same time; it counts events of either
polarity, and is divided by three standard deviations of its counts. Its label is the mean position while it
lasts. Here, light is drawn in short steps, and a frame ends with the step in which its last event falls. The
frame before the first is thrown away: all pixels begin with a reset at the same time, as they never do.

A sample is `frames` of these in a row, for as long as they take: 0.1 to 3 s. How long that is, is estimated
from the motion, and a third of the time kept in reserve. Few events (a body as dark as the wall) can still
leave the last frames short or empty; `events` tells.

Nobody is in two splits. Of measured motions, what stands before the first "_" in the name of a file, CMU's
number of a subject, is a person. Random numbers follow from (seed, split, index): on the CPU a sample is the
same in any batch and process, elsewhere up to rounding.

Dimensions: B samples, C cameras, T frames, S steps, H x W picture, K capsules. Millimetres; z is up.
"""

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from ppln import geometry
from ppln.datasets.dhp19_frames import EVENTS_PER_FRAME, normalize_counts
from ppln.datasets.draws import Draws
from ppln.datasets.source import SPLITS, PoseSample, check_split, picture_size
from ppln.datasets.synthetic.people.body import Bodies, MovingPart, render
from ppln.datasets.synthetic.people.bvh import list_bvh, read_bvh_folder
from ppln.datasets.synthetic.people.clips import Clips, Placement
from ppln.datasets.synthetic.people.gestures import GESTURES, make_motion
from ppln.datasets.synthetic.people.movements import movement_of
from ppln.datasets.synthetic.people.person import (
    RADII,
    floor_of,
    make_lamps,
    make_room,
    make_textures,
)
from ppln.events.events import Events, whole
from ppln.events.recording import Frames, Recording, Signal
from ppln.events.simulate import EventCamera, simulate_events, simulate_histogram
from ppln.protocols import EVENT_FRAMES, JOINTS

MADE = {"train": range(16), "val": range(16, 19), "test": range(19, 24)}  # numbers of made people
# DHP19's tool takes out events that have no neighbours: noise. So this camera has none.
CAMERA = EventCamera(0.25, threshold_spread=0, leak_rate_hz=0, shot_noise_hz=0)
RESERVE = 1.5  # steps that are drawn, for each that should be enough
EVENTS_PER_AREA = 28_000  # of a camera as above with threshold 1, for each stature^2 that a body sweeps over
YAW = 0.25  # deviation; as DHP19's people, who look along -y, between cameras 2 and 3
TRIES = 16  # motions and places, until all cameras see all of the body
MARGIN = 40  # mm, between a marker and the edge of a picture
LABEL_US = 10_000  # from label to label of a recording, and
FRAME_US = 40_000  # from picture to picture


class People(Dataset[PoseSample]):
    """A data set of `length` samples.

    motions: a folder or zip of BVH files; None: made ones. cameras: by DHP19's numbers, in this order.
    substeps: how often light is drawn in a frame, about. With 10, hands and feet go no further than 3 pixels
    from one drawing to the next, but for one time in a hundred. events_per_frame: of a camera, on average;
    None: DHP19's 7,500, in proportion to the pixels. even: samples take turns through all that each person
    does, also what few clips show and seldom lies in all pictures; else all clips are as likely.
    """

    def __init__(
        self,
        split: str,
        *,
        motions: str | Path | None = None,
        size: tuple[int, int] = geometry.DHP19_SIZE,
        cameras: Sequence[int] = (1, 2, 3, 4),
        frames: int = EVENT_FRAMES,
        substeps: int = 10,
        events_per_frame: int | None = None,
        camera: EventCamera = CAMERA,
        even: bool = False,
        seed: int = 0,
        length: int = 10_000,
    ) -> None:
        check_split(split)
        if not cameras or not set(cameras) <= {1, 2, 3, 4} or len(set(cameras)) < len(cameras):
            raise ValueError(f"cameras are {cameras!r}; give some of 1, 2, 3 and 4, each once")
        self.split, self.seed, self.camera = split, whole("seed", seed, least=0), camera
        self.size, self.numbers = picture_size(size), tuple(cameras)
        self.frames, self.length = whole("frames", frames, least=1), whole("length", length, least=1)
        self.steps = math.ceil((self.frames + 1) * whole("substeps", substeps, least=1) * RESERVE)
        pixels = math.prod(self.size) / math.prod(geometry.DHP19_SIZE)
        if events_per_frame is None:
            events_per_frame = max(1, round(EVENTS_PER_FRAME * pixels))
        self.events_per_frame = whole("events_per_frame", events_per_frame, least=1)
        # Places and rooms are made for all four cameras, and so do not depend on which are asked for.
        self.four = geometry.resize(geometry.dhp19_cameras(), geometry.DHP19_SIZE, self.size)
        self.floor = floor_of(self.four, self.size)
        self.chosen = [number - 1 for number in cameras]
        self.cameras = self.four[self.chosen]  # float64 [C, 3, 4]
        events_per_area = EVENTS_PER_AREA * pixels * 2 / (camera.on + camera.off)
        wanted = (self.frames + 1) * self.events_per_frame * RESERVE
        self.clips = _clips(split, motions, wanted / events_per_area)
        # Somebody has one height and one build, whatever the clip.
        keys = [zlib.crc32(person_of(name).encode()) for name in self.clips.names]
        draws = Draws(0x57A7, torch.tensor(keys))
        self.stature = draws.uniform(1550, 1850)  # [clips]
        build = draws.uniform(0.88, 1.15, 1) * draws.uniform(0.95, 1.05, len(RADII))
        self.radius = RADII * build * self.stature[:, None]  # [clips, K]
        people = [person_of(name) for name in self.clips.names]
        self.subject = torch.tensor([int(name) if name.isdecimal() else -1 for name in people])  # [clips]
        self.movement = torch.tensor([movement_of(name) for name in self.clips.names])  # [clips]
        turns: dict[tuple[str, int], list[int]] = {}  # clips by person and movement
        for clip, (person, movement) in enumerate(zip(people, self.movement.tolist(), strict=True)):
            turns.setdefault((person, movement) if even else ("", 0), []).append(clip)
        self.turns = [torch.tensor(turns[key]) for key in sorted(turns)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> PoseSample:
        return PoseSample(*(part[0] for part in self.batch([index])))

    @torch.no_grad()
    def batch(self, indices: Iterable[int], device: torch.device | str = "cpu") -> PoseSample:
        """Several samples, made on the device."""
        indices = list(indices)
        if not indices:
            raise ValueError("indices are empty; give one or more")
        if torch.device(device).type == "cpu" and len(indices) > 1:
            # One by one: as fast, and with the same bits whatever the batch.
            return PoseSample(*map(torch.stack, zip(*(self[i] for i in indices), strict=True)))
        placement, views = self.placement(indices), len(self.cameras)
        step_us = (placement.span_s * 1e6 / self.steps).ceil().long()
        times_us = step_us[:, None] * torch.arange(self.steps + 1)
        bodies, joints = self._bodies(indices, placement, times_us, device)
        moving = MovingPart(bodies, self.cameras) if _is_quiet(self.camera) else None
        light = moving.render(bodies) if moving else render(bodies, self.cameras)
        seeds = Draws(*self._keys("events"), torch.tensor(indices)).keys[:, None] + torch.tensor(self.chosen)
        counts = simulate_histogram(
            light.flatten(0, 1),
            times_us.repeat_interleave(views, 0),
            self.camera,
            seed=seeds.flatten(),
            bins=self.steps,
        )
        counts = counts.unflatten(0, (-1, views)).unflatten(2, (-1, 2)).sum(3)  # [B, C, S, h, w]

        # The frame that a step belongs to: the first that was not full before it. -1 is thrown away.
        total = counts.sum((1, 3, 4), dtype=torch.float64)  # [B, S]
        frame = ((total.cumsum(1) - total) / (self.events_per_frame * views)).floor() - 1
        every = torch.arange(self.frames, device=counts.device)[:, None]
        within = (frame[:, None] == every).double()  # [B, T, S]
        dvs = (within.float()[:, None] @ counts.flatten(3)).unflatten(-1, counts.shape[3:])
        dvs = normalize_counts(dvs)
        if moving:
            dvs = moving.paste(dvs, self.size)
        ends = (frame[:, None] < torch.arange(self.frames + 1, device=frame.device)[:, None]).sum(2)  # steps
        # A frame that no step is left for stands at the end of time.
        halfway = (joints[:, 1:] + joints[:, :-1]).flatten(2) / 2
        steps = within.sum(2, keepdim=True)
        mean = torch.where(steps > 0, within @ halfway / steps.clamp(min=1), joints[:, -1:].flatten(2))
        joints_mm = mean.unflatten(-1, (-1, 3))
        joints_px = geometry.project(self.cameras.to(mean.device)[:, None, None], joints_mm[:, None])
        events = (within @ total[..., None])[..., 0].round().long()
        times = ends * step_us[:, None].to(ends.device)
        who = (labels[placement.clip].to(times.device) for labels in (self.subject, self.movement))
        return PoseSample(dvs, joints_mm.float(), joints_px.float(), times, events, *who)

    @torch.no_grad()
    def draw(
        self, indices: Iterable[int], times_us: Tensor, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """Samples at times_us [B, S] -> light, float32 [B, C, S, H, W]; joints_mm, float64 [B, S, 13, 3]"""
        indices = list(indices)
        bodies, joints = self._bodies(indices, self.placement(indices), times_us, device)
        return render(bodies, self.cameras), joints

    @torch.no_grad()
    def recording(self, index: int, *, camera: int, seconds: float) -> Recording:
        """What a camera sees from the beginning of a sample on: events, pictures, and joints as signals."""
        if camera not in self.numbers:
            raise ValueError(f"camera is {camera}; this data set has {', '.join(map(str, self.numbers))}")
        placement = self.placement([index])
        left_s = self.clips.left_s(int(placement.clip), int(placement.frame))
        end_us = round(seconds * 1e6)
        if not FRAME_US <= end_us <= left_s * 1e6:
            raise ValueError(
                f"seconds is {seconds}; give {FRAME_US * 1e-6} to {left_s:.3g}, where the clip ends"
            )
        view = camera - 1
        step_us = max(1, int(placement.span_s * 1e6 / self.steps))
        pictures_us, labels_us = (np.arange(0, end_us + 1, every) for every in (FRAME_US, LABEL_US))
        times_us = np.union1d(np.append(np.arange(0, end_us, step_us), end_us), pictures_us)
        pictures = []

        def light() -> Iterator[Tensor]:
            for some in np.array_split(times_us, math.ceil(len(times_us) / 32)):
                bodies, _ = self._bodies([index], placement, torch.from_numpy(some)[None], "cpu", [view])
                drawn = render(bodies, self.four[[view]])[0, 0]
                pictures.append(drawn[torch.from_numpy(np.isin(some, pictures_us))])
                yield from drawn

        stream, seed = light(), int(Draws(*self._keys("events"), torch.tensor([index])).keys) + view
        events = simulate_events(lambda _: next(stream), times_us, self.camera, seed=seed)
        assert isinstance(events, Events)
        images = (torch.cat(pictures).clamp(max=1) * 255).round().byte().numpy()
        joints_mm = self.clips.at(placement, torch.from_numpy(labels_us)[None] * 1e-6)[3][0]
        joints_px = geometry.project(self.four[view], joints_mm)
        signals = {"joints_mm": joints_mm.numpy(), "joints_px": joints_px.numpy()}
        return Recording(
            "people",
            self.size,
            events,
            Frames(images, pictures_us),
            signals={name: Signal(name, labels_us, values) for name, values in signals.items()},
        )

    def placement(self, indices: Iterable[int]) -> Placement:
        """Who does what in these samples, and where: the first of some tries that all four cameras see."""
        chosen = list(indices)
        for index in chosen:
            if not 0 <= index < self.length:
                raise IndexError(f"index {index} of {self.length} samples")
        draws = Draws(*self._keys("shot"), torch.tensor(chosen))
        which, when = draws.uniform(0, 1, TRIES), draws.uniform(0, 1, TRIES)
        turns = [self.turns[index % len(self.turns)] for index in chosen]
        clip = torch.stack([of[(row * len(of)).long()] for of, row in zip(turns, which, strict=True)])
        frame, span_s = self.clips.pick(clip, when)
        tries = Placement(
            clip,  # [B, TRIES]
            frame,
            span_s,
            self.stature[clip],
            YAW * draws.normal(TRIES),
            draws.uniform(-1, 1, TRIES, 2) * torch.tensor([250, 300]),
            draws.normal(TRIES, 2) * 80,
        )
        flat = Placement(*(field.flatten(0, 1) for field in tries))
        tries = tries._replace(yaw=(flat.yaw + self.clips.facing(flat)).view(clip.shape))
        flat = flat._replace(yaw=tries.yaw.flatten())
        times_s = flat.span_s[:, None] * torch.linspace(0, 1, 16, dtype=torch.float64)
        _, ends, _, markers = self.clips.at(flat, times_s)
        points = torch.cat([ends, markers], -2)[:, None]  # [B TRIES, 1, 16, K + 13, 3]
        P = self.four[:, None, None]
        pixels, depth = geometry.project(P, points), geometry.depth(P, points)
        edge = torch.tensor([self.size.width - 1, self.size.height - 1])
        inside = torch.minimum(pixels, edge - pixels).amin(-1)
        # A focal length is about the width of a picture.
        radius = pad(self.radius[flat.clip], (0, JOINTS), value=MARGIN)[:, None, None]
        inside = inside - self.size.width * radius / depth
        inside = inside.flatten(1).amin(1).view(clip.shape)
        first = torch.where((inside > 0).any(1), (inside > 0).int().argmax(1), inside.argmax(1))
        return Placement(*(field[torch.arange(len(chosen)), first] for field in tries))

    def _bodies(
        self,
        indices: list[int],
        placement: Placement,
        times_us: Tensor,
        device: torch.device | str,
        views: list[int] | None = None,
    ) -> tuple[Bodies, Tensor]:
        start, end, side, joints = self.clips.at(placement, times_us * 1e-6)
        lamps = make_lamps(Draws(*self._keys("lamps"), torch.tensor(indices)))
        draws = Draws(*self._keys("look"), torch.tensor(indices), device=device)
        look = make_textures(draws), make_room(draws, self.floor)[:, views or self.chosen]
        return Bodies(start, end, side, self.radius[placement.clip], *lamps, *look), joints.to(device)

    def _keys(self, purpose: str) -> tuple[int, int, int]:
        purposes = ("shot", "lamps", "look", "events")
        return self.seed, SPLITS.index(self.split), purposes.index(purpose)


def _is_quiet(camera: EventCamera) -> bool:
    """Whether nothing happens where nothing moves, and all pixels are alike."""
    return not (camera.threshold_spread or camera.leak_rate_hz or camera.shot_noise_hz)


def _clips(split: str, motions: str | Path | None, sweep: float) -> Clips:
    if motions is None:
        made = ((f"{n:02}_{name}", make_motion(n, name)) for n in MADE[split] for name in GESTURES)
        return Clips(made, sweep, loop=True)
    files = list_bvh(motions)
    people = split_people(map(person_of, files))[split]
    if not people:
        raise ValueError(
            f"{motions} has too few people for the split {split!r}; give four or more, or six for val"
        )
    return Clips(
        read_bvh_folder(motions, [name for name in files if person_of(name) in people]), sweep, loop=False
    )


def person_of(name: str) -> str:
    """Whose motion a file holds."""
    return name.split("_")[0]


def split_people(people: Iterable[str]) -> dict[str, list[str]]:
    """Who is in which split: every fourth is for test, and every sixth of the others for validation.

    In order of their names, by number where they have one. Of CMU's 15: 09, 16, 49 and 14, 118.
    """
    everybody = sorted(
        set(people), key=lambda name: (not name.isdecimal(), int("0" + name) if name.isdecimal() else 0, name)
    )
    test = everybody[3::4]
    others = [person for person in everybody if person not in test]
    return {"train": [p for i, p in enumerate(others) if i % 6 != 5], "val": others[5::6], "test": test}
