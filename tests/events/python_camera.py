"""The readable truth of the event simulator: one pixel, one event at a time, in Python's own numbers."""

import math

import numpy as np

from ppln.events import Events
from ppln.events.camera import BRIGHT, DRAWS, LEAK, SHOT_NOISE, THRESHOLDS, EventCamera


def python_bits(key: int, counter: int) -> int:
    """SplitMix64."""
    z = (key + (counter + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def python_uniform(key: int, counter: int) -> float:
    return (python_bits(key, counter) >> 11) / 2**53


def python_key(seed: int, purpose: int, pixel: int) -> int:
    return python_bits(python_bits(seed, purpose), pixel)


def python_thresholds(camera: EventCamera, seed: int, pixel: int) -> list[float]:
    key = python_key(seed, THRESHOLDS, pixel)
    radius = math.sqrt(-2 * math.log(1 - python_uniform(key, 0)))
    angle = 2 * math.pi * python_uniform(key, 1)
    found = []
    for mean, normal in ((camera.on, radius * math.cos(angle)), (camera.off, radius * math.sin(angle))):
        variance = math.log(1 + (camera.threshold_spread / mean) ** 2)
        found.append(mean * math.exp(math.sqrt(variance) * normal - variance / 2))
    return found


def python_low_pass(light: list[float], times: list[int], camera: EventCamera) -> list[float]:
    if camera.bandwidth_hz is None:
        return light
    tau = 1e6 / (2 * math.pi * camera.bandwidth_hz)
    seen = [light[0]]
    for a, b, duration in zip(light, light[1:], np.diff(times).tolist(), strict=False):
        ramp = (b - a) / duration
        seen.append(b - ramp * tau + (seen[-1] - a + ramp * tau) * math.exp(-duration / tau))
    return seen


def python_pixel(light: list[float], times: list[int], camera: EventCamera, seed: int, pixel: int) -> list:
    """Events as (time stamp, positive)."""
    on, off = python_thresholds(camera, seed, pixel)
    level = [math.log(v + camera.log_offset) for v in python_low_pass(light, times, camera)]
    leak = camera.leak_rate_hz * 1e-6 * on
    place = python_uniform(python_key(seed, LEAK, pixel), 0)
    change = (place * on if leak else 0.0) if camera.settled else place * (on + off) - off
    free = 0.0  # end of the dead time
    events = []

    def fire(t: float, positive: bool) -> None:
        nonlocal change, free
        past = math.floor(t + 0.5) - times[0]
        events.append((times[0] + past - past % camera.resolution_us, positive))
        change, free = 0.0, t + camera.refractory_us

    for k in range(len(times) - 1):
        now, end = times[k], times[k + 1]
        slope = (level[k + 1] - level[k]) / (end - now) + leak
        rate = camera.shot_noise_hz * 1e-6 * (1 - (1 - BRIGHT) * min((light[k] + light[k + 1]) / 2, 1))
        noise, draw, at = [], 0, float(now)
        while rate:
            number = python_bits(python_key(seed, SHOT_NOISE, pixel), k * DRAWS + draw)
            at, draw = at - math.log(1 - (number >> 11) / 2**53) / rate, draw + 1
            if at >= end:
                break
            noise.append((at, bool(number & 1)))
        while True:
            start = max(now, free)  # what the change is known for
            crossing = math.inf
            if slope > 0:
                crossing = start + (on - change) / slope
            elif slope < 0:
                crossing = start + (off + change) / -slope
            if noise and noise[0][0] < crossing:
                now, positive = noise.pop(0)
                if now >= free:
                    fire(now, positive)
            elif crossing <= end:
                now = crossing
                fire(now, slope > 0)
            else:
                break
        change += slope * max(end - max(now, free), 0)
    return events


def python_events(frames: np.ndarray, times: list[int], camera: EventCamera, seed: int) -> Events:
    _, height, width = frames.shape
    found = []
    for pixel in range(height * width):
        light = frames[:, pixel // width, pixel % width].tolist()
        events = python_pixel(light, times, camera, seed, pixel)
        found += [(t, pixel, number, p) for number, (t, p) in enumerate(events)]
    t, pixel, _, p = (np.array(column) for column in zip(*sorted(found), strict=True)) if found else ([],) * 4
    pixel = np.array(pixel, np.int64)
    return Events(pixel % width, pixel // width, np.array(t, np.int64), np.array(p, bool), (height, width))
