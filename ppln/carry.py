"""Light between two exposures: what the events say from the end of one to the begin of the next.

An event says that the logarithm of light changed by the threshold of its polarity. So the sharp frame at the
end of an exposure can be carried on, log L(t) = log L(0) + on P(t) - off N(t), with P and N the events of
either polarity since then; and the first frame of the next exposure can be carried back. What they differ by
at a pixel is the same at all times. It is made up for while the pixel and those around it have events, since
errors come with events, and evenly over time where there are none: frames begin as the one and end as the
other, whatever the thresholds.

Dimensions: K bins of time, C colours or none, H x W image.
"""

from typing import Any

import numpy as np

from ppln.light import Light

DARK = np.float32(0.1)  # light that is added before logarithms: noise in the dark is no change
LIT = 0.02  # thresholds are learnt where light is that far from 0 and from 1, at which frames are cut
MOST = 1.0  # of a threshold
QUIET = np.float32(0.3)  # events: so much counts that there is time, beside the events


class Thresholds:
    """Of both polarities, by least squares over all gaps learnt so far: what is unknown of a camera.

    A pixel's error grows with its events, and counts as a part of them: so one that fires all the time has no
    more say than another.
    """

    def __init__(self) -> None:
        self._squares, self._products = 1e-3 * np.eye(3), np.zeros(3)

    def learn(self, first: Light, last: Light, counts: Light) -> None:
        """From light at both ends of a gap, [H, W] or [H, W, C], and its events, [K, 2, H, W]."""
        on, off = (_like(part, first) for part in counts.sum(0))
        told = (on + off > 0) & (np.minimum(first, last) > LIT) & (np.maximum(first, last) < 1 - LIT)
        # The third is a change of all light, which no event tells.
        given = np.stack([on[told], -off[told], np.ones(int(told.sum()))], 1)
        weighted = given / (1 + on[told] + off[told])[:, None] ** 2
        self._squares += weighted.T @ given
        self._products += weighted.T @ (_log(last) - _log(first))[told]

    @property
    def on_off(self) -> Light:
        on, off, _ = np.linalg.solve(self._squares, self._products).clip(0, MOST)
        return np.array([on, off], np.float32)


def carry(first: Light, last: Light, counts: Light, thresholds: Thresholds) -> Light:
    """From light at both ends of a gap, [H, W] or [H, W, C], and its events in even bins, [K, 2, H, W]

    -> light at the borders of the bins, [K + 1, ...]
    """
    on, off = thresholds.on_off
    bins = len(counts)
    seen = np.zeros((bins + 1, 2, *counts.shape[2:]), np.float32)
    np.cumsum(counts, 0, out=seen[1:])
    change = on * seen[:, 0] - off * seen[:, 1]  # [K + 1, H, W]
    moved = _smooth(seen.sum(1)) + QUIET * np.linspace(0, 1, bins + 1, dtype=np.float32)[:, None, None]
    share = moved / moved[-1]  # of what is to be made up for, from 0 to 1
    low, high = _log(first), _log(last)
    missing = high - low - _like(change[-1], first)
    frames = [low + _like(c, first) + _like(s, first) * missing for c, s in zip(change, share, strict=True)]
    # Bounded before the exponential, which might overflow.
    return (np.exp(np.stack(frames).clip(np.log(DARK), np.log(1 + DARK))) - DARK).clip(0, 1)


def meet(frame: Light, at: float, ends: tuple[Light, Light], wanted: tuple[Light, Light]) -> Light:
    """A frame at a time of 0 to 1 of a film with these ends, which is bent to begin and end as wanted.

    The film is trusted in its middle: what it is off at an end fades with the third power of time.
    """
    before, after = np.float32((1 - at) ** 3), np.float32(at**3)
    return (frame + before * (wanted[0] - ends[0]) + after * (wanted[1] - ends[1])).clip(0, 1)


def _log(light: Light) -> Light:
    return np.log(light + DARK)


def _like(values: Light, light: Light) -> Light:
    """[H, W], for each colour of light [H, W, C]"""
    return np.broadcast_to(values[..., None], light.shape) if light.ndim == 3 else values


def _smooth(values: Light) -> Light:
    """(1, 2, 1) / 4 along both sides of [K, H, W]"""
    wide: Any = np.pad(values, ((0, 0), (1, 1), (1, 1)), "edge")
    wide = (wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]) / 4
    return (wide[..., :-2] + 2 * wide[..., 1:-1] + wide[..., 2:]) / 4
