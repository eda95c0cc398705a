"""Event cameras: events and recordings, files, windows, tensors, a simulator."""

from ppln.events.events import Events, Sensor, concatenate
from ppln.events.io import RecordingError, iter_events, read_events, read_recording
from ppln.events.recording import Frames, Recording, Signal, Triggers

__all__ = [
    "Events",
    "Frames",
    "Recording",
    "RecordingError",
    "Sensor",
    "Signal",
    "Triggers",
    "concatenate",
    "iter_events",
    "read_events",
    "read_recording",
]
