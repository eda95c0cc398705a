"""Clips: all motions of a split in one table, the windows that can be cut out of them, bodies at any time.

Between two frames, positions run in straight lines. At CMU's 120 Hz that is off by up to 0.8 mm for 99 % of
the joints and frames, a tenth of a pixel; to interpolate the angles of every joint would gain nothing to see.

Dimensions: M clips, F frames of all of them, K capsules, B samples, S times.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppln.datasets.synthetic.people.bvh import Motion
from ppln.datasets.synthetic.people.person import CHEST, RADII, Track, make_track

LONGEST_S = 3.0  # of a window
LAG_S = 0.05  # over which a motion is measured: within less, it may be the noise of the measurement
FASTEST = 8.0  # statures in a second: what goes faster is an error of the measurement


class Placement(NamedTuple):
    """Somebody at a place, in the middle of a clip. Millimetres; z is up."""

    clip: Tensor  # [B] number
    frame: Tensor  # [B] of the clip, at time 0
    span_s: Tensor  # [B] how long it takes
    stature: Tensor  # [B]
    yaw: Tensor  # [B] that the motion is turned by
    place: Tensor  # [B, 2] in the middle of the span
    drift: Tensor  # [B, 2] mm/s there; it turns around, and as many mm are the most


class Clips:
    def __init__(self, motions: Iterable[tuple[str, Motion]], sweep: float, *, loop: bool) -> None:
        """Clips that begin again after their end, or not. sweep: what a window has to show, in statures^2.

        A window is as long as it takes until the capsules, seen from the side, have swept over this area;
        events are about in proportion to it.
        """
        self.loop = loop
        self.names: list[str] = []
        tables, lengths, rates, starts, spans = [], [], [], [], []
        for name, motion in motions:
            try:
                track = make_track(motion, loop)
            except ValueError as error:
                raise ValueError(f"motion {name}: {error}") from None
            start, span = windows(track, motion.frame_time_s, sweep, loop)
            if len(start):
                self.names.append(name)
                tables.append(torch.from_numpy(track.flat()))
                lengths.append(len(motion))
                rates.append(1 / motion.frame_time_s)
                starts.append(torch.from_numpy(start))
                spans.append(torch.from_numpy(span))
        if not self.names:
            raise ValueError(
                f"no motion has a window of up to {LONGEST_S} s with enough going on; "
                "give others, or ask for fewer frames or events"
            )
        self.table = torch.cat(tables)  # float32 [F, (3 K + 13) 3]
        self.length = torch.tensor(lengths)  # [M]
        self.first = self.length.cumsum(0) - self.length  # [M]
        self.rate = torch.tensor(rates, dtype=torch.float64)  # [M]
        self.starts, self.spans = torch.cat(starts), torch.cat(spans)  # of the windows of all clips
        self.window_count = torch.tensor([len(start) for start in starts])  # [M]
        self.window_first = self.window_count.cumsum(0) - self.window_count

    def pick(self, clip: Tensor, when: Tensor) -> tuple[Tensor, Tensor]:
        """Clips, and numbers of 0 to 1 -> first frame and span_s of a window of each."""
        window = self.window_first[clip] + (when * self.window_count[clip]).long()
        return self.starts[window], self.spans[window]

    def left_s(self, clip: int, frame: int) -> float:
        """How long a clip goes on."""
        return float("inf") if self.loop else float((self.length[clip] - 1 - frame) / self.rate[clip])

    def facing(self, placement: Placement) -> Tensor:
        """The yaw [B] by which somebody looks along -y, on average over the chest and the span."""
        times_s = placement.span_s[:, None] * torch.linspace(0, 1, 9, dtype=torch.float64)
        placement = placement._replace(yaw=torch.zeros_like(placement.stature))
        ahead = self.at(placement, times_s)[2][:, :, CHEST].mean((1, 2))  # [B, 3]
        return torch.atan2(-ahead[:, 0], -ahead[:, 1])

    def at(self, placement: Placement, times_s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bodies at times [B, S] -> start, end, side [B, S, K, 3] of capsules; joints [B, S, 13, 3]; mm"""
        clip = placement.clip[:, None]
        frame = placement.frame[:, None] + times_s.double() * self.rate[clip]
        if not self.loop:
            frame = frame.clamp(max=self.length[clip] - 1)
        before = frame.floor().long()
        low, high = (self.first[clip] + n % self.length[clip] for n in (before, before + 1))
        rows = torch.lerp(self.table[low].double(), self.table[high].double(), (frame - before)[..., None])
        start, end, side, joints = Track.unflat(rows)

        cos, sin = placement.yaw.cos(), placement.yaw.sin()
        zero, one = torch.zeros_like(cos), torch.ones_like(cos)
        turn = torch.stack([cos, sin, zero, -sin, cos, zero, zero, zero, one], -1).view(-1, 1, 3, 3)
        since = (times_s - placement.span_s[:, None] / 2)[..., None]
        place = placement.place[:, None] + since.sin() * placement.drift[:, None]
        place = torch.cat([place, torch.zeros_like(place[..., :1])], -1)[:, :, None]
        scale = placement.stature[:, None, None, None]
        start, end, joints = (scale * (x @ turn) + place for x in (start, end, joints))
        return start, end, side @ turn, joints


def windows(track: Track, frame_time_s: float, sweep: float, loop: bool) -> tuple[NDArray, NDArray]:
    """Frames that a window can begin with, and how many seconds it takes."""
    lag = max(1, round(LAG_S / frame_time_s))
    middle, axis = (track.start + track.end) / 2, track.end - track.start
    if loop:
        ahead = np.roll(middle, -lag, 0)
    else:
        ahead = middle[np.minimum(np.arange(len(middle)) + lag, len(middle) - 1)]
    step = (ahead - middle) / lag  # [F, K, 3] a frame
    radius = RADII.numpy()
    area = (np.linalg.norm(np.cross(step, axis), axis=-1) + 2 * radius * np.linalg.norm(step, axis=-1)).sum(1)
    leap = np.linalg.norm(np.diff(track.joints, axis=0, append=track.joints[:1]), axis=-1).max(1)
    broken = leap > FASTEST * frame_time_s
    frames = len(area)
    rounds = 1
    if loop:
        rounds = 1 + int(np.ceil(LONGEST_S / (frames * frame_time_s)))
        area, broken = np.tile(area, rounds), np.tile(broken, rounds)
    else:
        area, broken = area[:-1], broken[:-1]
    swept = np.concatenate([[0], np.cumsum(area)]) + 1e-9 * np.arange(len(area) + 1)
    faults = np.concatenate([[0], np.cumsum(broken)])
    begin = np.arange(min(frames, len(swept)))
    end = np.interp(swept[begin] + sweep, swept, np.arange(len(swept)), right=np.inf)
    good = (end - begin) * frame_time_s <= LONGEST_S
    begin, end = begin[good], end[good]
    good = faults[np.ceil(end).astype(int)] == faults[begin]
    return begin[good], (end - begin)[good] * frame_time_s
