"""Event cameras: events and recordings, files, windows, tensors, a simulator."""

from typing import TYPE_CHECKING

from ppln.events import filters, windows
from ppln.events.events import Events, Sensor, concatenate
from ppln.events.io import RecordingError, iter_events, read_events, read_recording
from ppln.events.recording import Frames, Imu, Recording, Signal, Triggers
from ppln.imports import on_demand

if TYPE_CHECKING:
    from ppln.events import representations
    from ppln.events.camera import EventCamera
    from ppln.events.simulate import simulate_events, simulate_histogram, simulate_video

__all__ = [
    "EventCamera",
    "Events",
    "Frames",
    "Imu",
    "Recording",
    "RecordingError",
    "Sensor",
    "Signal",
    "Triggers",
    "concatenate",
    "filters",
    "iter_events",
    "read_events",
    "read_recording",
    "representations",
    "simulate_events",
    "simulate_histogram",
    "simulate_video",
    "windows",
]

# These take torch; `ppln info` should not wait for it.
__getattr__ = on_demand(
    __name__,
    {
        "EventCamera": "camera",
        "representations": "representations",
        **dict.fromkeys(("simulate_events", "simulate_histogram", "simulate_video"), "simulate"),
    },
)
