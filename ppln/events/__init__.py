"""Event cameras: events and recordings, files, windows, tensors, a simulator."""

from ppln.events import filters, representations, windows
from ppln.events.camera import EventCamera
from ppln.events.events import Events, Sensor, concatenate
from ppln.events.io import RecordingError, iter_events, read_events, read_recording
from ppln.events.recording import Frames, Imu, Recording, Signal, Triggers
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
