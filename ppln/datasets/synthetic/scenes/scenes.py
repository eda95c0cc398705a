"""Scenes for deblurring, in the protocol of HQF: sharp frames, their mean, and the events in between.

    scenes = Scenes("train", size=(128, 128))
    sample = scenes.batch(range(32), "cuda")       # or a DataLoader around it
    make = scenes.captured(32, "cuda")             # makes such batches many times faster:
    sample = make(range(32, 64))
    recording = scenes.recording(7)                # a scene as a camera would have recorded it

What a scene is made of is told in stage.py. Random numbers follow from (seed, split, index): on a CPU a
sample is the same, to the bit, in any batch and process; on other devices it is the same up to rounding.

Values are linear in light: twice the value is twice the light. Frames saturate, as a camera's do; the events
see beyond. frames.py tells what frames a camera takes of the light. Light is drawn `substeps` times for each
frame, and its logarithm runs in straight lines in between. With 14 frames, 4 substeps and a motion_px of 20
no step is longer than a pixel.

Cameras have been watching for BEFORE frames' time when the first frame is taken, and have seen motion before
that: where a pixel stands between its thresholds then depends on what it saw.

Dimensions: B scenes, H rows, W columns.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ppln import protocols
from ppln.datasets.draws import Draws
from ppln.datasets.source import SPLITS, DeblurSample, picture_size
from ppln.datasets.synthetic.scenes.frames import Davis, draw_davis, drawings_after, take
from ppln.datasets.synthetic.scenes.stage import Looks, Stage, make_props, paint, set_stage, write_script
from ppln.datasets.synthetic.scenes.textures import Textures
from ppln.devices import send
from ppln.events.camera import EventCamera, Traits
from ppln.events.count import Clock, count_events
from ppln.events.events import whole
from ppln.events.recording import Frames, Recording
from ppln.events.simulate import at_once, simulate_events, simulate_histogram

STAGE, CAMERA, NOISE, FRAMES = range(4)  # what random numbers are drawn for
# Of the cameras that are drawn. No low pass, if they are not slow: in a window of half a second, its delay is
# nothing beside the time between two drawings.
NOISIEST = EventCamera(shot_noise_hz=1.0, bandwidth_hz=None, settled=False)
BEFORE = 4
LONGEST_DEAD, LONGEST_DELAY = 0.04, 0.08  # times of slow cameras, of the window


class Scenes(Dataset[DeblurSample]):
    """`length` scenes.

    textures    what surfaces look like: see textures.Textures
    motion_px   how far things move in the window, at most: see stage.py. Raise substeps with it.
    camera      None: another for each scene, with two thresholds of about 0.1 to 0.8 and some noise
    slow        pixels may be slow beside the window, as they are if it is short or there is little light
    davis       frames have the faults of a DAVIS's, others in each scene: see frames.py
    between     so many sharp frames from one to the next of those whose mean is the blurry frame: with 4,
                there are 53 of them, and 14 blur. It divides substeps.
    window_us   the time from the first frame to the last
    """

    def __init__(
        self,
        split: str,
        *,
        size: tuple[int, int] = (180, 240),
        frames: int = protocols.FRAMES,
        substeps: int = 4,
        textures: str | Path = "made+scikit-image",
        seed: int = 0,
        length: int = 10_000,
        motion_px: float = 20.0,
        camera: EventCamera | None = None,
        window_us: int = 520_000,
        davis: bool = False,
        between: int = 1,
        slow: bool = False,
    ) -> None:
        if not 0 <= motion_px < math.inf:
            raise ValueError(f"motion_px is {motion_px}; give a finite number, 0 or more")
        self.split, self.seed = split, whole("seed", seed)
        self.size = picture_size(size)
        self.frames, self.substeps = whole("frames", frames, least=2), whole("substeps", substeps, least=1)
        self.length, self.motion_px = whole("length", length, least=1), float(motion_px)
        self.camera, self.davis, self.between = camera, davis, whole("between", between, least=1)
        if slow and camera is not None:
            raise ValueError("slow is for cameras that are drawn; give camera=None, or a slow camera")
        self.slow = slow
        if self.substeps % self.between:
            raise ValueError(f"between is {between}, which does not divide substeps, {substeps}")
        steps = (self.frames - 1) * self.substeps
        self.window_us = whole("window_us", window_us, least=steps)
        after = drawings_after(self.substeps) if davis else 0
        self.before = BEFORE * self.substeps
        drawn = torch.arange(-self.before, steps + after + 1, dtype=torch.float64)
        self.drawn = drawn / (steps + after)  # the time of the stage
        self.steps_us = (
            (torch.arange(self.before + steps + 1) * self.window_us / steps).round().long().numpy()
        )
        self.start_us = int(self.steps_us[self.before])  # of the window; the camera's time is 0 before it
        resolution = torch.tensor([camera.resolution_us if camera else 1])
        self.bins = BEFORE + self.frames - 1
        self.clock = Clock.of(torch.from_numpy(self.steps_us)[None], resolution, self.bins)
        # As large as the pictures, or where these are larger than 1024, mirrored at the ends.
        side = min(1024, max(256, 64 * math.ceil(max(self.size) / 64)))
        self.textures = Textures(split, textures, size=side)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> DeblurSample:
        return DeblurSample(*(part[0] for part in self.batch([index])))

    def stage(self, indices: Iterable[int], device: torch.device | str = "cpu") -> Stage:
        """The scenes themselves, which can be drawn at any time: scenes.stage([7]).render([0.1, 0.5])"""
        draws = self._draws(STAGE, list(indices))
        return set_stage(draws, self.size, self.textures, self.motion_px, torch.device(device))

    @torch.no_grad()
    def batch(self, indices: Iterable[int], device: torch.device | str = "cpu") -> DeblurSample:
        """Several scenes, made on the device."""
        indices, device = list(indices), torch.device(device)
        if device.type != "cpu":
            return _Studio(self, device)(send(self._checked(indices), device))
        if len(indices) > 1:
            # One fills the cache, so several at once are no faster; and one has the same bits in any batch.
            return DeblurSample(*map(torch.stack, zip(*(self[i] for i in indices), strict=True)))
        light = self.stage(indices).render(self.drawn)
        cameras, seeds = self._cameras(indices), self._draws(NOISE, indices).keys
        seen = light[:, : len(self.steps_us)]
        histogram = simulate_histogram(seen, self.steps_us, cameras, seed=seeds, bins=self.bins)
        return self._sample(light, histogram, indices)

    def captured(self, size: int, device: torch.device | str) -> "CapturedScenes":
        """A faster `batch` for many batches of one size: see CapturedScenes."""
        return CapturedScenes(self, size, device)

    def _sample(self, light: Tensor, histogram: Tensor, indices: list[int] | Tensor) -> DeblurSample:
        light = light[:, self.before :]
        sharp, blurry = take(light, self.frames, self.substeps, self._davis(indices), self.between)
        times = torch.linspace(0, 1, sharp.shape[1], device=light.device).expand(len(light), -1)
        return DeblurSample(sharp, blurry, histogram[:, 2 * BEFORE :], times)

    def recording(self, index: int, *, blurry: bool = False) -> Recording:
        """A scene as a camera would have recorded it: events, and the sharp frames or the blurry one."""
        light = self.stage([index]).render(self.drawn)
        cameras, seeds = self._cameras([index]), self._draws(NOISE, [index]).keys
        (events,) = simulate_events(light[:, : len(self.steps_us)], self.steps_us, cameras, seed=seeds)
        davis = self._davis([index])
        sharp, mean = take(light[:, self.before :], self.frames, self.substeps, davis)
        t = self.steps_us[self.before :: self.substeps]
        if blurry:
            frames, t, exposure = mean, t[:1], t[None, [0, -1]]
        else:
            # Taken at once, in the middle of the exposures that the blurry frame is made of.
            middle = round(float(davis.exposure) * self.substeps / 2) if davis else 0
            frames, exposure = sharp, np.repeat(t[:, None] + self.steps_us[middle], 2, 1)
        images = (frames[0] * 255).round().to(torch.uint8).numpy()
        return Recording("synthetic", self.size, events, Frames(images, t, exposure))

    def _checked(self, indices: list[int]) -> Tensor:
        for index in indices:
            if not 0 <= index < self.length:
                raise IndexError(f"index is {index}; there are {self.length} scenes, from 0 on")
        return torch.tensor(indices)

    def _draws(self, purpose: int, indices: list[int] | Tensor) -> Draws:
        if not isinstance(indices, Tensor):
            indices = self._checked(indices)
        return Draws(self.seed, SPLITS.index(self.split), purpose, indices, device=indices.device)

    def _davis(self, indices: list[int] | Tensor) -> Davis | None:
        return draw_davis(self._draws(FRAMES, indices), self.size) if self.davis else None

    def _cameras(self, indices: list[int]) -> EventCamera | list[EventCamera]:
        if self.camera is not None:
            return self.camera
        drawn = self._draw_cameras(indices)
        table = torch.stack(list(drawn.values()), 1).tolist()
        return [replace(NOISIEST, **dict(zip(drawn, row, strict=True))) for row in table]

    def _draw_cameras(self, indices: list[int] | Tensor) -> dict[str, Tensor]:
        """What differs from NOISIEST"""
        draws = self._draws(CAMERA, indices)
        # Those of slider_depth, by its own frames, are about 0.55 and 0.37.
        middle, ratio = draws.log_uniform(0.1, 0.8), draws.log_uniform(0.5, 2)
        drawn = {
            "threshold_on": middle * ratio.sqrt(),
            "threshold_off": middle / ratio.sqrt(),
            "threshold_spread": middle * draws.uniform(0, 0.1),
            "refractory_us": draws.log_uniform(10, LONGEST_DEAD * self.window_us if self.slow else 1000),
            "leak_rate_hz": draws.log_uniform(0.003, 0.3),  # in short exposures there is hardly any
            "shot_noise_hz": draws.log_uniform(0.02, NOISIEST.shot_noise_hz),
        }
        if self.slow:
            delay_s = 1e-6 * self.window_us * draws.log_uniform(LONGEST_DELAY / 100, LONGEST_DELAY)
            drawn["bandwidth_hz"] = 1 / (2 * math.pi * delay_s)
        return drawn


class _Studio:
    """Makes scenes on a device: a function of tensors there, which never waits for the device."""

    def __init__(self, scenes: Scenes, device: torch.device) -> None:
        self.scenes, self.store = scenes, scenes.textures.store(device)
        self.drawn, self.clock = send(scenes.drawn, device), scenes.clock.to(device)
        traits = Traits.of([scenes.camera or NOISIEST])
        self.traits = Traits.split(send(torch.cat(traits, 1), device))
        self.draws = scenes.clock.draws(traits)
        self.low_pass = bool(traits.cutoff < math.inf) or scenes.slow

    def __call__(self, indices: Tensor) -> DeblurSample:
        scenes = self.scenes
        draws = scenes._draws(STAGE, indices)
        script = write_script(draws, scenes.size, scenes.textures, scenes.motion_px)
        looks = Looks(*(part.float() for part in script.looks))
        props = make_props(looks, self.store[script.which], scenes.size)
        lookup, gain = script.views(self.drawn)
        light = paint(props, lookup.float(), gain.float())
        pixels = light[:, : len(scenes.steps_us)].flatten(2)
        step = at_once(len(light), pixels.shape[2], self.draws)
        histogram = count_events(
            (pixels[:, k : k + step + 1] for k in range(0, pixels.shape[1] - 1, step)),
            self.clock,
            self._traits(indices),
            scenes._draws(NOISE, indices).keys,
            draws=self.draws,
            low_pass=self.low_pass,
        )
        return scenes._sample(light, histogram.flatten(1, 2).unflatten(2, scenes.size), indices)

    def _traits(self, indices: Tensor) -> Traits:
        if self.scenes.camera is not None:
            return self.traits
        drawn = self.scenes._draw_cameras(indices)
        on, off, spread, refractory, leak_hz, noise_hz, *bandwidth_hz = (v[:, None] for v in drawn.values())
        return self.traits._replace(
            on=on,
            off=off,
            spread=spread,
            refractory=refractory,
            leak=leak_hz * 1e-6,
            noise=noise_hz * 1e-6,
            cutoff=2e-6 * math.pi * bandwidth_hz[0] if bandwidth_hz else self.traits.cutoff,
        )


class CapturedScenes:
    """Makes batches of `size` scenes: those of Scenes.batch, up to rounding.

    On a GPU, all of the work is captured in a CUDA graph with the first batch: from then on the CPU only
    sends the indices. On a CPU, and for another number of indices, Scenes.batch makes them. Not for several
    threads at once.
    """

    def __init__(self, scenes: Scenes, size: int, device: torch.device | str) -> None:
        self.scenes, self.size, self.device = scenes, whole("size", size, least=1), torch.device(device)
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def __call__(self, indices: Iterable[int]) -> DeblurSample:
        indices = list(indices)
        if self.device.type != "cuda" or len(indices) != self.size:
            return self.scenes.batch(indices, self.device)
        chosen = self.scenes._checked(indices).pin_memory()
        with torch.cuda.device(self.device):
            graph = self.graph or self._capture(chosen)
            stream = torch.cuda.current_stream()
            stream.wait_event(self.done)  # with the last batch, perhaps on another stream
            self.indices.copy_(chosen, non_blocking=True)
            graph.replay()
            sample = DeblurSample(*(part.clone() for part in self.sample))
            self.done.record(stream)
        return sample

    def _capture(self, chosen: Tensor) -> torch.cuda.CUDAGraph:
        studio, stream = _Studio(self.scenes, self.device), torch.cuda.Stream()
        indices = chosen.to(self.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # what is loaded at first use cannot be captured
            studio(indices)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on with what is forbidden here, such as pinning memory.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self.sample = studio(indices)
        self.graph, self.indices, self.studio, self.done = graph, indices, studio, torch.cuda.Event()
        return graph
